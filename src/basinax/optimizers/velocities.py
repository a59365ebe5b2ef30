"""Velocities of damped dynamics where squares of numbers would not be numbers.

Products of velocity and gradient come in units of powers of two (`systems/rescale.py`). Nothing
here changes a bit where these units are 1.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int32

from basinax.numerics.elementary import square_root
from basinax.numerics.exponents import power_of_two, split
from basinax.numerics.rounding import rounded
from basinax.systems.segment import saturated
from basinax.systems.types import PerSystem


def adapted(state: Any, own: Any, is_settled, is_uphill, *, shortest: Any):
    """The next time step of FIRE, no less than `shortest`, and the next mixing."""
    longer = jnp.minimum(rounded(state.dt * own.finc), own.dtmax)
    shorter = jnp.maximum(rounded(state.dt * own.fdec), shortest)
    dt = jnp.where(is_settled, longer, jnp.where(is_uphill, shorter, state.dt))
    smaller = rounded(state.a * own.fa)
    a = jnp.where(is_settled, smaller, jnp.where(is_uphill, own.astart, state.a))
    return dt, a


def mixing_ratio(vv: PerSystem, gg: PerSystem) -> PerSystem:
    """|v|/|g| from the squares; 0 where the gradient is none, or next to none beside v."""
    speed, slope = square_root(vv), square_root(gg)
    least = 2.0 ** -(jnp.finfo(vv.dtype).maxexp // 3)
    has_slope = slope > rounded(least * speed)
    return jnp.where(has_slope, rounded(speed / jnp.where(has_slope, slope, 1)), 0)


def slowed(speed: PerSystem, exponents: Int32[Array, "systems"]) -> tuple[PerSystem, PerSystem]:
    """A factor for velocities, and the speed in units of 1 with that factor.

    The factor is 1, except for speeds so large that a step as long as any limit takes no time.

    Args:
        speed: in units of 2^exponents.
    """
    most = 3 * jnp.finfo(speed.dtype).maxexp // 4
    # With the unit 1 no speed is that large.
    surplus = jnp.where(speed > 0, split(speed)[1] + exponents - most, 0)
    surplus = jnp.where(exponents > 0, jnp.maximum(surplus, 0), 0)
    return power_of_two(-surplus, speed.dtype), saturated(speed, exponents - surplus)


def time_within(maxstep: PerSystem, dt: PerSystem, speed: PerSystem) -> PerSystem:
    """dt, or the time in which a system moves as far as `maxstep` where that is shorter."""
    is_fast = rounded(dt * speed) > maxstep
    return jnp.where(is_fast, rounded(maxstep / jnp.where(is_fast, speed, 1)), dt)
