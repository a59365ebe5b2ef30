"""Relax systems that are no atoms: many small springs nets, each an energy of its own.

The core takes any pytree. Here each system has nodes on a ring, tied by springs, and a length scale
that is relaxed with them: two leaves, with an index each.

    python examples/any_energy.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from basinax import FIRE, SystemIndex, each_alone, relax

jax.config.update("jax_enable_x64", True)

sizes = [3, 5, 8, 13]
nodes = SystemIndex.from_sizes(sizes)
scales = SystemIndex.from_sizes([1] * len(sizes))
prefix = {"x": nodes, "scale": scales}
following = np.concatenate([np.roll(np.arange(n), -1) for n in sizes])


@each_alone
def model(params, is_row, following, _):
    """A spring of rest length `scale` from each node to the next, and one that holds the scale."""
    x, scale, is_node = params["x"], params["scale"][0, 0], is_row["x"]
    d = x[following] - x
    lengths = jnp.sqrt(jnp.where(is_node, (d * d).sum(1), 1.0))
    return jnp.where(is_node, (lengths - scale) ** 2, 0.0).sum() + (scale - 1) ** 2


def value_and_gradient(params):
    return model(params, prefix, following, nodes)


draw = np.random.default_rng(0)
params = {
    "x": jnp.asarray(draw.normal(size=(nodes.n_rows, 2))),
    "scale": jnp.full((len(sizes), 1), 2.0),
}
result = relax(value_and_gradient, params, FIRE(), index_prefix=prefix, fmax=1e-6, max_steps=2000)
for size, steps, energy in zip(sizes, result.steps, result.energies, strict=True):
    print(f"{size:2} nodes: {steps} steps, energy {energy:.2e}")
assert result.converged.all()
