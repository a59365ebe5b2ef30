"""No transform and no turn of the loop leaves a rounding or an order to the compiler."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from test_line_search import SEARCHERS

import basinax
from basinax import (
    BFGS,
    FIRE,
    LBFGS,
    AbstractTransform,
    LevenbergMarquardt,
    SystemIndex,
    apply_updates,
    check_order,
    sum_of_squares,
)
from basinax.minimize.criteria import MaxForce
from basinax.minimize.run import Evaluation, advance, start
from basinax.systems.prefix import n_systems
from cases import (
    BOWL,
    CONTIGUOUS,
    DTYPES,
    SHUFFLED_WITH_GAPS,
    TRANSFORMS,
    WELLS,
    make_batch,
    make_systems,
)

CASES = {case.name: case.make for case in TRANSFORMS}
CASES |= {name: lambda _, made=made: made for name, made in SEARCHERS.items()}
CASES |= {"BFGS": lambda _: BFGS(max_rows=8)}
OF_MANY = make_systems(BOWL, 5, 1, 0, 8, 3)
OF_ONE = make_systems(BOWL, 5)


def findings_of(transform, systems, layout, dtype):
    batch = make_batch(BOWL, systems, layout, dtype)
    state = transform.init(batch.params, batch.prefix)

    def step(gradient, state, params, energies):
        updates, state = transform.update(gradient, state, params, energies=energies)
        return apply_updates(params, updates), state

    energies = jnp.zeros(n_systems(batch.prefix), dtype)
    return check_order(step, batch.params, state, batch.params, energies).findings


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_order_of_a_transform_is_its_own(name, dtype):
    systems, layout = (OF_MANY, SHUFFLED_WITH_GAPS) if dtype == np.float64 else (OF_ONE, CONTIGUOUS)
    transform = CASES[name](np.arange(len(systems)))
    assert findings_of(transform, systems, layout, dtype) == ()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_the_loop_is_its_own(dtype):
    batch = make_batch(WELLS, make_systems(WELLS, 5, 1, 8), CONTIGUOUS, dtype)
    run = start(FIRE(), batch.params, batch.prefix, keep_best=True, keep_first=True)

    def turns(run, evaluate):
        def evaluation(params):
            energies, gradient = evaluate(params)
            return Evaluation(energies, gradient, jnp.ones(energies.shape, bool))

        return advance(evaluation, run, FIRE(), MaxForce(0.01), 10)

    assert check_order(turns, run, batch.evaluate).findings == ()


def test_no_transform_is_forgotten():
    def members(transform):
        return {type(transform)}.union(*map(members, getattr(transform, "transforms", ())))

    tried = set().union(*(members(make(np.arange(1))) for make in CASES.values()))
    public = {x for _, x in inspect.getmembers(basinax, inspect.isclass)}
    known = {x for x in public if issubclass(x, AbstractTransform) and not inspect.isabstract(x)}
    # One is an optax transformation, done again like those in chains; the other has a test below.
    assert known - tried == {basinax.OptaxByName, LevenbergMarquardt}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_least_squares_is_its_own(dtype):
    """Each system's matrix is factorised alone, by LAPACK; the rest is as in other transforms."""
    index = SystemIndex.from_sizes([1, 2])
    model = sum_of_squares(lambda x, is_row: jnp.where(is_row, x - 1.5, 0.0).ravel())
    params, transform = jnp.zeros((3,), dtype), LevenbergMarquardt()
    state = transform.init(params, index)

    def step(params, state):
        energies, gradient, extras = model(params, index)
        updates, state = transform.update(gradient, state, params, energies=energies, extras=extras)
        return apply_updates(params, updates), state

    assert check_order(step, params, state).findings == ()


@pytest.mark.parametrize(
    ("module", "transform"),
    [("fire", FIRE()), ("quasi_newton.history", LBFGS(memory=3))],
    ids=["FIRE", "LBFGS"],
)
def test_a_rounding_that_is_left_out_is_found(module, transform, monkeypatch):
    monkeypatch.setattr(f"basinax.optimizers.{module}.rounded", lambda x: x)
    found = findings_of(transform, OF_ONE, CONTIGUOUS, np.float32)
    assert "product in a sum" in {finding.rule for finding in found}
    place = f"{module.replace('.', '/')}.py:"
    assert any(place in finding.origin for finding in found)
