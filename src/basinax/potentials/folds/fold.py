"""The fold over neighbours, written once.

All rows process their neighbour slots in parallel; each row adds its pairs from the left in
canonical order (docs/design.md, section 2, rule 3). A pair outside the cutoff adds +0.0, which
changes no sum here: sums begin with +0.0 and so are never -0.0.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, PyTree

from basinax.neighbors.lists import (
    SPECIES_BIT,
    AbstractRowLists,
    ChunkedLists,
    Coordinates,
    columns_of,
    coordinates,
    gather,
)
from basinax.numerics.kernel import one_kernel
from basinax.numerics.rounding import rounded, rounded_clamped
from basinax.potentials.protocol import Properties, nan_if_not_finite, stress_of
from basinax.structures.batch import Batch
from basinax.structures.machine import machine
from basinax.structures.matrices import VOIGT

Rows = Float[Array, "rows"]
Images = Int32[Array, "rows"]
"""The image in a slot of each row."""
Own = PyTree[Array]
"""Values of rows, [rows], or one value of all of them, without axes."""
Sums = tuple[Float[Array, "*_axes rows"], ...]
Terms = Callable[[Any, Any, Images, Coordinates], Sums]
"""The terms that a slot adds to rows, from the rows' own values, the parameters of the slot's
images, the images, and the vectors to them, in Å."""


class Elements(eqx.Module):
    """Parameters of atoms by their elements; made by `Elements.of`."""

    known: Callable[[Int32[Array, "..."]], Any] = eqx.field(static=True)
    """The parameters for given keys."""
    keys: Int32[Array, "rows"]
    """The key of each row."""
    others: Int32[Array, "rows"] | None
    """The key of the other of two elements in the system; None if a system may have more."""
    bits: Int32[Array, "rows"] | None
    """The bits of `SPECIES_BIT` in a slot whose image is of the row's own element."""

    @classmethod
    def of(
        cls,
        batch: Batch,
        neighbors: AbstractRowLists,
        key_of: Callable[[Int32[Array, "rows"]], Int32[Array, "rows"]],
        known: Callable[[Int32[Array, "..."]], Any],
    ) -> "Elements":
        """The parameters for the atoms of a batch.

        Args:
            key_of: the keys for given atomic numbers.
            known: the parameters for given keys.
        """
        keys = key_of(batch.numbers)
        if not isinstance(neighbors, ChunkedLists) or neighbors.others is None:
            return cls(known, keys, None, None)
        others = neighbors.others
        bits = jnp.where(batch.numbers >= others, SPECIES_BIT, 0)
        return cls(known, keys, key_of(others), bits)

    def of_images(self, neighbors: AbstractRowLists) -> Callable[[Images], Any]:
        """A function from the images in slots to their parameters, which reads tables."""
        keys = neighbors.of_images(self.keys)
        return lambda images: self.known(gather(keys, images))

    def two_species(self) -> Callable[[Images], Any]:
        """The same function for systems of two elements, which selects between two parameters."""
        own, other = self.known(self.keys), self.known(cast(Array, self.others))

        def there(images):
            is_own = (images & SPECIES_BIT) == self.bits
            return jax.tree.map(
                lambda a, b: jnp.where(jnp.broadcast_to(is_own, a.shape), a, b), own, other
            )

        return there


class Fold(NamedTuple):
    """The pairs of a batch, to be summed for each row; made by `Fold.of`.

    A potential whose pairs depend on sums over pairs (densities) folds twice: first `sums`, then
    `properties`, with the sums of neighbours gathered by `neighbors.of_images`.

    If a potential gives `Elements`, systems of one element are folded separately, with the rows'
    parameters for their images. If no system has more than two elements, a bit of the slot selects
    the parameters, without tables.
    """

    batch: Batch
    neighbors: AbstractRowLists
    images: Coordinates
    """Coordinates of all images, in Å."""

    @classmethod
    def of(cls, batch: Batch, neighbors: AbstractRowLists, *, is_one: bool = False) -> "Fold":
        """The pairs of a batch.

        Args:
            is_one: keep coordinates in one array, which makes fewer loops. But XLA does not
                vectorise a loop on the CPU that both reads parts of an array and gathers from
                tables of species.
        """
        is_one = is_one and bool(machine().unroll_one)
        images = neighbors.images(batch.positions, batch.cells, is_one=is_one)
        return cls(batch, neighbors, images)

    def sums(
        self,
        terms: Callable[[Any, Any, Images, Rows], Sums],
        starts: Sums,
        own: Own = None,
        elements: Elements | None = None,
    ) -> Sums:
        """Each of `starts` with the terms of all of a row's pairs added.

        Args:
            terms: the terms of a slot for some rows, from the rows' own values, the parameters of
                the slot's images, the images, and the squared distances in Å². Terms must be
                rounded, and +0.0 outside the cutoff.
            starts: +0.0, or NaN that should reach the result.
            elements: parameters of images by their elements. Without it, and for systems of one
                element, terms receive None; for these systems they must have the bits that they
                would have with the parameters.
        """

        def of_vectors(own, other, images, vectors):
            d = _components(vectors)
            return terms(own, other, images, dot(d, d))

        return self._sums(of_vectors, starts, own, elements)

    @property
    def is_one(self) -> bool:
        """Whether coordinates are one array."""
        return len(self.images) == 1

    def _sums(self, terms: Terms, starts: Sums, own: Own, elements: Elements | None) -> Sums:
        """`sums` for terms of the vectors to the images, in Å, instead of squared distances."""
        here = coordinates(self.batch.positions, is_one=self.is_one)
        neighbors, columns, of_images = self.neighbors, columns_of(self.neighbors), None
        if elements is not None and elements.others is None:
            of_images = elements.of_images(neighbors)

        def fold(some, begin, n_slots, *, alike=False):
            starts, known, elements = some
            there = None if alike or elements is None else of_images or elements.two_species()
            return self._fold(terms, starts, known, there, begin, n_slots)

        rows = (starts, (own, here), elements)
        if columns is None:
            return fold(rows, 0, neighbors.slots.shape[0])
        starts, *others = columns.arranged(rows)

        # One chunk of columns after another, each as far as its longest list. A column's sum runs
        # over its own slots in order, so chunks change no bit.
        def through(sums):
            def add_chunk(k, sums, *, alike=False):
                k = jnp.asarray(k, jnp.int32)  # JAX counts to a known bound in int64
                some = columns.chunk(k, (sums, *others))
                added = fold(some, k * columns.size, columns.length(k), alike=alike)
                return columns.with_chunk(k, sums, added)

            begin = jnp.int32(0)
            if elements is not None:
                begin, alike = columns.n_alike, functools.partial(add_chunk, alike=True)
                sums = lax.fori_loop(0, begin, alike, sums)
            return lax.fori_loop(begin, columns.n_chunks, add_chunk, sums)

        return tuple(gather(s, columns.of_rows) for s in one_kernel(through)(starts))

    def _fold(
        self,
        terms: Terms,
        starts: Sums,
        known: tuple[Own, Coordinates],
        there: Callable[[Images], Any] | None,
        begin: Any,
        n_slots: Any,
    ) -> Sums:
        """`_sums` for the columns of slots from `begin` on.

        Args:
            known: the own values of the rows of these columns, and their positions in Å.
        """
        own, here = known
        unroll = machine().unroll_one if self.is_one else machine().unroll
        shape = (unroll, starts[0].shape[-1])

        # A turn reads [unroll, columns] slots and adds them one after another: a left fold.
        def add_slots(turn, sums):
            at = [jnp.asarray(k, jnp.int32) for k in (turn * unroll, begin)]
            for images in lax.dynamic_slice(self.neighbors.slots, at, shape):
                vectors = [gather(p, images) - h for p, h in zip(self.images, here, strict=True)]
                added = terms(own, there and there(images), images, vectors)
                sums = tuple(s + t for s, t in zip(sums, added, strict=True))
            return sums

        return lax.fori_loop(0, (n_slots + unroll - 1) // unroll, add_slots, starts)

    def properties(
        self,
        pair: Callable[[Any, Any, Images, Rows], tuple[Rows, Rows]],
        own: Own = None,
        elements: Elements | None = None,
        *,
        stress: bool,
        own_energies: Rows | None = None,
    ) -> Properties:
        """Energies, forces and stresses of pairs.

        Args:
            pair: a function of the same arguments as the terms of `sums`. It returns the energy of
                the pair in eV, and (dE/dr)/r in eV/Å² with the energy E of the system; both +0.0
                outside the cutoff. NaN must count as inside. At distance 0 one of them must not be
                finite. End the second in a division: XLA recomputes a cheap value for every sum
                that reads it, but stores a quotient.
            elements: as for `sums`.
            own_energies: energies of atoms in eV besides those of pairs, or None.
        """

        def terms(own, other, images, vectors):
            d = _components(vectors)
            energy, f = pair(own, other, images, dot(d, d))
            forces = [jnp.broadcast_to(f, v.shape) * v for v in vectors]
            force = _components(forces)
            virials = [force[a] * d[b] for a, b in VOIGT] if stress else []
            return (energy, *(rounded(p) for p in forces + virials))

        batch = self.batch
        start, nothing = nan_if_not_finite(batch.positions), jnp.zeros_like(batch.positions)
        forces = coordinates(nothing, is_one=self.is_one)
        virials = [nothing[:, 0]] * (6 if stress else 0)
        starts = (start, *forces, *virials)
        energies, *rest = self._sums(terms, starts, own, elements)
        virials = rest[len(forces) :]
        forces = jnp.stack(_components(rest[: len(forces)]), 1)
        # The fold meets each pair from both ends; times 0.5 is exact.
        atom_energies = energies * 0.5
        if own_energies is not None:
            atom_energies = own_energies + atom_energies
        virials = [batch.index.sum(s * 0.5) for s in virials]
        return Properties(
            energies=batch.index.sum(atom_energies),
            forces=forces,
            atom_energies=atom_energies,
            stress=stress_of(virials, batch.cells) if stress else None,
        )


def _components(vectors: Coordinates) -> tuple[Rows, Rows, Rows]:
    x, y, z = vectors[0] if len(vectors) == 1 else vectors
    return x, y, z


def dot(a: Sequence[Rows], b: Sequence[Rows]) -> Rows:
    """The dot product, with components added in index order. Lengths must be below 1e154."""
    return (
        rounded_clamped(a[0] * b[0]) + rounded_clamped(a[1] * b[1]) + rounded_clamped(a[2] * b[2])
    )
