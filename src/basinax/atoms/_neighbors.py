"""Which periodic images lie near which atoms: listed on the host by vesin, read on the device.

A row's neighbours stand in canonical order (row in its system, then periodic shift), so that a
left fold over them gives the same bits whatever the skin, the padding and the last rebuild
(docs/design.md, section 2, rule 3). What padding points at lies too far away to matter: no mask.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import vesin
from ase import Atoms
from jaxtyping import Array, Bool, Float, Int32, Shaped

from basinax._rounding import BLOCK, rounded
from basinax._systems import SystemIndex
from basinax.atoms._batch import Batch, padded_size, row_starts
from basinax.atoms._matrices import Matrices, frobenius_norm, multiply, turned_rows

FAR = 1e12
"""Where padding points, in Å along each axis: far from any atom, and its square fits float32."""

LARGEST_POSITION, LARGEST_CELL = 1e8, 1e5
"""The largest coordinates and cell entries, in Å, for which a list is made."""

MOST_IMAGES = 10_000
"""The most periodic images of one atom within the radius of a list, counted in a parallelepiped
around it: a cell of one atom and 1 Å has half as many within 9 Å. Beyond, a cell has collapsed."""


CAPACITY_TO_SPARE = 2
"""Up to this many times what it needs, a table is made as large as an earlier one was."""

_CAPACITIES: dict[tuple[int, int], np.ndarray] = {}
"""Slots, images and shifts of the last table for batches of so many rows and systems."""


class Frames(eqx.Module):
    """The cells in which lists were made, for those that move."""

    cells: Matrices
    """In Å."""
    inverses: Matrices
    """Their inverses; pseudo-inverses where vectors along open directions are zero."""
    radius: Float[Array, ""]
    """How far the lists reach, in Å."""


class Neighbors(eqx.Module):
    """Neighbour lists of a batch on the device. `NeighborTable.to_device` makes one.

    The image table begins with the batch's rows; then one image stands far from everything; then
    follow the periodic images that some atom has in reach.
    """

    slots: Int32[Array, "slots rows"]
    """The images near each row, in canonical order, then the far one."""

    image_rows: Int32[Array, "extra_images"]
    """The row that each further image is an image of."""

    image_shifts: Int32[Array, "extra_images"]
    """The shift of each further image, as an entry of `shifts`."""

    shifts: Int32[Array, "shifts 3"]
    """By how many cell vectors images are displaced."""

    shift_systems: Int32[Array, "shifts"]
    """The system whose cell vectors they are."""

    positions: Float[Array, "rows 3"]
    """Where the atoms were when their system's list was made, in Å."""

    frames: Frames | None = None
    """What the cells were then; None where no cell moves."""

    reverse: Int32[Array, "slots rows"] | None = None
    """Where the pair of a slot stands seen from the neighbour, as an entry of `slots.ravel()`.

    Of no account where a slot is padding; None unless the table was asked for it.
    """

    def images(
        self, positions: Float[Array, "rows 3"], cells: Float[Array, "systems 3 3"]
    ) -> tuple[Float[Array, "images"], Float[Array, "images"], Float[Array, "images"]]:
        """The coordinates x, y and z of all images, in Å."""
        cell = cells[self.shift_systems]
        n = self.shifts.astype(positions.dtype)
        far = jnp.full((1,), FAR, positions.dtype)
        coordinates = []
        for c in range(3):
            x = positions[:, c]
            # Σ_k n_k a_k, component c, added in index order
            offsets = rounded(n[:, 0] * cell[:, 0, c]) + rounded(n[:, 1] * cell[:, 1, c])
            offsets = offsets + rounded(n[:, 2] * cell[:, 2, c])
            further = gather(x, self.image_rows) + gather(offsets, self.image_shifts)
            coordinates.append(jnp.concatenate([x, far, further]))
        return coordinates[0], coordinates[1], coordinates[2]

    def of_images(self, of_rows: Shaped[Array, "rows"]) -> Shaped[Array, "images"]:
        """What each image has from the row it is an image of; 0 for the far one."""
        far = jnp.zeros((1,), of_rows.dtype)
        return jnp.concatenate([of_rows, far, gather(of_rows, self.image_rows)])


def gather(values: Shaped[Array, "n"], indices: Int32[Array, "..."]) -> Shaped[Array, "..."]:
    """`values[indices]`, for indices known to be within bounds."""
    return values.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def moved_too_far(
    positions: Float[Array, "rows 3"],
    neighbors: Neighbors,
    index: SystemIndex,
    skin: Float[Array, ""] | float,
    cells: Matrices | None = None,
) -> Bool[Array, "systems"]:
    """Which systems need a new list: an atom has moved more than half the skin since the last.

    Where the cell moves, atoms are taken to move with it, and as much of the skin is left as its
    strain does not take. Only a system's own atoms and cell decide. NaN counts as not moved (no
    list could help it).

    Args:
        cells: the cell vectors of now, in Å; needed where `neighbors` has `frames`.
    """
    d = positions - neighbors.positions
    left = jnp.asarray(skin, positions.dtype)
    if neighbors.frames is not None and cells is not None:
        frames = neighbors.frames
        strain = multiply(frames.inverses, cells - frames.cells)
        d = d - turned_rows(neighbors.positions, strain, index)
        left = left - rounded(frobenius_norm(strain) * frames.radius)
    moved = rounded(d[:, 0] * d[:, 0]) + rounded(d[:, 1] * d[:, 1]) + rounded(d[:, 2] * d[:, 2])
    half = left * 0.5
    return (index.max(moved) > rounded(half * half)) | (left < 0)


class NeighborTable:
    """Neighbour lists of a batch on the host, where vesin makes them; changed in place.

    Every system has its own columns of `slots` and its own stretch of images and shifts. A rebuild
    writes there alone and moves a stretch that has grown too long to the end. What has no room
    makes the arrays larger, by `padded_size`, and so another program.
    """

    def __init__(
        self,
        batch: Batch,
        cutoff: float,
        skin: float,
        *,
        follows_cells: bool = False,
        reverse: bool = False,
    ):
        """The lists of all systems, of all pairs within `cutoff + skin` Å.

        Args:
            follows_cells: remember the cells for which lists are made, as moving ones need.
            reverse: list as well where each pair stands seen from its other end.

        Raises:
            ValueError: cutoff or skin is negative or not finite, or a system's coordinates are too
                large or its cell too small for a list.
        """
        if not (np.isfinite([cutoff, skin]).all() and cutoff >= 0 and skin >= 0):
            raise ValueError(f"cutoff and skin must be 0 or more: {cutoff=} and {skin=}")
        self.cutoff, self.skin = float(cutoff), float(skin)
        self._sizes = np.asarray(batch.index.sizes, np.int64)
        self._starts = row_starts(self._sizes)
        self._far = batch.n_rows  # the entry of the image table that padding points at
        self.positions, self.cells = np.array(batch.positions), np.array(batch.cells)
        self._follows_cells, self._is_listed = follows_cells, False
        self.slots = np.full((BLOCK, batch.n_rows), self._far, np.int32)
        self.reverse = np.zeros_like(self.slots) if reverse else None
        self.image_rows, self.image_shifts = np.zeros((2, BLOCK), np.int32)
        self.shifts = np.zeros((BLOCK, 3), np.int32)
        self.shift_systems = np.zeros(BLOCK, np.int32)
        self._images = _Stretches(batch.n_systems)
        self._shifts = _Stretches(batch.n_systems)
        failed = self.rebuild(batch, self._sizes > 0)
        if failed.any():
            at = int(np.argmax(failed))
            raise _no_list(at, np.asarray(batch.cells)[at], self.cutoff + self.skin)
        self._fit_earlier_shapes(batch)

    def _fit_earlier_shapes(self, batch: Batch) -> None:
        """Takes the capacities of an earlier table for a like batch, whose program is compiled."""
        needed = np.array([len(self.slots), len(self.image_rows), len(self.shifts)])
        shape = (batch.n_rows, batch.n_systems)
        seen = _CAPACITIES.get(shape, needed)
        fitting = np.where(seen <= CAPACITY_TO_SPARE * needed, np.maximum(seen, needed), needed)
        _CAPACITIES[shape] = fitting
        n_slots, n_images, n_shifts = fitting.tolist()
        self.slots = _padded(self.slots, n_slots, self._far)
        if self.reverse is not None:
            self.reverse = _padded(self.reverse, n_slots)
        self.image_rows, self.image_shifts = (
            _padded(a, n_images) for a in (self.image_rows, self.image_shifts)
        )
        self.shifts, self.shift_systems = (
            _padded(a, n_shifts) for a in (self.shifts, self.shift_systems)
        )

    def rebuild(self, batch: Batch, which: Bool[np.ndarray, "systems"]) -> np.ndarray:
        """Makes new lists for the systems of `which`, at the batch's positions and cells.

        Args:
            batch: the batch that the table was made for, with positions and cells of now; in the
                place of a system may stand another that needs as many blocks of rows.

        Returns:
            Which of these systems could get no list (positions or cell not finite or beyond
            bounds); they keep their old one.
        """
        self._sizes = np.asarray(batch.index.sizes, np.int64)
        positions, cells = np.asarray(batch.positions), np.asarray(batch.cells, np.float64)
        pbc, resolution = np.asarray(batch.pbc), float(np.finfo(positions.dtype).eps)
        failed, systems, found = np.zeros(len(self._sizes), bool), [], []
        listing = vesin.NeighborList(cutoff=0.0, full_list=True, n_threads=1)
        for k in np.flatnonzero(which):
            rows = slice(self._starts[k], self._starts[k] + self._sizes[k])
            x = positions[rows].astype(np.float64)
            radius = self.cutoff + self.skin
            pairs = _pairs_of(listing, x, cells[k], pbc[k], radius, resolution)
            failed[k] = pairs is None
            if pairs is not None:
                systems.append(k)
                found.append(pairs)
                self.positions[rows] = positions[rows]
                self.cells[k] = cells[k]
        if found:
            self._write(np.asarray(systems), found)
        return failed

    def to_device(self) -> Neighbors:
        """A copy for the device."""
        # jnp.array copies; jnp.asarray may share memory that a rebuild then overwrites.
        return Neighbors(
            slots=jnp.array(self.slots),
            image_rows=jnp.array(self.image_rows),
            image_shifts=jnp.array(self.image_shifts),
            shifts=jnp.array(self.shifts),
            shift_systems=jnp.array(self.shift_systems),
            positions=jnp.array(self.positions),
            frames=self._frames() if self._follows_cells else None,
            reverse=None if self.reverse is None else jnp.array(self.reverse),
        )

    def _frames(self) -> Frames:
        inverses = np.linalg.pinv(self.cells.astype(np.float64))
        return Frames(
            cells=jnp.array(self.cells),
            inverses=jnp.array(inverses, self.cells.dtype),
            radius=jnp.array(self.cutoff + self.skin, self.cells.dtype),
        )

    def _write(self, systems: np.ndarray, found: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Arranges the pairs of all these systems at once; their rows ascend with them."""
        pairs = np.concatenate(
            [
                pairs + np.int32(self._starts[k])
                for k, (pairs, _) in zip(systems, found, strict=True)
            ]
        )
        shifts = np.concatenate([shifts for _, shifts in found])
        one = _arranged(pairs, shifts, self._far, reverse=self.reverse is not None)

        # Further images and their shifts stand in stretches of their systems.
        owners = np.searchsorted(self._starts[systems], one.image_rows, side="right") - 1
        keys, shift = _distinct(owners * len(one.shifts) + one.image_shifts)
        shift_owners, codes = keys // len(one.shifts), keys % len(one.shifts)
        image_at = self._images.place(systems, np.bincount(owners, minlength=len(systems)))[owners]
        shift_at = self._shifts.place(systems, np.bincount(shift_owners, minlength=len(systems)))
        image_at, shift_at = image_at + _rank(owners), shift_at[shift_owners] + _rank(shift_owners)
        self.image_rows = _grown(self.image_rows, self._images.end)
        self.image_shifts = _grown(self.image_shifts, self._images.end)
        self.shifts = _grown(self.shifts, self._shifts.end)
        self.shift_systems = _grown(self.shift_systems, self._shifts.end)
        self.image_rows[image_at], self.image_shifts[image_at] = one.image_rows, shift_at[shift]
        self.shifts[shift_at], self.shift_systems[shift_at] = (
            one.shifts[codes],
            systems[shift_owners],
        )

        table = np.concatenate([np.arange(self._far + 1), self._far + 1 + image_at])
        images = table.astype(np.int32)[one.images]
        slots = _rank(one.rows)
        # A cell that shrinks needs more and more, and each size is a program of its own.
        steps = 2 if self._follows_cells and self._is_listed else 8
        self.slots = _grown(self.slots, int(slots.max(initial=-1)) + 1, self._far, steps)
        self._is_listed = True
        padded = -(-self._sizes[systems] // BLOCK) * BLOCK
        for start, size in zip(self._starts[systems], padded, strict=True):
            self.slots[:, start : start + size] = self._far
        self.slots[slots, one.rows] = images
        if self.reverse is not None:
            self.reverse = _padded(self.reverse, len(self.slots))
            self.reverse[slots, one.rows] = (slots * np.int32(self._far) + one.rows)[one.reverse]


class _Stretches:
    """Where in a shared array each system's entries stand."""

    def __init__(self, n_systems: int):
        self.starts = np.zeros(n_systems, np.int64)
        self.capacities = np.zeros(n_systems, np.int64)
        self.end = 0

    def place(self, systems: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The starts of stretches that hold so many entries; one too short moves to the end."""
        moved = counts > self.capacities[systems]
        capacities = counts[moved] + counts[moved] // 8
        self.capacities[systems[moved]] = capacities
        self.starts[systems[moved]] = self.end + np.cumsum(capacities) - capacities
        self.end += int(capacities.sum())
        return self.starts[systems]


def _grown(array: np.ndarray, needed: int, fill: int = 0, steps: int = 1) -> np.ndarray:
    """The array, longer if it is shorter than `needed`."""
    return (
        array if needed <= len(array) else _padded(array, padded_size(needed, BLOCK, steps), fill)
    )


def _padded(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    further = np.full((length - len(array), *array.shape[1:]), fill, array.dtype)
    return np.concatenate([array, further])


def _pairs_of(
    listing: vesin.NeighborList,
    positions: np.ndarray,
    cell: np.ndarray,
    pbc: np.ndarray,
    radius: float,
    resolution: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """All pairs within `radius` Å, rows and shifts; None where coordinates or cell forbid it.

    Args:
        listing: is used, with this radius.
        resolution: the relative spacing of the device's floats. A little more than `radius` is
            listed, so that no pair within it by the device's arithmetic is missed.
    """
    task = _task(positions, cell, pbc, radius, resolution)
    if task is None:
        return None
    positions, box, heights, radius = task
    listing.cutoff = _enlarged(radius, heights)
    pairs, shifts, distances = listing.compute(positions, box, True, "PSd", copy=False)
    near = distances <= radius if listing.cutoff > radius else slice(None)
    return pairs[near].astype(np.int32), shifts[near].copy()


def _task(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, radius: float, resolution: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """What vesin is asked for: positions, a cell and its heights, a radius; None beyond bounds."""
    largest = float(np.abs(positions).max())
    # NaN is no list either, here and below
    if not (largest <= LARGEST_POSITION and np.abs(cell).max() <= LARGEST_CELL):
        return None
    radius = radius * (1 + 1e-6) + 64 * resolution * largest
    positions, box = _closed(positions, cell, pbc, radius)
    if not abs(np.linalg.det(box)) > 0:
        return None
    heights = 1 / np.linalg.norm(np.linalg.inv(box), axis=0)
    if not np.prod(2 * radius / heights + 1) <= MOST_IMAGES:
        return None
    return positions, box, heights, radius


def check_listable(atoms: Sequence[Atoms], radius: float) -> None:
    """Makes sure, before anything runs, that every structure can have a list of this radius (Å).

    Raises:
        ValueError: one cannot; says which and why.
    """
    resolution = float(np.finfo(np.float64).eps)
    for k, a in enumerate(atoms):
        if _task(a.positions, a.cell.array, a.pbc, radius, resolution) is None:
            raise _no_list(k, a.cell.array, radius)


def _no_list(at: int, cell: np.ndarray, radius: float) -> ValueError:
    return ValueError(
        f"system {at}: no neighbour list can be made. Positions must be finite and at most"
        f" {LARGEST_POSITION:g} Å, cell entries at most {LARGEST_CELL:g} Å, and the cell so large"
        f" that at most about {MOST_IMAGES} images of an atom lie within {radius:g} Å. Its cell:"
        f" {cell.tolist()}"
    )


def _closed(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and a cell, periodic in all directions, with the pairs of this system.

    Open directions get a vector that no pair can span, and empty space along them that no pair can
    span is shortened: vesin 0.6.2 ends the process where an atom lies 1e6 Å out along one of them.
    """
    if pbc.all():
        return positions, cell
    box, positions = cell.copy(), positions.copy()
    # The last right singular vectors are orthonormal and orthogonal to the periodic ones.
    across = np.linalg.svd(cell[pbc])[2][pbc.sum() :]
    for k, direction in zip(np.flatnonzero(~pbc), across, strict=True):
        along = positions @ direction
        order = np.argsort(along, kind="stable")
        excess = np.cumsum(np.maximum(np.diff(along[order]) - 1.5 * radius, 0.0))
        positions[order[1:]] -= excess[:, None] * direction
        along = positions @ direction
        box[k] = direction * (along.max() - along.min() + 2 * radius)
    return positions, box


def _enlarged(radius: float, heights: np.ndarray) -> float:
    """The radius, larger where vesin would sort atoms into too many bins of this size.

    Beyond 1e5 bins vesin 0.6.2 takes larger ones, as flat as the cell; where it arrives at a
    fraction of a bin, it divides by zero.
    """
    while np.prod(np.maximum(heights / radius, 1.0)) > _MOST_BINS:
        radius *= 1.25
    return radius


_MOST_BINS = 5e4


class _Arranged(NamedTuple):
    """Pairs of several systems in canonical order: row, neighbour's row, shift."""

    rows: np.ndarray
    """[pairs], ascending."""
    images: np.ndarray
    """[pairs]: the neighbour, a row or, beyond `far`, one of the further images."""
    image_rows: np.ndarray
    """[further images], ascending."""
    image_shifts: np.ndarray
    """[further images], entries of `shifts`."""
    shifts: np.ndarray
    """[shifts, 3], in lexicographic order; some may not occur."""
    reverse: np.ndarray | None
    """[pairs]: each pair seen from its other end, if asked for."""


def _arranged(pairs: np.ndarray, shifts: np.ndarray, far: int, *, reverse: bool) -> _Arranged:
    """The pairs in order.

    Args:
        far: no row is as large.
    """
    code, every = _coded(shifts, symmetric=reverse)
    n_shifts = len(every)
    # One integer a pair, as short as it may be: sorting takes most of the time here.
    bits = (far * n_shifts).bit_length()
    dtype = np.uint32 if far.bit_length() + bits <= 32 else np.int64
    keys = pairs[:, 0].astype(dtype) << dtype(bits)
    keys |= pairs[:, 1].astype(dtype) * dtype(n_shifts) + code.astype(dtype)
    keys.sort()
    distinct, image = _distinct(keys & dtype((1 << bits) - 1))
    distinct = distinct.astype(np.int64)
    image_rows, image_shifts = distinct // n_shifts, distinct % n_shifts
    is_further = np.any(every, axis=1)[image_shifts]
    number = np.where(is_further, far + np.cumsum(is_further), image_rows).astype(np.int32)
    return _Arranged(
        keys >> dtype(bits),
        number[image],
        image_rows[is_further],
        image_shifts[is_further],
        every,
        _reversed(keys, bits, n_shifts) if reverse else None,
    )


def _reversed(keys: np.ndarray, bits: int, n_shifts: int) -> np.ndarray:
    """Where each pair stands seen from its other end; a pair that is not there, where it stands.

    The list can lack one end of a pair only where the two differ in whether rounding puts them
    within its radius, which reaches beyond the cutoff.
    """
    dtype = keys.dtype.type
    images = keys & dtype((1 << bits) - 1)
    rows = images // dtype(n_shifts)
    # The table of shifts is symmetric: counted from its end stands the opposite one.
    opposite = dtype(n_shifts - 1) - (images - rows * dtype(n_shifts))
    keys_back = (rows << dtype(bits)) | ((keys >> dtype(bits)) * dtype(n_shifts) + opposite)
    at = np.minimum(np.searchsorted(keys, keys_back), max(len(keys) - 1, 0))
    return np.where(keys[at] == keys_back, at, np.arange(len(keys)))


def _coded(shifts: np.ndarray, *, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each shift as an entry of a table of shifts in lexicographic order, and that table.

    Args:
        symmetric: have the opposite of each shift in the table, too.
    """
    if not len(shifts):
        return np.zeros(0, np.int64), np.zeros((1, 3), np.int64)
    columns = [np.ascontiguousarray(column, np.int32) for column in shifts.T]
    low = [int(column.min()) for column in columns]
    high = [int(column.max()) for column in columns]
    if symmetric:
        high = [max(most, -least) for least, most in zip(low, high, strict=True)]
        low = [-most for most in high]
    width = [most - least + 1 for least, most in zip(low, high, strict=True)]
    n_shifts = math.prod(width)
    if n_shifts > _DENSE_SHIFTS:
        known = np.concatenate([shifts, -shifts]) if symmetric else shifts
        every, code = np.unique(known, axis=0, return_inverse=True)
        return code.reshape(-1)[: len(shifts)], every
    code = columns[0] - low[0]
    for column, least, wide in zip(columns[1:], low[1:], width[1:], strict=True):
        code *= wide
        code += column
        code -= least
    return code, np.stack(np.unravel_index(np.arange(n_shifts), width), 1) + low


_DENSE_SHIFTS = 4096
"""Up to this number, the table holds every shift within the bounds of those that occur."""


def _rank(sorted_numbers: np.ndarray) -> np.ndarray:
    """The how many-th of its equals each of the sorted numbers is, from 0."""
    counts = np.bincount(sorted_numbers)
    firsts = (np.cumsum(counts) - counts).astype(np.int32)
    return np.arange(len(sorted_numbers), dtype=np.int32) - np.repeat(firsts, counts)


_DENSE = 1 << 23
"""Up to this bound, finding distinct numbers in a table of all is faster than sorting them."""


def _distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of numbers from 0, ascending, and which of them each number is."""
    bound = int(numbers.max(initial=0)) + 1
    if bound > _DENSE:
        return np.unique(numbers, return_inverse=True)
    table = np.zeros(bound, np.int32)
    table[numbers] = 1
    distinct = np.flatnonzero(table)
    table[distinct] = np.arange(len(distinct))
    return distinct, table[numbers]
