"""Potentials that are sums over pairs, whose parameters are tables over pairs of species."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from basinax._rounding import rounded
from basinax.atoms._batch import Batch
from basinax.atoms._neighbors import Neighbors, gather
from basinax.atoms.potentials._fold import Fold
from basinax.atoms.potentials._potential import AbstractPotential, Properties


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
        lookup = self._lookup(batch, neighbors)

        def pair(images, r2):
            known, cutoff2 = lookup(images)
            energy, w = self.pair(r2, known)
            outside = r2 > cutoff2
            return jnp.where(outside, 0.0, energy), jnp.where(outside, 0.0, w) / r2

        return Fold.of(batch, neighbors).properties(pair, stress=stress)

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
