"""Energies, forces and stresses of a system have the same bits in every batch and alone."""

import functools

import jax
import numpy as np
import pytest
from structures import (
    POTENTIALS,
    SKIN,
    STRUCTURES,
    evaluate,
    jitted,
    mixed,
    moved,
    results_of,
)

from basinax.atoms import Batch, NeighborTable

# What else there is differs from these in its list alone, which other tests compare.
LEFT_OUT = ("cell of 256", "left-handed", "open in two directions", "unwrapped", "wire")
NAMES = [name for name in STRUCTURES if name not in LEFT_OUT]
SYSTEMS = [mixed(STRUCTURES[name], k) for k, name in enumerate(NAMES)]
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
# "smooth" and "named" are covered by "named and smooth" and "shifted".
every_potential = pytest.mark.parametrize("name", ["shifted", "named and smooth", "Morse"])


def assert_same_bits(got, expected, name):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b), err_msg=name)


@functools.cache
def together(name, dtype):
    """All systems in one batch; the first test shows that each is as it is alone."""
    return evaluate(SYSTEMS, POTENTIALS[name], dtype)


def assert_as_together(batch, got, name, dtype, order=None):
    order = range(len(SYSTEMS)) if order is None else order
    for at, k in enumerate(order):
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, at), expected, NAMES[k])


@both_dtypes
@every_potential
def test_batched_equals_alone(name, dtype):
    batch, got = together(name, dtype)
    for k, atoms in enumerate(SYSTEMS):
        alone = evaluate([atoms], POTENTIALS[name], dtype)
        assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), NAMES[k])


@both_dtypes
@every_potential
def test_order_copies_and_padding_change_nothing(name, dtype):
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(SYSTEMS)), 3))
    systems = [SYSTEMS[k] for k in order]
    batch, got = evaluate(systems, POTENTIALS[name], dtype, n_rows=4096, n_systems=100)
    assert_as_together(batch, got, name, dtype, order)


@both_dtypes
@every_potential
def test_skin_and_the_positions_of_the_last_rebuild_change_nothing(name, dtype):
    random = np.random.default_rng(2)
    built_at = []
    for atoms in SYSTEMS:
        near = atoms.copy()
        near.set_positions(near.positions + random.uniform(-0.5, 0.5, near.positions.shape))
        built_at.append(near)
    # Displacements reach 0.87 Å at most, half of this skin.
    batch, got = evaluate(SYSTEMS, POTENTIALS[name], dtype, skin=1.8, built_at=built_at)
    assert_as_together(batch, got, name, dtype)


@both_dtypes
@every_potential
def test_a_jitted_evaluation_equals_the_one_op_by_op(name, dtype):
    systems = [SYSTEMS[NAMES.index(n)] for n in ("cell of four", "slab", "needle", "open pair")]
    batch, got = evaluate(systems, POTENTIALS[name], dtype)
    neighbors = NeighborTable(batch, POTENTIALS[name].cutoff, SKIN).to_device()
    with jax.disable_jit():
        slowly = POTENTIALS[name](batch, neighbors, stress=True)
    for k in range(len(systems)):
        assert_same_bits(results_of(batch, got, k), results_of(batch, slowly, k), str(k))


@both_dtypes
@every_potential
def test_constant_parameters_give_the_bits_of_traced_ones(name, dtype):
    batch, got = together(name, dtype)
    neighbors = NeighborTable(batch, POTENTIALS[name].cutoff, SKIN).to_device()
    constant = jax.jit(lambda b, n: POTENTIALS[name](b, n, stress=True))(batch, neighbors)
    assert_same_bits(jax.tree.leaves(constant), jax.tree.leaves(got), name)


@both_dtypes
@every_potential
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_positions_that_are_not_finite_touch_no_other_system(name, dtype, value):
    batch = Batch.from_atoms(SYSTEMS, dtype)
    neighbors = NeighborTable(batch, POTENTIALS[name].cutoff, SKIN).to_device()
    ids = np.asarray(batch.index.ids)
    broken = [k for k in range(len(SYSTEMS)) if k % 3 == 0]
    positions = np.array(batch.positions)
    positions[np.isin(ids, broken)] = value
    got = jitted(POTENTIALS[name], moved(batch, positions), neighbors)
    unharmed = [k for k in range(len(SYSTEMS)) if k not in broken]
    for k in unharmed:
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, k), expected, NAMES[k])


@pytest.mark.parametrize("atom", [0, 8, 12])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_atom_without_a_finite_position_shows_in_its_systems_energy(atom, value):
    """Also a lonely one, whose slots are all padding."""
    systems = [STRUCTURES["one open atom"], STRUCTURES["cluster of 13"]]
    batch = Batch.from_atoms(systems)
    neighbors = NeighborTable(batch, POTENTIALS["shifted"].cutoff, SKIN).to_device()
    positions = np.array(batch.positions)
    positions[atom, 1] = value
    got = jitted(POTENTIALS["shifted"], moved(batch, positions), neighbors)
    ends = int(batch.index.ids[atom])
    assert np.isnan(got.energies[ends])
    assert np.isfinite(got.energies[1 - ends])
