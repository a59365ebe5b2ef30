"""sign(M) v for symmetric matrices M, and whether each M is positive definite.

M sign(M) has the absolute eigenvalues of M. The sign is an integral over resolvents,
sign(M) = 2/π ∫ M/(M² + t²) dt, which the trapezoidal rule in log t turns into some hundred shifts:
Hale, Higham and Trefethen, SIAM J. Numer. Anal. 46, 2505 (2008), doi:10.1137/070700607. Householder
reflections make M tridiagonal; a shift then takes two passes over the entries.

A system's entries come first on their axis. Sums run over blocks of eight from the first entry, so
zeros that follow change no bit. A loop takes one matrix after another, so systems share no
operation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from basinax.numerics import xla
from basinax.numerics.exponents import scale_exactly, split
from basinax.numerics.rounding import BLOCK, rounded, tree_sum
from basinax.systems.index import where_any

Matrix = Float[Array, "entries entries"]
Vector = Float[Array, "entries"]


@xla.jitted
def sign_product(
    matrices: Float[Array, "systems entries entries"],
    vectors: Float[Array, "systems entries"],
    is_entry: Bool[Array, "systems entries"],
    mask: Bool[Array, "systems"],
) -> tuple[Float[Array, "systems entries"], Bool[Array, "systems"]]:
    """sign(M) v, and whether M is positive definite, for the systems of `mask`; 0 for others.

    The time grows with the number of systems of `mask`. An eigenvalue that is 0 within rounding has
    a sign between -1 and 1 and does not count as positive.
    """

    def work(carry):
        left, signed, is_definite = carry
        at = jnp.argmax(left)
        system = (_at(x, at) for x in (matrices, vectors, is_entry))
        vector, answer = _signed(*system)
        return _put(left, False, at), _put(signed, vector, at), _put(is_definite, answer, at)

    def loop():
        return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), work, (mask, *nothing))[1:]

    nothing = jnp.zeros_like(vectors), jnp.zeros_like(mask)
    # XLA would compute what no turn changes before the loop, and so all of it for one system.
    return where_any(mask, loop, lambda: nothing)


def _at(x, k):
    return jax.lax.dynamic_index_in_dim(x, k, keepdims=False)


def _put(x, part, k):
    return jax.lax.dynamic_update_index_in_dim(x, part, k, 0)


def _signed(matrix: Matrix, vector: Vector, is_entry) -> tuple[Vector, Bool[Array, ""]]:
    # The sign does not depend on units; these units bring the largest entry between 1 and 2.
    units = split(jnp.max(jnp.abs(matrix)))[1]
    band, inner = _tridiagonal(scale_exactly(matrix, -units), vector, is_entry)
    terms, is_definite = _resolvents(band, inner)
    return _turned_back(_sum(terms.T), band), is_definite


def _sum(x: Float[Array, "terms *rest"]) -> Float[Array, "*rest"]:
    """Add by halves within blocks of eight, then one block after another."""
    first, *others = tree_sum(x.reshape(-1, BLOCK, *x.shape[1:]))
    return sum(others, jnp.where(first == 0, 0, first))


def _dot(a: Vector, b: Vector) -> Float[Array, ""]:
    return _sum(rounded(a * b))


class _Band(NamedTuple):
    """The symmetric tridiagonal matrix Qᵀ M Q."""

    diagonal: Vector
    beside: Vector
    """The off-diagonal entries, from each entry to the next; 0 for the last."""
    reflectors: Matrix
    """Q is the product of reflections 1 - v vᵀ, one v per entry."""


def _tridiagonal(matrix: Matrix, vector: Vector, is_entry) -> tuple[_Band, Vector]:
    """The band, and Qᵀ v. Golub and Van Loan, Matrix Computations, section 8.3.

    Axes of the carry: `matrix` [n, n + 1], with the vector as last column; `beside` [n];
    `reflectors` [n, n], one v per row. Step k zeroes column k below row k + 1.
    """
    n = len(vector)
    here = np.arange(n + 1)

    def step(k, carry):
        matrix, beside, reflectors = carry
        x = jnp.where(here[:n] > k, _at(matrix, k)[:n], 0)
        next_one = _at(x, jnp.minimum(k + 1, n - 1))
        length = rounded(jnp.sqrt(_dot(x, x)))
        target = jnp.where(next_one < 0, length, -length)
        scale = rounded(jnp.sqrt(rounded(length * (length + jnp.abs(next_one)))))
        x = jnp.where(here[:n] == k + 1, next_one - target, x)
        # XLA stores a quotient, but would recompute a product for each entry of the matrix.
        v = rounded(x / jnp.where((here[:n] > k) & (scale > 0), scale, jnp.inf))
        p = _sum(rounded(matrix * v[:, None]))
        half = rounded(0.5 * _dot(v, p[:n]))
        longer = jnp.append(v, 0)
        w = p - rounded(half * longer)
        w = rounded(w / jnp.where(here > k, 1, jnp.inf))
        outer = rounded(v[:, None] * w[None, :]) + rounded(w[:n, None] * longer[None, :])
        return matrix - outer, _put(beside, target, k), _put(reflectors, v, k)

    # The vector is one more column, so each reflection turns the vector as well.
    start = jnp.append(matrix, vector[:, None], axis=1), jnp.zeros_like(vector), matrix
    matrix, beside, reflectors = jax.lax.fori_loop(0, n, step, start)
    diagonal = jnp.where(is_entry, jnp.diagonal(matrix), 1)
    return _Band(diagonal, beside, reflectors), matrix[:, n]


def _turned_back(x: Vector, band: _Band) -> Vector:
    """Q x."""
    reflect = lambda x, v: (x - rounded(_dot(v, x) * v), None)  # noqa: E731
    return jax.lax.scan(reflect, x, band.reflectors, reverse=True)[0]


def _quadrature(dtype) -> tuple[np.ndarray, np.ndarray]:
    """Shifts t and weights w with sign(x) = Σ w x/(x² + t²), up to a few roundings of 1.

    With t = exp(u) the integrand is sech(u - log |x|)/2: steps of π²/log(1/ε) integrate it with a
    relative error ε. Shifts below ε and above 1000/ε do not matter for 1 < |x| < 1000.
    """
    digits = 1 - np.log(np.finfo(dtype).eps)
    step = np.pi**2 / digits
    n_steps = int(np.ceil((2 * digits + np.log(1000)) / step))
    shifts = np.exp(step * np.arange(n_steps + -n_steps % BLOCK) - digits)
    return shifts.astype(dtype), (2 / np.pi * step * shifts).astype(dtype)


def _resolvents(band: _Band, vector: Vector):
    """The terms of sign(T) v for each shift, and whether T is positive definite.

    Each shift t solves (T − i t) y = v by elimination, vectorised over shifts: `shifts` is
    [shifts], and each scan runs over entries. One more, real shift of the size of a rounding tests
    definiteness: all its pivots are positive if T is positive definite.
    """
    shifts, weights = _quadrature(vector.dtype)
    eps = float(jnp.finfo(vector.dtype).eps)
    doubts = jnp.zeros_like(vector, shape=len(shifts) + 1).at[-1].set(64 * eps)
    shifts = jnp.append(shifts, jnp.zeros_like(vector[:1]))

    def eliminate(carry, entry):
        inverse, left = carry
        diagonal, before, own = entry
        factor = [rounded(before * x) for x in inverse]
        real, imaginary = _times(factor, left)
        p = (diagonal - doubts) - rounded(before * factor[0])
        q = shifts + rounded(before * factor[1])
        squares = rounded(p * p) + rounded(q * q)
        carry = (rounded(p / squares), rounded(q / squares)), (own - real, -imaginary)
        return carry, carry

    def substitute(later, entry):
        beside, inverse, left = entry
        y = _times([x - rounded(beside * y) for x, y in zip(left, later, strict=True)], inverse)
        return y, y[0]

    nothing = jnp.zeros_like(shifts), jnp.zeros_like(shifts)
    before = jnp.append(jnp.zeros_like(vector[:1]), band.beside[:-1])
    entries = band.diagonal, before, vector
    _, pivots = jax.lax.scan(eliminate, (nothing, nothing), entries)
    solution = jax.lax.scan(substitute, nothing, (band.beside, *pivots), reverse=True)[1]
    return rounded(solution[:, :-1] * weights[None, :]), jnp.all(pivots[0][0][:, -1] > 0)


def _times(a, b):
    """The product of two complex numbers, as pairs of real and imaginary parts."""
    (ar, ai), (br, bi) = a, b
    return rounded(ar * br) - rounded(ai * bi), rounded(ar * bi) + rounded(ai * br)
