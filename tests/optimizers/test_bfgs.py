"""Dense BFGS: steps against LAPACK's eigenvalues, and bits that no other system decides."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    BFGS,
    BFGSLineSearch,
    ConjugateGradient,
    LBFGSLineSearch,
    SystemIndex,
    apply_updates,
    relax,
    reset,
    segment,
)
from basinax.optimizers.protocol import stepped
from basinax.optimizers.quasi_newton.inverse_hessian import (
    InverseHessian,
    Places,
    few_at_once,
    newton_step,
    unit_matrix,
)
from cases import (
    ALIGNED,
    CELLS,
    MIXED,
    SHUFFLED_WITH_GAPS,
    WELLS,
    make_alone,
    make_batch,
    make_systems,
    same_bits,
    take,
    take_state,
)
from cover import exhaustive
from xla import AS_USERS


@pytest.fixture(autouse=True)
def two_matrices_at_once(monkeypatch):
    """Two of the size of two rows, one of all others: few tests have matrices that fill a cache."""
    monkeypatch.setattr("basinax.optimizers.quasi_newton.inverse_hessian.AT_ONCE", 2 * 8 * 8 * 8)


SIZES = [3, 1, 8, 0, 5]
INDEX = SystemIndex.from_sizes(SIZES)
PARAMS = jnp.zeros((sum(SIZES), 3))


def symmetric_matrices(dtype):
    """Of every system, with eigenvalues of both signs and of sizes from 1e-3 to 1e3."""
    draw, matrices = np.random.default_rng(0), []
    for size in SIZES:
        q, _ = np.linalg.qr(draw.normal(size=(3 * size, 3 * size)))
        values = 10.0 ** draw.uniform(-2, 2, 3 * size) * draw.choice([-1, 1], 3 * size)
        matrices.append(((q * values) @ q.T).astype(dtype))
    return matrices


def with_matrices(matrices, dtype):
    hessian = unit_matrix(PARAMS.astype(dtype), INDEX, jnp.ones(len(SIZES), dtype), None)
    places = np.zeros(hessian.matrix.shape, dtype)
    for system, matrix in enumerate(matrices):
        places[system, : len(matrix), : len(matrix)] = matrix
    doubtful = jnp.zeros(len(SIZES), bool)
    return InverseHessian(None, jnp.asarray(places), doubtful, hessian.rows)


def test_a_newton_step_is_that_of_absolute_eigenvalues():
    dtype = np.float64
    matrices = symmetric_matrices(dtype)
    hessian = with_matrices(matrices, dtype)
    gradient = jnp.asarray(np.random.default_rng(1).normal(size=PARAMS.shape), dtype)
    places = Places(hessian, gradient)
    everyone = jnp.ones(len(SIZES), bool)
    step_of = jax.jit(lambda h, g: newton_step(h, places, g, everyone))
    vector, _ = step_of(hessian, places.gather(gradient))
    step = np.asarray(places.scatter(vector))
    start = 0
    for size, matrix in zip(SIZES, matrices, strict=True):
        rows = slice(start, start + size)
        values, vectors = np.linalg.eigh(matrix.astype(np.float64))
        inner = vectors.T @ np.asarray(gradient[rows], np.float64).ravel()
        expected = -(vectors @ (np.abs(values) * inner)).reshape(-1, 3)
        tolerance = 2000 * np.finfo(dtype).eps * np.abs(matrix).max(initial=0)
        np.testing.assert_allclose(step[rows], expected, rtol=0, atol=tolerance)
        start += size


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9])
def test_every_system_of_the_mask_is_worked_on_once(n):
    """Two at a time; the last two may begin with one that is done."""
    for mask in (np.arange(n) % 3 != 1, np.arange(n) == n - 1, np.zeros(n, bool)):
        matrices, numbers = jnp.zeros((n, 8, 8)), jnp.arange(1.0, n + 1)

        def count(mask, matrices, numbers):
            change = jnp.where(mask, numbers, 0)
            return matrices + change[:, None, None]

        found = jax.jit(functools.partial(few_at_once, count))(mask, matrices, numbers)
        assert (np.asarray(found) == np.where(mask, numbers, 0)[:, None, None]).all()


def test_gathering_and_scattering_are_inverse():
    hessian = unit_matrix(PARAMS, INDEX, jnp.ones(len(SIZES)), None)
    tree = jnp.asarray(np.random.default_rng(1).normal(size=PARAMS.shape))
    places = Places(hessian, tree)
    assert np.array_equal(places.scatter(places.gather(tree)), tree)


OPTIMIZERS = {
    "BFGS": BFGS(),
    "BFGSLineSearch": BFGSLineSearch(),
    "LBFGSLineSearch": LBFGSLineSearch(memory=4),
    "ConjugateGradient": ConjugateGradient(),
}


def relaxed(name, batch):
    # None converges to this, so everyone runs to the end; searches end where rounding ends them.
    return relax(
        batch.evaluate,
        batch.params,
        OPTIMIZERS[name],
        index_prefix=batch.prefix,
        fmax=1e-13,
        max_steps=420,
    )


def outcome(batch, result, at):
    trees = [take(batch.prefix, tree, at) for tree in (result.params, result.gradients)]
    numbers = result.energies, result.fmax, result.steps, result.evaluations, result.status
    return trees + [np.asarray(x)[at] for x in numbers]


def outcome_alone(name, problem, system, dtype):
    alone = make_alone(problem, system, dtype)
    return outcome(alone, relaxed(name, alone), 0)


# A dense Hessian is as wide as the largest system: the small ones are compared. Those alone are of
# one size, since each size is one more program, and those of relaxations are the largest.
@pytest.mark.parametrize(
    ("name", "problem", "sizes", "layout", "dtype"),
    [
        exhaustive("BFGS", CELLS, (1, 1, 4), SHUFFLED_WITH_GAPS, np.float64),
        exhaustive("BFGS", MIXED, (9, 9, 9, 9), ALIGNED, np.float32),
        exhaustive("ConjugateGradient", MIXED, (9, 9, 9, 9), SHUFFLED_WITH_GAPS, np.float32),
        exhaustive("ConjugateGradient", MIXED, (9, 9, 9, 9), ALIGNED, np.float64),
        exhaustive("BFGSLineSearch", MIXED, (9, 9, 9, 9), ALIGNED, np.float32),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_systems_of_a_batch_end_as_if_alone(name, problem, sizes, layout, dtype):
    systems = make_systems(problem, *sizes, spoiled=True)
    batch = make_batch(problem, systems, layout, dtype)
    result = relaxed(name, batch)
    differing = [
        system.number
        for at, system in enumerate(systems)
        if system.sizes == systems[0].sizes
        and not same_bits(outcome(batch, result, at), outcome_alone(name, problem, system, dtype))
    ]
    assert differing == []


def update(optimizer, evaluate, params, state):
    energies, gradient = evaluate(params)
    step, state = optimizer.update(gradient, state, params, energies=energies)
    return apply_updates(params, step), state


# A traced length, so that each optimizer has one program in all tests of this problem.
@functools.partial(eqx.filter_jit, compiler_options=AS_USERS)
def _run(optimizer, evaluate, params, state, length):
    turn = lambda _, carry: update(optimizer, evaluate, *carry)  # noqa: E731
    return jax.lax.fori_loop(0, length, turn, (params, state))


run_quickly = eqx.filter_jit(_run.__wrapped__)


def run(optimizer, evaluate, params, state, length, program=run_quickly):
    return program(optimizer, evaluate, params, state, jnp.asarray(length))


# Every day of the one with a matrix and a search. That none leaves a rounding to the compiler,
# test_order_of_transforms.py shows every day.
a_few = pytest.mark.parametrize(
    ("name", "program"),
    [
        pytest.param("BFGSLineSearch", run_quickly, id="BFGSLineSearch-quick"),
        exhaustive("ConjugateGradient", run_quickly, id="ConjugateGradient-quick"),
        *(exhaustive(name, _run, id=f"{name}-users") for name in OPTIMIZERS),
    ],
)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        pair if pair in {("BFGS", 17), ("LBFGSLineSearch", 1)} else exhaustive(*pair)
        for pair in itertools.product(OPTIMIZERS, (1, 4, 17))
    ],
)
def test_a_system_that_is_reset_starts_afresh_and_the_others_do_not(name, at):
    optimizer = OPTIMIZERS[name]
    batch = wells_batch(2, 1, 2)
    begin = started(name, batch)
    params, state = run(optimizer, batch.evaluate, batch.params, begin, at)
    mask = jnp.array([False, True, False])
    fresh = jnp.where((batch.prefix.ids == 1)[:, None], batch.params, params)
    after, _ = run(optimizer, batch.evaluate, fresh, reset(optimizer, state, fresh, mask), 12)
    undisturbed, _ = run(optimizer, batch.evaluate, params, state, 12)
    anew, _ = run(optimizer, batch.evaluate, batch.params, begin, 12)
    for system, expected in ((0, undisturbed), (1, anew), (2, undisturbed)):
        got = take(batch.prefix, after, system)
        assert same_bits(got, take(batch.prefix, expected, system))


@functools.cache
def wells_batch(*sizes, padding=np.nan):
    return make_batch(WELLS, make_systems(WELLS, *sizes), ALIGNED, np.float64, padding)


def started(name, batch):
    return OPTIMIZERS[name].init(batch.params, batch.prefix)


@a_few
def test_a_system_beside_one_that_is_not_a_number_runs_as_if_alone(name, program):
    """Step by step, as relaxations are large programs: some are in engine/test_optimizers.py.

    States are not compared: those of dense matrices hold the numbers of the system's rows.
    """
    optimizer, batch = OPTIMIZERS[name], wells_batch(2, 1, 2)
    alone = make_alone(WELLS, batch.systems[2], np.float64)
    params = jnp.where((batch.prefix.ids == 0)[:, None], jnp.nan, batch.params)
    begin = optimizer.init(params, batch.prefix)
    alone_begin = optimizer.init(alone.params, alone.prefix)
    for length in (3, 12, 40, 420):
        together, _ = run(optimizer, batch.evaluate, params, begin, length, program)
        expected, _ = run(optimizer, alone.evaluate, alone.params, alone_begin, length)
        assert same_bits(take(batch.prefix, together, 2), take(alone.prefix, expected, 0))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_order_of_systems_changes_no_bit(name):
    batch = wells_batch(2, 1, 2)
    turned = make_batch(WELLS, batch.systems[::-1], ALIGNED, np.float64)
    after = [
        run(OPTIMIZERS[name], b.evaluate, b.params, started(name, b), 25)[0]
        for b in (batch, turned)
    ]
    for system in range(3):
        got = take(turned.prefix, after[1], 2 - system)
        assert same_bits(got, take(batch.prefix, after[0], system))


@pytest.mark.parametrize("name", ["BFGS", "BFGSLineSearch", "LBFGSLineSearch"])
def test_a_memory_stays_as_it_is_where_no_step_will_be_made(name):
    """As where a system waits for its list: what was evaluated belongs to another point."""
    optimizer, batch = OPTIMIZERS[name], wells_batch(2, 1, 2)
    params, state = run(optimizer, batch.evaluate, batch.params, started(name, batch), 10)
    step, n_learned = jax.jit(optimizer.update), 0

    def memory(state, at):
        (own,) = state.hessians if name == "BFGS" else state.memories
        return take_state(own, at, batch.prefix)

    for turn in range(32):
        running = jnp.array([True, turn % 2 == 0, True])
        energies, gradient = batch.evaluate(params)
        known = {"energies": energies, "is_running": running}
        move, after = step(gradient, state, params, **known)
        is_same = same_bits(memory(after, 1), memory(state, 1))
        assert is_same or running[1]
        n_learned += not is_same
        params = segment.where(running, apply_updates(params, move), params, batch.prefix)
        state = stepped(running, after, state)
    assert n_learned


def parts(name, padding):
    """Params and states of the systems after some steps, with that in rows of no system."""
    batch = wells_batch(2, 1, 2, padding=padding)
    params, state = run(OPTIMIZERS[name], batch.evaluate, batch.params, started(name, batch), 20)
    return [
        (take(batch.prefix, params, at), take_state(state, at)) for at in range(len(batch.systems))
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_padding_changes_no_bit_whatever_it_holds(name):
    expected = parts(name, 0.0)
    differing = [x for x in (np.nan, np.inf, -1e30) if not same_bits(parts(name, x), expected)]
    assert differing == []


def without_tilt(batch):
    flat = jnp.zeros_like(batch.params)
    return eqx.tree_at(lambda evaluate: evaluate.constants["tilt"], batch.evaluate, flat)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_of_zero_moves_nothing(name):
    """At the bottom of wells without tilt."""
    batch = wells_batch(2, 1, 2)
    flat = without_tilt(batch)
    bottom, state = jnp.ones_like(batch.params), started(name, batch)
    for _ in range(3):
        params, state = run(OPTIMIZERS[name], flat, bottom, state, 1)
        assert same_bits(np.asarray(params), np.asarray(bottom))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_vanishes_after_steps_leaves_everything_finite(name):
    batch = wells_batch(2, 1, 2)
    flat, is_row = without_tilt(batch), np.asarray(batch.prefix.ids) < 3
    state = run(OPTIMIZERS[name], batch.evaluate, batch.params, started(name, batch), 9)[1]
    params = jnp.ones_like(batch.params)
    for _ in range(3):
        params, state = run(OPTIMIZERS[name], flat, params, state, 1)
        assert np.isfinite(np.asarray(params)[is_row]).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_is_the_carry_of_a_loop(name):
    batch = wells_batch(2, 1, 2)
    begin = (batch.params, started(name, batch))
    turn = eqx.Partial(update, OPTIMIZERS[name], batch.evaluate)
    after = jax.eval_shape(turn, *begin)
    assert jax.tree.structure(after) == jax.tree.structure(begin)
    shapes = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]  # noqa: E731
    assert shapes(after) == shapes(begin)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_systems_and_later_steps_compile_nothing(name, count_compilations):
    batch = wells_batch(2, 1, 2)
    run(OPTIMIZERS[name], batch.evaluate, batch.params, started(name, batch), 2)
    others = wells_batch(1, 2, 2)
    begin = started(name, others)
    with count_compilations() as compiled:
        run(OPTIMIZERS[name], others.evaluate, others.params, begin, 20)
    assert compiled.count == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_jitted_step_is_that_of_one_operation_at_a_time(name):
    optimizer, batch = OPTIMIZERS[name], wells_batch(2, 1, 2)
    begin = optimizer.init(batch.params, batch.prefix)
    params, state = run(optimizer, batch.evaluate, batch.params, begin, 4)
    expected = run(optimizer, batch.evaluate, params, state, 1, _run)
    with jax.disable_jit():
        got = update(optimizer, batch.evaluate, params, state)
    assert same_bits(jax.tree.map(np.asarray, got), jax.tree.map(np.asarray, expected))


def test_the_eigenvalues_are_needed_in_these_tests():
    optimizer, batch = OPTIMIZERS["BFGS"], wells_batch(2, 1, 2)
    _, state = run(
        optimizer, batch.evaluate, batch.params, optimizer.init(batch.params, batch.prefix), 4
    )
    assert not np.any(state.hessians[0].is_definite)


def test_a_hessian_that_has_become_definite_is_known_to_be():
    optimizer, batch = OPTIMIZERS["BFGS"], wells_batch(2, 1, 2)
    _, state = run(
        optimizer, batch.evaluate, batch.params, optimizer.init(batch.params, batch.prefix), 9
    )
    assert np.all(state.hessians[0].is_definite)


def test_a_traced_start_needs_the_most_rows():
    traced = jax.jit(lambda x, index: BFGS().init(x, index).has_last)
    with pytest.raises(ValueError, match="give max_rows, the most rows of a system"):
        traced(PARAMS, INDEX)
    bounded = jax.jit(lambda x, index: BFGS(max_rows=8).init(x, index))
    assert same_bits(bounded(PARAMS, INDEX), BFGS().init(PARAMS, INDEX))


@pytest.mark.parametrize("optimizer", [BFGS(max_rows=3), BFGS()])
def test_systems_without_rows_have_no_places(optimizer):
    state = optimizer.init(np.zeros((0, 3)), SystemIndex.from_sizes([0, 0]))
    assert state.hessians[0].matrix.shape == (2, 0, 0)


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="max_rows=7, but a system has 8 rows"):
        BFGS(max_rows=7).init(PARAMS, INDEX)
