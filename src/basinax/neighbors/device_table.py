"""Neighbour lists of small systems, made on the device.

All pairs of atoms are tried, some shifts at a time: first to count them, then to write each into
its slot, which is the number of pairs before it in canonical order (neighbour, then shift). Sums of
integers are exact in any order, so the slots of a row depend on its system alone. They are those of
the host's lists.
"""

import functools
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from basinax.neighbors.edges import Frames
from basinax.neighbors.lists import Neighbors
from basinax.neighbors.rooms import Room
from basinax.neighbors.search import (
    LARGEST_CELL,
    LARGEST_POSITION,
    images_at_most,
    inverses_along,
)
from basinax.numerics import xla
from basinax.numerics.rounding import BLOCK
from basinax.structures.batch import Batch, padded_size, row_starts
from basinax.structures.machine import machine

MOST_ATOMS = 256
"""The largest number of atoms of a system whose pairs are all tried."""

MOST_SHIFTS = 125
"""The largest number of shifts of a system, two cells either way. All systems have images for as
many, so that a smaller cell would cost the others time."""

MOST_IMAGES_OF_BATCH = 1 << 25
"""The largest number of images of a batch; their positions are 0.8 GB in double precision."""

SHIFTS_AT_ONCE = 8
"""The shifts of a turn of a loop, each of which waits for the host."""

SPARE_WIDTH = 1.5
"""The room for the neighbours of an atom, relative to their estimated number. It costs memory
alone, since folds go through as many slots as the longest list has."""

SLACK = 1e-5
"""What is added, against rounding, to the number of cells in reach."""


class Known(NamedTuple):
    """The lists of a batch, on the device."""

    slots: Int32[Array, "rows width"]
    """The images near each row, as in `Neighbors` but row by row."""
    reverse: Int32[Array, "rows width"] | None
    """The position of each pair seen from its other end, as in `Neighbors`."""
    turns: Int32[Array, "systems 3"]
    """The number of cells either way with images in reach."""
    positions: Float[Array, "rows 3"]
    """The positions at which each system's list was made, in Å."""


class Found(NamedTuple):
    """What was found of each system while its list was made."""

    may_be: Bool[Array, "systems"]
    """Whether there can be a list."""
    n_shifts: Int32[Array, "systems"]
    """The number of shifts to try."""
    longest: Int32[Array, "systems"]
    """The largest number of neighbours of an atom, if there was room for all shifts."""


class Cells(NamedTuple):
    """The cells of systems; see `search.inverses_along`."""

    inverses: Float[Array, "systems 3 3"]
    per_height: Float[Array, "systems 3"]


class DeviceTable:
    """The neighbour lists of a batch of small systems, in the place of a `NeighborTable`.

    Every row has the same room for slots, and every system for shifts. If room runs out, the arrays
    grow, which needs another program.
    """

    is_lean = True

    def __init__(
        self,
        batch: Batch,
        cutoff: float,
        skin: float,
        *,
        most_rows: int,
        n_neighbors: float,
        follows_cells: bool,
        reverse: bool,
    ):
        """Room for lists of all pairs within `cutoff + skin` Å, which `rebuild` makes.

        Args:
            most_rows: the number of rows of the largest system.
            n_neighbors: the estimated number of neighbours of an atom.
            follows_cells: store the cells in which lists are made, for moving cells.
            reverse: lists also hold the position of each pair seen from its other end.
        """
        self.cutoff, self.skin = float(cutoff), float(skin)
        self._shape = batch.n_rows, batch.n_systems
        self._most_rows = -(-most_rows // BLOCK) * BLOCK
        self._has_reverse, self._follows_cells = reverse, follows_cells
        self._cells = np.array(batch.cells)
        self._longest = np.zeros(batch.n_systems, np.int32)
        self._n_slots = BLOCK
        likely = SPARE_WIDTH * min(n_neighbors, 1 << 10)
        self._n_shifts, self._width = 1, padded_size(int(likely), BLOCK, 1)
        self.begin(batch)

    def begin(self, batch: Batch) -> None:
        """As `NeighborTable.begin`."""
        self._starts = row_starts(batch.index.sizes).astype(np.int32)
        owners = np.searchsorted(self._starts, np.arange(batch.n_rows), side="right") - 1
        self._owners = owners.astype(np.int32)
        self._make_room(self._n_shifts, self._width, batch.positions)

    @property
    def needs(self) -> Room:
        """The room of the lists."""
        return Room(int(self._longest.max(initial=0)), 0, 0)

    def fit(self, room: Room) -> None:
        """Give lists at least so many slots."""
        self._n_slots = max(room.slots, self._n_slots)

    def rebuild(self, batch: Batch, which: Bool[np.ndarray, "systems"]) -> np.ndarray | None:
        """Make new lists for the systems of `which`, at the batch's positions and cells.

        Args:
            batch: as for `NeighborTable.rebuild`.

        Returns:
            The mask of systems without a list, which keep their old one. None if a system has
            become too large for this table, and another one has to take its place.
        """
        members = which
        while True:
            found = self._list(batch, members)
            n_shifts = max(self._n_shifts, int(found.n_shifts.max()))
            if n_shifts > MOST_SHIFTS or self._shape[0] * n_shifts > MOST_IMAGES_OF_BATCH:
                return None
            longest = int(found.longest.max())
            if n_shifts > self._n_shifts:
                self._make_room(n_shifts, self._width, batch.positions)
            elif longest > self._width:
                self._make_room(n_shifts, padded_size(longest, BLOCK, 1), batch.positions)
            else:
                self._longest[members] = found.longest[members]
                return which & ~found.may_be
            members = np.asarray(batch.index.sizes) > 0

    def _make_room(self, n_shifts: int, width: int, positions: Any) -> None:
        """Begin with empty lists."""
        self._n_shifts, self._width = n_shifts, width
        n_rows, n_systems = self._shape
        slots = jnp.full((n_rows, width), n_rows, jnp.int32)
        reverse = jnp.zeros_like(slots) if self._has_reverse else None
        turns = jnp.zeros((n_systems, 3), jnp.int32)
        self._known = Known(slots, reverse, turns, jnp.asarray(positions))

    def _list(self, batch: Batch, which: np.ndarray) -> Found:
        """Make lists as far as there is room; the entries of other systems are 0."""
        cells, dtype = np.asarray(batch.cells), batch.positions.dtype
        radius, n_systems = self.cutoff + self.skin, self._shape[1]
        self._cells[which] = cells[which]
        inverses, per_height = np.zeros((n_systems, 3, 3)), np.zeros((n_systems, 3))
        inverses[which], per_height[which] = inverses_along(
            cells[which], np.asarray(batch.pbc)[which]
        )
        with np.errstate(all="ignore"):  # cells may be lost, or flat
            n_images = np.where(per_height > 0, 2 * radius * per_height + 1, 1.0).prod(axis=1)
            may_be = n_images <= images_at_most(self.cutoff, self.skin)
            may_be &= np.abs(cells).max(axis=(1, 2)) <= LARGEST_CELL
        members = np.flatnonzero(which & may_be).astype(np.int32)
        at_once = machine().candidates // (self._most_rows**2 * SHIFTS_AT_ONCE)
        n_lanes = min(at_once, padded_size(n_systems, steps=1))
        n_lanes = 1 << max(n_lanes, 1).bit_length() - 1
        room = np.full(-(-n_systems // n_lanes) * n_lanes, n_systems, np.int32)
        room[: len(members)] = members
        self._known, found = _listed(
            (self._most_rows, n_lanes),
            self._known,
            batch,
            self._starts,
            Cells(*cast(Any, (inverses.astype(dtype), per_height.astype(dtype)))),
            np.asarray(radius, dtype),
            np.int32(self._n_shifts),
            room,
            np.int32(-(-len(members) // n_lanes)),
        )
        found = jax.device_get(found)
        return found._replace(may_be=found.may_be & may_be)

    def lists(self, which: Any = None) -> Neighbors:
        """The lists of all systems, on the device."""
        longest = padded_size(int(self._longest.max()), BLOCK)
        self._n_slots = max(self._n_slots, longest)
        room = self._n_shifts, min(self._n_slots, self._width)
        frames = None
        if self._follows_cells:
            frames = Frames.of(self._cells, self.cutoff + self.skin)
        return _formed(room, self._known, self._owners, frames)


class Reach(NamedTuple):
    """How far the lists of some systems reach."""

    may_be: Bool[Array, "systems"]
    radii: Float[Array, "systems"]
    """The radii in Å, slightly larger than requested, as those of the host."""
    turns: Int32[Array, "systems 3"]
    """The number of cells either way with images in reach."""
    n_shifts: Int32[Array, "systems"]
    """The number of shifts to try, or one more than the largest number allowed."""


def _reach(
    x: Float[Array, "systems atoms 3"],
    is_atom: Bool[Array, "systems atoms"],
    cells: Cells,
    radius: Float[Array, ""],
) -> Reach:
    """The reach of lists of these systems; see `search.tasks_of`."""
    eps, is_atom = jnp.finfo(x.dtype).eps, is_atom[..., None]
    largest = jnp.max(jnp.abs(x), axis=(1, 2))
    may_be = largest <= LARGEST_POSITION  # NaN fails
    radii = radius * (1 + 1e-6) + 64 * eps * largest
    # Written out: XLA would choose the algorithm of a product of matrices.
    terms = [x[..., k, None] * cells.inverses[:, None, k] for k in range(3)]
    fractions = terms[0] + terms[1] + terms[2]
    low = jnp.min(jnp.where(is_atom, fractions, jnp.inf), axis=1)
    high = jnp.max(jnp.where(is_atom, fractions, -jnp.inf), axis=1)
    doubt = SLACK + 16 * eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
    in_cells = jnp.where(cells.per_height > 0, radii[:, None] * cells.per_height, 0.0)
    turns = jnp.floor(in_cells * (1 + SLACK) + (high - low) + doubt)
    turns = jnp.where(may_be[:, None] & (cells.per_height > 0), turns, 0.0)
    n_shifts = jnp.minimum(jnp.prod(2 * turns + 1, axis=1), MOST_SHIFTS + 1).astype(jnp.int32)
    return Reach(may_be, radii, jnp.minimum(turns, MOST_SHIFTS).astype(jnp.int32), n_shifts)


def _shifts(
    turns: Int32[Array, "systems 3"], codes: Int32[Array, "shifts"]
) -> Int32[Array, "systems shifts 3"]:
    """The shifts of each system by their numbers in lexicographic order.

    Numbers beyond the last shift of a system give none that has a meaning.
    """
    codes, (_, n2, n3) = codes[None], (2 * turns.T + 1)[..., None]
    indices = codes // (n2 * n3), codes // n3 % n2, codes % n3
    return jnp.stack(indices, axis=-1) - turns[:, None]


class Candidates(NamedTuple):
    """All pairs of atoms of some systems, which are tried some shifts at a time."""

    reach: Reach
    n_tried: Int32[Array, "systems"]
    """The number of shifts to try."""
    cells: Float[Array, "systems 3 3"]
    ways: list[Float[Array, "systems 1 atoms neighbors"]]
    """The components of the vectors from atoms to neighbours, in Å."""
    is_pair: Bool[Array, "systems 1 atoms neighbors"]
    """Whether both are atoms."""

    @classmethod
    def of(cls, x, is_atom, cells, reach: Reach, n_tried) -> "Candidates":
        """The pairs of atoms at positions `x`, as in `_reach`."""
        ways = [x[:, None, None, :, k] - x[:, None, :, None, k] for k in range(3)]
        is_pair = (is_atom[:, :, None] & is_atom[:, None, :])[:, None]
        return cls(reach, n_tried, cells, ways, is_pair)

    @property
    def n_turns(self) -> Int32[Array, ""]:
        """The number of turns in which all shifts are tried."""
        return (jnp.max(self.n_tried) + SHIFTS_AT_ONCE - 1) // SHIFTS_AT_ONCE

    @property
    def middle(self) -> Int32[Array, "systems 1 1 1"]:
        """The number of the shift that is zero."""
        return self.n_tried[:, None, None, None] // 2

    def near(
        self, turn: Int32[Array, ""]
    ) -> tuple[Bool[Array, "systems shifts atoms neighbors"], Int32[Array, "1 shifts 1 1"]]:
        """The pairs within the radius with the shifts of a turn, and the numbers of these shifts.

        (i, j, s) and (j, i, -s) have opposite vectors exactly.
        """
        codes = turn * SHIFTS_AT_ONCE + jnp.arange(SHIFTS_AT_ONCE, dtype=jnp.int32)
        code = codes[None, :, None, None]
        shift = _shifts(self.reach.turns, codes).astype(self.cells.dtype)
        terms = [shift[..., k, None] * self.cells[:, None, k] for k in range(3)]
        offset = (terms[0] + terms[1] + terms[2])[:, :, None, None]
        d = [way + offset[..., k] for k, way in enumerate(self.ways)]
        is_self = jnp.eye(self.is_pair.shape[-1], dtype=bool)[None, None]
        is_other = ~(is_self & (code == self.middle))
        is_tried = code < self.n_tried[:, None, None, None]
        r2 = (self.reach.radii**2)[:, None, None, None]
        is_near = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] <= r2
        return is_near & self.is_pair & is_other & is_tried, code

    def counts(self) -> Int32[Array, "systems atoms neighbors"]:
        """The number of shifts with which each pair is near."""

        def count(turn, counts):
            return counts + jnp.sum(self.near(turn)[0], axis=1, dtype=jnp.int32)

        return lax.fori_loop(0, self.n_turns, count, self._none())

    def slots(
        self,
        counts: Int32[Array, "systems atoms neighbors"],
        rows: Int32[Array, "systems atoms"],
        room: tuple[int, int, Int32[Array, ""]],
        *,
        reverse: bool,
    ) -> tuple[Int32[Array, "systems atoms width"], Int32[Array, "systems atoms width"] | None]:
        """The slots of each atom, and the positions of its pairs seen from their other ends.

        Args:
            counts: as by `counts`.
            rows: the row of each atom.
            room: of a batch: its rows, the slots of a row, and the shifts of a system.
            reverse: otherwise the positions are None.
        """
        n_rows, width, n_shifts = room
        begins = jnp.cumsum(counts, axis=2) - counts
        # Seen from the other end, the shifts of a pair come in the opposite order.
        lasts = jnp.swapaxes(begins, 1, 2) + counts - 1
        own_rows = jnp.arange(rows.size, dtype=jnp.int32).reshape(rows.shape)[:, None, :, None]
        neighbor = rows[:, None, None]

        def put(turn, carry):
            slots, others, n_before = carry
            near, code = self.near(turn)
            ones = near.astype(jnp.int32)
            done = jnp.cumsum(ones, axis=1)
            nth = n_before[:, None] + done - ones
            slot = begins[:, None] + nth
            # No pair is written that was not counted, whatever code the two loops have.
            is_written = near & (nth < counts[:, None]) & (slot < width)
            at = jnp.where(is_written, own_rows * width + slot, slots.size)
            further = n_rows + 1 + neighbor * n_shifts + code
            image = jnp.where(code == self.middle, neighbor, further)
            slots = slots.at[at].set(jnp.broadcast_to(image, at.shape), mode="drop")
            if others is not None:
                there = (lasts[:, None] - nth) * n_rows + neighbor
                others = others.at[at].set(there, mode="drop")
            return slots, others, n_before + done[:, -1]

        empty = jnp.full(rows.size * width, n_rows, jnp.int32)
        start = empty, jnp.zeros_like(empty) if reverse else None, self._none()
        made = lax.fori_loop(0, self.n_turns, put, start)[:2]
        return jax.tree.map(lambda x: x.reshape(*rows.shape, width), made)

    def _none(self) -> Int32[Array, "systems atoms neighbors"]:
        return jnp.zeros_like(self.is_pair[:, 0], jnp.int32)


@functools.partial(xla.jitted, static_argnums=0, is_kept=True)
def _listed(
    how: tuple[int, int],
    known: Known,
    batch: Batch,
    starts: Int32[Array, "systems"],
    cells: Cells,
    radius: Float[Array, ""],
    n_shifts: Int32[Array, ""],
    members: Int32[Array, "lanes"],
    n_parts: Int32[Array, ""],
) -> tuple[Known, Found]:
    """The lists, with those of the members made anew.

    Args:
        how: the rows of the largest system, and the number of systems that are listed at once.
        starts: the first rows of systems.
        radius: the reach of lists, in Å.
        n_shifts: the room for shifts.
        members: the numbers of systems, then `n_systems`.
        n_parts: the number of parts of `members` to go through.
    """
    n_atoms, n_lanes = how
    (n_rows, width), n_systems = known.slots.shape, batch.n_systems
    atoms = jnp.arange(n_atoms, dtype=jnp.int32)[None]
    positions, sizes = batch.positions, batch.index.sizes

    def add_part(k, carry):
        known, found = carry
        own = lax.dynamic_slice_in_dim(members, k * n_lanes, n_lanes)
        some = jnp.minimum(own, n_systems - 1)
        size, rows = sizes[some], starts[some][:, None] + atoms
        is_atom = atoms < size[:, None]
        x = jnp.where(is_atom[..., None], positions[jnp.minimum(rows, n_rows - 1)], 0.0)
        reach = _reach(x, is_atom, Cells(*(c[some] for c in cells)), radius)
        fits = reach.may_be & (reach.n_shifts <= n_shifts)
        n_tried = jnp.where(fits, reach.n_shifts, 0)

        pairs = Candidates.of(x, is_atom, batch.cells[some], reach, n_tried)
        counts = pairs.counts()
        longest = jnp.max(jnp.sum(counts, axis=2, dtype=jnp.int32), axis=1)
        has_reverse, room = known.reverse is not None, (n_rows, width, n_shifts)
        slots, reverse = pairs.slots(counts, rows, room, reverse=has_reverse)

        is_kept = fits & (longest <= width) & (own < n_systems)
        padded = -(-size // BLOCK) * BLOCK
        targets = jnp.where(is_kept[:, None] & (atoms < padded[:, None]), rows, n_rows)
        at = jnp.where(is_kept, own, n_systems)
        if known.reverse is not None:
            reverse = known.reverse.at[targets].set(reverse, mode="drop")
        known = Known(
            known.slots.at[targets].set(slots, mode="drop"),
            reverse,
            known.turns.at[at].set(reach.turns, mode="drop"),
            known.positions.at[targets].set(x, mode="drop"),
        )
        news = reach.may_be, reach.n_shifts, longest
        found = Found(
            *(old.at[own].set(new, mode="drop") for old, new in zip(found, news, strict=True))
        )
        return known, found

    nothing = jnp.zeros(n_systems, jnp.int32)
    found = Found(jnp.ones(n_systems, bool), nothing, nothing)
    return lax.fori_loop(0, n_parts, add_part, (known, found))


@functools.partial(xla.jitted, options=xla.ONCE, static_argnums=0)
def _formed(
    room: tuple[int, int], known: Known, owners: Int32[Array, "rows"], frames: Frames | None
) -> Neighbors:
    """The lists in the form that potentials read.

    Args:
        room: the room for shifts, and the number of slots.
        owners: the system of each row.
    """
    n_shifts, n_slots = room
    codes, n_systems = jnp.arange(n_shifts, dtype=jnp.int32)[None], len(known.turns)
    return Neighbors(
        slots=known.slots[:, :n_slots].T,
        image_rows=jnp.repeat(jnp.arange(len(owners), dtype=jnp.int32), n_shifts),
        image_shifts=(owners[:, None] * n_shifts + codes).ravel(),
        shifts=_shifts(known.turns, codes[0]).reshape(-1, 3),
        shift_systems=jnp.repeat(jnp.arange(n_systems, dtype=jnp.int32), n_shifts),
        positions=known.positions,
        frames=frames,
        reverse=None if known.reverse is None else known.reverse[:, :n_slots].T,
    )
