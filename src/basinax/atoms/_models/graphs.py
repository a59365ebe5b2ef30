"""The graph of one structure: its pairs within the cutoff, in a shape that it alone decides.

A program computes other last digits in another shape, and with pairs in another order. So the
shape is the first of a fixed row that holds the structure, and pairs stand in one order: receiver,
sender, periodic shift. Spare pairs join two spare atoms that do not see each other.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from jaxtyping import Bool, Float, Int

from basinax.atoms._neighbors.search import no_list, pairs_of, tasks_of

SPARE = 2
"""Atoms that no structure has, between which spare pairs stand."""

FEWEST_EDGES = 64
"""Edges of the smallest shape."""

MANY_EDGES = 256
"""From here on shapes stand more closely, since evaluations take longer."""

CROWD = 0.1
"""Half as many atoms as in a cubic Å of common matter, times 4π/3."""

FEWEST_NEIGHBORS = 4
"""Neighbours of an atom that shapes assume where the cutoff is short."""

ROWS = 8
"""Shapes have multiples of so many atoms."""


class Shape(NamedTuple):
    """The room of a graph."""

    atoms: int
    edges: int


def shape_of(n_atoms: int, n_edges: int, cutoff: float) -> Shape:
    """The first of the row of shapes that holds so many atoms and pairs.

    Two shapes lie between a number of pairs and its double, and four where pairs are many: the cost
    of an evaluation grows with the pairs, and hardly with the atoms. A shape has room for the atoms
    of a molecule in which all are neighbours, and of matter of half the common density.
    """
    edges = octave = FEWEST_EDGES
    while True:
        atoms = SPARE + max(edges**0.5 + 0.5, edges / max(CROWD * cutoff**3, FEWEST_NEIGHBORS))
        shape = Shape(-int(-atoms // ROWS) * ROWS, edges)
        if shape.atoms >= n_atoms + SPARE and shape.edges >= n_edges:
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
    """From receiver to sender, in Å."""


def graph_of(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, numbers: np.ndarray, cutoff: float
) -> Graph:
    """The graph of one structure.

    Raises:
        ValueError: it has no list of neighbours.
    """
    resolution = float(np.finfo(np.float64).eps)
    task = tasks_of([positions], cell[None], pbc[None], cutoff, resolution)[0]
    if task is None:
        largest = float(np.abs(positions).max())
        raise no_list("the structure", cell, cutoff, largest, resolution)
    n = len(positions)
    pairs = pairs_of([(0, task)], np.zeros(1, int), n, reverse=False)
    receivers = np.repeat(np.arange(n), pairs.lengths[:n])
    # `pairs.images` numbers atoms 0 to n - 1, then padding, then further images from n + 1 on.
    image = np.maximum(pairs.images - n - 1, -1)
    is_near = image < 0
    images = np.append(pairs.image_rows, 0), np.append(pairs.image_shifts, 0)
    senders = np.where(is_near, pairs.images, images[0][image])
    shifts = np.where(is_near[:, None], 0.0, pairs.shifts[images[1][image]])
    vectors = positions[senders] + _displacements(shifts, cell) - positions[receivers]
    within = (vectors * vectors).sum(1) <= cutoff * cutoff
    pairs = senders[within], receivers[within], shifts[within], vectors[within]
    return Graph(positions, cell, pbc, numbers, *pairs)


def _displacements(shifts: np.ndarray, cell: np.ndarray) -> np.ndarray:
    """Displacements of periodic images, without BLAS, whose order of sums depends on the shape."""
    return shifts[:, :1] * cell[0] + shifts[:, 1:2] * cell[1] + shifts[:, 2:] * cell[2]


@dataclasses.dataclass(frozen=True)
class AbstractLayout(abc.ABC):
    """How a graph is laid out in arrays; a model's function takes some of them."""

    arguments: tuple[str, ...]
    """The names of the arrays that the function takes, in order."""

    @abc.abstractmethod
    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        """Raise ValueError if a structure cannot be laid out; names it."""

    @abc.abstractmethod
    def arrays(
        self, graph: Graph, cutoff: float, dtype: Any
    ) -> tuple[Shape, dict[str, np.ndarray]]:
        """The arrays of a graph, by their names, in a shape that the graph decides.

        Raises:
            ValueError: it cannot be laid out.
        """


class Padded(AbstractLayout):
    """In a shape with room for spare atoms and pairs."""

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
    """The arrays of a graph in this shape. Spare atoms are of the first one's element."""
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
