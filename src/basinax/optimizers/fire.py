"""FIRE: damped dynamics that stops where it goes uphill.

Bitzek, Koskinen, Gähler, Moseler and Gumbsch, Phys. Rev. Lett. 97, 170201 (2006), with the rules,
names and defaults of ASE's `FIRE`: semi-implicit Euler with unit masses, and a step whose length
over a whole system is limited.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax.numerics.elementary import square_root
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Count, Growth, Limit, Positive, Share, Shrinking
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


class FIRE(AbstractTransform):
    """Fast inertial relaxation engine. Each field is a number, or one a system."""

    dt: Positive = 0.1
    """The first time step."""
    maxstep: Limit = 0.2
    """The largest norm of a system's step (Angstrom)."""
    dtmax: Limit = 1.0
    """The largest time step."""
    Nmin: Count = 5
    """Downhill steps in a row before the time step grows."""
    finc: Growth = 1.1
    """Growth of the time step."""
    fdec: Shrinking = 0.5
    """Shrinking of the time step after a step uphill."""
    astart: Share = 0.1
    """Mixing of the force into the velocity after a step uphill."""
    fa: Share = 0.99
    """Shrinking of the mixing."""
    a: Share = 0.1
    """The first mixing."""

    def init(self, parameters, index_prefix: Prefix = None) -> "FIREState":
        blank = segment.blank(parameters, index_prefix)
        return FIREState(
            owned(index_prefix),
            velocities=jax.tree.map(jnp.zeros_like, parameters),
            has_velocity=jnp.zeros_like(blank, bool),
            dt=owned(per_system(self.dt, "dt", blank)),
            a=owned(per_system(self.a, "a", blank)),
            n_downhill=jnp.zeros_like(blank, jnp.int32),
        )

    def update(self, updates, state: "FIREState", params=None, **extra):
        check_state(state, FIREState, self)
        prefix, gradient, velocity = state.index_prefix, updates, state.velocities
        products = rescale.products(velocity, gradient, prefix, has_one_unit=True)
        vv, power, gg = products.aa, -products.ab, products.bb
        is_downhill = state.has_velocity & (power > 0)
        is_uphill = state.has_velocity & ~is_downhill

        # The paper's lines, with the power P = F·v:
        #   P > 0: v ← (1 - a) v + a |v| F/|F|; after Nmin such steps dt ← finc dt, a ← fa a
        #   P ≤ 0: v ← 0, dt ← fdec dt, a ← astart
        #   then v ← v + dt F, x ← x + dt v
        # Here v ← keep v + push F, since both lines for v are of that form.
        ratio = mixing_ratio(vv, gg)
        keep = jnp.where(is_downhill, 1 - state.a, 0)
        own = each_system(self, state.dt)
        is_settled = is_downhill & (state.n_downhill > own.Nmin)
        dt, a = adapted(state, own, is_settled, is_uphill, shortest=0.0)
        push = jnp.where(is_downhill, rounded(state.a * ratio), 0) + dt

        # |v|² of the new velocity from the products at hand; no term is negative, none cancels
        new_vv = rounded(rounded(keep * keep) * vv) + rounded(rounded(push * push) * gg)
        new_vv = new_vv + jnp.where(is_downhill, rounded(2 * rounded(keep * push) * power), 0)
        speed = square_root(new_vv)
        slowing, speed = slowed(speed, products.a_exponents)
        keep, push = keep * slowing, push * slowing
        time = time_within(own.maxstep, dt, speed)

        step, velocity = segment.map_rows(
            _move, prefix, [(keep, 0.0), (push, 0.0), (time, 0.0)], velocity, gradient
        )
        n_downhill = jnp.where(is_downhill, state.n_downhill + 1, 0)
        has_velocity = jnp.ones_like(state.has_velocity)
        return step, FIREState(prefix, velocity, has_velocity, dt, a, n_downhill)


def _move(keep, push, time, velocity, gradient):
    keep, push, time = (x.astype(velocity.dtype) for x in (keep, push, time))
    velocity = rounded(keep * velocity) - rounded(push * gradient.astype(velocity.dtype))
    return rounded(time * velocity).astype(gradient.dtype), velocity


class FIREState(AbstractState):
    """The velocities of FIRE, and the time step and mixing of each system."""

    index_prefix: Prefix
    velocities: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    has_velocity: Bool[Array, "systems"] = systems_field()
    """False before the first step, which ASE takes without looking at the power."""
    dt: Float[Array, "systems"] = systems_field()
    a: Float[Array, "systems"] = systems_field()
    n_downhill: Int32[Array, "systems"] = systems_field()
