"""THE loop over steps. It knows no potential, no atoms and no files.

Each turn evaluates every system once, judges those whose evaluation has arrived, and moves those
that are still running. A system that has ended, or waits for something only the host can do,
stands still and loses nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from basinax import _segment as segment
from basinax._convergence import finite, judge, largest_force
from basinax._optimizer import (
    AbstractTransform,
    Prefix,
    Tree,
    apply_updates,
    where_systems,
)
from basinax._status import Status
from basinax._systems import n_systems, per_system

Measure = Callable[[Tree, Prefix], Float[Array, "systems"]]

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
    """The largest norm of a row of the gradient, or another `measure`; +inf where not finite."""
    steps: Int32[Array, "systems"]
    """Steps made; a start that is converged makes none."""
    evaluations: Int32[Array, "systems"]
    """Evaluations before it ended, the first and the trials of line searches included."""
    status: Int32[Array, "systems"]
    """Codes of `Status`."""

    @property
    def converged(self) -> Bool[Array, "systems"]:
        return self.status == Status.CONVERGED


def relax(
    value_and_gradient: Callable[[Tree], tuple[Float[Array, "systems"], Tree]],
    params: Tree,
    optimizer: AbstractTransform,
    *,
    index_prefix: Prefix = None,
    fmax: float | Float[Array, "systems"] = 0.05,
    max_steps: int | Int32[Array, "systems"] = 500,
    measure: Measure = largest_force,
    keep_best: bool = False,
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
            (energy per unit of `params`). A number, or one a system.
        max_steps: after so many steps a system ends unconverged. A number, or one a system.
        measure: of gradients and the prefix, what is compared with `fmax`, one number a system;
            `segment.norm` for the norm of all forces. Define it outside of a loop, too.
        keep_best: return a system that does not converge at the point of lowest energy among those
            where it has been evaluated, instead of the last.
        throw: raise if a system does not converge, instead of leaving it to `status`.

    Raises:
        TypeError, ValueError: what was passed does not fit together.
        RuntimeError: with `throw`, a system did not converge.
    """
    params = jax.tree.map(jnp.asarray, params)
    _check_evaluation(value_and_gradient, params, index_prefix)
    run = start(optimizer, params, index_prefix, keep_best=keep_best)
    optimizer, fmax, max_steps = jax.tree.map(_as_array, (optimizer, fmax, max_steps))

    run = _advance(value_and_gradient, run, optimizer, fmax, max_steps, measure)
    point = final_point(run)
    result = Relaxation(
        point.params,
        point.energies,
        point.gradients,
        point.fmax,
        run.steps,
        run.evaluations,
        run.status,
    )
    if throw:
        raise_unless_converged(result.status)
    return result


class Point(eqx.Module):
    """Where systems have been evaluated, and what was found there."""

    params: Tree
    energies: Float[Array, "systems"]
    gradients: Tree
    fmax: Float[Array, "systems"]


class Run(eqx.Module):
    """What the loop carries from turn to turn."""

    params: Tree
    optimizer_state: Any
    energies: Float[Array, "systems"]
    gradients: Tree
    fmax: Float[Array, "systems"]
    steps: Int32[Array, "systems"]
    evaluations: Int32[Array, "systems"]
    status: Int32[Array, "systems"]
    is_pending: Bool[Array, "systems"]
    """The system stands where it has not been evaluated."""
    has_moved: Bool[Array, "systems"]
    """In the last turn."""
    n_still: Int32[Array, "systems"]
    """Steps in a row that changed no bit of the parameters."""
    best: Point | None
    """The point of lowest energy, if it is kept."""


def start(
    optimizer: AbstractTransform, params: Tree, index_prefix: Prefix, *, keep_best: bool = False
) -> Run:
    """Before the first evaluation."""
    blank = segment.blank(params, index_prefix)
    count = jnp.zeros(blank.shape, jnp.int32)
    yes = jnp.ones(blank.shape, bool)
    gradients = jax.tree.map(jnp.zeros_like, params)
    worst = jnp.full_like(blank, jnp.inf)
    return Run(
        params=params,
        optimizer_state=optimizer.init(params, index_prefix),
        energies=blank,
        gradients=gradients,
        fmax=blank,
        steps=count,
        evaluations=count,
        status=count,
        is_pending=yes,
        has_moved=yes,
        n_still=count,
        best=Point(params, worst, gradients, worst) if keep_best else None,
    )


def restart(
    run: Run, optimizer: AbstractTransform, params: Tree, index_prefix: Prefix, mask
) -> Run:
    """The run in which the systems of `mask` begin anew, at their rows of `params`.

    Args:
        index_prefix: may have another number of rows for these systems, not for the others.
    """
    fresh = start(optimizer, params, index_prefix, keep_best=run.best is not None)
    state = dataclasses.replace(run.optimizer_state, index_prefix=index_prefix)

    def choose(new, old):
        return jnp.where(mask, new, old)

    def choose_rows(new, old):
        return segment.where(mask, new, old, index_prefix)

    return Run(
        params=choose_rows(params, run.params),
        optimizer_state=where_systems(mask, fresh.optimizer_state, state),
        energies=choose(fresh.energies, run.energies),
        gradients=choose_rows(fresh.gradients, run.gradients),
        fmax=choose(fresh.fmax, run.fmax),
        steps=choose(fresh.steps, run.steps),
        evaluations=choose(fresh.evaluations, run.evaluations),
        status=choose(fresh.status, run.status),
        is_pending=choose(fresh.is_pending, run.is_pending),
        has_moved=choose(fresh.has_moved, run.has_moved),
        n_still=choose(fresh.n_still, run.n_still),
        best=_restarted_best(mask, fresh.best, run.best, index_prefix),
    )


def _restarted_best(mask, fresh: Point | None, best: Point | None, prefix) -> Point | None:
    return None if fresh is None or best is None else _select_points(mask, fresh, best, prefix)


def advance(
    evaluate,
    run: Run,
    optimizer,
    fmax,
    max_steps,
    turns=None,
    measure: Measure = largest_force,
) -> Run:
    """Turn until no system can move, or for so many turns.

    Args:
        evaluate: of params, the energies, gradients and which systems' evaluation is valid; one
            whose evaluation is not stands still.
        turns: the most turns, traced; no limit if None.
        measure: of gradients and the prefix, what is compared with `fmax`.
    """
    prefix = run.optimizer_state.index_prefix
    fmax = per_system(fmax, "fmax", run.fmax)
    max_steps = per_system(max_steps, "max_steps", run.steps)

    def turn(carry):
        run, count = carry
        energies, gradients, is_valid = evaluate(run.params)
        arrived = run.is_pending & is_valid & (run.status == Status.RUNNING)
        energies = jnp.where(arrived, energies.astype(run.energies.dtype), run.energies)
        gradients = segment.where(arrived, gradients, run.gradients, prefix)
        largest = jnp.where(arrived, finite(measure(gradients, prefix)), run.fmax)
        step, state = optimizer.update(
            gradients, run.optimizer_state, run.params, energies=energies, is_running=arrived
        )

        is_judged = arrived & optimizer.is_accepted(state)
        has_failed = optimizer.has_failed(state)
        judgement = judge(energies, largest, run.steps, fmax, max_steps, has_failed)
        status = jnp.where(is_judged, judgement, run.status)

        moves = arrived & (status == Status.RUNNING)
        params = segment.where(moves, apply_updates(run.params, step), run.params, prefix)
        n_still = jnp.where(moves & ~_differ(params, run.params, prefix), run.n_still + 1, 0)
        best = _better(arrived, Point(run.params, energies, gradients, largest), run.best, prefix)
        run = Run(
            params=params,
            optimizer_state=where_systems(moves, state, run.optimizer_state),
            energies=energies,
            gradients=gradients,
            fmax=largest,
            steps=run.steps + (moves & is_judged).astype(jnp.int32),
            evaluations=run.evaluations + arrived.astype(jnp.int32),
            status=jnp.where(moves & (n_still >= PATIENCE), Status.STALLED, status),
            is_pending=(run.is_pending & ~arrived) | moves,
            has_moved=moves,
            n_still=jnp.where(arrived, n_still, run.n_still),
            best=best,
        )
        return run, count + 1

    def goes_on(carry):
        run, count = carry
        return jnp.any(run.has_moved) & (True if turns is None else count < turns)

    fresh = eqx.tree_at(lambda r: r.has_moved, run, jnp.ones_like(run.has_moved))
    return jax.lax.while_loop(goes_on, turn, (fresh, jnp.int32(0)))[0]


def _differ(a: Tree, b: Tree, prefix: Prefix) -> Bool[Array, "systems"]:
    """Which systems differ in any entry."""
    differences = segment.map_leaves(lambda x, y: (x != y).astype(jnp.float32), a, b)
    return segment.max(differences, prefix) > 0


def _better(mask, point: Point, best: Point | None, prefix: Prefix) -> Point | None:
    """`point` where `mask` and its energy is lower; one that is not finite is never taken."""
    if best is None:
        return None
    is_better = mask & (point.energies < best.energies) & jnp.isfinite(point.fmax)
    return _select_points(is_better, point, best, prefix)


def _select_points(mask, on_true: Point, on_false: Point, prefix: Prefix) -> Point:
    return Point(
        segment.where(mask, on_true.params, on_false.params, prefix),
        jnp.where(mask, on_true.energies, on_false.energies),
        segment.where(mask, on_true.gradients, on_false.gradients, prefix),
        jnp.where(mask, on_true.fmax, on_false.fmax),
    )


def final_point(run: Run) -> Point:
    """Where each system is returned: its last point, or its best where kept and not converged."""
    last = Point(run.params, run.energies, run.gradients, run.fmax)
    if run.best is None:
        return last
    has_best = (run.status != Status.CONVERGED) & jnp.isfinite(run.best.energies)
    return _select_points(has_best, run.best, last, run.optimizer_state.index_prefix)


@eqx.filter_jit
def _advance(value_and_gradient, run, optimizer, fmax, max_steps, measure) -> Run:
    def evaluate(params):
        energies, gradients = value_and_gradient(params)
        return energies, gradients, jnp.ones(energies.shape, bool)

    return advance(evaluate, run, optimizer, fmax, max_steps, measure=measure)


def raise_unless_converged(status: Int32[Array | np.ndarray, "systems"]) -> None:
    """Raise RuntimeError that counts and names the systems that did not converge."""
    codes = np.asarray(status)
    failed = np.flatnonzero(codes != Status.CONVERGED)
    if len(failed):
        shown = ", ".join(f"{i} ({Status(codes[i]).name.lower()})" for i in failed[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise RuntimeError(f"{len(failed)} of {len(codes)} systems did not converge: {shown}{more}")


def _as_array(x):
    """Numbers become leaves, so that another value compiles nothing."""
    return np.asarray(x) if isinstance(x, bool | int | float) else x


def _check_evaluation(value_and_gradient, params, index_prefix) -> None:
    expected = (n_systems(index_prefix),)
    energies, gradients = jax.eval_shape(value_and_gradient, params)
    if jnp.shape(energies) != expected:
        raise ValueError(
            "value_and_gradient must return energies with one entry a system: expected shape"
            f" {expected}, got {jnp.shape(energies)}"
        )
    segment.map_leaves(lambda x, _: x, params, gradients)
