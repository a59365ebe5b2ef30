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


_NONE = np.zeros(0)


class Stiffness:
    """Force constants of the coordinates of a list, for any positions of the atoms."""

    def __init__(self, listed: InternalList, numbers: Int[np.ndarray, "atoms"]):
        self.is_spring = listed.kinds == METAL
        self.has_springs, self.has_bonds = self.is_spring.any(), not self.is_spring.all()
        self.flat = np.full(len(listed.flat), Hartree * FLAT)
        radii = covalent_radii[numbers][listed.owners] / Bohr
        bonds = listed.degrees[listed.owners]
        angles = np.concatenate([listed.bends, np.repeat(listed.linear, 2, axis=0)])
        axes = listed.torsions[:, 1:3]
        every = [listed.stretches, angles[:, :2], angles[:, 1:], axes]
        ends, sizes = np.concatenate(every).T, [len(pairs) for pairs in every]
        sums, self.parts = radii[ends[0]] + radii[ends[1]], np.cumsum(sizes)[:-1]
        self.sums = np.split(sums, self.parts)
        """Sums of radii (bohr) of stretches, of both bonds of bends, of torsions' central bonds."""
        begin = len(listed.torsions) + len(listed.flat)
        self.taken = np.arange(len(sums))
        self.taken[self.parts[-1] :] += begin
        """The vectors of these pairs among those of `InternalCoordinates`."""
        _, which, counts = np.unique(
            axes[:, 0] * len(radii) + axes[:, 1], return_inverse=True, return_counts=True
        )
        self.sharers = counts[which.ravel()]
        """The number of torsions about the same bond, for each torsion."""
        self.others = np.maximum(bonds[axes[:, 0]] + bonds[axes[:, 1]] - 2, 1)
        """The number of other bonds at the ends of the central bond, for each torsion."""
        self.of_radii = powers(self.sums[1] * self.sums[2], "0.42")
        self.of_others = powers(self.others, "0.57")

    def __call__(self, vectors: Float[np.ndarray, "vectors 3"]) -> Float[np.ndarray, "q"]:
        """Args: vectors: those of `InternalCoordinates`, in Å."""
        apart = vectors.take(self.taken, 0) / Bohr
        r, s, t, axes = np.split(np.sqrt((apart * apart).sum(1)), self.parts)
        c, d, e, f = self.sums
        of_bonds = -1.944 * (r - c) if self.has_bonds else _NONE
        of_springs = -DECAY * (r / c - 1) if self.has_springs else _NONE
        exponents = of_bonds, of_springs, -0.44 * (s + t - d - e), -2.85 * (axes - f)
        ends = np.cumsum([len(x) for x in exponents])[:-1]
        bonds, springs, bends, torsions = np.split(exp(np.concatenate(exponents)), ends)
        bonds = np.minimum(0.3601 * bonds * Hartree / Bohr**2, STIFFEST)
        if self.has_springs:
            springs = np.minimum(SPRING * springs, STIFFEST_SPRING)
            bonds = np.where(self.is_spring, springs, bonds) if self.has_bonds else springs
        angles = Hartree * BENDS * (0.089 + 0.11 * self.of_radii * bends)
        torsions = 0.0015 + 14.0 * self.of_others / _fourth(axes * f) * torsions
        torsions = Hartree * TORSIONS * torsions / self.sharers
        return np.concatenate([bonds, angles, torsions, self.flat])


def _fourth(x: np.ndarray) -> np.ndarray:
    square = x * x
    return square * square
