"""The promise: each system of a batch has the bits that it has alone."""

import functools

import equinox as eqx
import numpy as np
import pytest

from basinax import relax
from cases import (
    BRANCHES,
    CELLS,
    COUPLED,
    DTYPES,
    KINDS,
    KINDS_OF_LIMITS,
    LAYOUTS,
    MIXED,
    OPTIMIZERS,
    RELAXATIONS,
    SHUFFLED_WITH_GAPS,
    TWO_LAYOUTS,
    WELLS,
    make_alone,
    make_batch,
    make_systems,
    run_alone,
    run_batch,
    same_bits,
    system_of,
    take,
    take_state,
    without_branches,
)

# One row, and three levels of blocks of which the last is not full. Each size is one more program
# to compile, and each level makes it larger, which takes nearly all the time: sums of every size
# are compared with NumPy in test_systems.py.
SIZES = (1, 77, 1)
LENGTH = 420
RARE = pytest.mark.exhaustive


def in_turns(cases, others, dtypes=DTYPES, every_day=None):
    """Each case with one of the others, half in each dtype; every day all, or those named."""
    rows = []
    for i, case in enumerate(cases):
        other, dtype = others[i % len(others)], dtypes[2 * i // len(cases)]
        marks = [pytest.mark.exhaustive] * (every_day is not None and case.name not in every_day)
        name = f"{case}-{other}-{dtype.__name__}"
        rows.append(pytest.param(case, other, dtype, id=name, marks=marks))
    return rows


# The loop over the rows of each level, selections between systems and per-system settings are those
# of every optimizer. Of each, others change no bit every day in systems/test_zero.py, and the order
# of operations is looked through in test_order_of_transforms.py; `LBFGS`, which has an axis of
# slots, runs beside others in engine/test_optimizers.py. Those alone are compiled quickly; as users
# do in test_global.py.
LONG_RUNS = ("FIRE", "GradientDescent")


@pytest.mark.parametrize(("case", "layout", "dtype"), in_turns(KINDS, LAYOUTS, every_day=LONG_RUNS))
def test_a_long_run_of_every_system_is_its_run_alone(case, layout, dtype):
    systems = make_systems(MIXED, *SIZES, spoiled=True)
    batch = make_batch(MIXED, systems, layout, dtype)
    together = run_batch(case, batch, LENGTH)
    differing = [
        system.number
        for at, system in enumerate(systems)
        if not same_bits(
            system_of(batch, together, at),
            run_alone(case, MIXED, system, dtype, LENGTH),
        )
    ]
    assert differing == []


NAMED = {case.name: case for case in KINDS}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("clipped heavy ball", np.float64),
        ("FIRE", np.float64),
        ("LBFGS", np.float32),
    ],
)
def test_a_program_without_branches_has_the_bits_of_one_with(name, dtype):
    """As on a GPU, where every system goes the way of the rare cases."""
    systems = make_systems(MIXED, *SIZES, spoiled=True)
    batch = make_batch(MIXED, systems, LAYOUTS[0], dtype)
    usual = run_batch(NAMED[name], batch, LENGTH)
    with without_branches():
        without = run_batch(NAMED[name], batch, LENGTH)
    assert same_bits(usual, without)


# Leaves and indices are taken together in one place for all transforms, which have the test above.
# Settings of systems and chains in chains, which are variants, are among these.
@pytest.mark.parametrize(
    ("case", "problem", "dtype"),
    [
        pytest.param(case, problem, dtype, id=f"{case}-{problem}-{dtype.__name__}", marks=marks)
        for case, problem, dtype, marks in [
            (NAMED["MDMin"], CELLS, np.float64, RARE),
            (NAMED["clipped heavy ball"], COUPLED, np.float32, ()),
            (NAMED["LBFGS"], BRANCHES, np.float64, RARE),
            *((case, WELLS, np.float32, RARE) for case in OPTIMIZERS if case.is_variant),
        ]
    ],
)
def test_a_long_run_on_every_problem_is_the_run_alone(case, problem, dtype):
    systems = make_systems(problem, *[13] * 3, spoiled=True)
    batch = make_batch(problem, systems, SHUFFLED_WITH_GAPS, dtype)
    together = run_batch(case, batch, LENGTH)
    differing = [
        system.number
        for at, system in enumerate(systems)
        if not same_bits(
            system_of(batch, together, at), run_alone(case, problem, system, dtype, LENGTH)
        )
    ]
    assert differing == []


def relax_batch(case, batch):
    return relax(
        batch.evaluate,
        batch.params,
        case.make(batch.numbers),
        index_prefix=batch.prefix,
        fmax=np.where(batch.numbers % 2, 1e-4, 1e-2),
        max_steps=450,
    )


def outcome(batch, result, at):
    """Everything that a relaxation says of one system."""
    trees = [take(batch.prefix, tree, at) for tree in (result.params, result.gradients)]
    numbers = result.energies, result.fmax, result.steps, result.status
    return trees + [np.asarray(x)[at] for x in numbers]


@functools.cache
def outcome_alone(case, system, dtype):
    alone = make_alone(MIXED, system, dtype)
    return outcome(alone, relax_batch(case, alone), 0)


@pytest.mark.parametrize(("case", "layout", "dtype"), RELAXATIONS)
def test_a_relaxation_of_every_system_is_its_relaxation_alone(case, layout, dtype):
    systems = make_systems(MIXED, *[13] * 4, spoiled=True)
    batch = make_batch(MIXED, systems, layout, dtype)
    result = relax_batch(case, batch)
    differing = [
        system.number
        for at, system in enumerate(systems)
        if not same_bits(outcome(batch, result, at), outcome_alone(case, system, dtype))
    ]
    assert differing == []


@eqx.filter_jit
def limited(transform, updates, state):
    return transform.update(updates, state)


def limit_batch(case, batch):
    transform = case.make(batch.numbers)
    return limited(transform, batch.params, transform.init(batch.params, batch.prefix))


@functools.cache
def limit_alone(case, system, dtype):
    alone = make_alone(MIXED, system, dtype)
    step, state = limit_batch(case, alone)
    return take(alone.prefix, step, 0), take_state(state, 0)


@pytest.mark.parametrize(("case", "layout", "dtype"), in_turns(KINDS_OF_LIMITS, TWO_LAYOUTS))
def test_a_limit_treats_every_system_as_if_alone(case, layout, dtype):
    """Of one size: those of others are in test_clip.py and test_limits.py."""
    systems = make_systems(MIXED, *[13] * 3, spoiled=True)
    batch = make_batch(MIXED, systems, layout, dtype)
    step, state = limit_batch(case, batch)
    differing = [
        system.number
        for at, system in enumerate(systems)
        if not same_bits(
            (take(batch.prefix, step, at), take_state(state, at)), limit_alone(case, system, dtype)
        )
    ]
    assert differing == []
