"""Loops compiled into one kernel on the CPU.

XLA starts one kernel per operation, which takes 0.1 µs. One turn of a fold over neighbours has
thirty operations, and their starts take a fifth of its time. XLA compiles small loops into one
kernel by a call with the attribute that this module sets. (The limit for "small" is a setting of
the whole process, so a library must leave that setting alone.)
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jax_core
from jax.interpreters import ad

from basinax.numerics import xla
from basinax.numerics.switches import default_platform

UNTRIED = (0, 13)
"""The first version of JAX without a trial of this attribute. An operation that XLA does not
support inside such a kernel ends the process, so newer versions run loops of many kernels."""

# fmt: off
POSSIBLE = frozenset({
    "abs", "add", "and", "bitcast_convert_type", "broadcast_in_dim", "ceil", "clamp",
    "convert_element_type", "copy", "custom_jvp_call", "custom_vjp_call", "div", "dynamic_slice",
    "dynamic_update_slice", "eq", "exact", "exp", "floor", "gather", "ge", "gt", "integer_pow",
    "iota", "is_finite", "jit", "le", "log", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "pow", "rem", "reshape", "round", "rsqrt", "scan", "select_n", "shift_left", "sign", "slice",
    "sqrt", "square", "squeeze", "sub", "tanh", "transpose", "while",
})
# fmt: on
"""Operations that such kernels may contain. XLA refuses sorts, scatters and library calls."""


def one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays with the same bits, as one kernel on the CPU if all operations allow.

    Inside a forward derivative it stays as it is.
    """

    @functools.wraps(function)
    def whole(*args):
        if not _is_tried():
            return function(*args)
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        read = (*closed.consts, *jax.tree.leaves(args))
        # XLA ended the process at a derivative of such a kernel under `vmap`.
        if any(isinstance(x, ad.JVPTracer) for x in read):
            results = jax_core.jaxpr_as_fun(closed)(*jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shapes), results)
        # Nor is it a program by itself, of which some have ended the process, too.
        if not (_is_possible(closed.jaxpr) and any(isinstance(x, Tracer) for x in read)):
            return function(*args)

        @jax.jit
        def kernel(consts, leaves):
            results = jax_core.jaxpr_as_fun(jax_core.ClosedJaxpr(closed.jaxpr, consts))(*leaves)
            # XLA requires the kernel to read every argument.
            return results, [jnp.ravel(x)[:1] for x in (*consts, *leaves)]

        # XLA ends the process where such a kernel reads constants: lists that a caller closes over.
        inputs = lax.optimization_barrier((closed.consts, jax.tree.leaves(args)))
        with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
            outputs = kernel(*inputs)
        results, _ = lax.optimization_barrier(outputs)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return whole


def _is_tried() -> bool:
    is_op_by_op = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    is_known = default_platform() == "cpu" and jax.__version_info__ < UNTRIED
    return xla.SWITCHES["one_kernel"] and is_known and not is_op_by_op


def _is_possible(jaxpr: Any) -> bool:
    return all(
        eqn.primitive.name in POSSIBLE
        and all(_is_possible(inner) for inner in jax_core.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )
