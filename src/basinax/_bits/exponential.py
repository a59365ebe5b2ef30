"""The exponential function, from operations that IEEE 754 rounds alike everywhere.

XLA's own takes half as long again on the CPU, and its last bits depend on how a loop is vectorised.
What is made of it here is one quotient, which XLA stores where several read it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from basinax._bits.rounding import apart

LN2 = 0.6931471805599453


class _Format(NamedTuple):
    """Constants that depend on the format of a number."""

    integer: type
    """As many bits."""
    n_digits: int
    """Bits behind the binary point."""
    ln2: tuple[float, float]
    """log 2 in two parts, whose products with any exponent are exact."""
    least: float
    most: float
    """What lies beyond these counts as these; the second is the logarithm of the largest number."""


_FORMATS = {
    np.dtype(np.float64): _Format(
        np.int64, 52, (0.6931471805598903, 5.49792301870721e-14), -701.0, 709.782712893384
    ),
    np.dtype(np.float32): _Format(
        np.int32, 23, (0.693145751953125, 1.4285906217992306e-06), -80.0, 88.72283
    ),
}

_1_LN2 = 1.4426950408889634

_SCALE = 0.0333166436835042
_EVEN = (0.010955414930173336, 0.1134022812175993)
_ODD = (0.044141149075561485, 0.4223920616704537)
"""tanh(r/2) = u (u² + a)(u² + b) / ((u² + c)(u² + d)) with u = 0.0333 r, a and b odd, c and d even.
Equal where r is a zero of the eleventh Chebyshev polynomial stretched to ±log(2)/2; between these
the exponential function is off by 8e-19 of its value."""


@jax.custom_jvp
def exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """e to the power of `x`, to 4e-16 of its value, in float32 to 2e-7.

    For float64 and float32. `x` need not be rounded, nor the result where it meets a sum; where it
    meets a division it is a quotient. Below -701 and above 709.78 (-80 and 88.72) it stays as
    there: 4e-305 and 2e308 (2e-35 and 3e38). NaN of NaN.
    """
    f = _FORMATS[np.dtype(x.dtype)]
    x = jnp.where(x > f.most, f.most, x)
    x = jnp.where(x < f.least, f.least, x)
    # x = y log 2 + r
    y = _to_integer(x * _1_LN2)
    above, below = _quotient(y, ((x - y * f.ln2[0]) - y * f.ln2[1]) * _SCALE)
    return above / below


@jax.custom_jvp
def exp2(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """2 to the power of `x`, as precise as `exp` for the same number, in fewer operations.

    For `x` from -1011 to 1024 (-115 to 128 in float32), which is not held there; NaN of NaN.
    """
    above, below = _quotient_of_two(x)
    return above / below


@jax.custom_jvp
def fermi2(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1/(1 + 2^x), for what `exp2` is for, and for any smaller `x`."""
    above, below = _quotient_of_two(_no_less(x))
    return below / (above + below)


@jax.custom_jvp
def exp2_fermi2(x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """2^x/(1 + 2^y), in one division, for what `exp2` is for, and for any smaller `y`.

    0 where it would be as small as that may be.
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
    """`x`, or what has as little to add to 1: nothing."""
    return jnp.where(x < -64.0, -64.0, x)


def _to_integer(x):
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _quotient_of_two(x):
    """As `_quotient`, of 2 to the power of `x`, which need not be rounded."""
    x = apart(x)
    y = _to_integer(x)
    return _quotient(y, (x - y) * (_SCALE * LN2))


def _quotient(y, u):
    """Two numbers whose quotient is 2^y e^r; the second is near 1e-3.

    Args:
        y: an integer.
        u: r, of log(2)/2 at most, in the units of the quotient above.
    """
    f = _FORMATS[np.dtype(y.dtype)]
    t = apart(u * u)
    even = apart((t + _EVEN[0]) * (t + _EVEN[1]))
    odd = apart(u * (t + _ODD[0]) * (t + _ODD[1]))
    # e^r = (1 + tanh(r/2)) / (1 - tanh(r/2)). The exponent takes y: the last digits of so large a
    # number are those of an integer.
    exponent = lax.bitcast_convert_type(y + 1.5 * 2.0**f.n_digits, f.integer) << f.n_digits
    above = lax.bitcast_convert_type(even + odd, f.integer) + exponent
    return lax.bitcast_convert_type(above, y.dtype), even - odd
