"""Energies of jax-md (https://github.com/jax-md/jax-md), with neighbour lists in its formats.

jax-md finds only the nearest periodic image of a neighbour, so cells must be twice as wide as the
cutoff. A list has the structure's number of atoms, and its padding names the atom after the last,
as in jax-md. Nothing of the package is imported.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from basinax.models.graphs import AbstractLayout, Graph, LaidOut, Shape, shape_of
from basinax.numerics.switches import usual_promotion
from basinax.structures.read import name_of

LISTS = ("positions", "box", "numbers", "neighbors", "perturbation")
"""The arguments of an energy."""

FORMATS = ("Dense", "Sparse", "OrderedSparse")
"""Names in jax-md's `NeighborListFormat`."""

WIDE = 4
"""The size of a box in open directions, in cutoffs."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NeighborList:
    """The part of jax-md's class that its energies read."""

    idx: Any
    reference_position: Any
    format: Any = dataclasses.field(metadata={"static": True})


class ListedEnergy(eqx.Module):
    """An energy of jax-md as a function of arrays."""

    energy: Callable[..., Any]
    format: Any = eqx.field(static=True)
    keywords: Callable[..., dict[str, Any]] | None = eqx.field(static=True)

    def __call__(self, positions: Any, box: Any, numbers: Any, idx: Any, perturbation: Any) -> Any:
        with usual_promotion():
            further = {} if self.keywords is None else self.keywords(numbers)
            neighbors = NeighborList(idx, positions, self.format)
            energies = self.energy(
                positions, neighbors, box=box, perturbation=perturbation, **further
            )
            return jnp.atleast_1d(energies)


@dataclasses.dataclass(frozen=True)
class Listed(AbstractLayout):
    """Positions, a box with vectors as columns, and a neighbour list."""

    format: str
    is_fractional: bool
    """Whether positions are fractions of the box."""

    def check(self, atoms: Sequence[Atoms], cutoff: float) -> None:
        for k, a in enumerate(atoms):
            try:
                box_of(a.cell.array, a.pbc, cutoff)
            except ValueError as error:
                raise ValueError(f"{name_of(a, k)}: {error}") from None

    def arrays(
        self, graphs: Sequence[Graph], cutoff: float, dtype: Any
    ) -> list[LaidOut | ValueError]:
        return [self._arrays(graph, cutoff, dtype) for graph in graphs]

    def _arrays(self, graph: Graph, cutoff: float, dtype: Any) -> LaidOut | ValueError:
        try:
            box = box_of(graph.cell, graph.pbc, cutoff)
        except ValueError as error:
            return error
        n = len(graph.positions)
        places = np.bincount(graph.receivers, minlength=n)
        n_places = n * int(places.max(initial=0)) if self.format == "Dense" else places.sum()
        shape = Shape(n, shape_of(1, int(n_places), cutoff, self.series).edges)
        positions = graph.positions
        if self.is_fractional:
            positions = np.linalg.solve(box, positions.T).T
        return shape, {
            "positions": positions.astype(dtype),
            "box": box.astype(dtype),
            "perturbation": np.eye(3, dtype=dtype),
            "numbers": graph.numbers.astype(np.int32),
            "neighbors": self._neighbors(graph, shape),
        }

    def _neighbors(self, graph: Graph, shape: Shape) -> np.ndarray:
        senders, receivers = graph.senders, graph.receivers
        if self.format == "Dense":
            idx = np.full((shape.atoms, shape.edges // shape.atoms), shape.atoms, np.int32)
            first = np.searchsorted(receivers, receivers)
            idx[receivers, np.arange(len(receivers)) - first] = senders
            return idx
        if self.format == "OrderedSparse":
            once = receivers < senders
            senders, receivers = senders[once], receivers[once]
        idx = np.full((2, shape.edges), shape.atoms, np.int32)
        idx[:, : len(senders)] = receivers, senders
        return idx


def box_of(cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> np.ndarray:
    """The box of a cell, with vectors as columns, and wide in open directions.

    Raises:
        ValueError: the cell is less than twice as wide as the cutoff.
    """
    rows = cell.astype(float)
    rows[~pbc] = WIDE * cutoff * np.linalg.svd(cell[pbc])[2][pbc.sum() :]
    widths = 1 / np.sqrt((np.linalg.inv(rows) ** 2).sum(0))[pbc]
    if (widths < 2 * cutoff).any():
        raise ValueError(
            f"the cell is {widths.min():.4g} Å wide in one direction, less than twice the cutoff of"
            f" {cutoff:g} Å: energies of jax-md find the nearest image of an atom alone. Repeat the"
            " cell, as in atoms.repeat(2)"
        )
    return rows.T
