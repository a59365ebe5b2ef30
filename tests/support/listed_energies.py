"""Energies of the form that jax-md gives them: positions, a list of neighbours, a box."""

import enum

import jax.numpy as jnp

CUTOFF = 2.6


class Format(enum.Enum):
    """Of lists, by jax-md's names."""

    Dense = 0
    Sparse = 1
    OrderedSparse = 2


def bond_energies(length, depth=0.4):
    """Of pairs, in eV; 0 from the cutoff on."""
    bond = jnp.exp(-1.5 * (length - 2.45))
    return depth * (bond * bond - 2 * bond) * jnp.clip(1 - (length / CUTOFF) ** 2, 0.0, 1.0) ** 3


def by_vectors(vectors, numbers, senders, receivers):
    """Energies of atoms, for `JaxModel.of_vectors`."""
    del senders
    length = jnp.sqrt((vectors * vectors).sum(1))
    return jnp.zeros(len(numbers), length.dtype).at[receivers].add(0.5 * bond_energies(length))


def by_list(positions, neighbor, *, box, perturbation):
    """The energy of the nearest images; a displacement has derivative 1 by positions."""
    n, idx = len(positions), neighbor.idx
    if neighbor.format is Format.Dense:
        idx = jnp.stack([jnp.broadcast_to(jnp.arange(n)[:, None], idx.shape), idx])
        idx = idx.reshape(2, -1)
    is_pair = (idx < n).all(0)
    apart = positions[idx[1]] - positions[idx[0]]
    turns = jnp.round(jnp.linalg.solve(box, apart.T))
    apart = (perturbation @ (apart.T - box @ turns)).T
    apart = jnp.where(is_pair[:, None], apart, jnp.asarray([2 * CUTOFF, 0, 0], apart.dtype))
    energies = bond_energies(jnp.sqrt((apart * apart).sum(1)))
    return energies.sum() * (1.0 if neighbor.format is Format.OrderedSparse else 0.5)
