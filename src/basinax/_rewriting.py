"""Functions of others, run operation by operation with numbers that no compiler merges.

What a function does is traced and done again, with products rounded and, where asked for, sums in
index order (docs/design.md, section 2).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jax_core
from jaxtyping import Array, Float

from basinax._rounding import rounded


def with_rounded_products(function: Callable) -> Callable:
    """`function` with every product, quotient and root rounded before it meets anything else."""
    return _rewritten(function, {}, frozenset())


def with_ordered_sums(function: Callable) -> Callable:
    """The same, with sums over axes as left folds from +0.0, and products of matrices as such sums.

    Zeros at the end of an axis then change no bit. Raises TypeError, while tracing, where the
    function does anything else whose order the compiler chooses.
    """
    return _rewritten(function, _ORDERED, _UNORDERED)


def _rewritten(function: Callable, rules: Mapping[str, Callable], refused: frozenset) -> Callable:
    @functools.wraps(function)
    def rounding(*args):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = jax.tree.leaves(args)
        results = _evaluate(closed.jaxpr, closed.consts, leaves, rules, refused)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return rounding


_ROUNDED = ("mul", "div", "sqrt", "rsqrt", "integer_pow", "square", "pow")


def _evaluate(jaxpr, consts, args, rules, refused) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, jax_core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if inner is not None and name in ("jit", "pjit", "custom_jvp_call"):
            outputs = _evaluate(inner.jaxpr, inner.consts, inputs, rules, refused)
        elif name in refused:
            raise TypeError(
                f"{name} adds in an order that depends on shapes: write what it does with products"
                " and sums over axes (jnp.sum, @, jnp.einsum)"
            )
        elif name in rules:
            outputs = [rules[name](*inputs, **eqn.params)]
        else:
            outputs = eqn.primitive.bind(*inputs, **eqn.params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        if name in _ROUNDED:
            outputs = [rounded(x) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in outputs]
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _sum(x, *, axes, **_):
    for axis in sorted(axes, reverse=True):
        x = _fold(x, axis)
    return x


def _fold(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    def add(k, total):
        return total + lax.dynamic_index_in_dim(x, k, axis, keepdims=False)

    start = jnp.zeros(x.shape[:axis] + x.shape[axis + 1 :], x.dtype)
    return lax.fori_loop(0, x.shape[axis], add, start)


def _matrix_product(a, b, *, dimension_numbers, **_):
    (a_summed, b_summed), (a_batch, b_batch) = dimension_numbers

    def arranged(x, batch, summed, n_before, n_behind):
        """Batch axes, the other one's free axes as ones, free axes, those to be summed over."""
        free = [k for k in range(x.ndim) if k not in (*batch, *summed)]
        shape = [x.shape[k] for k in (*batch, *free, *summed)]
        at = len(batch)
        shape = shape[:at] + [1] * n_before + shape[at : at + len(free)] + [1] * n_behind
        shape += [x.shape[k] for k in summed]
        return x.transpose([*batch, *free, *summed]).reshape(shape)

    a_free, b_free = (
        x.ndim - len(s) - len(n) for x, s, n in ((a, a_summed, a_batch), (b, b_summed, b_batch))
    )
    left = arranged(a, a_batch, a_summed, 0, b_free)
    right = arranged(b, b_batch, b_summed, a_free, 0)
    shape = jnp.broadcast_shapes(left.shape, right.shape)
    terms = rounded(jnp.broadcast_to(left, shape) * jnp.broadcast_to(right, shape))
    return _sum(terms, axes=range(terms.ndim - len(a_summed), terms.ndim))


_ORDERED = {"reduce_sum": _sum, "dot_general": _matrix_product}

_UNORDERED = frozenset(
    (
        "cumsum",
        "cumprod",
        "cumlogsumexp",
        "reduce_prod",
        "reduce",
        "reduce_window",
        "reduce_window_sum",
        "scatter-add",
        "scatter_add",
        "scatter-mul",
        "scatter_mul",
        "conv_general_dilated",
        "fft",
        "while",
        "scan",
        "cond",
        "select_and_scatter_add",
        "select_and_gather_add",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "cholesky",
        "eig",
        "eigh",
        "lu",
        "qr",
        "householder_product",
        "svd",
        "triangular_solve",
        "tridiagonal_solve",
        "pallas_call",
    )
)
"""Loops and what has derivatives of its own hide what they do; the rest adds or multiplies."""
