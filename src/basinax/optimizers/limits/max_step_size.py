"""A limit on the longest row, as kUPS' `MaxStepSize` and the `maxstep` of ASE's BFGS."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from basinax.numerics.rounding import rounded, wide_dtype
from basinax.optimizers.limits.protocol import AbstractLimit, LimitState
from basinax.systems import rescale, segment
from basinax.systems.clip_factors import limits_of, narrow, require_limit
from basinax.systems.types import Prefix, Tree


class StepsLimited(NamedTuple):
    """Steps that `MaxStepSize` has limited, and the lengths that it saw."""

    tree: Tree
    longest: Float[Array, "systems"]
    """The longest row of each system before it was limited."""
    is_limited: Bool[Array, "systems"]


class MaxStepSize(AbstractLimit):
    """Scale all rows of a system so that its longest (along the last axis) is no longer than this.

    Rounding may make it an ulp longer, as in ASE. The direction of the step is kept. Systems within
    their limit come back bit for bit, save for subnormal numbers, which may become 0. So does one
    with NaN, which has no longest row. Where the limit is 0, negative or NaN, systems become zero.
    """

    max_step_size: float | Float[Array, "..."] = 0.2
    """The longest row, in the unit of the updates: a number, or one a system. ASE's default."""

    def __check_init__(self):
        require_limit(self.max_step_size, "max_step_size")

    def limit(self, updates, index_prefix: Prefix = None) -> StepsLimited:
        lengths, units = segment.longest_row_in_units(updates, index_prefix)
        longest = segment.saturated(lengths, units)
        limits = limits_of(self.max_step_size, "max_step_size", longest)
        is_limited = (longest > limits) | ~(limits >= 0)
        divisors = jnp.where(is_limited & (lengths > 0), lengths, jnp.ones_like(longest))
        factors = jnp.where(is_limited, rounded(limits / divisors), jnp.ones_like(longest))
        factors = jnp.where(limits > 0, factors, jnp.zeros_like(factors))
        wide = jax.tree.map(lambda x: jnp.asarray(x).astype(wide_dtype(x)), updates)
        wide = rescale.scaled_by_power(wide, jnp.where(is_limited, units, 0), index_prefix)
        scaled = segment.scale(wide, factors, index_prefix)
        tree = jax.tree.map(lambda y, x: narrow(y, jnp.result_type(x)), scaled, updates)
        return StepsLimited(tree, longest, is_limited)


MaxStepSizeState = LimitState
