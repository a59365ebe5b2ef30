"""Atoms that stand closer than any bond: a sign that a file was read as something else."""

from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.data import covalent_radii

from basinax.neighbors.search import ordered_pairs

SHORTEST = 0.5
"""The share of the sum of two covalent radii below which no bond is as short."""


class Contact(NamedTuple):
    """Two atoms, periodic images included, that stand too close."""

    first: int
    second: int
    distance: float
    """In Å."""

    def of(self, atoms: Atoms) -> str:
        """The pair in words."""
        names = [f"{atoms.symbols[k]} (atom {k})" for k in (self.first, self.second)]
        return f"{' and '.join(names)} stand {self.distance:.2g} Å apart"


def closest_contact(atoms: Atoms) -> Contact | None:
    """The pair that is closest for its elements, if it is closer than any bond.

    A structure that can have no list of neighbours has none: `relax` refuses it.
    """
    if not len(atoms):
        return None
    radii = covalent_radii[atoms.numbers]
    cell, radius = atoms.cell.array, 2 * SHORTEST * float(radii.max())
    found = ordered_pairs(atoms.positions, cell, atoms.pbc, radius)
    if found is None:
        return None
    row, rows = found.receivers, found.senders
    places = atoms.positions[rows] + found.shifts @ cell
    distances = np.linalg.norm(places - atoms.positions[row], axis=1)
    shares = distances / (radii[row] + radii[rows])
    if not len(shares) or shares.min() >= SHORTEST:
        return None
    k = int(shares.argmin())
    return Contact(int(row[k]), int(rows[k]), float(distances[k]))
