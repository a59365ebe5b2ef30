"""THE loop over steps. It knows no potential, no atoms and no files.

Each turn evaluates every system once, judges those whose evaluation has arrived, and moves those
that are still running. A system that has ended, or waits for something only the host can do,
stands still and loses nothing.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from basinax import _segment as segment
from basinax._convergence import judge, largest_force
from basinax._optimizer import (
    AbstractTransform,
    Prefix,
    Tree,
    apply_updates,
    where_systems,
)
from basinax._status import Status
from basinax._systems import n_systems, per_system


class Relaxation(eqx.Module):
    """The result of `relax`; every field but the trees has one entry a system."""

    params: Tree
    energies: Float[Array, "systems"]
    """At `params`."""
    gradients: Tree
    """At `params`."""
    fmax: Float[Array, "systems"]
    """The largest norm of a row of the gradient; +inf where it is not finite."""
    steps: Int32[Array, "systems"]
    """Steps made; a start that is converged makes none."""
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
        throw: raise if a system does not converge, instead of leaving it to `status`.

    Raises:
        TypeError, ValueError: what was passed does not fit together.
        RuntimeError: with `throw`, a system did not converge.
    """
    params = jax.tree.map(jnp.asarray, params)
    _check_evaluation(value_and_gradient, params, index_prefix)
    run = start(optimizer, params, index_prefix)
    optimizer, fmax, max_steps = jax.tree.map(_as_array, (optimizer, fmax, max_steps))

    run = _advance(value_and_gradient, run, optimizer, fmax, max_steps)
    result = Relaxation(run.params, run.energies, run.gradients, run.fmax, run.steps, run.status)
    if throw:
        raise_unless_converged(result.status)
    return result


class Run(eqx.Module):
    """What the loop carries from turn to turn."""

    params: Tree
    optimizer_state: Any
    energies: Float[Array, "systems"]
    gradients: Tree
    fmax: Float[Array, "systems"]
    steps: Int32[Array, "systems"]
    status: Int32[Array, "systems"]
    is_pending: Bool[Array, "systems"]
    """The system stands where it has not been evaluated."""
    has_moved: Bool[Array, "systems"]
    """In the last turn."""


def start(optimizer: AbstractTransform, params: Tree, index_prefix: Prefix) -> Run:
    """Before the first evaluation."""
    state = optimizer.init(params, index_prefix)
    blank = segment.blank(params, index_prefix)
    count = jnp.zeros(blank.shape, jnp.int32)
    yes = jnp.ones(blank.shape, bool)
    gradients = jax.tree.map(jnp.zeros_like, params)
    return Run(params, state, blank, gradients, blank, count, count, yes, yes)


def advance(evaluate, run: Run, optimizer, fmax, max_steps, turns=None) -> Run:
    """Turn until no system can move, or for so many turns.

    Args:
        evaluate: of params, the energies, gradients and which systems' evaluation is valid; one
            whose evaluation is not stands still.
        turns: the most turns, traced; no limit if None.
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
        largest = jnp.where(arrived, largest_force(gradients, prefix), run.fmax)
        judgement = judge(energies, largest, run.steps, fmax, max_steps)
        status = jnp.where(arrived, judgement, run.status)

        moves = arrived & (status == Status.RUNNING)
        step, state = optimizer.update(
            gradients, run.optimizer_state, run.params, energies=energies
        )
        params = segment.where(moves, apply_updates(run.params, step), run.params, prefix)
        state = where_systems(moves, state, run.optimizer_state)
        is_pending = (run.is_pending & ~arrived) | moves
        steps = run.steps + moves.astype(jnp.int32)
        run = Run(params, state, energies, gradients, largest, steps, status, is_pending, moves)
        return run, count + 1

    def goes_on(carry):
        run, count = carry
        return jnp.any(run.has_moved) & (True if turns is None else count < turns)

    fresh = eqx.tree_at(lambda r: r.has_moved, run, jnp.ones_like(run.has_moved))
    return jax.lax.while_loop(goes_on, turn, (fresh, jnp.int32(0)))[0]


@eqx.filter_jit
def _advance(value_and_gradient, run, optimizer, fmax, max_steps) -> Run:
    def evaluate(params):
        energies, gradients = value_and_gradient(params)
        return energies, gradients, jnp.ones(energies.shape, bool)

    return advance(evaluate, run, optimizer, fmax, max_steps)


def raise_unless_converged(status: Int32[Array, "systems"]) -> None:
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
