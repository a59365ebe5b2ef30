"""Relax systems that are no atoms: many small springs nets, each an energy of its own.

The core takes any pytree. Here each system has nodes on a ring, tied by springs, and a length scale
that is relaxed with them: two leaves, with an index each.

    python examples/any_energy.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from basinax import FIRE, SystemIndex, product, relax, segment

jax.config.update("jax_enable_x64", True)

sizes = [3, 5, 8, 13]
nodes = SystemIndex.from_sizes(sizes)
scales = SystemIndex.from_sizes([1] * len(sizes))
prefix = {"x": nodes, "scale": scales}

starts = np.cumsum(sizes) - sizes
following = np.concatenate(
    [s + np.roll(np.arange(n), -1) for s, n in zip(starts, sizes, strict=True)]
)


def energies(params):
    """A spring of rest length `scale` from each node to the next, and one that holds the scale."""
    d = params["x"][following] - params["x"]
    scale = params["scale"]
    stretch2 = product(d[:, 0], d[:, 0]) + product(d[:, 1], d[:, 1])
    excess = jnp.sqrt(stretch2) - scale[nodes.ids, 0]
    return segment.sum(product(excess, excess), nodes) + product(scale - 1, scale - 1)[:, 0]


def value_and_gradient(params):
    # Systems do not see one another, so the gradient of the sum holds the gradient of each.
    gradient = jax.grad(lambda p: energies(p).sum())(params)
    return energies(params), gradient


draw = np.random.default_rng(0)
params = {
    "x": jnp.asarray(draw.normal(size=(nodes.n_rows, 2))),
    "scale": jnp.full((len(sizes), 1), 2.0),
}
result = relax(value_and_gradient, params, FIRE(), index_prefix=prefix, fmax=1e-6, max_steps=2000)
for size, steps, energy in zip(sizes, result.steps, result.energies, strict=True):
    print(f"{size:2} nodes: {steps} steps, energy {energy:.2e}")
assert result.converged.all()
