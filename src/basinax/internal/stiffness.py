"""Force constants of internal coordinates, which depend on lengths alone; eV, Å, rad.

T. H. Fischer and J. Almlöf, J. Phys. Chem. 96, 9768 (1992), with other factors for bends, torsions
and impropers, fitted to the numbers of evaluations of relaxations with GFN2-xTB
(`docs/notebook.md`). Springs of metals decay exponentially with distance.
"""

import numpy as np
from ase.data import covalent_radii
from ase.units import Bohr, Hartree
from jaxtyping import Float, Int

from basinax.internal.arithmetic import exp, powers
from basinax.internal.lists import METAL, InternalList

BENDS, TORSIONS, FLAT = 0.8, 1.5, 0.04
"""Factors of Fischer's and Almlöf's constants; for impropers, the constant (Hartree/rad²)."""

STIFFEST = 100.0
"""The largest constant of a compressed bond (eV/Å²)."""

SPRING, DECAY, STIFFEST_SPRING = 4.0, 3.0, 12.0
"""A metal's spring at the sum of the radii (eV/Å²), its decay with relative distance, and its
largest value."""


class Stiffness:
    """Force constants of the coordinates of a list, for any positions of the atoms."""

    def __init__(self, listed: InternalList, numbers: Int[np.ndarray, "atoms"]):
        self.is_spring = listed.kinds == METAL
        self.n_flat, self.n_bends = len(listed.flat), len(listed.bends)
        radii = covalent_radii[numbers][listed.owners] / Bohr
        bonds = listed.degrees[listed.owners]
        angles = np.concatenate([listed.bends, listed.linear])
        axes = listed.torsions[:, 1:3]
        every = [listed.stretches, angles[:, :2], angles[:, 1:], axes]
        self.ends = np.concatenate(every).T
        self.sums = radii[self.ends[0]] + radii[self.ends[1]]
        """Sums of radii (bohr) of stretches, of both bonds of bends, of torsions' central bonds."""
        self.parts = np.cumsum([len(pairs) for pairs in every])[:-1]
        _, which, counts = np.unique(
            axes[:, 0] * len(radii) + axes[:, 1], return_inverse=True, return_counts=True
        )
        self.sharers = counts[which.ravel()]
        """The number of torsions about the same bond, for each torsion."""
        self.others = np.maximum(bonds[axes[:, 0]] + bonds[axes[:, 1]] - 2, 1)
        """The number of other bonds at the ends of the central bond, for each torsion."""
        _, c, d, _ = np.split(self.sums, self.parts)
        self.of_radii, self.of_others = powers(c * d, "0.42"), powers(self.others, "0.57")

    def __call__(self, x: Float[np.ndarray, "images 3"]) -> Float[np.ndarray, "q"]:
        """Args: x: positions of the images, in Å."""
        apart = (x[self.ends[0]] - x[self.ends[1]]) / Bohr
        lengths = np.split(np.sqrt((apart * apart).sum(1)), self.parts)
        (stretches, first, second, axes), sums = lengths, np.split(self.sums, self.parts)
        angles = Hartree * BENDS * self._bends(first, second, *sums[1:3])
        linear = np.repeat(angles[self.n_bends :], 2)
        torsions = Hartree * TORSIONS * self._torsions(axes, sums[3]) / self.sharers
        flat = np.full(self.n_flat, Hartree * FLAT)
        each = self._stretches(stretches, sums[0]), angles[: self.n_bends], linear, torsions, flat
        return np.concatenate(each)

    def _stretches(self, r, c) -> np.ndarray:
        bond = 0.3601 * exp(-1.944 * (r - c)) * Hartree / Bohr**2
        spring = SPRING * exp(-DECAY * (r / c - 1))
        stiffest = np.where(self.is_spring, STIFFEST_SPRING, STIFFEST)
        return np.minimum(np.where(self.is_spring, spring, bond), stiffest)

    def _torsions(self, r, c) -> np.ndarray:
        return 0.0015 + 14.0 * self.of_others / _fourth(r * c) * exp(-2.85 * (r - c))

    def _bends(self, r, s, c, d) -> np.ndarray:
        """Args: r, s: the lengths of both bonds; c, d: the sums of their radii."""
        return 0.089 + 0.11 * self.of_radii * exp(-0.44 * (r + s - c - d))


def _fourth(x: np.ndarray) -> np.ndarray:
    square = x * x
    return square * square
