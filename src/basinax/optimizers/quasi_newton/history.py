"""The last steps of each system and the products of its limited-memory inverse Hessian.

The two-loop recursion runs on coefficients. Two small matrices per system hold the inner products
of the history; a new pair adds one row and column to each, so a direction reads the history only
twice. After Chen, Wang and Zhou, "Large-scale L-BFGS using MapReduce", NIPS 2014; the recursion is
that of Nocedal, Math. Comp. 35, 773 (1980).
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax.numerics import xla
from basinax.numerics.exponents import scale_exactly
from basinax.numerics.memory import require_memory
from basinax.numerics.rounding import rounded
from basinax.optimizers.protocol import AbstractState, select_systems, slots_field, systems_field
from basinax.systems import segment
from basinax.systems.index import SystemIndex, where_any
from basinax.systems.prefix import resolve
from basinax.systems.types import Exponents, Prefix, Tree

# Each system fills slots 0, 1, ... up to its `room`, then overwrites its oldest pair. Sums run over
# slots in slot order. Empty slots hold 0, which changes no sum that starts from +0, so the number
# of slots of a batch changes no bit.


FEW = 32
"""If no system has filled more slots, the recursion leaves out all others."""

AT_ONCE = 8
"""Slots per turn of a sum that goes through all of them, where ends are not cheap; see
`xla.has_cheap_branches`."""

CHAIN = 5
"""Slots per turn of the recursion at most, there. A turn takes as many kernels as one of one slot;
but each slot reads those before it, so long chains take long to compile."""


class PairHistory(AbstractState):
    """Pairs of each system: a step s, and the change y of the gradient over the step."""

    index_prefix: Prefix
    s: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    y: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    sy: Float[Array, "systems slots slots"] = systems_field()
    """s_j · y_i at [i, j] if pair j is not newer than pair i, else 0."""
    yy: Float[Array, "systems slots slots"] = systems_field()
    """y_j · y_i at [i, j]."""
    sg: Float[Array, "systems slots"] = systems_field()
    """s_j · g with the last gradient g, in units of 2^exponents."""
    yg: Float[Array, "systems slots"] = systems_field()
    """y_j · g with the last gradient g."""
    exponents: Int32[Array, "systems"] = systems_field()
    pushes: Int32[Array, "systems"] = systems_field()
    """The number of pairs so far; the next pair goes to slot `pushes` modulo `room`."""
    room: Int32[Array, "systems"] = systems_field()
    """The number of slots that a system may fill."""


def no_history(
    parameters: Tree, index_prefix: Prefix, memory: int, fewest: int | None = None
) -> PairHistory:
    """An empty history, with room for `memory` pairs in each system.

    Args:
        fewest: limit a system's room to its number of entries, but not below this number.
    """
    if memory < 1:
        raise ValueError(f"memory must be at least 1, got {memory}")
    blank = segment.blank(parameters, index_prefix)
    leaves, indices = jax.tree.leaves(parameters), resolve(index_prefix, parameters)
    widths = [math.prod(jnp.shape(x)[1:]) for x in leaves]
    if fewest is not None:
        most = sum(_most_rows(i) * width for i, width in zip(indices, widths, strict=True))
        memory = min(memory, max(most, fewest))
    # Bytes of s and y, and of the two matrices of products per system.
    n_entries = 2 * sum(np.size(x) for x in leaves)
    n_bytes = float(memory) * (n_entries + 2 * blank.size * memory) * blank.dtype.itemsize
    require_memory(n_bytes, f"memory={memory}, the pairs that L-BFGS keeps,")
    room = jnp.full_like(blank, memory, jnp.int32)
    if fewest is not None:
        entries = sum(i.sizes * width for i, width in zip(indices, widths, strict=True))
        room = jnp.minimum(room, jnp.maximum(entries, fewest))

    def slots():
        return jax.tree.map(lambda x: jnp.zeros_like(x, shape=(memory, *x.shape)), parameters)

    def numbers(*axes):
        return jnp.zeros_like(blank, shape=(*blank.shape, *axes))

    return PairHistory(
        None,
        s=slots(),
        y=slots(),
        sy=numbers(memory, memory),
        yy=numbers(memory, memory),
        sg=numbers(memory),
        yg=numbers(memory),
        exponents=jnp.zeros_like(blank, jnp.int32),
        pushes=jnp.zeros_like(blank, jnp.int32),
        room=room,
    )


def _most_rows(index) -> int:
    return index.most_rows if isinstance(index, SystemIndex) else index.n_rows


@xla.jitted
def remember(
    history: PairHistory,
    s: Tree,
    y: Tree,
    mask: Bool[Array, "systems"],
    gradient: Tree,
    prefix: Prefix,
    exponents: Exponents,
    pair_exponents: Exponents,
    is_running: Bool[Array, "systems"] | None = None,
) -> PairHistory:
    """The history with one more pair in the systems of `mask`, in place of the oldest if full.

    Args:
        s: the step, in units of 2^pair_exponents.
        y: the change of the gradient since the last call or the start, in the same units.
        gradient: the current gradient, in units of 2^exponents.
        is_running: histories of other systems stay unchanged; `mask` must exclude these systems.
    """
    memory = history.sy.shape[1]
    written = jnp.where(mask, history.pushes % history.room, memory)
    is_written = _slots(history) == written[:, None]
    sg, yg = _with_slots(history, gradient, prefix)
    # Write slots after the products above read them, so that XLA updates in place (`xla.after`).
    written = xla.after(written, sg[:, 0], never=written < -1)

    def with_pair(products, x, tree):
        return jnp.where(is_written, segment.dot(x, tree, prefix)[:, None], products)

    # Products with y are differences of the products with both gradients: no further pass.
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
    known = {"sg": sg, "yg": yg, "exponents": exponents, "pushes": pushes}
    return dataclasses.replace(history, **slots, **products, **known)


def _differences(history: PairHistory, now: list[Array], exponents, pair_exponents) -> list[Array]:
    """s · y and y · y of each slot with a new y, from products with the current gradient."""
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


@xla.jitted
def descent(
    history: PairHistory, gradient: Tree, first: Float[Array, "systems"], prefix: Prefix
) -> Tree:
    """-H g, for the inverse Hessian H that fits the pairs and starts from `first` times 1.

    Args:
        gradient: the gradient of the last call of `remember`.
    """
    alpha, rest = _coefficients(history, first)
    return _combined(history, gradient, first, alpha, rest, prefix)


def newest_scale(
    history: PairHistory, otherwise: Float[Array, "systems"]
) -> Float[Array, "systems"]:
    """s·y/y·y of the newest pair, the size of the inverse Hessian; `otherwise` without a pair."""
    newest = _slot_of(history, 0)
    sy, yy = (_at(_diagonal(products), newest) for products in (history.sy, history.yy))
    has_pair = (history.pushes > 0) & (yy > 0)
    return jnp.where(has_pair, rounded(sy / jnp.where(has_pair, yy, 1)), otherwise)


def _slots(history: PairHistory) -> Int32[Array, "1 slots"]:
    return jnp.arange(history.sy.shape[1], dtype=jnp.int32)[None, :]


def _filled(history: PairHistory) -> Int32[Array, "systems"]:
    """The number of filled slots of each system."""
    return jnp.minimum(history.pushes, history.room)


def _most_filled(history: PairHistory) -> Int32[Array, ""]:
    """The largest number of filled slots of any system."""
    return jnp.max(_filled(history), initial=0)


def _slot_of(history: PairHistory, age) -> Int32[Array, "systems"]:
    """The slot of each system's pair of the given age; the newest pair has age 0.

    A system without a pair of that age has an empty slot there.
    """
    own = (history.pushes - 1 - age) % history.room
    return jnp.where(age < history.room, own, age)


def _at(values: Float[Array, "systems slots *rest"], slot: Int32[Array, "systems"]):
    """The value of each system at its slot."""
    slot = slot.reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, slot, axis=1)[:, 0]


def _diagonal(products):
    return jnp.diagonal(products, axis1=1, axis2=2)


def _with_slots(history: PairHistory, tree, prefix) -> list[Float[Array, "systems slots"]]:
    """s · x and y · x of each slot, +0 for empty slots."""
    memory, systems = history.sy.shape[1], history.pushes.shape[0]
    is_filled = _slots(history) < _filled(history)[:, None]

    def known(products):
        return [jnp.where(is_filled & (x.T != 0), x.T, 0) for x in products]

    if not xla.has_cheap_branches():
        dots = jax.vmap(lambda slot: segment.dot(slot, tree, prefix))
        return known([dots(history.s), dots(history.y)])

    # NumPy arrays, as in a state from a file, take no traced index.
    both = jax.tree.map(jnp.asarray, (history.s, history.y))

    def turn(k, products):
        pairs = [jax.tree.map(lambda x: x[k], slots) for slots in both]
        return [
            old.at[k].set(segment.dot(pair, tree, prefix))
            for old, pair in zip(products, pairs, strict=True)
        ]

    blank = jnp.zeros_like(history.sg, shape=(memory, systems))
    return known(jax.lax.fori_loop(0, _most_filled(history), turn, [blank, blank]))


def _with_slot(slots, newest, written: Int32[Array, "systems"], memory: int, prefix):
    """The slots, with the one in `written` replaced in each system; `memory` replaces none.

    Slots without any new pair are not read or written.
    """
    if not xla.has_cheap_branches():

        def put(slots, new):
            at = segment.map_rows(lambda at, _: at, prefix, [(written, memory)], new)
            return jax.tree.map(_put, slots, at, new)

        return {name: put(slots[name], newest[name]) for name in slots}
    touched, n_touched = _touched(written, memory)

    def turn(i, slots):
        k = touched[i]
        choose = lambda at, old, new: jnp.where(at == k, new, old)  # noqa: E731

        def replaced(of_slots, new):
            old = jax.tree.map(lambda x: x[k], of_slots)
            both = segment.map_rows(choose, prefix, [(written, memory)], old, new)
            return jax.tree.map(lambda x, slot: x.at[k].set(slot), of_slots, both)

        return {name: replaced(slots[name], newest[name]) for name in slots}

    return jax.lax.fori_loop(0, n_touched, turn, slots)


DROPPED: Any = {"mode": "drop", "unique_indices": True}
"""Arguments of a write, which leaves out places past the end."""


def _put(slots, at, new):
    """The slots, with each entry of `new` written into the slot `at`, if there is one."""
    entries = jnp.arange(new.size, dtype=jnp.int32)
    flat = slots.reshape(len(slots), -1).at[at.ravel(), entries].set(new.ravel(), **DROPPED)
    return flat.reshape(slots.shape)


def _touched(written: Int32[Array, "systems"], memory: int):
    """The slots in which any system writes, moved to the front, and their number."""
    numbers = jnp.arange(memory, dtype=jnp.int32)
    is_touched = (written[:, None] == numbers[None, :]).any(0)
    order = jnp.argsort(~is_touched, stable=True).astype(jnp.int32)
    return order, is_touched.sum(dtype=jnp.int32)


def _with_products(products, new, written: Int32[Array, "systems"]):
    """The matrices with a new row and column at `written`; other slots are not touched."""
    if not xla.has_cheap_branches():
        systems = jnp.arange(len(written))

        def crossed(x, row, column):
            x = x.at[systems, :, written].set(column, **DROPPED)
            return x.at[systems, written].set(row, **DROPPED)

        return {name: crossed(x, *new[name]) for name, x in products.items()}
    touched, n_touched = _touched(written, products["sy"].shape[1])

    def turn(i, products, axis):
        k = touched[i]

        def replaced(x, new):
            old = jax.lax.dynamic_index_in_dim(x, k, axis, keepdims=False)
            new = jnp.where((written == k)[:, None], new, old)
            return jax.lax.dynamic_update_index_in_dim(x, new, k, axis)

        return {name: replaced(x, new[name][axis - 1]) for name, x in products.items()}

    # Two loops: in one loop XLA would copy the matrices between the row and the column.
    for axis in (2, 1):
        write = functools.partial(turn, axis=axis)
        products = jax.lax.fori_loop(0, n_touched, write, products)
    return products


def _coefficients(history: PairHistory, first):
    """αᵢ and αᵢ - βᵢ of the two loops: -H g = -first (g - Σ αᵢ yᵢ) - Σ (αᵢ - βᵢ) sᵢ."""
    memory = history.sy.shape[1]
    if memory <= FEW:
        return _coefficients_of(memory, history, first)
    few, every = (functools.partial(_coefficients_of, n) for n in (FEW, memory))
    products = dataclasses.replace(history, s=None, y=None)  # a branch may copy what it gets
    return jax.lax.cond(_most_filled(history) <= FEW, few, every, products, first)


def _coefficients_of(n_slots: int, history: PairHistory, first):
    """`_coefficients`, if no system has filled more than the first slots."""
    slots, n_empty = _slots(history)[:, :n_slots], history.sy.shape[1] - n_slots
    diagonal = _diagonal(history.sy)
    is_zero = diagonal == 0
    rho = jnp.where(is_zero, 0, rounded(1 / jnp.where(is_zero, 1, diagonal)))
    filled = _most_filled(history) if xla.has_cheap_branches() else n_slots

    def slot_of(age):
        # A system without a pair of this age has filled fewer slots, so the last one is empty.
        return jnp.minimum(_slot_of(history, age), n_slots - 1)

    def swept(ages, add, factor_of, lines_of, values, found):
        """The values, to which each slot has added its line times its factor, and the factors.

        A factor follows from one entry of the first value. Those of all `ages` come first, so that
        a turn is one chain of few numbers, and one pass through all.
        """
        at, factors = [slot_of(age) for age in ages], []
        lines = [lines_of(i) for i in at]
        for k, i in enumerate(at):
            value = _at(values[0], i)
            for factor, line in zip(factors, lines[:k], strict=True):
                value = add(value, rounded(factor * _at(line[0], i)))
            factors.append(factor_of(i, value))
        for i, factor, line in zip(at, factors, lines, strict=True):
            factor = factor[:, None]
            values = [add(x, rounded(factor * y)) for x, y in zip(values, line, strict=True)]
            found = jnp.where(slots == i[:, None], factor, found)
        return values, found

    def backwards(ages, carry):
        def factor_of(i, value):
            return rounded(_at(rho, i) * value)

        def rows(i):
            return [_at(x, i)[:, :n_slots] for x in (history.sy, history.yy)]

        return swept(ages, jnp.subtract, factor_of, rows, *carry)

    def forwards(ages, carry):
        def factor_of(i, value):
            return _at(alpha, i) - rounded(_at(rho, i) * value)

        def columns(i):
            return [jnp.take_along_axis(history.sy, i[:, None, None], axis=2)[:, :n_slots, 0]]

        return swept(ages, jnp.add, factor_of, columns, *carry)

    n = 1
    if not xla.has_cheap_branches():
        n = max(n for n in range(1, CHAIN + 1) if n_slots % n == 0)

    def loop(turn, age_of, start):
        def body(k, carry):
            return turn([age_of(k * n + j) for j in range(n)], carry)

        return jax.lax.fori_loop(0, filled // n, body, start)

    # Turn -0.0 into +0.0. A system with fewer pairs runs extra turns that add +0.0, which would
    # change -0.0 and so its bits.
    start = [jnp.where(x == 0, 0, x)[:, :n_slots] for x in (history.sg, history.yg)]
    blank = jnp.zeros_like(start[0])
    (_, yq), alpha = loop(backwards, lambda age: age, (start, blank))
    yz = rounded(first[:, None] * yq)
    _, rest = loop(forwards, lambda turn: filled - 1 - turn, ([yz], blank))
    return [jnp.pad(x, [(0, 0), (0, n_empty)]) for x in (alpha, rest)]


def _combined(history: PairHistory, gradient, first, alpha, rest, prefix):
    by_y = rounded(first[:, None] * alpha)

    def scaled(factor, g):
        product = -rounded(factor.astype(g.dtype) * g)
        return jnp.where(product == 0, 0, product)  # +0.0: terms of empty slots would change -0.0

    def added(y_factor, s_factor, total, s, y):
        y_factor, s_factor = y_factor.astype(total.dtype), s_factor.astype(total.dtype)
        return (total + rounded(y_factor * y)) - rounded(s_factor * s)

    def turn(k, total):
        s, y = (jax.tree.map(lambda x: x[k], slots) for slots in (history.s, history.y))
        values = [(by_y[:, k], 0.0), (rest[:, k], 0.0)]
        return segment.map_rows(added, prefix, values, total, s, y)

    start = segment.map_rows(scaled, prefix, [(first, 0.0)], gradient)
    if not xla.has_cheap_branches():
        return jax.lax.fori_loop(0, history.sy.shape[1], turn, start, unroll=AT_ONCE)
    return jax.lax.fori_loop(0, _most_filled(history), turn, start)
