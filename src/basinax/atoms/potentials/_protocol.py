"""The protocol of potentials: modules from a batch and its neighbours to energies and forces."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from jaxtyping import Array, Float, Int32

from basinax._bits.rounding import rounded
from basinax._settings import first_of
from basinax.atoms._batch import Batch
from basinax.atoms._matrices import VOIGT, VOIGT_OF_ENTRIES, determinant
from basinax.atoms._neighbors.edges import EdgeList
from basinax.atoms._neighbors.lists import Lists
from basinax.atoms.potentials._calculator import PotentialCalculator


class Properties(eqx.Module):
    """The properties of a batch; each system's numbers have the bits it has alone."""

    energies: Float[Array, "systems"]
    """In eV; 0 for a system without rows."""

    forces: Float[Array, "rows 3"]
    """In eV/Å; 0 in padding rows."""

    atom_energies: Float[Array, "rows"]
    """In eV; a pair's energy belongs to its two atoms in halves."""

    stress: Float[Array, "systems 3 3"] | None = None
    """In eV/Å³, with ASE's sign (positive when the system wants to shrink); None unless requested.

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
        """The properties that follow from energies of atoms as a function of edge vectors.

        Forces and stress are its derivatives, summed in the order of the edges: they have the bits
        that each system has alone, if the function's values and derivatives by vectors have.

        Args:
            energies: from `edges.vectors` to the energies of atoms in eV; values of rows without
                atoms are left out.
        """
        vectors = edges.vectors(batch.positions, batch.cells)
        is_atom = batch.index.has_system()
        atom_energies, pull_back = jax.vjp(energies, vectors)
        (slopes,) = pull_back(is_atom.astype(atom_energies.dtype))
        slopes = jnp.where(edges.mask[:, None], slopes, 0.0)
        atom_energies = jnp.where(is_atom, atom_energies, 0.0)
        atom_energies = poison(batch.positions) + atom_energies
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
    """A model of the energy. Its numbers are leaves: another value compiles nothing."""

    lists: ClassVar[type[Lists]] = EdgeList
    """The form of neighbour lists that it takes: `EdgeList`; `Neighbors`, which in relaxations have
    `reverse`; or the form of this package's own folds, `ChunkedLists`."""

    has_dear_pairs: ClassVar[bool] = False
    """Whether a pair takes so long that relaxations choose the near ones every few turns: those of
    `ChunkedLists`. Other forms keep them all."""

    values_of_pair: ClassVar[int] = 64
    """About how many numbers are in memory for each pair in reach while a batch is evaluated, its
    lists included: batches are no larger than memory allows. Of a network, some hundreds."""

    species: eqx.AbstractVar[tuple[int, ...]]
    """The atomic numbers it has parameters for, ascending; none where all atoms are alike to it."""

    def __repr__(self) -> str:
        """The class with its elements and cutoff."""
        elements = ", ".join(chemical_symbols[z] for z in self.species) or "any element"
        try:
            reach = f"cutoff {self.cutoff:.4g} Å" if np.isfinite(self.cutoff) else "all pairs"
        except jax.errors.ConcretizationTypeError:
            reach = "traced"
        return f"{type(self).__name__}({elements}; {reach})"

    @property
    @abc.abstractmethod
    def cutoff(self) -> float:
        """The distance in Å beyond which no atom acts on another.

        inf if there is none: then neighbour lists have all pairs, of open structures alone.
        """

    @abc.abstractmethod
    def __call__(self, batch: Batch, neighbors: Any, *, stress: bool = False) -> Properties:
        """Energies and forces of a batch, and stresses with `stress`, which is static.

        `neighbors` has the form `lists`, and every pair within `cutoff`; pairs beyond it are there,
        too, and must change no bit.
        """

    def calculator(self, dtype: Any = None, **how: Any) -> PotentialCalculator:
        """This potential as an ASE calculator, for NEB, phonons, molecular dynamics and the like.

        It has energy, free energy, energies of atoms, forces and, for cells with a volume, stress.
        A program is compiled for each size of structures, padded to a few sizes.

        Args:
            dtype: float32 or float64; JAX's default float if None.
            how: further arguments of ASE's `Calculator`, such as `label`.
        """
        return PotentialCalculator(self, dtype, **how)

    def check(self, atoms: Sequence[Atoms]) -> None:
        """Makes sure, before anything runs, that there are parameters for all species.

        Raises:
            ValueError: there are none for an element; names it, its systems and the known ones.
        """
        if not self.species:
            return
        numbers = np.concatenate([a.numbers for a in atoms])
        unknown = ~np.isin(numbers, self.species)
        if not unknown.any():
            return
        ids = np.repeat(np.arange(len(atoms)), [len(a) for a in atoms])
        element = int(numbers[unknown][0])
        systems = np.unique(ids[unknown & (numbers == element)]).tolist()
        known = ", ".join(chemical_symbols[z] for z in self.species)
        raise ValueError(
            f"{type(self).__name__} has no parameters for {chemical_symbols[element]}, which is in"
            f" {len(systems)} systems ({first_of(systems)}); it has them for {known}. Give"
            f" parameters for {chemical_symbols[element]}, or leave these systems out"
        )

    def kinds(self, numbers: Int32[Array, "rows"]) -> Int32[Array, "rows"]:
        """Which of the potential's species each row is; 0 for one that it does not know."""
        table = np.zeros(len(chemical_symbols), np.int32)
        table[list(self.species)] = np.arange(len(self.species))
        return jnp.asarray(table)[numbers]


def poison(positions: Float[Array, "rows 3"]) -> Float[Array, "rows"]:
    """0 for each atom, NaN for one whose position is not finite, whatever neighbours it has."""
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
