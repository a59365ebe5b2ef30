"""Potentials that are sums over pairs, whose parameters are tables over pairs of species."""

import abc
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from jaxtyping import Array, Float, PyTree

from basinax.neighbors.lists import AbstractRowLists, ChunkedLists, filled_up, gather
from basinax.numerics import xla
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import warn_once
from basinax.numerics.static import Static, partition
from basinax.potentials.folds.fold import Fold, Rows
from basinax.potentials.protocol import AbstractPotential, Properties, reach_of
from basinax.potentials.tables.species import numbers_of
from basinax.structures.batch import Batch

FARTHEST = 1e10
"""Pairs farther apart, in Å, do not count where a potential has no cutoff: no two atoms are, but
the image that padding points at is."""

ABRUPT = 1e-3
"""The energy of a pair at its cutoff in eV above which there is a warning: what a force of 0.05
eV/Å, the usual `fmax`, makes of 0.02 Å."""


class AbruptCutoff(UserWarning):
    """The energy of a pair is not 0 at its cutoff."""


class Ends(NamedTuple):
    """Where the energies of pairs end."""

    cutoffs: Float[np.ndarray, "species species"]
    energies: Float[np.ndarray, "species species"]
    """Of each pair at its cutoff, in eV."""


class AbstractPairSum(AbstractPotential):
    """A potential with a sum over pairs, cut off per pair of species.

    Its parameters are tables over its species, symmetric; of one entry where all atoms are alike.
    """

    lists: ClassVar[type] = ChunkedLists
    values_of_pair: ClassVar[int] = 2
    smoother: ClassVar[str] = "subtract that value in `pair`, or end its energy smoothly"
    """What a warning of an abrupt cutoff advises, besides a larger one."""

    @property
    def cutoff(self) -> float:
        return float(np.max(np.asarray(reach_of(self))))

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

    def ends(self) -> "Ends | None":
        """Where energies of pairs end; None if they are 0 there by construction."""
        fixed, arrays = partition(self)
        return Ends(*map(np.asarray, _ends(fixed, arrays)))

    def check(self, atoms: Sequence[Atoms]) -> None:
        super().check(atoms)
        _warn_of_ends(self, atoms)

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
            found: Any = self.pair(r2, known)
            if not isinstance(found, tuple) or [jnp.shape(x) for x in found] != 2 * [r2.shape]:
                name = type(self).__name__
                raise ValueError(f"{name}.pair must return E and r dE/dr, both of the shape of r2")
            energy, w = found
            outside = r2 > cutoff2
            return jnp.where(outside, 0.0, energy), jnp.where(outside, 0.0, w) / r2

        fold = Fold.of(batch, neighbors, is_one=own is None)
        return fold.properties(pair, own, stress=stress, own_energies=own_energies)

    def _lookup(self, batch: Batch, neighbors: AbstractRowLists):
        """The rows' own values, and a function from these and the images of a slot to the table's
        entries and the squared cutoffs."""
        dtype = batch.positions.dtype
        reach, n_species = reach_of(self), max(len(self.species), 1)
        cutoffs = jnp.minimum(reach.astype(dtype), FARTHEST)
        tables = (self.table(dtype), rounded(cutoffs * cutoffs))
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


@functools.partial(xla.jitted, is_kept=True, options=xla.ONCE, static_argnums=0)
def _ends(fixed: Static, arrays) -> tuple[Array, Array]:
    potential: AbstractPairSum = eqx.combine(arrays, fixed.tree)
    reach, n = reach_of(potential), max(len(potential.species), 1)
    cutoffs = jnp.broadcast_to(reach, (n, n)).ravel()
    table = potential.table(cutoffs.dtype)
    known = jax.tree.map(lambda t: t.ravel() if t.ndim and n > 1 else t.reshape(()), table)
    energies, _ = potential.pair(rounded(cutoffs * cutoffs), known)
    energies = jnp.where(jnp.isfinite(cutoffs), energies, 0.0)
    return cutoffs.reshape(n, n), energies.reshape(n, n)


def _warn_of_ends(potential: AbstractPairSum, atoms: Sequence[Atoms]) -> None:
    """Warn once a process if the energy of a pair in these structures jumps at the cutoff."""
    if not atoms or (ends := potential.ends()) is None:
        return
    known = numbers_of(potential.species)
    present = np.isin(known, np.concatenate([a.numbers for a in atoms]))
    of_present = np.outer(present, present) if len(known) > 0 else True
    sizes = np.where(of_present, np.abs(np.nan_to_num(ends.energies)), 0.0)
    i, j = np.unravel_index(np.argmax(sizes), sizes.shape)
    if sizes[i, j] <= ABRUPT:
        return
    pair = f" {chemical_symbols[known[i]]}-{chemical_symbols[known[j]]}" if len(known) else ""
    warn_once(
        f"{type(potential).__name__} ends abruptly: the energy of a pair{pair} is"
        f" {ends.energies[i, j]:.2g} eV at its cutoff of {ends.cutoffs[i, j]:.4g} Å, and 0 beyond."
        " Relaxations may not converge where pairs cross it: choose a larger cutoff, or"
        f" {potential.smoother}",
        AbruptCutoff,
    )
