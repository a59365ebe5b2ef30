"""What else an evaluation says of each system goes with the point at which it was said."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax import (
    FIRE,
    AbstractCriterion,
    GradientDescent,
    MaxForce,
    Status,
    SystemIndex,
    relax,
    rounded,
    segment,
)
from basinax.minimize.run import Evaluation, advance, restart, start
from cases import same_bits

INDEX = SystemIndex.from_sizes([3, 1, 0, 8])


def bowl(x):
    return rounded(0.5 * segment.dot(x, x, INDEX)), x


def said_of(energies):
    """A tree of several dtypes and shapes, from which the energies can be read."""
    stress = energies[:, None, None] + jnp.arange(9.0).reshape(1, 3, 3)
    return {"stress": stress, "is_low": energies < 1.0, "single": energies.astype(jnp.float32)}


@functools.cache  # a program is known by the function that it evaluates
def telling(evaluate):
    def told(x):
        energies, gradient = evaluate(x)
        return energies, gradient, said_of(energies)

    return told


def spiral(x):
    """Its gradient does not fit its energy: descent lowers the energy first, then raises it."""
    energies, gradient = bowl(x)
    turned = jnp.stack([-x[:, 1], x[:, 0], x[:, 2]], axis=1)
    return energies, gradient + rounded(6.0 * turned)


def beginning(seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(12, 3)))


def run(evaluate, params=None, optimizer=None, **options):
    params = beginning() if params is None else params
    optimizer = GradientDescent(0.06) if optimizer is None else optimizer
    return relax(
        telling(evaluate), params, optimizer, index_prefix=INDEX, has_extras=True, **options
    )


def test_extras_are_those_of_the_point_that_is_returned():
    result = run(bowl)
    assert result.converged.all()
    assert len(set(result.steps.tolist())) > 2
    assert same_bits(result.extras, said_of(result.energies))


def test_extras_of_the_best_point_are_kept_with_it():
    last = run(spiral, max_steps=60)
    best = run(spiral, max_steps=60, keep_best=True)
    assert (best.energies < last.energies)[jnp.array([0, 1, 3])].all()
    assert same_bits(best.extras, said_of(best.energies))
    assert same_bits(last.extras, said_of(last.energies))


def test_extras_change_nothing_else():
    plain = relax(bowl, beginning(), GradientDescent(0.06), index_prefix=INDEX)
    result = run(bowl)
    assert plain.extras is None
    assert same_bits(eqx.tree_at(lambda r: r.extras, result, None), plain)


class LowStress(AbstractCriterion):
    """A criterion of extras, as a user would write it."""

    limit: float | jax.Array

    def __call__(self, evidence):
        return evidence.extras["stress"][:, 0, 0] < self.limit


def test_a_criterion_may_look_at_extras():
    limits = np.array([0.5, 0.1, 0.5, 0.1])
    result = run(bowl, convergence=LowStress(limits) & MaxForce(9.0))
    assert result.converged.all()
    assert (result.energies < limits).all()
    shorter = run(bowl, max_steps=np.maximum(np.asarray(result.steps) - 1, 0), fmax=0.0)
    assert (shorter.energies >= limits)[result.steps > 0].all()


def test_extras_that_are_no_number_stay_with_their_system():
    def broken(x):
        energies, gradient, extras = telling(bowl)(x)
        stress = extras["stress"].at[0].set(jnp.nan)
        return energies, gradient, extras | {"stress": stress}

    criterion = LowStress(np.full(4, 0.5)) & MaxForce(9.0)  # as above: one program
    result = relax(
        broken,
        beginning(),
        GradientDescent(0.06),
        index_prefix=INDEX,
        has_extras=True,
        convergence=criterion,
    )
    whole = run(bowl, convergence=criterion)
    assert result.status.tolist() == [Status.MAX_STEPS.code] + [Status.CONVERGED.code] * 3
    assert same_bits(
        jax.tree.map(lambda leaf: leaf[1:], (result.energies, result.steps, result.extras)),
        jax.tree.map(lambda leaf: leaf[1:], (whole.energies, whole.steps, whole.extras)),
    )


def test_extras_lead_with_systems_without_a_prefix_too():
    def evaluate(x):
        energy = 0.5 * segment.dot(x, x)
        return energy, x, 2 * energy

    result = relax(evaluate, jnp.ones((2, 3)), FIRE(), has_extras=True)
    assert result.extras.shape == (1,)
    assert result.extras[0] == 2 * result.energies[0]


@eqx.filter_jit
def advanced(run, is_valid, turns):
    def evaluate(x):
        return Evaluation(*bowl(x), is_valid, said_of(bowl(x)[0]))

    return advance(evaluate, run, GradientDescent(0.06), MaxForce(0.0), 500, turns=turns)


def turned(run, is_valid, turns):
    return advanced(run, is_valid, jnp.int32(turns))


def begun(params):
    descent = GradientDescent(0.06)
    return start(descent, params, INDEX, extras=said_of(jnp.zeros(4)), keep_best=True)


def test_extras_wait_for_their_evaluation():
    everyone = jnp.ones(4, bool)
    mask = jnp.array([True, False, True, True])
    run = turned(turned(begun(beginning()), everyone, 2), mask, 1)
    assert same_bits(run.point.extras, said_of(run.point.energies))
    assert same_bits(run.best.extras, said_of(run.best.energies))


def test_a_system_that_begins_anew_forgets_its_extras_and_no_other_does():
    everyone, mask = jnp.ones(4, bool), jnp.array([False, True, False, True])
    run = turned(begun(beginning()), everyone, 5)
    again = restart(run, GradientDescent(0.06), beginning(1), INDEX, mask)
    assert not again.point.extras["stress"][mask].any()
    assert np.array_equal(again.point.extras["stress"][~mask], run.point.extras["stress"][~mask])
    fresh = turned(begun(beginning(1)), everyone, 5)
    rerun = turned(again, everyone, 5)
    assert np.array_equal(rerun.point.extras["stress"][mask], fresh.point.extras["stress"][mask])
    assert np.array_equal(rerun.best.extras["stress"][mask], fresh.best.extras["stress"][mask])
