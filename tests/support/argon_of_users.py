"""Pairs of argon in the forms in which users write potentials, as `LennardJones` has them."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from basinax import product, rounded
from basinax.atoms import AbstractPotential, Neighbors, Properties

EPSILON, SIGMA, CUTOFF = 0.0104, 3.4, 8.5


def pair_energies(d):
    """Of the Lennard-Jones potential that is zero at the cutoff, from vectors (Å), in eV."""
    x, y, z = jnp.moveaxis(d, -1, 0)
    r2 = product(x, x) + product(y, y) + product(z, z)
    is_near = ~(r2 > CUTOFF**2)
    s2 = rounded(SIGMA**2 / jnp.where(is_near, r2, SIGMA**2))
    s6 = product(product(s2, s2), s2)
    at_cutoff = (SIGMA / CUTOFF) ** 6
    energy = 4 * EPSILON * (product(s6, s6 - 1) - at_cutoff * (at_cutoff - 1))
    return jnp.where(is_near, energy, 0.0)


class Argon(AbstractPotential):
    """Pairs of argon, written by a user. A subclass makes properties of the energies."""

    species: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def cutoff(self) -> float:
        return CUTOFF


class ByVectors(Argon):
    def __call__(self, batch, edges, *, stress=False):
        def energies(vectors):
            return edges.sum(pair_energies(vectors)) / 2

        return Properties.of_vectors(energies, batch, edges, stress=stress)


class ByHand(Argon):
    """With forces written out, of the edges that `within` leaves."""

    def __call__(self, batch, edges, *, stress=False):
        edges = edges.within(CUTOFF, batch.positions, batch.cells)
        d = edges.vectors(batch.positions, batch.cells)
        energies, slopes = jax.vmap(jax.value_and_grad(pair_energies))(d)
        energies, forces = edges.sum(energies) / 2, edges.sum(slopes)
        return Properties(batch.index.sum(energies), forces, energies)


class ByRows(Argon):
    """As the page on potentials once invited: column i of the slots has the neighbours of row i."""

    lists: ClassVar[type] = Neighbors

    def __call__(self, batch, neighbors, *, stress=False):
        def total(positions):
            images = jnp.stack(neighbors.images(positions, batch.cells), 1)
            energies = pair_energies(images[neighbors.slots] - positions[None]).sum(0) / 2
            energies = jnp.where(batch.index.has_system(), energies, 0.0)
            return jnp.sum(energies), energies

        gradient, energies = jax.grad(total, has_aux=True)(batch.positions)
        return Properties(batch.index.sum(energies), -gradient, energies)
