"""The record of one relaxed structure, from whose fields tables, rows and reports are made."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar, overload

import numpy as np
from ase import Atoms
from ase.symbols import Symbols
from jaxtyping import Float

from basinax.minimize.status import Status
from basinax.numerics.settings import count_of
from basinax.results.history import History
from basinax.results.snapshot import Template
from basinax.results.table import column, derived, volume_of
from basinax.structures.read import SOURCE, HoldsAtoms

SHOWN = 10
"""The number of structures in the table at the end of a summary."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Relaxed(HoldsAtoms):
    """One structure of a result. The defaults are those of one that was never evaluated."""

    noun: ClassVar[str] = "structure"
    template: Template = dataclasses.field()
    """All of the structure but its positions, cell and calculator, as in the input."""
    positions: Float[np.ndarray, "atoms 3"] = dataclasses.field()
    """The last positions in Å."""
    cell: Float[np.ndarray, "3 3"] = dataclasses.field()
    """The last cell vectors in Å, one a row."""
    results: dict[str, Any] = dataclasses.field()
    """Results at the last positions by ASE's names, in eV and Å, such as `forces`, without
    constraints; empty if there are none. The calculator of `atoms` shares them."""

    source: str = column("source", key="source", is_brief=True)
    """The origin of the structure: its number in the input, or its file and image. Its `atoms` have
    it in `info["relax_source"]`, so that it stays the same when they are relaxed again."""

    @derived("formula", is_brief=True)
    def formula(self) -> str:
        """The chemical formula, in Hill's order."""
        return Symbols(self.template.arrays["numbers"]).get_chemical_formula()

    @derived("atoms")
    def n_atoms(self) -> int:
        """The number of atoms."""
        return len(self.positions)

    status: Status = column("status", key="status", is_brief=True)  # noqa: RUF009
    steps: int = column("steps", key="steps", is_brief=True, default=0)
    """The number of steps; 0 if the start is converged."""
    evaluations: int = column("evaluations", key="evaluations", default=0)
    """The number of evaluations of energy and forces."""
    energy: float = column("energy_eV", "eV", key="final_energy", is_brief=True, default=np.nan)
    """The energy in eV; not the free energy, where a calculator has both."""

    @derived("energy_eV_per_atom", "eV/atom")
    def energy_per_atom(self) -> float:
        """The energy per atom in eV."""
        return self.energy / max(self.n_atoms, 1)

    initial_energy: float = column("initial_energy_eV", "eV", key="initial_energy", default=np.nan)
    """`energy` at the start; NaN if the structure was never evaluated."""
    fmax: float = column(
        "fmax_eV_per_A", "eV/Å", key="largest_force", is_brief=True, default=np.inf
    )
    """The largest force in eV/Å."""

    @derived("volume_A3", "Å³")
    def volume(self) -> float:
        """The volume in Å³; NaN without three periodic directions."""
        return float(volume_of(self.cell, self.template.pbc))

    initial_volume: float = column("initial_volume_A3", "Å³", key="initial_volume")
    """The volume at the start in Å³; NaN without three periodic directions."""

    @derived("max_stress_eV_per_A3", "eV/Å³")
    def max_stress(self) -> float:
        """The largest component of the stress in magnitude, in eV/Å³; NaN without stress."""
        stress = self.results.get("stress")
        return np.nan if stress is None else float(np.abs(stress).max())

    displacement: float = column("max_displacement_A", "Å", key="displacement")
    """The distance from the start of the atom that moved most, in Å."""
    seconds: float = column("seconds", "s", key="seconds", default=np.nan)
    """The time from the call to the structure's end; NaN if it did not end. In a run that goes on,
    earlier sessions count up to their last end."""
    message: str = column("message", key="message", is_brief=True, default="")
    """The reason if the structure could not be evaluated; empty otherwise."""
    history: History | None = None
    """Energy, fmax and volume of the steps, if kept."""

    @classmethod
    def of(
        cls,
        structure: Atoms,
        positions: np.ndarray,
        cell: np.ndarray,
        results: dict[str, Any],
        **fields: Any,
    ) -> Self:
        """The record of a structure that has come from its place to this one.

        It does not follow later changes of the structure, but of objects in its `info`.
        """
        known: dict[str, Any] = {
            "displacement": displacements([structure], [positions])[0],
            "initial_volume": volume_of(structure.cell.array, structure.pbc),
        }
        place = {"positions": np.array(positions), "cell": np.array(cell), "results": results}
        return cls(template=Template.of(structure), **place, **known | fields)

    @classmethod
    def made(cls, fields: dict[str, Any]) -> Self:
        """The record with these fields; the constructor of a frozen class is ten times as slow."""
        record = object.__new__(cls)
        vars(record).update(fields)
        return record

    @functools.cached_property
    def atoms(self) -> Atoms:
        """The structure at its last positions, made at the first access.

        Its calculator has the results there; it has no calculator without results.
        """
        atoms = self.template.at(self.positions, self.cell, self.results)
        atoms.info[SOURCE] = self.source
        return atoms

    def __repr__(self) -> str:
        """One line: source, formula, outcome, steps, energy and force."""
        reason = f": {self.message}" if self.message else ""
        steps, name = count_of(self.steps, "step"), type(self).__name__
        numbers = f"{self.energy:.6g} eV, fmax {self.fmax:.3g} eV/Å"
        return f"{name}({self.source}: {self.formula}, {self.status}, {steps}, {numbers}{reason})"


def displacements(starts: Sequence[Atoms], ends: Sequence[np.ndarray]) -> list[float]:
    """The distance in Å of the atom that moved most, from each structure to its end."""
    sizes = np.array([len(end) for end in ends])
    with np.errstate(over="ignore", invalid="ignore"):  # a structure that exploded overflows
        squares = np.concatenate(ends)
        squares -= np.concatenate([atoms.positions for atoms in starts])
        squares *= squares
        squares = squares[:, 0] + squares[:, 1] + squares[:, 2]
        farthest = np.maximum.reduceat(np.append(squares, 0.0), np.cumsum(sizes) - sizes)
        return np.where(sizes > 0, np.sqrt(farthest), 0.0).tolist()


Entry = TypeVar("Entry")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Entries(Sequence[Entry]):
    """A result as a sequence; a slice, a mask or numbers give the result of selected entries."""

    entries: Sequence[Entry]
    """One for each system, in the order of the input."""

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, which: int) -> Entry: ...

    @overload
    def __getitem__(self, which: slice | Sequence[int] | np.ndarray) -> Self: ...

    def __getitem__(self, which):
        if isinstance(which, int | np.integer):
            return self.entries[int(which)]
        numbers = np.arange(len(self))[which].tolist()
        return dataclasses.replace(self, entries=[self.entries[k] for k in numbers])
