"""The complementary error function with rounded products, for damped Coulomb sums.

XLA expands `jax.lax.erfc` into products that meet sums, which a compiler may contract or not. Here
exp(x²) erfc(x) is one polynomial for all x ≥ 0, without branches or tables. The bilinear map of x
to the polynomial's variable follows J. L. Schonfelder, Math. Comp. 32, 1232 (1978),
doi:10.1090/S0025-5718-1978-0494846-8.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from basinax.numerics.exponents import polynomial
from basinax.numerics.rounding import rounded

WIDTH = 3.5
"""c in s = c/(c + x)."""

COEFFICIENTS = (
    0.3105873112177886,
    -0.2679427784477463,
    0.19831818475275556,
    -0.12435886477625344,
    0.06449674904211684,
    -0.026376773325291324,
    0.007576748537623533,
    -0.000907728669274565,
    -0.0003729584833680755,
    0.00020415191037816374,
    -1.201776164181115e-05,
    -2.1364886192252763e-05,
    5.327769943669202e-06,
    2.0697746467569554e-06,
    -9.691525336615798e-07,
    -2.2756079270927743e-07,
    1.572943098319849e-07,
    3.319978620660067e-08,
    -2.3858192179686515e-08,
    -6.219988712702959e-09,
    2.5819228460638972e-09,
    9.414533301911983e-10,
)
"""Coefficients of exp(x²) erfc(x)/s in powers of 1 − 2s, from 0. The polynomial is exact at 22
Chebyshev points of 0 ≤ x ≤ 27.3 (solved in 50 digits), beyond which erfc(x) is 0 in double
precision. Its relative error between them is at most 2e-17."""


def erfcx(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """exp(x²) erfc(x) for x ≥ 0; round it before it meets a sum."""
    s = rounded(WIDTH / (WIDTH + x))
    t = 1.0 - 2.0 * s
    # Even and odd powers are summed apart, which halves the chain of dependent additions.
    t2 = rounded(t * t)
    even, odd = polynomial(t2, COEFFICIENTS[0::2]), polynomial(t2, COEFFICIENTS[1::2])
    return s * (even + rounded(t * odd))


def erfc(x: Float[Array, "rows"]) -> tuple[Float[Array, "rows"], Float[Array, "rows"]]:
    """erfc(x) and exp(−x²) for x ≥ 0; round the first before it meets a sum."""
    gaussian = jnp.exp(-rounded(x * x))
    return gaussian * erfcx(x), gaussian
