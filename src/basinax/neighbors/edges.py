"""Pairs of atoms as plain edge lists, the form of neighbour lists of most JAX models.

Edges are sorted by receiver, sender and periodic shift, an order that depends on each structure
alone. Sums over the edges of an atom, and the sums in derivatives, are left folds in that order
(docs/design.md, section 2, rule 3), so no skin, padding or other structure changes a bit.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Shaped

from basinax.numerics.rounding import product, rounded
from basinax.structures.matrices import Matrices, squared_lengths


class Frames(eqx.Module):
    """The cells in which lists were made, for moving cells."""

    cells: Matrices
    """The cells, in Å."""
    inverses: Matrices
    """Inverses of the cells; pseudo-inverses where vectors along open directions are zero."""
    radius: Float[Array, ""]
    """The reach of the lists, in Å."""

    @classmethod
    def of(cls, cells: Any, radius: float) -> "Frames":
        """The frames of NumPy arrays of cells; later changes of the array do not count."""
        inverses, dtype = np.linalg.pinv(cells.astype(np.float64)), cells.dtype
        arrays: Any = cells.copy(), inverses.astype(dtype), np.asarray(radius, dtype)
        return cls(*arrays)


class EdgeList(eqx.Module):
    """All pairs within the cutoff, from both ends, and some beyond it.

    Between rebuilds atoms move, so some edges, up to the skin, are longer than the cutoff: a
    potential either goes smoothly to zero there, or uses the edges `within` the cutoff. Padding
    follows all edges. Its mask is False, and its receiver and sender are the last row.

    `vectors`, `of_senders`, `of_receivers` and `sum` have derivatives in reverse mode (`jax.grad`)
    only. The derivatives are folds in the order of the edges too; padding adds nothing.
    """

    senders: Int32[Array, "edges"]
    """The row of each neighbour."""

    receivers: Int32[Array, "edges"]
    """The row with the neighbour, ascending."""

    shifts: Int32[Array, "edges 3"]
    """The displacement of the neighbour, in cell vectors."""

    mask: Bool[Array, "edges"]
    """True for edges, False for padding."""

    systems: Int32[Array, "edges"]
    """The system of both ends."""

    reverse: Int32[Array, "edges"]
    """The edge from the other end: the same two atoms, with receiver and sender exchanged."""

    starts: Int32[Array, "rows"]
    """The first edge of each receiver."""

    counts: Int32[Array, "rows"]
    """The number of edges of each receiver."""

    radius: Float[Array, ""]
    """The reach of the list when it was made, in Å."""

    positions: Float[Array, "rows 3"]
    """The positions at which the list was made, in Å."""

    frames: Frames | None = None
    """The cells in which the list was made; None if no cell moves."""

    def __getattr__(self, name: str):
        text = f"an EdgeList has no attribute {name!r}"
        if name in ("slots", "images", "of_images", "image_rows", "image_shifts", "columns"):
            text += ": the lists by rows have it, which a potential with `lists = Neighbors` takes"
        raise AttributeError(text)

    def vectors(
        self, positions: Float[Array, "rows 3"], cells: Float[Array, "systems 3 3"]
    ) -> Float[Array, "edges 3"]:
        """The vectors from receivers to senders, in Å.

        The vector of a masked edge is the list's `radius` plus 1 Å in each component, for any
        positions: a function that is finite there has no NaN in its gradient.
        """
        cell, n = cells[self.systems], self.shifts.astype(positions.dtype)
        # Σ_k n_k a_k, added in index order
        a, b, c = (product(jnp.broadcast_to(n[:, k, None], n.shape), cell[:, k]) for k in range(3))
        there = self.of_senders(positions) + (a + b + c)
        far = self.radius.astype(positions.dtype) + 1
        return jnp.where(self.mask[:, None], there - self.of_receivers(positions), far)

    def within(
        self,
        cutoff: Float[Array, ""] | float,
        positions: Float[Array, "rows 3"],
        cells: Float[Array, "systems 3 3"],
    ) -> "EdgeList":
        """The list with only the edges of length up to `cutoff` (Å) now; others are masked.

        An edge of length NaN stays, so that NaN reaches the result.
        """
        squares = squared_lengths(self.vectors(positions, cells))
        limit = jnp.asarray(cutoff, positions.dtype)
        return dataclasses.replace(self, mask=self.mask & ~(squares > rounded(limit * limit)))

    def of_senders(self, of_rows: Shaped[Array, "rows *rest"]) -> Shaped[Array, "edges *rest"]:
        """The entry of each edge's sender."""
        return _of_senders(self, of_rows)

    def of_receivers(self, of_rows: Shaped[Array, "rows *rest"]) -> Shaped[Array, "edges *rest"]:
        """The entry of each edge's receiver."""
        return _of_receivers(self, of_rows)

    def sum(self, of_edges: Float[Array, "edges *rest"]) -> Float[Array, "rows *rest"]:
        """The left fold over the edges of each receiver; masked edges add nothing.

        Products are rounded.
        """
        axes = tuple(range(1, of_edges.ndim))
        return _fold(self, jnp.where(jnp.expand_dims(self.mask, axes), rounded(of_edges), 0.0))


@jax.custom_vjp
def _fold(edges: EdgeList, values: Float[Array, "edges *rest"]) -> Float[Array, "rows *rest"]:
    """The sum over the edges of each receiver, including masked edges."""
    axes = tuple(range(1, values.ndim))

    def add(k, sums):
        is_there = jnp.expand_dims(k < edges.counts, axes)
        return sums + jnp.where(is_there, values.at[edges.starts + k].get(mode="clip"), 0.0)

    start = jnp.zeros((len(edges.counts), *values.shape[1:]), values.dtype)
    return lax.fori_loop(0, jnp.max(edges.counts), add, start)


@jax.custom_vjp
def _of_receivers(edges: EdgeList, of_rows: Array) -> Array:
    return of_rows[edges.receivers]


@jax.custom_vjp
def _of_senders(edges: EdgeList, of_rows: Array) -> Array:
    return of_rows[edges.senders]


# The derivatives are folds and spreads too, so no scatter, whose order may vary, is needed.
_fold.defvjp(
    lambda edges, values: (_fold(edges, values), edges),
    lambda edges, slope: (None, _of_receivers(edges, slope)),
)
_of_receivers.defvjp(
    lambda edges, of_rows: (_of_receivers(edges, of_rows), edges),
    lambda edges, slope: (None, _fold(edges, slope)),
)
_of_senders.defvjp(
    lambda edges, of_rows: (_of_senders(edges, of_rows), edges),
    lambda edges, slope: (None, _fold(edges, slope[edges.reverse])),
)
