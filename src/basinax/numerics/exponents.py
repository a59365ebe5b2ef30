"""Powers of two and powers of any order, rounded alike on every device and in every shape.

JAX on CPU reads and writes subnormal numbers as zero, so this module handles subnormals by their
bits. Powers use basic operations alone, which are exact to half an ulp whether or not a compiler
vectorises them; library powers have other bits in the tail of an array.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from basinax.numerics import xla
from basinax.numerics.rounding import exact, rounded


def magnitude_bits(x: Float[Array, "..."]) -> Int[Array, "..."]:
    """|x| as an integer that orders like it: 0 < subnormal < normal < inf < NaN."""
    return signed_bits(x) & jnp.asarray(np.iinfo(_integer(x.dtype)).max, _integer(x.dtype))


def signed_bits(x: Float[Array, "..."]) -> Int[Array, "..."]:
    """The bits of x: negative where its sign bit is set."""
    return jax.lax.bitcast_convert_type(x, _integer(x.dtype))


def from_bits(bits: Int[Array, "..."], dtype) -> Float[Array, "..."]:
    return jax.lax.bitcast_convert_type(bits, dtype)


def infinity_bits(dtype) -> int:
    """The bits of inf; those of NaN are larger."""
    return int(np.asarray(np.inf, dtype).view(_integer(dtype)))


def choice(mask: Bool[Array, "..."], dtype) -> Int[Array, "..."]:
    """A mask in the form that `choose` reads for numbers of `dtype`."""
    return -mask.astype(_integer(dtype))


@jax.custom_jvp
def choose(
    mask: Int[Array, "..."], on_true: Float[Array, "..."], on_false: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`where` by bits. XLA on CPU takes half the time for it if other selections stand nearby."""
    if not xla.SWITCHES["by_bits"]:
        return jnp.where(mask != 0, on_true, on_false)
    bits = (signed_bits(on_true) & mask) | (signed_bits(on_false) & ~mask)
    return from_bits(bits, on_true.dtype)


@choose.defjvp
def _choose_derivative(primals, tangents):
    mask, on_true, on_false = primals
    _, by_true, by_false = tangents
    return choose(mask, on_true, on_false), jnp.where(mask != 0, by_true, by_false)


@jax.custom_jvp
def toward_zero(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The neighbouring number of x in its dtype, nearer to zero. x must not be zero."""
    return from_bits(signed_bits(x) - jnp.asarray(1, _integer(x.dtype)), x.dtype)


@toward_zero.defjvp
def _toward_zero_jvp(primals, tangents):
    return toward_zero(*primals), tangents[0]  # as of x: JAX has no derivative of bits


def scale_exactly(x: Float[Array, "..."], exponent: Int[Array, "..."]) -> Float[Array, "..."]:
    """x · 2^exponent, exact, for subnormal x as well. A subnormal result may become zero.

    Exponents may reach twice the largest exponent of the dtype.
    """
    info = jnp.finfo(x.dtype)
    bits = magnitude_bits(x)
    is_subnormal = bits < normal_bits(x.dtype)
    units = bits.astype(x.dtype)
    units = jnp.where(signed_bits(x) < 0, -units, units)
    y = jnp.where(is_subnormal, units, x)
    left = jnp.where(is_subnormal, exponent + (info.minexp - info.nmant), exponent)
    # Only what becomes 0 is beyond these bounds.
    left = jnp.clip(left, 2 * info.minexp, 2 * (info.maxexp - 1))
    half = left >> 1
    for part in (half, left - half):
        y = exact(y * power_of_two(part, x.dtype), "a power of two")
    return jnp.where(exponent == 0, x, y)


def power_of_two(exponent: Int[Array, "..."], dtype) -> Float[Array, "..."]:
    """2^exponent, for the exponents of normal numbers."""
    info = jnp.finfo(dtype)
    bits = (exponent.astype(_integer(dtype)) + (1 - info.minexp)) << info.nmant
    return from_bits(bits, dtype)


def split(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Int[Array, "..."]]:
    """|x| as mantissa · 2^exponent with the mantissa in [1, 2). Meaningless for 0, inf and NaN."""
    info = jnp.finfo(x.dtype)
    bits = magnitude_bits(x)
    is_subnormal = bits < normal_bits(x.dtype)
    bits = jnp.where(is_subnormal, magnitude_bits(bits.astype(x.dtype)), bits)
    exponent = (bits >> info.nmant).astype(jnp.int32) - (1 - info.minexp)
    exponent = jnp.where(is_subnormal, exponent + (info.minexp - info.nmant), exponent)
    fraction = bits & jnp.asarray((1 << info.nmant) - 1, bits.dtype)
    one = jnp.asarray(infinity_bits(x.dtype) - (1 << (info.nmant + info.nexp - 1)), bits.dtype)
    return from_bits(fraction | one, x.dtype), exponent


def join(mantissa: Float[Array, "..."], exponent: Int[Array, "..."]) -> Float[Array, "..."]:
    """mantissa · 2^exponent for a mantissa ≥ 0, rounded once, for subnormal results as well."""
    info = jnp.finfo(mantissa.dtype)
    is_subnormal = split(mantissa)[1] + exponent < info.minexp
    unit = info.minexp - info.nmant  # bits of subnormals count multiples of 2^unit
    y = scale_exactly(mantissa, exponent - jnp.where(is_subnormal, unit, 0))
    units = jnp.round(jnp.where(is_subnormal, y, jnp.zeros_like(y)))
    bits = jnp.where(is_subnormal, units.astype(_integer(y.dtype)), signed_bits(y))
    return from_bits(bits, y.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def power(x: Float[Array, "..."], p: float) -> Float[Array, "..."]:
    """x^p for x ≥ 0 and p > 0, within a few ulp; 0 if the result is not a normal number.

    The logarithm is the series of the inverse hyperbolic tangent, the exponential a Taylor series.
    """
    info = jnp.finfo(x.dtype)
    mantissa, exponent = split(x)
    is_large = mantissa > math.sqrt(2)
    mantissa = jnp.where(is_large, mantissa * 0.5, mantissa)
    exponent = jnp.where(is_large, exponent + 1, exponent).astype(x.dtype)

    # log₂ m = 2/ln 2 (s + s³/3 + s⁵/5 + …), s = (m - 1)/(m + 1), |s| < 0.172
    s = (mantissa - 1) / (mantissa + 1)
    terms = 6 if info.bits == 32 else 12
    series = [2 / (math.log(2) * (2 * k + 1)) for k in range(terms)]
    logarithm = rounded(s * polynomial(rounded(s * s), series))

    # p log₂ x = whole + rest, |rest| ≤ 1/2, with the product p · exponent to twice the precision
    head, tail = _head_and_tail(p, info.nmant - 11)
    product = rounded(head * exponent)
    rest = rounded(p * logarithm)
    whole = jnp.round(product + rest)
    rest = (product - whole) + (rounded(tail * exponent) + rest)
    taylor = [math.log(2) ** k / math.factorial(k) for k in range(8 if info.bits == 32 else 14)]
    result = polynomial(rest, taylor)

    fits = whole >= info.minexp
    shift = jnp.clip(jnp.where(fits, whole, 0), info.minexp, 2 * info.maxexp).astype(jnp.int32)
    result = jnp.where(fits & (x > 0), scale_exactly(result, shift), jnp.zeros_like(x))
    return jnp.where(jnp.isfinite(x), result, x)


@power.defjvp
def _power_derivative(p, primals, tangents):
    (x,), (dx,) = primals, tangents
    slope = jnp.ones_like(x) if p == 1 else power(x, p - 1) if p > 1 else 1 / power(x, 1 - p)
    return power(x, p), p * slope * dx


def polynomial(x: Float[Array, "..."], coefficients: Sequence[Any]) -> Float[Array, "..."]:
    """The sum of coefficients times powers of x, from the power 0 on."""
    total = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = rounded(total * x) + coefficient
    return total


def _head_and_tail(p: float, bits: int) -> tuple[float, float]:
    """p as a number of `bits` bits, and the rest."""
    fraction, exponent = math.frexp(p)
    head = math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
    return head, p - head


def normal_bits(dtype) -> int:
    """The bits of the smallest normal number."""
    return 1 << jnp.finfo(dtype).nmant


def _integer(dtype) -> np.dtype:
    return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")
