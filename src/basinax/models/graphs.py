"""The graph of one structure: its pairs within the cutoff, in a shape that depends on it alone.

A program computes other last digits for another shape or order of pairs. So the shape is the first
of a fixed series that holds the structure, and pairs have one order: receiver, sender, periodic
shift. Spare pairs join two spare atoms that are beyond each other's cutoff.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int

from basinax.neighbors.search import RESOLUTION, no_list, ordered_pairs

PADDING_ATOMS = 2
"""Atoms beyond the structure, between which spare pairs lie."""

FEWEST_EDGES = 64
"""The number of edges of the smallest shape."""

MANY_EDGES = 256
"""From this number of edges on, shapes are closer together, since evaluations take longer."""

MAX_DENSITY = 0.1
"""Half the number of atoms in a cubic Å of common matter, times 4π/3."""

FEWEST_NEIGHBORS = 4
"""The assumed number of neighbours of an atom for short cutoffs."""

SKIN = 0.5
"""What lists reach beyond the cutoff, in Å."""

ROWS = 8
"""The numbers of atoms in shapes are multiples of this one."""


class Shape(NamedTuple):
    """The room of a graph."""

    atoms: int
    edges: int


def shape_of(n_atoms: int, n_edges: int, cutoff: float) -> Shape:
    """The first shape of the series that holds these numbers of atoms and pairs.

    Two shapes lie between a number of pairs and its double, and four for many pairs: the cost of an
    evaluation grows with the pairs, and hardly with the atoms. A shape has room for the atoms of a
    molecule in which all are neighbours, and of matter of half the common density.
    """
    edges = octave = FEWEST_EDGES
    while True:
        atoms = PADDING_ATOMS + max(
            edges**0.5 + 0.5, edges / max(MAX_DENSITY * cutoff**3, FEWEST_NEIGHBORS)
        )
        shape = Shape(-int(-atoms // ROWS) * ROWS, edges)
        if shape.atoms >= n_atoms + PADDING_ATOMS and shape.edges >= n_edges:
            return shape
        edges += octave // (2 if octave < MANY_EDGES else 4)
        octave = edges if edges == 2 * octave else octave


@dataclasses.dataclass(frozen=True)
class Graph:
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


class VerletList:
    """The neighbour list of one structure, made anew only when it may lack a pair.

    It holds the pairs within the cutoff and `SKIN`. Atoms and cell tell whether a pair outside may
    have come within the cutoff. Each graph has the pairs within the cutoff alone, in an order that
    does not depend on the list, so no bit depends on when the list was made.
    """

    def __init__(self, pbc: np.ndarray, numbers: np.ndarray, cutoff: float):
        self._pbc, self._numbers, self._cutoff = pbc, numbers, cutoff
        self._radius = 0.0
        """The reach of the list in Å; 0 if there is none."""

    def graph(self, positions: np.ndarray, cell: np.ndarray) -> Graph:
        """The graph of the structure here.

        Raises:
            ValueError: no neighbour list can be made.
        """
        if not self._is_complete(positions, cell):
            self._make(positions, cell)
        receivers, senders, shifts = self._pairs
        vectors = positions[senders] + _displacements(shifts, cell) - positions[receivers]
        within = np.flatnonzero((vectors * vectors).sum(1) <= self._cutoff * self._cutoff)
        pairs = (x.take(within, axis=0) for x in (senders, receivers, shifts, vectors))
        return Graph(positions, cell, self._pbc, self._numbers, *pairs)

    def _is_complete(self, positions: np.ndarray, cell: np.ndarray) -> bool:
        """Whether the list has all pairs within the cutoff; False for NaN.

        A vector d₀ between atoms has become d₀ F + u, where F is the deformation of the cell and u
        how the atoms have moved otherwise. Its length is at least (1 - ‖F - 1‖) |d₀| - |u|.
        """
        if not self._radius:
            return False
        with np.errstate(all="ignore"):
            moved, strain = positions - self._positions, 0.0
            if not np.array_equal(cell, self._cell):
                change = self._inverse @ (cell - self._cell)[self._pbc]
                moved, strain = moved - self._positions @ change, float(np.linalg.norm(change))
            moved = moved - moved.mean(0)
            reach = 2 * float(np.sqrt((moved * moved).sum(1).max()))
            return (1 - strain) * self._radius - reach >= self._cutoff

    def _make(self, positions: np.ndarray, cell: np.ndarray) -> None:
        for radius in (self._cutoff + SKIN, self._cutoff):
            pairs = ordered_pairs(positions, cell, self._pbc, radius)
            if pairs is not None:
                break
        else:
            largest = float(np.abs(positions).max())
            raise no_list("the structure", cell, self._cutoff, largest, RESOLUTION)
        self._positions, self._cell, self._radius = positions.copy(), cell.copy(), radius
        self._inverse = np.linalg.pinv(cell[self._pbc])
        self._pairs = pairs.receivers, pairs.senders, pairs.shifts.astype(np.float64)


def _displacements(shifts: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Displacements of periodic images, without BLAS, whose order of sums depends on the shape."""
    return shifts[:, :1] * cell[0] + shifts[:, 1:2] * cell[1] + shifts[:, 2:] * cell[2]


@dataclasses.dataclass(frozen=True)
class AbstractLayout(abc.ABC):
    """The layout of a graph in arrays; a model's function takes some of them."""

    arguments: tuple[str, ...]
    """The names of the arrays that the function takes, in order."""

    @abc.abstractmethod
    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        """Raise ValueError, with its name, if a structure cannot be laid out."""

    @abc.abstractmethod
    def arrays(
        self, graph: Graph, cutoff: float, dtype: Any
    ) -> tuple[Shape, dict[str, np.ndarray]]:
        """The arrays of a graph by name, in a shape that depends on the graph alone.

        Raises:
            ValueError: the graph cannot be laid out.
        """


class Padded(AbstractLayout):
    """Arrays in a shape with spare atoms and pairs."""

    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        del atoms, cutoff

    def arrays(
        self, graph: Graph, cutoff: float, dtype: Any
    ) -> tuple[Shape, dict[str, np.ndarray]]:
        shape = shape_of(len(graph.positions), len(graph.senders), cutoff)
        return shape, padded(graph, shape, cutoff, dtype)


POSITIONS = Padded(("positions", "cell", "numbers", "senders", "receivers", "shifts"))
VECTORS = Padded(("vectors", "numbers", "senders", "receivers"))


def padded(graph: Graph, shape: Shape, cutoff: float, dtype: Any) -> dict[str, np.ndarray]:
    """The arrays of a graph in this shape. Spare atoms have the element of the first atom."""
    n_atoms, n_edges = len(graph.positions), len(graph.senders)
    far = np.array([2 * cutoff + 1, 0, 0])
    positions = np.zeros((shape.atoms, 3), dtype)
    positions[:n_atoms], positions[-1] = graph.positions, far
    numbers = np.full(shape.atoms, graph.numbers[0], np.int32)
    numbers[:n_atoms] = graph.numbers
    senders = np.full(shape.edges, shape.atoms - 1, np.int32)
    receivers = np.full(shape.edges, shape.atoms - 2, np.int32)
    # The second half of the spare pairs has the opposite direction, so that receivers ascend.
    middle = (n_edges + shape.edges) // 2
    senders[middle:], receivers[middle:] = shape.atoms - 2, shape.atoms - 1
    shifts, vectors = np.zeros((2, shape.edges, 3), dtype)
    vectors[:] = np.where(senders[:, None] == shape.atoms - 1, far, -far)
    senders[:n_edges], receivers[:n_edges] = graph.senders, graph.receivers
    shifts[:n_edges], vectors[:n_edges] = graph.shifts, graph.vectors
    return {
        "positions": positions,
        "cell": graph.cell.astype(dtype),
        "numbers": numbers,
        "senders": senders,
        "receivers": receivers,
        "shifts": shifts,
        "vectors": vectors,
        "is_atom": np.arange(shape.atoms) < n_atoms,
        "is_edge": np.arange(shape.edges) < n_edges,
    }
