"""Barzilai-Borwein steps against NumPy, and where there is no curvature."""

import jax.numpy as jnp
import numpy as np
import pytest

from basinax import GradientDescent, MaxStepSize, SystemIndex, chain, relax, rounded, segment
from cases import update

INDEX = SystemIndex.from_sizes([5, 2])
STIFFNESS = jnp.asarray(np.random.default_rng(0).uniform(1, 50, (7, 3)))
START = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))


def bowl(x):
    gradient = rounded(STIFFNESS * x)
    return rounded(0.5 * segment.dot(gradient, x, INDEX)), gradient


def test_rate_is_that_of_barzilai_and_borwein():
    descent = GradientDescent(0.01, barzilai_borwein=True)
    state, x = descent.init(START, INDEX), START
    last = None
    for _ in range(10):
        gradient = STIFFNESS * x
        step, state = update(descent, gradient, state, x)
        for rows in (slice(0, 5), slice(5, 7)):
            rate = 0.01
            if last is not None:
                s, y = x[rows] - last[0][rows], gradient[rows] - last[1][rows]
                rate = float((s * s).sum() / (s * y).sum())
            np.testing.assert_allclose(step[rows], -rate * gradient[rows], rtol=1e-10)
        last, x = (x, gradient), x + step


def test_without_positive_curvature_the_learning_rate_is_taken():
    descent = GradientDescent(0.01, barzilai_borwein=True)
    state = descent.init(START, INDEX)
    _, state = update(descent, -START, state, START)
    step, _ = update(descent, -2 * START, state, 2 * START)
    np.testing.assert_allclose(step, 0.02 * START, rtol=1e-14)


@pytest.mark.exhaustive
def test_fewer_steps_than_a_fixed_rate():
    plain = relax(bowl, START, GradientDescent(0.02), index_prefix=INDEX, fmax=1e-6)
    fitted = relax(
        bowl,
        START,
        chain(GradientDescent(0.02, barzilai_borwein=True), MaxStepSize(0.5)),
        index_prefix=INDEX,
        fmax=1e-6,
    )
    assert np.all(fitted.converged)
    assert np.all(2 * fitted.steps < plain.steps)


def test_a_gradient_of_another_shape_is_named():
    x, descent = jnp.ones((8, 3)), GradientDescent(0.1)
    with pytest.raises(ValueError, match="params and their gradient do not fit"):
        descent.update(jnp.ones((8, 2)), descent.init(x), x)


def test_needs_to_know_where_it_is():
    descent = GradientDescent(barzilai_borwein=True)
    with pytest.raises(TypeError, match="GradientDescent looks at where it is"):
        descent.update(START, descent.init(START, INDEX))
