"""The plan of an index, made on the host with NumPy: the order in which rows are added."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from basinax.numerics.memory import require_memory
from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import MOST, WHOLE, require_whole, shown

Plan = tuple[Any, ...]
"""The fields of `SystemIndex` in order, as NumPy arrays of int32."""


def ranges(starts: Any, lengths: np.ndarray) -> np.ndarray:
    """The numbers of all ranges of these starts and lengths, one after another."""
    firsts = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - firsts, lengths)


def _group(members: np.ndarray, counts: np.ndarray, n_groups: int, absent: int) -> np.ndarray:
    """Groups of eight consecutive members of each system; `absent` fills each system's last group.

    `n_groups` depends only on the numbers of members and systems, so batches of one shape share one
    program, whatever their composition.
    """
    groups = np.full((n_groups, BLOCK), absent, np.int32)
    per_system = -(-counts // BLOCK)
    first_slot = (np.cumsum(per_system) - per_system) * BLOCK
    groups.reshape(-1)[ranges(first_slot, counts)] = members[: counts.sum()]
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


def plan_of_sizes(
    sizes: Any,
    *,
    align: int = 1,
    n_rows: int | None = None,
    most_rows: int = 0,
) -> Plan:
    """The plan of systems that lie one after another; see `SystemIndex.from_sizes`.

    Args:
        most_rows: give the plan the shapes for a system of this many rows.
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
    # Row i of system s lies at starts[s] + i; padding keeps the id `len(sizes)`.
    starts = np.cumsum(padded) - padded
    ids = np.full(rows, len(sizes), np.int32)
    ids[ranges(starts, sizes)] = np.repeat(np.arange(len(sizes)), sizes)
    aligned = align % BLOCK == 0 and rows % BLOCK == 0
    return _plan_of(ids, sizes, aligned=aligned, most_rows=most_rows)


def plan_of_ids(ids: Any, n_systems: int | None = None) -> Plan:
    """The plan of rows in any order; see `SystemIndex.from_ids`."""
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
    return _plan_of(ids, np.bincount(ids, minlength=count + 1)[:count], aligned=False)


def require_room(n_rows: int, n_systems: int) -> None:
    """Raise ValueError if an index cannot hold so many rows or systems.

    One large id makes systems of all numbers below; each takes about 64 bytes meanwhile.
    """
    for name, count in (("rows", n_rows), ("systems", n_systems)):
        if count > MOST:
            raise ValueError(f"an index has at most {MOST} {name}, got {shown(count)}")
    require_memory(
        64.0 * (n_rows + n_systems), f"an index of {n_rows} rows and {n_systems} systems"
    )


def _plan_of(ids: np.ndarray, sizes: np.ndarray, *, aligned: bool, most_rows: int = 0) -> Plan:
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
    # Each level: members [n] are positions in the level before, ordered by system; counts [systems]
    # are their numbers. A system leaves ceil(count / 8) members, until no system has more than 8.
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
    last[np.repeat(np.arange(len(sizes)), counts), ranges(0, counts)] = members
    levels.append(last)
    small_first, n_small = np.argsort(sizes > BLOCK, kind="stable"), (sizes <= BLOCK).sum()
    blocks = block_rows, block_ids, block_sizes
    arrays = ids, sizes, *blocks, tuple(levels), small_first, n_small
    return *jax.tree.map(lambda x: np.asarray(x, np.int32), arrays), aligned
