"""Potentials of embedded atoms: two folds over the pairs, the second with the first's densities.

E = Σᵢ F(ρᵢ) + ½ Σᵢⱼ φ(rᵢⱼ) with ρᵢ = Σⱼ f(rᵢⱼ), as in M. S. Daw and M. I. Baskes, Phys. Rev. B 29,
6443 (1984), doi:10.1103/PhysRevB.29.6443. Without a scatter, an atom reads dF/dρ of its
neighbours through their images.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from basinax.neighbors.lists import AbstractRowLists, ChunkedLists, gather
from basinax.numerics.rounding import rounded
from basinax.potentials.folds.fold import Elements, Fold, Own, Rows
from basinax.potentials.protocol import AbstractPotential, Properties
from basinax.structures.batch import Batch


class Functions(NamedTuple):
    """The functions of an embedded-atom potential for one batch; distances r are in Å.

    Results must be rounded or sums; they are unused beyond the cutoff. The parameters of neighbours
    are None if all neighbours have the element of the row.
    """

    here: Own
    """The parameters of the rows."""

    elements: Elements | None
    """Parameters of atoms by their elements; None if all are of one."""

    density: Callable[[Any, Any, Rows], Rows]
    """The densities of neighbours at the rows, from parameters here and there, and r."""

    embedding: Callable[[Rows], tuple[Rows, Rows]]
    """F in eV and dF/dρ, from the densities at the rows."""

    pair: Callable[[Any, Any, Rows, Rows, Rows], tuple[Rows, Rows]]
    """φ in eV and dE/dr in eV/Å, from parameters here and there, r, and dF/dρ here and there."""


class AbstractEmbeddedPotential(AbstractPotential):
    """A potential of embedded atoms; a pair exactly at the cutoff counts."""

    lists: ClassVar[type] = ChunkedLists
    has_expensive_pairs: ClassVar[bool] = True
    values_of_pair: ClassVar[int] = 2

    radius: eqx.AbstractVar[Float[Array, ""]]
    """The cutoff, in Å."""

    @property
    def cutoff(self) -> float:
        return float(np.asarray(self.radius))

    @abc.abstractmethod
    def functions(self, batch: Batch, neighbors: AbstractRowLists) -> Functions:
        """The functions for this batch."""

    def __call__(
        self, batch: Batch, neighbors: AbstractRowLists, *, stress: bool = False
    ) -> Properties:
        functions = self.functions(batch, neighbors)
        fold = Fold.of(batch, neighbors)
        cutoff = self.radius.astype(batch.positions.dtype)
        cutoff2 = rounded(cutoff * cutoff)

        def density(here, there, _, r2):
            # NaN fails the comparison, so it counts as inside and reaches the result.
            added = functions.density(here, there, rounded(jnp.sqrt(r2)))
            return (jnp.where(r2 > cutoff2, 0.0, added),)

        starts = (jnp.zeros_like(batch.positions[:, 0]),)
        (densities,) = fold.sums(density, starts, functions.here, functions.elements)
        energies, slopes = functions.embedding(densities)
        slopes_of_images = neighbors.of_images(slopes)

        def pair(known, there, images, r2):
            here, slopes = known
            r, slopes_there = rounded(jnp.sqrt(r2)), gather(slopes_of_images, images)
            energy, slope = functions.pair(here, there, r, slopes, slopes_there)
            # Two atoms at one position have a finite energy but no direction of force: return NaN.
            energy = jnp.where(r2 > 0, energy, jnp.nan)
            outside = r2 > cutoff2
            return jnp.where(outside, 0.0, energy), jnp.where(outside, 0.0, slope) / r

        own_energies = jnp.where(batch.numbers > 0, energies, 0.0)
        known, elements = (functions.here, slopes), functions.elements
        return fold.properties(pair, known, elements, stress=stress, own_energies=own_energies)
