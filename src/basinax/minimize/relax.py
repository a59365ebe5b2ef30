"""THE loop over steps. It knows no potential, no atoms and no files.

Each turn evaluates every system once, judges systems whose evaluation has arrived, and moves the
systems that still run. Systems that have ended, or wait for the host, keep their state.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.dtypes import canonicalize_dtype
from jaxtyping import Array, Bool, Float, Int32

from basinax.config.specs import optimizer_from
from basinax.minimize.criteria import AbstractCriterion, criterion_of
from basinax.minimize.implicit import Model, differentiable, shapes_of, solved, with_arguments
from basinax.minimize.run import Evaluation, Run, advance, final_point, start
from basinax.minimize.status import Status
from basinax.numerics import xla
from basinax.numerics.forks import check_process
from basinax.numerics.order import checked
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import (
    count_of,
    counts,
    knows_options_of_ase,
    largest_of,
    require_function,
    require_switch,
)
from basinax.numerics.static import Static, partition
from basinax.numerics.switches import own_switches
from basinax.optimizers.protocol import AbstractTransform, check_transform
from basinax.systems import segment
from basinax.systems.prefix import check_leaves, n_systems
from basinax.systems.types import Prefix, Tree

T = TypeVar("T")


class Relaxation(eqx.Module):
    """The result of `relax`; all fields but the trees have one entry per system."""

    params: Tree
    energies: Float[Array, "systems"]
    """The energies at `params`."""
    gradients: Tree
    """The gradients at `params`."""
    fmax: Float[Array, "systems"]
    """The largest norm of a row of the gradient; +inf if not finite."""
    steps: Int32[Array, "systems"]
    """The number of steps; 0 if the start is converged."""
    evaluations: Int32[Array, "systems"]
    """Evaluations until the system ended, including the first and the trials of line searches."""
    status: Int32[Array, "systems"]
    """Codes of `Status`."""
    extras: Any
    """Further values of each system at `params` from the evaluation, or None."""

    @property
    def converged(self) -> Bool[Array, "systems"]:
        """Whether the status of each system is "converged"."""
        return self.status == Status.CONVERGED.code

    def __repr__(self) -> str:
        """One line: the number of systems by status, steps, evaluations and the largest `fmax`."""
        if not isinstance(self.status, jax.Array) or isinstance(self.status, Tracer):
            return eqx.tree_pformat(self)  # inside jit, and of shapes
        codes, steps, fmax = map(np.asarray, (self.status, self.steps, self.fmax))
        n = {x: int((codes == x.code).sum()) for x in Status}
        counts = ", ".join(f"{count} {status}" for status, count in n.items() if count)
        return (
            f"Relaxation({count_of(len(codes), 'system')}{counts and f': {counts}'}; steps"
            f" {steps.sum()}, {steps.max(initial=0)} at most; evaluations"
            f" {np.asarray(self.evaluations).sum()}; largest fmax {largest_of(fmax.tolist()):.3g})"
        )


@own_switches()
@knows_options_of_ase
def relax(
    value_and_gradient: Callable[[Tree], tuple[Any, ...]],
    params: Tree,
    optimizer: AbstractTransform | str,
    *,
    index_prefix: Prefix = None,
    fmax: float | Float[Array, "systems"] | None = None,
    convergence: AbstractCriterion | None = None,
    max_steps: int | Int32[Array, "systems"] = 500,
    keep_best: bool = False,
    has_extras: bool = False,
    throw: bool = False,
    strict: bool = False,
) -> Relaxation:
    """Minimise the energy of every system, each as if it were alone.

    `jax.grad` and `jax.jvp` differentiate `params` and `energies` by numbers that
    `value_and_gradient` closes over, by the implicit function theorem. These derivatives hold for
    converged systems, need a gradient that JAX can differentiate, and ignore the start. They are
    NaN for systems that stand at no minimum, such as at a saddle. Of a model by `each_alone` only
    `jax.jvp` has them.

    Of several systems, a warning (`OrderWarning`) names each operation of `value_and_gradient`, and
    of transforms that basinax does not have, by which their bits may depend on the batch, with file
    and line: see `check_order`. It comes when the function is compiled.

    Args:
        value_and_gradient: a function of all params that returns energies of shape `[n_systems]`
            and a gradient like `params`. Of one system without `index_prefix` the energy may be a
            scalar, as from `jax.value_and_grad`. Compiled once per function object, so define it
            outside loops.
        params: the start; the leading axis of each leaf goes over rows.
        optimizer: turns the gradient into steps, such as `FIRE()` or a `chain`, or its
            text, as on the command line: "fire:maxstep=0.1".
        index_prefix: which row belongs to which system; None if there is one system.
        fmax: a system has converged when each row of its gradient has a norm below `fmax` (energy
            per unit of `params`); 0.05 if None. One number, or one per system. Short for
            `convergence=MaxForce(fmax)`.
        convergence: a criterion in place of `fmax`, such as `MaxForce(0.05) & EnergyChange(1e-4)`.
        max_steps: a system ends unconverged after this many steps. One number, or one per system;
            numbers beyond 32 bits mean no limit.
        keep_best: return an unconverged system at its point of lowest energy, not its last one.
        has_extras: `value_and_gradient` returns a third value, a tree of arrays that lead with
            systems, for criteria and the result.
        throw: raise if a system does not converge; otherwise see `status`.
        strict: raise in place of the warning.

    Raises:
        TypeError, ValueError: the arguments do not fit together; or with `strict`, bits may depend
            on the batch.
        RuntimeError: with `throw`, a system did not converge; or a fork of a process that had used
            JAX calls this function.
    """
    check_process()
    hint = ": basinax.atoms.relax takes structures"
    require_function(value_and_gradient, "value_and_gradient", hint)
    if isinstance(optimizer, str):
        optimizer = optimizer_from(optimizer)
    check_transform(optimizer)
    switches = {"keep_best": keep_best, "has_extras": has_extras, "throw": throw, "strict": strict}
    for name, value in switches.items():
        require_switch(value, name)
    max_steps = counts(max_steps, "max_steps")
    check_leaves(params)
    # Use the precision of the current setting: the arrays may have been made under another.
    params = jax.tree.map(lambda x: jnp.asarray(x, canonicalize_dtype(jnp.result_type(x))), params)
    # The minimum does not depend on where the search for it begins, or on how it is found.
    search = params, optimizer, criterion_of(fmax, convergence), max_steps
    params, optimizer, criterion, max_steps = _held(search)
    said, traced = shapes_of(value_and_gradient, params)
    if index_prefix is None and _is_of_a_number(said):
        value_and_gradient = jax.tree_util.Partial(_with_one_energy, value_and_gradient)
        energy, *others = said
        said = jax.ShapeDtypeStruct((1,), energy.dtype), *others
    extras = _check_evaluation(said, params, index_prefix, has_extras)
    model, numbers = value_and_gradient, []
    if traced:
        model, numbers = with_arguments(value_and_gradient, params)
        still = jax.lax.stop_gradient((tuple(numbers), tuple(traced)))
        # A tree, whose arrays are no part of the key of a program.
        value_and_gradient = jax.tree_util.Partial(_with_numbers, model, *still)
    run = start(
        optimizer, params, index_prefix, keep_best=keep_best, extras=extras, needs=criterion.needs
    )
    optimizer, criterion, max_steps = jax.tree.map(_as_array, (optimizer, criterion, max_steps))

    run = _advance(*partition((value_and_gradient, run, optimizer, criterion, max_steps, strict)))
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
    if numbers:
        solve = functools.partial(solved, prefix=index_prefix)
        found = result.params, result.energies, result.extras
        params, energies, extras = differentiable(model, numbers, solve, *found)
        result = dataclasses.replace(result, params=params, energies=energies, extras=extras)
    if throw:
        raise_unless_converged(result.status)
    return result


def _held(tree: T) -> T:
    """The tree, with traced numbers that have no derivatives."""
    hold = jax.lax.stop_gradient
    return jax.tree.map(lambda x: hold(x) if isinstance(x, Tracer) else x, tree)


def _is_of_a_number(said: Any) -> bool:
    """Whether a model returns a scalar energy. Args: said: the shapes that it returns."""
    return isinstance(said, tuple | list) and getattr(next(iter(said), None), "shape", None) == ()


def _with_one_energy(model: Model, params: Tree) -> tuple[Any, ...]:
    """What a model of one system returns, its scalar energy as one entry."""
    energy, *others = model(params)
    return jnp.reshape(energy, 1), *others


def _with_numbers(
    model: Model, numbers: tuple[Any, ...], traced: tuple[Any, ...], params: Tree
) -> tuple[Any, ...]:
    """Args: traced: of which those of `vmap` stay in the model; `Programs` leaves them to JAX."""
    del traced
    return model(params, *numbers)


@functools.partial(xla.jitted, static_argnums=0, is_kept=True)
def _advance(fixed: Static, arrays: Any) -> Run:
    parts = eqx.combine(arrays, fixed.tree)
    value_and_gradient, run, optimizer, criterion, max_steps, strict = parts

    def evaluate(params):
        energies, gradients, *extras = value_and_gradient(params)
        gradients = segment.map_leaves(_rounded_like, gradients, params)
        is_valid = jnp.ones_like(energies, bool)
        return Evaluation(_rounded_like(energies, energies), gradients, is_valid, *extras)

    def all_turns(run, optimizer, criterion, max_steps):
        return advance(evaluate, run, optimizer, criterion, max_steps)

    if run.steps.size < 2:
        return all_turns(run, optimizer, criterion, max_steps)
    return checked(all_turns, run, optimizer, criterion, max_steps, is_strict=strict)


def _rounded_like(x: Any, y: Array) -> Array:
    """Rounded, since a model may return products, which transforms and criteria subtract."""
    return rounded(jnp.asarray(x).astype(y.dtype))


def raise_unless_converged(status: Int32[Array | np.ndarray, "systems"]) -> None:
    """Raise RuntimeError with the number and names of systems that did not converge, if any."""
    if isinstance(status, Tracer):
        raise TypeError("throw=True needs to know each system's status: call relax outside of jit")
    each = list(map(Status, np.asarray(status).tolist()))
    failed = [f"{i} ({x})" for i, x in enumerate(each) if x != Status.CONVERGED]
    if failed:
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise RuntimeError(
            f"{len(failed)} of {len(each)} systems did not converge: {', '.join(failed[:5])}{more}"
        )


def _as_array(x):
    """Turn numbers into leaves, so that another value needs no compilation."""
    return np.asarray(x) if isinstance(x, bool | int | float | np.generic) else x


def _check_evaluation(said: Any, params, index_prefix, has_extras: bool) -> Any:
    """Zeros like the extras, or None without extras.

    Args:
        said: the shapes that the model returns.
    """
    expected = (n_systems(index_prefix),)
    got = len(said) if isinstance(said, tuple | list) else 1
    if got != 2 + has_extras:
        raise ValueError(
            f"value_and_gradient must return {2 + has_extras} values with has_extras={has_extras},"
            f" got {got}"
        )
    energies, gradients, *extras = said
    if isinstance(energies, tuple | list):
        raise TypeError(
            "value_and_gradient must return energies as one array with an entry per system, got a"
            f" {type(energies).__name__}; further results come third, with has_extras=True"
        )
    if jnp.shape(energies) != expected:
        raise ValueError(
            "value_and_gradient must return energies with one entry per system: expected shape"
            f" {expected}, got {jnp.shape(energies)}"
        )
    segment.check_alike(params, gradients)
    named = {"energies": energies, "gradient": gradients}
    for path, leaf in jax.tree_util.tree_leaves_with_path(named):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = path[0].key + jax.tree_util.keystr(path[1:])
            raise TypeError(
                f"value_and_gradient must return real floating-point numbers; {name} has dtype"
                f" {leaf.dtype}"
            )
    for path, leaf in jax.tree_util.tree_leaves_with_path(extras):
        if jnp.shape(leaf)[:1] != expected:
            raise ValueError(
                f"extras{jax.tree_util.keystr(path[1:])} must lead with the {expected[0]} systems,"
                f" got shape {jnp.shape(leaf)}"
            )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), extras[0]) if extras else None
