"""A limit on the longest row, as kUPS' `MaxStepSize` and the `maxstep` of ASE's BFGS."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from basinax import _segment as segment
from basinax._limits import AbstractLimit
from basinax._optimizer import AbstractState, Prefix, Tree
from basinax._rounding import rounded
from basinax._systems import per_system


class StepsLimited(NamedTuple):
    """What `MaxStepSize` returns and saw."""

    tree: Tree
    longest: Float[Array, "systems"]
    """The longest row of each system before it was limited."""
    is_limited: Bool[Array, "systems"]


class MaxStepSize(AbstractLimit):
    """Scale all rows of a system so that its longest (along the last axis) is no longer than this.

    The direction of the step is kept. Systems within their limit come back bit for bit.
    """

    max_step_size: float | Float[Array, "..."] = 0.2
    """The longest row, in the unit of the updates: a number, or one a system. ASE's default."""

    def init(self, parameters, index_prefix: Prefix = None) -> "MaxStepSizeState":
        return MaxStepSizeState(index_prefix)

    def limit(self, updates, index_prefix: Prefix = None) -> StepsLimited:
        longest = segment.longest_row(updates, index_prefix)
        limits = per_system(self.max_step_size, "max_step_size", longest)
        is_limited = longest > limits
        factors = jnp.where(is_limited, rounded(limits / longest), jnp.ones_like(longest))
        return StepsLimited(segment.scale(updates, factors, index_prefix), longest, is_limited)


class MaxStepSizeState(AbstractState):
    """Nothing but the index prefix: limiting steps needs no memory."""

    index_prefix: Prefix
