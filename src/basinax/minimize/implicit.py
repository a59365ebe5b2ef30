"""Derivatives of minima by the implicit function theorem.

At a minimum x of E(x, θ) the gradient g(x, θ) is zero, so H dx = -(∂g/∂θ) dθ with the Hessian H. No
step of the run is differentiated. See Blondel et al., "Efficient and Modular Implicit
Differentiation", arXiv:2105.15183.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from basinax.numerics import xla
from basinax.systems import segment
from basinax.systems.types import Prefix, Tree

Model = Callable[..., tuple[Any, ...]]
"""A `value_and_gradient` with its closed-over numbers as further arguments."""

Solve = Callable[[Callable[[Tree], Tree], Tree], Tree]
"""A solver of H v = b, from the function v → H v and b."""


def shapes_of(value_and_gradient: Model, params: Tree) -> tuple[Any, list[Tracer]]:
    """The shapes that a model returns, and the traced numbers that it closes over."""
    # Wrap the model in a function, since the model may be an object without a hash.
    trace = jax.make_jaxpr(lambda params: value_and_gradient(params), return_shape=True)
    try:
        jaxpr, said = trace(params)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note(IS_TRACED)
        raise
    return said, [number for number in jaxpr.consts if isinstance(number, Tracer)]


IS_TRACED = (
    "value_and_gradient is traced by JAX, once for all steps: write it in jax.numpy, with jnp.where"
    " in place of `if`, or wrap what needs NumPy in jax.pure_callback"
)


def with_arguments(value_and_gradient: Model, params: Tree) -> tuple[Model, list[Any]]:
    """The model as a function of the numbers that it closes over, and these numbers."""
    return jax.closure_convert(lambda params: value_and_gradient(params), params)


def differentiable(
    model: Model, numbers: list[Any], solve: Solve, params: Tree, energies: Any, extras: Any
) -> tuple[Tree, Any, Any]:
    """The minimum, its energies and its extras, with derivatives by the numbers of the model.

    Args:
        params: a minimum of the model with these numbers.
        energies: the energies at `params`.
        extras: what else the model returns there, or None.
    """

    @jax.custom_jvp
    def minimum(numbers, params, values):
        del numbers
        return params, values

    @minimum.defjvp
    @xla.jitted
    def _(primals, tangents):
        (numbers, params, values), (changes, *_) = primals, tangents
        # For derivatives of this rule: the minimum moves with the numbers there, too.
        params, values = minimum(numbers, params, values)

        def gradient(x, numbers):
            return model(x, *numbers)[1]

        def hessian_times(v):
            return jax.jvp(lambda x: gradient(x, numbers), (params,), (v,))[1]

        _, forces = jax.jvp(lambda n: gradient(params, n), (numbers,), (changes,))
        b = jax.tree.map(jnp.negative, forces)
        # The Hessian is symmetric, so reverse mode uses the same solver.
        moves = jax.lax.custom_linear_solve(hessian_times, b, solve, symmetric=True)

        def values_of(x, numbers):
            energies, _, *others = model(x, *numbers)
            return energies, others[0] if others else None

        _, slopes = jax.jvp(values_of, (params, numbers), (moves, changes))
        return (params, values), (moves, slopes)

    params, (energies, extras) = minimum(tuple(numbers), params, (energies, extras))
    return params, energies, extras


STEPS = 100
"""The most steps of `solved`, in multiples of a system's coordinates. Without rounding one multiple
is enough; with it, 180 coordinates of condition 1e7 take 49."""


def solved(hessian_times: Callable[[Tree], Tree], b: Tree, prefix: Prefix) -> Tree:
    """The solution of H v = b of each system, by conjugate gradients (Hestenes and Stiefel 1952).

    NaN for systems that have no solution, or whose Hessian has a negative curvature on the way, as
    at a saddle. No bits are promised of derivatives.
    """
    largest = segment.longest_row(b, prefix)
    resolved = jnp.finfo(largest.dtype)
    eps, tiny = resolved.eps, resolved.tiny
    # In units of its largest row, no square of a system is out of range.
    unit = jnp.where(largest > tiny, largest, 1.0)
    b = segment.without_padding(segment.scale(b, 1 / unit, prefix), prefix)
    most = STEPS * segment.sum(jax.tree.map(jnp.ones_like, b), prefix).astype(jnp.int32)

    def plus(x: Tree, factors: Any, y: Tree) -> Tree:
        return jax.tree.map(jnp.add, x, segment.scale(y, factors, prefix))

    def goes_on(state):
        return jnp.any(state[-1])

    def step(state):
        v, rest, way, squares, count, is_active = state
        bent = segment.without_padding(hessian_times(way), prefix)
        curvature = segment.dot(way, bent, prefix)
        is_active &= curvature > 0
        length = jnp.where(is_active, squares / jnp.where(is_active, curvature, 1.0), 0.0)
        v, rest = plus(v, length, way), plus(rest, -length, bent)
        new = segment.dot(rest, rest, prefix)
        way = plus(rest, jnp.where(is_active, new / squares, 0.0), way)
        is_active &= (new > start * eps**1.5) & (count < most)
        return v, rest, way, new, count + 1, is_active

    start = segment.dot(b, b, prefix)
    state = jax.tree.map(jnp.zeros_like, b), b, b, start, jnp.int32(0), start > 0
    v = jax.lax.while_loop(goes_on, step, state)[0]
    left = segment.norm(jax.tree.map(jnp.subtract, b, hessian_times(v)), prefix)
    is_solved = left <= jnp.maximum(jnp.sqrt(eps * start), tiny)
    return segment.scale(v, jnp.where(is_solved, unit, jnp.nan), prefix)
