"""One structure at a point, with its results."""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from basinax.structures.read import without_outcome

OF_ATOMS = frozenset(vars(Atoms()))
"""The attributes of `Atoms`."""


class Template(NamedTuple):
    """All of a structure but its positions, cell and calculator."""

    kind: type[Atoms]
    arrays: dict[str, np.ndarray]
    """The arrays with one entry per atom, `numbers` first."""
    pbc: np.ndarray
    info: dict[Any, Any]
    constraints: Sequence[Any]
    celldisp: np.ndarray | None = None
    others: Mapping[str, Any] | None = None
    """Attributes that a subclass of `Atoms` adds, as the surfaces of `ase.cluster.Cluster`."""

    @classmethod
    def of(cls, atoms: Atoms) -> "Template":
        """A copy, which does not follow later changes of the structure.

        `info` has no outcome of an earlier run. Objects in `info` are shared, as by ASE's copies.
        """
        arrays = {x: array.copy() for x, array in atoms.arrays.items() if x != "positions"}
        constraints = copy.deepcopy(atoms.constraints) if atoms.constraints else ()
        pbc, info, shift = atoms.pbc.copy(), without_outcome(atoms.info), atoms.get_celldisp()
        others = None if type(atoms) is Atoms else _further(atoms)
        return cls(type(atoms), arrays, pbc, info, constraints, shift, others)

    def at(self, positions: np.ndarray, cell: np.ndarray, results: dict[str, Any]) -> Atoms:
        """The structure at some positions, with a calculator that shares the results.

        There is no calculator without results.
        """
        atoms = self.kind(cell=cell, pbc=self.pbc, info=self.info, celldisp=self.celldisp)
        numbers, *others = self.arrays
        names = [numbers, "positions", *others]
        atoms.arrays = {
            x: np.array(positions if x == "positions" else self.arrays[x]) for x in names
        }
        atoms.set_constraint(copy.deepcopy(self.constraints))
        vars(atoms).update({x: _copied(value) for x, value in (self.others or {}).items()})
        if results:
            atoms.calc = SinglePointCalculator(atoms)
            # Calculators may have properties that ASE's constructor refuses.
            atoms.calc.results = results
        return atoms


def _further(atoms: Atoms) -> dict[str, Any]:
    """The attributes that are not of `Atoms`, but for properties that were computed and kept."""

    def is_kept(name: str) -> bool:
        of_class = getattr(type(atoms), name, None)
        return name not in OF_ATOMS and not isinstance(of_class, functools.cached_property)

    return {x: _copied(value) for x, value in vars(atoms).items() if is_kept(x)}


def _copied(value: Any) -> Any:
    """A copy, or the object itself if it has none, as a lock."""
    try:
        return copy.copy(value)
    except Exception:
        return value


class Snapshot(NamedTuple):
    """Positions, cell and results on the host, in double precision."""

    positions: np.ndarray
    cell: np.ndarray
    forces: np.ndarray
    stress: np.ndarray | None
    """The stress in eV/Å³: xx, yy, zz, yz, xz, xy; None for a fixed cell."""
    energy: float
    """The energy in eV, as ASE calls it."""
    energies: np.ndarray | None = None
    """Energies of the atoms in eV, or None."""
    free_energy: float | None = None
    """The energy in eV that is minimised; None if it is `energy`."""
    own: tuple[float, float] | None = None
    """Both energies without those of constraints, which calculators hold; None if the same."""

    def of(self, template: "Template", further: dict[str, Any] | None = None) -> Atoms:
        """The structure at this point, with a calculator that has the results.

        Args:
            further: properties that replace or complement these.
        """
        return template.at(self.positions, self.cell, self.properties() | (further or {}))

    def properties(self) -> dict[str, Any]:
        """The properties by ASE's names."""
        free_energy = self.energy if self.free_energy is None else self.free_energy
        energy, free_energy = self.own or (self.energy, free_energy)
        found: dict[str, Any] = {"energy": energy, "free_energy": free_energy}
        if self.energies is not None:
            found["energies"] = self.energies
        found["forces"] = self.forces
        if self.stress is not None:
            found["stress"] = self.stress
        return found
