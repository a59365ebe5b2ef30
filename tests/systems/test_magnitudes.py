"""Gradients of any magnitude, from zero to the largest number: what is finite stays finite.

Each system of a batch has a magnitude of its own, so that all share one program.
"""

import itertools

import equinox as eqx
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
    Armijo,
    BFGSLineSearch,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    ClipByValue,
    ConjugateGradient,
    GradientDescent,
    LBFGSLineSearch,
    MaxStepSize,
    MDMin,
    SystemIndex,
    apply_updates,
    chain,
)
from cases import DTYPES, same_bits, without_branches
from cover import exhaustive, one_in

ROWS, STEPS = 2, 200

TRANSFORMS = {
    "FIRE": FIRE(),
    "FIRE2": FIRE2(),
    "ABC-FIRE": FIRE2(use_abc=True),
    "MDMin": MDMin(),
    "GradientDescent": GradientDescent(),
    "Barzilai-Borwein": chain(GradientDescent(barzilai_borwein=True), MaxStepSize(0.3)),
    "Adam": Adam(),
    "LBFGS": LBFGS(memory=5),
    "LBFGS of ASE": LBFGS(memory=5, is_scaled=False, curvature=-2.0),
    "BFGS": BFGS(max_rows=ROWS),
    "LBFGSLineSearch": LBFGSLineSearch(memory=5),
    "BFGSLineSearch": BFGSLineSearch(max_rows=ROWS),
    "ConjugateGradient": ConjugateGradient(),
    "Armijo": LBFGSLineSearch(memory=5, search=Armijo()),
    "clips": chain(
        ClipByGlobalNorm(0.9, ord="inf"),
        ClipByLayerNorm(0.8),
        ClipByRowNorm(0.5),
        ClipByValue(0.4),
        MaxStepSize(0.3),
    ),
    "clipped FIRE": chain(ClipByGlobalNorm(2.0), FIRE(), MaxStepSize(0.1)),
}


def magnitudes(dtype) -> np.ndarray:
    """Of the gradients of each system, at the first step and at the last."""
    info = np.finfo(dtype)
    sizes = np.geomspace(float(info.tiny), float(info.max) / 8, 9)
    least = [0.0, float(info.smallest_subnormal), float(info.tiny)]
    constant = [*least, *sizes[1:], 1e-19, 1e18, 1e30, 1.0]
    changing = [(1e30, 1e-30), (1e-30, 1e30), (sizes[-1], 0.0), (0.0, sizes[-1])]
    return np.array([(x, x) for x in constant] + changing)


def gradients(dtype) -> tuple[np.ndarray, np.ndarray]:
    """At each step, and which systems have ordinary ones."""
    draw = np.random.default_rng(0)
    ends = magnitudes(dtype)
    least = float(np.finfo(dtype).smallest_subnormal)
    exponents = np.log(np.maximum(ends, least)).T
    along = np.linspace(0, 1, STEPS)[:, None]
    sizes = np.exp(exponents[0] * (1 - along) + exponents[1] * along)
    sizes = np.minimum(np.where((ends == 0).any(1) & (sizes <= 2 * least), 0, sizes), ends.max())
    # One direction, another, and any: velocities grow, turn, and vanish.
    signs = draw.choice([-1.0, 1.0], (STEPS, len(ends), ROWS, 3))
    signs[: STEPS // 3] = 1.0
    signs[STEPS // 3 : 2 * STEPS // 3 : 2] = -1.0
    entries = draw.uniform(0.2, 1.0, signs.shape) * signs * sizes[:, :, None, None]
    return entries.astype(dtype), (ends == 1).all(1)


@eqx.filter_jit
def run(transform, gradients, energies, index):
    def turn(carry, given):
        params, state = carry
        gradient, energies = given
        step, state = transform.update(gradient, state, params, energies=energies)
        return (apply_updates(params, step), state), (step, jax.tree.leaves(state))

    params = jnp.zeros_like(gradients[0])
    _, seen = jax.lax.scan(turn, (params, transform.init(params, index)), (gradients, energies))
    return seen


def followed(name, dtype, gradients):
    n_systems = gradients.shape[1]
    index = SystemIndex.from_sizes([ROWS] * n_systems)
    energies = gradients.sum((2, 3), dtype=np.float64) / 100
    rows = jnp.asarray(gradients.reshape(STEPS, n_systems * ROWS, 3))
    steps, state = run(TRANSFORMS[name], rows, jnp.asarray(energies.astype(dtype)), index)
    return np.asarray(steps).reshape(gradients.shape), [np.asarray(x) for x in state]


VARIANTS = ("ABC-FIRE", "LBFGS of ASE", "clipped FIRE", "BFGS", "LBFGSLineSearch", "Armijo")
"""Others with other settings, or a chain of some; their matrices and searches are those of `LBFGS`
and `BFGSLineSearch`."""
BY_TURNS = [
    exhaustive(name, dtype) if name in VARIANTS else pytest.param(name, dtype)
    for name, dtype in zip(TRANSFORMS, itertools.cycle(DTYPES), strict=False)
]


@pytest.mark.parametrize(("name", "dtype"), one_in(3, BY_TURNS))
def test_steps_and_states_of_finite_gradients_are_finite(name, dtype):
    given, is_ordinary = gradients(dtype)
    steps, state = followed(name, dtype, given)
    assert np.isfinite(steps).all(axis=(0, 2, 3)).all()
    assert all(np.isfinite(leaf).all() for leaf in state)
    assert steps[:, given.any((0, 2, 3))].any()

    # The same in another order, and where nothing is out of range.
    turned = followed(name, dtype, given[:, ::-1])[0]
    assert same_bits(turned[:, ::-1], steps)
    calm = np.broadcast_to(given[:, is_ordinary][:, -1:], given.shape)
    assert same_bits(followed(name, dtype, calm)[0][:, -1], steps[:, is_ordinary][:, -1])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("FIRE", np.float32),
        exhaustive("MDMin", np.float64),
        exhaustive("LBFGS", np.float32),
        exhaustive("clips", np.float64),
    ],
)
def test_every_system_may_go_the_way_of_rare_cases(name, dtype):
    """As in a program without branches, on a GPU."""
    given, _ = gradients(dtype)
    usual = followed(name, dtype, given)
    with without_branches():
        without = followed(name, dtype, given)
    assert same_bits(usual, without)
