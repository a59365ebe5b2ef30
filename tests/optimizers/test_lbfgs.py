"""L-BFGS: the recursion on coefficients against the two loops, and what a history keeps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import LBFGS, SystemIndex, apply_updates, relax, reset, rounded, segment, where_systems
from basinax.numerics.elementary import exp
from basinax.optimizers.quasi_newton.history import (
    PairHistory,
    _coefficients,
    _filled,
    _one_by_one,
    _side_by_side,
)
from cases import same_bits, without_branches
from cover import exhaustive, named_daily

SIZES = [4, 1, 7]
INDEX = SystemIndex.from_sizes(SIZES, align=8)
ROWS = [slice(0, 4), slice(8, 9), slice(16, 23)]
WALL = jnp.asarray(np.random.default_rng(2).uniform(5, 20, (INDEX.n_rows, 2)))


@jax.jit
def valley(x):
    """Rosenbrock's, a row each."""
    u, v, wall = x[:, 0], x[:, 1], WALL[:, 0]
    off, past = v - rounded(u * u), u - 1.0
    slope = rounded(wall * off)
    energies = segment.dot(slope, off, INDEX) + segment.dot(past, past, INDEX)
    by_u = 2.0 * past - rounded(4.0 * rounded(slope * u))
    return energies, jnp.stack([by_u, 2.0 * slope], axis=1)


def start():
    draw = np.random.default_rng(0)
    return jnp.asarray(np.array([-1.2, 1.0]) + draw.normal(size=(INDEX.n_rows, 2)) * 0.3)


def two_loops(gradient, pairs, first):
    """-H g as Nocedal writes it."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alpha = (s * q).sum() / (s * y).sum()
        q = q - alpha * y
        alphas.append(alpha)
    z = first * q
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        z = z + (alpha - (y * z).sum() / (s * y).sum()) * s
    return -z


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_recursion_has_the_same_bits_for_systems_one_by_one_and_side_by_side(dtype):
    """For systems that have filled some of their slots, all of them, or none."""
    draw = np.random.default_rng(5)
    memory, pushes = 40, np.array([0, 3, 31, 32, 29, 70], np.int32)
    room = np.array([40, 40, 40, 40, 10, 32], np.int32)
    filled = np.minimum(pushes, room)
    is_filled = np.arange(memory) < filled[:, None]
    both = is_filled[:, :, None] & is_filled[:, None]
    sy, yy = draw.normal(size=(2, len(room), memory, memory)) * both
    sg, yg = draw.normal(size=(2, len(room), memory)) * is_filled
    sy, yy = (x + x.swapaxes(1, 2) for x in (sy, yy))
    numbers = {"sy": sy, "yy": yy, "sg": sg, "yg": yg}
    known = PairHistory(
        None,
        s=None,
        y=None,
        **{name: jnp.asarray(x, dtype) for name, x in numbers.items()},
        exponents=jnp.zeros(len(room), jnp.int32),
        pushes=jnp.asarray(pushes),
        room=jnp.asarray(room),
    )
    first = jnp.asarray(draw.uniform(0.01, 0.1, len(room)), dtype)
    few, every = (jax.jit(partial(_side_by_side, n))(known, first) for n in (32, memory))
    assert np.count_nonzero(few[0]) == filled.sum()
    assert same_bits(few, every)
    assert same_bits(few, jax.jit(_one_by_one)(known, first, jnp.asarray(filled)))
    running = _filled(known, jnp.asarray(room < 40))
    chosen = jax.jit(_coefficients)(known, first, running)
    assert same_bits(*([x[room < 40] for x in found] for found in (few, chosen)))


@pytest.mark.parametrize(
    ("memory", "is_scaled"), [exhaustive(1, False), (3, True), exhaustive(50, False)]
)
def test_steps_are_those_of_the_two_loop_recursion(memory, is_scaled):
    lbfgs = LBFGS(maxstep=0.3, memory=memory, is_scaled=is_scaled)
    update = jax.jit(lbfgs.update)
    x, state = start(), lbfgs.init(start(), INDEX)
    pairs, last, refused = [[] for _ in ROWS], None, 0
    for _ in range(30):
        gradient = valley(x)[1]
        step, state = update(gradient, state, x)
        for mine, rows in zip(pairs, ROWS, strict=True):
            here, slope = np.asarray(x)[rows], np.asarray(gradient)[rows]
            if last is not None:
                s, y = here - last[0][rows], slope - last[1][rows]
                is_kept = (s * y).sum() > 1e-8 * np.linalg.norm(s) * np.linalg.norm(y)
                refused += not is_kept
                mine += [(s, y)] * int(is_kept)
                del mine[: -min(memory, max(here.size, 10))]
            first = 1 / 70
            if is_scaled and last is not None:
                first = (s * y).sum() / (y**2).sum()
                if not is_kept:
                    first = np.linalg.norm(s) / np.linalg.norm(y)
            expected = two_loops(slope, mine, first)
            expected *= min(1, 0.3 / np.linalg.norm(expected, axis=1).max())
            np.testing.assert_allclose(step[rows], expected, rtol=1e-6, atol=1e-9)
        last = (np.asarray(x), np.asarray(gradient))
        x = apply_updates(x, step)
    assert refused > 0


OF_FIVE = LBFGS(memory=5)
update_of_five = jax.jit(OF_FIVE.update)


@pytest.mark.parametrize("at", named_daily({"empty": 1, "filling": 3, "full": 11}, ["filling"]))
def test_a_system_that_is_reset_starts_afresh_and_the_others_do_not(at):
    def run(x, state, length):
        for _ in range(length):
            step, state = update_of_five(valley(x)[1], state, x)
            x = apply_updates(x, step)
        return x, state

    x, state = run(start(), OF_FIVE.init(start(), INDEX), at)
    mask = jnp.array([False, True, True])
    fresh = segment.where(mask, start(), x, INDEX)
    after, _ = run(fresh, reset(OF_FIVE, state, fresh, mask), 12)
    undisturbed, _ = run(x, state, 12)
    anew, _ = run(start(), OF_FIVE.init(start(), INDEX), 12)
    assert np.array_equal(after[ROWS[0]], undisturbed[ROWS[0]])
    assert np.array_equal(after[ROWS[1]], anew[ROWS[1]])
    assert np.array_equal(after[ROWS[2]], anew[ROWS[2]])


def test_pairs_of_a_system_that_does_not_run_stay_as_they_are():
    x, state = start(), OF_FIVE.init(start(), INDEX)

    def gradient(x):
        return segment.without_padding(valley(x)[1], INDEX)

    for _ in range(4):
        step, state = update_of_five(gradient(x), state, x)
        x = apply_updates(x, step)
    runs = jnp.array([True, False, True])
    everyone = update_of_five(gradient(x), state, x)[1]
    some = update_of_five(gradient(x), state, x, is_running=runs)[1]
    expected = where_systems(runs, everyone, state).histories
    assert not same_bits(everyone.histories, expected)
    assert same_bits(some.histories, expected)


def test_slots_that_others_have_filled_change_no_bit():
    """A system that joins late has an empty history beside full ones."""
    x, state = start(), OF_FIVE.init(start(), INDEX)
    for _ in range(9):
        step, state = update_of_five(valley(x)[1], state, x)
        x = apply_updates(x, step)
    late = reset(OF_FIVE, state, x, jnp.array([True, False, False]))
    other, alone = x, OF_FIVE.init(x, INDEX)
    for _ in range(10):
        step, late = update_of_five(valley(x)[1], late, x)
        x = apply_updates(x, step)
        step, alone = update_of_five(valley(other)[1], alone, other)
        other = apply_updates(other, step)
        assert np.asarray(x[ROWS[0]]).tobytes() == np.asarray(other[ROWS[0]]).tobytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("memory", [8, 100])
def test_loops_through_all_slots_have_the_bits_of_those_that_end(memory):
    """As on a GPU; over more than 400 steps, with few pairs and with full histories."""

    def walked():
        optimizer = LBFGS(maxstep=0.02, memory=memory)
        return relax(valley, start(), optimizer, index_prefix=INDEX, fmax=0.0, max_steps=430)

    ending = walked()
    with without_branches():
        through_all = walked()
    assert (np.asarray(ending.steps) > 100).all()
    for a, b in zip(jax.tree.leaves(ending), jax.tree.leaves(through_all), strict=True):
        assert same_bits(a, b)


@pytest.mark.exhaustive
def test_a_bounded_history_beside_larger_systems_is_that_of_the_system_alone():
    """Room for 10, 10 and 14 pairs, in 30 steps."""
    lbfgs = LBFGS(maxstep=0.3)
    update = jax.jit(lbfgs.update)
    x, state = start(), lbfgs.init(start(), INDEX)
    assert state.histories[0].room.tolist() == [10, 10, 14]
    for _ in range(30):
        step, state = update(valley(x)[1], state, x)
        x = apply_updates(x, step)
    for k in (1, 2):  # with less room than the batch, and with as much
        rows = ROWS[k]
        mine = SystemIndex.from_ids(jnp.where(INDEX.ids == k, 0, -1), 1)
        alone, state = start(), lbfgs.init(start(), mine)
        for _ in range(30):
            step, state = update(valley(alone)[1], state, alone)
            alone = apply_updates(alone, step)
        assert same_bits(alone[rows], x[rows])


def test_a_bounded_history_takes_no_more_memory_than_the_largest_system_can_use():
    index = SystemIndex.from_sizes([1] * 1000)

    def shape(lbfgs, n_rows, index=None):
        state = jax.eval_shape(lambda x: lbfgs.init(x, index), jnp.ones((n_rows, 3)))
        return state.histories[0].sy.shape

    assert shape(LBFGS(), 1000, index) == (1000, 24, 24)
    assert shape(LBFGS.ase(), 1000, index) == (1000, 100, 100)
    assert shape(LBFGS(), 40) == (1, 100, 100)
    assert shape(LBFGS(), 2) == (1, 10, 10)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("dtype", [exhaustive("float32"), "float64"])
def test_far_out_where_the_curvature_is_negative_steps_are_long(dtype):
    """Wells of a Gaussian, from their tails: forces of 1e-4 and less, and no pair is kept."""
    sizes = [3, 1, 8, 0, 17, 9]

    def ends(sizes, x):
        index = SystemIndex.from_sizes(sizes, align=8)
        rows = np.asarray(index.ids) < len(sizes)
        whole = np.zeros((index.n_rows, 2), dtype)
        whole[rows] = x

        def wells(x):
            squares = rounded(x * x)
            depths = rounded(0.01 * exp(-0.125 * (squares[:, 0] + squares[:, 1])))
            return -index.sum(depths), rounded(rounded(0.25 * depths[:, None]) * x)

        result = relax(wells, jnp.asarray(whole), LBFGS(), index_prefix=index, fmax=1e-6)
        return result, np.asarray(result.params)[rows]

    draw = np.random.default_rng(3).normal(size=(sum(sizes), 2))
    far = 5 * draw / np.linalg.norm(draw, axis=1)[:, None]
    result, params = ends(sizes, far)
    assert np.all(result.converged)
    assert int(result.evaluations.max()) <= 40
    for k, mine in ((1, slice(3, 4)), (4, slice(12, 29))):
        alone, own = ends([sizes[k]], far[mine])
        assert same_bits(own, params[mine])
        assert same_bits(alone.energies[0], result.energies[k])
        assert alone.evaluations[0] == result.evaluations[k]


@pytest.mark.exhaustive
def test_fewer_evaluations_than_with_ase_settings():
    ours = relax(valley, start(), LBFGS(), index_prefix=INDEX, fmax=1e-6, max_steps=1000)
    theirs = relax(valley, start(), LBFGS.ase(), index_prefix=INDEX, fmax=1e-6, max_steps=1000)
    assert np.all(ours.converged)
    assert int(ours.evaluations.sum()) < int(theirs.evaluations.sum())


def test_no_pair_is_no_history():
    with pytest.raises(ValueError, match="memory must be at least 1, got 0"):
        LBFGS(memory=0).init(start(), INDEX)
