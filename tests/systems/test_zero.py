"""Zeros are designed: systems without rows, gradients of zero, histories that are empty."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    Adam,
    BFGSLineSearch,
    ConjugateGradient,
    GradientDescent,
    LBFGSLineSearch,
    MDMin,
    Status,
    SystemIndex,
    relax,
    segment,
)
from cases import (
    ALIGNED,
    ALL_KINDS,
    BOWL,
    CONTIGUOUS,
    KINDS,
    KINDS_OF_LIMITS,
    SHUFFLED_WITH_GAPS,
    in_turns,
    make_batch,
    make_systems,
    same_bits,
    steps,
    take,
    take_state,
    update,
)
from cover import exhaustive, one_in

SIZES = (13, 1, 40, 13)


def fresh(case, dtype, sizes=SIZES, layout=CONTIGUOUS):
    batch = make_batch(BOWL, make_systems(BOWL, *sizes), layout, dtype)
    transform = case.make(batch.numbers)
    return batch, transform, transform.init(batch.params, batch.prefix)


def is_finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


# In single precision they share the programs of tests of resets.
IN_ONE_DTYPE = [
    *in_turns(ALL_KINDS, [np.float32]),
    *(exhaustive(*row.values, id=row.id) for row in in_turns(ALL_KINDS, [np.float64])),
]


@pytest.mark.parametrize(("case", "dtype"), IN_ONE_DTYPE)
def test_a_gradient_of_zero_gives_a_step_of_zero_and_a_finite_state(case, dtype):
    batch, transform, state = fresh(case, dtype)
    zero = jnp.zeros_like(batch.params)
    for _ in range(3):
        step, state = update(transform, zero, state, batch.params)
    assert not np.asarray(step).any()
    assert is_finite(state)


@pytest.mark.parametrize(("case", "dtype"), IN_ONE_DTYPE)
def test_a_gradient_that_vanishes_leaves_everything_finite(case, dtype):
    batch, transform, state = fresh(case, dtype)
    params, state = steps(transform, batch, batch.params, state, 8)
    for _ in range(3):
        step, state = update(transform, jnp.zeros_like(params), state, params)
    assert is_finite((step, state))


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        *in_turns(ALL_KINDS, [CONTIGUOUS]),
        *(
            exhaustive(*row.values, id=row.id)
            for row in in_turns(ALL_KINDS, [ALIGNED, SHUFFLED_WITH_GAPS])
        ),
    ],
)
def test_a_system_without_rows_changes_nothing(case, layout):
    """Neither its own state turns into NaN nor any bit of a system beside it.

    The others differ, so that the test shows of every kind that none of them counts. Rows add up to
    those of the batch that has none, aligned too, so that both have one program.
    """
    batch, transform, state = fresh(case, np.float32, (13, 0, 27, 27), layout)
    params, state = steps(transform, batch, batch.params, state, 8)
    full, full_transform, full_state = fresh(case, np.float32)
    full_params, full_state = steps(full_transform, full, full.params, full_state, 8)
    assert is_finite(take_state(state, 1))
    assert same_bits(
        (take(batch.prefix, params, 0), take_state(state, 0)),
        (take(full.prefix, full_params, 0), take_state(full_state, 0)),
    )


@pytest.mark.parametrize(
    ("case", "sizes"), one_in(3, in_turns(KINDS + KINDS_OF_LIMITS, [[], [0, 0]]))
)
def test_batches_without_rows_can_be_stepped(case, sizes):
    index, params = SystemIndex.from_sizes(sizes), jnp.zeros((0, 3))
    transform = case.make(np.arange(len(sizes)))
    state = transform.init(params, index)
    step, state = update(transform, params, state, params)
    assert step.shape == (0, 3)
    assert is_finite(state)


def test_a_relaxation_of_no_systems_is_empty():
    index = SystemIndex.from_sizes([])
    result = relax(
        lambda x: (jnp.zeros(0), x), jnp.zeros((0, 3)), FIRE(), index_prefix=index, throw=True
    )
    assert result.status.shape == result.steps.shape == result.fmax.shape == (0,)


def test_a_system_without_rows_has_converged_at_once():
    batch = make_batch(BOWL, make_systems(BOWL, 13, 0), CONTIGUOUS, np.float64)
    result = relax(batch.evaluate, batch.params, FIRE(), index_prefix=batch.prefix)
    assert (result.status[1], result.steps[1], result.fmax[1]) == (Status.CONVERGED.code, 0, 0)


NOTHING = {
    "no leaf": ({}, SystemIndex.from_sizes([2, 1])),
    "no leaf and no index": ({}, None),
    "no components": (
        {"x": jnp.zeros((3, 0)), "y": jnp.zeros((3, 0))},
        SystemIndex.from_sizes([2, 1]),
    ),
    "no rows": (jnp.zeros((0, 3)), SystemIndex.from_sizes([])),
}

OPTIMIZERS = {
    "FIRE": FIRE(),
    "FIRE2": FIRE2(),
    "MDMin": MDMin(),
    "Adam": Adam(),
    "GradientDescent": GradientDescent(barzilai_borwein=True),
    "LBFGS": LBFGS(),
    "BFGS": BFGS(),
    "BFGSLineSearch": BFGSLineSearch(),
    "LBFGSLineSearch": LBFGSLineSearch(),
    "ConjugateGradient": ConjugateGradient(),
}


EVERY_DAY = {
    ("FIRE", "no rows"),
    ("LBFGS", "no components"),
    ("BFGS", "no leaf"),
    ("ConjugateGradient", "no leaf and no index"),
    ("LBFGS", "no rows"),
}
"""One for each kind of state, and each kind of nothing."""


@pytest.mark.parametrize(
    ("optimizer", "nothing"),
    [
        pair if pair in EVERY_DAY else exhaustive(*pair)
        for pair in itertools.product(OPTIMIZERS, NOTHING)
    ],
)
def test_trees_of_nothing_are_relaxed(optimizer, nothing):
    params, index = NOTHING[nothing]

    def value_and_gradient(x):
        return segment.dot(x, x, index), jax.tree.map(lambda leaf: 2 * leaf, x)

    result = relax(
        value_and_gradient, params, OPTIMIZERS[optimizer], index_prefix=index, max_steps=3
    )
    assert jax.tree.map(jnp.shape, result.params) == jax.tree.map(jnp.shape, params)
    assert result.converged.all()
