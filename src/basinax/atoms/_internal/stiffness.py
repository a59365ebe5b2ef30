"""Force constants of internal coordinates, by their lengths alone; eV, Å, rad.

T. H. Fischer and J. Almlöf, J. Phys. Chem. 96, 9768 (1992), with bends, torsions and impropers in
other parts, which the evaluations of relaxations with GFN2-xTB decided (`docs/notebook.md`).
Springs of metals are an exponential of the distance.
"""

import numpy as np
from ase.data import covalent_radii
from ase.units import Bohr, Hartree
from jaxtyping import Float, Int

from basinax.atoms._internal.lists import METAL, InternalList

BENDS, TORSIONS, FLAT = 0.8, 1.5, 0.04
"""Parts of Fischer's and Almlöf's constants; of an improper, the constant (Hartree/rad²)."""

STIFFEST = 100.0
"""The largest constant of a bond that is compressed (eV/Å²)."""

SPRING, DECAY, STIFFEST_SPRING = 4.0, 3.0, 12.0
"""A metal's spring at the sum of the radii (eV/Å²), how it decays with relative distance, and the
stiffest."""


class Stiffness:
    """Force constants of the coordinates of a list, wherever the atoms stand."""

    def __init__(self, listed: InternalList, numbers: Int[np.ndarray, "atoms"]):
        self.listed = listed
        self.radii = covalent_radii[numbers][listed.owners] / Bohr
        self.bonds = listed.degrees[listed.owners]
        j, k = listed.torsions[:, 1], listed.torsions[:, 2]
        axes = j * len(listed.owners) + k
        _, which, counts = np.unique(axes, return_inverse=True, return_counts=True)
        self.sharers = counts[which.ravel()]
        """How many torsions there are about the bond of each."""

    def __call__(self, x: Float[np.ndarray, "images 3"]) -> Float[np.ndarray, "q"]:
        """Args: x: of the images, in Å."""
        listed, x = self.listed, x / Bohr
        linear = np.repeat(self._bends(x, listed.linear), 2)
        angles = Hartree * BENDS * np.concatenate([self._bends(x, listed.bends), linear])
        torsions = Hartree * TORSIONS * self._torsions(x) / self.sharers
        flat = np.full(len(listed.flat), Hartree * FLAT)
        return np.concatenate([self._stretches(x), angles, torsions, flat])

    def _apart(self, x, i, j) -> tuple[np.ndarray, np.ndarray]:
        """Distances, and sums of radii, in bohr."""
        return np.linalg.norm(x[i] - x[j], axis=1), self.radii[i] + self.radii[j]

    def _stretches(self, x) -> np.ndarray:
        r, c = self._apart(x, *self.listed.stretches.T)
        bond = 0.3601 * np.exp(-1.944 * (r - c)) * Hartree / Bohr**2
        spring = SPRING * np.exp(-DECAY * (r / c - 1))
        is_spring = self.listed.kinds == METAL
        return np.where(is_spring, np.minimum(spring, STIFFEST_SPRING), np.minimum(bond, STIFFEST))

    def _bends(self, x, at) -> np.ndarray:
        (r, c), (s, d) = self._apart(x, at[:, 0], at[:, 1]), self._apart(x, at[:, 1], at[:, 2])
        return 0.089 + 0.11 * (c * d) ** 0.42 * np.exp(-0.44 * (r + s - c - d))

    def _torsions(self, x) -> np.ndarray:
        j, k = self.listed.torsions[:, 1], self.listed.torsions[:, 2]
        r, c = self._apart(x, j, k)
        others = np.maximum(self.bonds[j] + self.bonds[k] - 2, 1)
        return 0.0015 + 14.0 * others**0.57 * (r * c) ** -4.0 * np.exp(-2.85 * (r - c))
