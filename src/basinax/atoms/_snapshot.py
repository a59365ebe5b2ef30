"""Where one structure stands, and what was found there."""

from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from basinax.atoms._constraints.reading import fixed_by, read_stages


class Snapshot(NamedTuple):
    """On the host, in double precision."""

    positions: np.ndarray
    cell: np.ndarray
    forces: np.ndarray
    stress: np.ndarray | None
    """In eV/Å³: xx, yy, zz, yz, xz, xy; None where the cell is fixed."""
    energy: float
    energies: np.ndarray | None = None
    """Of the atoms, in eV; None where they are not kept."""

    def of(self, original: Atoms, further: dict[str, Any] | None = None) -> Atoms:
        """A copy of the structure there, with a calculator that knows what was found.

        Args:
            further: properties that take the place of these, or stand beside them.
        """
        copy = original.copy()
        positions, cell = self.place(original)
        copy.set_cell(cell, apply_constraint=False)
        copy.set_positions(positions, apply_constraint=False)
        copy.calc = SinglePointCalculator(copy)
        # Calculators may name properties that ASE's constructor does not know.
        copy.calc.results |= self.properties() | (further or {})
        return copy

    def place(self, original: Atoms) -> tuple[np.ndarray, np.ndarray]:
        """Positions and cell; what the structure itself has fixed keeps its bits."""
        if self.stress is None:
            # A run in single precision has rounded them.
            is_fixed = fixed_by(read_stages(original), len(original))
            positions = np.where(is_fixed, original.positions, self.positions)
            return positions, original.cell.array
        return self.positions, self.cell

    def properties(self) -> dict[str, Any]:
        """What was found, by ASE's names."""
        found = {
            "energy": self.energy,
            "free_energy": self.energy,
            "energies": self.energies,
            "forces": self.forces,
            "stress": self.stress,
        }
        return {name: value for name, value in found.items() if value is not None}
