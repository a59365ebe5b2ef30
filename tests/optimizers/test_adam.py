"""Adam per system against optax, step by step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import Adam, SystemIndex, apply_updates

RATES = np.array([0.01, 0.1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_are_those_of_optax_for_each_system(dtype):
    index = SystemIndex.from_sizes([4, 3])
    draw = np.random.default_rng(0)
    params = jnp.asarray(draw.normal(size=(7, 3)), dtype)
    stiffness = jnp.asarray(draw.uniform(0.1, 100, (7, 3)), dtype)
    adam = Adam(jnp.asarray(RATES, dtype))
    state, references = adam.init(params, index), []
    for rate in RATES:
        reference = optax.adam(float(rate))
        references.append([reference, reference.init(params), params])

    update = eqx.filter_jit(adam.update)
    for _ in range(100):
        step, state = update(stiffness * params, state)
        params = apply_updates(params, step)
        for entry in references:
            with jax.numpy_dtype_promotion("standard"):
                updates, entry[1] = entry[0].update(stiffness * entry[2], entry[1])
                updates = updates.astype(dtype)
            entry[2] = optax.apply_updates(entry[2], updates)
        expected = jnp.concatenate([references[0][2][:4], references[1][2][4:]])
        # Optax takes powers where this takes products: some roundings a step.
        np.testing.assert_allclose(params, expected, rtol=0, atol=1000 * np.finfo(dtype).eps)


def test_an_entry_without_gradient_does_not_move():
    adam = Adam()
    gradient = jnp.array([[0.0, 1.0]])
    step, _ = jax.jit(adam.update)(gradient, adam.init(gradient))
    assert step[0, 0] == 0
    assert step[0, 1] == pytest.approx(-0.01)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_moments_of_short_numbers_are_kept_in_single_precision(dtype):
    """In bfloat16 0.999 is 1."""
    gradient = jnp.ones((2, 3), dtype)
    state = Adam().init(gradient)
    assert {x.dtype for x in jax.tree.leaves((state.mean, state.root))} == {np.dtype(np.float32)}
    for _ in range(10):
        step, state = Adam().update(gradient, state)
        assert step.dtype == dtype
        np.testing.assert_allclose(step.astype(np.float32), -0.01, rtol=0.004)
