"""Elementary functions from operations that IEEE 754 rounds alike everywhere.

XLA expands these functions into polynomials, and a compiler may or may not fuse their products with
sums: the last bits depend on the shape of an array, on the rest of the loop and on the machine.
Here every product, quotient and root is rounded. `pow`, `sin`, `cos` and `atan2` call the C library
for one number at a time and stay as they are. All functions take float64 and float32 and err by a
few ulp.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Shaped

from basinax.numerics import exponential as _exponential
from basinax.numerics.erfc import erfcx
from basinax.numerics.exponential import FORMATS, LN2
from basinax.numerics.exponents import polynomial
from basinax.numerics.rounding import rounded

Numbers = Float[Array, "..."]


def exp(x: Numbers) -> Numbers:
    f = FORMATS[np.dtype(x.dtype)]
    return _exponential_of(_exponential.exp, x, f.small[0], f.most)


def exp2(x: Numbers) -> Numbers:
    f = FORMATS[np.dtype(x.dtype)]
    return _exponential_of(_exponential.exp2, x, f.small[1], float(jnp.finfo(x.dtype).maxexp))


def _exponential_of(of, x, least: float, most: float):
    """A power by `of`, a function for exponents from `least` to `most`."""
    is_small, is_large = x < least, x > most
    held = jnp.where(is_small, x * 0.5, jnp.where(is_large, most, x))
    value = rounded(of(jnp.where(held < least, least, held)))
    value = jnp.where(is_small, rounded(value * value), value)
    return jnp.where(is_large, jnp.inf, value)


@jax.custom_jvp
def log(x: Numbers) -> Numbers:
    """2^k m with m between √½ and √2 has the logarithm k log 2 + 2 artanh((m − 1)/(m + 1))."""
    f = FORMATS[np.dtype(x.dtype)]
    bits = lax.bitcast_convert_type(x, f.integer)
    infinite, root = (np.array(v, x.dtype).view(f.integer) for v in (np.inf, 0.5**0.5))
    # A subnormal number is an integer times the smallest subnormal.
    is_subnormal = bits < (1 << f.n_digits)
    smallest = float(np.log2(np.finfo(x.dtype).smallest_subnormal))
    whole = lax.bitcast_convert_type(bits.astype(x.dtype), f.integer)
    normal = jnp.where(is_subnormal, whole, bits)
    k = (normal - root) >> f.n_digits
    m = lax.bitcast_convert_type(normal - (k << f.n_digits), x.dtype)
    k = k.astype(x.dtype) + jnp.where(is_subnormal, smallest, 0.0).astype(x.dtype)
    s = rounded((m - 1.0) / (m + 1.0))
    z = rounded(s * s)
    series = jnp.zeros_like(z)
    for n in reversed(range(f.n_terms)):
        series = rounded(z * (2.0 / (2 * n + 3) + series))
    high, low = f.ln2
    value = rounded(k * high) + (2.0 * s + (rounded(s * series) + rounded(k * low)))
    value = jnp.where((bits > 0) & (bits < infinite), value, jnp.nan)
    value = jnp.where((bits << 1) == 0, -jnp.inf, value)
    return jnp.where(bits == infinite, jnp.inf, value)


@log.defjvp
def _log_jvp(primals, tangents):
    return log(*primals), tangents[0] / primals[0]  # JAX has no derivative of bits


def expm1(x: Numbers) -> Numbers:
    """(u − 1) x/log(u) with u = eˣ, in which the error of u cancels (W. Kahan)."""
    u = exp(x)
    value = rounded(rounded(u - 1.0) * rounded(x / log(u)))
    value = jnp.where(u == 1.0, x, value)
    return jnp.where(x < -50.0, -1.0, jnp.where(u == jnp.inf, jnp.inf, value))


def log1p(x: Numbers) -> Numbers:
    """log(u) x/(u − 1) with u = 1 + x, in which the error of u cancels (W. Kahan)."""
    u = rounded(1.0 + x)
    value = rounded(log(u) * rounded(x / rounded(u - 1.0)))
    return jnp.where(u == 1.0, x, jnp.where(u == jnp.inf, jnp.inf, value))


def tanh(x: Numbers) -> Numbers:
    """t/(t + 2) with t = e^2x − 1."""
    size = jnp.abs(x)
    t = expm1(2.0 * jnp.where(size > 20.0, 20.0, size))
    value = rounded(t / (t + 2.0))
    return jnp.where(x < 0.0, -value, value)


def sinh(x: Numbers) -> Numbers:
    """(t + t/(t + 1))/2 with t = e^x − 1."""
    size = jnp.abs(x)
    t = expm1(jnp.where(size > 20.0, 20.0, size))
    value = jnp.where(size > 20.0, _half_exp(size), rounded(0.5 * (t + rounded(t / (t + 1.0)))))
    return jnp.where(x < 0.0, -value, value)


def cosh(x: Numbers) -> Numbers:
    half = _half_exp(jnp.abs(x))
    return half + rounded(0.25 / half)


def _half_exp(x):
    """e^x/2, which is a number where e^x no longer is."""
    root = exp(0.5 * x)
    return rounded(rounded(0.5 * root) * root)


def asinh(x: Numbers) -> Numbers:
    """log(1 + a + a²/(1 + √(1 + a²))) with a = |x|."""
    size = jnp.abs(x)
    a = jnp.where(size > 1e8, 1.0, size)
    square = rounded(a * a)
    value = log1p(a + rounded(square / (1.0 + rounded(jnp.sqrt(1.0 + square)))))
    value = jnp.where(size > 1e8, log(size) + LN2, value)
    return jnp.where(x < 0.0, -value, value)


def acosh(x: Numbers) -> Numbers:
    """log(1 + a + √a √(a + 2)) with a = x − 1."""
    a = jnp.where(x > 1e8, 1.0, x - 1.0)
    value = log1p(a + rounded(rounded(jnp.sqrt(a)) * rounded(jnp.sqrt(a + 2.0))))
    return jnp.where(x > 1e8, log(x) + LN2, value)


def atanh(x: Numbers) -> Numbers:
    """log(1 + 2a/(1 − a))/2 with a = |x|."""
    size = jnp.abs(x)
    value = 0.5 * log1p(rounded(2.0 * size / (1.0 - size)))
    return jnp.where(x < 0.0, -value, value)


_N_TERMS = 12
"""Terms of erf's series; the first that is left out is 5e-18 at x = 1/2."""


def erf(x: Numbers) -> Numbers:
    size = jnp.abs(x)
    value = jnp.where(size > 0.5, 1.0 - _erfc_far(size), _erf_near(size))
    return jnp.where(x < 0.0, -value, value)


def erfc(x: Numbers) -> Numbers:
    far = _erfc_far(jnp.abs(x))
    return jnp.where(x > 0.5, far, jnp.where(x < -0.5, 2.0 - far, 1.0 - _erf_near(x)))


def _erf_near(x):
    """erf(x) = 2/√π Σ (−1)ⁿ x²ⁿ⁺¹/(n! (2n + 1)) for |x| up to a half."""
    near = jnp.where(jnp.abs(x) > 0.5, 0.5, x)
    terms = [(-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(_N_TERMS)]
    return rounded(near * polynomial(rounded(near * near), [2 / math.pi**0.5 * t for t in terms]))


def _erfc_far(x):
    """e^−h² e^−(x² − h²) erfcx(x) for x ≥ 0, with the first half h of the digits of x."""
    f, x = FORMATS[np.dtype(x.dtype)], jnp.where(x > 30.0, 30.0, x)  # erfc(30) is 0
    n_dropped = f.n_digits // 2 + 1
    bits = lax.bitcast_convert_type(x, f.integer)
    h = lax.bitcast_convert_type(bits >> n_dropped << n_dropped, x.dtype)
    rest = rounded((x - h) * (x + h))
    gaussian = rounded(exp(-rounded(h * h)) * exp(-rest))
    return rounded(gaussian * rounded(erfcx(x)))


def one_minus_square(x: Numbers) -> Numbers:
    """The derivative of tanh for a value x of tanh; an operation of JAX from 0.12 on."""
    return rounded((1.0 - x) * (1.0 + x))


def logistic(x: Numbers) -> Numbers:
    return rounded(1.0 / (1.0 + exp(-x)))


@jax.custom_jvp
def square_root(x: Numbers) -> Numbers:
    """√x. Its derivative is 0 where the root is, so that a product with it is a number."""
    return rounded(jnp.sqrt(x))


@square_root.defjvp
def _square_root_jvp(primals, tangents):
    root = square_root(*primals)
    is_zero = root == 0.0
    return root, jnp.where(is_zero, 0.0, 0.5 * tangents[0] / jnp.where(is_zero, 1.0, root))


def rsqrt(x: Numbers) -> Numbers:
    return rounded(1.0 / rounded(jnp.sqrt(x)))


def cbrt(x: Numbers) -> Numbers:
    """x^(1/3), then one Newton step, since 1/3 is no number of the format."""
    size = jnp.abs(x)
    y = power(size, jnp.full_like(size, 1.0 / 3.0))
    y = y - rounded((y - rounded(size / rounded(y * y))) / 3.0)  # y³ might overflow
    y = jnp.where(x < 0.0, -y, y)
    return jnp.where((x == 0.0) | jnp.isinf(x), x, y)


def tan(x: Numbers) -> Numbers:
    return rounded(rounded(jnp.sin(x)) / rounded(jnp.cos(x)))


def asin(x: Numbers) -> Numbers:
    cosine = rounded(jnp.sqrt(rounded((1.0 - x) * (1.0 + x))))
    value = 2.0 * atan2(x, 1.0 + cosine)
    return jnp.where(jnp.abs(x) < jnp.finfo(x.dtype).eps, x, value)  # half of it may be 0


def acos(x: Numbers) -> Numbers:
    return 2.0 * atan2(rounded(jnp.sqrt(1.0 - x)), rounded(jnp.sqrt(1.0 + x)))


def atan(x: Numbers) -> Numbers:
    return atan2(x, jnp.ones_like(x))


def atan2(y: Numbers, x: Numbers) -> Numbers:
    """atan2 with an x that is no constant: XLA replaces atan2(y, 1) by another function."""
    return rounded(lax.atan2(y, jnp.where(jnp.isnan(y), y, x)))


def power(x: Numbers, y: Shaped[Array, "..."]) -> Numbers:
    """x^y with a y that is no constant: XLA turns constant exponents into products or roots."""
    y = y.astype(x.dtype)
    return rounded(x ** jnp.where(jnp.isnan(x) & (y != 0.0), x, y))


def quotient(x: Numbers, divisor: Numbers) -> Numbers:
    """`x / divisor`, always divided: XLA multiplies by the reciprocal where it knows the divisor or
    where that is one number, which depends on the program. A divisor that is x where x is not a
    number leaves the quotient as it is, and is never known."""
    return rounded(x / jnp.where(x == x, divisor, x))


def maximum(x: Numbers, y: Numbers) -> Numbers:
    """The larger number, by selection: XLA's `max` flushes subnormal numbers in some loops only."""
    return jnp.where(jnp.isnan(x) | (x > y), x, y)


def minimum(x: Numbers, y: Numbers) -> Numbers:
    return jnp.where(jnp.isnan(x) | (x < y), x, y)


def clamp(low: Numbers, x: Numbers, high: Numbers) -> Numbers:
    return minimum(maximum(x, low), high)
