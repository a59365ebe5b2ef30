"""Gradient in, step out: optimizers go downhill, limits keep the direction."""

import equinox as eqx
import numpy as np
import pytest

from basinax import segment
from cases import (
    BOWL,
    CONTIGUOUS,
    DTYPES,
    KINDS,
    LIMITS,
    apply,
    evaluate,
    make_batch,
    make_systems,
    update,
)
from cover import cover, one_in

SIZES = (13, 1, 40, 13)

dot = eqx.filter_jit(segment.dot)


def first_step(case, dtype):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, dtype)
    transform = case.make(batch.numbers)
    gradient = evaluate(batch.evaluate, batch.params)[1]
    state = transform.init(batch.params, batch.prefix)
    return batch, gradient, update(transform, gradient, state, batch.params)[0]


@pytest.mark.parametrize("case", one_in(2, KINDS, first=1))
def test_the_first_step_of_an_optimizer_points_against_the_gradient(case):
    batch, gradient, step = first_step(case, np.float32)
    assert np.all(dot(gradient, step, batch.prefix) < 0)


@pytest.mark.parametrize("case", one_in(2, KINDS))
def test_adding_a_small_first_step_lowers_the_energy(case):
    batch, _, step = first_step(case, np.float64)
    before = evaluate(batch.evaluate, batch.params)[0]
    after = evaluate(batch.evaluate, apply(batch.params, 1e-3 * step))[0]
    assert np.all(after < before)


@pytest.mark.parametrize(*cover("case, dtype", LIMITS, DTYPES, strength=1))
def test_a_limit_returns_a_gradient_of_the_same_direction_and_no_longer(case, dtype):
    _, gradient, step = first_step(case, dtype)
    is_smaller = np.abs(step) <= np.abs(gradient)
    is_alike = np.sign(step) == np.sign(gradient)
    assert (is_smaller & is_alike).all()


@pytest.mark.parametrize("case", LIMITS, ids=str)
def test_a_limit_does_not_know_a_gradient_from_a_step(case):
    """What it does with the negative is the negative."""
    batch, gradient, step = first_step(case, np.float32)
    transform = case.make(batch.numbers)
    state = transform.init(batch.params, batch.prefix)
    assert np.array_equal(update(transform, -gradient, state, batch.params)[0], -step)
