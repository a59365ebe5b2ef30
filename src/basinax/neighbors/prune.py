"""Near pairs, selected on the device from neighbour lists that reach farther.

A list that lasts has about twice as many pairs as lie within the cutoff. A selection lasts a few
turns and holds few more pairs than needed. Selected pairs keep the order of the list, so no bit of
a result depends on the selection or its time.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from basinax.neighbors.edges import Frames
from basinax.neighbors.lists import ChunkedLists, Columns, gather, skin_left
from basinax.numerics.rounding import rounded, rounded_clamped
from basinax.structures.batch import Batch
from basinax.structures.matrices import inverse, multiply

GROWTH, LEAST_SKIN = 1.25, 0.05
"""Near pairs lie within the cutoff and a skin of each system: the part of its last skin that the
system used, times `GROWTH`, but at least `LEAST_SKIN` (Å)."""


class CutoffAndSkin(NamedTuple):
    """The reach of neighbour lists, in Å."""

    cutoff: Float[Array, ""]
    skin: Float[Array, ""]
    """The reach beyond the cutoff."""


def select_near(
    neighbors: ChunkedLists,
    batch: Batch,
    reach: CutoffAndSkin,
    skins: Float[Array, "systems"],
    is_running: Bool[Array, "systems"],
) -> tuple[ChunkedLists, Float[Array, "systems"]]:
    """Lists of the near pairs, and their reach beyond the cutoff.

    The reach is negative for a system that needs a new list; it gets no pairs, as an ended one.

    Args:
        batch: the current positions and cells.
        skins: the wanted reach beyond the cutoff in Å; inf for the reach of the list.
    """
    left = skin_left(batch.positions, neighbors, batch.index, reach.skin, batch.cells)
    skins = jnp.where(skins < left, skins, left)
    radii = jnp.where(is_running & ~(skins < 0), reach.cutoff + skins, -1.0)
    return narrowed(neighbors, batch, radii), skins


def next_skins(
    near: ChunkedLists, batch: Batch, reach: CutoffAndSkin, skins: Float[Array, "systems"]
) -> Float[Array, "systems"]:
    """The skins for the next selection, in Å.

    Args:
        batch: the batch after the turns with this selection.
        skins: the skins of this selection.
    """
    taken = skins - skin_left(batch.positions, near, batch.index, skins, batch.cells)
    return jnp.clip(rounded(GROWTH * taken), LEAST_SKIN, reach.skin)


def narrowed(neighbors: ChunkedLists, batch: Batch, radii: Float[Array, "systems"]) -> ChunkedLists:
    """The lists with only the pairs that now lie within these radii.

    Columns are sorted anew by the lengths of their lists.

    Args:
        batch: the current positions and cells.
        radii: the radius of each system in Å; a negative radius removes all its pairs.
    """
    columns, positions = neighbors.columns.wide(), batch.positions
    n_slots, n_columns = neighbors.slots.shape
    places, here = neighbors.images(positions, batch.cells), columns.arranged(positions.T)
    # Padding columns repeat the row of another column and need no pairs.
    numbers = jnp.arange(n_columns, dtype=jnp.int32)
    fills_up = gather(columns.of_rows, columns.rows) != numbers
    limits = jnp.where(fills_up, -1.0, gather(_squared_limits(radii, batch), columns.rows))

    def choose_of_chunk(k, carry):
        kept, lengths = carry
        some, limit = columns.chunk(k, (here, limits))
        start = k * columns.size
        begins = start + numbers[: columns.size]

        def choose(slot, carry):
            kept, ends = carry
            images = lax.dynamic_slice(neighbors.slots, (slot, start), (1, columns.size))[0]
            x, y, z = (gather(p, images) - h for p, h in zip(places, some, strict=True))
            squares = rounded_clamped(x * x) + rounded_clamped(y * y) + rounded_clamped(z * z)
            # Write every pair behind the kept ones; the next pair overwrites it unless it is kept.
            # A NaN distance fails the comparison and is kept.
            kept = _written(kept, ends, images)
            return kept, ends + jnp.where(squares > limit, 0, n_columns)

        kept, ends = lax.fori_loop(0, columns.length(k), choose, (kept, begins))
        kept = _written(kept, ends, jnp.full_like(ends, batch.n_rows))
        return kept, lax.dynamic_update_slice(lengths, (ends - begins) // n_columns, (start,))

    # One row more than there are slots: the last row takes the writes of slots without a pair.
    kept = jnp.full((n_slots + 1) * n_columns, batch.n_rows, jnp.int32)
    start = kept, jnp.zeros(n_columns, jnp.int32)
    n_chunks = jnp.asarray(columns.n_chunks)  # of NumPy where nothing is traced
    kept, lengths = lax.fori_loop(0, n_chunks, choose_of_chunk, start)
    order, in_order = _sorted(neighbors.columns, lengths)

    def put_in_order(slot, slots):
        row = lax.dynamic_slice(kept, (slot * n_columns,), (n_columns,))
        return lax.dynamic_update_index_in_dim(slots, gather(row, order), slot, 0)

    slots = jnp.full((n_slots, n_columns), batch.n_rows, jnp.int32)
    slots = lax.fori_loop(0, jnp.max(in_order.n_slots), put_in_order, slots)
    return eqx.tree_at(
        lambda n: (n.slots, n.positions, n.frames, n.columns),
        neighbors,
        (slots, positions, _frames(neighbors.frames, batch), in_order),
        is_leaf=lambda x: x is None,
    )


def _squared_limits(radii, batch: Batch) -> Float[Array, "rows"]:
    """Limits of squared distances from each row, in Å²; -1 for rows without pairs."""
    positions = batch.positions
    # Reach as much farther as lists made on the host, to allow for rounding.
    spacing = 64 * float(jnp.finfo(positions.dtype).eps)
    margins = rounded(radii * 1e-6) + rounded(spacing * batch.index.max(jnp.abs(positions)))
    reach = radii + margins
    limits = jnp.where(radii < 0, -1.0, rounded(reach * reach))
    return batch.index.spread(limits, -1.0, positions[:, 0])


def _written(slots, at, images):
    return slots.at[at].set(
        images, mode="promise_in_bounds", unique_indices=True, wrap_negative_indices=False
    )


def _sorted(columns: Columns, lengths) -> tuple[Int32[Array, "columns"], Columns]:
    """The order of columns by the lengths of their lists, and the columns in this order."""
    n_columns, longest = len(lengths), jnp.max(lengths)
    numbers = jnp.arange(n_columns, dtype=jnp.int32)
    others = columns.has_others & (lengths > 0)
    rank = jnp.where(lengths > 0, longest - lengths + jnp.where(others, longest, 0), 2 * longest)
    # Sort one integer per column, several times as fast as sorting two keys.
    order = jnp.sort(rank * n_columns + numbers) % n_columns
    at = jnp.zeros_like(order).at[order].set(numbers, unique_indices=True)
    others = gather(others, order)
    n_slots = jnp.max(gather(lengths, order).reshape(-1, columns.size), 1)
    n_chunks = jnp.sum(n_slots > 0, dtype=jnp.int32)
    first_other = jnp.argmax(others).astype(jnp.int32) // columns.size
    return order, Columns(
        rows=gather(columns.rows, order),
        of_rows=gather(at, columns.of_rows),
        n_slots=n_slots,
        n_chunks=n_chunks,
        n_alike=jnp.where(others.any(), first_other, n_chunks),
        has_others=others,
        stretches=columns.stretches,
        n_stretches=columns.n_stretches,
    )


def _frames(frames: Frames | None, batch: Batch) -> Frames | None:
    """The current cells, as the frames of lists made now."""
    if frames is None:
        return None
    # (1 + ε)⁻¹ times the earlier inverse, a pseudo-inverse if vectors are zero.
    strain = multiply(frames.inverses, batch.cells - frames.cells)
    back = inverse(jnp.eye(3, dtype=strain.dtype)[None] + strain)
    return Frames(batch.cells, multiply(back, frames.inverses), frames.radius)
