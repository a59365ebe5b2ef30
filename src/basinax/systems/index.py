"""Which row belongs to which system, and the order in which a system's rows are added.

A system's own rows fix the order: first blocks of eight consecutive rows, counted from the system's
first row, then blocks of eight block sums, until one sum is left. The host makes the index arrays
of all levels once. See docs/design.md, section 2.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int32, Shaped

from basinax.numerics import xla
from basinax.numerics.forks import check_process
from basinax.numerics.rounding import (
    BLOCK,
    add_components,
    add_parts,
    add_rows,
    part_additions,
    tree_sum_list,
)
from basinax.numerics.settings import count_of
from basinax.systems.folds import (
    finished,
    fold_blocks,
    fold_groups,
    larger,
    least,
    max_components,
    stored,
    take,
)
from basinax.systems.plan import plan_of_ids, plan_of_sizes


class SystemIndex(eqx.Module):
    """Maps the rows of an array (its leading axis) to systems.

    Make an index with `from_sizes` or `from_ids`. An index is data, so `jit` accepts one as an
    argument. Rows of no system are padding: no result depends on them, and `relax` leaves them in
    place.
    """

    ids: Int32[Array, "rows"]
    """The system of each row; `n_systems` for a row that belongs to none."""

    sizes: Int32[Array, "systems"]
    """The number of rows of each system."""

    # The plan (see `plan._plan_of`). Aligned: `_block_ids` and `_block_sizes` give the system of
    # each block of rows and its number of own rows. Otherwise `_block_rows` lists the rows of each
    # block. Each level lists the values of the level before that each group combines.
    _block_rows: Int32[Array, "blocks 8"] | None
    _block_ids: Int32[Array, "blocks"] | None
    _block_sizes: Int32[Array, "blocks"] | None
    _levels: tuple[Int32[Array, "_groups _width"], ...]
    _small_first: Int32[Array, "systems"]
    _n_small: Int32[Array, ""]
    is_aligned: bool = eqx.field(static=True)
    """Whether every system starts on a multiple of eight rows and shares no block of eight."""

    def __init__(self, *plan: Any):
        """Private: `from_sizes` and `from_ids` make an index."""
        names = [field.name for field in dataclasses.fields(self)]
        if len(plan) != len(names):
            raise TypeError(
                "an index is made by SystemIndex.from_sizes([3, 4]), the rows of each system, or"
                " SystemIndex.from_ids([0, 0, 1]), the system of each row"
            )
        for name, value in zip(names, plan, strict=True):
            setattr(self, name, value)

    def __repr__(self) -> str:
        n_systems, n_rows = self.sizes.shape[0], self.ids.shape[0]
        return f"SystemIndex({count_of(n_systems, 'system')}, {count_of(n_rows, 'row')})"

    @classmethod
    def from_sizes(cls, sizes: Any, *, align: int = 1, n_rows: int | None = None) -> "SystemIndex":
        """The index of systems that lie one after another.

        Args:
            sizes: the number of rows of each system; 0 is allowed.
            align: each system starts on a multiple of this many rows, with padding between.
                Multiples of 8 make the aligned layout, which is faster and has the same bits.
            n_rows: the total number of rows, padding included; None for the fewest possible.

        Raises:
            TypeError: `sizes` are not integers or are traced.
            ValueError: a size is negative, `sizes` is not flat, `align` is not positive, or the
                systems do not fit into `n_rows`.
        """
        check_process()
        return jax.device_put(index_of_sizes(sizes, align=align, n_rows=n_rows))

    @classmethod
    def from_ids(cls, ids: Any, n_systems: int | None = None) -> "SystemIndex":
        """The index of rows in any order.

        Args:
            ids: the system of each row, from 0; -1 or `n_systems` marks a row of no system.
            n_systems: the number of systems; the largest id + 1 if None.

        Raises:
            TypeError: `ids` are not integers or are traced.
            ValueError: an id is out of range or `ids` is not flat.
        """
        check_process()
        return jax.device_put(index_of_ids(ids, n_systems))

    @property
    def n_systems(self) -> int:
        """The number of systems, those without rows included."""
        return self.sizes.shape[0]

    @property
    def n_rows(self) -> int:
        """The number of rows, padding included."""
        return self.ids.shape[0]

    @property
    def most_rows(self) -> int:
        """An upper bound of the rows of a system, a power of eight; static under `jit`."""
        return BLOCK ** len(self._levels) * self._levels[-1].shape[1]

    def __len__(self) -> int:
        return self.n_systems

    def has_system(self) -> Bool[Array, "rows"]:
        """Which rows belong to a system."""
        return self.ids < self.n_systems

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "systems"]:
        """The sum over each system's rows and components; 0 for a system without rows.

        Products among `rows` must be rounded. The values of padding rows are not read.
        """
        return self.add(add_components(rows))

    def add(self, values: Float[Array, "rows *leaves"]) -> Float[Array, "systems *leaves"]:
        """`sum` of one value per row, for several leaves at once."""
        return finished(self._fold(jnp.add, values, -0.0), self.sizes)

    def max(
        self, rows: Shaped[Array, "rows *components"], larger: Callable = larger
    ) -> Shaped[Array, "systems"]:
        """The largest entry of each system's rows.

        -inf for a system without rows, or the least value of an integer dtype.

        Args:
            larger: `jnp.maximum` makes a shorter program, for rows without subnormal numbers.
        """
        # Reduce by halves: XLA stores each level of the halving, but would fuse `jnp.max` into its
        # consumer and recompute the maximum for each row. Any order gives the same bits.
        largest = self._fold(larger, max_components(rows, larger), least(rows.dtype))
        return stored(largest, self.sizes)

    def depths(self) -> Int32[Array, "systems"]:
        """The number of levels in which a system's rows are added, at least one."""
        levels = range(1, len(self._levels) + 1)
        deeper = [(self.sizes > BLOCK**k).astype(jnp.int32) for k in levels]
        return functools.reduce(jnp.add, deeper, jnp.ones_like(self.sizes))

    def spread(
        self, values: Shaped[Array, "systems *_first"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        """The value of each row's system, broadcast to the shape of `like`; `padding` elsewhere.

        Where values have components, they are the first of `like`. Numbers, but not booleans, reach
        the padding that fills up the last block of a system in the aligned layout, too.
        """
        rest = (1,) * (like.ndim - values.ndim)
        if not self.is_aligned:
            found = take(values, self.ids, padding)
            return jnp.broadcast_to(found.reshape(found.shape + rest), like.shape)
        # Repeating one gathered value per block costs less than gathering one per row.
        found = take(values, self._block_ids, padding)[:, None]
        blocks = (found.shape[0], BLOCK, *like.shape[1:])
        spread = jnp.broadcast_to(found.reshape(found.shape + rest), blocks).reshape(like.shape)
        if values.dtype != jnp.bool_:
            return spread
        return jnp.where(self.has_system().reshape(-1, *[1] * (like.ndim - 1)), spread, padding)

    def first_blocks(
        self, rows: Shaped[Array, "rows *components"], systems: Int32[Array, "some"]
    ) -> tuple[Shaped[Array, "first_rows *components"], "BlockIndex"]:
        """The first eight rows of the given systems, and their index."""
        at = take(self._levels[-1][:, 0], systems, np.iinfo(np.int32).max)
        for level in self._levels[-2::-1]:
            at = take(level[:, 0], at, np.iinfo(np.int32).max)
        if self._block_rows is None:
            # A system without rows gets rows of another system; its size of 0 masks them.
            blocks = rows.reshape(self.n_rows // BLOCK, BLOCK, *rows.shape[1:])
            blocks = take(blocks, at, 0, mode="clip")
        else:
            members = take(self._block_rows, at, self.n_rows)
            blocks = take(rows, members, 0)
        sizes = take(self.sizes, systems, 0)
        return blocks.reshape(len(systems) * BLOCK, *rows.shape[1:]), BlockIndex(
            jnp.minimum(sizes, BLOCK)
        )

    def _fold(self, combine: Callable, values: Array, absent: float) -> Array:
        """Combine the values of each system's rows in blocks of eight, by halves."""
        if self._block_sizes is None:
            values = fold_groups(combine, values, self._block_rows, absent)
        else:
            values = fold_blocks(combine, values, self._block_sizes, absent)
        for level in self._levels:
            values = fold_groups(combine, values, level, absent)
        return values


def index_of_sizes(
    sizes: Any,
    *,
    align: int = 1,
    n_rows: int | None = None,
    most_rows: int = 0,
) -> SystemIndex:
    """`SystemIndex.from_sizes` with NumPy arrays as leaves.

    Passing NumPy arrays to a jitted function takes a few microseconds; `device_put` takes fifty.

    Args:
        most_rows: give the index the shapes for a system of this many rows.
    """
    return SystemIndex(*plan_of_sizes(sizes, align=align, n_rows=n_rows, most_rows=most_rows))


def index_of_ids(ids: Any, n_systems: int | None = None) -> SystemIndex:
    """`SystemIndex.from_ids` with NumPy arrays as leaves."""
    return SystemIndex(*plan_of_ids(ids, n_systems))


class WholeIndex(eqx.Module):
    """All rows of an array as one system, without any gather.

    It has the methods of a `SystemIndex` of one system, and returns the same bits.
    """

    n_rows: int = eqx.field(static=True)
    n_systems: int = eqx.field(static=True, default=1)

    @property
    def sizes(self) -> Int32[Array, "1"]:
        return jnp.full((1,), self.n_rows, jnp.int32)

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "1"]:
        return self.add(add_components(rows))

    def add(self, values: Float[Array, "rows *leaves"]) -> Float[Array, "1 *leaves"]:
        if self.n_rows == 0:
            return jnp.zeros((1, *values.shape[1:]), values.dtype)
        return add_rows(values)[None]

    def quick_sum(
        self, rows: Float[Array, "rows *components"], term: Callable[[Array], Array]
    ) -> Float[Array, "1"]:
        """The sum of `term(rows)`; large arrays are added in the order of memory.

        Args:
            term: an elementwise function.
        """
        if rows.size <= QUICK_ENTRIES:
            return self.sum(term(rows))
        return add_parts(rows.reshape(-1), term)[None]

    def quick_additions(self, leaf: Array) -> int:
        """The largest number of additions of one entry in `quick_sum`; 0 for small leaves."""
        return part_additions(leaf.size) if leaf.size > QUICK_ENTRIES else 0

    def depths(self) -> Int32[Array, "1"]:
        n_blocks, depth = -(-self.n_rows // BLOCK), 1
        while n_blocks > 1:
            n_blocks, depth = -(-n_blocks // BLOCK), depth + 1
        return jnp.full((1,), depth, jnp.int32)

    def max(
        self, rows: Shaped[Array, "rows *components"], larger: Callable = larger
    ) -> Shaped[Array, "1"]:
        return jnp.max(rows, initial=least(rows.dtype))[None]

    def spread(
        self, values: Shaped[Array, "1"], padding: float | bool, like: Array
    ) -> Shaped[Array, "..."]:
        return jnp.broadcast_to(values.reshape((1,) * like.ndim), like.shape)

    def first_blocks(self, rows, systems):
        rows = jnp.atleast_1d(rows)[:BLOCK]
        return rows, WholeIndex(rows.shape[0])


QUICK_ENTRIES = 8192
"""In global mode, leaves of more entries are added in the order of memory."""


class RowIndex(eqx.Module):
    """Every row of an array as a system of its own, padding included."""

    n_rows: int = eqx.field(static=True)

    @property
    def n_systems(self) -> int:
        return self.n_rows

    @property
    def sizes(self) -> Int32[Array, "rows"]:
        return jnp.ones((self.n_rows,), jnp.int32)

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "rows"]:
        return add_components(rows)

    def add(self, values: Float[Array, "rows *leaves"]) -> Float[Array, "rows *leaves"]:
        return values

    def depths(self) -> Int32[Array, "rows"]:
        return jnp.ones((self.n_rows,), jnp.int32)

    def max(
        self, rows: Shaped[Array, "rows *components"], larger: Callable = larger
    ) -> Shaped[Array, "rows"]:
        return max_components(rows, larger)

    def spread(
        self, values: Shaped[Array, "rows"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        return jnp.broadcast_to(values.reshape((-1,) + (1,) * (like.ndim - 1)), like.shape)

    def first_blocks(self, rows, systems):
        return rows, self


class BlockIndex(eqx.Module):
    """Every eight rows as a system; rows past its size are ignored."""

    sizes: Int32[Array, "systems"]

    @property
    def n_systems(self) -> int:
        return self.sizes.shape[0]

    @property
    def n_rows(self) -> int:
        return self.n_systems * BLOCK

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "systems"]:
        blocks = rows.reshape(self.n_systems, BLOCK, *rows.shape[1:])
        # Adding column by column is fastest directly after a gather of the rows.
        absent = jnp.asarray(-0.0, rows.dtype)
        sums = [
            jnp.where(k < self.sizes, add_components(blocks[:, k]), absent) for k in range(BLOCK)
        ]
        return finished(tree_sum_list(sums), self.sizes)

    def add(self, values: Float[Array, "rows *leaves"]) -> Float[Array, "systems *leaves"]:
        return finished(fold_blocks(jnp.add, values, self.sizes, -0.0), self.sizes)

    def max(
        self, rows: Shaped[Array, "rows *components"], larger: Callable = larger
    ) -> Shaped[Array, "systems"]:
        return fold_blocks(larger, max_components(rows, larger), self.sizes, least(rows.dtype))

    def spread(
        self, values: Shaped[Array, "systems"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        blocks = (self.n_systems, BLOCK * math.prod(like.shape[1:]))
        return jnp.broadcast_to(values[:, None], blocks).reshape(like.shape)


AnyIndex = SystemIndex | WholeIndex | RowIndex | BlockIndex


def one_by_one(function: Callable, x: Array, index: AnyIndex) -> Array:
    """`function(x, index)` of an elementwise function; small arrays of global mode run in a loop.

    For rare cases only. XLA on CPU runs a program of fewer than a thousand operations in place, but
    hands a larger one to another thread. The body of a loop counts once, so the loop keeps the
    program small; the results are the same.
    """
    if isinstance(index, WholeIndex) and 1 < x.size <= FEW_ENTRIES:
        return jax.lax.map(lambda entry: function(entry, index), x.reshape(-1)).reshape(x.shape)
    return function(x, index)


FEW_ENTRIES = 128
"""In global mode, programs for more entries than this are large in any case."""


def where_any(mask: Bool[Array, "systems"], function: Callable, other: Callable) -> Any:
    """`function()` if any entry of the mask is set, else `other()`.

    Both must return the same for systems outside the mask, so that a system does not see its
    neighbours. So `function` alone is called where a branch costs more; not in global mode, where
    it would go through the largest arrays. Op by op the mask is known, and JAX would compile
    `jax.lax.cond` anew in each call.
    """
    if not isinstance(mask, Tracer):
        return function() if jax.device_get(mask).any() else other()
    if mask.size > 1 and not xla.has_cheap_branches():
        return function()
    return jax.lax.cond(jnp.any(mask), function, other)


def of_small(
    test: Callable[[Int32[Array, "some"] | slice], Bool[Array, "some"]],
    mask: Bool[Array, "systems"],
    index: AnyIndex,
) -> Bool[Array, "systems"]:
    """A test of the systems of `mask`, which have at most one block of rows each.

    Args:
        test: a function of system numbers, or of a slice of all systems. It does not run if the
            mask is empty. Results for systems outside the mask have no meaning.
    """
    if not isinstance(index, SystemIndex):
        return where_any(mask, lambda: test(slice(None)), lambda: mask)
    at_once = min(SMALL_AT_ONCE, index.n_systems)

    def ask(k, passes):
        systems = jax.lax.dynamic_slice_in_dim(index._small_first, k * at_once, at_once)
        return passes.at[systems].set(test(systems), mode="promise_in_bounds", unique_indices=True)

    n_turns = jnp.where(jnp.any(mask), -(-index._n_small // max(at_once, 1)), 0)
    return jax.lax.fori_loop(0, n_turns, ask, jnp.zeros_like(mask))


SMALL_AT_ONCE = 512
"""The number of small systems per call of a test: small systems may be few."""
