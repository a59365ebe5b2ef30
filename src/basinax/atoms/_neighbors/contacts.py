"""Atoms that stand closer than any bond: a sign that a file was read as something else."""

from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.data import covalent_radii

from basinax.atoms._neighbors.search import pairs_of, tasks_of

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
    radius, resolution = 2 * SHORTEST * float(radii.max()), float(np.finfo(float).eps)
    cells = atoms.cell.array[None]
    (task,) = tasks_of([atoms.positions], cells, atoms.pbc[None], radius, resolution)
    if task is None:
        return None
    n = len(atoms)
    found = pairs_of([(0, task)], np.zeros(1, int), n, reverse=False)
    row, image = np.repeat(np.arange(n), found.lengths[:n]), found.images
    # Images: the atoms themselves, one that is far, and those in other cells.
    shifts = found.shifts[found.image_shifts] @ task.cell
    places = np.concatenate([task.positions, np.full((1, 3), np.nan)])
    places = np.concatenate([places, task.positions[found.image_rows] + shifts])
    rows = np.concatenate([np.arange(n + 1), found.image_rows])[image]
    distances = np.linalg.norm(places[image] - task.positions[row], axis=1)
    shares = distances / (radii[row] + radii[rows])
    if not len(shares) or shares.min() >= SHORTEST:
        return None
    k = int(shares.argmin())
    return Contact(int(row[k]), int(rows[k]), float(distances[k]))
