"""All pairs of atoms within a radius, periodic images included, on the host in canonical order.

Small systems try every pair, many systems at once; vesin searches the others. Both find the same
pairs, except pairs whose distance equals the radius within rounding (single precision for trials).
"""

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import vesin
from ase import Atoms
from jaxtyping import Bool, Float, Int

from basinax.neighbors.numbering import coded, distinct, reversed_pairs
from basinax.numerics.settings import warn_once
from basinax.structures.batch import Batch, row_starts
from basinax.structures.read import cells_of, name_of
from basinax.systems.plan import ranges

RESOLUTION = float(np.finfo(np.float64).eps)
"""The relative spacing of the host's floats."""

LARGEST_POSITION, LARGEST_CELL = 1e8, 1e5
"""The largest coordinates and cell entries, in Å, for which a list is made."""

COARSE = 1e-3
"""Positions that are rounded by more, in Å, are told of: forces err by some hundredths of them."""

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

MOST_AT_ONCE = 1 << 20
"""The number of candidates, of several systems, that are tried at once."""

ON_ONE_CORE = 1 << 17
"""Multiplications of a matrix product that BLAS computes without threads, which would spin on cores
that batches need (OpenBLAS starts threads at 1 << 18)."""

MOST_PRODUCTS = 1 << 16
"""The number of products, of several systems, that the cache holds until they are compared."""


class Tasks(NamedTuple):
    """Systems made periodic in all directions, and the radii of their pairs."""

    positions: Float[np.ndarray, "rows 3"]
    """The positions in Å, one system after another."""
    sizes: Int[np.ndarray, "systems"]
    """The numbers of atoms."""
    starts: Int[np.ndarray, "systems"]
    """The first row of each system."""
    may_be: Bool[np.ndarray, "systems"]
    """The mask of systems whose positions and cell allow a list."""
    cells: Float[np.ndarray, "systems 3 3"]
    radii: Float[np.ndarray, "systems"]
    """The radii in Å, slightly larger than requested, so that no pair is missed that the device's
    arithmetic puts within the requested radius."""
    heights: Float[np.ndarray, "systems 3"]
    """The distances between opposite faces of the cells, in Å."""
    turns: Int[np.ndarray, "systems 3"]
    """The number of cells either way with images in reach."""
    is_tried: Bool[np.ndarray, "systems"]
    """The mask of systems that are small enough to try all pairs."""

    def parts(self) -> Iterator[np.ndarray]:
        """Systems with a list, those that are searched or tried together in one array."""
        alike: dict[tuple[int, ...], list[int]] = {}
        kinds = np.where(self.is_tried[:, None], np.c_[self.sizes, self.turns], 0)
        for k in np.flatnonzero(self.may_be).tolist():
            alike.setdefault(tuple(kinds[k].tolist()), []).append(k)
        for (n_atoms, *turns), members in alike.items():
            n_candidates = n_atoms**2 * math.prod(2 * n + 1 for n in turns)
            at_once = max(1, MOST_AT_ONCE // n_candidates) if n_candidates else len(members)
            for begin in range(0, len(members), at_once):
                yield np.array(members[begin : begin + at_once])


class Pairs(NamedTuple):
    """Pairs of some systems, one after another, each in canonical order: row, neighbour, shift."""

    systems: Int[np.ndarray, "some"]
    """The systems, as numbers of tasks."""
    lengths: Int[np.ndarray, "rows"]
    """The number of pairs of each atom."""
    images: Int[np.ndarray, "pairs"]
    """The neighbour of each pair, as an index into the table of images."""
    owners: Int[np.ndarray, "images"]
    """The system of each image, as an index into `systems`; ascending, then by atom and shift."""
    atoms: Int[np.ndarray, "images"]
    """The atom that each image copies."""
    codes: Int[np.ndarray, "images"]
    """The shift of each image, as an index into `shifts`."""
    shifts: Int[np.ndarray, "shifts 3"]
    """Shifts in lexicographic order; some may be unused."""
    reverse: Int[np.ndarray, "pairs"] | None
    """The index of each pair seen from its other end, or None."""

    @property
    def is_further(self) -> Bool[np.ndarray, "images"]:
        """The mask of images outside the home cell."""
        return np.any(self.shifts, axis=1)[self.codes]


def tasks_of(
    positions: Float[np.ndarray, "rows 3"],
    sizes: Int[np.ndarray, "systems"],
    cells: Float[np.ndarray, "systems 3 3"],
    pbc: Bool[np.ndarray, "systems 3"],
    radius: float,
    resolution: float,
    most_images: float = MOST_IMAGES,
) -> Tasks:
    """The tasks for lists of this radius (Å).

    An infinite radius takes all pairs of an open system, and allows no list of a periodic one.

    Args:
        positions: of at least one system, one after another; each has at least one atom.
        resolution: the relative spacing of the device's floats.
        most_images: the largest number of images of an atom, counted as in `MOST_IMAGES`.
    """
    ends = np.cumsum(sizes)
    starts, owners = ends - sizes, np.repeat(np.arange(len(sizes)), sizes)
    x = positions.astype(np.float64)
    low, high = np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)
    largest = np.maximum(-low, high).max(axis=1)
    # NaN fails these comparisons, so positions or cells with NaN get no list.
    may_be = (largest <= LARGEST_POSITION) & (np.abs(cells).max(axis=(1, 2)) <= LARGEST_CELL)
    if math.isinf(radius):
        may_be &= ~pbc.any(axis=1)
    with np.errstate(invalid="ignore"):  # positions may hold inf
        spans = high - low
    reach = spans.sum(axis=1) + 1.0 if math.isinf(radius) else radius
    radii = np.where(may_be, reach * (1 + 1e-6) + 64 * resolution * largest, 1.0)
    boxes = np.where(may_be[:, None, None], cells, np.eye(3))
    x[~may_be[owners]] = 0.0
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
    turns = np.where((may_be & is_tried)[:, None], turns, 0.0).astype(int)
    return Tasks(x, sizes, starts, may_be, boxes, radii, heights, turns, is_tried)


def tasks_of_systems(
    batch: Batch, members: Int[np.ndarray, "some"], radius: float, most_images: float = MOST_IMAGES
) -> Tasks:
    """The tasks for lists of these systems of a batch, which have atoms; see `tasks_of`."""
    positions, sizes = np.asarray(batch.positions), np.asarray(batch.index.sizes, np.int64)
    rows = ranges(row_starts(sizes)[members], sizes[members])
    cells, pbc = np.asarray(batch.cells, np.float64)[members], np.asarray(batch.pbc)[members]
    resolution = float(np.finfo(positions.dtype).eps)
    return tasks_of(positions[rows], sizes[members], cells, pbc, radius, resolution, most_images)


def _inverses(boxes: np.ndarray) -> np.ndarray:
    """Inverses; NaN for singular boxes."""
    try:
        return np.linalg.inv(boxes)
    except np.linalg.LinAlgError:
        if len(boxes) == 1:
            return np.full_like(boxes, np.nan)
        return np.concatenate([_inverses(box[None]) for box in boxes])


def images_at_most(cutoff: float, skin: float) -> float:
    """The largest number of images within the reach of lists: enough for all cells not lost.

    The device decides by images within the cutoff whether a cell is lost, so no result depends on
    the skin. That holds for skins up to the size of the cutoff.
    """
    if not 0 < cutoff < np.inf:
        return MOST_IMAGES * TO_SPARE**2 * 8.0
    return MOST_IMAGES * TO_SPARE**2 * min((1 + skin / cutoff) ** 3, 8.0)


def inverses_along(
    cells: Float[np.ndarray, "systems 3 3"], pbc: Bool[np.ndarray, "systems 3"]
) -> tuple[Float[np.ndarray, "systems 3 3"], Float[np.ndarray, "systems 3"]]:
    """Inverses of cells along periodic directions, and one over their heights (1/Å) there.

    Columns of an inverse give the fractional coordinates of a position. Both are 0 along open
    directions, and not finite for cells whose periodic vectors are not independent.
    """
    vectors = np.where(pbc[:, :, None], cells, 0.0).astype(np.float64)
    gram = vectors @ vectors.transpose(0, 2, 1) + np.eye(3) * ~pbc[:, None, :]
    inverses = vectors.transpose(0, 2, 1) @ _inverses(gram)
    return inverses, np.sqrt((inverses * inverses).sum(axis=1))


def check_open(atoms: Sequence[Atoms], cutoff: float) -> None:
    """Raise ValueError if a structure is periodic and there is no cutoff."""
    periodic = [k for k, a in enumerate(atoms) if a.pbc.any()] if math.isinf(cutoff) else []
    if periodic:
        k = periodic[0]
        raise ValueError(
            f"{name_of(atoms[k], k)} is periodic, pbc={atoms[k].pbc.tolist()}, and the"
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
    for error in unlistable(atoms, radius, dtype).values():
        raise error


def unlistable(atoms: Sequence[Atoms], radius: float, dtype: Any) -> dict[int, ValueError]:
    """The structures that can have no list of this radius (Å), by number, with the reasons.

    Args:
        dtype: as for `check_listable`.

    Raises:
        ValueError: a structure is periodic and the radius infinite.
    """
    check_open(atoms, radius)
    if not atoms:
        return {}
    resolution, sizes = float(np.finfo(dtype).eps), np.array([len(a) for a in atoms])
    with np.errstate(over="ignore"):  # inf is refused
        positions = np.concatenate([a.positions for a in atoms]).astype(dtype)
        cells, pbc = cells_of(atoms)
        cells = cells.astype(dtype).astype(np.float64)
    tasks = tasks_of(positions, sizes, cells, pbc, radius, resolution)
    errors = {}
    for k in np.flatnonzero(~tasks.may_be).tolist():
        own = slice(tasks.starts[k], tasks.starts[k] + sizes[k])
        name, largest = name_of(atoms[k], k), float(np.abs(positions[own]).max())
        errors[k] = no_list(name, cells[k], radius, largest, resolution)
    if not errors and (rounding := resolution * np.abs(positions).max()) > COARSE:
        warn_once(
            f"positions are so far from the origin that {np.dtype(dtype)} rounds them by up to"
            f" {rounding:.1g} Å: move these structures to the origin, or use double precision"
        )
    return errors


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
        " precision of the run leaves open, counted in a parallelepiped of its vectors: got"
        f" coordinates up to {largest:g} Å, known to {resolution * largest:.1g} Å, and the cell"
        f" {cell.tolist()}. Move the structure to the origin, give it a larger cell, or reduce a"
        " skewed one (ase.build.minkowski_reduce)"
    )


def pairs_of(tasks: Tasks, *, reverse: bool) -> Iterator[Pairs]:
    """The pairs of all systems that have a list, some systems at a time."""
    for systems in tasks.parts():
        if tasks.is_tried[systems[0]]:
            found = _tried(tasks, systems)
        else:
            found = _searched(tasks, systems, symmetric=reverse)
        yield found._replace(reverse=_reversed(found, tasks.sizes[systems])) if reverse else found


class OrderedPairs(NamedTuple):
    """The pairs of one structure, in canonical order."""

    receivers: np.ndarray
    """[pairs]: the atoms in the home cell."""
    images: np.ndarray
    """[pairs]: their neighbours, among the images."""
    rows: np.ndarray
    """[images]: the atom of each image."""
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
    if not each:
        return each
    sizes = np.array([len(x) for x in positions])
    tasks = tasks_of(np.concatenate(positions), sizes, cells, pbc, radius, RESOLUTION)
    for found in pairs_of(tasks, reverse=False):
        n_atoms, own_sizes = np.cumsum(sizes[found.systems]), sizes[found.systems]
        pair_ends = np.cumsum(found.lengths)[n_atoms - 1]
        image_ends = np.cumsum(np.bincount(found.owners, minlength=len(found.systems)))
        first_pair = first_image = 0
        for m, (k, n) in enumerate(zip(found.systems.tolist(), own_sizes.tolist(), strict=True)):
            pairs, images = slice(first_pair, pair_ends[m]), slice(first_image, image_ends[m])
            each[k] = OrderedPairs(
                np.repeat(np.arange(n), found.lengths[n_atoms[m] - n : n_atoms[m]]),
                found.images[pairs] - first_image,
                found.atoms[images],
                found.shifts[found.codes[images]],
            )
            first_pair, first_image = pairs.stop, images.stop
    return each


@functools.lru_cache(256)
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

_NEAR_BOX = 1 + 1e-4
"""The same for the squared distance from a box, relative, at up to `MOST_RADII` from its middle."""


def _tried(tasks: Tasks, systems: Int[np.ndarray, "some"]) -> Pairs:
    """The pairs of systems of one size, by trying all candidates.

    The test |a − b|² ≤ r² becomes 2a·b − |b|² ≥ |a|² − r²: one matrix product in single precision,
    with a radius enlarged by the possible error.
    """
    n_atoms, n_systems = int(tasks.sizes[systems[0]]), len(systems)
    shifts, every = _shifts(tuple(tasks.turns[systems[0]].tolist())), np.arange(n_systems)
    n_shifts, n_all = len(shifts), n_atoms * len(shifts)
    # x [3, systems, atoms], relative to the middle of the box of all atoms
    rows = tasks.starts[systems, None] + np.arange(n_atoms)
    x = np.ascontiguousarray(tasks.positions[rows].transpose(2, 0, 1))
    low, high = x.min(axis=2), x.max(axis=2)
    x = x - ((low + high) / 2)[:, :, None]
    radii2 = tasks.radii[systems, None] ** 2
    places = _scratch("places", (3, n_systems, n_atoms, n_shifts), np.float32)
    displacements = (shifts @ tasks.cells[systems]).transpose(2, 0, 1)
    np.add(x[:, :, :, None], displacements[:, :, None], out=places)
    places = places.reshape(3, n_systems, n_all)

    # Images that are farther from the box than the radius are near no atom.
    beyond = np.abs(places, out=_scratch("beyond", places.shape, np.float32))
    beyond -= ((high - low) / 2).astype(np.float32)[:, :, None]
    np.maximum(beyond, 0.0, out=beyond)
    is_used = np.einsum("ksj,ksj->sj", beyond, beyond) <= radii2 * _NEAR_BOX
    used, counts = np.flatnonzero(is_used), np.count_nonzero(is_used, axis=1)
    owners, firsts, most = np.repeat(every, counts), np.cumsum(counts) - counts, int(counts.max())
    numbers = used - owners * n_all
    atoms = np.repeat(np.arange(n_atoms), n_shifts).take(numbers)
    codes = np.tile(np.arange(n_shifts), n_atoms).take(numbers)

    # begins [systems, atoms, 4] times ends [systems, 4, images] gives 2a·b − |b|² for all pairs.
    is_there, chosen = np.arange(most) < counts[:, None], np.zeros((n_systems, most), np.int64)
    chosen[is_there] = used
    ends = np.empty((4, n_systems, most), np.float32)
    np.take(places.reshape(3, -1), chosen.ravel(), axis=1, out=ends[:3].reshape(3, -1), mode="clip")
    np.einsum("ksj,ksj->sj", ends[:3], ends[:3], out=ends[3])
    farthest2 = np.max(ends[3], axis=1, where=is_there, initial=0.0)[:, None]
    # Near no atom. Of infinities, BLAS warns on some processors: it multiplies them by padding.
    ends[3][~is_there] = np.finfo(np.float32).max
    begins = np.full((n_systems, n_atoms, 4), -1.0, np.float32)
    begins[..., :3] = 2 * x.transpose(1, 2, 0)
    errors = _ROUNDING * (farthest2 + radii2)
    least = (np.einsum("ksi,ksi->si", x, x) - radii2 - errors).astype(np.float32)
    is_near = _compared(begins, ends.transpose(1, 0, 2), least)
    home = np.flatnonzero(codes == n_shifts // 2).reshape(n_systems, n_atoms) - firsts[:, None]
    is_near[every[:, None], np.arange(n_atoms), home] = False

    images = np.flatnonzero(is_near)
    begin = np.arange(n_systems * n_atoms + 1) * most
    lengths = np.diff(np.searchsorted(images, begin))
    # A candidate becomes an image of its system.
    images += np.repeat(np.repeat(firsts, n_atoms) - begin[:-1], lengths)
    return Pairs(systems, lengths, images, owners, atoms, codes, shifts, None)


def _compared(
    begins: Float[np.ndarray, "systems atoms 4"],
    ends: Float[np.ndarray, "systems 4 images"],
    least: Float[np.ndarray, "systems atoms"],
) -> Bool[np.ndarray, "systems atoms images"]:
    """Where products of these are no less than the least, in an array that the thread reuses."""
    n_systems, n_atoms, _ = begins.shape
    n_images = ends.shape[2]
    at_once = min(n_atoms, max(1, ON_ONE_CORE // (4 * n_images)))
    some = max(1, MOST_PRODUCTS // (at_once * n_images))
    is_near = _scratch("is_near", (n_systems, n_atoms, n_images), bool)
    products = _scratch("products", (some, at_once, n_images), np.float32)
    for k in range(0, n_systems, some):
        here = slice(k, k + some)
        for i in range(0, n_atoms, at_once):
            rows = slice(i, i + at_once)
            bounds = least[here, rows, None]
            product = products[: bounds.shape[0], : bounds.shape[1]]
            np.matmul(begins[here, rows], ends[here], out=product)
            np.greater_equal(product, bounds, out=is_near[here, rows])
    return is_near


def _searched(tasks: Tasks, systems: Int[np.ndarray, "some"], *, symmetric: bool) -> Pairs:
    """The pairs of `_tried`, by vesin; a `symmetric` table holds the opposite of each shift too."""
    listing = vesin.NeighborList(cutoff=0.0, full_list=True, n_threads=1)
    sizes, pairs, shifts = tasks.sizes[systems], [], []
    starts = np.cumsum(sizes) - sizes
    for k, start in zip(systems, starts, strict=True):
        own, radius = slice(tasks.starts[k], tasks.starts[k] + tasks.sizes[k]), tasks.radii[k]
        listing.cutoff = _enlarged(float(radius), tasks.heights[k])
        x, cell = tasks.positions[own], tasks.cells[k]
        p, s, d = listing.compute(x, cell, True, "PSd", copy=False)
        near = d <= radius if listing.cutoff > radius else slice(None)
        pairs.append(p[near].astype(np.int32) + np.int32(start))
        shifts.append(s[near].copy())
    code, every = coded(np.concatenate(shifts), symmetric=symmetric)
    both, n_rows = np.concatenate(pairs), int(sizes.sum())
    # Pack a pair into one short integer: sorting takes most of the time here.
    row_bits = int(both.max(initial=0)).bit_length()
    bits = row_bits + len(every).bit_length()
    dtype = np.uint32 if row_bits + bits <= 32 else np.int64
    keys = both[:, 0].astype(dtype) << dtype(bits)
    keys |= both[:, 1].astype(dtype) * dtype(len(every)) + code.astype(dtype)
    keys.sort()
    lengths = np.bincount(keys >> dtype(bits), minlength=n_rows)
    used, images = distinct(keys & dtype((1 << bits) - 1))
    rows, codes = np.divmod(used.astype(np.int64), len(every))
    owners = np.searchsorted(starts, rows, side="right") - 1
    return Pairs(systems, lengths, images, owners, rows - starts[owners], codes, every, None)


def _reversed(one: Pairs, sizes: Int[np.ndarray, "some"]) -> Int[np.ndarray, "pairs"]:
    """The index of each pair seen from its other end."""
    rows = (np.cumsum(sizes) - sizes)[one.owners] + one.atoms
    neighbors = (rows * len(one.shifts) + one.codes)[one.images]
    receivers = np.repeat(np.arange(len(one.lengths)), one.lengths)
    return reversed_pairs(receivers, neighbors, len(one.shifts))


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
