"""The fold over neighbours, written once.

All rows go through their neighbour slots side by side, and each adds its pairs from the left in
canonical order (docs/design.md, section 2, rule 3). A pair outside the cutoff adds +0.0, which no
sum here can tell from nothing: none is ever -0.0, as all begin with +0.0.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, PyTree

from basinax._rounding import rounded
from basinax.atoms._batch import Batch
from basinax.atoms._matrices import VOIGT
from basinax.atoms._neighbors import Neighbors, gather
from basinax.atoms.potentials._potential import Properties, poison, stress_of

UNROLL = 2
"""Slots per turn of the loop. Measured on CPU, 2048 rows, float64: 5.2, 5.0, 5.5 ns a slot at
1, 2, 4, and 3.8 inside the loop over steps, where what does not change is computed once."""

Rows = Float[Array, "rows"]
Images = Int32[Array, "rows"]
Vector = tuple[Rows, Rows, Rows]
Own = PyTree[Array]
"""What holds for rows, [rows], or for all of them, without axes."""


class Fold(NamedTuple):
    """The pairs of a batch, to be added up for each row. `Fold.of` makes one.

    A potential whose pairs depend on sums over pairs (densities) folds twice: `sums`, then
    `properties`, with what an atom's neighbours have gathered from `neighbors.of_images`.
    """

    batch: Batch
    neighbors: Neighbors
    images: tuple[Float[Array, "images"], Float[Array, "images"], Float[Array, "images"]]
    """The coordinates of all images, in Å."""

    @classmethod
    def of(cls, batch: Batch, neighbors: Neighbors) -> "Fold":
        return cls(batch, neighbors, neighbors.images(batch.positions, batch.cells))

    def sums(
        self,
        terms: Callable[[Any, Images, Vector, Rows], tuple[Rows, ...]],
        starts: tuple[Rows, ...],
        own: Own = None,
    ) -> tuple[Rows, ...]:
        """Each of `starts` with the terms of all of a row's pairs added.

        Args:
            terms: what a slot adds to some rows: from what is their own, the slot's images, the
                vectors to them in Å and the squared distances in Å². Products are rounded; outside
                the cutoff they are +0.0.
            starts: +0.0, or NaN where that is to show.
        """
        x, y, z = (self.batch.positions[:, c] for c in range(3))
        known, columns = ((x, y, z), own), self.neighbors.columns
        if columns is None:
            return self._fold(terms, starts, known, 0, self.neighbors.slots.shape[0])
        known = columns.arranged(known)

        def add_chunk(k, sums):
            some, known_of_some = columns.chunk(k, (sums, known))
            n_slots = columns.n_slots[k]
            some = self._fold(terms, some, known_of_some, k * columns.size, n_slots)
            return columns.with_chunk(k, sums, some)

        sums = lax.fori_loop(0, columns.n_chunks, add_chunk, columns.arranged(starts))
        return tuple(gather(s, columns.of_rows) for s in sums)

    def _fold(
        self, terms, starts: tuple[Rows, ...], known: tuple[Vector, Own], begin, n_slots
    ) -> tuple[Rows, ...]:
        """As `sums`, for the columns of the slots that stand from `begin` on.

        Args:
            known: where the rows of these columns are, in Å, and what is their own.
        """
        (x, y, z), own = known
        xs, ys, zs = self.images
        shape = (UNROLL, len(x))

        def add_slot(sums, images):
            d = (gather(xs, images) - x, gather(ys, images) - y, gather(zs, images) - z)
            r2 = rounded(d[0] * d[0]) + rounded(d[1] * d[1]) + rounded(d[2] * d[2])
            return tuple(s + t for s, t in zip(sums, terms(own, images, d, r2), strict=True))

        def add_slots(turn, sums):
            for images in lax.dynamic_slice(self.neighbors.slots, (turn * UNROLL, begin), shape):
                sums = add_slot(sums, images)
            return sums

        return lax.fori_loop(0, (n_slots + UNROLL - 1) // UNROLL, add_slots, starts)

    def properties(
        self,
        pair: Callable[[Any, Images, Rows], tuple[Rows, Rows]],
        own: Own = None,
        *,
        stress: bool,
        own_energies: Rows | None = None,
    ) -> Properties:
        """Energies, forces and stresses of pairs.

        Args:
            pair: from what is the rows' own, the images of a slot and the squared distances in Å²,
                the energy of the pair in eV and (dE/dr)/r in eV/Å², where E is the energy of the
                system. Both are +0.0 outside the cutoff. NaN counts as inside, so that it shows. At
                a distance of 0 one of them must not be finite. XLA computes what is cheap again for
                every sum that reads it; a quotient counts as dear, so the second ends in its
                division.
            own_energies: of the atoms, in eV, besides their pairs'; none if None.
        """

        def terms(own, images, d, r2):
            energy, f = pair(own, images, r2)
            force = tuple(f * component for component in d)
            products = force
            if stress:
                products += tuple(force[a] * d[b] for a, b in VOIGT)
            return (energy, *(rounded(p) for p in products))

        batch = self.batch
        zeros = jnp.zeros_like(batch.positions[:, 0])
        starts = (poison(batch.positions),) + (zeros,) * (9 if stress else 3)
        energies, *rest = self.sums(terms, starts, own)
        # A pair is met from both of its ends; times 0.5 is exact.
        atom_energies = energies * 0.5
        if own_energies is not None:
            atom_energies = own_energies + atom_energies
        virials = [batch.index.sum(s * 0.5) for s in rest[3:]]
        return Properties(
            energies=batch.index.sum(atom_energies),
            forces=jnp.stack(rest[:3], 1),
            atom_energies=atom_energies,
            stress=stress_of(virials, batch.cells) if stress else None,
        )
