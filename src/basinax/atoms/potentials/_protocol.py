"""What every potential is: a module from a batch and its neighbours to energies and forces."""

import abc
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from jaxtyping import Array, Float, Int32

from basinax._bits.rounding import rounded
from basinax.atoms._batch import Batch
from basinax.atoms._matrices import VOIGT_OF_ENTRIES, determinant
from basinax.atoms._neighbors.table import Neighbors


class Properties(eqx.Module):
    """What a potential says about a batch; each system's numbers have the bits it has alone."""

    energies: Float[Array, "systems"]
    """In eV; 0 for a system without rows."""

    forces: Float[Array, "rows 3"]
    """In eV/Å; 0 in padding rows."""

    atom_energies: Float[Array, "rows"]
    """In eV; a pair's energy belongs to its two atoms in halves."""

    stress: Float[Array, "systems 3 3"] | None = None
    """In eV/Å³, with ASE's sign (positive when the system wants to shrink); None if not asked for.

    NaN for a system whose cell has no volume.
    """


class AbstractPotential(eqx.Module):
    """A model of the energy. Its numbers are leaves: another value compiles nothing."""

    needs_reverse: ClassVar[bool] = False
    """Whether neighbour lists must say where each pair stands seen from its other end."""

    has_dear_pairs: ClassVar[bool] = False
    """Whether a pair takes so long that relaxations choose the near ones every few turns."""

    species: eqx.AbstractVar[tuple[int, ...]]
    """The atomic numbers it has parameters for, ascending; none where all atoms are alike to it."""

    @property
    @abc.abstractmethod
    def cutoff(self) -> float:
        """The distance in Å beyond which no atom acts on another: what neighbour lists need."""

    @abc.abstractmethod
    def __call__(self, batch: Batch, neighbors: Neighbors, *, stress: bool = False) -> Properties:
        """Energies and forces of a batch, and stresses where asked for (`stress` is static).

        `neighbors` must hold every pair within `cutoff`; what else it holds changes no bit.
        """

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
        shown = ", ".join(map(str, systems[:8])) + (", ..." if len(systems) > 8 else "")
        known = ", ".join(chemical_symbols[z] for z in self.species)
        raise ValueError(
            f"{type(self).__name__} has no parameters for {chemical_symbols[element]}, which is in"
            f" {len(systems)} systems ({shown}); it has them for {known}. Give parameters for"
            f" {chemical_symbols[element]}, or leave these systems out"
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
