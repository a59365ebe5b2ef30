"""Potentials that are sums over pairs: the fold over neighbours, written once.

All rows go through their neighbour slots side by side, and each adds its pairs from the left in
canonical order (docs/design.md, section 2, rule 3). A pair outside the cutoff adds +0.0, which no
sum here can tell from nothing: none is ever -0.0, as all begin with +0.0.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree

from basinax._rounding import rounded
from basinax.atoms._batch import Batch
from basinax.atoms._neighbors import Neighbors, gather
from basinax.atoms.potentials._potential import AbstractPotential, Properties, poison, stress_of

UNROLL = 2
"""Slots per turn of the loop. Measured on CPU, 2048 rows, float64: 5.2, 5.0, 5.5 ns a slot at
1, 2, 4, and 3.8 inside the loop over steps, where what does not change is computed once."""

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


class AbstractPairPotential(AbstractPotential):
    """A potential of pairs, cut off per pair of species. A subclass gives `table` and `pair`.

    Its parameters are tables over its species, symmetric; of one entry where all atoms are alike.
    """

    @property
    def cutoff(self) -> float:
        return float(np.max(np.asarray(self.reach())))

    @abc.abstractmethod
    def reach(self) -> Float[Array, "species species"]:
        """The cutoff of each pair of species, in Å. A pair exactly there counts."""

    @abc.abstractmethod
    def table(self, dtype: Any) -> PyTree[Float[Array, "species species"]]:
        """What `pair` needs to know of a pair of species, computed once from the parameters."""

    @abc.abstractmethod
    def pair(
        self, r2: Float[Array, "rows"], known: PyTree[Float[Array, "*rows"]]
    ) -> tuple[Float[Array, "rows"], Float[Array, "rows"]]:
        """The energy of a pair and r dE/dr, both in eV.

        Both may end in a product that is not rounded, but must round each product that they add.
        At r2 = 0 one of them must not be finite. What they are beyond the cutoff is not used.

        Args:
            r2: the squared distance in Å².
            known: the entries of `table` for the pair, with the axis of `r2` or none.
        """

    def __call__(self, batch: Batch, neighbors: Neighbors, *, stress: bool = False) -> Properties:
        dtype, n_slots = batch.positions.dtype, neighbors.slots.shape[0]
        x, y, z = (batch.positions[:, c] for c in range(3))
        xs, ys, zs = neighbors.images(batch.positions, batch.cells)
        lookup = self._lookup(batch, neighbors)

        def add_slot(sums, images):
            d = (gather(xs, images) - x, gather(ys, images) - y, gather(zs, images) - z)
            r2 = rounded(d[0] * d[0]) + rounded(d[1] * d[1]) + rounded(d[2] * d[2])
            known, cutoff2 = lookup(images)
            energy, w = self.pair(r2, known)
            # NaN counts as inside, so that it shows.
            outside = r2 > cutoff2
            # (dE/dr)/r. XLA computes what is cheap again for every sum that reads it; a quotient
            # counts as dear, so the division is last and f is computed once.
            f = jnp.where(outside, 0.0, w) / r2
            force = tuple(f * component for component in d)
            terms = force
            if stress:
                terms += tuple(force[a] * d[b] for a, b in VOIGT)
            terms = (jnp.where(outside, 0.0, energy), *(rounded(t) for t in terms))
            return tuple(s + t for s, t in zip(sums, terms, strict=True))

        def add_slots(turn, sums):
            for images in lax.dynamic_slice_in_dim(neighbors.slots, turn * UNROLL, UNROLL):
                sums = add_slot(sums, images)
            return sums

        zeros = jnp.zeros_like(x)
        sums = (poison(batch.positions),) + (zeros,) * (9 if stress else 3)
        sums = lax.fori_loop(0, n_slots // UNROLL, add_slots, sums)
        # A pair is met from both of its ends; times 0.5 is exact.
        atom_energies = sums[0] * 0.5
        virials = [batch.index.sum(s * 0.5) for s in sums[4:]]
        return Properties(
            energies=batch.index.sum(atom_energies),
            forces=jnp.stack(sums[1:4], 1).astype(dtype),
            atom_energies=atom_energies,
            stress=stress_of(virials, batch.cells) if stress else None,
        )

    def _lookup(self, batch: Batch, neighbors: Neighbors):
        """A function from the images of a slot to the table's entries and the squared cutoffs."""
        dtype = batch.positions.dtype
        cutoffs = self.reach().astype(dtype)
        tables = (self.table(dtype), rounded(cutoffs * cutoffs))
        n_species = cutoffs.shape[0]
        if n_species == 1:
            single = jax.tree.map(lambda t: t[0, 0], tables)
            return lambda images: single
        kinds = self.kinds(batch.numbers)
        of_images, of_rows = neighbors.of_images(kinds), kinds * n_species
        flat = jax.tree.map(jnp.ravel, tables)

        def lookup(images):
            pair = of_rows + gather(of_images, images)
            return jax.tree.map(lambda t: gather(t, pair), flat)

        return lookup
