"""Lists of near periodic images, in the form that the device reads.

A row's neighbours are in canonical order (row in its system, then periodic shift), so a left fold
over them has the same bits for any skin, padding and time of rebuild (docs/design.md, section 2,
rule 3). Padding points at an image too far away to matter, so no mask is needed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, PyTree, Shaped

from basinax.neighbors.edges import EdgeList, Frames
from basinax.neighbors.search import LARGEST_POSITION
from basinax.numerics import xla
from basinax.numerics.rounding import rounded
from basinax.structures.batch import padded_size
from basinax.structures.machine import machine
from basinax.structures.matrices import (
    Matrices,
    frobenius_norm,
    multiply,
    squared_lengths,
    turned_rows,
)
from basinax.systems.index import SystemIndex

SPECIES_BIT = 1 << 30
"""The bit of a slot whose image is of the heavier of a system's two elements, if
`ChunkedLists.others` is given. `gather` masks the bit; no batch has as many images."""

FAR = 1e12
"""The position of padding, in Å along each axis: far from any atom; its square fits float32."""

Coordinates = list[Float[Array, "*_axes n"]]
"""x, y and z: three arrays, or one array [3, n]."""


class Columns(eqx.Module):
    """The order in which folds process rows: in chunks, each up to its longest list.

    Running systems come first, sorted by the length of their lists; if known, systems of one
    element come before the others.
    """

    rows: Int32[Array, "columns"]
    """The row of each column of slots; some rows repeat at the end as padding."""

    of_rows: Int32[Array, "rows"]
    """The column of each row."""

    n_slots: Int32[Array, "chunks"]
    """The number of slots after which the fold of a chunk may end; 0 for unused chunks."""

    n_chunks: Int32[Array, ""]
    """The number of used chunks."""

    n_alike: Int32[Array, ""]
    """The number of leading chunks that hold only systems of one element."""

    has_others: Bool[Array, "columns"]
    """The mask of columns of running systems that may have several elements."""

    stretches: Int32[Array, "stretches"]
    """Stretches of equal length that cover the further images of running systems, by their starts;
    stretches may overlap."""

    n_stretches: Int32[Array, ""]
    """The number of used stretches; others are not read."""

    @property
    def size(self) -> int:
        """The number of columns of a chunk."""
        return self.rows.shape[0] // self.n_slots.shape[0]

    def length(self, k: Int32[Array, ""]) -> Int32[Array, ""]:
        """The number of slots after which the fold of one chunk may end."""
        # In search of a NaN, JAX calls functions with NumPy arrays, which take no traced index.
        return jnp.asarray(self.n_slots)[k]

    def arranged(self, of_rows: PyTree[Array]) -> PyTree[Array]:
        """Values of rows (last axis) in the order of columns; a number stays a number."""
        return jax.tree.map(lambda a: gather(a, self.rows) if a.ndim else a, of_rows)

    def chunk(self, k: Int32[Array, ""], of_columns: PyTree[Array]) -> PyTree[Array]:
        """The values of one chunk's columns."""

        def part(a):
            return lax.dynamic_slice_in_dim(a, k * self.size, self.size, -1) if a.ndim else a

        return jax.tree.map(part, of_columns)

    def with_chunk(
        self, k: Int32[Array, ""], of_columns: PyTree[Array], chunk: PyTree[Array]
    ) -> PyTree[Array]:
        """The values with one chunk's columns replaced."""

        def changed(a, part):
            return lax.dynamic_update_slice_in_dim(a, part, k * self.size, -1)

        return jax.tree.map(changed, of_columns, chunk)

    def wide(self) -> "Columns":
        """The same columns in fewer, larger chunks."""
        together = min(machine().wide, len(self.n_slots))
        return dataclasses.replace(
            self,
            n_slots=jnp.max(self.n_slots.reshape(-1, together), 1),
            n_chunks=(self.n_chunks + together - 1) // together,
            n_alike=jnp.zeros_like(self.n_alike),
        )


class AbstractRowLists(eqx.Module):
    """Neighbour lists in which every row has a column of slots.

    The image table holds the batch's rows, then one image far from everything, then all periodic
    images within reach of some atom, and far images up to a power of two.
    """

    slots: Int32[Array, "slots columns"]
    """The images near the row of each column, in canonical order, then the far image."""

    image_rows: Int32[Array, "extra_images"]
    """The row that each further image copies."""

    image_shifts: Int32[Array, "extra_images"]
    """The shift of each further image, as an index into `shifts`."""

    shifts: Int32[Array, "shifts 3"]
    """The displacement of images, in cell vectors."""

    shift_systems: Int32[Array, "shifts"]
    """The system whose cell vectors each shift counts."""

    positions: Float[Array, "rows 3"]
    """The positions at which each system's list was made, in Å."""

    frames: Frames | None
    """The cells in which lists were made; None if no cell moves."""

    def images(
        self,
        positions: Float[Array, "rows 3"],
        cells: Float[Array, "systems 3 3"],
        *,
        is_one: bool = False,
    ) -> Coordinates:
        """The coordinates of all images, in Å.

        Args:
            is_one: return all coordinates in one array.
        """
        cell, n = cells[self.shift_systems], self.shifts.astype(positions.dtype)
        # Σ_k n_k a_k, added in index order
        terms = [rounded(n[:, k, None] * cell[:, k]) for k in range(3)]
        offsets = (terms[0] + terms[1] + terms[2]).T

        def further(rows, shifts, known):
            x, offset = known
            return gather(x, rows) + gather(offset, shifts)

        x = coordinates(positions, is_one=is_one)
        known = list(zip(x, [offsets] if is_one else list(offsets), strict=True))
        return self._tables(x, further, known, FAR)

    def of_images(self, of_rows: Shaped[Array, "rows"]) -> Shaped[Array, "images"]:
        """The value of each image's row; 0 for the far image."""

        def further(rows, shifts, of_rows):
            return gather(of_rows, rows)

        return self._tables([of_rows], further, [of_rows], 0)[0]

    def _tables(
        self,
        of_rows: list[Shaped[Array, "*axes rows"]],
        further: Callable[..., Shaped[Array, "*axes some"]],
        known: list[Any],
        far: float,
    ) -> list[Shaped[Array, "*axes images"]]:
        """The tables of all images. Images of systems that folds skip may hold `far`.

        Args:
            of_rows: the values of rows, for each table.
            further: a function of rows and shifts of further images, and of an entry of `known`,
                that returns the values of these images.
            known: one entry for each table.
            far: the value of the far image.
        """
        *axes, n_rows = of_rows[0].shape
        n_images = n_rows + 1 + len(self.image_rows)
        length = padded_size(n_images, steps=1)
        if not machine().stretch:
            widths = [*((0, 0) for _ in axes), (0, length - n_images)]
            one = jnp.full((*axes, 1), far, of_rows[0].dtype)
            found = [further(self.image_rows, self.image_shifts, some) for some in known]
            tables = [jnp.concatenate([x, one, y], -1) for x, y in zip(of_rows, found, strict=True)]
            return [jnp.pad(table, widths, constant_values=far) for table in tables]
        table = jnp.full((*axes, length), far, of_rows[0].dtype)
        # Write slices: a concatenation would test the origin of each entry. The table is the same.
        tables = [lax.dynamic_update_slice(table, x, (0,) * x.ndim) for x in of_rows]

        def put(begin, rows, shifts, tables):
            found = [further(rows, shifts, some) for some in known]
            at = (*(jnp.zeros_like(begin) for _ in axes), begin + (n_rows + 1))
            return [lax.dynamic_update_slice(t, x, at) for t, x in zip(tables, found, strict=True)]

        columns = columns_of(self)
        if columns is None:
            return put(jnp.int32(0), self.image_rows, self.image_shifts, tables)
        begins = jnp.asarray(columns.stretches)  # as in `Columns.length`
        length = min(machine().stretch, len(self.image_rows))

        def put_stretch(k, tables):
            rows, shifts = (
                lax.dynamic_slice_in_dim(a, begins[k], length)
                for a in (self.image_rows, self.image_shifts)
            )
            return put(begins[k], rows, shifts, tables)

        return lax.fori_loop(0, columns.n_stretches, put_stretch, tables)


class Neighbors(AbstractRowLists):
    """Neighbour lists of a batch by its rows: column i of `slots` has the neighbours of row i.

    Some neighbours, up to the skin of the list, are farther away than the cutoff.
    """

    reverse: Int32[Array, "slots rows"] | None = None
    """The position of each slot's pair seen from the neighbour, as an index into `slots.ravel()`.

    Meaningless for padding; None unless the table has `reverse`.
    """


class ChunkedLists(AbstractRowLists):
    """Neighbour lists for this package's folds, in chunks of columns of different lengths.

    `columns` gives the row of each column. With `others`, slots may hold `SPECIES_BIT`.
    """

    columns: Columns
    """The rows of columns, and the reach of folds. Loops of unknown length have no reverse
    derivative."""

    others: Int32[Array, "rows"] | None = None
    """The atomic number of the other of the two elements of a row's system, or its own if there is
    only one; None if a system may have more than two."""


def columns_of(lists: AbstractRowLists) -> Columns | None:
    """The columns of lists in chunks; None if each row has its own column."""
    return lists.columns if isinstance(lists, ChunkedLists) else None


Lists = EdgeList | Neighbors | ChunkedLists
"""The forms of neighbour lists; a potential takes one of them."""


def coordinates(positions: Float[Array, "rows 3"], *, is_one: bool) -> Coordinates:
    """The coordinates of rows, in the form of the lists' `images`."""
    return [positions.T] if is_one else list(positions.T)


def gather(values: Shaped[Array, "*axes n"], indices: Int32[Array, "..."]) -> Shaped[Array, "..."]:
    """`values[..., indices]` for indices within bounds; faster for tables from `filled_up`."""
    values = jnp.asarray(values)  # of NumPy where nothing is traced
    indices = xla.bounded_index(indices, values.shape[-1], SPECIES_BIT)
    return values.at[..., indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def filled_up(values: Shaped[Array, "*axes n"]) -> Shaped[Array, "*axes filled"]:
    """The table padded to a power of two, for a faster `gather`."""
    n = values.shape[-1]
    widths = [(0, 0)] * (values.ndim - 1) + [(0, padded_size(n, steps=1) - n)]
    return jnp.pad(values, widths)


def moved_too_far(
    positions: Float[Array, "rows 3"],
    neighbors: Lists,
    index: SystemIndex,
    skin: Float[Array, "..."] | float,
    cells: Matrices | None = None,
) -> Bool[Array, "systems"]:
    """The mask of systems that need a new list: an atom has moved by more than half the skin.

    These systems have a negative `skin_left`, which takes the same arguments. A position of NaN
    counts as unmoved.
    """
    return skin_left(positions, neighbors, index, skin, cells) < 0


def skin_left(
    positions: Float[Array, "rows 3"],
    neighbors: Lists,
    index: SystemIndex,
    skin: Float[Array, "..."] | float,
    cells: Matrices | None = None,
) -> Float[Array, "systems"]:
    """The distance beyond the cutoff within which lists still hold every pair, in Å.

    The skin minus twice the longest way of an atom since the list was made. In a moving cell, atoms
    move with the cell, and its strain reduces the skin as well. Only a system's own atoms and cell
    count. NaN if a position is NaN, since no list helps then. With a finite skin, -inf if one is
    beyond `LARGEST_POSITION`: the next list then fails, in whatever batch.

    Args:
        skin: in Å, one number or one per system.
        cells: the current cell vectors, in Å; needed if `neighbors` has `frames`.
    """
    d = positions - neighbors.positions
    d = jnp.where(jnp.abs(positions) > LARGEST_POSITION, jnp.inf, d)
    left = jnp.asarray(skin, positions.dtype)
    if neighbors.frames is not None and cells is not None:
        frames = neighbors.frames
        strain = multiply(frames.inverses, cells - frames.cells)
        d = d - turned_rows(neighbors.positions, strain, index)
        left = left - rounded(frobenius_norm(strain) * frames.radius)
    longest = index.max(squared_lengths(d), jnp.maximum)  # -inf without rows
    return left - 2 * rounded(jnp.sqrt(jnp.where(longest < 0, 0.0, longest)))
