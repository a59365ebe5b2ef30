"""All pairs of atoms within a radius, periodic images included, on the host in canonical order.

Small systems try every pair, many systems at once; vesin searches the others. Both find the same
pairs, except pairs whose distance equals the radius within rounding (single precision for trials).
"""

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import vesin
from ase import Atoms

from basinax.neighbors.numbering import coded, distinct, reversed_pairs

RESOLUTION = float(np.finfo(np.float64).eps)
"""The relative spacing of the host's floats."""

LARGEST_POSITION, LARGEST_CELL = 1e8, 1e5
"""The largest coordinates and cell entries, in Å, for which a list is made."""

MOST_IMAGES = 10_000
"""The largest number of periodic images of an atom within the radius of a list, counted in a
parallelepiped around the radius. A cell of one atom and 1 Å has half as many within 9 Å. No run may
start with more."""

TO_SPARE = 1.1
"""The factor by which images within the cutoff may grow until a moving cell counts as lost, and
again until no list is made. So a structure at the limit may start, and the device ends it."""

MOST_TRIED = 1 << 20
"""Up to this many candidates in a system, trying all is faster than a search: nearly 200 atoms of a
crystal whose cell is as high as the radius, or 1000 of a cluster."""

MOST_RADII = 30
"""Larger systems are searched, since trials compare squared lengths in single precision."""

MOST_AT_ONCE = 1 << 19
"""The number of candidates, of several systems, that are tried at once."""

ON_ONE_CORE = 1 << 17
"""Multiplications of a matrix product that BLAS computes without threads, which would spin on cores
that batches need (OpenBLAS starts threads at 1 << 18). As many products also fit into the cache
until they are compared."""


class Task(NamedTuple):
    """One system, made periodic in all directions, and the radius of its pairs."""

    positions: np.ndarray
    """[atoms, 3] in Å."""
    cell: np.ndarray
    radius: float
    """The radius in Å, slightly larger than requested, so that no pair is missed that the device's
    arithmetic puts within the requested radius."""
    heights: np.ndarray
    """The distances between opposite faces of the cell, in Å."""
    turns: tuple[int, int, int] | None
    """The number of cells either way with images in reach; None if too many to try."""

    @property
    def kind(self) -> tuple[int, tuple[int, int, int]] | None:
        """The key of systems that are tried together; None for a system to search."""
        return None if self.turns is None else (len(self.positions), self.turns)


class Pairs(NamedTuple):
    """Pairs of systems, one after another, each in canonical order: row, neighbour's row, shift."""

    systems: np.ndarray
    """The numbers of these systems, in their order here."""
    lengths: np.ndarray
    """[rows]: the number of pairs of each row."""
    images: np.ndarray
    """[pairs]: the neighbour, a row or, beyond `far`, a further image."""
    image_rows: np.ndarray
    """[further images]: their rows, ascending within a system."""
    image_shifts: np.ndarray
    """[further images]: indices into `shifts`."""
    shifts: np.ndarray
    """[shifts, 3], in lexicographic order for each system; some may be unused."""
    reverse: np.ndarray | None
    """[pairs]: the index of each pair seen from its other end, or None."""


def tasks_of(
    positions: Sequence[np.ndarray],
    cells: np.ndarray,
    pbc: np.ndarray,
    radius: float,
    resolution: float,
    most_images: float = MOST_IMAGES,
) -> list[Task | None]:
    """The tasks for lists of this radius (Å); None if positions or cell allow no list.

    An infinite radius takes all pairs of an open system, and allows no list of a periodic one.

    Args:
        positions, cells, pbc: one entry per system.
        resolution: the relative spacing of the device's floats.
        most_images: the largest number of images of an atom, counted as in `MOST_IMAGES`.
    """
    if not len(positions):
        return []
    sizes = np.array([len(x) for x in positions])
    ends = np.cumsum(sizes)
    starts, owners = ends - sizes, np.repeat(np.arange(len(sizes)), sizes)
    x = np.concatenate(positions).astype(np.float64)
    largest = np.maximum.reduceat(np.abs(x).max(axis=1), starts)
    # NaN fails these comparisons, so positions or cells with NaN get no list.
    may_be = (largest <= LARGEST_POSITION) & (np.abs(cells).max(axis=(1, 2)) <= LARGEST_CELL)
    if math.isinf(radius):
        may_be &= ~pbc.any(axis=1)
    radii = _reaches(x, starts, radius) * (1 + 1e-6) + 64 * resolution * largest
    radii = np.where(may_be, radii, 1.0)
    boxes = np.where(may_be[:, None, None], cells, np.eye(3))
    x[~may_be[owners]] = 0.0
    spans = np.maximum.reduceat(x, starts) - np.minimum.reduceat(x, starts)
    # All clusters at once; `_closed` would make the same boxes one by one.
    is_small = may_be & ~pbc.any(axis=1) & (spans <= _GAP * radii[:, None]).all(axis=1)
    boxes[is_small] = (spans[is_small, None] + 2 * radii[is_small, None, None]) * np.eye(3)
    for k in np.flatnonzero(may_be & ~is_small & ~pbc.all(axis=1)):
        own = slice(starts[k], ends[k])
        x[own], boxes[k] = _closed(x[own], boxes[k], pbc[k], radii[k])
    inverses = _inverses(boxes)
    with np.errstate(all="ignore"):  # a cell may be almost flat
        # heights [systems, 3]: the distances between opposite faces of the cells.
        heights = 1 / np.sqrt((inverses * inverses).sum(axis=1))
        may_be &= (2 * radii[:, None] / heights + 1).prod(axis=1) <= most_images
        fractions = np.einsum("ik,ikj->ij", x, inverses[owners])
        spread = np.maximum.reduceat(fractions, starts) - np.minimum.reduceat(fractions, starts)
        # Cells either way that the radius can reach, also from atoms outside the cell.
        turns = np.floor(radii[:, None] / heights + spread + 1e-9) * pbc
        is_tried = sizes**2 * (2 * turns + 1).prod(axis=1) <= MOST_TRIED
        extents = np.einsum("sk,skj->sj", spread + turns, np.abs(boxes)).max(axis=1)
        is_tried &= extents <= MOST_RADII * radii
    whole = np.where((may_be & is_tried)[:, None], turns, 0.0).astype(int).tolist()
    tasks: list[Task | None] = []
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        cells_either_way = tuple(whole[k]) if is_tried[k] else None
        task = Task(x[start:end], boxes[k], float(radii[k]), heights[k], cells_either_way)
        tasks.append(task if may_be[k] else None)
    return tasks


def _inverses(boxes: np.ndarray) -> np.ndarray:
    """Inverses; NaN for singular boxes."""
    try:
        return np.linalg.inv(boxes)
    except np.linalg.LinAlgError:
        if len(boxes) == 1:
            return np.full_like(boxes, np.nan)
        return np.concatenate([_inverses(box[None]) for box in boxes])


def _reaches(x: np.ndarray, starts: np.ndarray, radius: float) -> np.ndarray | float:
    """The reach of pairs in each system: the whole system for an infinite radius."""
    if not math.isinf(radius):
        return radius
    with np.errstate(invalid="ignore"):  # positions may hold inf
        spans = np.maximum.reduceat(x, starts) - np.minimum.reduceat(x, starts)
    return spans.sum(axis=1) + 1.0


def check_open(atoms: Sequence[Atoms], cutoff: float) -> None:
    """Raise ValueError if a structure is periodic and there is no cutoff."""
    periodic = [k for k, a in enumerate(atoms) if a.pbc.any()] if math.isinf(cutoff) else []
    if periodic:
        k = periodic[0]
        raise ValueError(
            f"system {k} ({atoms[k].symbols}) is periodic, pbc={atoms[k].pbc.tolist()}, and the"
            " potential has no cutoff: of its pairs there is no end. Give a cutoff, or set pbc to"
            " False where the cluster is isolated"
        )


def check_listable(atoms: Sequence[Atoms], radius: float, dtype: Any) -> None:
    """Check, before anything runs, that every structure can have a list of this radius (Å).

    Args:
        dtype: the dtype of the run, to which positions and cells are rounded.

    Raises:
        ValueError: a structure cannot; the message names it and the reason.
    """
    check_open(atoms, radius)
    resolution = float(np.finfo(dtype).eps)
    with np.errstate(over="ignore"):  # inf is refused
        positions = [a.positions.astype(dtype) for a in atoms]
        cells = np.array([a.cell.array for a in atoms]).astype(dtype).astype(np.float64)
    tasks = tasks_of(positions, cells, np.array([a.pbc for a in atoms]), radius, resolution)
    if None in tasks:
        k = tasks.index(None)
        name, largest = f"system {k} ({atoms[k].symbols})", float(np.abs(positions[k]).max())
        raise no_list(name, cells[k], radius, largest, resolution)


def no_list(
    name: str, cell: np.ndarray, radius: float, largest: float, resolution: float
) -> ValueError:
    """The error that names a system without a list.

    Args:
        largest: the largest coordinate of the system, in Å.
    """
    return ValueError(
        f"{name}: no neighbour list can be made. Positions must be finite and at most"
        f" {LARGEST_POSITION:g} Å, cell entries at most {LARGEST_CELL:g} Å, and the cell so large"
        f" that at most about {MOST_IMAGES} images of an atom lie within {radius:g} Å and what the"
        f" precision of the run leaves open: got coordinates up to {largest:g} Å, known to"
        f" {resolution * largest:.1g} Å, and the cell {cell.tolist()}. Move the structure to the"
        " origin, or give it a larger cell"
    )


def pairs_of(
    tasks: Sequence[tuple[int, Task]], starts: np.ndarray, far: int, *, reverse: bool
) -> Pairs:
    """The pairs of all these systems.

    Args:
        tasks: numbers of systems with their tasks; at least one.
        starts: the first row of each system.
        far: a number above all rows.
    """
    alike: dict = {}
    for k, task in tasks:
        alike.setdefault(task.kind, []).append((k, task))
    parts: list[Pairs] = []
    n_images = 0
    for kind, members in alike.items():
        at_once = len(members) if kind is None else max(1, MOST_AT_ONCE // _candidates(*kind))
        for begin in range(0, len(members), at_once):
            numbers, some = zip(*members[begin : begin + at_once], strict=True)
            systems = np.asarray(numbers)
            if kind is None:
                found = _searched(some, starts[systems], far, symmetric=reverse)
            else:
                found = _tried(some, starts[systems], far, *kind)
            parts.append(_arranged(systems, found, far, n_images, reverse=reverse))
            n_images += len(parts[-1].image_rows)
    return parts[0] if len(parts) == 1 else _joined(parts, reverse=reverse)


class OrderedPairs(NamedTuple):
    """The pairs of one structure, in canonical order."""

    receivers: np.ndarray
    """[pairs]: the atoms in the home cell."""
    images: np.ndarray
    """[pairs]: their neighbours, among the images."""
    rows: np.ndarray
    """[images]: the atom of each image; the atoms themselves stand first."""
    cells: np.ndarray
    """[images, 3]: the cell of each image."""

    @property
    def senders(self) -> np.ndarray:
        """[pairs]: the atoms that are neighbours."""
        return self.rows[self.images]

    @property
    def shifts(self) -> np.ndarray:
        """[pairs, 3]: the cells of the neighbours."""
        return self.cells[self.images]


def ordered_pairs(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, radius: float
) -> OrderedPairs | None:
    """The pairs of one structure within at least this radius (Å); None if no list can be made."""
    return pairs_of_each([positions], cell[None], pbc[None], radius)[0]


def pairs_of_each(
    positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray, radius: float
) -> list[OrderedPairs | None]:
    """The pairs of each structure within at least this radius (Å); None for no list.

    Args:
        positions, cells, pbc: one entry per structure.
    """
    each: list[OrderedPairs | None] = [None] * len(positions)
    tasks = tasks_of(positions, cells, pbc, radius, RESOLUTION)
    listed = [(k, task) for k, task in enumerate(tasks) if task is not None]
    if not listed:
        return each
    sizes = np.array([len(x) for x in positions])
    starts, far = np.cumsum(sizes) - sizes, int(sizes.sum())
    found = pairs_of(listed, starts, far, reverse=False)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    n_pairs = np.add.reduceat(found.lengths[:far], starts)
    n_further = np.bincount(owners[found.image_rows], minlength=len(sizes))
    first_pair = first_image = 0
    for k in found.systems.tolist():
        pairs = slice(first_pair, first_pair + n_pairs[k])
        further = slice(first_image, first_image + n_further[k])
        images, n = found.images[pairs], int(sizes[k])
        # The number after all atoms is that of one that is far; then further images follow.
        before = np.where(images < far, starts[k], far + 1 + first_image - n)
        own, cell = np.arange(n), found.shifts[found.image_shifts[further]]
        each[k] = OrderedPairs(
            np.repeat(own, found.lengths[starts[k] : starts[k] + n]),
            images - before,
            np.concatenate([own, found.image_rows[further] - starts[k]]),
            np.concatenate([np.zeros((n, 3), int), cell]),
        )
        first_pair, first_image = pairs.stop, further.stop
    return each


def _joined(parts: Sequence[Pairs], *, reverse: bool) -> Pairs:
    """Join the parts, whose images are numbered consecutively already."""

    def entries_of(name: str, tables: list[np.ndarray]) -> np.ndarray:
        """Indices into the parts' tables, shifted to index the joined table."""
        begins = np.cumsum([0, *map(len, tables)])
        found = [getattr(p, name) for p in parts]
        return np.concatenate([f + at for f, at in zip(found, begins[:-1], strict=True)])

    together = {
        name: np.concatenate([getattr(p, name) for p in parts])
        for name in ("systems", "images", "image_rows", "shifts")
    }
    return Pairs(
        lengths=np.sum([p.lengths for p in parts], axis=0),
        image_shifts=entries_of("image_shifts", [p.shifts for p in parts]),
        reverse=entries_of("reverse", [p.images for p in parts]) if reverse else None,
        **together,
    )


class _Found(NamedTuple):
    """Pairs in canonical order; a neighbour's code is its row times the number of shifts, plus its
    shift."""

    lengths: np.ndarray
    """[rows]"""
    occurring: np.ndarray
    """The distinct codes of neighbours, ascending."""
    image: np.ndarray
    """[pairs]: the index of each pair's neighbour in `occurring`."""
    shifts: np.ndarray
    """[shifts, 3]"""


def _candidates(n_atoms: int, turns: tuple[int, int, int]) -> int:
    return n_atoms**2 * int(np.prod([2 * n + 1 for n in turns]))


@functools.cache
def _shifts(turns: tuple[int, int, int]) -> np.ndarray:
    """All shifts of up to `turns` cells either way, in lexicographic order."""
    shifts = np.indices([2 * n + 1 for n in turns]).reshape(3, -1).T - turns
    shifts.flags.writeable = False
    return shifts


_kept = threading.local()


def _scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that the thread reuses: new memory costs more than the computation."""
    size = math.prod(shape)
    held = vars(_kept).get(name)
    if held is None or held.size < size:
        held = np.empty(size, dtype)
        setattr(_kept, name, held)
    return held[:size].reshape(shape)


_ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""The error of a sum of four products in single precision, and of its bound, for lengths ≤ 1."""


def _tried(
    tasks: Sequence[Task],
    starts: np.ndarray,
    far: int,
    n_atoms: int,
    turns: tuple[int, int, int],
) -> _Found:
    """The pairs, by trying all candidates.

    The test |a − b|² ≤ r² becomes 2a·b − |b|² ≥ |a|² − r²: one matrix product in single precision,
    with a radius enlarged by the possible error.
    """
    shifts = _shifts(turns)
    n_shifts, n_images = len(shifts), n_atoms * len(shifts)
    x = np.array([task.positions for task in tasks])
    x -= x.mean(axis=1, keepdims=True)
    displacements = shifts @ np.array([task.cell for task in tasks])
    radii2 = np.array([task.radius**2 for task in tasks])[:, None]

    # Coordinates of images, then their squared lengths: [systems, 4, atoms, shifts]
    ends = np.empty((len(tasks), 4, n_atoms, n_shifts), np.float32)
    by_axis, displacements = x.transpose(0, 2, 1), displacements.transpose(0, 2, 1)
    np.add(by_axis[:, :, :, None], displacements[:, :, None], out=ends[:, :3])
    np.einsum("skij,skij->sij", ends[:, :3], ends[:, :3], out=ends[:, 3])
    ends = ends.reshape(len(tasks), 4, n_images)
    # begins [systems, atoms, 4] times ends [systems, 4, images] gives 2a·b − |b|² for all pairs.
    begins = np.concatenate([2 * x, np.full((*x.shape[:2], 1), -1.0)], axis=2, dtype=np.float32)
    errors = _ROUNDING * (ends[:, 3].max(axis=1, keepdims=True) + radii2)
    least = (np.einsum("sik,sik->si", x, x) - radii2 - errors).astype(np.float32)
    at_once = max(1, ON_ONE_CORE // (4 * n_images))
    some = max(1, at_once // n_atoms)
    is_near = _scratch("is_near", (len(tasks), n_atoms, n_images), bool)
    products = _scratch("products", (some, min(at_once, n_atoms), n_images), np.float32)
    for k in range(0, len(tasks), some):
        systems = slice(k, k + some)
        for i in range(0, n_atoms, at_once):
            rows = slice(i, i + at_once)
            bounds = least[systems, rows, None]
            here = products[: bounds.shape[0], : bounds.shape[1]]
            np.matmul(begins[systems, rows], ends[systems], out=here)
            np.greater_equal(here, bounds, out=is_near[systems, rows])
    own = np.arange(n_atoms)
    is_near[:, own, own * n_shifts + n_shifts // 2] = False

    near = np.flatnonzero(is_near).astype(np.int32)  # the candidates are fewer than 2^31
    bounds = np.arange(len(tasks) * n_atoms + 1, dtype=np.int32) * np.int32(n_images)
    counts = np.diff(np.searchsorted(near, bounds))
    lengths = np.zeros(far, np.int64)
    lengths[(starts[:, None] + own).ravel()] = counts
    # The number of each near candidate, first among all images of its system, then among used ones.
    occurs = is_near.any(axis=1).ravel()
    of_systems = np.repeat(np.arange(len(tasks), dtype=np.int32) * np.int32(n_images), n_atoms)
    images = near + np.repeat(of_systems - bounds[:-1], counts)
    numbers = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    systems, image = np.divmod(np.flatnonzero(occurs), n_images)
    return _Found(lengths, starts[systems] * n_shifts + image, numbers.take(images), shifts)


def _searched(tasks: Sequence[Task], starts: np.ndarray, far: int, *, symmetric: bool) -> _Found:
    """The pairs of `_tried`, by vesin; a `symmetric` table holds the opposite of each shift too."""
    listing = vesin.NeighborList(cutoff=0.0, full_list=True, n_threads=1)
    pairs, shifts = [], []
    for task, start in zip(tasks, starts, strict=True):
        listing.cutoff = _enlarged(task.radius, task.heights)
        p, s, d = listing.compute(task.positions, task.cell, True, "PSd", copy=False)
        near = d <= task.radius if listing.cutoff > task.radius else slice(None)
        pairs.append(p[near].astype(np.int32) + np.int32(start))
        shifts.append(s[near].copy())
    code, every = coded(np.concatenate(shifts), symmetric=symmetric)
    both = np.concatenate(pairs)
    # Pack a pair into one short integer: sorting takes most of the time here.
    row_bits = int(both.max(initial=0)).bit_length()
    bits = row_bits + len(every).bit_length()
    dtype = np.uint32 if row_bits + bits <= 32 else np.int64
    keys = both[:, 0].astype(dtype) << dtype(bits)
    keys |= both[:, 1].astype(dtype) * dtype(len(every)) + code.astype(dtype)
    keys.sort()
    lengths = np.bincount(keys >> dtype(bits), minlength=far)
    return _Found(lengths, *distinct(keys & dtype((1 << bits) - 1)), every)


def _closed(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, radius: float
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and a cell, periodic in all directions, with the pairs of this system.

    Open directions get a vector that no pair can span. Empty space that no pair can span is
    shortened: vesin 0.6.2 ends the process if an atom lies 1e6 Å out along such a vector.
    """
    if pbc.all():
        return positions, cell
    box, positions = cell.copy(), positions.copy()
    # The last right singular vectors are orthonormal, and orthogonal to the periodic vectors.
    across = np.linalg.svd(cell[pbc])[2][pbc.sum() :]
    for k, direction in zip(np.flatnonzero(~pbc), across, strict=True):
        along = positions @ direction
        order = np.argsort(along, kind="stable")
        excess = np.cumsum(np.maximum(np.diff(along[order]) - _GAP * radius, 0.0))
        positions[order[1:]] -= excess[:, None] * direction
        along = positions @ direction
        box[k] = direction * (along.max() - along.min() + 2 * radius)
    return positions, box


_GAP = 1.5
"""The empty space that is left between atoms, in radii."""


def _enlarged(radius: float, heights: np.ndarray) -> float:
    """The radius, enlarged if vesin would sort atoms into too many bins of this size.

    Beyond 1e5 bins vesin 0.6.2 takes larger bins, as flat as the cell, and divides by zero if a bin
    would be a fraction of one.
    """
    while np.prod(np.maximum(heights / radius, 1.0)) > _MOST_BINS:
        radius *= 1.25
    return radius


_MOST_BINS = 5e4


def _arranged(
    systems: np.ndarray, found: _Found, far: int, n_images: int, *, reverse: bool
) -> Pairs:
    """The pairs, with a table of used images numbered from `n_images` on."""
    lengths, occurring, image, shifts = found
    n_shifts, occurring = len(shifts), occurring.astype(np.int64)
    image_rows, image_shifts = occurring // n_shifts, occurring % n_shifts
    is_further = np.any(shifts, axis=1)[image_shifts]
    number = np.where(is_further, far + n_images + np.cumsum(is_further), image_rows)
    back = None
    if reverse:
        back = reversed_pairs(np.repeat(np.arange(far), lengths), occurring.take(image), n_shifts)
    return Pairs(
        systems,
        lengths,
        number.astype(np.int32).take(image),
        image_rows[is_further],
        image_shifts[is_further],
        shifts,
        back,
    )
