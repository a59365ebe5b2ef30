"""A system that is reset is a fresh run, and the systems beside it notice nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import BFGS, reset, segment, where_systems
from basinax.optimizers.protocol import Places, placed_systems
from basinax.systems.prefix import is_index
from cases import (
    ALL_KINDS,
    BOWL,
    CELLS,
    CONTIGUOUS,
    SHUFFLED_WITH_GAPS,
    TransformCase,
    in_turns,
    make_batch,
    make_systems,
    same_bits,
    steps,
    take,
    take_state,
)
from cover import exhaustive, named_daily, one_in

SIZES = (13, 1, 40, 13)
MASK = np.array([True, False, False, True])
PHASES = [1, exhaustive(7), 30]
"""Numbers of steps before; a memory that is half full is reset every day in test_lbfgs.py."""


def fresh(case, layout=CONTIGUOUS):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), layout, np.float32)
    transform = case.make(batch.numbers)
    return batch, transform, transform.init(batch.params, batch.prefix)


def parts(batch, params, state, mask):
    return [(take(batch.prefix, params, at), take_state(state, at)) for at in np.flatnonzero(mask)]


@pytest.mark.parametrize("case", ALL_KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_reset_system_runs_as_from_the_start(case, phase):
    batch, transform, state = fresh(case)
    expected = steps(transform, batch, batch.params, state, 12)

    params, state = steps(transform, batch, batch.params, state, phase)
    params = segment.where(MASK, batch.params, params, batch.prefix)
    state = reset(transform, state, params, MASK)
    got = steps(transform, batch, params, state, 12)
    assert same_bits(parts(batch, *got, MASK), parts(batch, *expected, MASK))


@pytest.mark.parametrize("case", ALL_KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_the_others_of_a_reset_go_on_as_they_were(case, phase):
    batch, transform, state = fresh(case)
    expected = steps(transform, batch, batch.params, state, phase + 12)

    params, state = steps(transform, batch, batch.params, state, phase)
    params = segment.where(MASK, batch.params, params, batch.prefix)
    state = reset(transform, state, params, MASK)
    got = steps(transform, batch, params, state, 12)
    assert same_bits(parts(batch, *got, ~MASK), parts(batch, *expected, ~MASK))


@pytest.mark.parametrize(
    ("case", "layout"),
    [
        *in_turns(ALL_KINDS, [CONTIGUOUS]),  # with the programs of the tests above
        *one_in(6, in_turns(ALL_KINDS, [SHUFFLED_WITH_GAPS])),
    ],
)
def test_a_reset_heals_a_system_that_has_become_nan(case, layout):
    batch, transform, state = fresh(case, layout)
    expected = steps(transform, batch, batch.params, state, 12)

    spoiled = segment.where(MASK, jnp.full_like(batch.params, jnp.nan), batch.params, batch.prefix)
    params, state = steps(transform, batch, spoiled, state, 3)
    params = segment.where(MASK, batch.params, params, batch.prefix)
    got = steps(transform, batch, params, reset(transform, state, params, MASK), 12)
    assert same_bits(parts(batch, *got, MASK), parts(batch, *expected, MASK))


@pytest.mark.parametrize("case", ALL_KINDS)
def test_resetting_no_system_changes_nothing(case):
    batch, transform, state = fresh(case)
    params, state = steps(transform, batch, batch.params, state, 3)
    assert same_bits(reset(transform, state, params, np.zeros(4, bool)), state)


@pytest.mark.parametrize("case", ALL_KINDS)
def test_resetting_every_system_gives_the_state_of_init(case):
    batch, transform, state = fresh(case)
    params, later = steps(transform, batch, batch.params, state, 3)
    got = reset(transform, later, params, np.ones(4, bool))
    assert same_bits(got, transform.init(params, batch.prefix))


@pytest.mark.parametrize("case", ALL_KINDS)
def test_a_frozen_system_keeps_every_bit_of_its_state(case):
    batch, transform, state = fresh(case)
    params, state = steps(transform, batch, batch.params, state, 3)
    _, later = steps(transform, batch, params, state, 1)
    got = where_systems(MASK, later, state)
    assert same_bits(
        [parts(batch, params, got, MASK), parts(batch, params, got, ~MASK)],
        [parts(batch, params, later, MASK), parts(batch, params, state, ~MASK)],
    )


ORDER = np.array([2, 3, 1, 0])
"""The numbers of systems before they move."""


def rows_before(before, after):
    """The number of each row of one index in another, with systems in `ORDER`."""
    rows = np.full(after.n_rows, before.n_rows, np.int32)
    for system, number in enumerate(ORDER):
        rows[np.asarray(after.ids) == system] = np.flatnonzero(np.asarray(before.ids) == number)
    return rows


MOVING = {str(case): case for case in ALL_KINDS} | {
    "BFGS": TransformCase("BFGS", lambda systems: BFGS())
}


@pytest.mark.parametrize(
    ("problem", "layout"), [(BOWL, CONTIGUOUS), exhaustive(CELLS, SHUFFLED_WITH_GAPS)]
)
@pytest.mark.parametrize(
    "case", named_daily(MOVING, ["FIRE", "LBFGS", "BFGS", "clipped heavy ball"])
)
def test_a_system_that_moves_to_another_place_goes_on_as_it_was(case, problem, layout):
    """Each day one for each kind of state."""
    systems = make_systems(problem, *SIZES)
    batch, other = (
        make_batch(problem, some, layout, np.float32)
        for some in (systems, [systems[k] for k in ORDER])
    )
    transform, moved = case.make(batch.numbers), case.make(other.numbers)
    state = transform.init(batch.params, batch.prefix)
    expected = steps(transform, batch, batch.params, state, 7 + 12)

    params, state = steps(transform, batch, batch.params, state, 7)
    rows = jax.tree.map(rows_before, batch.prefix, other.prefix, is_leaf=is_index)
    fresh_state = moved.init(other.params, other.prefix)
    state = placed_systems(Places(ORDER, rows), state, fresh_state)
    params = jax.tree.map(lambda x, at: x[at], params, jax.tree.broadcast(rows, params))
    got = steps(moved, other, params, state, 12)
    for system, number in enumerate(ORDER):
        one, same = np.arange(4) == system, np.arange(4) == number
        assert same_bits(parts(other, *got, one), parts(batch, *expected, same))


@pytest.mark.parametrize("case", ALL_KINDS)
def test_in_global_mode_one_mask_resets_all(case):
    batch = make_batch(BOWL, make_systems(BOWL, 13), CONTIGUOUS, np.float32)
    transform = case.make(batch.numbers)
    state = transform.init(batch.params)
    later = jax.tree.map(lambda x: np.logical_not(x).astype(x.dtype), state)
    got = reset(transform, later, batch.params, np.array([True]))
    assert same_bits(jax.tree.leaves(got), jax.tree.leaves(state))
