"""THE loop over steps. It knows no potential, no atoms and no files.

Each turn evaluates every system once, judges those whose evaluation has arrived, and moves those
that are still running. A system that has ended, or waits for something only the host can do,
stands still and loses nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype
from jaxtyping import Array, Bool, Float, Int32

from basinax._jax.forks import check_process
from basinax._jax.switches import own_switches
from basinax._loop.criteria import (
    AbstractCriterion,
    Evidence,
    criterion_of,
    is_met,
    judge,
    largest_force,
)
from basinax._loop.status import Status
from basinax._settings import counts, require_function, require_switch
from basinax._systems import segment
from basinax._systems.index import (
    check_leaves,
    n_systems,
    per_system,
    resolve,
)
from basinax.transforms._protocol import (
    AbstractTransform,
    Prefix,
    Tree,
    apply_updates,
    check_transform,
    select_systems,
    where_systems,
    with_prefix,
)

View = Callable[[Evidence], Evidence]

PATIENCE = 50
"""So many steps in a row that change no bit of a system's parameters end it as stalled."""


class Relaxation(eqx.Module):
    """The result of `relax`; every field but the trees has one entry a system."""

    params: Tree
    energies: Float[Array, "systems"]
    """At `params`."""
    gradients: Tree
    """At `params`."""
    fmax: Float[Array, "systems"]
    """The largest norm of a row of the gradient; +inf where not finite."""
    steps: Int32[Array, "systems"]
    """Steps made; a start that is converged makes none."""
    evaluations: Int32[Array, "systems"]
    """Evaluations before it ended, the first and the trials of line searches included."""
    status: Int32[Array, "systems"]
    """Codes of `Status`."""
    extras: Any
    """What else the evaluation says of each system at `params`; None if nothing."""

    @property
    def converged(self) -> Bool[Array, "systems"]:
        return self.status == Status.CONVERGED.value


@own_switches()
def relax(
    value_and_gradient: Callable[[Tree], tuple[Any, ...]],
    params: Tree,
    optimizer: AbstractTransform,
    *,
    index_prefix: Prefix = None,
    fmax: float | Float[Array, "systems"] | None = None,
    convergence: AbstractCriterion | None = None,
    max_steps: int | Int32[Array, "systems"] = 500,
    keep_best: bool = False,
    has_extras: bool = False,
    throw: bool = False,
) -> Relaxation:
    """Minimise the energy of every system, each as if it were alone.

    Args:
        value_and_gradient: of all params, the energies, shape `[n_systems]`, and a gradient like
            `params`. Compiled once per function object: define it outside of a loop.
        params: the start; the leading axis of each leaf goes over rows.
        optimizer: turns the gradient into steps, such as `FIRE()` or a `chain`.
        index_prefix: which row belongs to which system; None if there is one system.
        fmax: a system has converged when no row of its gradient has a norm of `fmax` or more
            (energy per unit of `params`), 0.05 if None. A number, or one a system. Short for
            `convergence=MaxForce(fmax)`.
        convergence: when a system has converged, in place of `fmax`, such as
            `MaxForce(0.05) & EnergyChange(1e-4)`.
        max_steps: after so many steps a system ends unconverged. A number, or one a system; one
            beyond 32 bits is no limit that a run could reach.
        keep_best: return a system that does not converge at the point of lowest energy among those
            where it has been evaluated, instead of the last.
        has_extras: `value_and_gradient` returns a third value, a tree of arrays that lead with
            systems, which criteria may look at and the result holds.
        throw: raise if a system does not converge, instead of leaving it to `status`.

    Raises:
        TypeError, ValueError: what was passed does not fit together.
        RuntimeError: with `throw`, a system did not converge; or the process was forked from one
            that had used JAX.
    """
    check_process()
    require_function(value_and_gradient, "value_and_gradient")
    check_transform(optimizer)
    for name, value in (("keep_best", keep_best), ("has_extras", has_extras), ("throw", throw)):
        require_switch(value, name)
    max_steps = counts(max_steps, "max_steps")
    check_leaves(params)
    # In the precision of here and now: arrays of another may have been made before.
    params = jax.tree.map(lambda x: jnp.asarray(x, canonicalize_dtype(jnp.result_type(x))), params)
    criterion = criterion_of(fmax, convergence)
    extras = _check_evaluation(value_and_gradient, params, index_prefix, has_extras)
    run = start(
        optimizer, params, index_prefix, keep_best=keep_best, extras=extras, needs=criterion.needs
    )
    optimizer, criterion, max_steps = jax.tree.map(_as_array, (optimizer, criterion, max_steps))

    run = _advance(value_and_gradient, run, optimizer, criterion, max_steps)
    point = final_point(run)
    result = Relaxation(
        point.params,
        point.energies,
        point.gradients,
        point.fmax,
        run.steps,
        run.evaluations,
        run.status,
        point.extras,
    )
    if throw:
        raise_unless_converged(result.status)
    return result


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
        optimizer_state=where_systems(moves, state, run.optimizer_state),
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
    has_no_result = (run.status == Status.RUNNING.value) | (run.status == Status.NOT_FINITE.value)
    is_unknown = run.is_pending & has_no_result
    found = run.energies, run.gradients, run.extras, run.of_rows
    energies, gradients, *others = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), found)
    run = _received(is_unknown, Evaluation(energies, gradients, is_unknown, *others), run)
    return dataclasses.replace(run, fmax=jnp.where(is_unknown, jnp.inf, run.fmax))


@eqx.filter_jit
def _advance(value_and_gradient, run, optimizer, criterion, max_steps) -> Run:
    def evaluate(params):
        energies, gradients, *extras = value_and_gradient(params)
        return Evaluation(energies, gradients, jnp.ones(energies.shape, bool), *extras)

    return advance(evaluate, run, optimizer, criterion, max_steps)


def raise_unless_converged(status: Int32[Array | np.ndarray, "systems"]) -> None:
    """Raise RuntimeError that counts and names the systems that did not converge."""
    if isinstance(status, Tracer):
        raise TypeError("throw=True must know what became of systems: call relax outside of jit")
    codes = np.asarray(status)
    failed = np.flatnonzero(codes != Status.CONVERGED)
    if len(failed):
        shown = ", ".join(f"{i} ({Status(codes[i]).name.lower()})" for i in failed[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise RuntimeError(f"{len(failed)} of {len(codes)} systems did not converge: {shown}{more}")


def _as_array(x):
    """Numbers become leaves, so that another value compiles nothing."""
    return np.asarray(x) if isinstance(x, bool | int | float) else x


def _check_evaluation(value_and_gradient, params, index_prefix, has_extras: bool) -> Any:
    """Zeros like the extras; None if there are none."""
    expected = (n_systems(index_prefix),)
    said = jax.eval_shape(value_and_gradient, params)
    got = len(said) if isinstance(said, tuple | list) else 1
    if got != 2 + has_extras:
        raise ValueError(
            f"value_and_gradient must return {2 + has_extras} values with has_extras={has_extras},"
            f" got {got}"
        )
    energies, gradients, *extras = said
    if jnp.shape(energies) != expected:
        raise ValueError(
            "value_and_gradient must return energies with one entry a system: expected shape"
            f" {expected}, got {jnp.shape(energies)}"
        )
    segment.map_leaves(lambda x, _: x, params, gradients)
    for path, leaf in jax.tree_util.tree_leaves_with_path(extras):
        if jnp.shape(leaf)[:1] != expected:
            raise ValueError(
                f"extras{jax.tree_util.keystr(path[1:])} must lead with the {expected[0]} systems,"
                f" got shape {jnp.shape(leaf)}"
            )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras[0]) if extras else None
