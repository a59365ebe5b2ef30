"""A dense inverse Hessian of each system, whose bits do not depend on the largest of them.

A system's entries fill its first places of a vector, leaf by leaf; places without an entry hold 0.
Sums over places are taken in blocks of eight counted from the first of each leaf, so longer vectors
change no bit. Eigenvalues come from Jacobi rotations in an order that a system's own size decides.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int32

from basinax._optimizer import AbstractState, Prefix, Tree, systems_field
from basinax._rounding import BLOCK, add_halves, rounded
from basinax._systems import SystemIndex, resolve

Vector = Float[Array, "systems places"]
Matrix = Float[Array, "systems places places"]
PerSystem = Float[Array, "systems"]

SWEEPS = 15
"""At most so many sweeps of rotations; six to nine are needed for some hundreds of places."""


class InverseHessian(AbstractState):
    """The inverse Hessian H of each system, and where its entries are."""

    index_prefix: Prefix
    matrix: Matrix = systems_field()
    is_definite: Bool[Array, "systems"] = systems_field()
    """Known to be positive definite."""
    rows: tuple[Int32[Array, "systems places"], ...] = systems_field()
    """For each leaf, the rows of each system; the number of rows where there is none."""


def unit_matrix(
    parameters: Tree, index_prefix: Prefix, scale: PerSystem, max_rows: int | None
) -> InverseHessian:
    """`scale` times 1.

    Raises:
        ValueError: `max_rows` is not given while tracing, or a system has more rows.
    """
    indices = resolve(index_prefix, parameters)
    rows = tuple(_rows(index, _width(index, max_rows)) for index in indices)
    return _unit(parameters, rows, scale)


def renewed(hessian: InverseHessian, like: Tree, scale: PerSystem) -> InverseHessian:
    """`scale` times 1 again; may be traced."""
    return _unit(like, hessian.rows, scale)


def _unit(parameters, rows, scale) -> InverseHessian:
    is_place = jnp.concatenate(_is_place(parameters, rows), axis=1)
    unit = jnp.eye(is_place.shape[1], dtype=bool)[None] & is_place[:, :, None]
    matrix = jnp.where(unit, scale[:, None, None], 0)
    return InverseHessian(None, matrix, jnp.ones(scale.shape, bool), rows)


def _width(index, max_rows: int | None) -> int:
    if isinstance(index.sizes, Tracer):
        if max_rows is None and isinstance(index, SystemIndex):
            raise ValueError(
                "the size of a dense Hessian must be known before tracing: call init outside of"
                " jit, or say max_rows, the most rows of a system in any leaf"
            )
        return index.n_rows if max_rows is None else max_rows
    largest = int(np.max(np.asarray(index.sizes), initial=0))
    if max_rows is not None and largest > max_rows:
        raise ValueError(f"max_rows={max_rows}, but a system has {largest} rows in one leaf")
    return largest if max_rows is None else max_rows


def _rows(index, width: int) -> Int32[Array, "systems width"]:
    """The rows of each system, in their order; the number of rows where there are no more."""
    ids = index.ids if isinstance(index, SystemIndex) else jnp.zeros((index.n_rows,), jnp.int32)
    order = jnp.argsort(ids, stable=True).astype(jnp.int32)
    slot = jnp.arange(width, dtype=jnp.int32)[None, :]
    starts = jnp.cumsum(index.sizes) - index.sizes
    at = starts.astype(jnp.int32)[:, None] + slot
    rows = order.at[at].get(mode="fill", fill_value=index.n_rows)
    return jnp.where(slot < index.sizes[:, None], rows, index.n_rows)


def _padded(x, absent):
    """[systems, rows, components...] as [systems, places], a multiple of eight of them."""
    x = x.reshape(x.shape[0], -1)
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK)), constant_values=absent)


def _is_place(tree, rows) -> list[Bool[Array, "systems places"]]:
    """Which places hold an entry, for each leaf."""
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(tree)]
    return [
        _padded(
            jnp.broadcast_to(
                (at < leaf.shape[0]).reshape(at.shape + (1,) * (leaf.ndim - 1)),
                at.shape + leaf.shape[1:],
            ),
            False,
        )
        for leaf, at in zip(leaves, rows, strict=True)
    ]


class Places:
    """Between trees of rows and vectors of places, for the systems of an `InverseHessian`."""

    def __init__(self, hessian: InverseHessian, like: Tree):
        self.rows, self.like = hessian.rows, like
        self.dtype = hessian.matrix.dtype
        per_leaf = _is_place(like, hessian.rows)
        self.is_place = jnp.concatenate(per_leaf, axis=1)
        self._ends = np.cumsum([x.shape[1] for x in per_leaf]).tolist()

    def gather(self, tree: Tree) -> Vector:
        """The entries of each system, 0 in places without one."""
        leaves = [jnp.atleast_1d(leaf).astype(self.dtype) for leaf in jax.tree.leaves(tree)]
        parts = [
            _padded(leaf.at[at].get(mode="fill", fill_value=0), 0)
            for leaf, at in zip(leaves, self.rows, strict=True)
        ]
        return jnp.concatenate(parts, axis=1)

    def scatter(self, vector: Vector) -> Tree:
        """The tree with these entries, 0 in rows of no system."""
        leaves, structure = jax.tree.flatten(self.like)
        results = []
        for leaf, at, start, end in zip(
            leaves, self.rows, [0, *self._ends], self._ends, strict=False
        ):
            rows = jnp.atleast_1d(leaf)
            count = at.shape[1] * int(np.prod(rows.shape[1:]))
            values = vector[:, start:end][:, :count].reshape(*at.shape, *rows.shape[1:])
            blank = jnp.zeros_like(rows)
            placed = blank.at[at].set(values.astype(rows.dtype), mode="drop")
            results.append(placed.reshape(jnp.shape(leaf)))
        return structure.unflatten(results)

    def sum(self, products: Float[Array, "systems places *rest"]) -> Float[Array, "systems *rest"]:
        """The sum over places, in an order that does not depend on how many hold no entry."""
        is_place = self.is_place.reshape(self.is_place.shape + (1,) * (products.ndim - 2))
        products = jnp.where(is_place, products, -0.0)
        parts = [
            _add_blocks(products[:, start:end])
            for start, end in zip([0, *self._ends], self._ends, strict=False)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return jnp.where(total == 0, 0, total)

    def dot(self, a: Vector, b: Vector) -> PerSystem:
        return self.sum(rounded(a * b))

    def apply(self, matrix: Matrix, vector: Vector) -> Vector:
        """A symmetric matrix times a vector."""
        return self.sum(rounded(matrix * vector[:, :, None]))


def _add_blocks(x):
    """The sum over the second axis, by blocks of eight, blocks of eight blocks, and so on."""
    if x.shape[1] == 0:
        return jnp.full(x.shape[:1] + x.shape[2:], -0.0, x.dtype)
    while x.shape[1] > 1:
        widths = [(0, 0), (0, -x.shape[1] % BLOCK)] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, widths, constant_values=-0.0)
        systems, places, rest = x.shape[0], x.shape[1], x.shape[2:]
        blocks = add_halves(x.reshape(systems * places // BLOCK, BLOCK, *rest))
        x = blocks.reshape(systems, places // BLOCK, *rest)
    return x[:, 0]


def fitted(
    hessian: InverseHessian, places: Places, s: Vector, y: Vector, mask: Bool[Array, "systems"]
) -> InverseHessian:
    """The BFGS update of the systems of `mask`: H ← (1 - s yᵀ/a) H (1 - y sᵀ/a) + s sᵀ/a, a = s·y.

    For a < 0 it is the inverse of the update that BFGS makes to the Hessian there.
    """
    a = places.dot(s, y)
    hy = places.apply(hessian.matrix, y)
    inverse = rounded(1 / a)
    size = inverse + rounded(rounded(inverse * places.dot(y, hy)) * inverse)
    outer = lambda u, v: rounded(u[:, :, None] * v[:, None, :])  # noqa: E731
    cross = outer(hy, s) + outer(s, hy)
    matrix = hessian.matrix + rounded(size[:, None, None] * outer(s, s))
    matrix = matrix - rounded(inverse[:, None, None] * cross)
    return InverseHessian(
        None,
        matrix=jnp.where(mask[:, None, None], matrix, hessian.matrix),
        is_definite=hessian.is_definite & (~mask | (a > 0)),
        rows=hessian.rows,
    )


def newton_step(
    hessian: InverseHessian, places: Places, gradient: Vector, mask: Bool[Array, "systems"]
) -> Vector:
    """-|H| g, where |H| has the absolute eigenvalues of H; where H is definite, -H g.

    Eigenvalues are computed if any system of `mask` needs them; they change nothing for others.
    """
    plain = places.apply(hessian.matrix, gradient)
    is_doubtful = mask & ~hessian.is_definite
    careful = jax.lax.cond(
        jnp.any(is_doubtful),
        lambda: _absolute(hessian.matrix, places, gradient, is_doubtful),
        lambda: plain,
    )
    return -jnp.where(is_doubtful[:, None], careful, plain)


def _absolute(matrix: Matrix, places: Places, vector: Vector, mask) -> Vector:
    """V |λ| Vᵀ g of the systems of `mask`."""
    values, vectors = _eigen(matrix, places, mask)
    inner = places.sum(rounded(vectors * vector[:, :, None]))
    weighted = rounded(jnp.abs(values) * inner)
    return places.sum(rounded(vectors.swapaxes(1, 2) * weighted[:, :, None]))


def _eigen(matrix: Matrix, places: Places, mask) -> tuple[Vector, Matrix]:
    """Eigenvalues, and eigenvectors as columns, by cyclic Jacobi rotations.

    Golub and Van Loan, Matrix Computations, section 8.5. In round r of a sweep, the k-th entry of a
    system of n is rotated with entry (r - k) modulo n. A system rests when it has converged.
    """
    n_places = matrix.shape[1]
    count = places.is_place.sum(axis=1, dtype=jnp.int32)
    rank = jnp.cumsum(places.is_place, axis=1, dtype=jnp.int32) - 1
    place = jnp.argsort(~places.is_place, axis=1, stable=True).astype(jnp.int32)
    here = jnp.arange(n_places, dtype=jnp.int32)[None, :]
    limit = rounded(jnp.finfo(matrix.dtype).eps * rounded(jnp.sqrt(_square(matrix, places))))

    def turn(r, carry):
        rotated, vectors, is_moving = carry
        partner = jnp.take_along_axis(place, (r - rank) % jnp.maximum(count, 1)[:, None], axis=1)
        is_paired = places.is_place & is_moving[:, None] & (r < count)[:, None]
        partner = jnp.where(is_paired, partner, here)
        low, high = jnp.minimum(here, partner), jnp.maximum(here, partner)
        c, s = _rotation(rotated, low, high)
        u = jnp.where(here < partner, -s, s)
        for_rows = partner[:, :, None]
        for_columns = partner[:, None, :]
        along = jnp.take_along_axis(rotated, for_rows, axis=1)
        rotated = rounded(c[:, :, None] * rotated) + rounded(u[:, :, None] * along)
        return (
            _columns(rotated, c, u, for_columns),
            _columns(vectors, c, u, for_columns),
            is_moving,
        )

    def sweep(carry):
        rotated, vectors, is_moving, done = carry
        rotated, vectors, _ = jax.lax.fori_loop(0, n_places, turn, (rotated, vectors, is_moving))
        off = jnp.where(jnp.eye(n_places, dtype=bool)[None], 0, rotated)
        is_moving = is_moving & (rounded(jnp.sqrt(_square(off, places))) > limit)
        return rotated, vectors, is_moving, done + 1

    def goes_on(carry):
        return jnp.any(carry[2]) & (carry[3] < SWEEPS)

    unit = jnp.broadcast_to(jnp.eye(n_places, dtype=matrix.dtype)[None], matrix.shape)
    start = (matrix, unit, mask, jnp.int32(0))
    rotated, vectors, _, _ = jax.lax.while_loop(goes_on, sweep, start)
    return jnp.diagonal(rotated, axis1=1, axis2=2), vectors


def _square(matrix: Matrix, places: Places) -> PerSystem:
    """The sum of squares of all entries."""
    return places.sum(places.sum(rounded(matrix * matrix)))


def _columns(x, c, u, partner):
    along = jnp.take_along_axis(x, partner, axis=2)
    return rounded(c[:, None, :] * x) + rounded(u[:, None, :] * along)


def _rotation(matrix: Matrix, low, high) -> tuple[Vector, Vector]:
    """Cosine and sine of the rotation that makes the entry [low, high] zero; 1 and 0 for none."""
    diagonal = jnp.diagonal(matrix, axis1=1, axis2=2)
    rows = jnp.take_along_axis(matrix, low[:, :, None], axis=1)
    off = jnp.take_along_axis(rows, high[:, :, None], axis=2)[:, :, 0]
    gap = jnp.take_along_axis(diagonal, high, axis=1) - jnp.take_along_axis(diagonal, low, axis=1)
    theta = rounded(gap / (2 * off))
    root = rounded(jnp.sqrt(rounded(theta * theta) + 1))
    t = rounded(jnp.where(theta < 0, -1.0, 1.0).astype(off.dtype) / (jnp.abs(theta) + root))
    c = rounded(1 / rounded(jnp.sqrt(rounded(t * t) + 1)))
    is_rotated = (low != high) & (off != 0)
    return jnp.where(is_rotated, c, 1), jnp.where(is_rotated, rounded(t * c), 0)
