"""A dense inverse Hessian of each system, whose bits do not depend on the largest system.

A vector of places holds a system's entries first, leaf by leaf, and 0 in all further places. Sums
run over blocks of eight places, counted from the first place of each leaf, so longer vectors change
no bit.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int32, Shaped

from basinax.numerics import xla
from basinax.numerics.exponents import scale_exactly, split
from basinax.numerics.memory import require_memory
from basinax.numerics.rounding import BLOCK, add_rows, rounded
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    layout_field,
    systems_field,
)
from basinax.optimizers.quasi_newton.matrix_sign import sign_product
from basinax.systems.index import SystemIndex
from basinax.systems.prefix import resolve
from basinax.systems.types import PerSystem, Prefix, Tree

Vector = Float[Array, "systems places"]
Matrix = Float[Array, "systems places places"]


class InverseHessian(AbstractState):
    """The inverse Hessian H of each system, and the positions of its entries."""

    index_prefix: Prefix
    matrix: Matrix = systems_field()
    is_definite: Bool[Array, "systems"] = systems_field()
    """Whether H is known to be positive definite."""
    rows: tuple[Int32[Array, "systems _rows"], ...] = layout_field()
    """For each leaf, the rows of each system, padded with the number of rows."""


class AbstractDense(AbstractTransform):
    """A transform with a dense matrix per system."""

    max_rows: eqx.AbstractVar[int | None]
    """The largest number of rows of a system in any leaf; `init` needs it only while traced."""


def bounded(transform: AbstractTransform, most_rows: int) -> AbstractTransform:
    """The transform with a bound on the rows of a system in any leaf, so that `init` may be traced.

    The bits do not change. The bound reaches every dense matrix of a chain.

    Raises:
        ValueError: the transform has a smaller `max_rows`.
    """

    def of_part(part):
        if not _is_dense(part):
            return part
        if part.max_rows is not None and part.max_rows < most_rows:
            raise _too_many_rows(part.max_rows, most_rows)
        return dataclasses.replace(part, max_rows=most_rows)

    return jax.tree.map(of_part, transform, is_leaf=_is_dense)


def _is_dense(x) -> bool:
    return isinstance(x, AbstractDense)


def _too_many_rows(max_rows: int, largest: int) -> ValueError:
    return ValueError(f"max_rows={max_rows}, but a system has {largest} rows in one leaf")


def unit_matrix(
    parameters: Tree, index_prefix: Prefix, scale: PerSystem, max_rows: int | None
) -> InverseHessian:
    """`scale` times 1.

    Raises:
        ValueError: `max_rows` is missing while tracing, or a system has more rows.
    """
    indices = resolve(index_prefix, parameters)
    widths = [_width(index, max_rows) for index in indices]
    leaves = jax.tree.leaves(parameters)
    n_places = sum(w * math.prod(jnp.shape(x)[1:]) for w, x in zip(widths, leaves, strict=True))
    n_bytes = float(n_places) ** 2 * scale.size * scale.dtype.itemsize
    require_memory(
        n_bytes, f"a dense Hessian of {n_places} entries for each of {scale.size} systems"
    )
    rows = tuple(_rows(*pair) for pair in zip(indices, widths, strict=True))
    return _unit(parameters, rows, scale)


def renewed(hessian: InverseHessian, like: Tree, scale: PerSystem) -> InverseHessian:
    """Reset to `scale` times 1; may be traced."""
    return _unit(like, hessian.rows, scale)


def _unit(parameters, rows, scale) -> InverseHessian:
    is_place = _joined(_is_place(parameters, rows), scale.shape[0], bool)
    unit = jnp.eye(is_place.shape[1], dtype=bool)[None] & is_place[:, :, None]
    matrix = jnp.where(unit, scale[:, None, None], 0)
    return InverseHessian(None, matrix, jnp.ones_like(scale, bool), rows)


def _width(index, max_rows: int | None) -> int:
    if not isinstance(index, SystemIndex):
        largest = most = index.n_rows
    elif not isinstance(index.sizes, Tracer):
        largest, most = int(np.max(np.asarray(index.sizes), initial=0)), index.most_rows
    elif max_rows is None:
        raise ValueError(
            "the size of a dense Hessian must be known before tracing: call init outside of"
            " jit, or give max_rows, the most rows of a system in any leaf"
        )
    else:
        largest, most = 0, index.most_rows
    if max_rows is None:
        return largest
    if largest > max_rows:
        raise _too_many_rows(max_rows, largest)
    return min(max_rows, most, index.ids.shape[0] if isinstance(index, SystemIndex) else most)


def _rows(index, width: int) -> Int32[Array, "systems width"]:
    """The rows of each system in order, padded with the number of rows."""
    ids = index.ids if isinstance(index, SystemIndex) else jnp.zeros((index.n_rows,), jnp.int32)
    order = jnp.argsort(ids, stable=True).astype(jnp.int32)
    slot = jnp.arange(width, dtype=jnp.int32)[None, :]
    starts = jnp.cumsum(index.sizes) - index.sizes
    at = starts.astype(jnp.int32)[:, None] + slot
    rows = order.at[at].get(mode="fill", fill_value=index.n_rows)
    return jnp.where(slot < index.sizes[:, None], rows, index.n_rows)


def _padded(x, absent):
    """[systems, rows, components...] as [systems, places], padded to a multiple of eight places."""
    x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % BLOCK)), constant_values=absent)


def _joined(parts: list[Array], n_systems: int, dtype) -> Shaped[Array, "systems places"]:
    """The places of all leaves; no places for a tree without leaves."""
    return jnp.concatenate([jnp.zeros((n_systems, 0), dtype), *parts], axis=1)


def _is_place(tree, rows) -> list[Bool[Array, "systems _places"]]:
    """The mask of places that hold an entry, for each leaf."""
    masks = []
    for leaf, at in zip(map(jnp.atleast_1d, jax.tree.leaves(tree)), rows, strict=True):
        is_row = (at < leaf.shape[0]).reshape(at.shape + (1,) * (leaf.ndim - 1))
        masks.append(_padded(jnp.broadcast_to(is_row, at.shape + leaf.shape[1:]), False))
    return masks


class Places:
    """Conversion between trees of rows and vectors of places, for an `InverseHessian`."""

    def __init__(self, hessian: InverseHessian, like: Tree):
        self.rows, self.like = hessian.rows, like
        self.dtype = hessian.matrix.dtype
        per_leaf = _is_place(like, hessian.rows)
        self.is_place = _joined(per_leaf, hessian.matrix.shape[0], bool)
        self._ends = np.cumsum([x.shape[1] for x in per_leaf]).tolist()

    def gather(self, tree: Tree) -> Vector:
        """The entries of each system, 0 in empty places."""
        leaves = [jnp.atleast_1d(leaf).astype(self.dtype) for leaf in jax.tree.leaves(tree)]
        parts = [
            _padded(leaf.at[at].get(mode="fill", fill_value=0), 0)
            for leaf, at in zip(leaves, self.rows, strict=True)
        ]
        return _joined(parts, self.is_place.shape[0], self.dtype)

    def scatter(self, vector: Vector) -> Tree:
        """The tree with these entries, 0 in rows of no system."""
        leaves, structure = jax.tree.flatten(self.like)
        results = []
        ends = itertools.pairwise([0, *self._ends])
        for leaf, at, (start, end) in zip(leaves, self.rows, ends, strict=True):
            rows = jnp.atleast_1d(leaf)
            count = at.shape[1] * int(np.prod(rows.shape[1:]))
            values = vector[:, start:end][:, :count].reshape(*at.shape, *rows.shape[1:])
            blank = jnp.zeros_like(rows)
            placed = blank.at[at].set(values.astype(rows.dtype), mode="drop")
            results.append(placed.reshape(jnp.shape(leaf)))
        return structure.unflatten(results)

    def sum(
        self,
        products: Float[Array, "systems places *rest"],
        is_place: Bool[Array, "systems places"],
    ) -> Float[Array, "systems *rest"]:
        """The sum over places, in an order that does not depend on the number of empty places."""
        is_place = is_place.reshape(is_place.shape + (1,) * (products.ndim - 2))
        products = jnp.where(is_place, products, -0.0)
        total = jnp.zeros(products.shape[:1] + products.shape[2:], products.dtype)
        for start, end in itertools.pairwise([0, *self._ends]):
            total = total + jax.vmap(add_rows)(products[:, start:end])
        return jnp.where(total == 0, 0, total)

    def dot(self, a: Vector, b: Vector) -> PerSystem:
        return self.sum(rounded(a * b), self.is_place)

    def apply(
        self, matrix: Matrix, vector: Vector, mask: Bool[Array, "systems"] | None = None
    ) -> Vector:
        """A symmetric matrix times a vector; outside the mask the result has no meaning."""
        mask = jnp.ones(len(vector), bool) if mask is None else mask

        def applied(_mask, _start, vector, is_place, matrix):
            return self.sum(rounded(matrix * vector[:, :, None]), is_place)

        return few_at_once(applied, mask, jnp.zeros_like(vector), vector, self.is_place, matrix)


AT_ONCE = 1 << 20
"""The most bytes of matrices that a CPU works on at once, which its cache keeps."""


def few_at_once(
    function: Callable[..., Array],
    mask: Bool[Array, "systems"],
    start: Shaped[Array, "systems *_rest"],
    *arrays: Shaped[Array, "systems *_rest"],
) -> Array:
    """`function(mask, start, *arrays)`; on a CPU, of a few systems at a time.

    A matrix then stays in the cache, and what the function reads has been stored: XLA would compute
    the entries of a vector anew for each row of a matrix. Groups without a system of the mask are
    left out, and keep `start`.

    Args:
        function: a function of systems that share no operation.
    """
    n = len(mask)
    of_a_system = max(x.size // max(n, 1) * x.dtype.itemsize for x in (start, *arrays))
    at_once = max(1, AT_ONCE // max(1, of_a_system))
    if not xla.has_cheap_branches() or at_once >= n:
        return function(mask, start, *arrays)
    n_groups = -(-n // at_once)
    is_busy = jnp.pad(mask, (0, n_groups * at_once - n)).reshape(n_groups, at_once).any(1)
    groups = jnp.argsort(~is_busy, stable=True).astype(jnp.int32)

    def turn(k, found):
        first = groups[k] * at_once
        begin = jnp.minimum(first, n - at_once)
        # The last group may begin inside the one before it.
        is_new = begin + jnp.arange(at_once, dtype=jnp.int32) >= first
        own, before, *others = (
            jax.lax.dynamic_slice_in_dim(x, begin, at_once) for x in (mask, found, *arrays)
        )
        result = function(own & is_new, before, *others)
        return jax.lax.dynamic_update_slice_in_dim(found, result, begin, 0)

    return jax.lax.fori_loop(0, is_busy.sum(dtype=jnp.int32), turn, start)


def fitted(
    hessian: InverseHessian, places: Places, s: Vector, y: Vector, mask: Bool[Array, "systems"]
) -> InverseHessian:
    """The BFGS update of the systems of `mask`: H ← (1 - s yᵀ/a) H (1 - y sᵀ/a) + s sᵀ/a, a = s·y.

    For a < 0 the update is the inverse of the BFGS update of the Hessian. Pairs with a = 0, or with
    numbers out of range, change nothing.
    """
    s, y = _balanced(s, y)
    a = places.dot(s, y)
    hy = places.apply(hessian.matrix, y, mask)
    has_inverse = jnp.isfinite(a) & (a != 0)
    inverse = rounded(1 / jnp.where(has_inverse, a, 1))
    size = inverse + rounded(rounded(inverse * places.dot(y, hy)) * inverse)
    mask = mask & has_inverse & jnp.isfinite(size)

    def updated(mask, before, s, hy, size, inverse):
        outer = lambda u, v: rounded(u[:, :, None] * v[:, None, :])  # noqa: E731
        cross = outer(hy, s) + outer(s, hy)
        matrix = before + rounded(size[:, None, None] * outer(s, s))
        matrix = matrix - rounded(inverse[:, None, None] * cross)
        return jnp.where(mask[:, None, None], matrix, before)

    return dataclasses.replace(
        hessian,
        matrix=few_at_once(updated, mask, hessian.matrix, s, hy, size, inverse),
        is_definite=hessian.is_definite & (~mask | (a > 0)),
    )


def _balanced(s: Vector, y: Vector) -> tuple[Vector, Vector]:
    """The pair in units of powers of two, if squares are out of range.

    The update does not depend on the units of the pair; in the chosen units s·y is near 1.
    """
    largest = [jnp.max(jnp.abs(x), axis=1, initial=0) for x in (s, y)]
    is_unsafe, is_number = jnp.zeros(len(s), bool), jnp.ones(len(s), bool)
    for x in largest:
        is_unsafe = is_unsafe | is_extreme(x)
        is_number = is_number & (x > 0) & jnp.isfinite(x)
    exponents = (split(largest[0])[1] + split(largest[1])[1]) // 2
    exponents = jnp.where(is_unsafe & is_number, exponents, 0)
    s, y = (scale_exactly(x, -exponents[:, None]) for x in (s, y))
    return s, y


def is_extreme(x: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether squares of x ≥ 0, or sums of some thousands of squares, may be out of range."""
    info = jnp.finfo(x.dtype)
    least, most = 2.0 ** ((info.minexp + info.nmant + 41) // 2), 2.0 ** (3 * info.maxexp // 8)
    return (x < least) | (x > most)


def newton_step(
    hessian: InverseHessian, places: Places, gradient: Vector, mask: Bool[Array, "systems"]
) -> tuple[Vector, InverseHessian]:
    """-|H| g, where |H| has the absolute eigenvalues of H; and H with updated `is_definite`.

    The eigenvalues are computed only if some system of `mask` is not known to be definite.
    """
    plain = places.apply(hessian.matrix, gradient, mask)
    if not plain.size:
        return -plain, hessian
    is_doubtful = mask & ~hessian.is_definite
    signed, is_definite = _signed(hessian.matrix, places, gradient, is_doubtful)
    is_turned = is_doubtful & ~is_definite
    turned = places.apply(hessian.matrix, signed, is_turned)
    careful = jnp.where(is_turned[:, None], turned, plain)
    hessian = dataclasses.replace(hessian, is_definite=hessian.is_definite | is_definite)
    return -careful, hessian


def _signed(matrix: Matrix, places: Places, vector: Vector, mask):
    """`sign_product` on vectors with all entries moved before the empty places."""
    if len(places.rows) == 1:
        return sign_product(matrix, vector, places.is_place, mask)
    order = jnp.argsort(~places.is_place, axis=1, stable=True)
    packed = lambda x: jnp.take_along_axis(x, order, axis=1)  # noqa: E731
    columns = jnp.take_along_axis(matrix, order[:, None, :], axis=2)
    rows = jnp.take_along_axis(columns, order[:, :, None], axis=1)
    signed, is_definite = sign_product(rows, packed(vector), packed(places.is_place), mask)
    return jnp.take_along_axis(signed, jnp.argsort(order, axis=1), axis=1), is_definite
