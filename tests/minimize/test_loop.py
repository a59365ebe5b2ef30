"""The loop: each system stops at its own convergence, with a status of its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    FIRE,
    GradientDescent,
    Status,
    SystemIndex,
    apply_updates,
    largest_force,
    relax,
    rounded,
    segment,
)
from basinax.minimize.criteria import MaxForce
from basinax.minimize.run import Evaluation, advance, start
from cases import BOWL, CONTIGUOUS, make_batch, make_systems, same_bits, take

SIZES = (13, 1, 40, 13)


def batch_of(spoiled=False):
    return make_batch(BOWL, make_systems(BOWL, *SIZES, spoiled=spoiled), CONTIGUOUS, np.float64)


def relaxed(batch, optimizer=None, **options):
    return relax(
        batch.evaluate, batch.params, optimizer or FIRE(), index_prefix=batch.prefix, **options
    )


def test_the_result_is_what_its_fields_say():
    batch = batch_of()
    result = relaxed(batch, fmax=1e-3)
    energies, gradients = eqx.filter_jit(batch.evaluate)(result.params)
    assert same_bits(result.energies, energies)
    assert same_bits(result.gradients, gradients)
    assert same_bits(result.fmax, largest_force(gradients, batch.prefix))
    assert result.converged.all()
    assert (result.fmax < 1e-3).all()


def test_systems_stop_at_their_own_convergence():
    batch = batch_of()
    loose, tight = relaxed(batch, fmax=1e-1), relaxed(batch, fmax=1e-5)
    fmax = np.array([1e-1, 1e-5, 1e-1, 1e-5])
    mixed = relaxed(batch, fmax=fmax)
    expected = np.where(fmax > 1e-2, loose.steps, tight.steps)
    assert np.array_equal(mixed.steps, expected)
    assert len(set(expected.tolist())) > 2


def test_a_system_is_where_so_many_plain_steps_lead_it():
    batch = batch_of()
    result = relaxed(batch, GradientDescent(0.05), fmax=1e-2)
    params, optimizer = batch.params, GradientDescent(0.05)
    state = optimizer.init(params, batch.prefix)
    path = [params]
    for _ in range(int(result.steps.max())):
        change, state = optimizer.update(batch.evaluate(params)[1], state, params)
        params = apply_updates(params, change)
        path.append(params)
    for at, steps in enumerate(result.steps.tolist()):
        assert same_bits(take(batch.prefix, result.params, at), take(batch.prefix, path[steps], at))


def test_a_converged_start_makes_no_step():
    batch = batch_of()
    result = relaxed(batch, fmax=1e3)
    assert not result.steps.any()
    assert same_bits(result.params, batch.params)
    assert result.converged.all()


def test_a_force_equal_to_fmax_has_not_converged():
    """As in ASE, which asks for less."""
    index, start = SystemIndex.from_sizes([1]), jnp.array([[0.0, 0.0, 0.25]])
    evaluate = lambda x: (segment.dot(x, x, index), x)  # noqa: E731
    at, above = (relax(evaluate, start, FIRE(), index_prefix=index, fmax=f) for f in (0.25, 0.2501))
    assert (at.steps[0] > 0, above.steps[0]) == (True, 0)


def test_max_steps_end_a_system_unconverged():
    batch = batch_of()
    max_steps = np.array([3, 500, 0, 7])
    result = relaxed(batch, fmax=1e-3, max_steps=max_steps)
    ended = np.array([0, 2, 3])
    assert result.steps[ended].tolist() == [3, 0, 7]
    assert result.status[ended].tolist() == [Status.MAX_STEPS.code] * 3
    assert result.status[1] == Status.CONVERGED.code


def test_convergence_at_the_last_step_counts():
    batch = batch_of()
    free = relaxed(batch, fmax=1e-3)
    limited = relaxed(batch, fmax=1e-3, max_steps=np.asarray(free.steps))
    assert limited.converged.all()
    assert same_bits(limited.params, free.params)


def test_what_is_not_finite_ends_one_system_alone():
    batch, spoiled = batch_of(), batch_of(spoiled=True)
    result, expected = relaxed(spoiled, fmax=1e-3), relaxed(batch, fmax=1e-3)
    assert result.status.tolist()[4:6] == [Status.NOT_FINITE.code] * 2
    assert result.steps.tolist()[4:6] == [0, 0]
    assert np.isinf(result.fmax[4:6]).all()
    assert same_bits(result.params[: sum(SIZES)], expected.params)


def test_a_system_that_waits_for_its_evaluation_stands_still_and_loses_nothing():
    batch = batch_of()
    expected = relaxed(batch, fmax=1e-2)

    @eqx.filter_jit
    def turn(evaluate, run, is_valid):
        evaluated = lambda x: Evaluation(*evaluate(x), is_valid)  # noqa: E731
        return advance(evaluated, run, FIRE(), MaxForce(1e-2), 500, turns=1)

    waiting = start(FIRE(), batch.params, batch.prefix)
    for count in range(3 * int(expected.evaluations.max())):
        waiting = turn(batch.evaluate, waiting, jnp.asarray(count % np.array([1, 2, 3, 2]) == 0))
    assert same_bits(
        (waiting.point.params, waiting.point.energies, waiting.steps, waiting.status),
        (expected.params, expected.energies, expected.steps, expected.status),
    )


def test_an_energy_that_is_not_finite_ends_its_system():
    index = SystemIndex.from_sizes([2, 1, 1, 1])

    def evaluate(x):
        broken = jnp.array([jnp.nan, jnp.inf, -jnp.inf])
        return segment.dot(x, x, index).at[:3].set(broken), 2 * x

    result = relax(evaluate, jnp.ones((5, 3)), FIRE(), index_prefix=index)
    assert result.status.tolist() == [Status.NOT_FINITE.code] * 3 + [Status.CONVERGED.code]


def test_a_system_that_blows_up_on_the_way_ends_and_others_go_on():
    index = SystemIndex.from_sizes([1, 1])
    stiffness = jnp.array([[100.0], [1.0]])

    def evaluate(x):
        gradient = rounded(stiffness * x)
        return rounded(0.5 * segment.dot(gradient, x, index)), gradient

    result = relax(evaluate, jnp.ones((2, 1)), GradientDescent(0.5), index_prefix=index)
    assert result.status.tolist() == [Status.NOT_FINITE.code, Status.CONVERGED.code]
    assert 0 < result.steps[0] < 500


def test_throwing_names_the_systems_and_their_outcome():
    batch = batch_of(spoiled=True)
    max_steps = np.array([500, 500, 0, 500, 500, 500, 0])
    with pytest.raises(RuntimeError) as error:
        relaxed(batch, fmax=1e-3, max_steps=max_steps, throw=True)
    text = str(error.value)
    for words in ("of 7 systems", "2 (max_steps)", "4 (not_finite)", "5 (not_finite)"):
        assert words in text


def test_by_default_nothing_is_thrown():
    assert not relaxed(batch_of(), max_steps=0).converged.any()


def test_the_start_may_be_numpy_and_is_left_alone():
    batch = batch_of()
    start = np.array(batch.params)
    before = start.copy()
    result = relax(batch.evaluate, start, FIRE(), index_prefix=batch.prefix, fmax=1e-3)
    assert np.array_equal(start, before)
    assert same_bits(result.params, relaxed(batch, fmax=1e-3).params)


def test_a_relaxation_may_stand_inside_of_jit():
    batch = batch_of()
    inside = eqx.filter_jit(
        lambda batch_evaluate, x: relax(
            batch_evaluate, x, FIRE(), index_prefix=batch.prefix, fmax=1e-3
        )
    )(batch.evaluate, batch.params)
    assert same_bits(inside.params, relaxed(batch, fmax=1e-3).params)


def test_without_a_prefix_there_is_one_system():
    result = relax(lambda x: (0.5 * segment.dot(x, x), x), {"a": jnp.ones(3)}, FIRE())
    assert result.status.shape == result.energies.shape == (1,)
    assert result.converged.all()


def test_one_system_may_have_a_scalar_energy(count_compilations):
    """With extras, and with derivatives by a number that the function closes over."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def energy(x, center=1.0):
        return 0.5 * jnp.sum((x - center) ** 2)

    scalar = jax.value_and_grad(energy)

    def of_one(x):
        return energy(x)[None], jax.grad(energy)(x)

    def with_extras(x):
        return *scalar(x), {"doubled": 2 * x[:1, 0]}

    found, expected = relax(scalar, x, FIRE()), relax(of_one, x, FIRE())
    assert found.energies.shape == (1,)
    assert all(map(same_bits, jax.tree.leaves(found), jax.tree.leaves(expected)))
    with count_compilations() as compilations:
        relax(scalar, x, FIRE())
    assert compilations.count == 0
    assert relax(with_extras, x, FIRE(), has_extras=True).extras["doubled"].shape == (1,)

    def lowest(center):
        return relax(jax.value_and_grad(lambda x: energy(x, center)), x, FIRE()).params.sum()

    assert jax.grad(lowest)(jnp.float32(2.0)) == pytest.approx(6.0, rel=1e-5)


def test_the_status_is_an_integer_that_has_a_name():
    result = relaxed(batch_of(), fmax=1e-3)
    assert result.status.dtype == np.dtype("int32")
    assert [Status(code).name for code in jax.device_get(result.status)] == ["CONVERGED"] * 4


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_the_largest_force_of_what_is_not_finite_is_infinite(value):
    index = SystemIndex.from_sizes([2, 1, 0])
    rows = jnp.array([[3.0, 4.0], [value, 0.0], [0.6, 0.8]])
    assert largest_force(rows, index).tolist() == [np.inf, 1.0, 0.0]
