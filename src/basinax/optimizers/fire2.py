"""FIRE 2.0, and with it ABC-FIRE: FIRE that steps half a step back where it has gone uphill.

Guénolé et al., Comput. Mater. Sci. 175, 109584 (2020), semi-implicit Euler; Echeverri Restrepo and
Andric, Comput. Mater. Sci. 218, 111978 (2023). Rules, names and defaults are those of ASE's
`FIRE2`, the second evaluation of a step uphill included.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax.numerics.elementary import quotient, square_root
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import (
    Count,
    Growth,
    Limit,
    NotNegative,
    Positive,
    Share,
    Shrinking,
    check_order,
)
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    rows_field,
    systems_field,
)
from basinax.optimizers.velocities import adapted, mixing_ratio, slowed, time_within
from basinax.systems import rescale, segment
from basinax.systems.prefix import each_system, owned, per_system
from basinax.systems.types import Prefix

OUT_OF_PROPORTION = 2.0**20
"""A step back longer than this many longest steps forwards is shortened to that. ASE does not
shorten it; such a step comes from a start that cannot converge."""


class FIRE2(AbstractTransform):
    """Fast inertial relaxation engine, version 2. Each number is one for all, or one a system."""

    dt: Positive = 0.1
    """The first time step."""
    maxstep: Limit = 0.2
    """The largest norm of a system's step (Angstrom); with `use_abc`, the largest entry."""
    dtmax: Limit = 1.0
    """The largest time step."""
    dtmin: NotNegative = 2e-3
    """The smallest time step."""
    Nmin: Count = 20
    """Downhill steps in a row before the time step grows."""
    finc: Growth = 1.1
    """Growth of the time step."""
    fdec: Shrinking = 0.5
    """Shrinking of the time step after a step uphill."""
    astart: Share = 0.25
    """Mixing of the force into the velocity at first and after a step uphill."""
    fa: Share = 0.99
    """Shrinking of the mixing."""
    use_abc: bool = eqx.field(static=True, default=False)
    """Whether velocities are corrected for the bias of their start at zero."""

    def __check_init__(self):
        check_order(self, "dtmin", "dtmax")

    def init(self, parameters, index_prefix: Prefix = None) -> "FIRE2State":
        blank = segment.blank(parameters, index_prefix)
        return FIRE2State(
            owned(index_prefix),
            velocities=jax.tree.map(jnp.zeros_like, parameters),
            has_velocity=jnp.zeros_like(blank, bool),
            is_back=jnp.zeros_like(blank, bool),
            is_accepted=jnp.zeros_like(blank, bool),
            dt=owned(per_system(self.dt, "dt", blank)),
            a=owned(per_system(self.astart, "astart", blank)),
            n_downhill=jnp.zeros_like(blank, jnp.int32),
        )

    def update(self, updates, state: "FIRE2State", params=None, **extra):
        check_state(state, FIRE2State, self)
        prefix, gradient, velocity = state.index_prefix, updates, state.velocities
        products = rescale.products(velocity, gradient, prefix, has_one_unit=True)
        vv, power, gg = products.aa, -products.ab, products.bb
        is_judged = state.has_velocity & ~state.is_back
        is_downhill = is_judged & (power > 0)
        is_uphill = is_judged & ~is_downhill
        own = each_system(self, state.dt)
        n_downhill = jnp.where(is_uphill, 0, state.n_downhill + is_downhill.astype(jnp.int32))
        is_settled = is_downhill & (n_downhill > own.Nmin)
        dt, a = adapted(state, own, is_settled, is_uphill, shortest=own.dtmin)

        # |v + dt F|² from the products at hand; downhill no term is negative, else v is 0
        kept = jnp.where(is_downhill, rounded(2 * rounded(dt * power)), 0) + rounded(
            rounded(dt * dt) * gg
        )
        pushed_vv = jnp.where(is_downhill, vv, 0) + kept
        # v ← (1 - a)(v + dt F) + a |v + dt F| F/|F|, times the correction
        ratio = mixing_ratio(pushed_vv, gg)
        if self.use_abc:
            # ASE's bound, or that of the dtype if 1 - 1e-10 rounds to 1.
            a = jnp.maximum(a, max(1e-10, float(jnp.finfo(a.dtype).eps)))
        keep = 1 - a
        push = rounded(keep * dt) + rounded(a * ratio)
        if self.use_abc:
            correction = rounded(1 / (1 - _power(keep, n_downhill + 1)))
            keep, push = rounded(correction * keep), rounded(correction * push)
        keep = jnp.where(is_downhill, keep, 0)

        slowing, limit, time = self._limits(own.maxstep, dt, keep, push, products)
        back = jnp.where(is_uphill, rounded(-0.5 * _time_back(own.maxstep, dt, products)), 0)
        values = [(x, 0.0) for x in (keep * slowing, push * slowing, limit, time, back)]
        values = [*values, (is_uphill, False)]
        step, velocity = segment.map_rows(_move, prefix, values, velocity, gradient)
        return step, FIRE2State(
            prefix,
            velocities=velocity,
            has_velocity=jnp.ones_like(state.has_velocity),
            is_back=is_uphill,
            is_accepted=~state.is_back,
            dt=dt,
            a=a,
            n_downhill=n_downhill,
        )

    def is_accepted(self, state: "FIRE2State"):
        return state.is_accepted

    def _limits(self, maxstep, dt, keep, push, products: rescale.Products):
        """A factor for velocities, their largest entry (0: any), and how long a system moves."""
        vv, power, gg = products.aa, -products.ab, products.bb
        speed2 = rounded(rounded(keep * keep) * vv) + rounded(rounded(push * push) * gg)
        speed2 = speed2 + jnp.where(keep > 0, rounded(2 * rounded(rounded(keep * push) * power)), 0)
        slowing, speed = slowed(square_root(speed2), products.a_exponents)
        if self.use_abc:
            return slowing, quotient(maxstep, dt), dt
        return slowing, jnp.zeros_like(dt), time_within(maxstep, dt, speed)


def _time_back(maxstep, dt, products: rescale.Products):
    """Twice the time of a step back: dt, unless that step would be out of all proportion."""
    speed = segment.saturated(square_root(products.aa), products.a_exponents)
    is_wild = rounded(dt * speed) > rounded(OUT_OF_PROPORTION * maxstep)
    return jnp.where(is_wild, rounded(maxstep / jnp.where(is_wild, speed, 1)), dt)


def _power(x: Float[Array, "systems"], n: Int32[Array, "systems"]) -> Float[Array, "systems"]:
    """x to the n-th, by squaring: `pow` of float32 has other bits in the tail of an array."""
    result = jnp.ones_like(x)
    for bit in range(24):  # enough for 16 million steps downhill in a row
        result = jnp.where((n >> bit) & 1 == 1, rounded(result * x), result)
        x = rounded(x * x)
    return result


def _move(keep, push, limit, time, back, is_uphill, velocity, gradient):
    keep, push, limit, time, back = (
        x.astype(velocity.dtype) for x in (keep, push, limit, time, back)
    )
    faster = rounded(keep * velocity) - rounded(push * gradient.astype(velocity.dtype))
    faster = jnp.where(limit > 0, jnp.clip(faster, -limit, limit), faster)
    step = jnp.where(is_uphill, rounded(back * velocity), rounded(time * faster))
    velocity = jnp.where(is_uphill, jnp.zeros_like(velocity), faster)
    return step.astype(gradient.dtype), velocity


class FIRE2State(AbstractState):
    """The velocities of FIRE 2.0, and the time step and mixing of each system."""

    index_prefix: Prefix
    velocities: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    has_velocity: Bool[Array, "systems"] = systems_field()
    """False before the first step, which ASE takes without looking at the power."""
    is_back: Bool[Array, "systems"] = systems_field()
    """The step was half a step back: the power is not read at its end."""
    is_accepted: Bool[Array, "systems"] = systems_field()
    """The step before this one was none back."""
    dt: Float[Array, "systems"] = systems_field()
    a: Float[Array, "systems"] = systems_field()
    n_downhill: Int32[Array, "systems"] = systems_field()
