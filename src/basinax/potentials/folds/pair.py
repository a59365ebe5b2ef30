"""Potentials that are sums over pairs, whose parameters are tables over pairs of species."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from basinax.neighbors.lists import AbstractRowLists, ChunkedLists, filled_up, gather
from basinax.numerics.rounding import rounded
from basinax.potentials.folds.fold import Fold, Rows
from basinax.potentials.protocol import AbstractPotential, Properties
from basinax.structures.batch import Batch

FARTHEST = 1e10
"""Pairs farther apart, in Å, do not count where a potential has no cutoff: no two atoms are, but
the image that padding points at is."""


class AbstractPairSum(AbstractPotential):
    """A potential with a sum over pairs, cut off per pair of species.

    Its parameters are tables over its species, symmetric; of one entry where all atoms are alike.
    """

    lists: ClassVar[type] = ChunkedLists
    values_of_pair: ClassVar[int] = 2

    @property
    def cutoff(self) -> float:
        return float(np.max(np.asarray(self.reach())))

    @abc.abstractmethod
    def reach(self) -> Float[Array, "*species"]:
        """The cutoff of each pair of species, or one of all, in Å. A pair exactly there counts.

        inf for all where there is none, for open structures alone.
        """

    @abc.abstractmethod
    def table(self, dtype: Any) -> PyTree[Float[Array, "*species"]]:
        """The arguments of `pair`, computed once from the parameters.

        Of each pair of species [species, species], or for all pairs one number without axes.
        """

    @abc.abstractmethod
    def pair(
        self, r2: Float[Array, "rows"], known: PyTree[Float[Array, "*rows"]]
    ) -> tuple[Float[Array, "rows"], Float[Array, "rows"]]:
        """The energy of a pair and r dE/dr, both in eV.

        Both may end in a product that is not rounded, but must round each product that they add.
        At r2 = 0 one of them must not be finite. Their values beyond the cutoff are not used.

        Args:
            r2: the squared distance in Å².
            known: the entries of `table` for the pair, with the axis of `r2` or none.
        """

    def add_pairs(
        self,
        batch: Batch,
        neighbors: AbstractRowLists,
        *,
        stress: bool,
        own_energies: Rows | None = None,
    ) -> Properties:
        """Energies, forces and stresses of the pairs.

        Args:
            own_energies: of the atoms, in eV, besides their pairs'; none if None.
        """
        own, lookup = self._lookup(batch, neighbors)

        def pair(own, _, images, r2):
            known, cutoff2 = lookup(own, images)
            energy, w = self.pair(r2, known)
            outside = r2 > cutoff2
            return jnp.where(outside, 0.0, energy), jnp.where(outside, 0.0, w) / r2

        fold = Fold.of(batch, neighbors, is_one=own is None)
        return fold.properties(pair, own, stress=stress, own_energies=own_energies)

    def _lookup(self, batch: Batch, neighbors: AbstractRowLists):
        """The rows' own values, and a function from these and the images of a slot to the table's
        entries and the squared cutoffs."""
        dtype = batch.positions.dtype
        cutoffs = jnp.minimum(self.reach().astype(dtype), FARTHEST)
        tables = (self.table(dtype), rounded(cutoffs * cutoffs))
        n_species = max(len(self.species), 1)
        if n_species == 1:
            single = jax.tree.map(lambda t: t.reshape(()), tables)
            return None, lambda own, images: single
        kinds = self.kinds(batch.numbers)
        of_images = neighbors.of_images(kinds)
        flat = jax.tree.map(lambda t: filled_up(t.ravel()) if t.ndim else t, tables)

        def lookup(own, images):
            pair = own + gather(of_images, images)
            return jax.tree.map(lambda t: gather(t, pair) if t.ndim else t, flat)

        return kinds * n_species, lookup


class AbstractPairPotential(AbstractPairSum):
    """A sum over pairs and nothing else. A subclass gives `reach`, `table` and `pair`."""

    def __call__(
        self, batch: Batch, neighbors: AbstractRowLists, *, stress: bool = False
    ) -> Properties:
        return self.add_pairs(batch, neighbors, stress=stress)
