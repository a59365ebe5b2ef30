"""The exponential function, from operations that IEEE 754 rounds alike everywhere.

XLA's own takes 1.5 times as long on the CPU, and its last bits depend on how a loop is vectorised.
Each function here ends in one quotient, which XLA stores if several operations read the result.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from basinax.numerics.rounding import exact, rounded_clamped

LN2 = 0.6931471805599453


class Format(NamedTuple):
    """Constants that depend on the format of a number."""

    integer: type
    """The integer type with as many bits."""
    n_digits: int
    """Bits after the binary point."""
    ln2: tuple[float, float]
    """log 2 in two parts, whose products with any exponent are exact."""
    least: float
    most: float
    """Arguments are clamped to this range; `most` is the logarithm of the largest number."""
    small: tuple[float, float]
    """In `elementary`, e^x and 2^x are squares of powers of x/2 below these arguments."""
    n_terms: int
    """Terms of the logarithm's series there; the truncation error is 2e-17 (5e-11 in float32)."""


FORMATS = {
    np.dtype(np.float64): Format(
        integer=np.int64,
        n_digits=52,
        ln2=(0.6931471805598903, 5.49792301870721e-14),
        least=-701.0,
        most=709.782712893384,
        small=(-700.0, -1000.0),
        n_terms=9,
    ),
    np.dtype(np.float32): Format(
        integer=np.int32,
        n_digits=23,
        ln2=(0.693145751953125, 1.4285906217992306e-06),
        least=-80.0,
        most=88.72283,
        small=(-79.0, -110.0),
        n_terms=5,
    ),
}

_1_LN2 = 1.4426950408889634

_SCALE = 0.0333166436835042
_EVEN = (0.010955414930173336, 0.1134022812175993)
_ODD = (0.044141149075561485, 0.4223920616704537)
"""tanh(r/2) = u (u² + a)(u² + b) / ((u² + c)(u² + d)) with u = 0.0333 r, a and b from `_ODD`, c and
d from `_EVEN`. The formula is exact at the zeros of the eleventh Chebyshev polynomial stretched to
±log(2)/2; between these zeros the relative error of the exponential function is at most 8e-19."""


@jax.custom_jvp
def exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """e^x in float64 or float32, with a relative error of 4e-16 or 2e-7.

    The result is a quotient: round it before a division, not before a sum. `x` needs no rounding.
    Arguments below -701 and above 709.78 (-80 and 88.72 in float32) give the values there, 4e-305
    and 2e308 (2e-35 and 3e38). NaN gives NaN.
    """
    f = FORMATS[np.dtype(x.dtype)]
    x = jnp.where(x > f.most, f.most, x)
    x = jnp.where(x < f.least, f.least, x)
    # x = y log 2 + r
    y = _to_integer(x * _1_LN2)
    high, low = (exact(y * part, "few digits of log 2 times a whole number") for part in f.ln2)
    above, below = _quotient(y, ((x - high) - low) * _SCALE)
    return above / below


@jax.custom_jvp
def exp2(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2^x, as precise as `exp`, in fewer operations.

    `x` must lie between -1011 and 1024 (-115 and 128 in float32); no clamp applies. NaN gives NaN.
    """
    above, below = _quotient_of_two(x)
    return above / below


@jax.custom_jvp
def fermi2(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1/(1 + 2^x), for the arguments of `exp2` and all smaller ones."""
    above, below = _quotient_of_two(_no_less(x))
    return below / (above + below)


@jax.custom_jvp
def exp2_fermi2(x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """2^x/(1 + 2^y) in one division, for the arguments of `exp2` and all smaller `y`.

    A result near the smallest normal number may be 0.
    """
    (x_above, x_below), (y_above, y_below) = _quotient_of_two(x), _quotient_of_two(_no_less(y))
    return (x_above * y_below) / (x_below * (y_above + y_below))


@exp.defjvp
def _exp_jvp(primals, tangents):
    value = exp(*primals)
    return value, value * tangents[0]


@exp2.defjvp
def _exp2_jvp(primals, tangents):
    value = exp2(*primals)
    return value, value * (LN2 * tangents[0])


@fermi2.defjvp
def _fermi2_jvp(primals, tangents):
    value = fermi2(*primals)
    return value, value * (value - 1.0) * (LN2 * tangents[0])


@exp2_fermi2.defjvp
def _exp2_fermi2_jvp(primals, tangents):
    (_, y), (dx, dy) = primals, tangents
    value = exp2_fermi2(*primals)
    return value, value * (LN2 * (dx - fermi2(-y) * dy))


def _no_less(x):
    """`x`, or -64 below it: 1 + 2^-64 rounds to 1 as well."""
    return jnp.where(x < -64.0, -64.0, x)


def _to_integer(x):
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _quotient_of_two(x):
    """`_quotient` for 2^x; `x` needs no rounding."""
    x = rounded_clamped(x)
    y = _to_integer(x)
    return _quotient(y, (x - y) * (_SCALE * LN2))


def _quotient(y, u):
    """Numerator and denominator of 2^y e^r; the denominator is near 1e-3.

    Args:
        y: an integer.
        u: r, at most log(2)/2 in size, in the units of `_EVEN` and `_ODD`.
    """
    f = FORMATS[np.dtype(y.dtype)]
    t = rounded_clamped(u * u)
    even = rounded_clamped((t + _EVEN[0]) * (t + _EVEN[1]))
    odd = rounded_clamped(u * (t + _ODD[0]) * (t + _ODD[1]))
    # e^r = (1 + tanh(r/2)) / (1 - tanh(r/2)). Adding 1.5 · 2^n moves the integer y into the last
    # digits, from which a shift brings y into the exponent.
    exponent = lax.bitcast_convert_type(y + 1.5 * 2.0**f.n_digits, f.integer) << f.n_digits
    above = lax.bitcast_convert_type(even + odd, f.integer) + exponent
    return lax.bitcast_convert_type(above, y.dtype), even - odd
