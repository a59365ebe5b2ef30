"""Pairs of atoms as plain edge lists, the form of neighbour lists that models in JAX take.

Edges stand by receiver, sender and periodic shift, an order that each structure alone decides. Sums
over the edges of an atom, and the sums that differentiation writes, are left folds in that order
(docs/design.md, section 2, rule 3): no skin, padding or other structure changes a bit of one.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Shaped

from basinax._bits.rounding import product, rounded
from basinax.atoms._matrices import Matrices, squared_lengths


class Frames(eqx.Module):
    """The cells in which lists were made, for those that move."""

    cells: Matrices
    """In Å."""
    inverses: Matrices
    """Inverses of the cells; pseudo-inverses where vectors along open directions are zero."""
    radius: Float[Array, ""]
    """How far the lists reach, in Å."""


class EdgeList(eqx.Module):
    """All pairs within the cutoff, from both ends, and some beyond it.

    Between rebuilds atoms move, so that up to the skin of the list there are edges longer than the
    cutoff: a potential goes smoothly to zero there, or takes the edges `within` it. Padding stands
    behind all edges. Its mask is False, and its receiver and sender are the last row.

    `vectors`, `of_senders`, `of_receivers` and `sum` have derivatives in reverse mode (`jax.grad`)
    alone. These are folds in the order of the edges too, and padding adds nothing to them.
    """

    senders: Int32[Array, "edges"]
    """The row of each neighbour."""

    receivers: Int32[Array, "edges"]
    """The row that has the neighbour, ascending."""

    shifts: Int32[Array, "edges 3"]
    """By how many cell vectors the neighbour is displaced."""

    mask: Bool[Array, "edges"]
    """Which edges there are."""

    systems: Int32[Array, "edges"]
    """The system of both ends."""

    reverse: Int32[Array, "edges"]
    """The edge between the same two atoms whose receiver is this one's sender."""

    starts: Int32[Array, "rows"]
    """The first edge of each receiver."""

    counts: Int32[Array, "rows"]
    """How many edges each receiver has."""

    radius: Float[Array, ""]
    """How far the list reached when it was made, in Å."""

    positions: Float[Array, "rows 3"]
    """Where the atoms were then, in Å."""

    frames: Frames | None = None
    """The cells of then; None where no cell moves."""

    def __getattr__(self, name: str):
        text = f"an EdgeList has no attribute {name!r}"
        if name in ("slots", "images", "of_images", "image_rows", "image_shifts", "columns"):
            text += ": the lists by rows have it, which a potential with `lists = Neighbors` takes"
        raise AttributeError(text)

    def vectors(
        self, positions: Float[Array, "rows 3"], cells: Float[Array, "systems 3 3"]
    ) -> Float[Array, "edges 3"]:
        """From receivers to senders, in Å.

        The vector of a masked edge has the list's `radius` and 1 Å in each component, wherever the
        atoms are: a function that is finite there gets no NaN into its gradient.
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
        """The list with the edges alone that are now no longer than `cutoff` (Å); others masked.

        NaN counts as near, so that it shows.
        """
        squares = squared_lengths(self.vectors(positions, cells))
        limit = jnp.asarray(cutoff, positions.dtype)
        return dataclasses.replace(self, mask=self.mask & ~(squares > rounded(limit * limit)))

    def of_senders(self, of_rows: Shaped[Array, "rows *rest"]) -> Shaped[Array, "edges *rest"]:
        """For each edge the entry of its sender."""
        return _of_senders(self, of_rows)

    def of_receivers(self, of_rows: Shaped[Array, "rows *rest"]) -> Shaped[Array, "edges *rest"]:
        """For each edge the entry of its receiver."""
        return _of_receivers(self, of_rows)

    def sum(self, of_edges: Float[Array, "edges *rest"]) -> Float[Array, "rows *rest"]:
        """The sum over the edges of each receiver, from the left; masked edges add nothing."""
        axes = tuple(range(1, of_edges.ndim))
        return _fold(self, jnp.where(jnp.expand_dims(self.mask, axes), of_edges, 0.0))


@jax.custom_vjp
def _fold(edges: EdgeList, values: Float[Array, "edges *rest"]) -> Float[Array, "rows *rest"]:
    """The sum over the edges of each receiver, masked ones too."""
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
