"""Sums, exponentials and angles whose bits no kind of processor and no number of threads decides.

BLAS adds in an order, and fuses products with sums, as suits a processor and its threads; the
exponentials and angles of NumPy and of the C library depend on the width of its registers. Here
products are apart from sums, and only shapes decide the order of sums: it is that of `einsum`,
`bincount` and `add.reduce`, which NumPy compiles once for all processors of an architecture. The
rational functions are those of S. L. Moshier's Cephes library; errors are a few ulp.
"""

import functools
from decimal import Decimal

import numpy as np

_1_LN2, _LN2 = 1.4426950408889634, (0.693145751953125, 1.42860682030941723212e-6)
_EXP = (1.26177193074810590878e-4, 3.02994407707441961300e-2, 9.99999999999999999910e-1)
_EXP_BELOW = (
    3.00198505138664455042e-6,
    2.52448340349684104192e-3,
    2.27265548208155028766e-1,
    2.0,
)
_ATAN = (
    -8.750608600031904122785e-1,
    -1.615753718733365076637e1,
    -7.500855792314704667340e1,
    -1.228866684490136173410e2,
    -6.485021904942025371773e1,
)
_ATAN_BELOW = (
    1.0,
    2.485846490142306297962e1,
    1.650270098316988542046e2,
    4.328810604912902668951e2,
    4.853903996359136964868e2,
    1.945506571482613964425e2,
)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product of two matrices, or of stacks of them."""
    return np.einsum("...ij,...jk->...ik", a, b)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.add.reduce(a * b))


def exp(x: np.ndarray) -> np.ndarray:
    n = np.rint(x * _1_LN2)
    r = (x - n * _LN2[0]) - n * _LN2[1]
    square = r * r
    odd = r * _polynomial(square, _EXP)
    part = odd / (_polynomial(square, _EXP_BELOW) - odd)
    return np.ldexp(1.0 + 2.0 * part, n.astype(np.int32))


def angle(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The angle of the point (x, y), between -π and π; 0 for the origin."""
    across, up = np.abs(x), np.abs(y)
    is_steep = up > across
    t = np.minimum(across, up) / np.maximum(np.maximum(across, up), 1e-300)
    is_far = t > 0.66
    t = np.where(is_far, (t - 1.0) / (t + 1.0), t)
    square = t * t
    value = t * square * (_polynomial(square, _ATAN) / _polynomial(square, _ATAN_BELOW)) + t
    value = np.where(is_far, value + np.pi / 4, value)
    value = np.where(is_steep, np.pi / 2 - value, value)
    return np.copysign(np.where(x < 0, np.pi - value, value), y)


def powers(bases: np.ndarray, exponent: str) -> np.ndarray:
    """Powers of few distinct bases, such as sums of radii of elements."""
    distinct, which = np.unique(bases, return_inverse=True)
    made = [_power(float(base), exponent) for base in distinct]
    return np.array(made, float)[which.reshape(bases.shape)]


@functools.lru_cache(10000)
def _power(base: float, exponent: str) -> float:
    return float(Decimal(base) ** Decimal(exponent))


def _polynomial(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    """The highest power first."""
    first, second, *others = coefficients
    value = first * x + second
    for coefficient in others:
        value *= x
        value += coefficient
    return value
