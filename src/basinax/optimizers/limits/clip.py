"""Clipping by the norm of all of a system's updates.

Per system as kUPS' `ClipByGlobalNorm`; in global mode `optax.clip_by_global_norm`, bit for bit.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from basinax.optimizers.limits.protocol import AbstractLimit, LimitState
from basinax.systems.clip_factors import require_limit
from basinax.systems.clipping import Clipped, clip_by_norm
from basinax.systems.norms import order
from basinax.systems.prefix import per_system
from basinax.systems.types import Prefix


class ClipByGlobalNorm(AbstractLimit):
    """Scale the updates of each system whose norm exceeds `max_norm` down to that norm.

    Systems at or below their limit keep their bits. Per system, or with options other than the
    defaults, the clip is `clip_by_norm`. In global mode with default options it has the bits of
    optax, which treats 0, inf, and, in an array, NaN and numbers below 0 like any other limit.
    """

    max_norm: float | Float[Array, "..."]
    """The largest norm, in the unit of the updates: one number, or one per system."""
    ord: float = eqx.field(default=2.0, kw_only=True, static=True, converter=order)
    """Which norm: p ≥ 1, `inf`, `-inf`, or one of these as a string; None is 2."""
    nan_safe: bool = eqx.field(default=False, kw_only=True, static=True)
    """Replace NaN and infinite entries by 0 first."""
    rescale_to_unit_norm: bool = eqx.field(default=False, kw_only=True, static=True)
    """Divide by the limit, so that no norm exceeds 1."""
    return_zero: bool = eqx.field(default=False, kw_only=True, static=True)
    """Return zero updates for any input."""

    def __check_init__(self):
        require_limit(self.max_norm, "max_norm")

    def limit(self, updates, index_prefix: Prefix = None) -> Clipped:
        names = ("nan_safe", "rescale_to_unit_norm", "return_zero")
        options = {name: getattr(self, name) for name in names}
        if index_prefix is None and self.ord == 2 and not any(options.values()):
            return self._optax(updates)
        return clip_by_norm(updates, self.max_norm, index_prefix, ord=self.ord, **options)

    def _optax(self, updates) -> Clipped:
        import optax

        if not jax.tree.leaves(updates):
            return Clipped(updates, jnp.zeros(()), jnp.zeros((), bool))
        norm = optax.tree.norm(updates)
        limit = per_system(self.max_norm, "max_norm", norm[None])[0]
        is_within = norm < limit
        is_number = isinstance(self.max_norm, bool | int | float)

        def clip(x):
            """The clip of optax, which would change the dtype for an array as limit."""
            x = jnp.asarray(x)
            factor = float(self.max_norm) if is_number else limit.astype(x.dtype)
            return jax.lax.select(is_within, x, (x / norm.astype(x.dtype)) * factor)

        return Clipped(jax.tree.map(clip, updates), norm, ~is_within)


ClipByGlobalNormState = LimitState
