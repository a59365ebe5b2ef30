"""Which periodic images lie near which atoms, as the device reads it.

A row's neighbours stand in canonical order (row in its system, then periodic shift), so that a
left fold over them gives the same bits whatever the skin, the padding and the last rebuild
(docs/design.md, section 2, rule 3). Padding points at an image too far away to matter: no mask.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, PyTree, Shaped

from basinax._bits import xla
from basinax._bits.rounding import rounded
from basinax._systems.index import SystemIndex
from basinax.atoms._batch import padded_size
from basinax.atoms._machine import machine
from basinax.atoms._matrices import Matrices, frobenius_norm, multiply, squared_lengths, turned_rows
from basinax.atoms._neighbors.edges import EdgeList, Frames

HEAVIER = 1 << 30
"""Set in a slot whose image is of the heavier one of a system's two elements, where there is
`ChunkedLists.others`. `gather` passes over it, and no batch has as many images."""

FAR = 1e12
"""Where padding points, in Å along each axis: far from any atom, and its square fits float32."""

Coordinates = list[Float[Array, "*axes n"]]
"""x, y and z: an array each, or one [3, n] of all."""


class Columns(eqx.Module):
    """In which order folds go through the rows: by chunks, each as far as its longest list.

    The systems to go through come first, of these those of one element alone, where that is known,
    and then those with the longest lists.
    """

    rows: Int32[Array, "columns"]
    """The row of each column of the slots; rows may come again at the end, to fill it up."""

    of_rows: Int32[Array, "rows"]
    """The column of each row."""

    n_slots: Int32[Array, "chunks"]
    """After how many slots the fold of a chunk may end; 0 for those not to go through."""

    n_chunks: Int32[Array, ""]
    """How many chunks there are to go through."""

    n_alike: Int32[Array, ""]
    """How many of these, the first ones, are of systems of one element alone."""

    has_others: Bool[Array, "columns"]
    """Which columns are of systems to go through that may have several elements."""

    stretches: Int32[Array, "stretches"]
    """Where the further images of systems to go through begin: starts of stretches of equal length,
    which may overlap."""

    n_stretches: Int32[Array, ""]
    """How many of these there are; others are not read."""

    @property
    def size(self) -> int:
        """Columns of a chunk."""
        return self.rows.shape[0] // self.n_slots.shape[0]

    def arranged(self, of_rows: PyTree[Array]) -> PyTree[Array]:
        """Values of rows, the last axis, in the order of columns; a number stands for all."""
        return jax.tree.map(lambda a: gather(a, self.rows) if a.ndim else a, of_rows)

    def chunk(self, k: Int32[Array, ""], of_columns: PyTree[Array]) -> PyTree[Array]:
        """Values of the columns of a chunk."""

        def part(a):
            return lax.dynamic_slice_in_dim(a, k * self.size, self.size, -1) if a.ndim else a

        return jax.tree.map(part, of_columns)

    def with_chunk(
        self, k: Int32[Array, ""], of_columns: PyTree[Array], chunk: PyTree[Array]
    ) -> PyTree[Array]:
        """The tree with other values for the columns of a chunk."""

        def changed(a, part):
            return lax.dynamic_update_slice_in_dim(a, part, k * self.size, -1)

        return jax.tree.map(changed, of_columns, chunk)

    def wide(self) -> "Columns":
        """The same columns in fewer and larger chunks."""
        together = min(machine().wide, len(self.n_slots))
        return dataclasses.replace(
            self,
            n_slots=jnp.max(self.n_slots.reshape(-1, together), 1),
            n_chunks=(self.n_chunks + together - 1) // together,
            n_alike=jnp.zeros_like(self.n_alike),
        )


class AbstractRowLists(eqx.Module):
    """Neighbour lists in which every row has a column of slots.

    The image table begins with the batch's rows; then one image stands far from everything; then
    follow the periodic images that some atom has in reach, and more far ones up to a power of two.
    """

    slots: eqx.AbstractVar[Int32[Array, "slots columns"]]
    """The images near the row of each column, in canonical order, then the far one."""

    image_rows: eqx.AbstractVar[Int32[Array, "extra_images"]]
    """The row that each further image is an image of."""

    image_shifts: eqx.AbstractVar[Int32[Array, "extra_images"]]
    """The shift of each further image, as an entry of `shifts`."""

    shifts: eqx.AbstractVar[Int32[Array, "shifts 3"]]
    """By how many cell vectors images are displaced."""

    shift_systems: eqx.AbstractVar[Int32[Array, "shifts"]]
    """The system whose cell vectors they are."""

    positions: eqx.AbstractVar[Float[Array, "rows 3"]]
    """Where the atoms were when their system's list was made, in Å."""

    frames: eqx.AbstractVar[Frames | None]
    """The cells of then; None where no cell moves."""

    def images(
        self,
        positions: Float[Array, "rows 3"],
        cells: Float[Array, "systems 3 3"],
        *,
        is_one: bool = False,
    ) -> Coordinates:
        """The coordinates of all images, in Å.

        Args:
            is_one: let them be one array.
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
        """The value of the row that each image belongs to; 0 for the far one."""

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
        """The values of images. Images of a system that folds do not go through may have `far`.

        Args:
            of_rows: values of rows, for each table.
            further: from rows and shifts of further images, and an entry of `known`, to their
                values.
            known: one entry for each table.
            far: the value of the far image.
        """
        *axes, n_rows = of_rows[0].shape
        length = padded_size(n_rows + 1 + len(self.image_rows), steps=1)
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
        begins, length = columns.stretches, min(machine().stretch, len(self.image_rows))

        def put_stretch(k, tables):
            rows, shifts = (
                lax.dynamic_slice_in_dim(a, begins[k], length)
                for a in (self.image_rows, self.image_shifts)
            )
            return put(begins[k], rows, shifts, tables)

        return lax.fori_loop(0, columns.n_stretches, put_stretch, tables)


class Neighbors(AbstractRowLists):
    """Neighbour lists of a batch by its rows: column i of `slots` has the neighbours of row i.

    Up to the skin of the list there are neighbours farther away than the cutoff.
    """

    slots: Int32[Array, "slots rows"]
    image_rows: Int32[Array, "extra_images"]
    image_shifts: Int32[Array, "extra_images"]
    shifts: Int32[Array, "shifts 3"]
    shift_systems: Int32[Array, "shifts"]
    positions: Float[Array, "rows 3"]
    frames: Frames | None = None

    reverse: Int32[Array, "slots rows"] | None = None
    """Where the pair of a slot stands seen from the neighbour, as an entry of `slots.ravel()`.

    Of no account where a slot is padding; None unless the table has `reverse`.
    """


class ChunkedLists(AbstractRowLists):
    """Neighbour lists for the folds of this package: in chunks of columns that end where they may.

    A column is that of another row than its number, which `columns` has, and `HEAVIER` may be set
    in slots besides, where there are `others`.
    """

    slots: Int32[Array, "slots columns"]
    image_rows: Int32[Array, "extra_images"]
    image_shifts: Int32[Array, "extra_images"]
    shifts: Int32[Array, "shifts 3"]
    shift_systems: Int32[Array, "shifts"]
    positions: Float[Array, "rows 3"]

    columns: Columns
    """The rows of columns, and how far folds go. A loop whose length is not known before has no
    derivative in reverse."""

    frames: Frames | None = None

    others: Int32[Array, "rows"] | None = None
    """The atomic number of the other one of the two elements of a row's system; its own if there is
    one. None where some system may have more."""


def columns_of(lists: AbstractRowLists) -> Columns | None:
    """The columns of lists in chunks; None if each row has its own column."""
    return lists.columns if isinstance(lists, ChunkedLists) else None


Lists = EdgeList | Neighbors | ChunkedLists
"""The forms of neighbour lists; a potential takes one of them."""


def coordinates(positions: Float[Array, "rows 3"], *, is_one: bool) -> Coordinates:
    """The coordinates of rows, as `images` of lists gives those of images."""
    return [positions.T] if is_one else list(positions.T)


def gather(values: Shaped[Array, "*axes n"], indices: Int32[Array, "..."]) -> Shaped[Array, "..."]:
    """`values[..., indices]`, for indices known to be within bounds; fast if `filled_up`."""
    indices = xla.within(indices, values.shape[-1], HEAVIER)
    return values.at[..., indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


def filled_up(values: Shaped[Array, "*axes n"]) -> Shaped[Array, "*axes filled"]:
    """The table with as many entries as the next power of two, for `gather` to be faster."""
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
    """Which systems need a new list: an atom has moved more than half the skin since the last.

    Those with less than nothing in `skin_left`, whose arguments these are. A position that is not
    finite counts as not moved.
    """
    return skin_left(positions, neighbors, index, skin, cells) < 0


def skin_left(
    positions: Float[Array, "rows 3"],
    neighbors: Lists,
    index: SystemIndex,
    skin: Float[Array, "..."] | float,
    cells: Matrices | None = None,
) -> Float[Array, "systems"]:
    """How far beyond the cutoff lists still hold every pair, in Å.

    Twice the longest way of an atom since they were made is taken from the skin. Where the cell
    moves, atoms are taken to move with it, and its strain takes from the skin besides. Only a
    system's own atoms and cell decide. NaN where an atom's position is not finite (no list could
    help it).

    Args:
        skin: of all systems, or one a system, in Å.
        cells: the cell vectors of now, in Å; needed where `neighbors` has `frames`.
    """
    d = positions - neighbors.positions
    left = jnp.asarray(skin, positions.dtype)
    if neighbors.frames is not None and cells is not None:
        frames = neighbors.frames
        strain = multiply(frames.inverses, cells - frames.cells)
        d = d - turned_rows(neighbors.positions, strain, index)
        left = left - rounded(frobenius_norm(strain) * frames.radius)
    longest = index.max(squared_lengths(d))  # -inf without rows
    return left - 2 * rounded(jnp.sqrt(jnp.where(longest < 0, 0.0, longest)))
