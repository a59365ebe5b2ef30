"""What the loop reports of each system: evaluations, its best point, and why it ended."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    FIRE,
    FIRE2,
    GradientDescent,
    Status,
    SystemIndex,
    chain,
    relax,
    rounded,
    segment,
)
from cover import exhaustive

INDEX = SystemIndex.from_sizes([3, 1, 0, 8])


def bowl(x):
    return rounded(0.5 * segment.dot(x, x, INDEX)), x


def start(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(12, 3)))


def test_without_trials_a_system_is_evaluated_once_more_than_it_steps():
    result = relax(bowl, start(), chain(FIRE()), index_prefix=INDEX)
    assert np.array_equal(result.evaluations, result.steps + 1)
    assert len(set(result.steps.tolist())) > 2


def test_a_system_that_has_ended_is_evaluated_no_more():
    far = start().at[3].set(1e-3)
    result = relax(bowl, far, FIRE(), index_prefix=INDEX)
    assert result.evaluations[1] == 1
    assert result.evaluations[0] > 10


def test_a_system_whose_steps_change_nothing_is_stalled_and_others_go_on():
    shift = jnp.zeros((12, 3)).at[3].set(1e20)

    def far_away(x):
        return bowl(x - shift + 1.0)

    result = relax(far_away, start() + shift, GradientDescent(0.1), index_prefix=INDEX)
    assert Status(int(result.status[1])) is Status.STALLED
    assert result.steps[1] == 50
    assert np.array_equal(result.status[jnp.array([0, 2, 3])], [Status.CONVERGED.code] * 3)


def spiral(x):
    """A gradient that does not fit its energy: descent lowers the energy first, then raises it."""
    energies, gradient = bowl(x)
    turned = jnp.stack([-x[:, 1], x[:, 0], x[:, 2]], axis=1)
    return energies, gradient + rounded(6.0 * turned)


def test_best_point_is_kept_where_asked():
    descent = GradientDescent(0.06)
    last = relax(spiral, start(), descent, index_prefix=INDEX, max_steps=60)
    best = relax(spiral, start(), descent, index_prefix=INDEX, max_steps=60, keep_best=True)
    energies, gradient = jax.jit(spiral)(best.params)
    rows = jnp.array([0, 1, 3])
    assert np.all(best.energies[rows] < last.energies[rows])
    assert np.array_equal(best.energies, energies)
    assert np.allclose(best.gradients, gradient, rtol=1e-14)
    assert np.array_equal(best.status, last.status)
    assert np.array_equal(best.steps, last.steps)


def test_best_point_of_a_run_is_the_lowest_it_has_seen():
    descent = GradientDescent(0.06)
    seen = [
        relax(spiral, start(), descent, index_prefix=INDEX, max_steps=n).energies for n in range(20)
    ]
    best = relax(spiral, start(), descent, index_prefix=INDEX, max_steps=19, keep_best=True)
    assert np.array_equal(best.energies, np.min(seen, axis=0))


def test_best_point_of_a_system_that_blows_up_is_finite():
    def cliff(x):
        energies, gradient = bowl(x)
        return jnp.where(energies > 1.0, energies, jnp.nan), gradient

    result = relax(cliff, start(), FIRE(), index_prefix=INDEX, keep_best=True)
    assert np.array_equal(result.status[jnp.array([0, 3])], [Status.NOT_FINITE.code] * 2)
    assert np.all(np.isfinite(result.energies[jnp.array([0, 3])]))
    assert np.all(np.isfinite(result.params))


def test_every_status_has_a_meaning():
    assert all(status.meaning for status in Status)


@pytest.mark.parametrize(
    ("dtype", "gradient_dtype"), [(jnp.bfloat16, np.float32), (np.float32, np.float64)]
)
def test_a_gradient_of_another_dtype_takes_that_of_the_parameters(dtype, gradient_dtype):
    def other(x):
        energies, gradient = bowl(x)
        return energies, gradient.astype(gradient_dtype)

    # Of powers of two, which every dtype holds.
    params = jnp.sign(start()).astype(dtype)
    optimizer = GradientDescent(0.5)
    result = relax(other, params, optimizer, index_prefix=INDEX, max_steps=5)
    same = relax(bowl, params, optimizer, index_prefix=INDEX, max_steps=5)
    assert result.gradients.dtype == dtype
    assert np.array_equal(result.params, same.params)


@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.float64)])
def test_abc_fire_moves_components_without_force_nowhere(dtype):
    """With a mixing that 1 - a does not tell from none."""
    optimizer, x = FIRE2(use_abc=True, astart=0.0), jnp.array([[1, 1, 0]], dtype)
    state, update = jax.jit(optimizer.init)(x), jax.jit(optimizer.update)
    for _ in range(5):
        step, state = update(x, state, x)
        assert np.isfinite(step).all()
        assert step[0, 2] == 0


def test_an_outcome_is_a_text_with_a_code_and_a_meaning():
    for code, status in enumerate(Status):
        assert status == str(status) == status.name.lower()
        assert Status(code) is Status(np.int32(code)) is Status(str(status)) is status
        assert status.code == code and status.meaning
    assert Status.of_codes(np.arange(len(Status))) == list(Status)
    for unknown in (-1, len(Status), "lost", 1.0, None):
        with pytest.raises(ValueError, match="is not a valid Status"):
            Status(unknown)


def test_a_status_compares_with_texts_and_with_arrays_of_texts_and_codes():
    codes, converged = np.array([0, 1, 6], np.int32), Status.CONVERGED
    assert converged == "converged" and converged != "stalled" and converged in {"converged"}
    assert converged != Status.RUNNING and converged == Status.CONVERGED
    texts = np.array([str(Status(code)) for code in codes])
    for array in (codes, jnp.asarray(codes), texts, texts.astype(object)):
        np.testing.assert_array_equal(array == converged, [False, True, False])
        np.testing.assert_array_equal(converged != array, [True, False, True])
    assert jax.jit(lambda x: x == converged)(jnp.asarray(codes)).tolist() == [False, True, False]
