"""Which row belongs to which system, and the order in which a system's rows are added.

The order is fixed by a system's own rows: blocks of eight consecutive ones counted from its first,
then blocks of eight block sums, until one is left. Index arrays of every level are made once, on
the host. See docs/design.md, section 2.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int32, PyTree, Shaped

from basinax._bits.rounding import (
    BLOCK,
    add_components,
    add_parts,
    add_rows,
    combine_components,
    combine_halves,
    part_additions,
)
from basinax._jax.forks import check_process
from basinax._settings import (
    MOST,
    WHOLE,
    dtype_of,
    require_memory,
    require_real,
    require_whole,
    shown,
)


class SystemIndex(eqx.Module):
    """Maps the rows of an array (its leading axis) to systems.

    Make one with `from_sizes` or `from_ids`; an index is data, so it may be passed through `jit`.
    Rows that belong to no system are padding: they change no result and are never moved.
    """

    ids: Int32[Array, "rows"]
    """The system of each row; `n_systems` for a row that belongs to none."""

    sizes: Int32[Array, "systems"]
    """The number of rows of each system."""

    _block_rows: Int32[Array, "blocks 8"] | None
    _block_ids: Int32[Array, "blocks"] | None
    _block_sizes: Int32[Array, "blocks"] | None
    _levels: tuple[Int32[Array, "groups width"], ...]
    _small_first: Int32[Array, "systems"]
    _n_small: Int32[Array, ""]
    is_aligned: bool = eqx.field(static=True)
    """Whether every system starts on a multiple of eight rows and fills its last eight alone."""

    @classmethod
    def from_sizes(cls, sizes: Any, *, align: int = 1, n_rows: int | None = None) -> "SystemIndex":
        """The index of systems that lie one after another.

        Args:
            sizes: the number of rows of each system; 0 is allowed.
            align: each system starts on a multiple of this many rows, with padding before the
                next. A multiple of 8 makes the aligned layout, which is faster; the bits are the
                same.
            n_rows: the number of rows in all, padding included; the fewest possible if None.

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
            ids: the system of each row, from 0. -1 (or `n_systems`) marks a row of no system.
            n_systems: the number of systems; the largest id + 1 if None.

        Raises:
            TypeError: `ids` are not integers or are traced.
            ValueError: an id is out of range or `ids` is not flat.
        """
        check_process()
        return jax.device_put(index_of_ids(ids, n_systems))

    @property
    def n_systems(self) -> int:
        return self.sizes.shape[0]

    @property
    def n_rows(self) -> int:
        """The number of rows, padding included."""
        return self.ids.shape[0]

    @property
    def most_rows(self) -> int:
        """No system has more rows than this: a power of eight, known where the index is traced."""
        return BLOCK ** len(self._levels) * self._levels[-1].shape[1]

    def __len__(self) -> int:
        return self.n_systems

    def has_system(self) -> Bool[Array, "rows"]:
        """Which rows belong to a system."""
        return self.ids < self.n_systems

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "systems"]:
        """The sum over each system's rows and components; 0 for a system without rows.

        Products among `rows` must be rounded. What stands in padding rows is not looked at.
        """
        return _finished(self._fold(jnp.add, add_components(rows), -0.0), self.sizes)

    def max(self, rows: Shaped[Array, "rows *components"]) -> Shaped[Array, "systems"]:
        """The largest over each system's rows and components.

        -inf for a system without rows, the least of all where `rows` are integers.
        """
        # By halves, of which XLA stores each level; `jnp.max` it would find again for every row
        # that the result is spread to.
        largest = self._fold(_larger, _max_components(rows), _least(rows.dtype))
        return _stored(largest, self.sizes)

    def depths(self) -> Int32[Array, "systems"]:
        """After how many sums of eight one is left of each system, one at least."""
        levels = range(1, len(self._levels) + 1)
        deeper = [(self.sizes > BLOCK**k).astype(jnp.int32) for k in levels]
        return functools.reduce(jnp.add, deeper, jnp.ones_like(self.sizes))

    def spread(
        self, values: Shaped[Array, "systems"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        """The value of each row's system, `padding` for a row of none, in the shape of `like`."""
        if not self.is_aligned:
            per_row = _take(values, self.ids, padding).reshape((-1,) + (1,) * (like.ndim - 1))
            return jnp.broadcast_to(per_row, like.shape)
        # One value a block, repeated for all that the block holds, is cheaper than one a row.
        per_block = _take(values, self._block_ids, padding)
        width = BLOCK * math.prod(like.shape[1:])
        return jnp.broadcast_to(per_block[:, None], (per_block.size, width)).reshape(like.shape)

    def may_be_block(self) -> bool:
        """Whether a system of one block of rows may be among these."""
        return True

    def first_blocks(
        self, rows: Shaped[Array, "rows *components"], systems: Int32[Array, "some"]
    ) -> tuple[Shaped[Array, "first_rows *components"], "BlockIndex"]:
        """The first eight rows of these systems, and the index that adds and spreads over them."""
        at = _take(self._levels[-1][:, 0], systems, np.iinfo(np.int32).max)
        for level in self._levels[-2::-1]:
            at = _take(level[:, 0], at, np.iinfo(np.int32).max)
        if self._block_rows is None:
            # A system without rows gets another's, which its size hides.
            blocks = rows.reshape(self.n_rows // BLOCK, BLOCK, *rows.shape[1:])
            blocks = _take(blocks, at, 0, mode="clip")
        else:
            members = _take(self._block_rows, at, self.n_rows)
            blocks = _take(rows, members, 0)
        sizes = _take(self.sizes, systems, 0)
        return blocks.reshape(len(systems) * BLOCK, *rows.shape[1:]), BlockIndex(
            jnp.minimum(sizes, BLOCK)
        )

    def _fold(self, combine: Callable, values: Array, absent: float) -> Array:
        """The values of each system's rows combined, blocks of eight by halves."""
        if self._block_sizes is None:
            values = _fold_groups(combine, values, self._block_rows, absent)
        else:
            values = _fold_blocks(combine, values, self._block_sizes, absent)
        for level in self._levels:
            values = _fold_groups(combine, values, level, absent)
        return values


class WholeIndex(eqx.Module):
    """All rows of an array as one system, in whose place nothing is gathered.

    It has the methods of `SystemIndex`, and the bits of one with a single system.
    """

    n_rows: int = eqx.field(static=True)
    n_systems: int = eqx.field(static=True, default=1)

    @property
    def sizes(self) -> Int32[Array, "1"]:
        return jnp.full((1,), self.n_rows, jnp.int32)

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "1"]:
        if self.n_rows == 0:
            return jnp.zeros((1,), rows.dtype)
        return add_rows(add_components(rows))[None]

    def quick_sum(
        self, rows: Float[Array, "rows *components"], term: Callable[[Array], Array]
    ) -> Float[Array, "1"]:
        """The sum of `term(rows)`; of many entries in an order that suits memory, its own.

        Args:
            term: treats entries by themselves.
        """
        if rows.size <= QUICK_ENTRIES:
            return self.sum(term(rows))
        return add_parts(rows.reshape(-1), term)[None]

    def quick_additions(self, leaf: Array) -> int:
        """In how many additions an entry takes part at most, where the order is that of memory."""
        return part_additions(leaf.size) if leaf.size > QUICK_ENTRIES else 0

    def depths(self) -> Int32[Array, "1"]:
        n_blocks, depth = -(-self.n_rows // BLOCK), 1
        while n_blocks > 1:
            n_blocks, depth = -(-n_blocks // BLOCK), depth + 1
        return jnp.full((1,), depth, jnp.int32)

    def max(self, rows: Shaped[Array, "rows *components"]) -> Shaped[Array, "1"]:
        return jnp.max(rows, initial=_least(rows.dtype))[None]

    def spread(
        self, values: Shaped[Array, "1"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        return jnp.broadcast_to(values.reshape((1,) * like.ndim), like.shape)

    def may_be_block(self) -> bool:
        return self.n_rows <= BLOCK

    def first_blocks(self, rows, systems):
        rows = jnp.atleast_1d(rows)[:BLOCK]
        return rows, WholeIndex(rows.shape[0])


QUICK_ENTRIES = 8192
"""More entries of a leaf than this are added in the order of memory in global mode."""


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

    def depths(self) -> Int32[Array, "rows"]:
        return jnp.ones((self.n_rows,), jnp.int32)

    def max(self, rows: Shaped[Array, "rows *components"]) -> Shaped[Array, "rows"]:
        return _max_components(rows)

    def spread(
        self, values: Shaped[Array, "rows"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        return jnp.broadcast_to(values.reshape((-1,) + (1,) * (like.ndim - 1)), like.shape)

    def may_be_block(self) -> bool:
        return True

    def first_blocks(self, rows, systems):
        return rows, self


class BlockIndex(eqx.Module):
    """Every eight rows as a system; those past its size are not looked at."""

    sizes: Int32[Array, "systems"]

    @property
    def n_systems(self) -> int:
        return self.sizes.shape[0]

    @property
    def n_rows(self) -> int:
        return self.n_systems * BLOCK

    def sum(self, rows: Float[Array, "rows *components"]) -> Float[Array, "systems"]:
        blocks = rows.reshape(self.n_systems, BLOCK, *rows.shape[1:])
        # By columns, the fastest where the rows have only just been gathered.
        absent = jnp.asarray(-0.0, rows.dtype)
        sums = [
            jnp.where(k < self.sizes, add_components(blocks[:, k]), absent) for k in range(BLOCK)
        ]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
        return _finished(sums[0], self.sizes)

    def max(self, rows: Shaped[Array, "rows *components"]) -> Shaped[Array, "systems"]:
        return _fold_blocks(_larger, _max_components(rows), self.sizes, _least(rows.dtype))

    def spread(
        self, values: Shaped[Array, "systems"], padding: float | bool, like: Array
    ) -> Shaped[Array, "rows *components"]:
        blocks = (self.n_systems, BLOCK * math.prod(like.shape[1:]))
        return jnp.broadcast_to(values[:, None], blocks).reshape(like.shape)


AnyIndex = SystemIndex | WholeIndex | RowIndex | BlockIndex


def one_by_one(function: Callable, x: Array, index: AnyIndex) -> Array:
    """`function(x, index)`, which acts on each entry alone: a few of global mode in a loop.

    For what is seldom needed: XLA counts a loop's body once, and a program of fewer than a thousand
    operations JAX runs on CPU at once, where it would else wake another thread for it.
    """
    if isinstance(index, WholeIndex) and 1 < x.size <= FEW_ENTRIES:
        return jax.lax.map(lambda entry: function(entry, index), x.reshape(-1)).reshape(x.shape)
    return function(x, index)


FEW_ENTRIES = 128
"""In global mode, more entries than this make a program that is not run at once in any case."""


def where_any(mask: Bool[Array, "systems"], function: Callable, other: Callable) -> Any:
    """What `function` returns if any of the mask is set, else what `other` does."""
    return jax.lax.cond(jnp.any(mask), function, other)


def of_small(
    test: Callable[[Int32[Array, "some"] | slice], Bool[Array, "some"]],
    mask: Bool[Array, "systems"],
    index: AnyIndex,
) -> Bool[Array, "systems"]:
    """What a test says of the systems of `mask`, none of which has more rows than a block.

    Args:
        test: of the systems of these numbers, or a slice of all. It is not asked where no system is
            in the mask, and what it says of others has no meaning.
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
"""Of so many small systems a test is asked at once, since they may be few among many."""


def _larger(a: Array, b: Array) -> Array:
    """The larger one, NaN if there is one; `jnp.maximum` makes subnormal numbers zero, or not."""
    return jnp.where((a >= b) | (a != a), a, b)


def _least(dtype) -> float | int:
    """What is no larger than anything of that dtype."""
    return -math.inf if jnp.issubdtype(dtype, jnp.floating) else int(jnp.iinfo(dtype).min)


def _take(values, indices, absent, mode="fill"):
    values = jnp.asarray(values)
    if values.shape[0] == 0:
        return jnp.full(indices.shape + values.shape[1:], absent, values.dtype)
    # No index is negative; without the wrapping of negative ones this takes half the time.
    return values.at[indices].get(mode=mode, fill_value=absent, wrap_negative_indices=False)


HALF = BLOCK // 2


def _fold_blocks(combine, values, sizes, absent):
    """Every eight values combined by halves, those past the size of their block left out.

    XLA on CPU stores what a loop would compute more than fifteen times for one entry. What it would
    compute less often it puts into the loop, which is then not vectorised. So values are read in
    two ways, here and for groups, by a choice on which nothing depends; LLVM drops one of them.
    """
    sizes = sizes[:, None]
    blocks = values.reshape(sizes.size, BLOCK)
    halves = values.reshape(sizes.size, 2, HALF)
    first = jnp.where(sizes >= 0, blocks[:, :HALF], halves[:, 0])
    last = jnp.where(sizes >= 0, blocks[:, HALF:], halves[:, 1])
    at, absent = jnp.arange(HALF, dtype=jnp.int32)[None], jnp.asarray(absent, values.dtype)
    first, last = jnp.where(at < sizes, first, absent), jnp.where(at + HALF < sizes, last, absent)
    return combine_halves(combine, combine(first, last))


def _fold_groups(combine, values, groups, absent):
    """The values of each group combined by halves, read in two ways as by `_fold_blocks`."""
    taken = _take(values, groups, absent)
    if groups.shape[1] == 1:
        return taken[:, 0]
    first, last = groups[:, :HALF], groups[:, HALF:]
    firsts = jnp.where(first >= 0, taken[:, :HALF], _take(values, first, absent))
    lasts = jnp.where(last >= 0, taken[:, HALF:], _take(values, last, absent))
    return combine_halves(combine, combine(firsts, lasts))


def _finished(sums: Float[Array, "systems"], sizes: Int32[Array, "systems"]):
    """The sums, where a system without rows has 0.0 in place of -0.0.

    By a division: a quotient with several readers XLA on CPU stores. It would else take the sum
    again for each of them.
    """
    return sums / jnp.where(sizes > 0, 1, -1).astype(sums.dtype)


def _stored(values: Shaped[Array, "systems"], sizes: Int32[Array, "systems"]):
    """The same values. XLA on CPU stores a quotient, and recomputes a maximum for every reader."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    return values / jnp.where(sizes >= 0, 1, 2).astype(values.dtype)


def _max_components(rows: Shaped[Array, "rows *components"]) -> Shaped[Array, "rows"]:
    return combine_components(_larger, rows, _least(rows.dtype))


def _group(members: np.ndarray, counts: np.ndarray, n_groups: int, absent: int) -> np.ndarray:
    """Groups of eight consecutive members of each system, the last of each filled with `absent`.

    `n_groups` follows from the numbers of members and systems alone, so that batches of one shape
    have one program, whatever their composition.
    """
    groups = np.full((n_groups, BLOCK), absent, np.int32)
    per_system = -(-counts // BLOCK)
    first_slot = (np.cumsum(per_system) - per_system) * BLOCK
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    groups.reshape(-1)[np.repeat(first_slot, counts) + within] = members[: counts.sum()]
    return groups


def _host_integers(values: Any, name: str) -> np.ndarray:
    if isinstance(values, Tracer):
        raise TypeError(f"{name} must be known before tracing: make the SystemIndex outside jit")
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {values.shape}")
    if values.size == 0:
        return values.astype(np.int64)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    if values.max() > MOST:
        at = int(np.argmax(values > MOST))
        raise ValueError(
            f"{name} must be at most {MOST}, the largest number of rows: entry {at} is {values[at]}"
        )
    return values.astype(np.int64)


def _int32(values: Any) -> Any:
    return None if values is None else np.asarray(values, np.int32)


def index_of_sizes(
    sizes: Any, *, align: int = 1, n_rows: int | None = None, most_rows: int = 0
) -> SystemIndex:
    """As `SystemIndex.from_sizes`, of NumPy arrays.

    A jitted function takes an array as it is in some microseconds; to put it on a device by itself
    takes fifty.

    Args:
        most_rows: the index has the shapes of one in which a system has so many rows.
    """
    sizes = _host_integers(sizes, "sizes")
    if (sizes < 0).any():
        at = int(np.argmax(sizes < 0))
        raise ValueError(f"sizes must not be negative: system {at} has {sizes[at]} rows")
    require_whole(align, "align")
    if not 1 <= align <= MOST:
        raise ValueError(f"align must be a positive number of rows, got {shown(align)}")
    if n_rows is not None:
        require_whole(n_rows, "n_rows", WHOLE)
    align = int(align)
    padded = -(-sizes // align) * align
    needed = int(padded.sum())
    rows = -(-needed // align) * align if n_rows is None else int(n_rows)
    if rows < needed:
        raise ValueError(f"sizes add up to {needed} rows (align={align}), got n_rows={n_rows}")
    require_room(rows, len(sizes))
    starts = np.cumsum(padded) - padded
    ids = np.full(rows, len(sizes), np.int32)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ids[np.repeat(starts, sizes) + within] = np.repeat(np.arange(len(sizes)), sizes)
    aligned = align % BLOCK == 0 and rows % BLOCK == 0
    return _index_of(ids, sizes, aligned=aligned, most_rows=most_rows)


def index_of_ids(ids: Any, n_systems: int | None = None) -> SystemIndex:
    """As `SystemIndex.from_ids`, of NumPy arrays."""
    ids = _host_integers(ids, "ids")
    if n_systems is not None:
        require_whole(n_systems, "n_systems", WHOLE)
    count = int(ids.max(initial=-1)) + 1 if n_systems is None else int(n_systems)
    wrong = (ids < -1) | (ids > count)
    if count < 0 or wrong.any():
        at = int(np.argmax(wrong)) if wrong.any() else 0
        got = f"row {at} has id {ids[at]}" if wrong.any() else f"n_systems={n_systems}"
        raise ValueError(f"ids must lie between -1 and n_systems={count}: {got}")
    require_room(len(ids), count)
    ids = np.where(ids < 0, count, ids).astype(np.int32)
    return _index_of(ids, np.bincount(ids, minlength=count + 1)[:count], aligned=False)


def require_room(n_rows: int, n_systems: int) -> None:
    """Raise ValueError where there are too many rows or systems for an index.

    An id without rows makes all below it systems, and 64 bytes are about what each takes while the
    index is made.
    """
    for name, count in (("rows", n_rows), ("systems", n_systems)):
        if count > MOST:
            raise ValueError(f"an index has at most {MOST} {name}, got {shown(count)}")
    require_memory(
        64.0 * (n_rows + n_systems), f"an index of {n_rows} rows and {n_systems} systems"
    )


def _index_of(
    ids: np.ndarray, sizes: np.ndarray, *, aligned: bool, most_rows: int = 0
) -> SystemIndex:
    n_blocks = -(-sizes // BLOCK)
    if aligned:
        block_rows, block_ids = None, ids[::BLOCK]
        block_sizes = (ids.reshape(-1, BLOCK) < len(sizes)).sum(1)
        n_groups = len(block_ids)
        block_order = np.argsort(block_ids, kind="stable")[: n_blocks.sum()]
    else:
        n_groups = len(ids) // BLOCK + len(sizes)
        block_rows = _group(np.argsort(ids, kind="stable"), sizes, n_groups, len(ids))
        block_ids, block_sizes, block_order = None, None, np.arange(n_blocks.sum())
    levels = []
    members, counts, n_members = block_order, n_blocks, n_groups
    most = max(counts.max(initial=0), -(-most_rows // BLOCK))
    while most > BLOCK:
        n_groups = n_members // BLOCK + len(sizes)
        levels.append(_group(members, counts, n_groups, n_members))
        counts, most = -(-counts // BLOCK), -(-most // BLOCK)
        members, n_members = np.arange(counts.sum()), n_groups
    width = BLOCK if most > 1 else 1
    last = np.full((len(sizes), width), n_members)
    slot = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    last[np.repeat(np.arange(len(sizes)), counts), slot] = members
    levels.append(last.astype(np.int32))
    return SystemIndex(
        ids=_int32(ids),
        sizes=_int32(sizes),
        _block_rows=_int32(block_rows),
        _block_ids=_int32(block_ids),
        _block_sizes=_int32(block_sizes),
        _levels=tuple(_int32(level) for level in levels),
        _small_first=_int32(np.argsort(sizes > BLOCK, kind="stable")),
        _n_small=_int32((sizes <= BLOCK).sum()),
        is_aligned=aligned,
    )


def resolve(index_prefix: PyTree[SystemIndex] | None, tree: PyTree) -> Sequence[AnyIndex]:
    """The index of each leaf of `tree`. With `index_prefix=None` all of it is one system.

    Raises:
        TypeError: a leaf of the prefix is no `SystemIndex`.
        ValueError: the prefix does not fit the tree, a leaf has another number of rows than its
            index, or two indices have different numbers of systems.
    """
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(tree)
    if index_prefix is None:
        return [WholeIndex(_n_rows(leaf)) for _, leaf in paths_and_leaves]
    indices = _broadcast(index_prefix, tree)
    for (path, leaf), index in zip(paths_and_leaves, indices, strict=True):
        shape = jnp.shape(leaf)
        if not shape or shape[0] != index.n_rows:
            raise ValueError(
                f"leaf {_name(path)} has shape {shape}, but its SystemIndex has {index.n_rows} rows"
                " (the leading axis of a leaf goes over rows)"
            )
        if index.n_systems != indices[0].n_systems:
            raise ValueError(
                f"the index of leaf {_name(path)} has {index.n_systems} systems, that of the"
                f" first leaf {indices[0].n_systems}: all must have the same systems"
            )
    return indices


def n_systems(index_prefix: PyTree[SystemIndex] | None) -> int:
    """The number of systems of a prefix, 1 in global mode.

    Raises:
        TypeError: a leaf of the prefix is no `SystemIndex`.
        ValueError: the prefix holds no `SystemIndex`.
    """
    if index_prefix is None:
        return 1
    indices = _indices_of(index_prefix)
    if not indices:
        raise ValueError("index_prefix holds no SystemIndex; pass None for global mode")
    return indices[0].n_systems


def _indices_of(index_prefix: PyTree) -> list[SystemIndex]:
    leaves = jax.tree.leaves(index_prefix, is_leaf=is_index)
    wrong = [x for x in leaves if not is_index(x)]
    if wrong:
        raise TypeError(
            f"leaves of index_prefix must be SystemIndex, got {type(wrong[0]).__name__}: make one"
            " with SystemIndex.from_sizes or SystemIndex.from_ids"
        )
    return leaves


def per_system(value: Any, name: str, like: Shaped[Array, "systems"]) -> Shaped[Array, "systems"]:
    """A setting as one value a system, in the dtype of `like`.

    Raises:
        TypeError: it is no number, or a complex one.
        ValueError: it is neither one number nor an array of one a system.
    """
    require_real(value, name)
    value = jnp.asarray(value)
    if value.shape not in ((), like.shape):
        raise ValueError(
            f"{name} must be a number or have one entry for each of the {like.shape[0]} systems,"
            f" got shape {value.shape}"
        )
    return jnp.broadcast_to(value.astype(like.dtype), like.shape)


def _broadcast(index_prefix, tree):
    _indices_of(index_prefix)

    def repeat(index, subtree):
        return [index] * len(jax.tree.leaves(subtree))

    try:
        nested = jax.tree.map(repeat, index_prefix, tree, is_leaf=is_index)
    except ValueError as error:
        raise ValueError(
            "index_prefix must be a tree prefix of the parameters: one SystemIndex for all, or one"
            f" for each of their branches.\n  index_prefix: {_outline(index_prefix)}\n"
            f"  parameters: {_outline(tree)}"
        ) from error
    return jax.tree.leaves(nested, is_leaf=is_index)


def _outline(tree) -> str:
    return str(jax.tree.structure(tree, is_leaf=is_index)).removeprefix("PyTreeDef")


def is_index(x) -> bool:
    return isinstance(x, SystemIndex)


def check_leaves(tree: PyTree) -> None:
    """Make sure that every leaf is an array, or a scalar, of real floating-point numbers.

    Raises:
        TypeError: one is not; names it and what can be done.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_index):
        dtype = None if is_index(leaf) else dtype_of(leaf)
        if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
            continue
        got, advice = type(leaf).__name__, "take it out of the tree"
        if dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating):
            got, advice = str(dtype), "give its real and imaginary part as two leaves"
        elif dtype is not None and any(jnp.issubdtype(dtype, x) for x in (jnp.integer, jnp.bool_)):
            got, advice = str(dtype), f"convert it with .astype(float), or {advice}"
        raise TypeError(f"leaf {_name(path)} must hold floating-point numbers, got {got}: {advice}")


def _n_rows(leaf) -> int:
    shape = jnp.shape(leaf)
    return shape[0] if shape else 1


def _name(path) -> str:
    return jax.tree_util.keystr(path) or "(the only one)"
