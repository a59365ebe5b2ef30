"""Line searches against ASE's, many at once, and what becomes of one that fails."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.utils.linesearch import LineSearch
from ase.utils.linesearcharmijo import LineSearchArmijo

from basinax import (
    LBFGS,
    Armijo,
    BFGSLineSearch,
    ConjugateGradient,
    LBFGSLineSearch,
    MaxStepSize,
    MoreThuente,
    Status,
    SystemIndex,
    chain,
    relax,
    rounded,
    segment,
)
from cover import every_day, exhaustive, one_in

N_LINES = 120
SEARCHERS = {
    "LBFGSLineSearch": LBFGSLineSearch(memory=10),
    "BFGSLineSearch": BFGSLineSearch(),
    "ConjugateGradient": ConjugateGradient(),
    "Armijo": LBFGSLineSearch(memory=10, search=Armijo()),
}


def lines():
    """Quartics with a slope of any size downhill at 0, some with several minima."""
    draw = np.random.default_rng(0)
    slope = -(10.0 ** draw.uniform(-2, 2, N_LINES))
    bend = draw.normal(size=N_LINES) * 10.0 ** draw.uniform(-1, 2, N_LINES)
    skew = draw.normal(size=N_LINES) * 10.0 ** draw.uniform(-1, 1, N_LINES)
    wall = 10.0 ** draw.uniform(-2, 2, N_LINES)
    return np.stack([slope, bend, skew, wall])


def energy(line, t):
    return line[0] * t + line[1] * t**2 / 2 + line[2] * t**3 / 3 + line[3] * t**4 / 4


def slope(line, t):
    return line[0] + line[1] * t + line[2] * t**2 + line[3] * t**3


def search_all(search, longest):
    """The trials of each search, and where it is accepted; None where it has failed."""
    line = jnp.asarray(lines())
    zero, one = jnp.zeros(N_LINES), jnp.ones(N_LINES)
    begin, step = jax.jit(search.begin), jax.jit(search.step)
    trial, state, is_impossible = begin(zero, line[0], jnp.asarray(longest), one)
    assert not is_impossible.any()
    trials, ends = [[] for _ in range(N_LINES)], [None] * N_LINES
    going = np.ones(N_LINES, bool)
    while going.any():
        for k in np.flatnonzero(going):
            trials[k].append(float(trial[k]))
        verdict, state = step(state, trial, energy(line, trial), slope(line, trial))
        for k in np.flatnonzero(going & np.asarray(verdict.is_accepted)):
            ends[k] = float(trial[k])
        going &= ~np.asarray(verdict.is_accepted | verdict.has_failed)
        trial = verdict.trial
    return trials, ends


def test_more_thuente_tries_what_ase_tries():
    longest = np.random.default_rng(1).uniform(0.02, 2.0, N_LINES)
    trials, ends = search_all(MoreThuente(maxstep=0.2, max_trials=1000), longest)
    more_than_one = 0
    for k, line in enumerate(lines().T):
        tried = []

        def function(x, line=line, tried=tried):
            tried.append(x[0])
            return energy(line, x[0])

        search = LineSearch(get_gradient_norm=lambda p, k=k: abs(p[0]) * longest[k])
        found = search._line_search(
            function,
            lambda x, line=line: np.array([slope(line, x[0])]),
            np.zeros(1),
            np.ones(1),
            np.array([line[0]]),
            0.0,
            None,
            maxstep=0.2,
        )[0]
        np.testing.assert_allclose(trials[k], tried, rtol=1e-9)
        np.testing.assert_allclose(ends[k], found, rtol=1e-9)
        more_than_one += len(tried) > 3
    assert more_than_one > 20


def test_armijo_tries_what_ase_tries():
    longest = np.random.default_rng(1).uniform(0.02, 2.0, N_LINES)
    trials, ends = search_all(Armijo(maxstep=0.2), longest)
    more_than_one = 0
    for k, line in enumerate(lines().T):
        tried = []

        def function(x, line=line, tried=tried, k=k):
            tried.append(x[0] / longest[k])
            return energy(line, x[0] / longest[k])

        found = LineSearchArmijo(function).run(
            np.zeros(3),
            np.array([longest[k], 0, 0]),
            func_start=0.0,
            func_prime_start=np.array([line[0] / longest[k], 0, 0]),
            maxstep=0.2,
        )[0]
        np.testing.assert_allclose(trials[k], tried, rtol=1e-9)
        np.testing.assert_allclose(ends[k], found, rtol=1e-9)
        more_than_one += len(tried) > 1
    assert more_than_one > 20


def test_armijo_guesses_from_the_last_energy_as_ase_does():
    search = Armijo(maxstep=10.0)
    last = jnp.array([1.2, 1.05, 7.0, jnp.nan])
    start = (jnp.ones(4), jnp.full(4, -0.5), jnp.full(4, 0.1), jnp.ones(4))
    trial, _, _ = search.begin(*start, last)
    expected = []
    for energy_before in (1.2, 1.05, 7.0, None):
        ase = LineSearchArmijo(lambda x: 1.0)
        guess = ase.handle_args(
            np.zeros(3),
            np.array([0.1, 0, 0]),
            None,
            None,
            None,
            1.0,
            energy_before,
            np.array([-5.0, 0, 0]),
            10.0,
        )
        expected.append(1.0 if abs(guess - 1) <= 0.5 else guess)
    np.testing.assert_allclose(trial, expected, rtol=1e-14)


INDEX = SystemIndex.from_sizes([4, 6, 2])
ROWS = [slice(0, 4), slice(4, 10), slice(10, 12)]
START = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, (12, 3)))
STIFFNESS = jnp.asarray(np.random.default_rng(1).uniform(1, 300, (12, 3)))


class Bowl(eqx.Module):
    """In systems that lie, the energy rises along the negative gradient, wherever one goes.

    Below the floor of its system, an energy is no number.
    """

    lies: jax.Array
    floor: jax.Array

    def __call__(self, x):
        gradient = rounded(STIFFNESS * x)
        energies = rounded(0.5 * segment.dot(gradient, x, INDEX))
        energies = jnp.where(energies > self.floor, energies, jnp.nan)
        return jnp.where(self.lies, -energies, energies), gradient


NO_FLOOR = jnp.full(3, -1.0)
bowl = Bowl(jnp.zeros(3, bool), NO_FLOOR)
lying = Bowl(jnp.arange(3) == 1, NO_FLOOR)


@functools.cache
def relaxed(name):
    return relax(bowl, START, SEARCHERS[name], index_prefix=INDEX, fmax=1e-6)


# Their searches are those of all.
TWO_SEARCHERS = every_day(SEARCHERS.keys(), ("LBFGSLineSearch", "ConjugateGradient").__contains__)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SEARCHERS)
def test_trials_are_evaluations_and_no_steps(name):
    result = relaxed(name)
    assert np.all(result.converged)
    assert np.all(result.evaluations > result.steps)
    assert np.array_equal(result.energies, jax.jit(lambda x: bowl(x)[0])(result.params))


@pytest.mark.parametrize("name", every_day(SEARCHERS.keys(), ("ConjugateGradient",).__contains__))
def test_a_failed_search_ends_its_system_where_it_began_and_no_other(name):
    result = relax(lying, START, SEARCHERS[name], index_prefix=INDEX, fmax=1e-6)
    undisturbed = relaxed(name)
    assert Status(int(result.status[1])) is Status.LINE_SEARCH_FAILED
    np.testing.assert_allclose(result.params[ROWS[1]], START[ROWS[1]], rtol=1e-15)
    assert result.steps[1] == 1
    for system in (0, 2):
        assert np.array_equal(result.params[ROWS[system]], undisturbed.params[ROWS[system]])
        assert result.evaluations[system] == undisturbed.evaluations[system]
        assert result.status[system] == Status.CONVERGED.code


@pytest.mark.exhaustive
@pytest.mark.parametrize("search", [Armijo(a_min=0.0), MoreThuente(stpmax=0.5)], ids=repr)
def test_a_first_trial_is_a_step_in_range(search):
    optimizer = LBFGSLineSearch(search=search)
    result = relax(bowl, START, optimizer, index_prefix=INDEX, fmax=1e-3, max_steps=2000)
    assert np.all(result.converged)


@pytest.mark.exhaustive
def test_a_search_that_fails_is_repeated_once_along_the_gradient():
    """Below 0.7 of the first energy there is none: a memory that points there is forgotten."""
    optimizer = LBFGSLineSearch(memory=10, search=MoreThuente(max_trials=1))
    first = bowl(START)[0]
    cliff = Bowl(jnp.zeros(3, bool), 0.7 * first)
    result = relax(cliff, START, optimizer, index_prefix=INDEX, fmax=1e-6)
    assert np.all(result.status == Status.LINE_SEARCH_FAILED.code)
    assert np.all(np.isfinite(result.energies))
    assert np.all(result.energies <= first)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["ConjugateGradient", "LBFGSLineSearch"])
def test_a_limit_behind_a_search_is_noticed(name):
    optimizer = chain(SEARCHERS[name], MaxStepSize(0.03))
    result = relax(bowl, START, optimizer, index_prefix=INDEX, fmax=1e-6, max_steps=2000)
    assert np.all(result.converged)


@pytest.mark.parametrize("name", SEARCHERS)
def test_energies_are_needed(name):
    optimizer = SEARCHERS[name]
    with pytest.raises(TypeError, match=r"needs energies: call update\(..., energies="):
        optimizer.update(START, optimizer.init(START, INDEX), START)
    with pytest.raises(ValueError, match="energies must be one a system"):
        optimizer.update(START, optimizer.init(START, INDEX), START, energies=jnp.zeros(77))


@pytest.mark.exhaustive
def test_fewer_steps_than_without_a_search():
    plain = relax(bowl, START, LBFGS.ase(), index_prefix=INDEX, fmax=1e-6)
    assert np.all(relaxed("LBFGSLineSearch").steps < plain.steps)


def test_conjugate_gradients_take_as_long_along_soft_directions_as_along_stiff_ones():
    curvatures = np.geomspace(1e3, 1e-3, 7)
    index, k = SystemIndex.from_sizes([1] * 7), jnp.asarray(curvatures)[:, None]

    def bowls(x):
        gradient = rounded(k * x)
        return rounded(0.5 * segment.dot(gradient, x, index)), gradient

    start, fmax = jnp.ones((7, 3)), 1e-4 * curvatures
    result = relax(bowls, start, ConjugateGradient(), index_prefix=index, fmax=fmax)
    assert np.all(result.converged)
    # The farthest minimum is 70,000 times as far as the first trial, which is seven trials more.
    assert np.all(result.evaluations < 20)


def far_starts(dtype):
    """Stiffness, start, and where the energy is a number: one system each."""
    huge, tiny = (1e30, 1e-12) if dtype == np.float32 else (1e150, 1e-120)
    everywhere = -np.inf
    return {
        "4 rows": (2.0, np.arange(4.0, 16.0).reshape(4, 3), everywhere),
        "farther than a search goes": (1.0, np.full((3, 3), 40.0), everywhere),
        "steep": (1e12, np.full((2, 3), 1.0), everywhere),
        "huge": (huge, np.full((2, 3), 1.0), everywhere),
        "shallow": (0.2, np.full((2, 3), 3.0), everywhere),
        "next to none": (1.0, np.full((2, 3), tiny), everywhere),
        "at the minimum": (1.0, np.zeros((1, 3)), everywhere),
        "no rows": (1.0, np.zeros((0, 3)), everywhere),
        "narrow": (np.geomspace(0.1, 300, 12).reshape(4, 3), np.full((4, 3), 1.0), everywhere),
        "beside a hole": (2.0, np.full((1, 3), 1.0), 0.5),
        "far from a hole": (2.0, np.full((2, 3), 9.0), 0.5),
    }


class Bowls(eqx.Module):
    """0.5 k x² of all entries, no number where one of them is below the edge of its system."""

    stiffness: jax.Array
    edges: jax.Array
    index: SystemIndex

    def __call__(self, x):
        gradient = rounded(self.stiffness * x)
        energies = rounded(0.5 * segment.dot(gradient, x, self.index))
        return jnp.where(-segment.max(-x, self.index) < self.edges, jnp.nan, energies), gradient


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        exhaustive("LBFGSLineSearch", np.float32),
        exhaustive("BFGSLineSearch", np.float64),
        ("ConjugateGradient", np.float32),
        exhaustive("Armijo", np.float64),
    ],
)
def test_from_every_start_the_lowest_point_remains_and_the_status_is_true(name, dtype):
    names, starts = list(far_starts(dtype)), list(far_starts(dtype).values())
    index = SystemIndex.from_sizes([len(start) for _, start, _ in starts])
    stiffness = np.concatenate([np.broadcast_to(k, start.shape) for k, start, _ in starts])
    x = jnp.asarray(np.concatenate([start for _, start, _ in starts]), dtype)
    edges = np.array([edge for _, _, edge in starts], dtype)
    problem = Bowls(jnp.asarray(stiffness, dtype), jnp.asarray(edges), index)
    fmax = np.array([1e-3 * np.max(k, initial=0) for k, _, _ in starts], dtype)
    first = np.asarray(problem(x)[0])
    result = relax(problem, x, SEARCHERS[name], index_prefix=index, fmax=fmax, max_steps=400)
    got = {n: Status(int(status)).name for n, status in zip(names, result.status, strict=True)}
    holes = {n for n in names if "hole" in n}
    assert {got[n] for n in set(names) - holes} == {"CONVERGED"}
    assert {got[n] for n in holes} <= {"LINE_SEARCH_FAILED", "MAX_STEPS"}
    assert np.isfinite(result.params).all()
    assert (np.asarray(result.energies) < first)[np.asarray(result.steps) > 0].all()
    # At the edge of the hole: 0.25 for each entry.
    near = np.array([e for n, e in zip(names, result.energies, strict=True) if n in holes])
    np.testing.assert_allclose(near, [0.75, 1.5], rtol=0.3)


@pytest.mark.parametrize("name", one_in(2, TWO_SEARCHERS))
def test_after_too_few_steps_a_far_start_is_lower_than_before(name):
    results = [
        relax(bowl, START + 30, SEARCHERS[name], index_prefix=INDEX, max_steps=n) for n in range(4)
    ]
    assert all((result.status == Status.MAX_STEPS.code).all() for result in results)
    assert (np.diff([result.energies for result in results], axis=0) < 0).all()
