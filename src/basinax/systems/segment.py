"""Reductions, scalings and selections per system, over trees of rows.

Every function takes a tree and its index prefix. No bit of a system's result depends on other
systems. With `index_prefix=None` the tree is one system, and results per system have one entry.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Shaped

from basinax.numerics.elementary import square_root
from basinax.numerics.exponents import from_bits, infinity_bits, scale_exactly, split
from basinax.numerics.rounding import (
    add_components,
    common,
    rounded,
    scaled,
    scaling_top,
    wide_dtype,
)
from basinax.systems.index import where_any
from basinax.systems.indices import Indices
from basinax.systems.norms import has_rows, largest_bits, norms, order
from basinax.systems.prefix import check_leaves, n_systems, per_system, resolve
from basinax.systems.types import Exponents, PerSystem, Prefix, Tree


def dot(a: Tree, b: Tree, index_prefix: Prefix = None) -> PerSystem:
    """The inner product of each system's rows of `a` and `b`, over all leaves; 0 without rows.

    Computed in float32 for leaves of lower precision. Raises ValueError if the trees differ.
    """
    return dots([(a, b)], index_prefix)[0]


def dots(pairs: Sequence[tuple[Tree, Tree]], index_prefix: Prefix = None) -> list[PerSystem]:
    """`dot` of each pair of trees, which all have one structure; they are added side by side."""
    indices = [*resolve(index_prefix, pairs[0][0])]
    both = [zip(_wide(a), _wide(_matching(a, b)), strict=True) for a, b in pairs]
    rows = [rounded(x * y) for leaves in both for x, y in leaves]
    sums = Indices.of(indices * len(pairs)).sums(rows)
    of_each = [sums[k * len(indices) :][: len(indices)] for k in range(len(pairs))]
    return [_fold(jnp.add, parts, 0.0, index_prefix) for parts in of_each]


def sum(tree: Tree, index_prefix: Prefix = None) -> PerSystem:
    """The sum of each system's entries, over all leaves; 0 without rows."""
    return _total(_wide(tree), index_prefix, tree)


def norm(tree: Tree, index_prefix: Prefix = None, ord: float | str | None = 2) -> PerSystem:
    """The norm of each system's entries, over all leaves; 0 without rows, NaN if an entry is NaN.

    The norm neither overflows nor underflows if it is representable. The derivative at norm 0 is 0.

    Args:
        ord: p ≥ 1, `inf` for the largest magnitude, `-inf` for the smallest, or one of these as a
            string; None is 2.

    Raises:
        ValueError: `ord` is none of these, or the prefix does not fit the tree.
        TypeError: a leaf is not real floating point.
    """
    p = order(ord)
    check_leaves(tree)
    leaves = common(tree)
    if not leaves:
        return blank(tree, index_prefix)
    return norms(leaves, resolve(index_prefix, tree), p).values


def max(tree: Tree, index_prefix: Prefix = None) -> PerSystem:
    """The largest of each system's entries, over all leaves; -inf without rows, NaN with a NaN."""
    wide, indices = _wide(tree), resolve(index_prefix, tree)
    parts = [index.max(x) for x, index in zip(wide, indices, strict=True)]
    return _fold(jnp.maximum, parts, -jnp.inf, index_prefix)


def longest_row(tree: Tree, index_prefix: Prefix = None) -> PerSystem:
    """The largest norm along the last axis among each system's rows, over all leaves.

    0 without rows. Finite entries give a finite norm: overflow gives the largest number, and norms
    below the normal numbers may be 0.
    """
    return saturated(*longest_row_in_units(tree, index_prefix))


def longest_row_in_units(tree: Tree, index_prefix: Prefix = None) -> tuple[PerSystem, Exponents]:
    """`longest_row` in units of 2^exponents; exponents are 0 if no square is out of range."""
    wide, indices = _wide(tree), resolve(index_prefix, tree)

    def squares_of(leaves):
        # A rounded square is not subnormal where `jnp.maximum` would flush it to zero.
        pairs = zip(leaves, indices, strict=True)
        parts = [index.max(_square_rows(x), jnp.maximum) for x, index in pairs]
        return _fold(jnp.maximum, parts, 0.0, index_prefix)

    def again(exponents):
        parts = [
            scale_exactly(x, -i.spread(exponents, 0, x)) for x, i in zip(wide, indices, strict=True)
        ]
        return squares_of(parts)

    squares = squares_of(wide)
    squares, (exponents,) = in_units([([tree], squares)], index_prefix, squares, again)
    # The largest of no rows is -inf.
    return square_root(jnp.where(squares < 0, 0, squares)), exponents


def is_finite(tree: Tree, index_prefix: Prefix = None) -> Bool[Array, "systems"]:
    """Whether all entries of each system are finite, as without rows."""
    if not jax.tree.leaves(tree):
        return jnp.ones(n_systems(index_prefix), bool)
    leaves = common(tree)
    bits = largest_bits(leaves, resolve(index_prefix, tree))
    return bits < infinity_bits(leaves[0].dtype)


def units_of(trees: Sequence[Tree], index_prefix, squares: PerSystem) -> Exponents:
    """Units in the size of the trees' largest entry, given the largest sum of squares.

    The exponents stay in the range in which both 2^e and 2^-e are normal numbers.
    """
    return in_units([(trees, squares)], index_prefix, (), lambda _: ())[1][0]


def in_units(
    groups: Sequence[tuple[Sequence[Tree], PerSystem]],
    index_prefix: Prefix,
    found: Any,
    again: Callable[..., Any],
) -> tuple[Any, list[Exponents]]:
    """What is found of trees in units in which no square is out of range, and the exponents.

    Args:
        groups: trees of one unit, and their largest sum of squares; see `units_of`.
        found: what is found in units of 1, as nearly always.
        again: finds it anew, given the exponents of each group.
    """
    zeros = [jnp.zeros_like(squares, jnp.int32) for _, squares in groups]
    if not jax.tree.leaves([trees for trees, _ in groups]):
        return found, zeros
    unsafe = [_is_unsafe(trees, index_prefix, squares) for trees, squares in groups]

    def find():
        exponents = [
            _exponents(trees, index_prefix, mask, squares.dtype)
            for (trees, squares), mask in zip(groups, unsafe, strict=True)
        ]
        is_scaled = functools.reduce(jnp.logical_or, [x != 0 for x in exponents])
        return where_any(is_scaled, lambda: again(*exponents), lambda: found), exponents

    return where_any(functools.reduce(jnp.logical_or, unsafe), find, lambda: (found, zeros))


def _is_unsafe(trees, index_prefix, squares) -> Bool[Array, "systems"]:
    info = jnp.finfo(squares.dtype)
    # Below `least`, entries lost to underflow may together make half an ulp. Above `most`, factors
    # may overflow.
    least, most = 2.0 ** (info.minexp + info.nmant + 41), 2.0 ** (3 * info.maxexp // 4)
    is_out = (squares < least) | (squares > most)
    return has_rows(resolve(index_prefix, trees[0])) & is_out


def _exponents(trees, index_prefix, is_unsafe, dtype) -> Exponents:
    least_of_all = -(3 * jnp.finfo(dtype).maxexp // 4)
    exponents = jnp.full(is_unsafe.shape, least_of_all, jnp.int32)
    is_something, is_number = jnp.zeros_like(is_unsafe), is_unsafe
    for tree in trees:
        leaves = common(tree)
        bits = largest_bits(leaves, resolve(index_prefix, tree))
        found = split(from_bits(bits, leaves[0].dtype))[1]
        exponents = jnp.where(bits > 0, jnp.maximum(exponents, found), exponents)
        is_something = is_something | (bits > 0)
        is_number = is_number & (bits < infinity_bits(leaves[0].dtype))
    return jnp.where(is_something & is_number, exponents, 0)


def saturated(x: PerSystem, exponents: Exponents) -> PerSystem:
    """x · 2^exponents for x ≥ 0, or the largest number on overflow."""
    y = scale_exactly(x, exponents)
    # Infinite values and NaN stay unchanged.
    is_more = jnp.isfinite(x) & (y == jnp.inf)
    return jnp.where(is_more, jnp.finfo(x.dtype).max, y)


def blank(tree: Tree, index_prefix: Prefix = None) -> PerSystem:
    """Zeros, one per system, in the dtype of reductions of `tree`.

    Raises:
        TypeError, ValueError: a leaf does not hold floating-point numbers, or the prefix does not
            fit.
    """
    check_leaves(tree)
    resolve(index_prefix, tree)
    leaves, shape = jax.tree.leaves(tree), (n_systems(index_prefix),)
    if not leaves:
        return jnp.zeros(shape)
    # Like a leaf, so that the carry of a loop under `shard_map` has one type.
    return jnp.zeros_like(leaves[0], np.result_type(*map(wide_dtype, leaves)), shape)


def scale(tree: Tree, factors: PerSystem, index_prefix: Prefix = None) -> Tree:
    """Each system's rows times its factor; one number serves all systems.

    Rows of systems whose factor is one keep their bits, except subnormal entries, which JAX flushes
    to zero on CPU. So do padding rows, except those of the aligned layout that fill up the last
    eight rows of a system.

    Raises:
        ValueError: `factors` has another shape.
    """
    factors = per_system(factors, "factors", blank(tree, index_prefix))

    def scale_leaf(index, x):
        rows = jnp.atleast_1d(x)
        factor = factors.astype(rows.dtype)
        spread = (
            index.spread(v, p, rows) for v, p in ((factor, 1.0), (scaling_top(factor), jnp.inf))
        )
        return scaled(rows, *spread).reshape(jnp.shape(x))

    leaves, structure = jax.tree.flatten(tree)
    indices = resolve(index_prefix, tree)
    return structure.unflatten([scale_leaf(*pair) for pair in zip(indices, leaves, strict=True)])


def where(
    mask: Bool[Array, "systems"], on_true: Tree, on_false: Tree, index_prefix: Prefix = None
) -> Tree:
    """Each system's rows from `on_true` where `mask`; other systems and padding from `on_false`.

    Raises:
        TypeError: `mask` is not of booleans.
        ValueError: `mask` does not have one entry per system.
    """
    check_mask(mask, n_systems(index_prefix))
    return map_rows(_selected, index_prefix, [(mask, False)], on_false, on_true)


def without_padding(tree: Tree, index_prefix: Prefix = None) -> Tree:
    """The tree with 0 in rows of no system."""
    everyone = jnp.ones((n_systems(index_prefix),), bool)
    return where(everyone, tree, jax.tree.map(jnp.zeros_like, tree), index_prefix)


def check_mask(mask: Any, count: int) -> None:
    """Raise TypeError or ValueError if a mask is not one of booleans with `count` entries."""
    mask = jnp.asarray(mask)
    if not jnp.issubdtype(mask.dtype, jnp.bool_):
        raise TypeError(f"mask must be of booleans, one for each system, got {mask.dtype}")
    if jnp.shape(mask) != (count,):
        raise ValueError(
            f"mask must have one entry for each of the {count} systems, got shape {jnp.shape(mask)}"
        )


def map_rows(
    function: Callable[..., Any],
    index_prefix: Prefix,
    per_system: Sequence[tuple[Shaped[Array, "systems"], float | bool]],
    tree: Tree,
    *others: Tree,
) -> Any:
    """Elementwise arithmetic between values per system and rows, leaf by leaf.

    Args:
        function: a function of the values, broadcast to rows, and of a leaf of each tree. It
            returns a leaf or a tuple of leaves and must round its products.
        per_system: values per system, each with its stand-in for padding rows.
        tree: sets the structure; the other trees must have the same structure.

    Returns:
        A tree like `tree`, or a tuple of trees.
    """
    rest = [_matching(tree, other) for other in others]
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:  # call with empty arrays, to count the trees of the result
        spread = [values[:0] for values, _ in per_system]
        result = function(*spread, *[jnp.zeros(0)] * (1 + len(others)))
        return jax.tree.map(lambda _: structure.unflatten([]), result)
    results = []
    for index, *rows in zip(resolve(index_prefix, tree), leaves, *rest, strict=True):
        shape, rows = jnp.shape(rows[0]), [jnp.atleast_1d(x) for x in rows]
        spread = [index.spread(values, padding, rows[0]) for values, padding in per_system]
        result = function(*spread, *rows)
        results.append(jax.tree.map(lambda x, shape=shape: x.reshape(shape), result))
    if isinstance(results[0], tuple):
        return tuple(structure.unflatten(leaves) for leaves in zip(*results, strict=True))
    return structure.unflatten(results)


def _selected(mask, on_false, on_true):
    return jnp.where(mask, on_true, on_false)


def map_leaves(function: Callable[..., Array], tree: Tree, *others: Tree) -> Tree:
    """`function` of each leaf of `tree` and the same leaf of the other trees; shapes must agree."""
    leaves, structure = jax.tree.flatten(tree)
    rest = [_matching(tree, other) for other in others]
    return structure.unflatten([function(*xs) for xs in zip(leaves, *rest, strict=True)])


def _square_rows(x):
    """The squared norms along the last axis; the squares of a leaf of one axis."""
    squares = rounded(x * x)
    if x.ndim == 1:
        return squares
    n_rows = math.prod(x.shape[:-1])
    return add_components(squares.reshape(n_rows, x.shape[-1])).reshape(x.shape[:-1])


def _wide(tree) -> list[Array]:
    """The leaves as rows, in float32 at least."""
    check_leaves(tree)
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(tree)]
    return [leaf.astype(wide_dtype(leaf)) for leaf in leaves]


def check_alike(tree: Tree, other: Any, what: str = "params and their gradient") -> None:
    """Raise ValueError if two trees differ in structure or shapes.

    Args:
        other: a tree of arrays, or of their shapes.
        what: the names of both, for the message.
    """
    try:
        _matching(tree, other)
    except ValueError as error:
        raise ValueError(f"{what} do not fit: {error}") from None


def _matching(tree, other) -> list[Any]:
    """The leaves of `other`, which must have the structure and shapes of `tree`."""
    expected, got = jax.tree.structure(tree), jax.tree.structure(other)
    if expected != got:
        raise ValueError(f"trees must have the same structure: {expected} and {got}")
    leaves = jax.tree.leaves(other)
    for (path, leaf), match in zip(jax.tree_util.tree_leaves_with_path(tree), leaves, strict=True):
        if jnp.shape(leaf) != jnp.shape(match):
            raise ValueError(
                f"the arrays{jax.tree_util.keystr(path)} of both trees must have the same shape:"
                f" {jnp.shape(leaf)} and {jnp.shape(match)}"
            )
    return leaves


def _total(rows: Sequence[Array], index_prefix, tree) -> PerSystem:
    return _fold(jnp.add, resolve(index_prefix, tree).sums(rows), 0.0, index_prefix)


def _fold(combine, parts: Sequence[Array], empty: float, index_prefix) -> PerSystem:
    """Combine the parts in the order of the leaves."""
    if not parts:
        return jnp.full((n_systems(index_prefix),), empty)
    dtype = np.result_type(*[part.dtype for part in parts])
    total = parts[0].astype(dtype)
    for part in parts[1:]:
        total = combine(total, part.astype(dtype))
    return total
