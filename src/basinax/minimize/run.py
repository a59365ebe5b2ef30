"""A run: the position of each system, its last evaluation, and one turn of the loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from basinax.minimize.criteria import AbstractCriterion, Evidence, is_met, judge, largest_force
from basinax.minimize.status import Status
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    Places,
    apply_updates,
    first_rows_field,
    placed_systems,
    rows_field,
    select_state,
    states_field,
    stepped,
    systems_field,
    updated,
    where_systems,
    with_prefix,
)
from basinax.systems import segment
from basinax.systems.prefix import per_system, resolve
from basinax.systems.types import Prefix, Tree

View = Callable[[Evidence], Evidence]

STALL_STEPS = 50
"""A system ends as stalled after this many steps in a row without a change of any bit."""


class Evaluation(NamedTuple):
    """The values of one evaluation of all systems."""

    energies: Float[Array, "systems"]
    gradients: Tree
    is_valid: Bool[Array, "systems"]
    """Systems without a valid evaluation stand still."""
    extras: Any = None
    """Further results of the model: a tree of arrays that lead with systems."""
    of_rows: Any = None
    """A tree of arrays that lead with the rows of the first leaf of the parameters."""


class Point(AbstractState):
    """The point at which systems were evaluated, and the results."""

    params: Tree = rows_field()
    energies: Float[Array, "systems"] = systems_field()
    gradients: Tree = rows_field()
    fmax: Float[Array, "systems"] = systems_field()
    extras: Any = systems_field()
    of_rows: Any = first_rows_field()
    index_prefix: Prefix = None


class Last(AbstractState):
    """The last judged point: the parts that the criterion needs, None for the others."""

    energies: Float[Array, "systems"] | None = systems_field()
    params: Tree | None = rows_field()
    index_prefix: Prefix = None

    @classmethod
    def of(cls, point: Point, needs: frozenset[str]) -> "Last":
        return cls(
            point.energies if "last_energies" in needs else None,
            point.params if "last_params" in needs else None,
        )

    @property
    def needs(self) -> frozenset[str]:
        """The names of the parts that are kept."""
        kept = {"last_energies": self.energies, "last_params": self.params}
        return frozenset(name for name, value in kept.items() if value is not None)


class First(AbstractState):
    """The values of the first evaluation of each system; 0 before that evaluation."""

    energies: Float[Array, "systems"] = systems_field()
    extras: Any = systems_field()
    index_prefix: Prefix = None


class Run(AbstractState):
    """The state of the loop, carried from turn to turn."""

    index_prefix: Prefix
    """The prefix of all states of the run."""
    point: Point = states_field()
    """The position of systems, and the results of their last evaluation."""
    optimizer_state: Any = states_field()
    steps: Int32[Array, "systems"] = systems_field()
    evaluations: Int32[Array, "systems"] = systems_field()
    status: Int32[Array, "systems"] = systems_field()
    is_pending: Bool[Array, "systems"] = systems_field()
    """The system's current position has not been evaluated."""
    has_moved: Bool[Array, "systems"] = systems_field()
    """Whether the system moved in the last turn."""
    n_unchanged: Int32[Array, "systems"] = systems_field()
    """Steps in a row that changed no bit of the parameters."""
    last: Last = states_field()
    best: Point | None = states_field()
    """The point of lowest energy, if `keep_best`."""
    first: First | None = states_field()
    """The values at the start, if `keep_first`."""


def start(
    optimizer: AbstractTransform,
    params: Tree,
    index_prefix: Prefix,
    *,
    keep_best: bool = False,
    keep_first: bool = False,
    extras: Any = None,
    of_rows: Any = None,
    needs: frozenset[str] = frozenset(),
) -> Run:
    """The run before the first evaluation.

    Args:
        extras, of_rows: zeros with the shapes and dtypes of the evaluation's results.
        needs: the `needs` of the criterion.
    """
    blank = segment.blank(params, index_prefix)
    count = jnp.zeros_like(blank, jnp.int32)
    yes = jnp.ones_like(blank, bool)
    gradients = jax.tree.map(jnp.zeros_like, params)
    point = Point(params, blank, gradients, blank, extras, of_rows)
    infinite = jnp.full_like(blank, jnp.inf)
    first = None
    if keep_first:
        first = First(*jax.tree.map(jnp.zeros_like, (blank, extras)))
    return Run(
        index_prefix=index_prefix,
        point=point,
        optimizer_state=with_prefix(optimizer.init(params, index_prefix), None),
        steps=count,
        evaluations=count,
        status=count,
        is_pending=yes,
        has_moved=yes,
        n_unchanged=count,
        last=Last.of(point, needs),
        # An infinite energy loses to any other point.
        best=dataclasses.replace(point, energies=infinite, fmax=infinite) if keep_best else None,
        first=first,
    )


def restart(
    run: Run,
    optimizer: AbstractTransform,
    params: Tree,
    index_prefix: Prefix,
    mask,
    places: Places | None = None,
) -> Run:
    """The run with the systems of `mask` started anew, at their rows of `params`.

    Args:
        index_prefix: a new prefix; the systems of `mask` alone may have other numbers of rows.
        places: where the other systems stood before; None where they stay.
    """
    extras, of_rows = jax.tree.map(jnp.zeros_like, (run.point.extras, run.point.of_rows))
    fresh = start(
        optimizer,
        params,
        index_prefix,
        keep_best=run.best is not None,
        keep_first=run.first is not None,
        extras=extras,
        of_rows=of_rows,
        needs=run.last.needs,
    )
    if places is None:
        return where_systems(mask, fresh, with_prefix(run, index_prefix))
    return where_systems(mask, fresh, placed_systems(places, run, fresh))


def advance(
    evaluate: Callable[[Tree], Evaluation],
    run: Run,
    optimizer: AbstractTransform,
    criterion: AbstractCriterion,
    max_steps: Any,
    turns: Any = None,
    view: View | None = None,
) -> Run:
    """Turn until no system can move, or for `turns` turns.

    Args:
        evaluate: a function of params.
        criterion: the criterion whose `needs` started the run.
        turns: the largest number of turns, traced; None for no limit. 1 makes no loop.
        view: maps the evidence to the evidence of the criterion; `fmax` is the largest force of the
            result.
    """
    max_steps = per_system(max_steps, "max_steps", run.steps)

    def turned(run):
        return _turn(run, evaluate(run.point.params), optimizer, criterion, max_steps, view)

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
    prefix = run.index_prefix
    arrived = run.is_pending & evaluation.is_valid & (run.status == Status.RUNNING.code)
    point = _received(arrived, evaluation, run.point, prefix)
    before = with_prefix(run.optimizer_state, prefix)
    known = {"energies": point.energies, "extras": point.extras, "is_running": arrived}
    step, state = updated(optimizer, point.gradients, before, point.params, **known)

    # Line searches evaluate trials, which are no points of the path and are not judged.
    is_judged = arrived & optimizer.is_accepted(state)
    has_failed = optimizer.has_failed(state)
    evidence = _evidence(run, point, has_failed)
    evidence = evidence if view is None else view(evidence)
    largest = jnp.where(arrived, largest_force(evidence.gradients, prefix), point.fmax)
    evidence, point = evidence._replace(fmax=largest), dataclasses.replace(point, fmax=largest)
    judgement = judge(
        point.energies, largest, is_met(criterion, evidence), run.steps, max_steps, has_failed
    )
    status = jnp.where(is_judged, judgement, run.status)

    # From here on, other systems keep the bits of their parameters and states by selection.
    moves = arrived & (status == Status.RUNNING.code)
    params = segment.where(moves, apply_updates(point.params, step), point.params, prefix)
    n_unchanged = jnp.where(moves & ~_differ(params, point.params, prefix), run.n_unchanged + 1, 0)
    last = Last.of(point, run.last.needs)
    return Run(
        index_prefix=prefix,
        point=dataclasses.replace(point, params=params),
        optimizer_state=with_prefix(stepped(moves, state, before), None),
        steps=run.steps + (moves & is_judged).astype(jnp.int32),
        evaluations=run.evaluations + arrived.astype(jnp.int32),
        status=jnp.where(moves & (n_unchanged >= STALL_STEPS), Status.STALLED.code, status),
        is_pending=(run.is_pending & ~arrived) | moves,
        has_moved=moves,
        n_unchanged=jnp.where(arrived, n_unchanged, run.n_unchanged),
        last=select_state(is_judged, last, run.last, prefix),
        best=_better(arrived, point, run.best, prefix),
        first=_first(arrived & (run.evaluations == 0), point, run.first, prefix),
    )


def judged_between(before: Run, run: Run) -> tuple[Bool[Array, "systems"], Point]:
    """The mask of systems judged between two runs, and their points without `of_rows`."""
    is_judged = (run.steps > before.steps) | (run.status != before.status)
    return is_judged, dataclasses.replace(run.point, params=before.point.params, of_rows=None)


def _received(arrived, evaluation: Evaluation, known: Point, prefix: Prefix) -> Point:
    """The known point, with the evaluation for systems whose evaluation has arrived."""

    def like(x, y):
        return jnp.asarray(x).astype(y.dtype)

    said = dataclasses.replace(
        known,
        energies=like(evaluation.energies, known.energies),
        gradients=segment.map_leaves(like, evaluation.gradients, known.gradients),
        extras=jax.tree.map(like, evaluation.extras, known.extras),
        of_rows=jax.tree.map(like, evaluation.of_rows, known.of_rows),
    )
    return select_state(arrived, said, known, prefix)


def _evidence(run: Run, point: Point, has_failed) -> Evidence:
    n_rows = jnp.zeros_like(run.steps)
    for index in resolve(run.index_prefix, point.params):
        n_rows = n_rows + index.sizes
    return Evidence(
        params=point.params,
        energies=point.energies,
        gradients=point.gradients,
        extras=point.extras,
        index_prefix=run.index_prefix,
        n_rows=n_rows,
        has_last=(run.steps > 0) & ~has_failed,
        last_energies=run.last.energies,
        last_params=run.last.params,
    )


def _differ(a: Tree, b: Tree, prefix: Prefix) -> Bool[Array, "systems"]:
    """The mask of systems that differ in any entry."""
    differences = segment.map_leaves(lambda x, y: (x != y).astype(jnp.float32), a, b)
    # XLA stores the levels of this sum, but would recompute a maximum per entry of its consumer.
    # The mask is the same.
    return segment.sum(differences, prefix) > 0


def _better(mask, point: Point, best: Point | None, prefix: Prefix) -> Point | None:
    """`point` where `mask` and its energy is lower; energies that are not finite never win."""
    if best is None:
        return None
    is_better = mask & (point.energies < best.energies) & jnp.isfinite(point.fmax)
    return select_state(is_better, point, best, prefix)


def _first(mask, point: Point, first: First | None, prefix: Prefix) -> First | None:
    """The values of `point` where `mask`."""
    if first is None:
        return None
    return select_state(mask, First(point.energies, point.extras), first, prefix)


def final_point(run: Run) -> Point:
    """The returned point of each system: its last, or its best if kept and not converged."""
    if run.best is None:
        return run.point
    has_best = (run.status != Status.CONVERGED.code) & jnp.isfinite(run.best.energies)
    return select_state(has_best, run.best, run.point, run.index_prefix)


def stopped(run: Run) -> Run:
    """The run to return if some systems have not ended.

    Running systems, and systems that could not be evaluated, may stand at a point without an
    evaluation: their values are NaN, and their `fmax` is inf.
    """
    unfinished = (Status.RUNNING, Status.NOT_FINITE, Status.EVALUATION_FAILED)
    has_no_result = functools.reduce(jnp.logical_or, [run.status == x.code for x in unfinished])
    is_unknown = run.is_pending & has_no_result
    found = run.point.energies, run.point.gradients, run.point.extras, run.point.of_rows
    energies, gradients, *others = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), found)
    nothing = Evaluation(energies, gradients, is_unknown, *others)
    point = _received(is_unknown, nothing, run.point, run.index_prefix)
    fmax = jnp.where(is_unknown, jnp.inf, point.fmax)
    return dataclasses.replace(run, point=dataclasses.replace(point, fmax=fmax))
