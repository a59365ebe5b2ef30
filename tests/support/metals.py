"""Structures of the elements that EMT knows, from crystals to molecules."""

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, fcc111, molecule
from ase.cluster import Icosahedron

from structures import rattled

METALS = ("Al", "Ni", "Cu", "Pd", "Ag", "Pt", "Au")
GASES = ("H", "C", "N", "O")


def alloy(elements, seed: int) -> Atoms:
    atoms = rattled(bulk("Cu", cubic=True).repeat(2), seed)
    atoms.symbols = np.random.default_rng(seed).choice(elements, len(atoms))
    return atoms


def slab_with_atoms() -> Atoms:
    atoms = fcc111("Cu", (2, 2, 3), vacuum=7.0, periodic=True)
    add_adsorbate(atoms, "N", 1.2, "fcc")
    add_adsorbate(atoms, "O", 1.3, "hcp")
    return rattled(atoms, 4, 0.05)


def slab_with_a_molecule() -> Atoms:
    """Open in z, without a third cell vector."""
    atoms = fcc100("Cu", (3, 2, 2))
    add_adsorbate(atoms, molecule("N2"), 2.0, "bridge")
    cell = np.asarray(atoms.cell)
    cell[2] = 0.0
    atoms.set_cell(cell)
    atoms.pbc = [True, True, False]
    return rattled(atoms, 5, 0.05)


def skewed_tiny() -> Atoms:
    cell = [[2.9, 0.0, 0.0], [2.6, 2.7, 0.0], [1.2, -1.5, 2.8]]
    scaled = [[0.1, 0.2, 0.3], [0.55, 0.7, 0.85]]
    return Atoms("CuAu", scaled_positions=scaled, cell=cell, pbc=True)


def cluster() -> Atoms:
    atoms = Icosahedron("Au", 2, 4.08)
    atoms.set_cell(np.zeros((3, 3)))
    return rattled(atoms, 6)


SYSTEMS = {
    "primitive": bulk("Al"),
    "one open atom": Atoms("Pt"),
    "one atom in a large cell": Atoms("Cu", cell=[20, 20, 20], pbc=True),
    "cell of 32": rattled(bulk("Cu", cubic=True).repeat(2), 1),
    "alloy": alloy(METALS, 2),
    "alloy with gases": alloy(("Ni", "Cu", *GASES), 3),
    "slab with atoms": slab_with_atoms(),
    "slab with a molecule": slab_with_a_molecule(),
    "skewed and tiny": skewed_tiny(),
    "cluster of 13": cluster(),
    "molecule": molecule("CH3CH2OH"),
    "tiny and light": Atoms("H", cell=[1.5, 1.6, 1.7], pbc=True),
}
