"""Put limits, an optimizer and optax together, step by hand, and restart one system.

python examples/chain_with_optax.py
"""

import jax
import jax.numpy as jnp
import optax

import basinax
from basinax import FIRE, ClipByGlobalNorm, MaxStepSize, SystemIndex, chain, rounded

jax.config.update("jax_enable_x64", True)

index = SystemIndex.from_sizes([2, 5, 1])
stiffness = jnp.linspace(1.0, 3.0, 8)[:, None]

# A limit before the optimizer acts on the gradient, one after it on the step. The second chain is
# optax's momentum, run for each row by itself.
max_norm = jnp.array([1.0, 10.0, 10.0])  # one a system
optimizers = {
    "FIRE": chain(ClipByGlobalNorm(max_norm), FIRE(), MaxStepSize(0.1)),
    "momentum": chain(optax.trace(decay=0.9), optax.scale(-0.02)),
}

for name, optimizer in optimizers.items():

    @jax.jit
    def step(x, state, optimizer=optimizer):
        gradient = rounded(stiffness * x)
        update, state = optimizer.update(gradient, state, x)
        return basinax.apply_updates(x, update), state

    x = jnp.ones((8, 1))
    state = optimizer.init(x, index)
    for _ in range(200):
        x, state = step(x, state)
    assert jnp.abs(x).max() < 1e-2
    # Start the second system anew; the others keep their history.
    state = basinax.reset(optimizer, state, x, jnp.array([False, True, False]))
    print(name, "ended within", f"{jnp.abs(x).max():.1e}")

# What mixes systems is refused as soon as there is more than one.
try:
    chain(optax.clip_by_global_norm(1.0), FIRE()).init(x, index)
except ValueError as error:
    print(error)
else:
    raise AssertionError("clip_by_global_norm was accepted")
