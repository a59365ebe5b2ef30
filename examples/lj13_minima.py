"""Relax 500 random clusters of 13 Lennard-Jones atoms, and find their distinct minima.

The clusters are isolated: with `cutoff=None` all pairs count. The lowest minimum is the icosahedron
of -44.326801 ε (D. J. Wales and J. P. K. Doye, J. Phys. Chem. A 101, 5111 (1997)).

    python examples/lj13_minima.py
"""

import jax
import numpy as np
from ase import Atoms

from basinax import LBFGS
from basinax.atoms import LennardJones, relax, unique

jax.config.update("jax_enable_x64", True)

draw = np.random.default_rng(0)
clusters = [Atoms("X13", draw.uniform(-1.4, 1.4, (13, 3))) for _ in range(500)]
potential = LennardJones(epsilon=1.0, sigma=1.0, cutoff=None)
result = relax(clusters, potential, LBFGS(memory=20), fmax=1e-4, max_steps=3000)

minima = unique(result[result.converged], energy=1e-5, distance=0.01)
lowest = result[result.converged].energies[[members[0] for members in minima]]
print(f"{result.converged.sum()} of 500 converged, to {len(minima)} distinct minima")
for members, energy in list(zip(minima, lowest, strict=True))[:5]:
    print(f"{energy:.6f} ε, from {len(members)} starts")

assert result.converged.sum() >= 490
assert abs(lowest[0] + 44.326801) < 1e-6
