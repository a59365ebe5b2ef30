"""|M| v for symmetric matrices M with few negative eigenvalues, and whether they have any.

|M| has the absolute eigenvalues of M. Negative ones are found, some of the lowest at a time, and
reflected: M - 2 λ x xᵀ has -λ in the place of λ. For this a matrix is made tridiagonal
(Householder), eigenvalues are counted out (Sturm), and their vectors read off twisted
factorizations: Dhillon and Parlett, Linear Algebra Appl. 387, 1 (2004),
doi:10.1016/j.laa.2003.12.028.

A system's entries are the first of their axis. Sums begin with them, in blocks of eight, and zeros
that follow change no bit. A quotient by one number a system would be jitted as a product with its
inverse where there is one system; divisors here are inverted, or arrays of their own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from basinax._bits.rounding import add_blocks, rounded

Matrix = Float[Array, "systems entries entries"]
Vector = Float[Array, "systems entries"]
PerSystem = Float[Array, "systems"]

AT_ONCE = 2**14
"""Entries of matrices that are worked on together: what stays in a core's cache."""
MOST = 8
"""So many eigenvalues of a matrix are found at a time."""
SECTIONS = 16
"""Into so many an interval with an eigenvalue is cut at a time."""
APART = 2**-7
"""Eigenvalues that differ by this part of the lower one have vectors that are orthogonal, up to
the rounding of the larger divided by it; closer ones are found in different turns."""


def reflection(
    matrices: Matrix,
    vectors: Vector,
    is_entry: Bool[Array, "systems entries"],
    mask: Bool[Array, "systems"],
) -> tuple[Vector, Bool[Array, "systems"]]:
    """(|M| - M) v, and whether M is positive definite, of the systems of `mask`; 0 for others.

    What it takes grows with the number of systems of `mask`, not with that of all. Eigenvalues
    that rounding cannot tell from 0 are left as they are, and are not positive.
    """
    n_systems, n_entries = vectors.shape
    width = max(1, min(n_systems, AT_ONCE // max(1, n_entries) ** 2))
    first = jnp.argsort(~mask, stable=True).astype(jnp.int32)
    first = jnp.pad(first, (0, -n_systems % width), constant_values=n_systems)

    def work(turn, results):
        at = jax.lax.dynamic_slice_in_dim(first, turn * width, width)
        here = jnp.minimum(at, n_systems - 1)
        group = matrices[here], vectors[here], is_entry[here], mask[here] & (at < n_systems)
        return [
            result.at[at].set(part, mode="drop")
            for result, part in zip(results, _reflection(*group), strict=True)
        ]

    turns = -(-mask.sum(dtype=jnp.int32) // width)
    results = [jnp.zeros_like(vectors), jnp.zeros_like(mask)]
    addition, is_definite = jax.lax.fori_loop(0, turns, work, results)
    return addition, is_definite


def _reflection(matrix, vector, is_entry, mask):
    """The same for a group of systems."""

    def reflect(carry):
        matrix, addition, is_moving, is_definite, turn = carry
        band, reflectors = _tridiagonal(matrix, is_entry)
        n_negative, is_positive = _signs(band)
        values = _lowest(band)
        rank = jnp.arange(values.shape[1], dtype=jnp.int32)[None, :]
        is_taken = is_moving[:, None] & (rank < n_negative[:, None]) & _are_apart(values)
        x = _turned_back(_eigenvectors(band, values, is_entry), reflectors)
        x = jnp.where(is_taken[:, None, :], x, 0)
        along = _sum(rounded(vector[:, :, None] * x))
        weight = rounded(-2 * values * along)

        def add(k, sums):
            matrix, addition = sums
            u, more = x[:, :, k], -2 * values[:, k]
            outer = rounded(u[:, :, None] * u[:, None, :])
            addition = addition + rounded(weight[:, k][:, None] * u)
            return matrix + rounded(more[:, None, None] * outer), addition

        matrix, addition = jax.lax.fori_loop(0, values.shape[1], add, (matrix, addition))
        is_definite = is_definite | (is_moving & is_positive & (turn == 0))
        is_moving = is_moving & (n_negative > is_taken.sum(axis=1, dtype=jnp.int32))
        return matrix, addition, is_moving, is_definite, turn + 1

    def goes_on(carry):
        return jnp.any(carry[2]) & (carry[4] < matrix.shape[1])

    start = (matrix, jnp.zeros_like(vector), mask, jnp.zeros_like(mask), jnp.int32(0))
    _, addition, _, is_definite, _ = jax.lax.while_loop(goes_on, reflect, start)
    return jnp.where(mask[:, None], addition, 0), is_definite


def _dot(a: Vector, b: Vector) -> PerSystem:
    return _sum(rounded(a * b))


def _sum(x):
    total = add_blocks(x)
    return jnp.where(total == 0, 0, total)


class _Band(NamedTuple):
    """A symmetric tridiagonal matrix of each system, entries first."""

    diagonal: Float[Array, "entries systems"]
    beside: Float[Array, "entries systems"]
    """From each entry to the next; 0 for the last."""
    bound: PerSystem
    """No eigenvalue is larger in magnitude."""


class _Reflectors(NamedTuple):
    """1 - v vᵀ/t for each entry."""

    v: Float[Array, "entries systems entries"]
    t: Float[Array, "entries systems"]


def _tridiagonal(matrix: Matrix, is_entry) -> tuple[_Band, _Reflectors]:
    """Golub and Van Loan, Matrix Computations, section 8.3; the first entry stays as it is."""
    systems, entries = is_entry.shape
    here = jnp.arange(entries)[None, :]

    def step(k, carry):
        matrix, beside, v_of, t_of = carry
        x = jnp.where(here > k, _at(matrix, k), 0)
        next_one = _at(x, jnp.minimum(k + 1, entries - 1))
        length = rounded(jnp.sqrt(_dot(x, x)))
        target = jnp.where(next_one < 0, length, -length)
        is_turned = length > 0
        top = jnp.where(is_turned, next_one - target, 1)
        x = jnp.where(here == k + 1, (next_one - target)[:, None], x)
        # Quotients: XLA stores them, where it would compute products again for each entry of the
        # matrix.
        v = rounded(x / jnp.where(here > k, top[:, None], jnp.inf))
        t = rounded(jnp.where(is_turned, -target, 1) / top)
        p = _sum(rounded(matrix * v[:, :, None]))
        half = rounded(rounded(0.5 * _dot(v, p)) / t)
        w = rounded((p - rounded(half[:, None] * v)) / jnp.where(here > k, t[:, None], jnp.inf))
        outer = rounded(v[:, :, None] * w[:, None, :]) + rounded(w[:, :, None] * v[:, None, :])
        return matrix - outer, _put(beside, target, k), _put(v_of, v, k), _put(t_of, t, k)

    beside = jnp.zeros((entries, systems), matrix.dtype)
    start = (matrix, beside, jnp.zeros((entries, systems, entries), matrix.dtype), beside)
    matrix, beside, v_of, t_of = jax.lax.fori_loop(0, entries, step, start)
    diagonal = jnp.diagonal(matrix, axis1=1, axis2=2).T
    before = jnp.abs(_before(beside))
    radius = jnp.abs(diagonal) + jnp.abs(beside) + before
    bound = jnp.max(jnp.where(is_entry.T, radius, 0), axis=0, initial=0)
    diagonal = jnp.where(is_entry.T, diagonal, bound)
    return _Band(diagonal, beside, bound), _Reflectors(v_of, t_of)


def _at(x, k):
    return jax.lax.dynamic_index_in_dim(x, k, 1, keepdims=False)


def _put(x, part, k):
    return jax.lax.dynamic_update_index_in_dim(x, part, k, 0)


def _before(beside):
    """From the entry before to each entry; 0 for the first."""
    return jnp.concatenate([jnp.zeros_like(beside[:1]), beside[:-1]])


def _pivots(band: _Band, points: Float[Array, "systems points"], function, start, reverse=False):
    """A scan over pivots of the band minus each point: 'function(result, pivot)' for each entry.

    A pivot is d - point - b²/(the pivot before it). One that nearly vanishes is moved a little,
    which is as good as another rounding of d.
    """
    beside = band.beside if reverse else _before(band.beside)
    squares = rounded(beside * beside)
    tiny = rounded(jnp.finfo(points.dtype).eps ** 2 * band.bound)[:, None]

    def step(carry, entry):
        pivot, result = carry
        diagonal, square = entry
        pivot = (diagonal[:, None] - points) - square[:, None] / pivot
        pivot = jnp.where(jnp.abs(pivot) < tiny, -tiny, pivot)
        return (pivot, function(result, pivot)), pivot

    begin = (jnp.ones_like(points), start)
    entries = (band.diagonal, squares)
    return jax.lax.scan(step, begin, entries, reverse=reverse)


def _counts(band: _Band, points: Float[Array, "systems points"]) -> Int[Array, "systems points"]:
    """How many eigenvalues are below each point (Sturm)."""
    add = lambda count, pivot: count + (pivot < 0).astype(jnp.int32)  # noqa: E731
    return _pivots(band, points, add, jnp.zeros(points.shape, jnp.int32))[0][1]


def _signs(band: _Band) -> tuple[Int[Array, "systems"], Bool[Array, "systems"]]:
    """How many eigenvalues are negative, and whether all are positive, beyond rounding."""
    doubt = _doubt(band)
    counts = _counts(band, jnp.stack([-doubt, doubt], axis=1))
    return counts[:, 0], (counts[:, 1] == 0) & (band.bound < jnp.inf)


def _doubt(band: _Band) -> PerSystem:
    """What rounding makes of an eigenvalue of 0."""
    return rounded(16 * jnp.finfo(band.bound.dtype).eps * band.bound)


def _lowest(band: _Band) -> Float[Array, "systems values"]:
    """The lowest eigenvalues in their order, each to the last digits of the bound.

    Where fewer are negative, those after them are meaningless.
    """
    dtype, n_entries = band.bound.dtype, len(band.diagonal)
    rank = jnp.arange(min(MOST, n_entries), dtype=jnp.int32)[None, :, None]
    fractions = jnp.arange(1, SECTIONS, dtype=dtype)[None, None, :] / SECTIONS

    def narrow(_, ends):
        low, high = ends[:, :, :1], ends[:, :, 1:]
        points = low + rounded((high - low) * fractions)
        counts = _counts(band, points.reshape(len(points), -1)).reshape(points.shape)
        n_below = (counts <= rank).sum(axis=2, keepdims=True, dtype=jnp.int32)
        points = jnp.concatenate([low, points, high], axis=2)
        at = jnp.concatenate([n_below, n_below + 1], axis=2)
        return jnp.take_along_axis(points, at, axis=2)

    doubt = _doubt(band)
    ends = jnp.stack([-band.bound - doubt, -doubt], axis=1)[:, None, :]
    ends = jnp.broadcast_to(ends, (len(ends), rank.shape[1], 2))
    digits = jnp.finfo(dtype).nmant + 2
    rounds = -(-digits // (SECTIONS.bit_length() - 1))
    return jax.lax.fori_loop(0, rounds, narrow, ends)[:, :, 1]


def _are_apart(values: Float[Array, "systems values"]) -> Bool[Array, "systems values"]:
    """Whether each differs enough from the one before it."""
    gap = values[:, 1:] - values[:, :-1]
    is_apart = gap > rounded(APART * jnp.abs(values[:, :-1]))
    return jnp.concatenate([jnp.ones_like(is_apart[:, :1]), is_apart], axis=1)


def _eigenvectors(band: _Band, values, is_entry) -> Float[Array, "systems entries values"]:
    """The vectors of eigenvalues, of length 1.

    Each is 1 where pivots from the first and from the last entry meet closest to 0, and follows
    from there along the pivots of either side.
    """
    nothing = jnp.zeros_like(values)
    keep = lambda result, pivot: result  # noqa: E731
    down = _pivots(band, values, keep, nothing)[1]
    up = _pivots(band, values, keep, nothing, reverse=True)[1]
    gap = jnp.abs((down + up) - (band.diagonal[:, :, None] - values[None]))
    peak = jnp.argmin(jnp.where(is_entry.T[:, :, None], gap, jnp.inf), axis=0)[None]
    here = jnp.arange(len(down))[:, None, None]

    def follow(x, entry):
        is_peak, ratio = entry
        x = jnp.where(is_peak, 1, ratio * x)
        return x, x

    def along(ratios, reverse):
        entries = (here == peak, ratios)
        return jax.lax.scan(follow, nothing, entries, reverse=reverse)[1]

    above = along(rounded(-band.beside[:, :, None] / down), True)
    below = along(rounded(-_before(band.beside)[:, :, None] / up), False)
    x = jnp.where(here <= peak, above, below).swapaxes(0, 1)
    inverse = rounded(1 / rounded(jnp.sqrt(_sum(rounded(x * x)))))
    return rounded(x * inverse[:, None, :])


def _turned_back(x: Float[Array, "systems entries values"], reflectors: _Reflectors):
    """From the tridiagonal matrix to the one that it was made from."""

    def turn(x, reflector):
        v, inverse = reflector[0][:, :, None], reflector[1][:, None]
        part = rounded(_sum(rounded(v * x)) * inverse)
        return x - rounded(part[:, None, :] * v), None

    entries = (reflectors.v, rounded(1 / reflectors.t))
    return jax.lax.scan(turn, x, entries, reverse=True)[0]
