"""The p-norm of each system, without overflow or underflow, and with a designed derivative at zero.

A sum of magnitudes or squares in the safe range is used directly, so most norms cost one pass.
Other systems are scaled by a power of two and summed again (Blue, ACM Trans. Math. Softw. 4, 15,
1978).
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from basinax.numerics import xla
from basinax.numerics.elementary import square_root
from basinax.numerics.exponents import (
    from_bits,
    infinity_bits,
    join,
    magnitude_bits,
    normal_bits,
    power,
    scale_exactly,
    split,
)
from basinax.numerics.rounding import common, rounded, wide_dtype
from basinax.systems.index import WholeIndex, one_by_one, where_any
from basinax.systems.indices import Indices
from basinax.systems.types import Leaves


def order(ord: float | str | None) -> float:
    """The order of a norm as a number: p ≥ 1, inf (largest magnitude) or -inf (smallest).

    Raises:
        ValueError: `ord` is none of these numbers, nor one as a string, nor None (for 2).
    """
    try:
        p = 2.0 if ord is None else math.nan if isinstance(ord, bool) else float(ord)
    except (TypeError, ValueError):
        p = math.nan
    if p >= 1 or p == -math.inf:
        return p
    raise ValueError(
        f"ord must be a number of 1 or more, inf, -inf, one of these as a string, or None for 2;"
        f" got {ord!r}"
    )


class Norms(NamedTuple):
    """The norm of each system."""

    values: Float[Array, "systems"]
    """The rounded norm; inf above the largest number."""

    mantissas: Float[Array, "systems"]
    """The norm divided by 2^exponents: neither inf nor subnormal if all entries are finite."""

    exponents: Int[Array, "systems"]
    """0 unless the value is inf or subnormal."""


@functools.partial(xla.jitted, static_argnums=2)
def norms(leaves: Leaves, indices: Indices, ord: float) -> Norms:
    """The norm of each system over all leaves: 0 without rows, NaN if any entry is.

    Differentiable in the leaves, with derivative 0 where the norm is 0.

    Args:
        ord: a result of `order`.
    """
    plain, is_unsafe = plain_norms(leaves, indices, ord)
    is_extreme = extremes(leaves, indices, is_unsafe)
    return where_any(
        is_extreme, lambda: scaled_norms(leaves, indices, ord, plain, is_extreme), lambda: plain
    )


def extremes(
    leaves: Leaves, indices: Indices, is_unsafe: Bool[Array, "systems"]
) -> Bool[Array, "systems"]:
    """The unsafe systems that are not zero."""
    return where_any(
        is_unsafe, lambda: is_unsafe & (largest_bits(leaves, indices) > 0), lambda: is_unsafe
    )


def has_rows(indices: Indices) -> Bool[Array, "systems"]:
    return functools.reduce(jnp.logical_or, [index.sizes > 0 for index in indices.distinct])


def scaled_norms(
    leaves: Leaves,
    indices: Indices,
    ord: float,
    plain: Norms,
    is_extreme: Bool[Array, "systems"],
) -> Norms:
    """The plain norms, with those of extreme systems computed again from scaled entries."""
    if ord not in (1.0, 2.0):
        return plain
    scaled = _scaled(leaves, indices, _shifts(plain.values, ord), ord)
    return Norms(*(jnp.where(is_extreme, x, y) for x, y in zip(scaled, plain, strict=True)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def plain_norms(
    leaves: Sequence[Float[Array, "..."]],
    indices: Indices,
    ord: float,
    quick: bool = False,
) -> tuple[Norms, Bool[Array, "systems"]]:
    """The norms in one pass, and a mask of systems that may have over- or underflowed.

    Args:
        leaves: of any floating dtypes.
        quick: in global mode, add large leaves in the order of memory.
    """
    if ord not in (1.0, 2.0):
        take = _extreme_norms if math.isinf(ord) else _norms_of_powers
        found = take(common(leaves), indices, ord)
        return found, found.exponents != 0
    entry = jnp.abs if ord == 1 else _square
    rows = [jnp.atleast_1d(x) for x in leaves]
    dtype = np.result_type(*[wide_dtype(x) for x in rows])

    def term(x):
        return entry(x.astype(dtype))

    if quick:
        pairs = zip(rows, indices, strict=True)
        sums = [index.quick_sum(x, term) for x, index in pairs if isinstance(index, WholeIndex)]
    else:
        sums = indices.sums([term(x) for x in rows])
    total = functools.reduce(jnp.add, sums)
    values = total if ord == 1 else square_root(total)
    # Test the stored root, not the sum: in global mode XLA may compute the sum again.
    is_unsafe = _shifts(values, ord) != 0
    return Norms(values, values, jnp.zeros_like(values, jnp.int32)), is_unsafe


def _shifts(values: Float[Array, "systems"], ord: float) -> Int[Array, "systems"]:
    """The exponents of powers of two that bring the sums of systems with these norms into range.

    Scaled up, the least subnormal number has a normal square, and norms that need scaling stay
    below half the range. Scaled down, the largest number leaves room for 2^30 entries, and the lost
    digits are too small to matter.
    """
    info = jnp.finfo(values.dtype)
    far = 11 * info.maxexp // 16
    # Below `least`, entries lost to underflow may together make half an ulp.
    least = 2.0 ** ((info.minexp + info.nmant + 41) // (2 if ord == 2 else 1))
    down = jnp.where(values == jnp.inf, -far, 0)
    return jnp.where(values < least, far, down).astype(jnp.int32)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _scaled(leaves, indices, shifts, ord) -> Norms:
    """Norms of order 1 or 2, from entries times 2^shifts."""

    def part(x, index):
        y = scale_exactly(x, index.spread(shifts, 0, x))
        return _square(y) if ord == 2 else jnp.abs(y)

    pairs = zip(indices.join(leaves), indices.distinct, strict=True)
    parts = indices.cut([one_by_one(part, x, index) for x, index in pairs], leaves)
    sums = _total(parts, indices)
    mantissas = square_root(sums) if ord == 2 else sums
    return _compact(join(mantissas, -shifts), mantissas, -shifts)


@plain_norms.defjvp
def _plain_derivative(ord, quick, primals, tangents):
    leaves, indices = primals
    found, is_unsafe = plain_norms(leaves, indices, ord, quick)
    no_step: Any = np.zeros(is_unsafe.shape, jax.dtypes.float0)
    step = _step(found, common(leaves), indices, common(tangents[0]), ord)
    return (found, is_unsafe), (step, no_step)


@_scaled.defjvp
def _scaled_derivative(ord, primals, tangents):
    leaves, indices, shifts = primals
    found = _scaled(leaves, indices, shifts, ord)
    return found, _step(found, leaves, indices, tangents[0], ord)


def _step(found: Norms, leaves, indices, steps, ord) -> Norms:
    """The directional derivative of the norms along the steps of the leaves."""
    norm = found.values
    is_regular = (norm > 0) & (norm < jnp.inf)
    safe = jnp.where(is_regular, norm, jnp.ones_like(norm))
    slopes = [
        jnp.where(index.spread(is_regular, False, x), slope, jnp.zeros_like(x))
        for x, index, slope in zip(
            leaves, indices, _slopes(leaves, indices, ord, safe), strict=True
        )
    ]
    # The result is linear in the steps, so no rounding; in reverse mode no product meets a sum.
    step = _total([w * dx for w, dx in zip(slopes, steps, strict=True)], indices)
    # Mantissas equal the values wherever the derivative is not 0.
    no_step: Any = np.zeros(found.exponents.shape, jax.dtypes.float0)
    return Norms(step, step, no_step)


def _slopes(leaves, indices, ord, norm):
    """∂‖x‖/∂x, given a norm that is neither 0 nor inf."""
    pairs = list(zip(leaves, indices, strict=True))
    if ord == 1:
        return [jnp.sign(x) for x in leaves]
    if math.isinf(ord):  # entries of equal magnitude share the slope, as in jnp.max
        is_it = [(jnp.abs(x) == index.spread(norm, 1.0, x)).astype(x.dtype) for x, index in pairs]
        shares = _inverse(_total(is_it, indices))
        return [
            jnp.sign(x) * mask * index.spread(shares, 0.0, x)
            for x, mask, index in zip(leaves, is_it, indices, strict=True)
        ]
    parts = [
        _share(x, *(index.spread(v, 1.0, x) for v in (norm, _inverse(norm)))) for x, index in pairs
    ]
    if ord == 2:
        return parts
    return [jnp.sign(x) * power(jnp.abs(x), ord - 1) for x in parts]


def _inverse(x):
    """1/x, as a factor: XLA turns only some divisions by a broadcast into products."""
    return rounded(1 / x)


@jax.custom_jvp
def _share(x, norm, inverse):
    """x/norm, given 1/norm, whose derivative may be out of range where that of x/norm is not."""
    del norm
    return rounded(x * inverse)


@_share.defjvp
def _share_derivative(primals, tangents):
    (x, norm, inverse), (dx, dnorm, _) = primals, tangents
    value = _share(x, norm, inverse)
    return value, quotient(dx, norm) - value * quotient(dnorm, norm)


@jax.custom_jvp
def quotient(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """a/b. Its derivatives have no 1/b², which may be out of range where they are not."""
    return a / b


@quotient.defjvp
def _quotient_derivative(primals, tangents):
    (a, b), (da, db) = primals, tangents
    value = quotient(a, b)
    return value, quotient(da, b) - value * quotient(db, b)


def _norms_of_powers(leaves: Leaves, indices: Indices, ord: float) -> Norms:
    """Norms of leaves that are scaled to a largest magnitude in [1, 2)."""
    dtype = leaves[0].dtype
    top = largest_bits(leaves, indices)
    is_finite = top < infinity_bits(dtype)
    largest, exponents = split(from_bits(top, dtype))
    is_scaled = is_finite & (top > 0)
    exponents = jnp.where(is_scaled, exponents, 0)
    largest = jnp.where(is_scaled, largest, jnp.ones_like(largest))
    inverse = _inverse(largest)
    parts = []
    for x, index in zip(leaves, indices, strict=True):
        y = jnp.abs(scale_exactly(x, -index.spread(exponents, 0, x)))
        part = jnp.minimum(rounded(y * index.spread(inverse, 1.0, x)), 1)
        is_top = y == index.spread(largest, jnp.inf, x)
        parts.append(power(jnp.where(is_top, jnp.ones_like(y), part), ord))
    mantissas = rounded(largest * power(_total(parts, indices), 1 / ord))
    mantissas = jnp.where(is_finite, mantissas, from_bits(top, dtype))
    return _compact(join(mantissas, exponents), mantissas, exponents)


def _extreme_norms(leaves: Leaves, indices: Indices, ord: float) -> Norms:
    """The largest or smallest magnitude, found by integer comparison to include subnormals."""
    dtype = leaves[0].dtype
    bits = top = largest_bits(leaves, indices)
    if ord < 0:
        least = indices.max([-magnitude_bits(x) for x in leaves])
        bits = jnp.where(has_rows(indices) & (top <= infinity_bits(dtype)), -least, top)
    values = from_bits(bits, dtype)
    mantissas, exponents = split(values)
    return _compact(values, jnp.where(jnp.isfinite(values), mantissas, values), exponents)


def _compact(values, mantissas, exponents) -> Norms:
    """Keep exponents only for norms that are finite, not 0, and inf or subnormal as values."""
    bits = magnitude_bits(values)
    is_extreme = (bits > 0) & ((bits < normal_bits(values.dtype)) | jnp.isinf(values))
    is_extreme = is_extreme & jnp.isfinite(mantissas)
    return Norms(
        values, jnp.where(is_extreme, mantissas, values), jnp.where(is_extreme, exponents, 0)
    )


def largest_bits(leaves, indices) -> Int[Array, "systems"]:
    """The bits of each system's largest magnitude; 0 without rows."""
    return jnp.maximum(indices.max([magnitude_bits(x) for x in leaves]), 0)


def _total(rows: Leaves, indices: Indices) -> Float[Array, "systems"]:
    """Add the sums of the leaves in their order."""
    return functools.reduce(jnp.add, indices.sums(rows))


def _square(x):
    return rounded(x * x)
