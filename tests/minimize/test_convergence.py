"""Criteria: what each compares, how they combine, and that a system's do not look at others."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    FIRE,
    AbstractCriterion,
    ConjugateGradient,
    EnergyChange,
    Evidence,
    ForceNorm,
    GradientDescent,
    MaxDisplacement,
    MaxForce,
    RMSForce,
    Status,
    SystemIndex,
    apply_updates,
    largest_force,
    relax,
    rounded,
    segment,
)
from basinax.minimize.run import start
from cases import (
    ALIGNED,
    BOWL,
    CELLS,
    CONTIGUOUS,
    DTYPES,
    SHUFFLED_WITH_GAPS,
    in_turns,
    make_alone,
    make_batch,
    make_systems,
    same_bits,
    take,
)
from cover import cover, exhaustive, one_in
from xla import AS_USERS, one_by_one

SIZES = (13, 1, 40, 13)
# Laid out in one way for each dtype, so that single operations too are compiled once.
WITH_SPOILED = make_systems(BOWL, 13, 1, 13, 13, spoiled=True)
LAYOUTS_OF_DTYPES = {np.float32: ALIGNED, np.float64: SHUFFLED_WITH_GAPS}


@dataclasses.dataclass(frozen=True)
class Point:
    """Where one system stands: lists of leaves in NumPy, and its energy."""

    params: list[np.ndarray]
    gradients: list[np.ndarray]
    energy: float


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Any], AbstractCriterion]
    measure: Callable[[Point, Point], float]
    """Of a point and the last one, what is compared with the tolerance."""
    needs_last: bool = False

    def __str__(self) -> str:
        return self.name


def longest(leaves):
    return max(float(np.linalg.norm(x, axis=-1).max()) for x in leaves)


def square(leaves):
    return sum(float((x**2).sum()) for x in leaves)


CASES = [
    Case("MaxForce", MaxForce, lambda at, last: longest(at.gradients)),
    Case(
        "RMSForce",
        RMSForce,
        lambda at, last: np.sqrt(square(at.gradients) / sum(x.size for x in at.gradients)),
    ),
    Case("ForceNorm", ForceNorm, lambda at, last: np.sqrt(square(at.gradients))),
    Case(
        "EnergyChange",
        EnergyChange,
        lambda at, last: abs(at.energy - last.energy) / sum(len(x) for x in at.params),
        needs_last=True,
    ),
    Case(
        "EnergyChange of all",
        lambda tolerance: EnergyChange(tolerance, per_row=False),
        lambda at, last: abs(at.energy - last.energy),
        needs_last=True,
    ),
    Case(
        "MaxDisplacement",
        MaxDisplacement,
        lambda at, last: longest([x - y for x, y in zip(at.params, last.params, strict=True)]),
        needs_last=True,
    ),
]
OF_STEPS = [case for case in CASES if case.needs_last]


def leaves_of(tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


# --- one point


def energies_of(system, dtype=np.float64):
    """Now and at the last point."""
    return np.random.default_rng(system.number).normal(size=2).astype(dtype)


force_of = eqx.filter_jit(largest_force)


def evidence_of(problem, systems, layout, dtype) -> Evidence:
    """Drawn numbers: what is stiffness elsewhere are gradients, centres are the last parameters."""
    batch = make_batch(problem, systems, layout, dtype)
    energies = np.array([energies_of(system, dtype) for system in systems])
    constants = batch.evaluate.constants
    counts = [sum(len(leaf) for leaf in jax.tree.leaves(system.start)) for system in systems]
    return Evidence(
        params=batch.params,
        energies=jnp.asarray(energies[:, 0]),
        gradients=constants["stiffness"],
        extras=None,
        index_prefix=batch.prefix,
        n_rows=jnp.asarray(np.array(counts, np.int32)),
        has_last=jnp.asarray(np.ones(len(systems), bool)),
        last_energies=jnp.asarray(energies[:, 1]),
        last_params=constants["centre"],
        fmax=force_of(constants["stiffness"], batch.prefix),
    )


def measured(case, system) -> float:
    energy, last_energy = energies_of(system)
    gradients = leaves_of(system.constants["stiffness"])
    at = Point(leaves_of(system.start), gradients, energy)
    return case.measure(at, Point(leaves_of(system.constants["centre"]), gradients, last_energy))


def criterion_of(criterion, evidence):
    return criterion(evidence)


is_met = eqx.filter_jit(criterion_of)
is_met_as_users = eqx.filter_jit(criterion_of, compiler_options=AS_USERS)


@pytest.mark.parametrize(*cover("case, problem", CASES, [BOWL, CELLS], strength=1))
def test_a_criterion_is_met_below_its_tolerance(case, problem):
    """1e-12: NumPy adds in another order."""
    systems = make_systems(problem, *SIZES)
    evidence = evidence_of(problem, systems, ALIGNED, np.float64)
    values = np.array([measured(case, system) for system in systems])
    assert is_met(case.make(values * (1 + 1e-12)), evidence).all()
    assert not is_met(case.make(values * (1 - 1e-12)), evidence).any()


def plain_evidence(rows, index, energy) -> Evidence:
    """Of rows as gradients and as the last step, and a change of the energy."""
    energies = np.full(len(index), energy)
    return Evidence(
        params=rows,
        energies=energies,
        gradients=rows,
        extras=None,
        index_prefix=index,
        n_rows=index.sizes,
        has_last=np.ones(len(index), bool),
        last_energies=0 * energies,
        last_params=0 * rows,
        fmax=force_of(rows, index),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tolerance_is_met_from_below_and_not_where_equal(case):
    index = SystemIndex.from_sizes([1])
    evidence = plain_evidence(np.full((1, 4), 0.5), index, 1.0)
    value = 0.5 if case.name == "RMSForce" else 1.0
    assert not is_met(case.make(np.array(value)), evidence)[0]
    assert is_met(case.make(np.nextafter(value, 2)), evidence)[0]


@pytest.mark.parametrize("case", OF_STEPS, ids=str)
def test_a_criterion_of_steps_is_not_met_without_a_step(case):
    evidence = evidence_of(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    has_last = np.array([True, False, False, True])
    met = is_met(case.make(np.array(1e9)), evidence._replace(has_last=has_last))
    assert np.array_equal(met, has_last)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_system_without_rows_is_within_any_tolerance_but_zero(case):
    index = SystemIndex.from_sizes([0, 2])
    evidence = plain_evidence(np.ones((2, 3)), index, 0.0)
    assert is_met(case.make(np.array(1e-30)), evidence)[0]
    assert not is_met(case.make(np.array(0.0)), evidence)[0]


STEPS_AROUND = np.arange(-6, 7)
"""Tolerances lie so many of the least differences of the dtype from the value that NumPy finds."""


def met_around(case, problem, systems, layout, dtype, is_met):
    """`[tolerances, systems]`: where the criterion is met of tolerances next to the value."""
    evidence = evidence_of(problem, systems, layout, dtype)
    values = np.array([measured(case, system) for system in systems])
    values = np.where(np.isfinite(values), values, 1.0).astype(dtype)
    tolerances = values + STEPS_AROUND[:, None] * np.spacing(values)
    return np.array([is_met(case.make(t.astype(dtype)), evidence) for t in tolerances])


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
# The others are met by turns in a run, below; here are those that add up squares.
@pytest.mark.parametrize(
    "plain", [pytest.param(is_met, id="quick"), exhaustive(one_by_one(criterion_of), id="op by op")]
)
@pytest.mark.parametrize(("case", "dtype"), one_in(3, in_turns(CASES, DTYPES)[1:], first=0))
def test_the_least_tolerance_that_is_met_has_the_bits_that_it_has_alone(case, dtype, plain):
    layout = LAYOUTS_OF_DTYPES[dtype]
    together = met_around(case, BOWL, WITH_SPOILED, layout, dtype, is_met_as_users)
    alone = [met_around(case, BOWL, [s], CONTIGUOUS, dtype, is_met)[:, 0] for s in WITH_SPOILED]
    assert np.array_equal(together, np.transpose(alone))
    assert np.array_equal(met_around(case, BOWL, WITH_SPOILED, layout, dtype, plain), together)


# --- runs


def path_of(batch, optimizer, length):
    """So many plain steps, as points of each system."""
    evaluate = eqx.filter_jit(batch.evaluate)
    update = eqx.filter_jit(optimizer.update)
    params, state = batch.params, optimizer.init(batch.params, batch.prefix)
    paths = [[] for _ in batch.systems]
    for _ in range(length):
        energies, gradients = evaluate(params)
        for at, path in enumerate(paths):
            rows = (leaves_of(take(batch.prefix, tree, at)) for tree in (params, gradients))
            path.append(Point(*rows, float(energies[at])))
        step, state = update(gradients, state, params)
        params = apply_updates(params, step)
    return paths


def steps_to(case, path, tolerance) -> int:
    """The first point at which the criterion is met."""
    first = 1 if case.needs_last else 0
    return next(
        k for k in range(first, len(path)) if case.measure(path[k], path[k - 1]) < tolerance
    )


@functools.cache
def descent_of(problem):
    """The optimizer, the batch, and the paths of its systems."""
    batch = make_batch(problem, make_systems(problem, *SIZES), CONTIGUOUS, np.float64)
    optimizer = GradientDescent(0.1)
    return optimizer, batch, path_of(batch, optimizer, 60)


@pytest.mark.parametrize(("case", "problem"), in_turns(CASES, [BOWL, BOWL, CELLS]))
def test_a_run_ends_at_the_first_point_that_meets_its_criterion(case, problem):
    optimizer, batch, paths = descent_of(problem)
    tolerance = case.measure(paths[2][8], paths[2][7])
    result = relax(
        batch.evaluate,
        batch.params,
        optimizer,
        index_prefix=batch.prefix,
        convergence=case.make(np.full(len(paths), tolerance * 1.01)),
    )
    expected = [steps_to(case, path, tolerance * 1.01) for path in paths]
    assert result.steps.tolist() == expected
    assert result.converged.all()
    assert len(set(expected)) > 1


@pytest.mark.parametrize(("criterion", "steps"), [(RMSForce(1e9), 0), (EnergyChange(1e9), 1)])
def test_a_step_is_made_where_a_criterion_looks_at_one(criterion, steps):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES, spoiled=True), ALIGNED, np.float32)
    result = relax(
        batch.evaluate,
        batch.params,
        GradientDescent(0.02),
        index_prefix=batch.prefix,
        convergence=criterion,
    )
    assert result.steps.tolist() == [steps] * 4 + [0] * 3
    assert result.status.tolist() == [Status.CONVERGED.code] * 4 + [Status.NOT_FINITE.code] * 3


@pytest.mark.exhaustive
def test_trials_of_a_line_search_are_not_the_last_point():
    """Of two criteria in one run: each program of a line search takes long to compile."""
    energy, step = OF_STEPS[::2]
    optimizer = ConjugateGradient()
    batch = make_batch(BOWL, make_systems(BOWL, 13, 40, 2), CONTIGUOUS, np.float64)

    def run(**options):
        return relax(batch.evaluate, batch.params, optimizer, index_prefix=batch.prefix, **options)

    paths = [[] for _ in batch.systems]
    for count in range(9):
        reached = run(convergence=energy.make(0.0) & step.make(0.0), max_steps=count)
        for at, path in enumerate(paths):
            rows = (take(batch.prefix, tree, at) for tree in (reached.params, reached.gradients))
            path.append(Point(*([x] for x in rows), float(reached.energies[at])))
    for met, other in ((energy, step), (step, energy)):
        tolerance = 1.01 * met.measure(paths[1][6], paths[1][5])
        both = {met.name: met.make(tolerance), other.name: other.make(1e9)}
        result = run(convergence=both[energy.name] & both[step.name])
        assert result.steps.tolist() == [steps_to(met, path, tolerance) for path in paths]
    assert np.all(result.evaluations > result.steps + 1)


@pytest.mark.exhaustive
def test_going_back_to_where_a_failed_search_began_is_no_small_step():
    index = SystemIndex.from_sizes([4, 6])

    def lying(x):
        return -rounded(0.5 * segment.dot(x, x, index)), x

    result = relax(
        lying,
        jnp.ones((10, 3)),
        ConjugateGradient(),
        index_prefix=index,
        convergence=EnergyChange(1e-3) | MaxDisplacement(1e-3),
    )
    assert result.status.tolist() == [Status.LINE_SEARCH_FAILED.code] * 2


def bowl_run(**options):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    optimizer = GradientDescent(0.02)
    return relax(batch.evaluate, batch.params, optimizer, index_prefix=batch.prefix, **options)


def test_both_of_two_criteria_are_met_no_sooner_than_the_later_one():
    """On a descent both measures only fall."""
    force, energy = MaxForce(0.3), EnergyChange(np.array([1e-2, 1e-5, 1e-2, 1e-5]))
    steps = [np.asarray(bowl_run(convergence=c).steps) for c in (force, energy)]
    assert set(steps[0] < steps[1]) == {True, False}
    assert np.array_equal(bowl_run(convergence=force & energy).steps, np.maximum(*steps))
    assert np.array_equal(bowl_run(convergence=force | energy).steps, np.minimum(*steps))


def test_criteria_combine_as_truth_values_do():
    evidence = evidence_of(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    a, b, c = (
        ForceNorm(np.where(mask, 1e9, 0.0)) for mask in ([1, 1, 0, 0], [1, 0, 1, 0], [1] * 4)
    )
    truth = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], bool)
    assert np.array_equal(is_met(a & b & c, evidence), truth[0] & truth[1])
    assert np.array_equal(is_met(a | b, evidence), truth[0] | truth[1])
    assert np.array_equal(is_met(a & (b | c), evidence), truth[0])
    assert np.array_equal(is_met((a & b) | c, evidence), [True] * 4)


def test_a_criterion_combines_with_criteria_alone():
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = MaxForce(0.05) & 0.1


def test_fmax_is_short_for_the_largest_force():
    short, long = bowl_run(fmax=0.02), bowl_run(convergence=MaxForce(0.02))
    assert same_bits(short, long)
    assert same_bits(bowl_run(), bowl_run(convergence=MaxForce()))


def test_the_result_holds_the_largest_force_whatever_the_criterion():
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    result = bowl_run(convergence=RMSForce(np.full(4, 0.1)))
    assert same_bits(result.fmax, largest_force(result.gradients, batch.prefix))
    assert (result.fmax < segment.norm(result.gradients, batch.prefix)).any()


# --- the promise


def mixed(*tolerances) -> AbstractCriterion:
    force, energy, rms, displacement = tolerances
    return (MaxForce(force) & EnergyChange(energy)) | (
        RMSForce(rms) & MaxDisplacement(displacement)
    )


# By force, by RMS, by energy, by displacement; then the spoiled.
TOLERANCES = np.array(
    [
        [0.3, 0.0, 9.0, 0.0, 1.0, 1.0, 1.0],
        [1.0, 0.0, 1e-6, 0.0, 1.0, 1.0, 1.0],
        [0.0, 0.1, 0.0, 9.0, 1.0, 1.0, 1.0],
        [0.0, 1.0, 0.0, 3e-4, 1.0, 1.0, 1.0],
    ]
)


@pytest.mark.parametrize("dtype", [exhaustive(np.float32), np.float64])
def test_a_run_with_mixed_tolerances_has_the_bits_that_it_has_alone(dtype):
    fields = ("energies", "fmax", "steps", "evaluations", "status")

    def run(batch, tolerances):
        result = relax(
            batch.evaluate,
            batch.params,
            GradientDescent(0.01),
            index_prefix=batch.prefix,
            convergence=mixed(*tolerances),
            max_steps=2000,
        )
        return batch, result

    def of(batch, result, at):
        rows = take(batch.prefix, (result.params, result.gradients), at)
        return rows, [np.asarray(getattr(result, name))[at] for name in fields]

    batch = make_batch(BOWL, WITH_SPOILED, LAYOUTS_OF_DTYPES[dtype], dtype)
    together = run(batch, TOLERANCES)
    differing = [
        at
        for at, system in enumerate(WITH_SPOILED)
        if not same_bits(
            of(*together, at), of(*run(make_alone(BOWL, system, dtype), TOLERANCES[:, at]), 0)
        )
    ]
    assert differing == []
    assert together[1].steps.max() > 400
    assert together[1].converged[:6].tolist() == [True] * 4 + [False] * 2


@pytest.mark.exhaustive  # which compile as users do; alone every day, above
def test_a_jitted_run_with_criteria_is_the_run_op_by_op():
    batch = make_batch(BOWL, WITH_SPOILED, ALIGNED, np.float32)

    def run():
        return relax(
            batch.evaluate,
            batch.params,
            GradientDescent(0.1),
            index_prefix=batch.prefix,
            convergence=mixed(*(10 * TOLERANCES)),
            max_steps=4,
        )

    with jax.disable_jit(), jax.numpy_dtype_promotion("standard"):
        op_by_op = run()
    assert same_bits(run(), op_by_op)


def test_other_tolerances_compile_nothing(count_compilations):
    def run(force, energy, max_steps):
        criterion = MaxForce(force) & EnergyChange(np.full(4, energy))
        return bowl_run(convergence=criterion, max_steps=max_steps)

    expected = run(0.3, 1e-4, 50)
    with count_compilations() as counted:
        result = run(0.2, 1e-3, 60)
        run(1, 1e-3, 60)
    assert counted.count == 0
    assert not np.array_equal(result.steps, expected.steps)


def test_a_run_carries_of_the_last_point_what_its_criterion_needs():
    index = SystemIndex.from_sizes([2])
    make = lambda criterion: start(FIRE(), jnp.ones((2, 3)), index, needs=criterion.needs)  # noqa: E731
    plain, energy = make(MaxForce()), make(RMSForce(0.1) & EnergyChange(1e-3))
    step = make(MaxForce() | (MaxForce() & MaxDisplacement(1e-3)))
    assert (plain.last.energies, plain.last.params) == (None, None)
    assert (energy.last.energies is None, energy.last.params is None) == (False, True)
    assert (step.last.energies is None, step.last.params is None) == (True, False)
