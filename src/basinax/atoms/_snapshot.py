"""One structure at a point, with its results."""

from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from basinax.atoms._intake import Structure


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

    def of(self, structure: Atoms, further: dict[str, Any] | None = None) -> Atoms:
        """A copy of the structure at this point, with a calculator that has the results.

        Args:
            further: properties that replace or complement these.
        """
        results = self.properties() | (further or {})
        return placed(structure, self.positions, self.cell, results)

    def kept(self, structure: Structure) -> "Snapshot":
        """The snapshot with the original bits of fixed coordinates, which a run may round."""
        if structure.cell is not None:
            return self
        positions = np.where(structure.fixed, structure.atoms.positions, self.positions)
        return self._replace(positions=positions, cell=structure.atoms.cell.array)

    def properties(self) -> dict[str, Any]:
        """The properties by ASE's names."""
        found = {
            "energy": self.energy,
            "free_energy": self.energy if self.free_energy is None else self.free_energy,
            "energies": self.energies,
            "forces": self.forces,
            "stress": self.stress,
        }
        return {name: value for name, value in found.items() if value is not None}


def placed(
    structure: Atoms, positions: np.ndarray, cell: np.ndarray, results: dict[str, Any]
) -> Atoms:
    """A copy of the structure at other positions, with a calculator that shares these results.

    There is no calculator without results.
    """
    copy = structure.copy()
    copy.set_cell(cell, apply_constraint=False)
    copy.set_positions(positions, apply_constraint=False)
    if results:
        copy.calc = SinglePointCalculator(copy)
        # Calculators may have properties that ASE's constructor refuses.
        copy.calc.results = results
    return copy
