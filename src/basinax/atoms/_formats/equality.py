"""Comparison of a structure read from a file with the structure that was written."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ase import Atoms
from ase.spacegroup import Spacegroup

DIGITS = 1e-5
"""The tolerance of an entry's numbers, relative to the largest."""

PLACES = 1e-6
"""The tolerance of positions and forces, in Å and eV/Å."""

NEAR = 0.02
"""Positions (Å) or forces (eV/Å) within this distance count as rounded."""

KNOWN_ARRAYS = {
    "initial_magmoms": "magnetic moments",
    "initial_charges": "charges",
    "tags": "tags",
    "masses": "masses",
    "momenta": "momenta",
}
"""Arrays that have a meaning in ASE, in words."""

RESULTS = {"free_energy": "free energy", "energies": "energies of atoms"}

OF_THE_RUN = {"relax_status": "status", "relax_steps": "steps"}
"""Entries of `info` that the command line adds."""


def are_equal(meant: Any, got: Any) -> bool:
    """Whether values have one meaning, such as a list and an array, or 0.1 in two precisions."""
    if isinstance(meant, Spacegroup):
        return _is_spacegroup(got, meant)
    if isinstance(meant, str) or isinstance(got, str):
        return isinstance(meant, str) and isinstance(got, str) and meant == got
    if isinstance(meant, Mapping):
        is_alike = isinstance(got, Mapping) and list(meant) == list(got)
        return is_alike and all(are_equal(meant[k], got[k]) for k in meant)
    if (both := _numbers(meant, got)) is not None:
        return _are_close(*both)
    if isinstance(meant, list | tuple | np.ndarray) and np.ndim(meant):
        is_alike = isinstance(got, list | tuple | np.ndarray) and len(meant) == len(got)
        return is_alike and all(map(are_equal, meant, got))
    return bool(type(meant) is type(got) and meant == got)


def losses(meant: Atoms, got: Atoms) -> list[str]:
    """The names of parts that the structure read lacks or has changed.

    Both structures have the same number of atoms.
    """
    return [*_losses_of_place(meant, got), *_losses_of_results(meant, got), *_others(meant, got)]


def _losses_of_place(meant: Atoms, got: Atoms) -> Iterator[str]:
    if not np.array_equal(meant.numbers, got.numbers):
        is_sorted = np.array_equal(np.sort(meant.numbers), np.sort(got.numbers))
        yield "order of atoms" if is_sorted else "elements"
    if not np.array_equal(meant.pbc, got.pbc):
        yield "periodic directions"
    is_turned = False
    if not _are_near(meant.cell.array, got.cell.array, PLACES):
        is_turned = _are_near(meant.cell.cellpar(), got.cell.cellpar(), NEAR)
        yield "orientation of the cell" if is_turned else "cell"
    if not _are_near(meant.positions, got.positions, PLACES):
        yield from _losses_of_positions(meant, got, is_turned=is_turned)
    if _forces_left(meant) != _forces_left(got):
        yield "constraints"


def _losses_of_positions(meant: Atoms, got: Atoms, *, is_turned: bool) -> Iterator[str]:
    is_same_cell = is_turned or _are_near(meant.cell.array, got.cell.array, NEAR)
    if not is_same_cell or meant.cell.rank != 3:
        is_near = _are_near(meant.positions, got.positions, NEAR)
        yield "digits of positions" if is_near else "positions"
        return
    moved = got.cell.scaled_positions(got.positions) - meant.cell.scaled_positions(meant.positions)
    images = np.round(moved)
    apart = np.abs(meant.cell.cartesian_positions(moved - images)).max()
    if apart > NEAR:
        yield "positions"
        return
    if apart > PLACES:
        yield "digits of positions"
    if images.any():
        yield "periodic images of atoms"


def _losses_of_results(meant: Atoms, got: Atoms) -> Iterator[str]:
    found, read = (a.calc.results if a.calc is not None else {} for a in (meant, got))
    for name, value in found.items():
        if name == "free_energy" and read.get("energy") is None:
            continue  # the same number as "energy", which is already named
        if read.get(name) is None:
            yield RESULTS.get(name, name)
        elif not _are_near(value, read[name], PLACES) and not are_equal(value, read[name]):
            yield f"digits of {name}" if _are_near(value, read[name], NEAR) else name


def _others(meant: Atoms, got: Atoms) -> Iterator[str]:
    for name, array in meant.arrays.items():
        if name in ("numbers", "positions"):
            continue
        if name not in got.arrays or not are_equal(array, got.arrays[name]):
            yield KNOWN_ARRAYS.get(name, f"array {name!r}")
    for name, value in meant.info.items():
        if name not in got.info or not are_equal(value, got.info[name]):
            yield OF_THE_RUN.get(name, f"info {name!r}")


def _forces_left(atoms: Atoms) -> list[float]:
    """Forces under the constraints, from asymmetric, rounded forces."""
    forces = np.cos(np.arange(3.0 * len(atoms)) + 0.5).reshape(-1, 3)
    try:
        for constraint in atoms.constraints:
            constraint.adjust_forces(atoms, forces)
    except Exception:  # a reader may return an object that is no constraint
        return []
    return np.round(forces, 5).ravel().tolist()


def _numbers(meant: Any, got: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The two values as arrays of one kind, if they are numbers."""
    try:
        arrays = np.asarray(meant), np.asarray(got)
    except ValueError:  # lists of different lengths
        return None
    kinds = [array.dtype.kind for array in arrays]
    is_of_one_kind = all(k in "iufc" for k in kinds) or all(k == "b" for k in kinds)
    return arrays if is_of_one_kind else None


def _are_close(meant: np.ndarray, got: np.ndarray) -> bool:
    if meant.shape != got.shape:
        return False
    if all(x.dtype.kind in "iub" for x in (meant, got)):
        return bool((meant == got).all())
    finite = np.abs(meant[np.isfinite(meant)])
    return _are_near(meant, got, DIGITS * finite.max(initial=0))


def _are_near(meant: Any, got: Any, distance: float) -> bool:
    meant, got = np.asarray(meant), np.asarray(got)
    if meant.shape != got.shape:
        return False
    return bool(np.allclose(got, meant, rtol=DIGITS, atol=distance, equal_nan=True))


def _is_spacegroup(got: Any, meant: Spacegroup) -> bool:
    """Whether a value is this space group in one of the forms of ASE's formats."""
    if isinstance(got, Mapping):
        return got.get("number") == meant.no
    if isinstance(got, str):
        return got == meant.symbol
    return isinstance(got, Spacegroup) and got == meant
