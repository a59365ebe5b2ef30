"""A cap on the magnitude of each entry, as `optax.clip`, with a limit per system."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.exponents import magnitude_bits
from basinax.optimizers.limits.protocol import AbstractLimit, LimitState
from basinax.systems import segment
from basinax.systems.clip_factors import limits_of, narrowed, require_limit
from basinax.systems.prefix import resolve
from basinax.systems.types import Prefix, Tree


class ValuesClipped(NamedTuple):
    """Updates that `ClipByValue` has clipped, and which entries it found too large."""

    tree: Tree
    is_clipped: PyTree[Bool[Array, "_rows *_components"]]
    """Which entries were beyond the limit."""


class ClipByValue(AbstractLimit):
    """Replace entries beyond ±`max_value` by it.

    It turns the step and depends on the axes; `ClipByRowNorm` does not depend on them. NaN stays
    NaN. A negative or NaN limit in an array acts as 0.
    """

    max_value: float | Float[Array, "..."]
    """The largest magnitude, in the unit of the updates: a number, or one a system."""

    def __check_init__(self):
        require_limit(self.max_value, "max_value")

    def limit(self, updates, index_prefix: Prefix = None) -> ValuesClipped:
        limits = limits_of(self.max_value, "max_value", segment.blank(updates, index_prefix))
        limits = jnp.where(limits > 0, limits, jnp.zeros_like(limits))
        leaves, structure = jax.tree.flatten(updates)
        trees, masks = [], []
        for leaf, index in zip(leaves, resolve(index_prefix, updates), strict=True):
            leaf = jnp.asarray(leaf)
            x = jnp.atleast_1d(leaf)
            limit = index.spread(narrowed(limits, x.dtype), jnp.inf, x)
            # By bits, since comparisons of floats would flush subnormal numbers to zero.
            is_clipped = (magnitude_bits(x) > magnitude_bits(limit)) & (x == x)
            trees.append(jnp.where(is_clipped, jnp.copysign(limit, x), x).reshape(leaf.shape))
            masks.append(is_clipped.reshape(leaf.shape))
        return ValuesClipped(structure.unflatten(trees), structure.unflatten(masks))


ClipByValueState = LimitState
