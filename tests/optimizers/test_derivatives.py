"""Derivatives of a path through `update`, also where a system begins at its minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    FIRE,
    FIRE2,
    Adam,
    BFGSLineSearch,
    ConjugateGradient,
    GradientDescent,
    MDMin,
    SystemIndex,
    apply_updates,
    rounded,
    segment,
)
from cover import exhaustive

INDEX = SystemIndex.from_sizes([2, 3])
SLOW = [FIRE(), FIRE2(), MDMin(), ConjugateGradient(), BFGSLineSearch()]
OPTIMIZERS = [Adam(), GradientDescent(), *map(exhaustive, SLOW)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda x: type(x).__name__)
def test_both_modes_give_the_slope_of_a_path_beside_a_system_at_its_minimum(optimizer):
    start = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2))).at[:2].set(0.0)
    weights = jnp.arange(1.0, 11.0).reshape(5, 2)

    @jax.jit
    def end(stiffness):
        x, state = start, optimizer.init(start, INDEX)
        for _ in range(3):
            square = rounded(x * x)
            energies = segment.sum(rounded(rounded(stiffness * square) + square * square), INDEX)
            gradient = rounded(2 * rounded(stiffness * x)) + rounded(4 * rounded(square * x))
            step, state = optimizer.update(gradient, state, x, energies=energies)
            x = apply_updates(x, step)
        return jnp.sum(weights * x)

    small = 1e-5
    expected = (end(1.3 + small) - end(1.3 - small)) / (2 * small)
    forward, backward = jax.jacfwd(end)(1.3), jax.grad(end)(1.3)
    np.testing.assert_allclose([forward, backward], expected, rtol=1e-5, atol=1e-9)
