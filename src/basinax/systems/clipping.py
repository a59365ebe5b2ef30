"""Clipping by norm: one implementation of the clips of five libraries, for each system.

The norm after clipping, computed in the same way as the norm before, is at most the limit, rounding
included. A system at or below its limit keeps its bits.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from basinax.numerics.rounding import add_rows, rounded, wide_dtype
from basinax.numerics.settings import dtype_of, require_switch
from basinax.systems.clip_factors import Clip, components_of, limits_of, narrowed
from basinax.systems.index import AnyIndex, SystemIndex
from basinax.systems.indices import Indices
from basinax.systems.norms import order
from basinax.systems.prefix import resolve
from basinax.systems.segment import blank
from basinax.systems.types import Prefix, Tree


class Clipped(NamedTuple):
    """The result of `clip_by_norm`: scalars in global mode, else one entry per system."""

    tree: Tree
    norm: Float[Array, "..."]
    """The norm before clipping."""
    is_clipped: Bool[Array, "..."]
    """True if a norm above 0 is not finite or exceeds the limit, or the limit is NaN or below 0."""


class LayerClipped(NamedTuple):
    """The result of `clip_by_layer_norm`: trees of the same structure."""

    tree: Tree
    norm: PyTree[Float[Array, "..."]]
    """The norm of each leaf before clipping: a scalar in global mode, else one entry per system."""
    is_clipped: PyTree[Bool[Array, "..."]]

    def sums(self, index_prefix: Prefix = None) -> tuple[Tree, PyTree[Int[Array, ""]]]:
        """The sum of each leaf over its rows, and the number of systems in which it was clipped.

        For systems of one row each, these are the two results of
        `optax.per_example_layer_norm_clip`. Padding rows do not count.
        """
        leaves, structure = jax.tree.flatten(self.tree)
        indices = resolve(index_prefix, self.tree)
        totals = [_sum_of_rows(x, index) for x, index in zip(leaves, indices, strict=True)]
        counts = jax.tree.map(lambda mask: jnp.sum(mask, dtype=jnp.int32), self.is_clipped)
        return structure.unflatten(totals), counts


def clip_by_norm(
    tree: Tree,
    max_norm: float | Float[Array, "..."],
    index_prefix: Prefix = None,
    *,
    ord: float | str | None = 2,
    nan_safe: bool = False,
    rescale_to_unit_norm: bool = False,
    return_zero: bool | Bool[Array, ""] = False,
) -> Clipped:
    """Scale every system whose norm exceeds its limit down to that limit.

    A limit of 0 gives zeros; a limit of inf clips nothing. A negative or NaN limit in an array
    gives zeros. A system of norm 0 stays unchanged. NaN entries stay NaN, infinite entries become
    NaN, and the other entries of their system become 0.

    Args:
        max_norm: the limit, one number or one per system.
        index_prefix: which row belongs to which system; None if there is one system.
        ord: which norm: p ≥ 1, `inf`, `-inf`, or one of these as a string; None is 2.
        nan_safe: replace NaN and infinite entries by 0 first.
        rescale_to_unit_norm: divide by the limit, so that no norm exceeds 1. A limit of 0 then
            divides the input by its norm; a limit of inf gives zeros.
        return_zero: return zeros for any input, with the norm of the input.

    Raises:
        ValueError: `max_norm` is a negative number or has the wrong shape, `ord` is not the order
            of a norm, or the prefix does not fit the tree.
        TypeError: a leaf is not real floating point.
    """
    require_switch(nan_safe, "nan_safe")
    require_switch(rescale_to_unit_norm, "rescale_to_unit_norm")
    if np.ndim(return_zero) or not np.issubdtype(dtype_of(return_zero), np.bool_):
        require_switch(return_zero, "return_zero")  # an array may hold one
    p, like = order(ord), blank(tree, index_prefix)
    limits = limits_of(max_norm, "max_norm", like)
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return Clipped(tree, *_shaped(like, jnp.zeros(like.shape, bool), index_prefix))
    clip = Clip(p, nan_safe, rescale_to_unit_norm, quick=index_prefix is None)
    clipped, norm, is_clipped = clip(leaves, resolve(index_prefix, tree), limits)
    if return_zero is not False:
        clipped = [jnp.where(return_zero, jnp.zeros_like(x), x) for x in clipped]
    return Clipped(structure.unflatten(clipped), *_shaped(norm, is_clipped, index_prefix))


def clip_by_layer_norm(
    tree: Tree,
    max_norm: float | Float[Array, "..."],
    index_prefix: Prefix = None,
    *,
    uniform: bool = True,
) -> LayerClipped:
    """Clip every leaf of every system separately, to a share C_i of the limit C.

    `uniform` shares are C_i = C / √K for K leaves. Otherwise C_i = C √(D_i / D) for a system of D
    entries, D_i of them in leaf i. Both satisfy Σ C_i² = C²; shares of several leaves are lower by
    some units in the last place, so that no rounding lifts the norm of a system above C. A leaf
    with NaN in a system stays unchanged in that system.

    McMahan, Ramage, Talwar and Zhang, Learning differentially private recurrent language models
    (2018).

    Args:
        max_norm: the limit C, one number or one per system.
        index_prefix: which row belongs to which system; None if there is one system.

    Raises:
        ValueError: `max_norm` is a negative number or has the wrong shape, or the prefix does not
            fit the tree.
        TypeError: a leaf is not real floating point.
    """
    require_switch(uniform, "uniform")
    limits = limits_of(max_norm, "max_norm", blank(tree, index_prefix))
    leaves, structure = jax.tree.flatten(tree)
    indices = resolve(index_prefix, tree)
    clip = Clip(2.0, keeps_nan=True, quick=index_prefix is None)
    trees: list[Tree] = []
    seen: list[tuple[Array, Array]] = []
    for k, (leaf, index) in enumerate(zip(leaves, indices, strict=True)):
        share = _share(leaves, indices, k, uniform, limits.dtype)
        limit = narrowed(rounded(limits * share), wide_dtype(leaf))
        (clipped,), norm, is_clipped = clip([leaf], Indices.of([index]), limit)
        trees.append(clipped)
        seen.append(_shaped(norm, is_clipped, index_prefix))
    return LayerClipped(
        structure.unflatten(trees),
        structure.unflatten([norm for norm, _ in seen]),
        structure.unflatten([is_clipped for _, is_clipped in seen]),
    )


def _share(leaves, indices, k: int, uniform: bool, dtype):
    """C_k / C of each system, lowered by what rounding may add to the norm of several leaves."""
    # Shares and limits err by some half ulps each, and a sum of K squares by K - 1.
    lower = 1 - (len(leaves) // 2 + 4) * float(jnp.finfo(dtype).eps)
    if uniform:
        return jnp.asarray(lower / math.sqrt(len(leaves)) if len(leaves) > 1 else 1, dtype)
    counts = [
        index.sizes.astype(dtype) * components_of(x)
        for x, index in zip(leaves, indices, strict=True)
    ]
    total = functools.reduce(jnp.add, counts)
    share = rounded(jnp.sqrt(rounded(counts[k] / jnp.where(total > 0, total, 1))))
    n_filled = functools.reduce(jnp.add, [(count > 0).astype(jnp.int32) for count in counts])
    return jnp.where(n_filled > 1, rounded(share * lower), share)


def _shaped(norm, is_clipped, index_prefix):
    """One entry per system, or scalars in global mode."""
    return (norm[0], is_clipped[0]) if index_prefix is None else (norm, is_clipped)


def _sum_of_rows(leaf, index: AnyIndex):
    rows = jnp.atleast_1d(leaf)
    wide = rows.astype(wide_dtype(rows))
    if isinstance(index, SystemIndex):
        has_system = index.has_system().reshape((-1,) + (1,) * (rows.ndim - 1))
        wide = jnp.where(has_system, wide, jnp.asarray(-0.0, wide.dtype))
    return add_rows(wide).astype(rows.dtype)
