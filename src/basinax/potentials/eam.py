"""The embedded-atom method with tables, interpolated like ASE's `EAM`.

Reference: M. S. Daw and M. I. Baskes, Phys. Rev. B 29, 6443 (1984),
doi:10.1103/PhysRevB.29.6443; with densities per pair of species, M. W. Finnis and J. E. Sinclair,
Philos. Mag. A 50, 45 (1984), doi:10.1080/01418618408244210.
"""

import os
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase.data import atomic_numbers
from jaxtyping import Array, Float

from basinax.neighbors.lists import AbstractRowLists
from basinax.numerics.forks import check_process
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import POSITIVE, one_number
from basinax.potentials.folds.embedded import AbstractEmbeddedPotential, Functions
from basinax.potentials.folds.fold import Elements
from basinax.potentials.tables.eam_files import Format, read_tables
from basinax.potentials.tables.splines import Splines, coefficients
from basinax.structures.batch import Batch


class EAM(AbstractEmbeddedPotential):
    """E = Σᵢ F(ρᵢ) + ½ Σᵢⱼ φ(rᵢⱼ) with ρᵢ = Σⱼ f(rᵢⱼ), from tables of F, f and rφ.

    Tables are joined by the cubic splines of ASE's `EAM`: through every point of F, f and φ, but
    for φ at r = 0, and beyond their ends the last cubic goes on. (LAMMPS joins them by other
    cubics, through rφ, and goes on in a straight line where a density lies beyond the table, so
    that its energies differ in the last digits that a fine table determines.) A pair farther than
    the cutoff adds nothing, whatever the tables have there. `EAM.read` makes one of a file.
    """

    embedding: Float[Array, "species densities 4"]
    """Polynomials of F in eV, by steps of `drho` from density 0."""
    density: Float[Array, "species species distances 4"]
    """Polynomials of the density of a neighbour of the second species at an atom of the first, by
    steps of `dr` from 0 Å."""
    pair: Float[Array, "species species distances 4"]
    """Polynomials of φ in eV, by steps of `dr`."""
    drho: Float[Array, ""]
    dr: Float[Array, ""]
    """In Å."""
    radius: Float[Array, ""]
    species: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        elements: Sequence[str],
        embedding: Float[np.ndarray, "elements densities"],
        density: Float[np.ndarray, "elements elements distances"],
        pair: Float[np.ndarray, "elements elements distances"],
        *,
        drho: float,
        dr: float,
        cutoff: float,
    ):
        """Tables at equal steps from 0, over elements in any order, as setfl files hold them.

        Args:
            elements: their symbols.
            embedding: F in eV, at densities 0, drho, ...
            density: that of a neighbour of the second element at an atom of the first, at
                distances 0, dr, ...
            pair: r times φ, in eV Å, at the same distances; symmetric.
            drho: the step of the densities.
            dr: the step of the distances, in Å.
            cutoff: in Å.

        Raises:
            ValueError: a symbol is no element or stands twice, tables do not fit together, `pair`
                is not symmetric, or a number is out of range.
        """
        check_process()
        n = len(elements)
        numbers = [atomic_numbers.get(element, 0) for element in elements]
        if not numbers or min(numbers) < 1 or len(set(numbers)) < n:
            raise ValueError(f"elements must be different chemical elements, got {elements!r}")
        embedding, density, pair = (np.asarray(t, float) for t in (embedding, density, pair))
        fitting = (n, n, pair.shape[-1] if pair.ndim else 0)
        if embedding.shape[:-1] != (n,) or not (density.shape == pair.shape == fitting):
            raise ValueError(
                f"tables of {n} elements must have shapes [{n}, densities] and, twice, [{n}, {n},"
                f" distances]: got {embedding.shape}, {density.shape} and {pair.shape}"
            )
        if not np.array_equal(pair, pair.swapaxes(0, 1)):
            raise ValueError("pair must be symmetric in its elements")
        drho, dr = one_number(drho, "drho", POSITIVE), one_number(dr, "dr", POSITIVE)
        cutoff = one_number(cutoff, "cutoff", POSITIVE)
        order = np.argsort(numbers)
        among = np.ix_(order, order)
        # A table of r φ does not determine φ at 0; leave 0 there.
        phi = np.zeros_like(pair)
        phi[..., 1:] = pair[..., 1:] / (np.arange(1, pair.shape[-1]) * dr)
        self.embedding = jnp.array(coefficients(embedding[order]), float)
        self.density = jnp.array(coefficients(density[among]), float)
        self.pair = jnp.array(coefficients(phi[among], first=1), float)
        self.drho, self.dr = jnp.array(drho, float), jnp.array(dr, float)
        self.radius = jnp.array(cutoff, float)
        self.species = tuple(numbers[k] for k in order)

    @classmethod
    def read(cls, path: str | os.PathLike[str], format: Format | None = None) -> "EAM":
        """The potential of a file in a format of LAMMPS.

        Args:
            path: ends in `.eam.alloy` (setfl), `.eam.fs` (setfl with densities per pair) or `.eam`
                (funcfl, one element), unless `format` is given.
            format: "alloy", "fs" or "eam". The charges Z of the last become r φ = Z² Eh a₀, with
                ASE's Hartree and Bohr; LAMMPS takes 27.2 eV and 0.529 Å, 0.08 % less.

        Raises:
            ValueError: the format is unknown, or the file breaks it; names the file and the line.
            OSError: there is no such file.
        """
        tables = read_tables(path, format)
        return cls(
            tables.elements,
            tables.embedding,
            tables.density,
            tables.pair,
            drho=tables.drho,
            dr=tables.dr,
            cutoff=tables.cutoff,
        )

    def functions(self, batch: Batch, neighbors: AbstractRowLists) -> Functions:
        dtype, n = batch.positions.dtype, len(self.species)
        embeddings = Splines.of(self.embedding, self.drho, dtype)
        densities = Splines.of(self.density, self.dr, dtype)
        pairs = Splines.of(self.pair, self.dr, dtype)
        kinds = self.kinds(batch.numbers)

        def number(here, there):
            """Numbers of the pair of an atom and its neighbour, and of the pair seen from there."""
            if n == 1:
                return 0, 0
            there = here if there is None else there
            return here * n + there, there * n + here

        def density(here, there, r):
            return densities.value(number(here, there)[0], r)

        def embedding(density):
            return embeddings.value(kinds, density), embeddings.slope(kinds, density)

        def pair(here, there, r, slopes_here, slopes_there):
            one, other = number(here, there)
            # dE/dr = φ' + F'ᵢ f'ᵢⱼ + F'ⱼ f'ⱼᵢ
            embedded_here = rounded(slopes_here * densities.slope(one, r))
            embedded_there = rounded(slopes_there * densities.slope(other, r))
            slope = pairs.slope(one, r) + (embedded_here + embedded_there)
            return pairs.value(one, r), slope

        elements = Elements.of(batch, neighbors, self.kinds, lambda kinds: kinds)
        return Functions(kinds, elements if n > 1 else None, density, embedding, pair)
