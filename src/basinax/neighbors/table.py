"""Neighbour lists on the host, made from all pairs of atoms in reach and updated in place."""

from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Bool

from basinax.neighbors import rooms as _rooms
from basinax.neighbors.edges import EdgeList, Frames
from basinax.neighbors.lists import SPECIES_BIT, ChunkedLists, Columns, Lists, Neighbors
from basinax.neighbors.numbering import distinct, rank
from basinax.neighbors.rooms import SMALL, Room, room_of_images
from basinax.neighbors.search import Pairs, images_at_most, no_list, pairs_of, tasks_of_systems
from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import REAL, one_number
from basinax.structures.batch import Batch, padded_size, row_starts
from basinax.structures.machine import machine
from basinax.systems.plan import ranges


class NeighborTable:
    """Neighbour lists of a batch on the host, updated in place.

    Every system has its own rows of slots and its own stretch of images and shifts. A rebuild
    writes only there, and moves a stretch that has grown too long to the end. If room runs out,
    stretches close up; arrays that still are too short grow by `padded_size`, which needs another
    program.
    """

    def __init__(
        self,
        batch: Batch,
        cutoff: float,
        skin: float,
        *,
        lists: type[Lists] = Neighbors,
        follows_cells: bool = False,
        reverse: bool = False,
        most_elements: int | None = None,
        is_fitted: bool = True,
        listed: Bool[np.ndarray, "systems"] | None = None,
    ):
        """The lists of all systems, of all pairs within `cutoff + skin` Å.

        Args:
            lists: the form of the lists that a potential needs (`potential.lists`). Folds in chunks
                accept `Neighbors` too, and get these on machines without chunks.
            follows_cells: store the cells in which lists are made, for moving cells.
            reverse: `Neighbors` also hold the position of each pair seen from its other end.
            most_elements: the largest number of elements in a system; folds in chunks then process
                systems of one element separately. None if folds do not need the number.
            is_fitted: allocate the room of this table's needs. Otherwise call `fit`.
            listed: the systems to list at once; all if None.

        Raises:
            ValueError: cutoff or skin is negative or not finite, a system's coordinates are too
                large or its cell too small for a list, or it has more elements. A cutoff of inf
                means all pairs of open systems; edge lists do not accept inf.
        """
        cutoff, skin = one_number(cutoff, "cutoff", REAL), one_number(skin, "skin", REAL)
        if lists is ChunkedLists and not machine().chunks:
            lists, reverse = Neighbors, False
        if not (cutoff >= 0 and 0 <= skin < np.inf) and not cutoff == skin == np.inf:
            raise ValueError(f"cutoff and skin must be 0 or more: {cutoff=} and {skin=}")
        if np.isinf(cutoff) and lists is EdgeList:
            raise ValueError("lists of edges need a cutoff that is finite")
        self.cutoff, self.skin = float(cutoff), float(skin)
        self._far = batch.n_rows  # the entry of the image table at which padding points
        self.positions, self.cells = np.array(batch.positions), np.array(batch.cells)
        self._form, self._follows_cells, self._is_listed = lists, follows_cells, False
        most_elements = most_elements if lists is ChunkedLists else None
        self._most_elements = most_elements
        has_two = most_elements is not None and most_elements <= 2
        self.others = np.zeros(batch.n_rows, np.int32) if has_two else None
        self._bits = np.zeros(batch.n_rows, np.int32)
        # Row by row, the transpose of the slots of lists: a rebuild then writes consecutive memory.
        self._by_row = np.empty((batch.n_rows, BLOCK), np.int32)
        self._most_edges = 0
        has_reverse = lists is EdgeList or (reverse and lists is Neighbors)
        self._reverse = np.zeros_like(self._by_row) if has_reverse else None
        self.image_rows, self.image_shifts = np.zeros((2, room_of_images(1, self._far)), np.int32)
        self.shifts = np.zeros((BLOCK, 3), np.int32)
        self.shift_systems = np.zeros(BLOCK, np.int32)
        self.begin(batch)
        self._make(batch, self._sizes > 0 if listed is None else listed)
        if is_fitted:
            self.fit(_rooms.own_room(self.needs, batch.n_rows, is_lean=True))

    def _make(self, batch: Batch, which: np.ndarray) -> None:
        failed = self.rebuild(batch, which)
        if failed.any():
            at = int(np.argmax(failed))
            rows = slice(self._starts[at], self._starts[at] + self._sizes[at])
            positions, cell = np.asarray(batch.positions)[rows], np.asarray(batch.cells)[at]
            radius, resolution = self.cutoff + self.skin, float(np.finfo(positions.dtype).eps)
            raise no_list(f"system {at}", cell, radius, np.abs(positions).max(), resolution)

    @property
    def is_lean(self) -> bool:
        """Whether spare slots cost time or much memory."""
        return self._far > SMALL or self._reverse is not None

    @property
    def needs(self) -> Room:
        """The room of the lists; for small batches, the room of a batch full of such systems.

        Edges are consecutive: a row then counts as many slots as it has edges in the mean.
        """
        n_used = int((-(-self._sizes // BLOCK) * BLOCK).sum())
        if self._form is EdgeList:
            return Room(-(-int(self._n_pairs.sum()) // max(n_used, BLOCK)), 0, 0)
        slots = int(self._lengths.max(initial=0))
        times = self._far / max(n_used, BLOCK) if self._far <= SMALL else 1.0
        return Room(slots, int(times * self._images.end), int(times * self._shifts.end))

    def fit(self, room: Room) -> None:
        """Enlarge the arrays to this room, where they are smaller."""
        if self._form is EdgeList:
            self._most_edges = max(room.slots * self._far, self._most_edges)
            return  # other arrays stay on the host
        self._widen(room.slots)
        n_images, n_shifts = (
            max(n, len(a)) for n, a in zip(room[1:], (self.image_rows, self.shifts), strict=True)
        )
        self.image_rows, self.image_shifts = (
            _padded(a, n_images) for a in (self.image_rows, self.image_shifts)
        )
        self.shifts, self.shift_systems = (
            _padded(a, n_shifts) for a in (self.shifts, self.shift_systems)
        )

    def begin(self, batch: Batch) -> None:
        """Begin without lists, with the systems of another batch of this shape."""
        self._sizes = np.asarray(batch.index.sizes, np.int64)
        self._starts = row_starts(self._sizes)
        self._by_row.fill(self._far)
        self._lengths = np.zeros(batch.n_systems, np.int32)
        self._n_pairs = np.zeros(batch.n_systems, np.int64)
        self._has_others = np.ones(batch.n_systems, bool)
        self._images = _Stretches(batch.n_systems)
        self._shifts = _Stretches(batch.n_systems)

    def rebuild(self, batch: Batch, which: Bool[np.ndarray, "systems"]) -> np.ndarray:
        """Make new lists for the systems of `which`, at the batch's positions and cells.

        Args:
            batch: the table's batch, with current positions and cells; another system with as many
                blocks of rows may have taken a place.

        Returns:
            The mask of systems without a list (positions or cell not finite or beyond bounds);
            these systems keep their old list.
        """
        self._sizes = np.asarray(batch.index.sizes, np.int64)
        positions, cells = np.asarray(batch.positions), np.asarray(batch.cells, np.float64)
        members, failed = np.flatnonzero(which), np.zeros(len(self._sizes), bool)
        if len(members):
            most = images_at_most(self.cutoff, self.skin)
            tasks = tasks_of_systems(batch, members, self.cutoff + self.skin, most)
            failed[members[~tasks.may_be]] = True
            listed = members[tasks.may_be]
            rows = ranges(self._starts[listed], self._sizes[listed])
            self.positions[rows], self.cells[listed] = positions[rows], cells[listed]
            self._note_elements(listed, rows, np.asarray(batch.numbers)[rows])
            for found in pairs_of(tasks, reverse=self._reverse is not None):
                self._write(members[found.systems], found)
        self._is_listed = True
        return failed

    def _note_elements(self, systems: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Store the elements of systems with these rows, if folds need them."""
        if self._most_elements is None or not len(systems):
            return
        sizes = self._sizes[systems]
        starts = np.cumsum(sizes) - sizes
        low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
        self._has_others[systems] = low < high
        if self.others is None:
            return
        low, high = np.repeat(low, sizes), np.repeat(high, sizes)
        is_high = numbers == high
        if (is_third := ~is_high & (numbers != low)).any():
            system = np.repeat(systems, sizes)[np.argmax(is_third)]
            raise ValueError(f"system {system} has more than {self._most_elements} elements")
        self.others[rows] = low + high - numbers
        self._bits[rows] = np.where(is_high, SPECIES_BIT, 0)

    def to_device(self, which: Bool[np.ndarray, "systems"] | None = None) -> Any:
        """The lists on the device."""
        return jax.device_put(self.lists(which))

    def lists(self, which: Bool[np.ndarray, "systems"] | None = None) -> Any:
        """A copy as NumPy arrays, which a jitted function takes faster than `jax.device_put`.

        Args:
            which: the systems that need lists, all if None; others get none, except in row lists.

        Returns:
            Lists in the table's form.
        """
        which = np.ones(len(self._sizes), bool) if which is None else which
        # Copy: the device may share memory that a later rebuild overwrites.
        made: dict[str, Any] = {
            "positions": self.positions.copy(),
            "frames": Frames.of(self.cells, self.cutoff + self.skin)
            if self._follows_cells
            else None,
        }
        if self._form is EdgeList:
            return EdgeList(**self._edges(which), **made)
        images = ("image_rows", "image_shifts", "shifts", "shift_systems")
        made |= {name: getattr(self, name).copy() for name in images}
        if self._form is Neighbors:
            blocks = np.arange(self._far // BLOCK)
            made |= {"slots": _transposed(self._by_row, blocks), "reverse": None}
            if self._reverse is not None:
                made |= {"reverse": _transposed(self._reverse, blocks)}
            return Neighbors(**made)
        blocks, columns = self._columns(which)
        made |= {"slots": _transposed(self._by_row, blocks)}
        made |= {"others": None if self.others is None else self.others.copy()}
        return ChunkedLists(columns=columns, **made)

    def _edges(self, which: np.ndarray) -> dict[str, Any]:
        """The edges of these systems, in the form of `EdgeList`."""
        # Axes: by_row [rows, slots]. Images below `_far` are atoms of the home cell, `_far` is
        # padding, and further images follow. Row by row, receivers ascend.
        owners = np.searchsorted(self._starts, np.arange(self._far), side="right") - 1
        by_row = self._by_row
        is_edge = (by_row != self._far) & which[owners][:, None]
        receivers, slots = np.nonzero(is_edge)
        n_edges, images = len(receivers), by_row[is_edge]
        further = np.maximum(images - self._far - 1, 0)
        is_further = images > self._far
        shifts = self.shifts[self.image_shifts[further]]
        # numbers [slots, rows]: the edge of each slot, which turns `reverse` into numbers of edges.
        numbers = np.zeros(by_row.shape[::-1], np.int32)
        numbers[slots, receivers] = np.arange(n_edges)
        there = cast(np.ndarray, self._reverse)[receivers, slots]
        counts = is_edge.sum(1).astype(np.int32)
        last, padding = self._far - 1, (0, self._most_edges - n_edges)

        def padded(values, fill):
            return np.pad(values.astype(np.int32), padding, constant_values=fill)

        return {
            "senders": padded(np.where(is_further, self.image_rows[further], images), last),
            "receivers": padded(receivers, last),
            "shifts": np.pad(np.where(is_further[:, None], shifts, 0), np.array([padding, (0, 0)])),
            "mask": np.arange(self._most_edges) < n_edges,
            "systems": padded(owners[receivers], owners[last]),
            "reverse": padded(numbers.ravel()[there], 0),
            "starts": (np.cumsum(counts) - counts).astype(np.int32),
            "counts": counts,
            "radius": np.asarray(self.cutoff + self.skin, self.positions.dtype),
        }

    def _columns(self, which: np.ndarray) -> tuple[np.ndarray, Columns]:
        """The blocks of rows in the order of columns, and the columns."""
        n_blocks = self._far // BLOCK
        of = machine()
        n_chunks = min(-(-self._far // of.chunk), of.chunks)
        together = of.wide if n_chunks > of.wide else 1
        n_chunks = -(-n_chunks // together) * together
        chunk = -(-n_blocks // n_chunks)
        n_chunks = -(-n_blocks // (chunk * together)) * together
        lengths, others = np.zeros(n_blocks, np.int32), np.zeros(n_blocks, bool)
        counts = -(-self._sizes // BLOCK)
        # Sort blocks: systems of one element first, then by length of list, empty ones last.
        # `blocks` lists the block of each column, `columns` the column of each block.
        lengths[: counts.sum()] = np.repeat(np.where(which, self._lengths, 0), counts)
        others[: counts.sum()] = np.repeat(which & self._has_others, counts)
        others &= lengths > 0
        blocks = np.lexsort((-lengths, np.where(lengths > 0, others, 2)))
        columns = np.empty_like(blocks)
        columns[blocks] = np.arange(n_blocks)
        blocks = np.pad(blocks, (0, n_chunks * chunk - n_blocks), mode="edge")
        lengths, others = lengths[blocks], others[blocks]
        n_slots = lengths.reshape(-1, chunk).max(1)
        n_full = np.count_nonzero(n_slots)
        n_alike = np.argmax(others) // chunk if others.any() else n_full
        arrays = {
            "rows": _rows_of(blocks),
            "of_rows": _rows_of(columns),
            "n_slots": n_slots,
            "n_chunks": np.asarray(n_full, np.int32),
            "n_alike": np.asarray(n_alike, np.int32),
            "has_others": np.repeat(others, BLOCK),
            **self._stretches(which),
        }
        return blocks, Columns(**arrays)

    def _stretches(self, which: np.ndarray) -> dict[str, np.ndarray]:
        """The stretches with images of these systems, as in `Columns`."""
        n_images = len(self.image_rows)
        length = min(machine().stretch, n_images)
        begins = self._images.starts[which]
        ends = begins + self._images.capacities[which]
        # Count +1 where a system's images begin and -1 behind their last stretch.
        changes = np.zeros(-(-n_images // length) + 1, np.int32)
        np.add.at(changes, begins // length, 1)
        np.add.at(changes, -(-ends // length), -1)
        found = np.flatnonzero(np.cumsum(changes[:-1]) > 0)
        stretches = np.zeros(len(changes) - 1, np.int32)
        # The last stretch ends with the images.
        stretches[: len(found)] = np.minimum(found * length, n_images - length)
        return {"stretches": stretches, "n_stretches": np.asarray(len(found), np.int32)}

    @property
    def _width(self) -> int:
        """The number of slots of a row."""
        return self._by_row.shape[1]

    def _widen(self, n_slots: int) -> None:
        """Give rows at least this many slots."""
        further = np.array([(0, 0), (0, max(n_slots - self._width, 0))])
        self._by_row = np.pad(self._by_row, further, constant_values=self._far)
        if self._reverse is not None:
            self._reverse = np.pad(self._reverse, further)

    def _write(self, systems: np.ndarray, one: Pairs) -> None:
        """Write the lists of these systems, the places of `one.systems`."""
        images = self._numbered(systems, one).take(one.images)
        # A shrinking cell needs ever more room, and each size needs a program: grow in large steps.
        steps = 2 if self._follows_cells and self._is_listed else 8
        steps = steps if self.is_lean else 1
        longest = int(one.lengths.max(initial=0))
        if longest > self._width:
            self._widen(padded_size(longest, BLOCK, steps))
        # Also write rows of padding, where a longer system may have been.
        sizes = self._sizes[systems]
        padded = -(-sizes // BLOCK) * BLOCK
        firsts, rows = np.cumsum(padded) - padded, ranges(self._starts[systems], padded)
        lengths = np.zeros(len(rows), np.int64)
        lengths[ranges(firsts, sizes)] = one.lengths
        is_pair = np.arange(self._width, dtype=np.int32) < lengths.astype(np.int32)[:, None]
        block = np.full(is_pair.shape, self._far, np.int32)
        block[is_pair] = images
        self._by_row[rows] = block
        self._lengths[systems] = np.maximum.reduceat(lengths, firsts)
        self._n_pairs[systems] = np.add.reduceat(lengths, firsts)
        n_edges = int(self._n_pairs.sum())
        if self._form is EdgeList and n_edges > self._most_edges:
            self._most_edges = padded_size(-(-n_edges // self._far), BLOCK, steps) * self._far
        if self._reverse is not None:
            of_pairs = np.repeat(np.arange(len(rows)), lengths)
            there, slots = rows.astype(np.int32)[of_pairs], rank(of_pairs)
            self._reverse[there, slots] = (slots * np.int32(self._far) + there)[one.reverse]

    def _numbered(self, systems: np.ndarray, one: Pairs) -> np.ndarray:
        """Write further images and their shifts into the stretches of their systems.

        Returns:
            The entry in slots of each image.
        """
        rows, is_further = self._starts[systems][one.owners] + one.atoms, one.is_further
        owners, n_shifts = one.owners[is_further], len(one.shifts)
        # Systems store a shift once.
        keys, shift = distinct(owners * n_shifts + one.codes[is_further])
        shift_owners, codes = np.divmod(keys, n_shifts)
        n_images = _counts(owners, len(systems))
        if self._images.end_with(systems, n_images) > len(self.image_rows):
            self._close_up(systems)
        image_at = self._images.place(systems, n_images)
        shift_at = self._shifts.place(systems, _counts(shift_owners, len(systems)))
        if self._images.end > len(self.image_rows):
            n_images = room_of_images(self._images.end, self._far)
            self.image_rows = _padded(self.image_rows, n_images)
            self.image_shifts = _padded(self.image_shifts, n_images)
        self.shifts = _grown(self.shifts, self._shifts.end)
        self.shift_systems = _grown(self.shift_systems, self._shifts.end)
        self.image_rows[image_at], self.image_shifts[image_at] = rows[is_further], shift_at[shift]
        self.shifts[shift_at] = one.shifts[codes]
        self.shift_systems[shift_at] = systems[shift_owners]
        entries = rows.astype(np.int32)
        entries[is_further] = self._far + 1 + image_at
        return entries if self.others is None else entries | self._bits[rows]

    def _close_up(self, systems: np.ndarray) -> None:
        """Move the images of all systems together; those of `systems` are written anew."""
        stretches = self._images
        stretches.capacities[systems] = 0
        source, capacities = ranges(stretches.starts, stretches.capacities), stretches.capacities
        by = np.cumsum(capacities) - capacities - stretches.starts
        stretches.starts, stretches.end = stretches.starts + by, len(source)
        for images in (self.image_rows, self.image_shifts):
            images[: len(source)] = images[source]
        counts = -(-self._sizes // BLOCK) * BLOCK
        of_rows = np.repeat(np.where(capacities > 0, by, 0), counts).astype(np.int32)
        slots = self._by_row[: len(of_rows)]
        slots += np.where((slots & ~SPECIES_BIT) > self._far, of_rows[:, None], 0)


class _Stretches:
    """The position of each system's entries in a shared array."""

    def __init__(self, n_systems: int):
        self.starts = np.zeros(n_systems, np.int64)
        self.capacities = np.zeros(n_systems, np.int64)
        self.end = 0

    def end_with(self, systems: np.ndarray, counts: np.ndarray) -> int:
        """The end after `place`."""
        return self.end + int(self._further(systems, counts)[1].sum())

    def place(self, systems: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The places of so many entries of systems; too long stretches move to the end."""
        moved, capacities = self._further(systems, counts)
        self.capacities[systems[moved]] = capacities
        self.starts[systems[moved]] = self.end + np.cumsum(capacities) - capacities
        self.end += int(capacities.sum())
        return ranges(self.starts[systems], counts)

    def _further(self, systems: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these systems need a longer stretch, and how long their new ones are."""
        moved = counts > self.capacities[systems]
        return moved, counts[moved] + counts[moved] // 8


def _counts(ascending: np.ndarray, n: int) -> np.ndarray:
    """How often each number below n occurs."""
    return np.diff(np.searchsorted(ascending, np.arange(n + 1)))


def _rows_of(blocks: np.ndarray) -> np.ndarray:
    return (blocks[:, None] * BLOCK + np.arange(BLOCK)).astype(np.int32).ravel()


def _transposed(by_row: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """The columns of these blocks of rows, copied a few at a time, as the cache holds few."""
    width, by_block = by_row.shape[1], by_row.reshape(-1, BLOCK, by_row.shape[1])
    columns = np.empty((width, len(blocks), BLOCK), by_row.dtype)
    for k in range(0, len(blocks), 32):
        columns[:, k : k + 32] = by_block[blocks[k : k + 32]].transpose(2, 0, 1)
    return columns.reshape(width, -1)


def _grown(array: np.ndarray, needed: int) -> np.ndarray:
    """The array, lengthened if it is shorter than `needed`."""
    return array if needed <= len(array) else _padded(array, padded_size(needed, BLOCK, 1))


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    further = np.zeros((length - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, further])
