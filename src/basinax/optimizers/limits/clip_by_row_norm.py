"""A cap on the norm of each row: one atom's force or step, whatever the others do."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.optimizers.limits.protocol import AbstractLimit, LimitState
from basinax.systems import segment
from basinax.systems.clip_factors import Clip, limits_of, narrowed, require_limit
from basinax.systems.index import RowIndex
from basinax.systems.indices import Indices
from basinax.systems.prefix import resolve
from basinax.systems.types import Prefix, Tree


class RowsClipped(NamedTuple):
    """Updates that `ClipByRowNorm` has clipped, and the norms that it saw: one entry a row."""

    tree: Tree
    norm: PyTree[Float[Array, "_rows"]]
    """The norm of each row before clipping."""
    is_clipped: PyTree[Bool[Array, "_rows"]]


class ClipByRowNorm(AbstractLimit):
    """Scale each row that is longer than `max_norm` (along the last axis) down to it.

    Unlike `MaxStepSize`, which scales a whole system and keeps its direction, it turns the step.
    Rows at or below the limit come back bit for bit.
    """

    max_norm: float | Float[Array, "..."]
    """The longest row, in the unit of the updates: a number, or one a system."""

    def __check_init__(self):
        require_limit(self.max_norm, "max_norm")

    def limit(self, updates, index_prefix: Prefix = None) -> RowsClipped:
        limits = limits_of(self.max_norm, "max_norm", segment.blank(updates, index_prefix))
        leaves, structure = jax.tree.flatten(updates)
        trees, norms, masks = [], [], []
        for leaf, index in zip(leaves, resolve(index_prefix, updates), strict=True):
            leaf = jnp.asarray(leaf)
            shape = leaf.shape[:-1] if leaf.ndim > 1 else leaf.shape
            rows = leaf.reshape(math.prod(shape), leaf.shape[-1] if leaf.ndim > 1 else 1)
            per_row = index.spread(limits, jnp.inf, jnp.zeros(shape or (1,), limits.dtype))
            own = narrowed(per_row.reshape(-1), segment.common([rows])[0].dtype)
            (clipped,), norm, is_clipped = Clip()(
                [rows], Indices.of([RowIndex(rows.shape[0])]), own
            )
            trees.append(clipped.reshape(leaf.shape))
            norms.append(norm.reshape(shape))
            masks.append(is_clipped.reshape(shape))
        return RowsClipped(*map(structure.unflatten, (trees, norms, masks)))


ClipByRowNormState = LimitState
