"""The graph of one structure: its pairs within the cutoff, in a shape that depends on it alone.

A program computes other last digits for another shape or order of pairs. So the shape is the first
of a fixed series that holds the structure, and pairs have one order: receiver, sender, periodic
shift. Spare pairs join two spare atoms that are beyond each other's cutoff.
"""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int

from basinax.neighbors.search import RESOLUTION, OrderedPairs, no_list, pairs_of_each
from basinax.structures.batch import in_parts

PADDING_ATOMS = 2
"""Atoms beyond the structure, between which spare pairs lie."""

FEWEST_EDGES = 160
"""The number of edges of the smallest shape, which small structures share."""

Series = Literal["few", "fine"]
"""The names of series of shapes."""

PER_DOUBLING: dict[str, int] = {"few": 1, "fine": 4}
"""The shapes between a number of edges and its double."""

MAX_DENSITY = 0.1
"""Half the number of atoms in a cubic Å of common matter, times 4π/3."""

FEWEST_NEIGHBORS = 4
"""The assumed number of neighbours of an atom for short cutoffs."""

SKIN = 0.5
"""What lists reach beyond the cutoff, in Å."""

AT_ONCE = 1 << 13
"""The number of pairs whose vectors are computed at once: they fit into the cache of a core."""

ROWS = 8
"""The numbers of atoms in shapes are multiples of this one."""


class Shape(NamedTuple):
    """The room of a graph."""

    atoms: int
    edges: int


def shape_of(n_atoms: int, n_edges: int, cutoff: float, series: Series = "few") -> Shape:
    """The first shape of a series that holds these numbers of atoms and pairs.

    The cost of an evaluation grows with the pairs, and hardly with the atoms. So a shape has room
    for the atoms of a molecule in which all are neighbours, and of matter of half the common
    density.
    """
    edges = octave = FEWEST_EDGES
    while True:
        atoms = PADDING_ATOMS + max(
            edges**0.5 + 0.5, edges / max(MAX_DENSITY * cutoff**3, FEWEST_NEIGHBORS)
        )
        shape = Shape(-int(-atoms // ROWS) * ROWS, edges)
        if shape.atoms >= n_atoms + PADDING_ATOMS and shape.edges >= n_edges:
            return shape
        edges += octave // PER_DOUBLING[series]
        octave = edges if edges == 2 * octave else octave


class Graph(NamedTuple):
    """A structure and its pairs within the cutoff, on the host."""

    positions: Float[np.ndarray, "atoms 3"]
    cell: Float[np.ndarray, "3 3"]
    pbc: Bool[np.ndarray, "3"]
    numbers: Int[np.ndarray, "atoms"]
    senders: Int[np.ndarray, "edges"]
    receivers: Int[np.ndarray, "edges"]
    shifts: Float[np.ndarray, "edges 3"]
    vectors: Float[np.ndarray, "edges 3"]
    """The vectors from receivers to senders, in Å."""


_NONE = np.zeros(0, int)


class VerletList:
    """The neighbour list of one structure, made anew only when it may lack a pair.

    It holds the pairs within the cutoff and `SKIN`. Atoms and cell tell whether a pair outside may
    have come within the cutoff. Each graph has the pairs within the cutoff alone, in an order that
    does not depend on the list, so no bit depends on when the list was made.
    """

    def __init__(self, pbc: np.ndarray, numbers: np.ndarray, cutoff: float):
        self.pbc, self.numbers, self.cutoff = pbc, numbers, cutoff
        self.radius = 0.0
        """The reach of the list in Å; 0 if there is none."""
        self.positions, self.cell, self.inverse = np.zeros((len(numbers), 3)), np.eye(3), np.eye(3)
        """Where the list was made; the inverse has zeros for open directions."""
        self.pairs = OrderedPairs(_NONE, _NONE, _NONE, np.zeros((0, 3)))

    def graph(self, positions: np.ndarray, cell: np.ndarray) -> Graph:
        """The graph of the structure here.

        Raises:
            ValueError: no neighbour list can be made.
        """
        (found,) = graphs_of([self], [positions], cell[None])
        if isinstance(found, ValueError):
            raise found
        return found


def graphs_of(
    lists: Sequence[VerletList], positions: Sequence[np.ndarray], cells: np.ndarray
) -> list[Graph | ValueError]:
    """The graphs of structures here, all at once; an error for one of which no list can be made.

    Args:
        lists: of different structures, with one cutoff.
        positions, cells: one entry per structure, in Å.
    """
    sizes = np.array([len(x) for x in positions])
    stale = np.flatnonzero(~_are_complete(lists, sizes, np.concatenate(positions), cells)).tolist()
    faults = _make([lists[k] for k in stale], [positions[k] for k in stale], cells[stale])
    fault_of = dict(zip(stale, faults, strict=True))
    good = [k for k in range(len(lists)) if fault_of.get(k) is None]
    found: list[Any] = [fault_of.get(k) for k in range(len(lists))]
    parts = in_parts(good, lambda k: len(lists[k].pairs.images), AT_ONCE) if good else []
    for some in parts:
        graphs = _within([lists[k] for k in some], [positions[k] for k in some], cells[some])
        for k, graph in zip(some, graphs, strict=True):
            found[k] = graph
    return found


def _are_complete(
    lists: Sequence[VerletList], sizes: np.ndarray, positions: np.ndarray, cells: np.ndarray
) -> np.ndarray:
    """Whether each list has all pairs within the cutoff; False for NaN.

    A vector d₀ between atoms has become d₀ F + u, where F is the deformation of the cell and u how
    the atoms have moved otherwise. Its length is at least (1 - ‖F - 1‖) |d₀| - |u|.
    """
    begun = np.concatenate([each.positions for each in lists])
    starts, owners = np.cumsum(sizes) - sizes, np.repeat(np.arange(len(sizes)), sizes)
    with np.errstate(all="ignore"):
        change = cells - np.array([each.cell for each in lists])
        strain = np.einsum("sik,skj->sij", np.array([each.inverse for each in lists]), change)
        moved = positions - begun - np.einsum("ai,aij->aj", begun, strain[owners])
        moved -= (np.add.reduceat(moved, starts) / sizes[:, None])[owners]
        reach = 2 * np.sqrt(np.maximum.reduceat((moved * moved).sum(1), starts))
        radii = np.array([each.radius for each in lists])
        grown = np.sqrt((strain * strain).sum((1, 2)))
        return (radii > 0) & ((1 - grown) * radii - reach >= lists[0].cutoff)


def _make(
    lists: Sequence[VerletList], positions: Sequence[np.ndarray], cells: np.ndarray
) -> list[ValueError | None]:
    """Make lists anew, at once; an error for each that cannot be made."""
    faults: list[ValueError | None] = [None] * len(lists)
    left = list(range(len(lists)))
    for skin in (SKIN, 0.0):
        if not left:
            return faults
        radius = lists[0].cutoff + skin
        pbc = np.array([lists[k].pbc for k in left])
        found = pairs_of_each([positions[k] for k in left], cells[left], pbc, radius)
        for k, pairs in zip(left, found, strict=True):
            if pairs is not None:
                own = lists[k]
                own.radius, own.positions, own.cell = radius, positions[k].copy(), cells[k].copy()
                own.inverse = np.zeros((3, 3))
                own.inverse[:, own.pbc] = np.linalg.pinv(cells[k][own.pbc])
                own.pairs = pairs._replace(cells=pairs.cells.astype(np.float64))
        left = [k for k, pairs in zip(left, found, strict=True) if pairs is None]
    for k in left:
        largest = float(np.abs(positions[k]).max())
        faults[k] = no_list("the structure", cells[k], lists[k].cutoff, largest, RESOLUTION)
    return faults


def _within(
    lists: Sequence[VerletList], positions: Sequence[np.ndarray], cells: np.ndarray
) -> list[Graph]:
    """The pairs of complete lists that are within the cutoff here."""
    pairs = [own.pairs for own in lists]
    n_atoms, n_images, n_pairs = (
        np.array([len(each) for each in some])
        for some in (positions, [own.rows for own in pairs], [own.images for own in pairs])
    )
    first_atom, first_image = np.cumsum(n_atoms) - n_atoms, np.cumsum(n_images) - n_images
    receivers, images, rows, shifts = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    images += np.repeat(first_image, n_pairs)
    x, box = np.concatenate(positions), np.repeat(cells, n_images, axis=0)
    # No BLAS, whose order of sums depends on the shape.
    moved = shifts[:, :1] * box[:, 0] + shifts[:, 1:2] * box[:, 1] + shifts[:, 2:] * box[:, 2]
    there = x[rows + np.repeat(first_atom, n_images)] + moved
    # By component, [3, pairs], which is faster.
    vectors = np.ascontiguousarray(there.T).take(images, axis=1)
    vectors -= np.ascontiguousarray(x.T).take(receivers + np.repeat(first_atom, n_pairs), axis=1)
    squares = vectors * vectors
    near = np.flatnonzero(squares[0] + squares[1] + squares[2] <= lists[0].cutoff ** 2)
    images = images.take(near)
    parts = rows.take(images), receivers.take(near), shifts.take(images, axis=0)
    ends = np.searchsorted(near, np.cumsum(n_pairs)).tolist()
    own_pairs = [slice(*each) for each in itertools.pairwise([0, *ends])]
    parts = *parts, vectors.take(near, axis=1).T
    return [
        Graph(at, box, own.pbc, own.numbers, *(each[its] for each in parts))
        for own, at, box, its in zip(lists, positions, cells, own_pairs, strict=True)
    ]


LaidOut = tuple[Shape, dict[str, np.ndarray]]
"""The arrays of a graph by name, and their shape, which depends on the graph alone."""


@dataclasses.dataclass(frozen=True)
class AbstractLayout(abc.ABC):
    """The layout of a graph in arrays; a model's function takes some of them."""

    arguments: tuple[str, ...]
    """The names of the arrays that the function takes, in order."""
    series: Series = dataclasses.field(default="few", kw_only=True)
    """The shapes of the arrays."""

    @abc.abstractmethod
    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        """Raise ValueError, with its name, if a structure cannot be laid out."""

    @abc.abstractmethod
    def arrays(
        self, graphs: Sequence[Graph], cutoff: float, dtype: Any
    ) -> list[LaidOut | ValueError]:
        """Each graph in arrays, or why it cannot be laid out."""


class Padded(AbstractLayout):
    """Arrays in a shape with spare atoms and pairs."""

    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        del atoms, cutoff

    def arrays(
        self, graphs: Sequence[Graph], cutoff: float, dtype: Any
    ) -> list[LaidOut | ValueError]:
        shapes = [shape_of(len(g.positions), len(g.senders), cutoff, self.series) for g in graphs]
        made: list[Any] = [None] * len(graphs)
        for shape in dict.fromkeys(shapes):
            alike = [k for k, own in enumerate(shapes) if own == shape]
            together = padded([graphs[k] for k in alike], shape, cutoff, dtype)
            for place, k in enumerate(alike):
                made[k] = shape, {name: each[place] for name, each in together.items()}
        return made


POSITIONS = Padded(("positions", "cell", "numbers", "senders", "receivers", "shifts"))
VECTORS = Padded(("vectors", "numbers", "senders", "receivers"))


def padded(
    graphs: Sequence[Graph], shape: Shape, cutoff: float, dtype: Any
) -> dict[str, np.ndarray]:
    """The arrays of graphs in one shape, along a first axis.

    Spare atoms have the element of the first atom.
    """
    n_atoms = np.array([len(graph.positions) for graph in graphs])
    n_edges = np.array([len(graph.senders) for graph in graphs])
    rows, pairs = (len(graphs), shape.atoms), (len(graphs), shape.edges)
    near, away = shape.atoms - 2, shape.atoms - 1
    far = np.array([2 * cutoff + 1, 0, 0], dtype)
    positions, numbers = np.zeros((*rows, 3), dtype), np.empty(rows, np.int32)
    senders, receivers = np.full(pairs, away, np.int32), np.full(pairs, near, np.int32)
    shifts, vectors = np.zeros((2, *pairs, 3), dtype)
    positions[:, -1], vectors[:] = far, far
    for k, graph in enumerate(graphs):
        atoms, edges = slice(n_atoms[k]), slice(n_edges[k])
        positions[k, atoms] = graph.positions
        numbers[k], numbers[k, atoms] = graph.numbers[0], graph.numbers
        # The second half of the spare pairs has the opposite direction, so that receivers ascend.
        back = slice((n_edges[k] + shape.edges) // 2, None)
        senders[k, back], receivers[k, back], vectors[k, back] = near, away, -far
        senders[k, edges], receivers[k, edges] = graph.senders, graph.receivers
        shifts[k, edges], vectors[k, edges] = graph.shifts, graph.vectors
    return {
        "positions": positions,
        "cell": np.array([graph.cell for graph in graphs], dtype),
        "numbers": numbers,
        "senders": senders,
        "receivers": receivers,
        "shifts": shifts,
        "vectors": vectors,
        "is_atom": np.arange(shape.atoms) < n_atoms[:, None],
        "is_edge": np.arange(shape.edges) < n_edges[:, None],
    }
