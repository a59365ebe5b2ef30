"""Losses of a format, found by writing structures on trial and reading them again.

So no knowledge of a format is needed. Structures that differ in numbers alone share one trial.
"""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from basinax._settings import said
from basinax.atoms._formats import databases
from basinax.atoms._formats.equality import KNOWN_ARRAYS, OF_THE_RUN, losses
from basinax.atoms._formats.formats import Form

STEP, STRAIN = 0.003, 1e-3
"""The motion of atoms (Å) and cells in the trial: a format that cannot store it shows a loss."""


NAMED = 12
"""The largest number of losses in a message."""

LONGEST = 80
"""The largest length of a name in a message."""


class Item(NamedTuple):
    """An entry of a structure besides its geometry and results."""

    is_array: bool
    name: Any

    def __str__(self) -> str:
        if self.is_array:
            return KNOWN_ARRAYS.get(self.name, f"array {self.name!r}")
        return f"info {self.name!r}"


class Fault(NamedTuple):
    """The reason why structures cannot be written in a format."""

    text: str
    number: int | None = None
    """The number of the structure at fault, if there is a single one."""


class Trial(NamedTuple):
    """The outcome of a trial."""

    fault: Fault | None
    left_out: frozenset[Item]
    """Items that must not be written, because others would be lost with them."""
    lost: dict[str, int]
    """The names of lost or changed parts, each with the first structure known to lose it."""

    def written(self, atoms: Atoms) -> Atoms:
        """A copy in the form for the file."""
        return _without(atoms, self.left_out)

    def in_words(self, structures: Sequence[str]) -> str:
        """The losses as text; each entry that only some structures have names one of these.

        Args:
            structures: the names of all structures.
        """
        named = [
            f"{name} (of {structures[number]})"
            if len(structures) > 1 and name.startswith(("info ", "array "))
            else name
            for name, number in ((name[:LONGEST], number) for name, number in self.lost.items())
        ]
        n_more = len(named) - NAMED
        return ", ".join(named[:NAMED]) + (f" and {n_more} more" if n_more > 0 else "")


def tried(form: Form, name: str, structures: Sequence[Atoms], cells_move: Sequence[bool]) -> Trial:
    """The outcome of a trial of the format.

    Args:
        name: the name of the file.
        structures: the structures before relaxation.
        cells_move: whether each structure's cell moves.
    """
    if form.holds_one and len(structures) > 1:
        fault = Fault(f"{form.title} holds one structure, not {len(structures)}")
        return Trial(fault, frozenset(), {})
    if not form.can_read and len(structures) > 1:
        fault = Fault(
            f"ASE cannot read {form.title} and would not find {len(structures)} structures"
        )
        return Trial(fault, frozenset(), {})
    numbers = _different_ones(structures)
    meant = [_as_relaxed(structures[k], k, cell_moves=cells_move[k]) for k in numbers]
    left_out: frozenset[Item] = frozenset()
    outcome = _outcome(form, name, meant)
    if isinstance(outcome, Fault) or any(outcome):
        left_out, outcome = _with_harmless_items(form, name, meant, outcome)
    if isinstance(outcome, Fault):
        number = None if outcome.number is None else numbers[outcome.number]
        return Trial(Fault(outcome.text, number), left_out, {})
    lost: dict[str, int] = {}
    for number, atoms, names in zip(numbers, meant, outcome, strict=True):
        for item in [*names, *(str(x) for x in _items(atoms) if x in left_out)]:
            lost.setdefault(item, number)
    return Trial(None, left_out, lost)


Outcome = Fault | list[list[str]]
"""The losses of each structure, or the reason why no file was made."""


def _outcome(form: Form, name: str, meant: list[Atoms]) -> Outcome:
    """The outcome of a file with these structures."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        path = Path(folder) / name
        try:
            form.write(path, meant)
        except Exception as error:  # every writer of ASE raises errors of its own
            which = meant[0].symbols if len(meant) == 1 else f"{len(meant)} structures"
            return Fault(f"ASE cannot write {which} as {form.title}: {said(error)}")
        if not form.can_read:
            return [[] for _ in meant]
        try:
            got = list(form.read(path))
        except Exception as error:  # and every reader
            return Fault(f"ASE cannot read again what it writes as {form.title}: {said(error)}")
    if len(got) != len(meant):
        return Fault(f"{form.title}: {len(meant)} structures are read again as {len(got)}")
    if form.name in databases.FORMATS:
        meant, got = ([databases.flat(atoms) for atoms in of] for of in (meant, got))
    lost = []
    for k, (a, b) in enumerate(zip(meant, got, strict=True)):
        if len(a) != len(b):
            return Fault(f"{form.title}: {len(a)} atoms are read again as {len(b)}", k)
        lost.append(losses(a, b))
        if "elements" in lost[-1]:
            return Fault(f"{form.title}: {a.symbols} is read again as {b.symbols}", k)
    return lost


def _with_harmless_items(
    form: Form, name: str, meant: list[Atoms], outcome: Outcome
) -> tuple[frozenset[Item], Outcome]:
    """Items whose presence loses other parts, and the outcome without these items."""
    items = {item for atoms in meant for item in _items(atoms)}
    bare = _outcome(form, name, [_without(atoms, items) for atoms in meant])
    if isinstance(bare, Fault) or not _costs_others(outcome, bare, items):
        return frozenset(), bare if isinstance(bare, Fault) else outcome

    def harmful_among(some: list[Item]) -> set[Item]:
        alone = [_without(atoms, items.difference(some)) for atoms in meant]
        if not _costs_others(_outcome(form, name, alone), bare, set(some)):
            return set()
        half = len(some) // 2
        return harmful_among(some[:half]) | harmful_among(some[half:]) if half else set(some)

    harmful = harmful_among(list(items))
    outcome = _outcome(form, name, [_without(atoms, harmful) for atoms in meant])
    if _costs_others(outcome, bare, items):
        return frozenset(items), bare
    return frozenset(harmful), outcome


def _costs_others(outcome: Outcome, bare: list[list[str]], items: set[Item]) -> bool:
    """Whether other parts are lost besides the items themselves and the losses without them."""
    if isinstance(outcome, Fault):
        return True
    own = {str(item) for item in items}
    return any(set(a) - set(b) - own for a, b in zip(outcome, bare, strict=True))


def _items(atoms: Atoms) -> list[Item]:
    arrays = [Item(True, name) for name in atoms.arrays if name not in ("numbers", "positions")]
    return arrays + [Item(False, name) for name in atoms.info if name not in OF_THE_RUN]


def _without(atoms: Atoms, items: set[Item] | frozenset[Item]) -> Atoms:
    copy = atoms.copy()
    copy.calc = atoms.calc
    for is_array, name in items:
        (copy.arrays if is_array else copy.info).pop(name, None)
    return copy


def _as_relaxed(atoms: Atoms, number: int, *, cell_moves: bool) -> Atoms:
    """A structure as it may be after a run."""
    relaxed = atoms.copy()
    waves = np.cos(np.arange(3.0 * len(atoms)) + number).reshape(-1, 3)
    relaxed.set_positions(atoms.positions + STEP * waves, apply_constraint=False)
    energies = waves[:, 0] - number
    energy = float(energies.sum())
    found: dict[str, Any] = {"energy": energy, "free_energy": energy, "energies": energies}
    found["forces"] = 0.1 * waves
    if cell_moves:
        strain = np.eye(3) + STRAIN * np.cos(np.arange(9.0) + number).reshape(3, 3)
        relaxed.set_cell(relaxed.cell.array @ strain, scale_atoms=True, apply_constraint=False)
        found["stress"] = 0.01 * np.cos(np.arange(6.0) + number)
    relaxed.calc = SinglePointCalculator(relaxed, **found)
    relaxed.info |= {"relax_status": "converged", "relax_steps": 7 + number}
    return relaxed


# --- which structures are tried


def _different_ones(structures: Sequence[Atoms]) -> list[int]:
    """Structures that together have all features, always with the first and last."""
    seen: set[Any] = set()
    chosen = []
    for k, atoms in enumerate(structures):
        features = set(_features(atoms, structures[0]))
        if features - seen or k == len(structures) - 1:
            chosen.append(k)
            seen |= features
    return chosen


def _features(atoms: Atoms, first: Atoms) -> Iterator[Any]:
    """Properties that may matter to a format."""
    numbers, cell = atoms.numbers, atoms.cell
    yield "size", len(str(len(atoms))), np.sign(len(atoms) - len(first))
    yield "elements", np.array_equal(numbers, first.numbers), bool((np.diff(numbers) >= 0).all())
    yield from (("element", z) for z in set(numbers.tolist()))
    yield "pbc", tuple(atoms.pbc.tolist()), np.array_equal(atoms.pbc, first.pbc)
    yield (
        "cell",
        cell.rank,
        np.linalg.det(cell.array) > 0,
        np.array_equal(cell.array, first.cell.array),
    )
    yield "shape of the cell", tuple(cell.array.ravel() != 0)
    largest, least = atoms.positions.max(initial=0), atoms.positions.min(initial=0)
    yield "places", _magnitude(largest), _magnitude(least), least < 0
    yield "constraints", tuple(sorted(type(c).__name__ for c in atoms.constraints))
    for name, array in atoms.arrays.items():
        if name not in ("numbers", "positions"):
            yield "array", name, array.shape[1:], _sort_of(array)
    yield from (("info", _sort_of(name), name, _sort_of(x)) for name, x in atoms.info.items())


def _sort_of(value: Any) -> Any:
    """A key that is equal for values that a format keeps or loses alike."""
    if isinstance(value, str):
        return "text", len(value.split()), value.isascii(), value.isprintable(), value.isalnum()
    if isinstance(value, Mapping):
        return "mapping", frozenset((_sort_of(k), _sort_of(x)) for k, x in value.items())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return value.dtype.str, value.ndim, value.size > 1, _magnitude(np.abs(value).max(initial=0))
    if isinstance(value, list | tuple | np.ndarray):
        return type(value).__name__, frozenset(map(_sort_of, value))
    return type(value).__name__


def _magnitude(value: Any) -> int:
    """The number of digits before the point."""
    value = float(abs(value))
    return int(np.log10(value)) if np.isfinite(value) and value > 0 else 0
