"""The protocol of potentials: maps from a batch and its neighbours to energies and forces."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from jax.core import Tracer
from jaxtyping import Array, Float, Int32

from basinax.neighbors.edges import EdgeList
from basinax.neighbors.lists import Lists
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import first_of
from basinax.potentials.calculator import PotentialCalculator
from basinax.potentials.tables.species import numbers_of
from basinax.structures.batch import Batch
from basinax.structures.matrices import VOIGT, VOIGT_OF_ENTRIES, determinant


class Properties(eqx.Module):
    """The properties of a batch; each system's numbers have the bits of a run alone."""

    energies: Float[Array, "systems"]
    """Energies in eV; 0 for a system without rows."""

    forces: Float[Array, "rows 3"]
    """Forces in eV/Å; 0 in padding rows."""

    atom_energies: Float[Array, "rows"]
    """Energies in eV; half of a pair's energy belongs to each of its atoms."""

    stress: Float[Array, "systems 3 3"] | None = None
    """The stress in eV/Å³, positive if the system wants to shrink (ASE's sign); or None.

    NaN for a system whose cell has no volume.
    """

    @classmethod
    def of_vectors(
        cls,
        energies: Callable[[Float[Array, "edges 3"]], Float[Array, "rows"]],
        batch: Batch,
        edges: EdgeList,
        *,
        stress: bool,
    ) -> "Properties":
        """The properties from energies of atoms as a function of edge vectors.

        Forces and stress are derivatives of these energies, summed in the order of edges. They have
        the bits of a run alone if the function's values and derivatives have.

        Args:
            energies: a function from `edges.vectors` to the energies of atoms in eV; values of
                padding rows are ignored.
        """
        vectors = edges.vectors(batch.positions, batch.cells)
        is_atom = batch.index.has_system()
        atom_energies, pull_back = jax.vjp(energies, vectors)
        (slopes,) = pull_back(is_atom.astype(atom_energies.dtype))
        slopes = jnp.where(edges.mask[:, None], slopes, 0.0)
        atom_energies = jnp.where(is_atom, atom_energies, 0.0)
        atom_energies = nan_if_not_finite(batch.positions) + atom_energies
        forces = edges.sum(slopes) - edges.sum(slopes[edges.reverse])
        virials = None
        if stress:
            # The mean of both orders; exact for energies that rotations do not change.
            d, g = vectors.T, slopes.T
            terms = [(rounded(g[a] * d[b]) + rounded(g[b] * d[a])) * 0.5 for a, b in VOIGT]
            sums = edges.sum(jnp.stack(terms, 1)).T
            virials = stress_of([batch.index.sum(s) for s in sums], batch.cells)
        return cls(batch.index.sum(atom_energies), forces, atom_energies, virials)


class AbstractPotential(eqx.Module):
    """A model of the energy. Its numbers are leaves: another value needs no compilation."""

    lists: ClassVar[type[Lists]] = EdgeList
    """The form of neighbour lists that the potential needs: `EdgeList`; `Neighbors`, with `reverse`
    in relaxations; or `ChunkedLists`, the form of this package's own folds."""

    has_expensive_pairs: ClassVar[bool] = False
    """Whether pairs are so expensive that relaxations select near ones every few turns. Only
    `ChunkedLists` support the selection."""

    values_of_pair: ClassVar[int] = 64
    """The approximate count of numbers in memory for each pair in reach during an evaluation, lists
    included, which limits batches to the memory; some hundreds for a network."""

    uses: ClassVar[frozenset[str]] = frozenset()
    """What of a structure energies depend on, besides elements, positions and cell: names of
    `USABLE`. A warning names structures that carry more."""

    species: eqx.AbstractVar[Any]
    """A tuple of the elements with parameters, as symbols or atomic numbers, in the order of the
    kinds; empty if all atoms are alike."""

    def __repr__(self) -> str:
        """The class with its elements and cutoff."""
        elements = self._elements() or "any element"
        try:
            reach = f"cutoff {self.cutoff:.4g} Å" if np.isfinite(self.cutoff) else "all pairs"
        except jax.errors.ConcretizationTypeError:
            reach = "traced"
        return f"{type(self).__name__}({elements}; {reach})"

    @property
    @abc.abstractmethod
    def cutoff(self) -> float:
        """The distance in Å beyond which no atom acts on another.

        inf without a limit: neighbour lists then hold all pairs, of open structures only.
        """

    @abc.abstractmethod
    def __call__(self, batch: Batch, neighbors: Any, *, stress: bool = False) -> Properties:
        """Energies and forces of a batch, and stresses with `stress`, which is static.

        `neighbors` has the form `lists` and holds every pair within `cutoff`. It also holds pairs
        beyond, which must change no bit.
        """

    def calculator(self, dtype: Any = None, **how: Any) -> PotentialCalculator:
        """This potential as an ASE calculator, for NEB, phonons, molecular dynamics and the like.

        The calculator has energy, free energy, energies of atoms, forces and, for cells with a
        volume, stress. A program is compiled for each size of structures, padded to a few sizes.

        Args:
            dtype: float32 or float64; JAX's default float if None.
            how: further arguments of ASE's `Calculator`, such as `label`.
        """
        return PotentialCalculator(self, dtype, **how)

    def check(self, atoms: Sequence[Atoms]) -> None:
        """Check, before anything runs, that all species have parameters.

        Raises:
            ValueError: an element has none; the message has its systems and known elements.
        """
        if not self.species:
            return
        numbers = np.concatenate([a.numbers for a in atoms])
        unknown = ~np.isin(numbers, numbers_of(self.species))
        if not unknown.any():
            return
        ids = np.repeat(np.arange(len(atoms)), [len(a) for a in atoms])
        element = int(numbers[unknown][0])
        systems = np.unique(ids[unknown & (numbers == element)]).tolist()
        one = len(systems) == 1
        where = f"system {systems[0]}" if one else f"{len(systems)} systems ({first_of(systems)})"
        raise ValueError(
            f"{type(self).__name__} has no parameters for {chemical_symbols[element]}, which is in"
            f" {where}; it has them for {self._elements()}. Give parameters for"
            f" {chemical_symbols[element]}, or leave out what has it"
        )

    def kinds(self, numbers: Int32[Array, "rows"]) -> Int32[Array, "rows"]:
        """The index of each row's species in the potential; 0 for an unknown species."""
        table = np.zeros(len(chemical_symbols), np.int32)
        known = numbers_of(self.species)
        table[list(known)] = np.arange(len(known))
        return jnp.asarray(table)[numbers]

    def _elements(self) -> str:
        return ", ".join(chemical_symbols[z] for z in numbers_of(self.species))


def reach_of(potential: Any) -> Float[Array, "..."]:
    """The cutoffs of a potential with `reach`, of all pairs of species or one.

    Raises:
        ValueError: they have another shape, or a pair has two.
    """
    reach, n = jnp.asarray(potential.reach()), max(len(potential.species), 1)
    name = f"{type(potential).__name__}.reach"
    if reach.size != 1 and reach.shape != (n, n):
        raise ValueError(
            f"{name} must return one cutoff, or one for each pair of {n} species, got shape"
            f" {reach.shape}"
        )
    if isinstance(reach, Tracer):
        return reach
    if not np.array_equal(reach, np.asarray(reach).T, equal_nan=True):
        raise ValueError(f"{name} must be symmetric, as a pair has one cutoff, got {reach}")
    return reach


def nan_if_not_finite(positions: Float[Array, "rows 3"]) -> Float[Array, "rows"]:
    """0 for each atom, NaN for an atom whose position is not finite, whatever its neighbours."""
    finite = jnp.isfinite(positions).all(1)
    return jnp.where(finite, 0.0, jnp.nan).astype(positions.dtype)


def stress_of(
    virials: list[Float[Array, "systems"]], cells: Float[Array, "systems 3 3"]
) -> Float[Array, "systems 3 3"]:
    """The stress in eV/Å³ from the derivatives of the energy by strain xx, yy, zz, yz, xz, xy."""
    virial = jnp.stack([virials[k] for k in VOIGT_OF_ENTRIES], 1).reshape(-1, 3, 3)
    v = jnp.abs(determinant(cells))
    over = rounded(1 / jnp.where(v > 0, v, 1.0))[:, None, None]
    return jnp.where(v[:, None, None] > 0, rounded(virial * over), jnp.nan)
