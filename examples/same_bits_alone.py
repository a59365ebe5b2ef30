"""See the promise kept: a structure in a batch, in another order, beside a broken one, and alone.

python examples/same_bits_alone.py
"""

import jax
import numpy as np
from ase import Atoms
from ase.build import bulk

from basinax import Status
from basinax.atoms import LennardJones, relax

jax.config.update("jax_enable_x64", True)

potential = LennardJones.named("Ar", cutoff=8.5)
crystals = []
for seed in range(6):
    crystals.append(bulk("Ar", "fcc", 5.3, cubic=True).repeat((1, 1, 1 + seed % 2)))
    crystals[-1].rattle(0.15, seed=seed)
broken = Atoms("Ar2", [[0, 0, 0], [0, 0, 0]])  # two atoms at one place

batch = relax([*crystals, broken], potential, fmax=1e-3)
backwards = relax([broken, *crystals[::-1]], potential, fmax=1e-3, skin=0.1)

for k, crystal in enumerate(crystals):
    alone = relax([crystal], potential, fmax=1e-3)
    for other in (batch.atoms[k], backwards.atoms[-1 - k]):
        assert np.array_equal(alone.atoms[0].positions, other.positions)
    assert alone.steps[0] == batch.steps[k] == backwards.steps[-1 - k]
    print(f"{len(crystal):3} atoms, {alone.steps[0]} steps: the same bits three times")

assert Status(batch.status[-1]) is Status.NOT_FINITE
print("two atoms at one place:", Status(batch.status[-1]).meaning)
