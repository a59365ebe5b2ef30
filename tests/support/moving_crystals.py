"""Constrained crystals whose cells move."""

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms, FixCartesian, FixCom, FixedLine, FixedPlane, FixSymmetry
from ase.spacegroup import crystal as crystal_of

from basinax.atoms import LennardJones
from structures import rattled

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=7.0)
ASE_ARGON = {"epsilon": 0.0104, "sigma": 3.40, "rc": 7.0}

CONSTRAINTS = {
    "none": [],
    "atoms": [FixAtoms([0, 3])],
    "components": [FixCartesian([0, 1], (True, False, True)), FixCartesian([2], (0, 0, 1))],
    "lines": [FixedLine([0, 1], (1, 2, 3)), FixedLine([3], (0, 0, -1))],
    "planes": [FixedPlane([0, 1], (1, -2, 3)), FixedPlane([3], (0, 1, 0))],
    "mass": [FixCom()],
    "atoms, component and mass": [FixAtoms([0]), FixCartesian([1, 2], (0, 1, 1)), FixCom()],
    "mass between others": [
        FixedPlane([1, 2], (1, 1, 0)),
        FixCom(),
        FixedLine([2, 3], (1, 0, 2)),
    ],
}

TURNED = ["components", "lines", "planes", "atoms, component and mass", "mass between others"]
"""Those that keep some directions of an atom, which the deformation turns."""


def crystal(name: str, seed: int = 0) -> Atoms:
    """Four atoms in a sheared cell, in which no direction is one of the cell's; with masses."""
    random = np.random.default_rng(seed)
    atoms = rattled(bulk("Ar", cubic=True, a=5.2), seed, 0.15)
    strain = np.eye(3) + random.normal(0, 0.06, (3, 3))
    atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
    atoms.set_masses(random.uniform(20, 60, len(atoms)))
    atoms.set_constraint([c.copy() for c in CONSTRAINTS[name]])
    return atoms


def symmetric(*others, **how) -> Atoms:
    """Rutile's places with one coordinate that is free, and an atom that is held to a line."""
    others = others or (FixedLine([2], (1, 2, 3)),)
    cell = [6.4, 6.4, 5.6, 90, 90, 90]
    atoms = crystal_of(["Ar", "Ar"], [(0, 0, 0), (0.3, 0.3, 0)], spacegroup=136, cellpar=cell)
    atoms = Atoms(atoms.symbols, atoms.positions, cell=atoms.cell, pbc=True)
    atoms.set_constraint([*others, FixSymmetry(atoms, **how)])
    return atoms
