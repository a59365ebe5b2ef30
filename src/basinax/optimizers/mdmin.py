"""MDMin: dynamics that keeps only the velocity along the force, and none that points uphill.

Rules, names and defaults are those of ASE's `MDMin`: velocity Verlet with unit masses, and a step
whose longest row is limited.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Limit, Positive
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    rows_field,
    systems_field,
)
from basinax.optimizers.velocities import slowed
from basinax.systems import rescale, segment
from basinax.systems.prefix import each_system, owned
from basinax.systems.types import Prefix


class MDMin(AbstractTransform):
    """Quenched dynamics. Each field is a number, or one a system."""

    dt: Positive = 0.2
    """The time step."""
    maxstep: Limit = 0.2
    """The longest row of a step (Angstrom); rows are scaled together."""

    def init(self, parameters, index_prefix: Prefix = None) -> "MDMinState":
        blank = segment.blank(parameters, index_prefix)
        velocities = jax.tree.map(jnp.zeros_like, parameters)
        return MDMinState(owned(index_prefix), velocities, jnp.zeros_like(blank, bool))

    def update(self, updates, state: "MDMinState", params=None, **extra):
        check_state(state, MDMinState, self)
        prefix, gradient = state.index_prefix, updates
        products = rescale.products(state.velocities, gradient, prefix, has_one_unit=True)
        gg = products.bb
        own = each_system(self, gg)
        half = rounded(0.5 * own.dt)
        # v ← v + dt F/2, projected on F if v points along F: f F
        along = rounded(half * gg) - products.ab
        is_kept = state.has_velocity & (along > 0) & (gg > 0)
        factor = jnp.where(is_kept, rounded(along / jnp.where(is_kept, gg, 1)), 0) + half
        lengths, units = segment.longest_row_in_units(gradient, prefix)
        factor = factor * slowed(rounded(factor * lengths), units)[0]
        longest = segment.saturated(rounded(rounded(own.dt * factor) * lengths), units)
        # ASE adds 1e-6 to the length and so steps a little short of maxstep.
        time = rounded(own.dt * jnp.minimum(rounded(own.maxstep / (1e-6 + longest)), 1))
        step, velocities = segment.map_rows(_move, prefix, [(factor, 0.0), (time, 0.0)], gradient)
        return step, MDMinState(prefix, velocities, jnp.ones_like(state.has_velocity))


def _move(factor, time, gradient):
    factor, time = factor.astype(gradient.dtype), time.astype(gradient.dtype)
    velocity = -rounded(factor * gradient)
    return rounded(time * velocity), velocity


class MDMinState(AbstractState):
    """The velocities of MDMin, and which systems have some."""

    index_prefix: Prefix
    velocities: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    has_velocity: Bool[Array, "systems"] = systems_field()
    """False before the first step, which ASE takes with half the push of the others."""
