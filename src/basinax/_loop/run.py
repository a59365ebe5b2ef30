"""A run: where each system is, what was evaluated last, and one turn of the loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from basinax._loop.criteria import AbstractCriterion, Evidence, is_met, judge, largest_force
from basinax._loop.status import Status
from basinax._systems import segment
from basinax._systems.prefix import per_system, resolve
from basinax.transforms._protocol import (
    AbstractTransform,
    Prefix,
    Tree,
    apply_updates,
    select_systems,
    stepped,
    where_systems,
    with_prefix,
)

View = Callable[[Evidence], Evidence]

PATIENCE = 50
"""So many steps in a row that change no bit of a system's parameters end it as stalled."""


class Evaluation(NamedTuple):
    """What an evaluation says of all systems."""

    energies: Float[Array, "systems"]
    gradients: Tree
    is_valid: Bool[Array, "systems"]
    """A system whose evaluation is not valid stands still."""
    extras: Any = None
    """A tree of arrays that lead with systems: what else there is to say."""
    of_rows: Any = None
    """A tree of arrays that lead with rows, those of the first leaf of the parameters."""


class Point(eqx.Module):
    """Where systems have been evaluated, and what was found there."""

    params: Tree
    energies: Float[Array, "systems"]
    gradients: Tree
    fmax: Float[Array, "systems"]
    extras: Any
    of_rows: Any = None


class Last(eqx.Module):
    """Where systems were judged last, as far as the criterion looks at it; None otherwise."""

    energies: Float[Array, "systems"] | None
    params: Tree | None


class Run(eqx.Module):
    """What the loop carries from turn to turn."""

    params: Tree
    optimizer_state: Any
    energies: Float[Array, "systems"]
    gradients: Tree
    fmax: Float[Array, "systems"]
    extras: Any
    steps: Int32[Array, "systems"]
    evaluations: Int32[Array, "systems"]
    status: Int32[Array, "systems"]
    is_pending: Bool[Array, "systems"]
    """The system stands where it has not been evaluated."""
    has_moved: Bool[Array, "systems"]
    """In the last turn."""
    n_still: Int32[Array, "systems"]
    """Steps in a row that changed no bit of the parameters."""
    last: Last
    best: Point | None
    """The point of lowest energy, if it is kept."""
    of_rows: Any = None
    """What else the evaluation says of rows."""


def start(
    optimizer: AbstractTransform,
    params: Tree,
    index_prefix: Prefix,
    *,
    keep_best: bool = False,
    extras: Any = None,
    of_rows: Any = None,
    needs: frozenset[str] = frozenset(),
) -> Run:
    """Before the first evaluation.

    Args:
        extras, of_rows: zeros of the shapes and dtypes of the evaluation's.
        needs: of the criterion.
    """
    blank = segment.blank(params, index_prefix)
    count = jnp.zeros(blank.shape, jnp.int32)
    yes = jnp.ones(blank.shape, bool)
    gradients = jax.tree.map(jnp.zeros_like, params)
    return Run(
        params=params,
        optimizer_state=optimizer.init(params, index_prefix),
        energies=blank,
        gradients=gradients,
        fmax=blank,
        extras=extras,
        steps=count,
        evaluations=count,
        status=count,
        is_pending=yes,
        has_moved=yes,
        n_still=count,
        last=Last(
            blank if "last_energies" in needs else None,
            params if "last_params" in needs else None,
        ),
        best=_worst(params, gradients, extras, of_rows, blank) if keep_best else None,
        of_rows=of_rows,
    )


def _worst(params, gradients, extras, of_rows, blank) -> Point:
    """The point than which any other is better."""
    worst = jnp.full_like(blank, jnp.inf)
    return Point(params, worst, gradients, worst, extras, of_rows)


def restart(
    run: Run, optimizer: AbstractTransform, params: Tree, index_prefix: Prefix, mask
) -> Run:
    """The run in which the systems of `mask` begin anew, at their rows of `params`.

    Args:
        index_prefix: may have another number of rows for these systems, not for the others.
    """
    keep_best = run.best is not None
    extras, of_rows = jax.tree.map(jnp.zeros_like, (run.extras, run.of_rows))
    fresh = start(
        optimizer, params, index_prefix, keep_best=keep_best, extras=extras, of_rows=of_rows
    )
    state = with_prefix(run.optimizer_state, index_prefix)

    def choose(new, old):
        return select_systems(mask, new, old)

    def choose_rows(new, old):
        return segment.where(mask, new, old, index_prefix)

    return Run(
        params=choose_rows(params, run.params),
        optimizer_state=where_systems(mask, fresh.optimizer_state, state),
        energies=choose(fresh.energies, run.energies),
        gradients=choose_rows(fresh.gradients, run.gradients),
        fmax=choose(fresh.fmax, run.fmax),
        extras=choose(fresh.extras, run.extras),
        steps=choose(fresh.steps, run.steps),
        evaluations=choose(fresh.evaluations, run.evaluations),
        status=choose(fresh.status, run.status),
        is_pending=choose(fresh.is_pending, run.is_pending),
        has_moved=choose(fresh.has_moved, run.has_moved),
        n_still=choose(fresh.n_still, run.n_still),
        # Without a step nothing looks at it.
        last=run.last,
        best=_restarted_best(mask, fresh.best, run.best, index_prefix),
        of_rows=_chosen_rows(mask, of_rows, run.of_rows, index_prefix, params),
    )


def _chosen_rows(mask, on_true: Any, on_false: Any, prefix: Prefix, params: Tree) -> Any:
    """What is known of the rows of the first leaf of `params`, by their systems."""
    if on_true is None:
        return None
    return segment.where(mask, on_true, on_false, resolve(prefix, params)[0])


def _restarted_best(mask, fresh: Point | None, best: Point | None, prefix) -> Point | None:
    return None if fresh is None or best is None else select_points(mask, fresh, best, prefix)


def advance(
    evaluate: Callable[[Tree], Evaluation],
    run: Run,
    optimizer: AbstractTransform,
    criterion: AbstractCriterion,
    max_steps: Any,
    turns: Any = None,
    view: View | None = None,
) -> Run:
    """Turn until no system can move, or for so many turns.

    Args:
        evaluate: of params.
        criterion: whose `needs` the run was started with.
        turns: the most turns, traced; no limit if None. Just 1 is no loop.
        view: of the evidence, what the criterion is shown; `fmax` is the largest force in it.
    """
    max_steps = per_system(max_steps, "max_steps", run.steps)

    def turned(run):
        return _turn(run, evaluate(run.params), optimizer, criterion, max_steps, view)

    if isinstance(turns, int) and turns == 1:
        return turned(run)

    def turn(carry):
        run, count = carry
        return turned(run), count + 1

    def goes_on(carry):
        run, count = carry
        return jnp.any(run.has_moved) & (True if turns is None else count < turns)

    fresh = eqx.tree_at(lambda r: r.has_moved, run, jnp.ones_like(run.has_moved))
    return jax.lax.while_loop(goes_on, turn, (fresh, jnp.int32(0)))[0]


def _turn(run: Run, evaluation: Evaluation, optimizer, criterion, max_steps, view) -> Run:
    prefix = run.optimizer_state.index_prefix
    arrived = run.is_pending & evaluation.is_valid & (run.status == Status.RUNNING.value)
    run = _received(arrived, evaluation, run)
    step, state = optimizer.update(
        run.gradients,
        run.optimizer_state,
        run.params,
        energies=run.energies,
        is_running=arrived,
    )

    is_judged = arrived & optimizer.is_accepted(state)
    has_failed = optimizer.has_failed(state)
    evidence = _evidence(run, has_failed)
    evidence = evidence if view is None else view(evidence)
    largest = jnp.where(arrived, largest_force(evidence.gradients, prefix), run.fmax)
    evidence = evidence._replace(fmax=largest)
    judgement = judge(
        run.energies, largest, is_met(criterion, evidence), run.steps, max_steps, has_failed
    )
    status = jnp.where(is_judged, judgement, run.status)

    moves = arrived & (status == Status.RUNNING.value)
    params = segment.where(moves, apply_updates(run.params, step), run.params, prefix)
    n_still = jnp.where(moves & ~_differ(params, run.params, prefix), run.n_still + 1, 0)
    here = Point(run.params, run.energies, run.gradients, largest, run.extras, run.of_rows)
    return Run(
        params=params,
        optimizer_state=stepped(moves, state, run.optimizer_state),
        energies=run.energies,
        gradients=run.gradients,
        fmax=largest,
        extras=run.extras,
        steps=run.steps + (moves & is_judged).astype(jnp.int32),
        evaluations=run.evaluations + arrived.astype(jnp.int32),
        status=jnp.where(moves & (n_still >= PATIENCE), Status.STALLED, status),
        is_pending=(run.is_pending & ~arrived) | moves,
        has_moved=moves,
        n_still=jnp.where(arrived, n_still, run.n_still),
        last=_judged_last(is_judged, run),
        best=_better(arrived, here, run.best, prefix),
        of_rows=run.of_rows,
    )


def judged_between(before: Run, run: Run) -> tuple[Bool[Array, "systems"], Point]:
    """Which systems the turn between two runs has judged, and where, without what rows have."""
    is_judged = (run.steps > before.steps) | (run.status != before.status)
    return is_judged, Point(before.params, run.energies, run.gradients, run.fmax, run.extras)


def _received(arrived, evaluation: Evaluation, run: Run) -> Run:
    """The run with what the evaluation says of systems where it has arrived."""
    said = evaluation.energies, evaluation.extras
    known = run.energies, run.extras
    said = jax.tree.map(lambda x, y: jnp.asarray(x).astype(y.dtype), said, known)
    energies, extras = select_systems(arrived, said, known)
    prefix = run.optimizer_state.index_prefix
    gradients = segment.map_leaves(
        lambda x, y: x.astype(y.dtype), evaluation.gradients, run.gradients
    )
    gradients = segment.where(arrived, gradients, run.gradients, prefix)
    of_rows = jax.tree.map(lambda x, y: x.astype(y.dtype), evaluation.of_rows, run.of_rows)
    of_rows = _chosen_rows(arrived, of_rows, run.of_rows, prefix, run.params)
    return dataclasses.replace(
        run, energies=energies, gradients=gradients, extras=extras, of_rows=of_rows
    )


def _evidence(run: Run, has_failed) -> Evidence:
    prefix = run.optimizer_state.index_prefix
    n_rows = jnp.zeros_like(run.steps)
    for index in resolve(prefix, run.params):
        n_rows = n_rows + index.sizes
    return Evidence(
        params=run.params,
        energies=run.energies,
        gradients=run.gradients,
        extras=run.extras,
        index_prefix=prefix,
        n_rows=n_rows,
        has_last=(run.steps > 0) & ~has_failed,
        last_energies=run.last.energies,
        last_params=run.last.params,
    )


def _judged_last(is_judged, run: Run) -> Last:
    energies, params = run.last.energies, run.last.params
    if energies is not None:
        energies = jnp.where(is_judged, run.energies, energies)
    if params is not None:
        prefix = run.optimizer_state.index_prefix
        params = segment.where(is_judged, run.params, params, prefix)
    return Last(energies, params)


def _differ(a: Tree, b: Tree, prefix: Prefix) -> Bool[Array, "systems"]:
    """Which systems differ in any entry."""
    differences = segment.map_leaves(lambda x, y: (x != y).astype(jnp.float32), a, b)
    # A sum is stored level by level; a maximum XLA would find again for each entry of the next.
    return segment.sum(differences, prefix) > 0


def _better(mask, point: Point, best: Point | None, prefix: Prefix) -> Point | None:
    """`point` where `mask` and its energy is lower; one that is not finite is never taken."""
    if best is None:
        return None
    is_better = mask & (point.energies < best.energies) & jnp.isfinite(point.fmax)
    return select_points(is_better, point, best, prefix)


def select_points(mask, on_true: Point, on_false: Point, prefix: Prefix) -> Point:
    return Point(
        segment.where(mask, on_true.params, on_false.params, prefix),
        jnp.where(mask, on_true.energies, on_false.energies),
        segment.where(mask, on_true.gradients, on_false.gradients, prefix),
        jnp.where(mask, on_true.fmax, on_false.fmax),
        select_systems(mask, on_true.extras, on_false.extras),
        _chosen_rows(mask, on_true.of_rows, on_false.of_rows, prefix, on_true.params),
    )


def final_point(run: Run) -> Point:
    """Where each system is returned: its last point, or its best where kept and not converged."""
    last = Point(run.params, run.energies, run.gradients, run.fmax, run.extras, run.of_rows)
    if run.best is None:
        return last
    has_best = (run.status != Status.CONVERGED.value) & jnp.isfinite(run.best.energies)
    return select_points(has_best, run.best, last, run.optimizer_state.index_prefix)


def stopped(run: Run) -> Run:
    """The run as it is returned where it is stopped before every system has ended.

    A running system stands where it has not been evaluated, and so does one that could not be:
    NaN is all that is known of it there, and inf its `fmax`.
    """
    unfinished = (Status.RUNNING, Status.NOT_FINITE, Status.EVALUATION_FAILED)
    has_no_result = functools.reduce(jnp.logical_or, [run.status == x.value for x in unfinished])
    is_unknown = run.is_pending & has_no_result
    found = run.energies, run.gradients, run.extras, run.of_rows
    energies, gradients, *others = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), found)
    run = _received(is_unknown, Evaluation(energies, gradients, is_unknown, *others), run)
    return dataclasses.replace(run, fmax=jnp.where(is_unknown, jnp.inf, run.fmax))
