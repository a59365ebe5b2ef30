"""Other numbers and other compositions of one shape compile nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import apply_updates, chain, relax, reset
from cases import (
    ALL_KINDS,
    BOWL,
    CONTIGUOUS,
    MIXED,
    OPTIMIZERS,
    RELAXATIONS,
    make_batch,
    make_systems,
)
from cover import one_in

# As many rows as the systems of `SYSTEMS`, aligned too, and as many levels of blocks.
OTHER_SIZES = (27, 13, 20, 8, 1, 7, 15)
SYSTEMS = make_systems(MIXED, *[13] * 4, spoiled=True)  # those of test_isolation.py


def as_arrays(transform):
    """With arrays for numbers, so that they are arguments of a jitted function."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), transform)


def with_other_numbers(transform):
    return jax.tree.map(lambda x: jnp.asarray((1.25 * np.asarray(x)).astype(x.dtype)), transform)


def small_batch():
    return make_batch(BOWL, make_systems(BOWL, 13, 1, 40, 13), CONTIGUOUS, np.float32)


def relax_batch(batch, transform, fmax, max_steps):
    return relax(
        batch.evaluate,
        batch.params,
        transform,
        index_prefix=batch.prefix,
        fmax=fmax,
        max_steps=max_steps,
    )


@pytest.mark.parametrize(("case", "layout", "dtype"), RELAXATIONS)
def test_a_relaxation_of_another_composition_compiles_nothing(
    case, layout, dtype, count_compilations
):
    batch = make_batch(MIXED, SYSTEMS, layout, dtype)
    other = make_batch(MIXED, make_systems(MIXED, *OTHER_SIZES), layout, dtype)
    transform = as_arrays(case.make(batch.numbers))
    expected = relax_batch(batch, transform, np.full(7, 0.05), 20)
    with count_compilations() as counted:
        result = relax_batch(other, transform, np.full(7, 0.05), 20)
    assert counted.count == 0
    assert not np.array_equal(result.energies[:4], expected.energies[:4])


@pytest.mark.parametrize(("case", "layout", "dtype"), RELAXATIONS)
def test_a_relaxation_with_other_numbers_compiles_nothing(case, layout, dtype, count_compilations):
    batch = make_batch(MIXED, SYSTEMS, layout, dtype)
    transform = as_arrays(case.make(batch.numbers))
    other = with_other_numbers(transform)
    relax_batch(batch, transform, np.full(7, 0.05), 20)
    with count_compilations() as counted:
        relax_batch(batch, other, np.full(7, 0.02), 31)
    assert counted.count == 0


def test_a_chain_made_again_of_the_same_transformation_compiles_nothing(count_compilations):
    plain = optax.scale(-0.05)
    batch = small_batch()
    expected = relax_batch(batch, chain(plain), 0.05, 20)
    with count_compilations() as counted:
        result = relax_batch(batch, chain(plain), 0.05, 20)
    assert counted.count == 0
    assert np.array_equal(result.energies, expected.energies, equal_nan=True)


def test_a_python_number_for_a_limit_is_no_constant_of_the_program(count_compilations):
    batch = small_batch()
    make = OPTIMIZERS[0].make
    transform = make(batch.numbers)
    relax_batch(batch, transform, 0.05, 20)
    with count_compilations() as counted:
        relax_batch(batch, eqx.tree_at(lambda t: t.dt, transform, 0.07), 0.03, 25)
    assert counted.count == 0


@pytest.mark.parametrize("case", one_in(2, ALL_KINDS))
def test_an_update_is_traced_once_for_all_steps_and_settings(case):
    batch = small_batch()
    other = make_batch(BOWL, make_systems(BOWL, 25, 25, 9, 8), CONTIGUOUS, np.float32)
    traces = []

    @jax.jit
    def step(transform, params, state):
        traces.append(None)
        change, state = transform.update(params, state, params)
        return apply_updates(params, change), state

    transform = as_arrays(case.make(batch.numbers))
    for one in (batch, other):
        for setting in (transform, with_other_numbers(transform)):
            params, state = one.params, setting.init(one.params, one.prefix)
            for _ in range(2):
                params, state = step.trace(setting, params, state).out_info
    assert len(traces) == 1


@pytest.mark.parametrize("case", ALL_KINDS)
def test_another_mask_of_a_reset_compiles_nothing(case, count_compilations):
    batch = small_batch()
    transform = case.make(batch.numbers)
    state = transform.init(batch.params, batch.prefix)
    reset(transform, state, batch.params, np.array([True, False, False, True]))
    with count_compilations() as counted:
        reset(transform, state, batch.params, np.array([False, True, False, True]))
    assert counted.count == 0
