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
from basinax.numerics.kernel import one_kernel
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


AT_ONCE = 8
"""Slots per turn of a sum that goes through all of them, where ends are not cheap; see
`xla.has_cheap_branches`."""

FEW = 32
"""If no system has filled more slots, the recursion leaves out all others, there."""

CHAIN = 5
"""Slots per turn of the recursion at most, there. A turn takes as many kernels as one of one slot;
but each slot reads those before it, so long chains take long to compile."""


class PairHistory(AbstractState):
    """Pairs of each system: a step s, and the change y of the gradient over the step."""

    index_prefix: Prefix
    s: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    y: PyTree[Float[Array, "_slots _rows *_components"]] = slots_field()
    sy: Float[Array, "systems slots slots"] = systems_field()
    """s · y at [i, j] and [j, i], with s of the older pair and y of the newer."""
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
    is_running: Bool[Array, "systems"],
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
    sg, yg = _with_slots(history, gradient, _filled(history, is_running), prefix)
    # Write slots after the products above read them, so that XLA updates in place (`xla.after`).
    written = xla.after(written, sg[:, 0], never=written < -1)

    def with_pair(products, x, tree):
        return jnp.where(is_written, segment.dot(x, tree, prefix)[:, None], products)

    # Products with y are differences of the products with both gradients: no further pass.
    by_sg, by_yg = _differences(history, [sg, yg], exponents, pair_exponents)
    sy_row = with_pair(by_sg, s, y)
    yy_row = with_pair(by_yg, y, y)
    at = segment.map_rows(lambda at, _: at, prefix, [(written, memory)], s)
    numbers = with_pair(sg, s, gradient), with_pair(yg, y, gradient), exponents
    last = history.sg, history.yg, history.exponents
    sg, yg, exponents = select_systems(is_running, numbers, last)
    return dataclasses.replace(
        history,
        s=jax.tree.map(_put, history.s, at, s),
        y=jax.tree.map(_put, history.y, at, y),
        sy=_crossed(history.sy, sy_row, written),
        yy=_crossed(history.yy, yy_row, written),
        sg=sg,
        yg=yg,
        exponents=exponents,
        pushes=history.pushes + mask.astype(jnp.int32),
    )


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
    history: PairHistory,
    gradient: Tree,
    first: Float[Array, "systems"],
    prefix: Prefix,
    is_running: Bool[Array, "systems"],
) -> Tree:
    """-H g, for the inverse Hessian H that fits the pairs and starts from `first` times 1.

    Args:
        gradient: the gradient of the last call of `remember`.
        is_running: rows of other systems mean nothing.
    """
    filled = _filled(history, is_running)
    alpha, rest = _coefficients(history, first, filled)
    return _combined(history, gradient, first, alpha, rest, filled, prefix)


def newest_scale(
    history: PairHistory, otherwise: Float[Array, "systems"]
) -> Float[Array, "systems"]:
    """s·y/y·y of the newest pair, the size of the inverse Hessian; `otherwise` without a pair."""
    systems, newest = jnp.arange(len(history.pushes)), (history.pushes - 1) % history.room
    sy, yy = (products[systems, newest, newest] for products in (history.sy, history.yy))
    has_pair = (history.pushes > 0) & (yy > 0)
    return jnp.where(has_pair, rounded(sy / jnp.where(has_pair, yy, 1)), otherwise)


def _slots(history: PairHistory) -> Int32[Array, "1 slots"]:
    return jnp.arange(history.sy.shape[1], dtype=jnp.int32)[None, :]


def _filled(history: PairHistory, is_running) -> Int32[Array, "systems"]:
    """The number of filled slots of each system; 0 for those that do not run."""
    return jnp.where(is_running, jnp.minimum(history.pushes, history.room), 0)


def _most(filled: Int32[Array, "systems"]) -> Int32[Array, ""]:
    return jnp.max(filled, initial=0)


def _with_slots(history: PairHistory, tree, filled, prefix):
    """s · x and y · x of each filled slot, +0 for others."""
    memory, systems = history.sy.shape[1], history.pushes.shape[0]
    is_filled = _slots(history) < filled[:, None]

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
    return known(jax.lax.fori_loop(0, _most(filled), turn, [blank, blank]))


DROPPED: Any = {"mode": "drop", "unique_indices": True}
"""Arguments of a write, which leaves out places past the end."""


def _put(slots, at, new):
    """The slots, with each entry of `new` written into the slot `at`, if there is one."""
    entries = jnp.arange(new.size, dtype=jnp.int32)
    flat = slots.reshape(len(slots), -1).at[at.ravel(), entries].set(new.ravel(), **DROPPED)
    return flat.reshape(slots.shape)


def _crossed(products, new, written: Int32[Array, "systems"]):
    """The matrices with new numbers in the row and the column of the slot `written`."""
    systems = jnp.arange(len(written))
    products = products.at[systems, :, written].set(new, **DROPPED)
    return products.at[systems, written].set(new, **DROPPED)


def _coefficients(history: PairHistory, first, filled):
    """αᵢ and αᵢ - βᵢ of the two loops: -H g = -first (g - Σ αᵢ yᵢ) - Σ (αᵢ - βᵢ) sᵢ."""
    memory = history.sy.shape[1]
    products = dataclasses.replace(history, s=None, y=None)  # a branch may copy what it gets
    if not len(first):  # JAX refuses any index into no systems
        return history.sg, history.yg
    if xla.has_cheap_branches():
        return one_kernel(_one_by_one)(products, first, filled)
    if memory <= FEW:
        return _side_by_side(memory, products, first)
    few, every = (functools.partial(_side_by_side, n) for n in (FEW, memory))
    return jax.lax.cond(_most(filled) <= FEW, few, every, products, first)


def _one_by_one(history: PairHistory, first, filled):
    """`_coefficients` of one system after another, over as many slots as it has filled."""

    def turn(k, found):
        own = _coefficients_of(k, filled[k], history, first, history.sy.shape[1])
        put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=k, axis=0)
        return [put(x, new) for x, new in zip(found, own, strict=True)]

    blank = jnp.zeros_like(history.sg)
    return jax.lax.fori_loop(jnp.int32(0), jnp.int32(len(first)), turn, [blank, blank])


def _side_by_side(n_slots: int, history: PairHistory, first):
    """`_coefficients` of all systems at once, if no system has filled more than these slots."""
    n_empty = history.sy.shape[1] - n_slots
    at_once = max(n for n in range(1, CHAIN + 1) if n_slots % n == 0)

    def own(k):
        return _coefficients_of(k, n_slots, history, first, n_slots, at_once)

    found = jax.vmap(own)(jnp.arange(len(first), dtype=jnp.int32))
    return [jnp.pad(x, [(0, 0), (0, n_empty)]) for x in found]


def _coefficients_of(k, filled, history: PairHistory, first, n_slots: int, at_once: int = 1):
    """`_coefficients` of system k, in the first slots.

    Args:
        filled: the number of slots to go through, of which some may be empty.
        at_once: the number of slots in a turn of the loops.
    """
    slots = jnp.arange(n_slots, dtype=jnp.int32)
    pushes, room = history.pushes[k], history.room[k]

    def slot_of(age):
        # A system without a pair of this age has filled fewer slots, so the last one is empty.
        own = (pushes - 1 - age) % room
        return jnp.where(age < room, own, n_slots - 1)

    def inverse_of(i):
        product = history.sy[k, i, i]
        return jnp.where(product == 0, 0, rounded(1 / jnp.where(product == 0, 1, product)))

    def swept(ages, add, factor_of, lines, values, found):
        """The values, to which each slot has added its line times its factor, and the factors.

        A factor follows from one entry of the first value. Those of all `ages` come first, so that
        a turn is one chain of few numbers, and one pass through all.
        """
        at, factors = [slot_of(age) for age in ages], []
        for n, i in enumerate(at):
            value = values[0][i]
            for factor, j in zip(factors, at[:n], strict=True):
                value = add(value, rounded(factor * lines[0][k, j, i]))
            factors.append(factor_of(i, value))
        for i, factor in zip(at, factors, strict=True):
            own = [line[k, i, :n_slots] for line in lines]
            values = [add(x, rounded(factor * y)) for x, y in zip(values, own, strict=True)]
            found = jnp.where(slots == i, factor, found)
        return values, found

    def loop(age_of, *how, start):
        def turn(n, carry):
            ages = [age_of(n * at_once + j) for j in range(at_once)]
            return swept(ages, *how, *carry)

        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(filled // at_once), turn, start)

    # Turn -0.0 into +0.0. A system with fewer pairs runs extra turns that add +0.0, which would
    # change -0.0 and so its bits.
    start = [jnp.where(x == 0, 0, x) for x in (history.sg[k, :n_slots], history.yg[k, :n_slots])]
    blank = jnp.zeros_like(start[0])
    (_, yq), alpha = loop(
        lambda age: age,
        jnp.subtract,
        lambda i, value: rounded(inverse_of(i) * value),
        (history.sy, history.yy),
        start=(start, blank),
    )
    _, rest = loop(
        lambda turn: filled - 1 - turn,
        jnp.add,
        lambda i, value: alpha[i] - rounded(inverse_of(i) * value),
        (history.sy,),
        start=([rounded(first[k] * yq)], blank),
    )
    return alpha, rest


def _combined(history: PairHistory, gradient, first, alpha, rest, filled, prefix):
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
    return jax.lax.fori_loop(0, _most(filled), turn, start)
