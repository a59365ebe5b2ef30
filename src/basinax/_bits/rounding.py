"""How a number is rounded: the only module of basinax that decides it.

A compiler may contract `a * b + c` into one fused multiply-add, regroup quotients, and sum in
whatever order suits a shape. Each changes last bits with the batch. Here a product is rounded
before it meets a sum, and components are added in one written order. See docs/design.md, section 2.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

BLOCK = 8
"""Rows that are summed together first; an aligned system starts on a multiple of it."""


def rounded(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x`, as a number of its own that no compiler merges into a neighbouring operation.

    The largest finite value becomes inf; every other value, NaN and -0.0 included, is unchanged.
    That one difference is why no compiler may drop the selection, and a selection between a
    multiplication and an addition rules out a fused multiply-add. Between a quotient or square
    root and a division it rules out regrouping.

    The comparison is `>=`, which inf meets as well: with `==` LLVM, having moved constants that
    follow into both branches, finds them equal where they overflow and drops the selection.

    The products that differentiation writes are not rounded; see `product`.
    """
    # A constant of NumPy: one of JAX's own would be checked by jax_debug_infs.
    return jnp.where(x >= jnp.finfo(x.dtype).max, np.asarray(np.inf, x.dtype), x)


def apart(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """As `rounded`, of what is never too large for its format; one instruction, not two.

    What is, is the largest number.
    """
    largest = jnp.asarray(jnp.finfo(x.dtype).max, x.dtype)
    return jnp.where(x > largest, largest, x)


def scaled(
    x: Float[Array, "..."], factor: Float[Array, "..."], top: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`rounded(x * factor)`, and `x` bit for bit where the factor is one.

    Args:
        top: `scaling_top(factor)`, of the shape of `x`. It has the factor compared where there are
            few of them, and, as a second reader of the factors, has them computed once and stored.
    """
    y = x * factor
    return jnp.where(y >= top, np.asarray(np.inf, x.dtype), y)


def scaling_top(factor: Float[Array, "..."]) -> Float[Array, "..."]:
    """What a product by `factor` must not be: the largest number; inf for a factor of one."""
    largest = jnp.asarray(jnp.finfo(factor.dtype).max, factor.dtype)
    return jnp.where(factor == 1, jnp.asarray(jnp.inf, factor.dtype), largest)


@jax.custom_vjp
def product(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """`a * b`, rounded, and so are the products of its derivative. Shapes must be equal.

    It has a derivative in reverse mode (`jax.grad`) alone.
    """
    return rounded(a * b)


def _product_forward(a, b):
    return rounded(a * b), (a, b)


def _product_backward(residuals, cotangent):
    a, b = residuals
    return rounded(cotangent * b), rounded(cotangent * a)


product.defvjp(_product_forward, _product_backward)


def add_halves(x: Float[Array, "groups width *rest"]) -> Float[Array, "groups *rest"]:
    """The sum over the second axis (a power of two long): its two halves, then theirs, to one."""
    return combine_halves(jnp.add, x)


def combine_halves(
    combine: Callable, x: Shaped[Array, "groups width *rest"]
) -> Shaped[Array, "groups *rest"]:
    """As `add_halves`, by another function of two arrays."""
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = combine(x[:, :half], x[:, half:])
    return x[:, 0]


def pad_rows(x: Float[Array, "rows *rest"]) -> Float[Array, "padded *rest"]:
    """`x` with rows of -0.0, which add nothing, up to a multiple of eight."""
    missing = -x.shape[0] % BLOCK
    if not missing:
        return x
    return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=-0.0)


def add_rows(x: Float[Array, "rows *rest"]) -> Float[Array, "*rest"]:
    """The sum over the first axis: blocks of eight by halves, then blocks of eight of those."""
    if x.shape[0] == 0:
        return jnp.full(x.shape[1:], -0.0, x.dtype)
    while x.shape[0] > 1:
        x = pad_rows(x)
        x = add_halves(x.reshape(-1, BLOCK, *x.shape[1:]))
    return x[0]


def add_blocks(x: Float[Array, "groups rows *rest"]) -> Float[Array, "groups *rest"]:
    """The sum over the second axis of each group, in the order of `add_rows`."""
    if x.shape[1] == 0:
        return jnp.full(x.shape[:1] + x.shape[2:], -0.0, x.dtype)
    while x.shape[1] > 1:
        widths = [(0, 0), (0, -x.shape[1] % BLOCK)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=-0.0)
        groups, rows, rest = x.shape[0], x.shape[1], x.shape[2:]
        blocks = add_halves(x.reshape(groups * rows // BLOCK, BLOCK, *rest))
        x = blocks.reshape(groups, rows // BLOCK, *rest)
    return x[:, 0]


FEW_PARTS = 32768
"""An axis that is no longer than this is added in one branch of a program."""

PIECES, PIECE = 16, 16384
"""A longer one is added in pieces of so many entries at most, so many at a turn of a loop."""

LEAST_TURNS, MOST_TURNS = 4, 64
"""So many turns at least; an axis for which that takes more is halved thrice before."""

SHARES = 8
"""A piece has a multiple of so many entries; fewer than it has are left over."""


def add_parts(
    x: Float[Array, "entries"], term: Callable[[Array], Array] = lambda x: x
) -> Float[Array, ""]:
    """The sum over a long axis, which is cut into pieces: these are added to one, then its entries.

    The fastest written order, since neighbours in memory are added side by side. What is left over
    comes first.

    Args:
        term: what to add of each entry, in place of the entry.
    """
    if x.size <= FEW_PARTS:
        return _add_few_parts(term(x))
    n_turns, piece = _turns_and_piece(x.size)
    # Of what `term` makes of another dtype XLA would make all before the loop.
    if n_turns > MOST_TURNS or jax.eval_shape(term, x).dtype != x.dtype:
        length = x.size // BLOCK
        sums = _halves_of_parts(term(x), length)
        # If one is NaN so is the total. That it is asked keeps what follows out of the loop above,
        # into which XLA on CPU would put it, and take three times as long.
        total = lax.cond(jnp.isnan(sums[0]), lambda sums: sums[0], add_parts, sums)
        return total + add_rows(term(x[BLOCK * length :]))

    def add_pieces(turn, sums):
        begins = [(PIECES * turn + k) * piece for k in range(PIECES)]
        parts = [term(lax.dynamic_slice_in_dim(x, begin, piece)) for begin in begins]
        # As `add_halves`, of which XLA on CPU would make a slower loop for pieces of one array.
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
        return sums + parts[0]

    left = term(x[PIECES * n_turns * piece :])
    sums = lax.fori_loop(0, n_turns, add_pieces, jnp.pad(left, (0, piece - left.size)))
    return _add_few_parts(sums)


def _turns_and_piece(n_entries: int) -> tuple[int, int]:
    """How many turns a loop over so many entries takes, and how long its pieces are."""
    # Of a loop with one turn XLA makes none, and that then takes twice as long. A turn of half a
    # megabyte XLA on CPU gives to all threads; of a length that they cannot share evenly, that took
    # twice as long.
    n_turns = max(LEAST_TURNS, -(-n_entries // (PIECES * PIECE)))
    return n_turns, n_entries // (PIECES * n_turns * SHARES) * SHARES


def part_additions(n_entries: int) -> int:
    """In how many additions of `add_parts` an entry takes part, at most."""
    if n_entries > FEW_PARTS:
        halved = 3 + part_additions(n_entries // BLOCK) + 1
        n_turns, piece = _turns_and_piece(n_entries)
        if n_turns > MOST_TURNS:
            return halved
        n_halvings = PIECES.bit_length() - 1
        return max(n_turns + n_halvings + part_additions(piece), halved)
    n_passes = 1
    while n_entries > BLOCK:
        n_entries -= (BLOCK - 1) * ((n_entries - 1) // BLOCK)
        n_passes += 1
    return 3 * n_passes


def _add_few_parts(x):
    """As `add_parts`; what is left over is appended to the sums."""
    while x.size > BLOCK:
        length = (x.size - 1) // BLOCK
        x = jnp.concatenate([_halves_of_parts(x, length), x[BLOCK * length :]])
    return add_rows(x)


def _halves_of_parts(x, length: int):
    return add_halves(x[: BLOCK * length].reshape(1, BLOCK, length))[0]


def wide_dtype(x: Any) -> np.dtype:
    """The dtype in which x is computed with: its own, float32 where that has fewer bits.

    Raises TypeError where x is not real floating point.
    """
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"leaves must be floating-point numbers, got {dtype}")
    return np.dtype(np.float32) if jnp.finfo(dtype).bits < 32 else np.dtype(dtype)


def common(tree: Any) -> list[Float[Array, "rows *components"]]:
    """The leaves, as rows, in the widest dtype among them, float32 at least."""
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(tree)]
    dtypes = [wide_dtype(leaf) for leaf in leaves]
    return [leaf.astype(np.result_type(*dtypes)) for leaf in leaves]


def add_components(x: Float[Array, "rows *components"]) -> Float[Array, "rows"]:
    """The sum over all trailing axes, in an order that the number of components alone decides.

    Up to eight are added in index order, more by halves: fewer dependent additions, and an error
    that grows with the logarithm. No components give -0.0, which adds nothing.
    """
    return combine_components(jnp.add, x, -0.0)


def combine_components(
    combine: Callable, x: Shaped[Array, "rows *components"], absent: float
) -> Shaped[Array, "rows"]:
    """As `add_components`, by another function of two arrays, to which `absent` adds nothing."""
    if x.ndim == 1:
        return x
    rows, count = x.shape[0], math.prod(x.shape[1:])
    x = x.reshape(rows, count)
    if count == 0:
        return jnp.full((rows,), absent, x.dtype)
    if count > BLOCK:
        width = 1 << (count - 1).bit_length()
        padded = jnp.pad(x, ((0, 0), (0, width - count)), constant_values=absent)
        return combine_halves(combine, padded)
    total = x[:, 0]
    for k in range(1, count):
        total = combine(total, x[:, k])
    return total
