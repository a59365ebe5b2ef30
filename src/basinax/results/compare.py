"""Two results of the same structures or paths beside each other."""

import abc
import dataclasses
import html
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from ase.constraints import FixAtoms, FixBondLengths, FixCom, FixInternals, FixSymmetry, Hookean
from ase.geometry import complete_cell

from basinax.minimize.status import Status
from basinax.numerics.settings import count_of, first_of
from basinax.results.record import SHOWN, Entries, Relaxed
from basinax.results.table import (
    AbstractTable,
    brief_of,
    columns_of,
    derived,
    html_of,
    more_than,
    text_of,
)
from basinax.structures.read import to_nearest_images

NEAR = 1e-3
"""Energies that differ by less count as equal in summaries, in eV or eV per atom."""


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractCompared(abc.ABC):
    """One structure or path in two results, the first and the other one."""

    first: Any
    other: Any

    noun: ClassVar[str]
    """What is compared, such as structure."""
    judged_by: ClassVar[tuple[str, str]]
    """The energies by which summaries count what is lower or higher, and their unit."""

    @property
    @abc.abstractmethod
    def judged_difference(self) -> float:
        """The energy of `judged_by` in the other minus that in the first, in eV or eV per atom."""

    @derived("source", is_brief=True)
    def source(self) -> str:
        """The origin of the structure or path, which is the same in both."""
        return self.first.source

    @derived("formula", is_brief=True)
    def formula(self) -> str:
        return self.first.formula

    @derived("status", is_brief=True)
    def status(self) -> Status:
        return self.first.status

    @derived("other_status", is_brief=True)
    def other_status(self) -> Status:
        return self.other.status

    @derived("steps")
    def steps(self) -> int:
        return self.first.steps

    @derived("other_steps")
    def other_steps(self) -> int:
        return self.other.steps

    @derived("evaluations", is_brief=True)
    def evaluations(self) -> int:
        return self.first.evaluations

    @derived("other_evaluations", is_brief=True)
    def other_evaluations(self) -> int:
        return self.other.evaluations

    @property
    @abc.abstractmethod
    def distance(self) -> float:
        """The largest distance between the places of an atom in Å, see `distance_of`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Compared(AbstractCompared):
    """One structure in two results, the first and the other one."""

    first: Relaxed
    other: Relaxed

    noun = "structure"
    judged_by = "energies", "meV/atom"

    @derived("atoms")
    def n_atoms(self) -> int:
        return self.first.n_atoms

    @derived("energy_difference_eV", "eV", is_brief=True)
    def energy_difference(self) -> float:
        """The energy in the other minus that in the first, in eV."""
        return self.other.energy - self.first.energy

    @derived("energy_difference_eV_per_atom", "eV/atom")
    def energy_difference_per_atom(self) -> float:
        """The energy difference per atom in eV."""
        return self.energy_difference / self.n_atoms

    @property
    def judged_difference(self) -> float:
        return self.energy_difference_per_atom

    @derived("volume_difference_A3", "Å³")
    def volume_difference(self) -> float:
        """The volume in the other minus that in the first, in Å³; NaN without volumes."""
        return self.other.volume - self.first.volume

    @derived("distance_A", "Å", is_brief=True)
    def distance(self) -> float:
        """See `distance_of`."""
        return distance_of(self.first, self.other)


Pair = TypeVar("Pair", bound=AbstractCompared)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Comparison(AbstractTable, Entries[Pair]):
    """Two results beside each other: a sequence of what is in both, such as `Compared`."""

    kind: type[Pair]
    """The class of entries, which an empty comparison has, too."""
    only_first: Sequence[str] = ()
    """Sources of what the other result lacks."""
    only_other: Sequence[str] = ()
    """Sources of what the first result lacks."""

    @classmethod
    def of(cls, first: Sequence[Any], other: Sequence[Any], kind: type[Pair]) -> Self:
        """What both have, by source; raises ValueError if sources do not match them.

        Args:
            kind: makes an entry of a structure or path in the first and in the other result.
        """
        ours, theirs = (Counter(x.source for x in entries) for entries in (first, other))
        for source in ours:
            if source in theirs and ours[source] != theirs[source]:
                raise ValueError(
                    f"source {source!r} stands {count_of(ours[source], 'time')} in the first result"
                    f" and {count_of(theirs[source], 'time')} in the other: remove"
                    " info['relax_source'] of structures that are new"
                )
        # A file that is named twice has several entries, which are matched in their order.
        rest: dict[str, list[Any]] = {}
        for entry in reversed(other):
            rest.setdefault(entry.source, []).append(entry)
        pairs = [kind(x, rest[x.source].pop()) for x in first if x.source in rest]
        for pair in pairs:
            if pair.first.formula != pair.other.formula:
                raise ValueError(
                    f"source {pair.source!r} is {pair.first.formula} in the first result and"
                    f" {pair.other.formula} in the other: they are of different inputs"
                )
        return cls(
            pairs,
            kind,
            [x.source for x in first if x.source not in theirs],
            [x.source for x in other if x.source not in ours],
        )

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure or path in both.

        The columns are `source`, `formula`, `status`, `steps`, `evaluations` and `distance_A`;
        `other_status`, `other_steps` and `other_evaluations` are of the other result. Differences
        are the other minus the first. Structures have `atoms`, `energy_difference_eV`,
        `energy_difference_eV_per_atom` and `volume_difference_A3`; paths have `images`,
        `other_images`, `barrier_difference_eV`, `reverse_barrier_difference_eV` and
        `reaction_energy_difference_eV`.
        """
        return columns_of(self.entries, self.kind)

    def __repr__(self) -> str:
        """Counts, sums, and the first lines of the table."""
        more = more_than(SHOWN, len(self))
        lines = [*self._summary(), "", text_of(brief_of(self.entries[:SHOWN], self.kind)), *more]
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        """The table of `repr`, for notebooks."""
        more = "".join(f"<p>{text}</p>" for text in more_than(SHOWN, len(self)))
        table = html_of(brief_of(self.entries[:SHOWN], self.kind))
        return f"<p>{'<br>'.join(map(html.escape, self._summary()))}</p>{table}{more}"

    def _summary(self) -> list[str]:
        lines = [f"{count_of(len(self), self.kind.noun)} in both results"]
        for name, missing in (("first", self.only_first), ("other", self.only_other)):
            if missing:
                lines.append(f"{len(missing)} only in the {name}: {first_of(missing)}")
        if not len(self):
            return lines
        differences = np.array([pair.judged_difference for pair in self.entries])
        distances = np.array([pair.distance for pair in self.entries])
        n_lower, n_higher = int((differences < -NEAR).sum()), int((differences > NEAR).sum())
        n_near = int((np.abs(differences) <= NEAR).sum())
        n_unknown = int(np.isnan(differences).sum())
        largest = distances[np.isfinite(distances)].max(initial=0.0)
        counted: dict[str, Callable[[Any], int]] = {
            "converged": lambda entry: entry.status == Status.CONVERGED,
            "steps": lambda entry: entry.steps,
            "evaluations": lambda entry: entry.evaluations,
        }
        totals = [f"{what} {self._totals(count)}" for what, count in counted.items()]
        name, unit = self.kind.judged_by
        return [
            *lines,
            f"in the first and the other: {'; '.join(totals)}",
            f"{name} of the other: {n_lower} lower, {n_higher} higher, {n_near} within"
            f" {1000 * NEAR:g} {unit}{f', {n_unknown} unknown' if n_unknown else ''};"
            f" largest distance {largest:.3g} Å",
        ]

    def _totals(self, count: Callable[[Any], int]) -> str:
        """The sums over structures or paths, in the first result and the other."""
        ours = sum(count(pair.first) for pair in self.entries)
        return f"{ours} and {sum(count(pair.other) for pair in self.entries)}"


def distance_of(first: Relaxed, other: Relaxed) -> float:
    """The largest distance between the places of an atom in two structures, in Å.

    Along periodic directions it is that of the nearest images, and cells are compared by the
    fractions of their vectors. Unless constraints hold atoms in space, a common translation does
    not count, nor a common rotation (Kabsch 1976) without periodic directions. NaN if positions
    or cells are unusable.
    """
    ours, theirs = first.positions, other.positions
    if not all(np.isfinite(x).all() for x in (ours, theirs, first.cell, other.cell)):
        return np.nan
    pbc, is_held = first.template.pbc, any(map(_holds_in_space, first.template.constraints))
    if not pbc.any():
        moves = theirs - ours if is_held else _turned(theirs, ours)
    else:
        cells = [complete_cell(x.cell) for x in (first, other)]
        if min(map(np.linalg.matrix_rank, cells)) < 3:
            return np.nan
        inside = [
            np.linalg.solve(cell.T, x.T).T for cell, x in zip(cells, (ours, theirs), strict=True)
        ]
        shifts = inside[1] - inside[0]
        origin = np.zeros(3) if is_held else shifts[0]
        cell = (cells[0] + cells[1]) / 2
        moves = to_nearest_images((shifts - origin) @ cell, cell, pbc)
        moves -= 0.0 if is_held else moves.mean(axis=0)
    if np.array_equal(ours, theirs) and np.array_equal(first.cell, other.cell):
        return 0.0  # of which turns and means leave roundings
    return float(np.sqrt((moves * moves).sum(axis=1)).max(initial=0.0))


def _holds_in_space(constraint: Any) -> bool:
    """Whether a constraint holds atoms in space, and not only to each other."""
    if isinstance(constraint, Hookean):
        told: Any = constraint.todict()
        return np.ndim(told["kwargs"]["a2"]) > 0  # a point or a plane, no atom
    if isinstance(constraint, FixAtoms):
        return len(constraint.index) > 0
    return not isinstance(constraint, FixBondLengths | FixCom | FixInternals | FixSymmetry)


def _turned(points: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """The moves that are left once points are moved and turned onto others, by least squares."""
    points, onto = points - points.mean(axis=0), onto - onto.mean(axis=0)
    left, _, right = np.linalg.svd(points.T @ onto)
    # A reflection is no rotation.
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    return points @ (left * signs @ right) - onto
