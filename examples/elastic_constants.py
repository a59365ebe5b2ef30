"""C11, C12 and C44 of copper from the stresses of 200 strained cells, with ASE's EMT beside."""

import jax
import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT as ASE
from ase.units import GPa

from basinax.atoms import EMT, evaluate, relax

jax.config.update("jax_enable_x64", True)
copper = relax([bulk("Cu", cubic=True)], EMT(), cell="frechet", fmax=1e-6).atoms[0]
draws = np.random.default_rng(0).uniform(-1e-3, 1e-3, (200, 3, 3))
strains = (draws + draws.transpose(0, 2, 1)) / 2
cells = [copper.copy() for _ in strains]
for atoms, strain in zip(cells, strains, strict=True):
    atoms.set_cell(atoms.cell @ (np.eye(3) + strain), scale_atoms=True)
normal, shear = strains[:, [0, 1, 2], [0, 1, 2]], strains[:, [1, 0, 0], [2, 2, 1]]
by_c11, by_c12, nothing = normal, normal.sum(1, keepdims=True) - normal, np.zeros((200, 3))
slopes = [
    np.hstack(x).ravel() for x in ((by_c11, nothing), (by_c12, nothing), (nothing, 2 * shear))
]
both = evaluate(cells, EMT(), stress=True).stresses, [ASE().get_stress(a) for a in cells]
ours, theirs = (np.linalg.lstsq(np.transpose(slopes), np.ravel(x) / GPa)[0] for x in both)
print("C11, C12, C44 in GPa:", ours.round(2), "by ASE's EMT:", theirs.round(2))
assert np.abs(ours - theirs).max() < 0.1
