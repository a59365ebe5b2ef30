"""The intake of structures: each is read and checked once, into a record that travels on.

No part of a record depends on other structures.
"""

import abc
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from ase import Atoms
from ase.filters import Filter
from ase.geometry import find_mic, minkowski_reduce
from jaxtyping import Bool, Float, Int

from basinax.numerics.rounding import BLOCK
from basinax.structures.cells.kinds import AbstractCell, Kind, check_cell, one_a_structure
from basinax.structures.constraints.hosted import HOSTED, acts_on_host, names_of
from basinax.structures.constraints.protocol import Stages
from basinax.structures.constraints.reading import check_constraints, fixed_by, read_stages

INDEPENDENT = 1e-6
"""The smallest allowed volume of the unit vectors along periodic directions."""


MOST_NUMBERS = 256
"""Elements are counted in a table, unless atomic numbers span more, as labels of users may."""

SOURCE = "relax_source"
"""The key of a structure's origin in `info`."""

OUTCOME = ("relax_status", "relax_steps", "relax_number", "relax_image")
"""The keys of an outcome in `info`, in files that commands have written."""


def without_outcome(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of `info` without the outcome of an earlier run."""
    return {key: value for key, value in info.items() if key not in OUTCOME}


class HoldsAtoms(abc.ABC):
    """What may stand in place of a structure, which is its `atoms`: an entry of a result."""

    atoms: Any


def unwrapped(structure: Any) -> Any:
    """The structure of what holds one, and anything else as it is."""
    return structure.atoms if isinstance(structure, HoldsAtoms) else structure


def source_of(atoms: Atoms, number: int) -> str:
    """The origin of a structure: that of an earlier result, or its place in the call."""
    return str(atoms.info.get(SOURCE, number))


@dataclasses.dataclass(eq=False, slots=True)
class Structure:
    """One structure, checked to be relaxable. Nothing changes it; frozen it would take four times
    as long to make."""

    number: int
    """The place of the structure in the call."""
    atoms: Atoms
    """The structure as passed, never changed."""
    stages: Stages
    """The stages of its constraints that act on the device."""
    cell: AbstractCell | None
    """The options of its moving cell; None for a fixed cell."""
    n_atoms: int
    n_elements: int
    volume: float
    """The volume in Å³; NaN without three periodic directions."""
    own: tuple[Any, ...] = ()
    """Its own numbers in settings that differ between structures."""

    def __len__(self) -> int:
        return self.n_atoms

    @property
    def fixed(self) -> Bool[np.ndarray, "atoms 3"]:
        """Coordinates that are fixed."""
        return fixed_by(self.stages, self.atoms)

    @property
    def acts_on_host(self) -> bool:
        """Whether its constraints act on the host."""
        return acts_on_host(self.atoms)

    @property
    def kind(self) -> Kind | None:
        return None if self.cell is None else self.cell.kind

    @property
    def n_blocks(self) -> int:
        """The number of blocks of rows of the structure."""
        return -(-self.n_atoms // BLOCK)


@dataclasses.dataclass(frozen=True)
class Item:
    """A structure that is to be read."""

    number: int
    """The place of the structure in the input."""
    atoms: Atoms
    cell: AbstractCell | None = None
    own: tuple[Any, ...] = ()
    """Its own numbers in settings that differ between structures."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A structure that cannot be relaxed."""

    number: int
    """The place of the structure in the input."""
    atoms: Atoms
    error: Exception
    """The reason."""
    is_read: bool = True
    """False where the error is that of whoever reads the structures."""


def has_volume(atoms: Atoms) -> bool:
    """Whether stress is defined: a periodic structure whose cell vectors span a volume."""
    return bool(atoms.pbc.any() and atoms.cell.rank == 3)


def intake(
    atoms: Iterable[Atoms | HoldsAtoms], cell: Any = None, *, is_hosted: bool = False
) -> list[Structure]:
    """The structures, if each can be relaxed.

    Args:
        cell: the motion of cells: one entry, or one per structure; None for fixed cells.
        is_hosted: whether constraints may act on the host.

    Raises:
        TypeError, ValueError, NotImplementedError: a structure or a cell is unusable; the message
        has its name and the reason.
    """
    atoms = listed(atoms)
    if not atoms:
        return []
    sizes, (cells, pbc) = np.array([len(a) for a in atoms]), cells_of(atoms)
    owners = np.repeat(np.arange(len(atoms)), sizes)
    is_usable = (sizes > 0) & np.isfinite(cells).all(axis=(1, 2))
    is_finite = np.isfinite(np.concatenate([a.positions for a in atoms]))
    if not is_finite.all():
        is_usable[owners[~is_finite.all(axis=1)]] = False
    solid = squared_measures(_units(cells), pbc) > INDEPENDENT**2
    is_fine = (is_usable & solid).tolist()
    for k, a in enumerate(atoms):
        if not is_fine[k]:
            _check_place(a, k, is_solid=bool(solid[k]))
        if a.constraints:
            check_constraints(a, functools.partial(name_of, a, k), is_hosted=is_hosted)
    # Without periodic directions no cell could move.
    is_periodic = np.any(pbc, axis=1).tolist()
    wanted = zip(one_a_structure(cell, len(atoms)), is_periodic, strict=True)
    moved = [c if may_move else None for c, may_move in wanted]
    volumes = np.abs(np.linalg.det(cells))
    for k, (a, c) in enumerate(zip(atoms, moved, strict=True)):
        if c is not None and (a.constraints or not volumes[k] > 0):
            check_cell(a, c, name_of(a, k))
            _check_is_still(a, name_of(a, k))
    numbers = np.concatenate([a.numbers for a in atoms])
    counts = _counts_of_distinct(numbers, owners, len(atoms)).tolist()
    volumes = np.where(pbc.all(axis=1), volumes, np.nan).tolist()
    stages = map(read_stages, atoms)
    each = zip(atoms, stages, moved, sizes.tolist(), counts, volumes, strict=True)
    return [Structure(k, *of_one) for k, of_one in enumerate(each)]


def _check_is_still(atoms: Atoms, name: str) -> None:
    """Raise NotImplementedError if constraints act on the host, beside a cell that moves."""
    if acts_on_host(atoms):
        on_host = names_of(c for c in atoms.constraints if type(c) in HOSTED)
        raise NotImplementedError(
            f"{name} has constraints ({on_host}), which are not supported where its cell moves:"
            " leave it fixed (cell=None)"
        )


def _counts_of_distinct(
    numbers: Int[np.ndarray, "rows"], owners: Int[np.ndarray, "rows"], n_systems: int
) -> Int[np.ndarray, "systems"]:
    """How many numbers each system has, the same number once."""
    numbers = numbers - numbers.min()
    width = int(numbers.max()) + 1
    codes = owners * width + numbers
    if width > MOST_NUMBERS:
        return np.bincount(np.unique(codes) // width, minlength=n_systems)
    is_there = np.zeros(n_systems * width, bool)
    is_there[codes] = True
    return is_there.reshape(n_systems, width).sum(axis=1)


def check_are_several(atoms: Any) -> None:
    """Raise TypeError if these are one structure, one of ASE's filters, or nothing to iterate."""
    if isinstance(atoms, Atoms):
        raise TypeError("atoms must be a list of ase.Atoms, got one Atoms: pass [atoms]")
    if isinstance(atoms, HoldsAtoms):
        raise TypeError("atoms must be a list of ase.Atoms, got one entry: pass [entry]")
    if isinstance(atoms, Filter | str) or not np.iterable(atoms):
        raise TypeError(f"atoms must be a list of ase.Atoms, got {_said_of(atoms)}")


def listed(atoms: Iterable[Atoms | HoldsAtoms]) -> list[Atoms]:
    """The structures; raise TypeError unless all are `Atoms` or hold some.

    Raises ValueError if an iterator has yielded one object several times.
    """
    check_are_several(atoms)
    found: list[Any] = [a if isinstance(a, Atoms) else unwrapped(a) for a in atoms]
    for k, a in enumerate(found):
        if not isinstance(a, Atoms):
            raise TypeError(f"atoms must be a list of ase.Atoms: entry {k} is {_said_of(a)}")
    if iter(atoms) is atoms and len(set(map(id, found))) < len(found):
        at = next(k for k, a in enumerate(found) if any(a is before for before in found[:k]))
        raise repeated(at)
    return found


def repeated(number: int) -> ValueError:
    """The error for a generator that yields an object again: it has changed it meanwhile."""
    return ValueError(
        f"structure {number} of the input is the object of one before, which has changed with it:"
        " yield atoms.copy()"
    )


FILTERS = {
    "ExpCellFilter": "Frechet()",
    "FrechetCellFilter": "Frechet()",
    "StrainFilter": "Strain()",
    "UnitCellFilter": "UnitCell()",
}
"""What moves cells in place of ASE's filters."""


def _said_of(value: Any) -> str:
    """The type of what is no structure, and what to pass in place of a file or of ASE's filters."""
    name = type(value).__name__
    if isinstance(value, str | os.PathLike):
        return f"a {name}: read files with ase.io.read({os.fspath(value)!r}, ':')"
    if not isinstance(value, Filter):
        return f"a {name}"
    if name in FILTERS:
        return f"ASE's {name}: pass its atoms, and cell={FILTERS[name]} to relax"
    return f"ASE's {name}: pass its atoms, with constraints such as FixAtoms"


def name_of(atoms: Atoms, number: int, noun: str = "system") -> str:
    """What messages call a structure: its number and its formula."""
    return f"{noun} {number} ({atoms.get_chemical_formula() or 'no atoms'})"


def _check_place(a: Atoms, number: int, *, is_solid: bool) -> None:
    """Raise ValueError if the structure has no atoms, or no valid positions or cell."""
    cell = a.cell.array
    if len(a) == 0:
        raise ValueError(f"{name_of(a, number)} has no atoms: remove it")
    if not np.isfinite(a.positions).all():
        at = int(np.argmin(np.isfinite(a.positions).all(1)))
        raise ValueError(
            f"{name_of(a, number)}: the position of atom {at} is not finite: {a.positions[at]}"
        )
    if not np.isfinite(cell).all():
        raise ValueError(f"{name_of(a, number)}: the cell is not finite: {cell.tolist()}")
    if not is_solid:
        raise ValueError(
            f"{name_of(a, number)} has pbc={a.pbc.tolist()}, but its cell vectors along these"
            f" directions are zero or not independent: {cell.tolist()}. Set the cell, or pbc to"
            " False where the system is open"
        )


def cells_of(
    atoms: Sequence[Atoms],
) -> tuple[Float[np.ndarray, "systems 3 3"], Bool[np.ndarray, "systems 3"]]:
    """The cells of structures, and the mask of their periodic directions."""
    cells = np.concatenate([np.zeros((0, 3)), *[a.cell.array for a in atoms]])
    pbc = np.concatenate([np.zeros(0, bool), *[a.pbc for a in atoms]])
    return cells.reshape(-1, 3, 3), pbc.reshape(-1, 3)


def _units(cells: Float[np.ndarray, "systems 3 3"]) -> Float[np.ndarray, "systems 3 3"]:
    """Cell vectors divided by their lengths."""
    with np.errstate(all="ignore"):  # cells may hold inf or NaN
        lengths = np.linalg.norm(cells, axis=2)
        return cells / np.where(lengths > 0, lengths, 1.0)[:, :, None]


def to_nearest_images(
    ways: Float[np.ndarray, "rows 3"],
    cell: Float[np.ndarray, "3 3"],
    pbc: Bool[np.ndarray, "3"],
) -> Float[np.ndarray, "rows 3"]:
    """The ways (Å) that are left once each leads to the nearest periodic image.

    The cell is reduced first: in skewed ones ASE's `find_mic` may miss the nearest image.
    """
    if not pbc.any():
        return ways
    return find_mic(ways, minkowski_reduce(cell, cast(Any, pbc))[0], cast(Any, pbc))[0]


def squared_measures(
    cells: Float[np.ndarray, "systems 3 3"], pbc: Bool[np.ndarray, "systems 3"]
) -> Float[np.ndarray, "systems"]:
    """The squared volume (area, length) spanned by periodic cell vectors; 1 without any."""
    with np.errstate(all="ignore"):  # cells may hold inf or NaN
        vectors = np.where(pbc[:, :, None], cells, 0.0)
        # Replace open directions by unit vectors orthogonal to the others.
        gram = vectors @ vectors.transpose(0, 2, 1) + np.eye(3) * ~pbc[:, None, :]
        return np.linalg.det(gram)
