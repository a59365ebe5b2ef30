"""A small graph network with random weights, as a function of vectors and of positions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.neighborlist import neighbor_list

CUTOFF = 4.0
WIDTH, BASES = 12, 6


class Network(eqx.Module):
    """Two rounds of messages; energies of atoms in eV."""

    embedding: Any
    radial: list[Any]
    mixing: list[Any]
    readout: Any

    def __init__(self, seed: int = 0, dtype: Any = np.float32):
        random = np.random.default_rng(seed)

        def weights(*shape):
            return jnp.asarray(random.normal(size=shape) / np.sqrt(shape[0]), dtype)

        self.embedding = weights(100, WIDTH)
        self.radial = [weights(BASES, WIDTH) for _ in range(2)]
        self.mixing = [weights(2 * WIDTH, WIDTH) for _ in range(2)]
        self.readout = weights(WIDTH)

    def __call__(self, vectors, numbers, senders, receivers):
        length = jnp.sqrt((vectors * vectors).sum(1) + 1e-6)
        inside = jnp.clip(1 - (length / CUTOFF) ** 2, 0.0, 1.0) ** 3
        order = jnp.arange(1, BASES + 1, dtype=vectors.dtype)
        basis = jnp.sin(length[:, None] * order[None] * (np.pi / CUTOFF)) * inside[:, None]
        # Close atoms push one another away, so that relaxations end.
        push = jnp.zeros(len(numbers), vectors.dtype).at[receivers].add(inside**4 * 20.0)
        features = self.embedding[numbers].astype(vectors.dtype)
        for radial, mixing in zip(self.radial, self.mixing, strict=True):
            messages = features[senders] * (basis @ radial.astype(vectors.dtype))
            gathered = jnp.zeros_like(features).at[receivers].add(messages)
            both = jnp.concatenate([features, gathered], axis=1)
            features = features + jnp.tanh(both @ mixing.astype(vectors.dtype))
        return features @ self.readout.astype(vectors.dtype) + push


class OfPositions(eqx.Module):
    """The same as a function of positions and cell."""

    network: Network

    def __call__(self, positions, cell, numbers, senders, receivers, shifts):
        vectors = positions[senders] + shifts @ cell - positions[receivers]
        return self.network(vectors, numbers, senders, receivers)


class Direct(eqx.Module):
    """The same with forces of its own, which are not quite derivatives."""

    network: Network

    def __call__(self, vectors, numbers, senders, receivers):
        def total(vectors):
            energies = self.network(vectors, numbers, senders, receivers)
            return energies.sum(), energies

        gradient, energies = jax.grad(total, has_aux=True)(vectors)
        forces = jnp.zeros((len(numbers), 3), vectors.dtype).at[receivers].add(2.0 * gradient)
        return energies, forces, None


def structures() -> list[Atoms]:
    """Crystals and molecules of 2 to 16 atoms, off their minima."""
    made = [
        bulk("Si", cubic=True),
        molecule("H2O"),
        bulk("NaCl", "rocksalt", 5.5),
        bulk("Cu", "fcc", 3.7).repeat((2, 2, 2)),
        molecule("CH3CH2OH"),
        bulk("NaCl", "rocksalt", 5.6, cubic=True).repeat((2, 1, 1)),
    ]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


class NetworkCalculator(Calculator):
    """The network behind ASE's interface, with ASE's neighbours and none of basinax."""

    implemented_properties = ("energy", "forces", "stress")
    network = Network()

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        receivers, senders, vectors = neighbor_list("ijD", atoms, CUTOFF)
        n_spare = 1024 - len(senders)  # spare pairs, of one atom, do not reach it
        vectors = np.concatenate([vectors, np.full((n_spare, 3), 2 * CUTOFF)])
        pairs = [np.concatenate([x, np.zeros(n_spare, int)]) for x in (senders, receivers)]
        energy, forces, virial = _of_network(self.network, vectors, atoms.numbers, *pairs)
        stress = np.asarray(virial)[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
        self.results = {"energy": float(energy), "forces": np.asarray(forces)}
        if atoms.pbc.all():
            self.results["stress"] = stress / atoms.get_volume()


@jax.jit
def _of_network(network, vectors, numbers, senders, receivers):
    def total(vectors):
        return network(vectors, numbers, senders, receivers).sum()

    energy, gradient = jax.value_and_grad(total)(vectors)
    forces = jnp.zeros((len(numbers), 3), vectors.dtype)
    forces = forces.at[receivers].add(gradient).at[senders].add(-gradient)
    virial = gradient.T @ vectors
    return energy, forces, 0.5 * (virial + virial.T)
