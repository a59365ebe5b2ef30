"""How a number is rounded: no other module of basinax decides on rounding.

A compiler may contract `a * b + c` into one fused multiply-add, regroup quotients, and sum in
whatever order suits a shape. Each of these changes last bits with the batch. Here a product is
rounded before it meets a sum, and components are added in one written order. See docs/design.md,
section 2.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, Shaped

BLOCK = 8
"""The number of rows that are summed first; an aligned system starts on a multiple of it."""


def rounded(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`x`, as a number that no compiler merges into a neighbouring operation.

    The largest finite value becomes inf; every other value, NaN and -0.0 included, is unchanged.
    Because of that one difference no compiler may drop the selection. A selection between a
    multiplication and an addition rules out a fused multiply-add; between a quotient or square root
    and a division it rules out regrouping.

    The comparison is `>=`, which inf satisfies too: with `==` LLVM moves later constants into both
    branches, finds the branches equal where they overflow and drops the selection.

    Products in derivatives are not rounded; see `product`.
    """
    # A constant of NumPy, because jax_debug_infs would raise at a constant of JAX.
    return jnp.where(x >= jnp.finfo(x.dtype).max, np.asarray(np.inf, x.dtype), x)


def exact(x: Float[Array, "..."], reason: str) -> Float[Array, "..."]:
    """`x`, which has the same bits in every program though `check_order` cannot see why.

    The mark is for the last operation that made `x`: a product by a computed power of two, a sum of
    whole numbers. It costs nothing, since no compiler sees it.

    >>> import jax.numpy as jnp
    >>> from basinax import check_order, exact
    >>> def count(x):
    ...     return exact(jnp.sum(jnp.floor(x)), reason="whole numbers")
    >>> check_order(count, jnp.ones(3)).findings
    ()

    Args:
        reason: why no rounding or order of the operation can show.
    """
    return EXACT.bind(jnp.asarray(x), reason=reason)


EXACT = Primitive("exact")
"""The identity, with a reason; JAX's own names of values have no reverse derivative."""

EXACT.def_impl(lambda x, *, reason: x)
EXACT.def_abstract_eval(lambda x, *, reason: x)
ad.deflinear2(EXACT, lambda cotangent, x, *, reason: [exact(cotangent, reason)])
batching.defvectorized(EXACT)
mlir.register_lowering(EXACT, lambda context, x, *, reason: [x])


def rounded_clamped(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """`rounded` in one instruction instead of two, for `x` that never overflows.

    A value that overflowed (inf) is clamped to the largest finite number. NaN passes through.
    """
    largest = jnp.asarray(jnp.finfo(x.dtype).max, x.dtype)
    return jnp.where(x > largest, largest, x)


def scaled(
    x: Float[Array, "..."], factor: Float[Array, "..."], top: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`rounded(x * factor)`; `x` keeps its bits if the factor is one.

    Args:
        top: `scaling_top(factor)`, broadcast to the shape of `x`. Compute it from the few factors,
            not from the broadcast ones: XLA then compares few numbers, and stores the factors,
            since they have a second reader.
    """
    y = x * factor
    return jnp.where(y >= top, np.asarray(np.inf, x.dtype), y)


def scaling_top(factor: Float[Array, "..."]) -> Float[Array, "..."]:
    """The bound of `scaled`: the largest finite number, or inf if the factor is one."""
    largest = jnp.asarray(jnp.finfo(factor.dtype).max, factor.dtype)
    return jnp.where(factor == 1, jnp.asarray(jnp.inf, factor.dtype), largest)


@jax.custom_vjp
def product(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """`a * b`, rounded, with rounded products in its derivative. Shapes must be equal.

    Only reverse mode (`jax.grad`) is defined.

    Raises:
        ValueError: the shapes differ.
    """
    return _rounded_product(a, b)


def _rounded_product(a, b):
    if jnp.shape(a) != jnp.shape(b):
        raise ValueError(
            f"product: shapes must be equal, got {jnp.shape(a)} and {jnp.shape(b)}: use"
            " jnp.broadcast_to"
        )
    return rounded(a * b)


def _product_forward(a, b):
    return _rounded_product(a, b), (a, b)


def _product_backward(residuals, cotangent):
    a, b = residuals
    return rounded(cotangent * b), rounded(cotangent * a)


product.defvjp(_product_forward, _product_backward)


def tree_sum(x: Float[Array, "groups width *rest"]) -> Float[Array, "groups *rest"]:
    """The sum over the second axis, whose length is a power of two: add halves repeatedly."""
    return combine_halves(jnp.add, x)


def tree_sum_list(parts: list[Array]) -> Array:
    """As `tree_sum`, for a list; XLA on CPU compiles slices of one array into a slower loop."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def combine_halves(combine: Callable, x: Shaped[Array, "groups width *rest"], width: int = 1):
    """Combine halves of the second axis, a power of two, until `width` entries are left.

    The axis is dropped where one entry is left. `combine` is a function of two arrays.
    """
    while x.shape[1] > width:
        half = x.shape[1] // 2
        x = combine(x[:, :half], x[:, half:])
    return x.reshape(x.shape[0], *x.shape[2:]) if width == 1 else x


def add_rows(x: Float[Array, "rows *rest"]) -> Float[Array, "*rest"]:
    """The sum over the first axis: blocks of eight rows by halves, then eight such sums."""
    if x.shape[0] == 0:
        return jnp.full(x.shape[1:], -0.0, x.dtype)
    while x.shape[0] > 1:
        missing = (0, -x.shape[0] % BLOCK)
        x = jnp.pad(x, [missing] + [(0, 0)] * (x.ndim - 1), constant_values=-0.0)
        x = tree_sum(x.reshape(-1, BLOCK, *x.shape[1:]))
    return x[0]


FEW_PARTS = 32768
"""An axis up to this length is added without a loop."""

PIECES, PIECE = 16, 16384
"""A turn of the loop adds 16 pieces of a longer axis, each of at most 16384 entries."""

LEAST_TURNS, MOST_TURNS = 4, 64
"""The bounds of the number of turns; an axis that needs more is halved three times first."""

SHARES = 8
"""The length of a piece is a multiple of this number; the entries left over are added apart."""


def add_parts(
    x: Float[Array, "entries"], term: Callable[[Array], Array] = lambda x: x
) -> Float[Array, ""]:
    """The sum over a long axis: add its pieces to one piece, then the entries of that.

    Pieces are added side by side because entries that are neighbours in memory then share a vector.
    Entries left over come first.

    Args:
        term: the function of each entry to sum.
    """
    if x.size <= FEW_PARTS:
        return _add_few_parts(term(x))
    n_turns, piece = _turns_and_piece(x.size)
    # If `term` changes the dtype, XLA would compute all terms before the loop, so halve instead.
    if n_turns > MOST_TURNS or jax.eval_shape(term, x).dtype != x.dtype:
        length = x.size // BLOCK
        sums = _halves_of_parts(term(x), length)
        # XLA on CPU would fuse the next sums into this loop and take three times as long. The
        # `cond` keeps them apart. Both branches agree: if the first sum is NaN, so is the total.
        total = lax.cond(jnp.isnan(sums[0]), lambda sums: sums[0], add_parts, sums)
        return total + add_rows(term(x[BLOCK * length :]))

    def add_pieces(turn, sums):
        begins = [(PIECES * turn + k) * piece for k in range(PIECES)]
        parts = [term(lax.dynamic_slice_in_dim(x, begin, piece)) for begin in begins]
        return sums + tree_sum_list(parts)

    left = term(x[PIECES * n_turns * piece :])
    sums = lax.fori_loop(0, n_turns, add_pieces, jnp.pad(left, (0, piece - left.size)))
    return _add_few_parts(sums)


def _turns_and_piece(n_entries: int) -> tuple[int, int]:
    """The number of turns of the loop over the entries, and the length of a piece."""
    # XLA unrolls a loop of one turn, which takes twice as long. XLA on CPU gives a turn of half a
    # megabyte to all threads; a length that threads cannot share evenly takes twice as long.
    n_turns = max(LEAST_TURNS, -(-n_entries // (PIECES * PIECE)))
    return n_turns, n_entries // (PIECES * n_turns * SHARES) * SHARES


def part_additions(n_entries: int) -> int:
    """The largest number of additions of `add_parts` in which one entry takes part."""
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
    """`add_parts` without a loop; entries left over are appended to the sums."""
    while x.size > BLOCK:
        length = (x.size - 1) // BLOCK
        x = jnp.concatenate([_halves_of_parts(x, length), x[BLOCK * length :]])
    return add_rows(x)


def _halves_of_parts(x, length: int):
    return tree_sum(x[: BLOCK * length].reshape(1, BLOCK, length))[0]


def wide_dtype(x: Any) -> np.dtype:
    """The dtype of computations with x: its own, but float32 for dtypes of fewer bits.

    Raises:
        TypeError: x is not real floating point.
    """
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"leaves must be floating-point numbers, got {dtype}")
    return np.dtype(np.float32) if jnp.finfo(dtype).bits < 32 else np.dtype(dtype)


def common(tree: Any) -> list[Float[Array, "rows *components"]]:
    """The leaves as rows, in the widest dtype among them, at least float32."""
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(tree)]
    dtypes = [wide_dtype(leaf) for leaf in leaves]
    return [leaf.astype(np.result_type(*dtypes)) for leaf in leaves]


def add_components(x: Float[Array, "rows *components"]) -> Float[Array, "rows"]:
    """The sum over all trailing axes, in an order that depends only on the number of components.

    Up to eight components are added in index order. More are added by halves, for fewer dependent
    additions and an error that grows with the logarithm. No components give -0.0, which adds
    nothing.
    """
    return combine_components(jnp.add, [x], -0.0)[0]


def combine_components(
    combine: Callable, leaves: Sequence[Shaped[Array, "rows *_components"]], absent: float
) -> list[Shaped[Array, "rows"]]:
    """`add_components` of each leaf by `combine`, a function that ignores `absent`.

    Leaves of many components are halved together from the width on at which they meet.
    """
    is_wide = [math.prod(x.shape[1:]) > BLOCK for x in leaves]
    wide = {k: _of_whole_width(x, absent) for k, x in enumerate(leaves) if is_wide[k]}
    order = sorted(wide, key=lambda k: -wide[k].shape[1])
    widths = [wide[k].shape[1] for k in order] + [1]
    together = []
    for k, width, after in zip(order, widths, widths[1:], strict=False):
        together.append(wide[k])
        if after < width:
            x = together[0] if len(together) == 1 else jnp.concatenate(together)
            together = [combine_halves(combine, x, after)]
    halved = dict(zip(order, together[0].reshape(len(order), -1), strict=True)) if order else {}
    return [
        halved[k] if is_wide[k] else _combined_in_order(combine, x, absent)
        for k, x in enumerate(leaves)
    ]


def _combined_in_order(combine, x, absent):
    """The few components of each row, in index order."""
    count = math.prod(x.shape[1:])
    if x.ndim == 1:
        return x
    if count == 0:
        return jnp.full(x.shape[:1], absent, x.dtype)
    x = x.reshape(x.shape[0], count)
    return functools.reduce(combine, [x[:, k] for k in range(count)])


def _of_whole_width(x, absent):
    """[rows, width]: the components, padded to a power of two."""
    rows, count = x.shape[0], math.prod(x.shape[1:])
    width = 1 << (count - 1).bit_length()
    padding = ((0, 0), (0, width - count))
    return jnp.pad(x.reshape(rows, count), padding, constant_values=absent)
