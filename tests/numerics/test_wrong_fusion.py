"""No program has the fusion with which XLA 0.10.2 computes wrong numbers on CPUs.

It takes a matrix times a vector with the sum of its squares in 16,385 to 65,536 rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ase import Atoms

import basinax
from basinax import FIRE, SystemIndex, chain
from basinax.atoms import (
    AbstractPotential,
    JaxModel,
    Properties,
    evaluate,
    relax,
)
from basinax.numerics import xla
from xla import ALWAYS

N = 20_000
MATRIX = np.array([[1.0, 0.2, 0.1], [0.0, 0.9, 0.3], [0.1, 0.0, 1.1]])


def squares(rows):
    """[n]: the squared norms of the matrix times each row."""
    matrix = jnp.asarray(MATRIX, rows.dtype)
    return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)


def spread(x):
    return jnp.broadcast_to(x[:, None], (N, 3))


def exact(rows):
    return ((rows[:, None] * MATRIX).sum(2) ** 2).sum(1)


ROWS = np.random.default_rng(0).normal(size=(N, 3))
CHAIN = Atoms(numbers=np.ones(5000), positions=np.arange(5000)[:, None] * [1.0, 0.5, 0.25])
"""Each atom has four neighbours within 2.5 Å."""

GRID = 3.0 * np.indices((28, 28, 28)).reshape(3, -1)[:, :N].T
CLOUD = Atoms(numbers=np.ones(N), positions=ROWS / 3 + GRID)


class Bowl(AbstractPotential):
    """Without neighbours, and without forces."""

    species: tuple[int, ...] = ()

    @property
    def cutoff(self) -> float:
        return 1.0

    def __call__(self, batch, neighbors, *, stress=False):
        energies = jnp.where(batch.index.has_system(), squares(batch.positions), 0.0)
        zeros = jnp.zeros_like(batch.positions)
        return Properties(batch.index.sum(energies), zeros, energies, None)


def of_chain(vectors, numbers, senders, receivers):
    weights = jnp.where((vectors**2).sum(1) < 6.25, squares(vectors), 0.0)
    energies = jax.ops.segment_sum(weights, receivers, len(numbers))
    return energies, jnp.zeros((len(numbers), 3), vectors.dtype), None


def energies_of(found) -> np.ndarray:
    return found.atoms[0].calc.results["energies"]


def of_model(call):
    model = JaxModel.of_vectors(of_chain, 2.5, conservative=False)
    step = CHAIN.positions[1]
    alone = exact(np.array([step, 2 * step])).sum()
    expected = np.full(len(CHAIN), 2 * alone)
    return energies_of(call([CHAIN], model))[2:-2], expected[2:-2]


def of_potential(call):
    return energies_of(call([CLOUD], Bowl())), exact(CLOUD.positions)


def started(atoms, potential):
    return relax(atoms, potential, FIRE(), max_steps=0)


def of_core():
    index = SystemIndex.from_sizes([N])

    def model(x):
        found = squares(x)
        return index.sum(found), spread(found)

    result = basinax.relax(model, ROWS, FIRE(), index_prefix=index, max_steps=0)
    return result.gradients[:, 0], exact(ROWS)


def of_optax():
    """In global mode, where a transformation of others runs as it is."""
    odd = optax.stateless(lambda updates, params: spread(squares(updates)))

    def model(x):
        return jnp.zeros(1), jnp.asarray(ROWS)

    result = basinax.relax(model, np.zeros((N, 3)), chain(odd), max_steps=1)
    return result.params[:, 0], exact(ROWS)


PATHS = {
    "a function": lambda: (xla.jitted(squares)(ROWS), exact(ROWS)),
    "a model, evaluate": lambda: of_model(evaluate),
    "a user's potential, evaluate": lambda: of_potential(evaluate),
    "a user's potential, relax": lambda: of_potential(started),
    "basinax.relax": of_core,
    "the bridge to optax": of_optax,
}


# The products are XLA's own on purpose.
@pytest.mark.filterwarnings("ignore::basinax.OrderWarning")
@pytest.mark.parametrize("path", PATHS)
def test_a_matrix_times_many_vectors_is_right(path):
    got, expected = PATHS[path]()
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_options_of_tests_have_it_too():
    assert ALWAYS in ({}, xla.ALWAYS)
