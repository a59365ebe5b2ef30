"""Arithmetic of one 3x3 matrix per system, in a written order (docs/design.md, section 2)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from basinax.numerics import xla
from basinax.numerics.rounding import rounded
from basinax.systems.index import SystemIndex

Matrices = Float[Array, "systems 3 3"]

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))
"""The positions of xx, yy, zz, yz, xz and xy in a matrix."""

VOIGT_OF_ENTRIES = (0, 5, 4, 5, 1, 3, 4, 3, 2)
"""The index into `VOIGT` of each entry of a symmetric matrix."""

TERMS = 14
"""Terms of the series of exp: the next one is below 3e-17 of the first for norms up to 1/2."""

HALVINGS = 12
"""The largest number of halvings before the series; exp of a larger matrix is NaN."""


ROOTS, IMPROVEMENTS, ROOT_TERMS = 4, 12, 10
"""The numbers of square roots of a logarithm, of iterations for each, and of terms of a series."""


def multiply(a: Matrices, b: Matrices) -> Matrices:
    """a b, added in index order."""
    return _in_order(rounded(a[:, :, None] * transposed(b)[:, None]))


def transposed(a: Matrices) -> Matrices:
    return jnp.swapaxes(a, 1, 2)


def determinant(a: Matrices) -> Float[Array, "systems"]:
    """a₀ · (a₁ × a₂), added in index order."""
    return _along_first_row(a, cofactors(a))


def _along_first_row(a: Matrices, of: Matrices) -> Float[Array, "systems"]:
    """The determinant, from its cofactors."""
    return _in_order(rounded(a[:, 0] * of[:, 0]))


def inverse(a: Matrices) -> Matrices:
    """The inverse by cofactors; not finite for a determinant of 0."""
    of = cofactors(a)
    # Divide once and multiply: in a loop, XLA may turn divisions by one number into products.
    over = rounded(1 / _along_first_row(a, of))
    return rounded(transposed(of) * over[:, None, None])


def cofactors(a: Matrices) -> Matrices:
    """Matrices whose rows are the vector products of the other two rows, in cyclic order."""
    after, last = jnp.roll(a, -1, 1), jnp.roll(a, 1, 1)
    return rounded(jnp.roll(after, -1, 2) * jnp.roll(last, 1, 2)) - rounded(
        jnp.roll(after, 1, 2) * jnp.roll(last, -1, 2)
    )


def _in_order(x: Float[Array, "*rest n"]) -> Float[Array, "*rest"]:
    """The sum over the last axis, added in index order."""
    return functools.reduce(jnp.add, [x[..., k] for k in range(x.shape[-1])])


def squared_lengths(d: Float[Array, "n 3"]) -> Float[Array, "n"]:
    """The sum of each row's squares, added in index order."""
    return _in_order(rounded(d * d))


def row_norms(a: Matrices) -> Float[Array, "systems 3"]:
    """The root of each row's sum of squares, added in index order."""
    return rounded(jnp.sqrt(_in_order(rounded(a * a))))


def frobenius_norm(a: Matrices) -> Float[Array, "systems"]:
    """The root of the sum of squares, added in index order."""
    return rounded(jnp.sqrt(_in_order(rounded(a * a).reshape(-1, 9))))


def exponential(a: Matrices) -> Matrices:
    """exp(a); NaN where an entry is not finite or larger than about 600."""
    return derived_exponential(a, jnp.zeros_like(a))[0]


def derived_exponential(a: Matrices, direction: Matrices) -> tuple[Matrices, Matrices]:
    """exp(a) and its derivative by a, in a direction (Fréchet's).

    Scaling, series and squaring, as in N. J. Higham, Functions of Matrices (2008), chapter 10. The
    number of squarings depends on each matrix alone.
    """
    largest = 3 * jnp.max(jnp.abs(a), axis=(1, 2))
    bounds = np.ldexp(0.5, np.arange(HALVINGS))
    n_halvings = (largest[:, None] > bounds.astype(a.dtype)[None]).sum(1, dtype=jnp.int32)
    factor = jnp.asarray(np.ldexp(1.0, -np.arange(HALVINGS + 1)), a.dtype)[n_halvings]
    a, direction = a * factor[:, None, None], direction * factor[:, None, None]
    unit = jnp.broadcast_to(jnp.eye(3, dtype=bool)[None], a.shape)

    coefficients = jnp.asarray([1 / math.factorial(TERMS - 1 - k) for k in range(TERMS)], a.dtype)

    def add_term(turn, carry):
        series, change = carry
        change = multiply(direction, series) + multiply(a, change)
        return jnp.where(unit, coefficients[turn], 0.0) + multiply(a, series), change

    def square(carry):
        power, change, n_done = carry
        is_due = (n_done < n_halvings)[:, None, None]
        squared_change = multiply(power, change) + multiply(change, power)
        power = jnp.where(is_due, multiply(power, power), power)
        return power, jnp.where(is_due, squared_change, change), n_done + 1

    start = jnp.where(unit, 1 / math.factorial(TERMS), 0.0).astype(a.dtype)
    # On a GPU each turn starts a kernel that counts it.
    unroll = 1 if xla.has_cheap_branches() else TERMS // 2
    series = jax.lax.fori_loop(0, TERMS, add_term, (start, jnp.zeros_like(a)), unroll=unroll)
    is_small = (largest <= float(2 * bounds[-1]))[:, None, None]
    series = jax.tree.map(lambda x: jnp.where(is_small, x, jnp.nan), series)
    goes_on = lambda carry: carry[2] < jnp.max(n_halvings)  # noqa: E731
    power, change, _ = jax.lax.while_loop(goes_on, square, (*series, jnp.int32(0)))
    return power, change


def logarithm(a: Matrices) -> Matrices:
    """log(a) of matrices whose eigenvalues lie off the negative real axis, with logarithms up to 6.

    Square roots, by the product form of Denman and Beavers's iteration, until the series of artanh
    converges, as in N. J. Higham, Functions of Matrices (2008), sections 6.3 and 11.5.
    """
    unit = jnp.eye(3, dtype=a.dtype)[None]

    def improve(_, carry):
        # X ← X (1 + M⁻¹)/2 and M ← 1/2 + (M + M⁻¹)/4: X tends to √a and M to 1.
        root, product = carry
        over = inverse(product)
        root = multiply(root, unit + over) * 0.5
        return root, unit * 0.5 + (product + over) * 0.25

    def take_root(_, a):
        return jax.lax.fori_loop(0, IMPROVEMENTS, improve, (a, a))[0]

    # With r the repeated square root, log a = 2^(ROOTS + 1) artanh((r − 1)/(r + 1)).
    a = jax.lax.fori_loop(0, ROOTS, take_root, a)
    z = multiply(a - unit, inverse(a + unit))
    square = multiply(z, z)
    coefficients = [1 / (2 * ROOT_TERMS - 1 - 2 * k) for k in range(ROOT_TERMS)]
    coefficients = jnp.asarray(coefficients, a.dtype)

    def add_term(turn, series):
        return multiply(square, series) + jnp.where(unit > 0, coefficients[turn], 0.0)

    series = jax.lax.fori_loop(0, ROOT_TERMS, add_term, jnp.zeros_like(a))
    return multiply(z, series) * 2.0 ** (ROOTS + 1)


def turned(matrices: Float[Array, "rows n n"], x: Float[Array, "rows n"]) -> Float[Array, "rows n"]:
    """The matrix of each row times its vector, added in index order."""
    return _in_order(rounded(matrices * x[:, None]))


def turned_rows(
    rows: Float[Array, "rows 3"], matrices: Matrices, index: SystemIndex
) -> Float[Array, "rows 3"]:
    """Each row times the matrix of its system; 0 in padding."""
    like = jnp.broadcast_to(rows[:, None], (len(rows), 3, 3))
    return turned(index.spread(transposed(matrices), 0.0, like), rows)
