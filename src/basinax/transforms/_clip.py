"""Clipping by the norm of all of a system's updates.

Per system as kUPS' `ClipByGlobalNorm`; in global mode `optax.clip_by_global_norm`, bit for bit.
"""

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from basinax import _segment as segment
from basinax._optimizer import AbstractState, AbstractTransform, Prefix
from basinax._rounding import rounded
from basinax._systems import per_system


class ClipByGlobalNorm(AbstractTransform):
    """Scale the updates of each system whose norm exceeds `max_norm` down to it.

    A limit: before an optimizer in a chain it limits the gradient, after it the step. Systems at
    or below their limit come back bit for bit.
    """

    max_norm: float | Float[Array, "..."]
    """The largest norm, in the unit of the updates: a number, or one a system."""

    def init(self, parameters, index_prefix: Prefix = None) -> "ClipByGlobalNormState":
        return ClipByGlobalNormState(index_prefix)

    def update(self, updates, state: "ClipByGlobalNormState", params=None, **extra):
        if state.index_prefix is None:
            max_norm = jnp.asarray(self.max_norm).reshape(())
            clip = optax.clip_by_global_norm(max_norm)
            return clip.update(updates, clip.init(updates))[0], state
        norms = segment.norm(updates, state.index_prefix)
        limits = per_system(self.max_norm, "max_norm", norms)
        factors = jnp.where(norms > limits, rounded(limits / norms), jnp.ones_like(norms))
        return segment.scale(updates, factors, state.index_prefix), state


class ClipByGlobalNormState(AbstractState):
    index_prefix: Prefix
