"""The last steps of each system and the products of its limited-memory inverse Hessian.

The two-loop recursion works on coefficients: inner products of the history are kept in two small
matrices a system, and a new pair adds only its own, so that a direction reads the history twice.
After Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014; the recursion is that of
Nocedal, Math. Comp. 35, 773 (1980).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax._bits import xla
from basinax._bits.exponents import scale_exactly
from basinax._bits.rounding import rounded
from basinax._settings import require_memory
from basinax._systems import segment
from basinax._systems.index import SystemIndex, where_any
from basinax._systems.prefix import resolve
from basinax._systems.types import Exponents, Prefix, Tree
from basinax.transforms._protocol import (
    AbstractState,
    select_systems,
    slots_field,
    systems_field,
)

# Each system fills slots 0, 1, ... as far as it has room, and then writes over its oldest. Sums
# over slots are taken in their order, and what is not filled holds 0, which changes no sum that
# starts from +0.


class History(AbstractState):
    """Pairs of a step s and the change y of the gradient over it, each system's own."""

    index_prefix: Prefix
    s: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    y: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    sy: Float[Array, "systems slots slots"] = systems_field()
    """s_j · y_i at [i, j] where pair j is not newer than i, else 0."""
    yy: Float[Array, "systems slots slots"] = systems_field()
    """y_j · y_i at [i, j]."""
    sg: Float[Array, "systems slots"] = systems_field()
    """s_j · g with the last gradient, which is in units of 2^exponents."""
    yg: Float[Array, "systems slots"] = systems_field()
    """y_j · g with the last gradient."""
    exponents: Int32[Array, "systems"] = systems_field()
    pushes: Int32[Array, "systems"] = systems_field()
    """How many pairs have been remembered; the next goes to this slot, modulo `room`."""
    room: Int32[Array, "systems"] = systems_field()
    """How many slots a system fills."""


def no_history(
    parameters: Tree, index_prefix: Prefix, memory: int, fewest: int | None = None
) -> History:
    """A history of no pairs yet, with room for `memory` of them in each system.

    Args:
        fewest: a system has room for no more pairs than it has entries, but for this many.
    """
    if memory < 1:
        raise ValueError(f"memory must be at least 1, got {memory}")
    blank = segment.blank(parameters, index_prefix)
    leaves, indices = jax.tree.leaves(parameters), resolve(index_prefix, parameters)
    widths = [math.prod(jnp.shape(x)[1:]) for x in leaves]
    if fewest is not None:
        most = sum(_most_rows(i) * width for i, width in zip(indices, widths, strict=True))
        memory = min(memory, max(most, fewest))
    n_entries = 2 * sum(np.size(x) for x in leaves)
    n_bytes = float(memory) * (n_entries + 2 * blank.size * memory) * blank.dtype.itemsize
    require_memory(n_bytes, f"memory={memory}, the pairs that L-BFGS keeps,")
    room = jnp.full(blank.shape, memory, jnp.int32)
    if fewest is not None:
        entries = sum(i.sizes * width for i, width in zip(indices, widths, strict=True))
        room = jnp.minimum(room, jnp.maximum(entries, fewest))

    def slots():
        return jax.tree.map(lambda x: jnp.zeros((memory, *x.shape), x.dtype), parameters)

    def numbers(*axes):
        return jnp.zeros((*blank.shape, *axes), blank.dtype)

    return History(
        None,
        s=slots(),
        y=slots(),
        sy=numbers(memory, memory),
        yy=numbers(memory, memory),
        sg=numbers(memory),
        yg=numbers(memory),
        exponents=jnp.zeros(blank.shape, jnp.int32),
        pushes=jnp.zeros(blank.shape, jnp.int32),
        room=room,
    )


def _most_rows(index) -> int:
    return index.most_rows if isinstance(index, SystemIndex) else index.n_rows


def remember(
    history: History,
    s: Tree,
    y: Tree,
    mask: Bool[Array, "systems"],
    gradient: Tree,
    prefix: Prefix,
    exponents: Exponents,
    pair_exponents: Exponents,
    is_running: Bool[Array, "systems"] | None = None,
) -> History:
    """The history with one more pair in the systems of `mask`, over the oldest where it is full.

    Args:
        s: in units of 2^pair_exponents.
        y: `gradient` less the one with which this was called last, or which began the history; in
            the units of s.
        gradient: in units of 2^exponents.
        is_running: histories of other systems stay as they are; they are not in `mask`.
    """
    memory = history.sy.shape[1]
    written = jnp.where(mask, history.pushes % history.room, -1)
    is_written = _slots(history) == written[:, None]
    sg, yg = _with_slots(history, gradient, prefix)
    # Slots are written after they are read.
    written = xla.behind(written, sg[:, 0], never=written < -1)

    def with_pair(products, x, tree):
        return jnp.where(is_written, segment.dot(x, tree, prefix)[:, None], products)

    # The products with y are the differences of those with both gradients: no other pass.
    by_sg, by_yg = _differences(history, [sg, yg], exponents, pair_exponents)
    sy_row = with_pair(by_sg, s, y)
    yy_row = with_pair(by_yg, y, y)
    slots = {"s": history.s, "y": history.y}
    slots = _with_slot(slots, {"s": s, "y": y}, written, memory, prefix)
    rows = {"sy": (sy_row, jnp.where(is_written, sy_row, 0)), "yy": (yy_row, yy_row)}
    products = _with_products({"sy": history.sy, "yy": history.yy}, rows, written)
    numbers = with_pair(sg, s, gradient), with_pair(yg, y, gradient), exponents
    if is_running is not None:
        last = history.sg, history.yg, history.exponents
        numbers = select_systems(is_running, numbers, last)
    sg, yg, exponents = numbers
    pushes = history.pushes + mask.astype(jnp.int32)
    return History(
        None,
        **slots,
        **products,
        sg=sg,
        yg=yg,
        exponents=exponents,
        pushes=pushes,
        room=history.room,
    )


def _differences(history: History, now: list[Array], exponents, pair_exponents) -> list[Array]:
    """s · y and y · y of each slot with a new y, from the products with the gradient now."""
    last = [history.sg, history.yg]
    by, by_last = exponents - pair_exponents, history.exponents - pair_exponents

    def in_units():
        return [
            scale_exactly(x, by[:, None]) - scale_exactly(y, by_last[:, None])
            for x, y in zip(now, last, strict=True)
        ]

    def plain():
        return [x - y for x, y in zip(now, last, strict=True)]

    return where_any((by != 0) | (by_last != 0), in_units, plain)


def descent(
    history: History, gradient: Tree, first: Float[Array, "systems"], prefix: Prefix
) -> Tree:
    """-H g, where H is the inverse Hessian that fits the pairs and starts from `first` times 1.

    Args:
        gradient: the one with which `remember` was called.
    """
    alpha, rest = _coefficients(history, first)
    return _combined(history, gradient, first, alpha, rest, prefix)


def newest_scale(history: History, otherwise: Float[Array, "systems"]) -> Float[Array, "systems"]:
    """s·y/y·y of the newest pair, the size of the inverse Hessian; `otherwise` without one."""
    newest = _slot_of(history, 0)
    sy, yy = (_at(_diagonal(products), newest) for products in (history.sy, history.yy))
    has_pair = (history.pushes > 0) & (yy > 0)
    return jnp.where(has_pair, rounded(sy / jnp.where(has_pair, yy, 1)), otherwise)


def _slots(history: History) -> Int32[Array, "1 slots"]:
    return jnp.arange(history.sy.shape[1], dtype=jnp.int32)[None, :]


def _filled(history: History) -> Int32[Array, "systems"]:
    """How many slots each system has filled."""
    return jnp.minimum(history.pushes, history.room)


def _most_filled(history: History) -> Int32[Array, ""]:
    """The largest number of slots that a system has filled."""
    return jnp.max(_filled(history), initial=0)


def _slot_of(history: History, age) -> Int32[Array, "systems"]:
    """Where each system keeps the pair of that age; the newest is 0 steps old.

    A system without a pair so old has an empty slot there.
    """
    own = (history.pushes - 1 - age) % history.room
    return jnp.where(age < history.room, own, age)


def _at(values: Float[Array, "systems slots *rest"], slot: Int32[Array, "systems"]):
    """The value of each system at its slot."""
    slot = slot.reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, slot, axis=1)[:, 0]


def _diagonal(products):
    return jnp.diagonal(products, axis1=1, axis2=2)


def _with_slots(history: History, tree, prefix) -> list[Float[Array, "systems slots"]]:
    """s · x and y · x of each slot, +0 where none is filled."""
    memory, systems = history.sy.shape[1], history.pushes.shape[0]

    def turn(k, products):
        pairs = [jax.tree.map(lambda x: x[k], slots) for slots in (history.s, history.y)]
        return [
            old.at[k].set(segment.dot(pair, tree, prefix))
            for old, pair in zip(products, pairs, strict=True)
        ]

    blank = jnp.zeros((memory, systems), history.sy.dtype)
    products = jax.lax.fori_loop(0, _most_filled(history), turn, [blank, blank])
    is_filled = _slots(history) < _filled(history)[:, None]
    return [jnp.where(is_filled & (x.T != 0), x.T, 0) for x in products]


def _with_slot(slots, newest, written: Int32[Array, "systems"], memory: int, prefix):
    """The slots with each system's written one replaced; -1 replaces none.

    Slots in which no system writes are not touched.
    """
    touched, n_touched = _touched(written, memory)

    def turn(i, slots):
        k = touched[i]
        choose = lambda at, old, new: jnp.where(at == k, new, old)  # noqa: E731

        def replaced(of_slots, new):
            old = jax.tree.map(lambda x: x[k], of_slots)
            both = segment.map_rows(choose, prefix, [(written, -1)], old, new)
            return jax.tree.map(lambda x, slot: x.at[k].set(slot), of_slots, both)

        return {name: replaced(slots[name], newest[name]) for name in slots}

    return jax.lax.fori_loop(0, n_touched, turn, slots)


def _touched(written: Int32[Array, "systems"], memory: int):
    """The slots in which some system writes, in front of the others, and their number."""
    numbers = jnp.arange(memory, dtype=jnp.int32)
    is_touched = (written[:, None] == numbers[None, :]).any(0)
    order = jnp.argsort(~is_touched, stable=True).astype(jnp.int32)
    return order, is_touched.sum(dtype=jnp.int32)


def _with_products(products, new, written: Int32[Array, "systems"]):
    """The matrices with a new row and column of each system that writes; no others are touched."""
    touched, n_touched = _touched(written, products["sy"].shape[1])

    def turn(i, products, axis):
        k = touched[i]

        def replaced(x, new):
            old = jax.lax.dynamic_index_in_dim(x, k, axis, keepdims=False)
            new = jnp.where((written == k)[:, None], new, old)
            return jax.lax.dynamic_update_index_in_dim(x, new, k, axis)

        return {name: replaced(x, new[name][axis - 1]) for name, x in products.items()}

    # In one loop the matrices would be copied between a row and a column.
    for axis in (2, 1):
        write = functools.partial(turn, axis=axis)
        products = jax.lax.fori_loop(0, n_touched, write, products)
    return products


def _coefficients(history: History, first):
    """αᵢ and αᵢ - βᵢ of the two loops: -H g = -first (g - Σ αᵢ yᵢ) - Σ (αᵢ - βᵢ) sᵢ."""
    diagonal = _diagonal(history.sy)
    is_zero = diagonal == 0
    rho = jnp.where(is_zero, 0, rounded(1 / jnp.where(is_zero, 1, diagonal)))
    filled = _most_filled(history)

    def backwards(age, carry):
        sq, yq, alpha = carry
        i = _slot_of(history, age)
        a = rounded(_at(rho, i) * _at(sq, i))
        sq = sq - rounded(a[:, None] * _at(history.sy, i))
        yq = yq - rounded(a[:, None] * _at(history.yy, i))
        return sq, yq, jnp.where(_slots(history) == i[:, None], a[:, None], alpha)

    # What a product of a new pair leaves as -0, another system's number of turns might change.
    start = [jnp.where(x == 0, 0, x) for x in (history.sg, history.yg)]
    blank = jnp.zeros_like(history.sg)
    _, yq, alpha = jax.lax.fori_loop(0, filled, backwards, (*start, blank))

    def forwards(turn, carry):
        yz, rest = carry
        i = _slot_of(history, filled - 1 - turn)
        difference = _at(alpha, i) - rounded(_at(rho, i) * _at(yz, i))
        s_column = jnp.take_along_axis(history.sy, i[:, None, None], axis=2)[:, :, 0]
        yz = yz + rounded(difference[:, None] * s_column)
        return yz, jnp.where(_slots(history) == i[:, None], difference[:, None], rest)

    yz = rounded(first[:, None] * yq)
    _, rest = jax.lax.fori_loop(0, filled, forwards, (yz, blank))
    return alpha, rest


def _combined(history: History, gradient, first, alpha, rest, prefix):
    by_y = rounded(first[:, None] * alpha)

    def scaled(factor, g):
        product = -rounded(factor.astype(g.dtype) * g)
        return jnp.where(product == 0, 0, product)  # not -0, which another term would change

    def added(y_factor, s_factor, total, s, y):
        y_factor, s_factor = y_factor.astype(total.dtype), s_factor.astype(total.dtype)
        return (total + rounded(y_factor * y)) - rounded(s_factor * s)

    def turn(k, total):
        s, y = (jax.tree.map(lambda x: x[k], slots) for slots in (history.s, history.y))
        values = [(by_y[:, k], 0.0), (rest[:, k], 0.0)]
        return segment.map_rows(added, prefix, values, total, s, y)

    start = segment.map_rows(scaled, prefix, [(first, 0.0)], gradient)
    return jax.lax.fori_loop(0, _most_filled(history), turn, start)
