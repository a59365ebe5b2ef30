"""A limit on the longest row, as kUPS' `MaxStepSize` and the `maxstep` of ASE's BFGS."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from basinax import _segment as segment
from basinax._optimizer import AbstractState, AbstractTransform, Prefix
from basinax._rounding import rounded
from basinax._systems import per_system


class MaxStepSize(AbstractTransform):
    """Scale all rows of a system so that its longest (along the last axis) is no longer than this.

    The direction of the step is kept. Systems within their limit come back bit for bit.
    """

    max_step_size: float | Float[Array, "..."] = 0.2
    """The longest row, in the unit of the updates: a number, or one a system. ASE's default."""

    def init(self, parameters, index_prefix: Prefix = None) -> "MaxStepSizeState":
        return MaxStepSizeState(index_prefix)

    def update(self, updates, state: "MaxStepSizeState", params=None, **extra):
        prefix = state.index_prefix
        longest = segment.longest_row(updates, prefix)
        limits = per_system(self.max_step_size, "max_step_size", longest)
        factors = jnp.where(longest > limits, rounded(limits / longest), jnp.ones_like(longest))
        return segment.scale(updates, factors, prefix), state


class MaxStepSizeState(AbstractState):
    index_prefix: Prefix
