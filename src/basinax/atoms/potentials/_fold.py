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
"""Slots per turn of the loop, so that many sums share the price of a turn."""

Rows = Float[Array, "rows"]
Images = Int32[Array, "rows"]
"""The image in a slot of each row."""
Own = PyTree[Array]
"""What holds for rows, [rows], or for all of them, without axes."""
Sums = tuple[Float[Array, "*axes rows"], ...]


class Fold(NamedTuple):
    """The pairs of a batch, to be added up for each row. `Fold.of` makes one.

    A potential whose pairs depend on sums over pairs (densities) folds twice: `sums`, then
    `properties`, with what an atom's neighbours have gathered from `neighbors.of_images`.
    """

    batch: Batch
    neighbors: Neighbors
    images: Float[Array, "3 images"]
    """The coordinates of all images, in Å."""

    @classmethod
    def of(cls, batch: Batch, neighbors: Neighbors) -> "Fold":
        return cls(batch, neighbors, neighbors.images(batch.positions, batch.cells))

    def sums(
        self, terms: Callable[[Any, Images, Rows], Sums], starts: Sums, own: Own = None
    ) -> Sums:
        """Each of `starts` with the terms of all of a row's pairs added.

        Args:
            terms: what a slot adds to some rows: from what is their own, the slot's images, and the
                squared distances in Å². Products are rounded; outside the cutoff they are +0.0.
            starts: +0.0, or NaN where that is to show.
        """
        places = tuple(self.images)

        def of_slot(own, images, here):
            x, y, z = (gather(p, images) - h for p, h in zip(places, here, strict=True))
            return terms(own, images, rounded(x * x) + rounded(y * y) + rounded(z * z))

        return self._sums(of_slot, starts, own, tuple(self.batch.positions.T), UNROLL)

    def _sums(self, terms, starts: Sums, own: Own, here: PyTree[Array], unroll: int) -> Sums:
        """As `sums`, of terms that are told where the rows are instead of distances.

        Args:
            here: the coordinates of the rows, in Å.
        """
        known, columns = (own, here), self.neighbors.columns
        if columns is None:
            return self._fold(terms, starts, known, unroll, 0, self.neighbors.slots.shape[0])
        known = columns.arranged(known)

        def add_chunk(k, sums):
            some, known_of_some = columns.chunk(k, (sums, known))
            n_slots = columns.n_slots[k]
            some = self._fold(terms, some, known_of_some, unroll, k * columns.size, n_slots)
            return columns.with_chunk(k, sums, some)

        sums = lax.fori_loop(0, columns.n_chunks, add_chunk, columns.arranged(starts))
        return tuple(gather(s, columns.of_rows) for s in sums)

    def _fold(
        self, terms, starts: Sums, known: tuple[Own, PyTree[Array]], unroll: int, begin, n_slots
    ) -> Sums:
        """As `_sums`, for the columns of the slots that stand from `begin` on.

        Args:
            known: what is the own of the rows of these columns, and where they are.
        """
        own, here = known
        shape = (unroll, starts[0].shape[-1])

        def add_slots(turn, sums):
            for images in lax.dynamic_slice(self.neighbors.slots, (turn * unroll, begin), shape):
                added = terms(own, images, here)
                sums = tuple(s + t for s, t in zip(sums, added, strict=True))
            return sums

        return lax.fori_loop(0, (n_slots + unroll - 1) // unroll, add_slots, starts)

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
        # Coordinates side by side in one array make fewer loops. But a loop that reads parts of an
        # array and gathers besides, from tables of species, is not one over vectors of the CPU.
        is_one = own is None

        def split(array: Float[Array, "3 n"]) -> list[Array]:
            return [array] if is_one else list(array)

        def components(parts: list[Array]) -> list[Array]:
            return list(parts[0]) if is_one else parts

        places = split(self.images)

        def terms(own, images, here):
            vectors = [gather(p, images) - h for p, h in zip(places, here, strict=True)]
            d = components(vectors)
            r2 = rounded(d[0] * d[0]) + rounded(d[1] * d[1]) + rounded(d[2] * d[2])
            energy, f = pair(own, images, r2)
            forces = [jnp.broadcast_to(f, v.shape) * v for v in vectors]
            force = components(forces)
            virials = [force[a] * d[b] for a, b in VOIGT] if stress else []
            return (energy, *(rounded(p) for p in forces + virials))

        batch = self.batch
        start, here = poison(batch.positions), split(batch.positions.T)
        virials = [jnp.zeros_like(start)] * (6 if stress else 0)
        starts = (start, *(jnp.zeros_like(h) for h in here), *virials)
        energies, *rest = self._sums(terms, starts, own, here, 1 if is_one else UNROLL)
        forces, virials = jnp.vstack(rest[: len(here)]), rest[len(here) :]
        # A pair is met from both of its ends; times 0.5 is exact.
        atom_energies = energies * 0.5
        if own_energies is not None:
            atom_energies = own_energies + atom_energies
        virials = [batch.index.sum(s * 0.5) for s in virials]
        return Properties(
            energies=batch.index.sum(atom_energies),
            forces=forces.T,
            atom_energies=atom_energies,
            stress=stress_of(virials, batch.cells) if stress else None,
        )
