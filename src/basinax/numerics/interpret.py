"""A user's function, run operation by operation with numbers that no compiler merges.

The function is traced and rebuilt from operations with the same bits in every program: products are
rounded, sums run in index order, and elementary functions come from `elementary.py`
(docs/design.md, section 2, rule 6). Any other operation is refused by name.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jax_core
from jaxtyping import Array, Float, Int, Shaped

from basinax.numerics import elementary as _elementary
from basinax.numerics.exponents import polynomial
from basinax.numerics.rounding import rounded


class RefusedOperation(TypeError):
    """A function uses an operation whose bits may depend on the program."""


def with_rounded_products(function: Callable) -> Callable:
    """`function` with every product, quotient, root and two-term sum rounded.

    Sums over axes, matrix products included, are left folds from +0.0. Elementary functions use
    rounded products.

    Raises:
        RefusedOperation: while tracing, if the function uses any other operation.
    """
    return _rewritten(function, CONTROL | _CUMULATIVE, _done)


def with_ordered_sums(function: Callable) -> Callable:
    """`with_rounded_products` without loops or branches: zeros that pad an axis change no bit.

    Its forward derivatives are those of `function`, with ordered sums.
    """
    return _rewritten(function, {}, _done, _with_derivative)


def _with_derivative(again: Callable[..., list[Any]], jaxpr: Any) -> Callable[..., list[Any]]:
    """`again`, which does a jaxpr again, with the derivative of the original.

    What is done again lacks the rules of functions that have their own (`jax.custom_jvp`).
    """
    again, n_consts = jax.custom_jvp(again), len(jaxpr.constvars)

    @again.defjvp
    def derivative(primals, tangents):
        is_real = [jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in primals]

        def original(*moving):
            left = iter(moving)
            inputs = [next(left) if real else x for x, real in zip(primals, is_real, strict=True)]
            closed = jax_core.ClosedJaxpr(jaxpr, inputs[:n_consts])
            return jax_core.jaxpr_as_fun(closed)(*inputs[n_consts:])

        moving, along = (
            tuple(x for x, real in zip(each, is_real, strict=True) if real)
            for each in (primals, tangents)
        )
        return with_ordered_sums(functools.partial(jax.jvp, original))(moving, along)

    return again


def with_ordered_scatters(function: Callable) -> Callable:
    """`function` with every scatter that adds done by `add_at`; all other operations as they are.

    Raises:
        RefusedOperation: while tracing, where a scatter adds to other than rows, or multiplies.
    """
    return _rewritten(function, CONTROL | _SCATTERS, _as_it_is)


def _rewritten(
    function: Callable,
    control: Mapping[str, Callable],
    others: Callable[..., list[Any]],
    derived: Callable[..., Callable] = lambda again, jaxpr: again,
) -> Callable:
    """`function`, done again from its operations.

    Args:
        control: how to do operations, by name, given a function that does an inner one.
        others: how to do the other operations.
        derived: gives what does a jaxpr again, a function of constants and inputs, its derivative.
    """

    @functools.wraps(function)
    def whole(*args):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        n = len(closed.consts)

        def again(*inputs):
            return _evaluate(closed.jaxpr, inputs[:n], inputs[n:], control, others)

        results = derived(again, closed.jaxpr)(*closed.consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return whole


def _evaluate(jaxpr, consts, args, control, others) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, jax_core.Literal) else values[atom]

    def evaluate(inner, *inputs):
        inner, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())
        return _evaluate(inner, consts, inputs, control, others)

    for eqn in jaxpr.eqns:
        inputs, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
        if name in CALLS:
            outputs = evaluate(eqn.params.get("jaxpr") or eqn.params["call_jaxpr"], *inputs)
        elif name in control:
            outputs = control[name](evaluate, eqn, *inputs)
        else:
            outputs = others(eqn, inputs)
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _done(eqn, inputs) -> list[Any]:
    """The results of an operation that contains no other operations."""
    name = eqn.primitive.name
    is_real = [jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in eqn.outvars]
    if name in REDUCTIONS:
        return [REDUCTIONS[name](*inputs, **eqn.params)]
    if name in ELEMENTARY and all(is_real):
        dtypes = [atom.aval.dtype for atom in eqn.invars]
        inputs = [jnp.asarray(x, dtype) for x, dtype in zip(inputs, dtypes, strict=True)]
        return [_in_a_known_format(ELEMENTARY[name], inputs)]
    if name not in ROUNDED | EXACT | ELEMENTARY.keys():
        raise _refusal(name)
    outputs = _as_it_is(eqn, inputs)
    return [_rounded(x) for x in outputs] if name in ROUNDED else outputs


def _as_it_is(eqn, inputs) -> list[Any]:
    outputs = eqn.primitive.bind(*inputs, **eqn.params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def _rounded(x):
    """`rounded` for real numbers; integers are exact."""
    return rounded(x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _in_a_known_format(function, inputs):
    """`function` in the dtype of the inputs, in float32 if they have fewer bits."""
    dtype = inputs[0].dtype
    if jnp.finfo(dtype).bits >= 32:
        return function(*inputs)
    wide = [x.astype(jnp.float32) if x.dtype == dtype else x for x in inputs]
    return function(*wide).astype(dtype)


def _refusal(name: str) -> RefusedOperation:
    if name in _UNORDERED:
        return RefusedOperation(
            f"{name} adds in an order that depends on shapes: write what it does with products"
            " and sums over axes (jnp.sum, @, jnp.einsum)"
        )
    return RefusedOperation(
        f"{name} may have other last bits in every program: write what it does with sums, products,"
        " quotients, powers, roots, sin, cos, " + ", ".join(_FUNCTIONS)
    )


# fmt: off
EXACT = frozenset({
    "abs", "and", "argmax", "argmin", "bitcast_convert_type", "broadcast_in_dim", "ceil",
    "concatenate", "convert_element_type", "copy", "cummax", "cummin", "device_put",
    "dynamic_slice", "dynamic_update_slice", "eq", "exact", "floor", "gather", "ge", "gt",
    "iota", "is_finite", "le", "lt", "name", "ne", "neg", "nextafter", "not",
    "optimization_barrier", "or", "pad", "population_count", "pvary", "reduce_and",
    "reduce_max", "reduce_min", "reduce_or", "rem", "reshape", "reshard", "rev", "round",
    "scatter", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sign", "slice", "sort", "split", "squeeze", "stack", "stop_gradient", "tile", "top_k",
    "transpose", "unstack", "xor",
})
# fmt: on
"""Operations that move numbers, keep them, or round to the nearest one."""

ROUNDED = frozenset({"add", "add_any", "cos", "integer_pow", "mul", "sin", "sqrt", "square", "sub"})
"""Operations whose result is rounded. A compiler would merge the two constants of `(x + a) + b`.
The C library computes sines and cosines, for one number at a time."""

_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "erf", "erfc"),
    *("exp", "exp2", "expm1", "log", "log1p", "logistic", "rsqrt", "sinh", "tan", "tanh"),
)

ELEMENTARY: dict[str, Callable[..., Array]] = {
    **{name: getattr(_elementary, name) for name in _FUNCTIONS},
    "one_minus_square": _elementary.one_minus_square,
    "pow": _elementary.power,
    "max": _elementary.maximum,
    "min": _elementary.minimum,
    "clamp": _elementary.clamp,
    "div": _elementary.quotient,
    # An operation of JAX from 0.12 on, in the derivative of erf.
    "polynomial": lambda x, *coefficients: polynomial(x, coefficients),
}
"""Operations on real numbers that `elementary.py` replaces; on integers they are exact."""


CALLS = (
    *("jit", "pjit", "call", "closed_call", "checkpoint", "remat2"),
    *("custom_jvp_call", "custom_vjp_call"),
)
"""Operations that call another function, which is rebuilt inline."""


def _scan(evaluate, eqn, *inputs):
    jaxpr, how = eqn.params["jaxpr"], {name: eqn.params[name] for name in ("reverse", "unroll")}
    n_consts, n_carried = count_scanned(eqn)
    consts, inputs = inputs[:n_consts], inputs[n_consts:]

    def body(carry, x):
        outputs = evaluate(jaxpr, *consts, *carry, *x)
        return outputs[:n_carried], outputs[n_carried:]

    carry, rest = list(inputs[:n_carried]), list(inputs[n_carried:])
    carry, stacked = lax.scan(body, carry, rest, eqn.params["length"], **how)
    return carry + stacked


def count_scanned(eqn: Any) -> tuple[int, int]:
    """The numbers of constants and of carried values of a scan."""
    # Scanned inputs and stacked outputs have one axis more outside than inside a turn.
    jaxpr = eqn.params["jaxpr"]
    n_kept = _count_alike(eqn.invars, jaxpr.in_avals)
    n_carried = _count_alike(eqn.outvars, jaxpr.out_avals)
    return n_kept - n_carried, n_carried


def _count_alike(outside, inside) -> int:
    return sum(len(x.aval.shape) == len(y.shape) for x, y in zip(outside, inside, strict=True))


def _while(evaluate, eqn, *inputs):
    n_cond, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_jaxpr, body_jaxpr = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    cond_consts, inputs = inputs[:n_cond], inputs[n_cond:]
    body_consts, carry = inputs[:n_body], list(inputs[n_body:])

    def goes_on(carry):
        return evaluate(cond_jaxpr, *cond_consts, *carry)[0]

    def body(carry):
        mask, turned = goes_on(carry), evaluate(body_jaxpr, *body_consts, *carry)
        if not mask.ndim:
            return turned
        # Under vmap each entry of the mask has its own loop; finished entries keep their values.
        masks = [jnp.expand_dims(mask, range(mask.ndim, x.ndim)) for x in carry]
        return [jnp.where(*each) for each in zip(masks, turned, carry, strict=True)]

    return lax.while_loop(lambda carry: jnp.any(goes_on(carry)), body, carry)


def _choice(evaluate, eqn, which, *inputs):
    branches = eqn.params["branches"]
    return lax.switch(which, [functools.partial(evaluate, branch) for branch in branches], *inputs)


def _linear_solve(evaluate, eqn, *inputs):
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    consts = inputs[before : before + lengths.solve]
    return evaluate(eqn.params["jaxprs"].solve, *consts, *inputs[sum(lengths) :])


CONTROL = {"scan": _scan, "while": _while, "cond": _choice, "custom_linear_solve": _linear_solve}


def _cumulated(combine, start, eqn, x):
    axis, reverse = eqn.params["axis"], eqn.params["reverse"]

    def add(total, y):
        total = _rounded(combine(total, y))
        return total, total

    x = jnp.moveaxis(x, axis, 0)
    total = jnp.full_like(x, start, shape=x.shape[1:])
    return [jnp.moveaxis(lax.scan(add, total, x, reverse=reverse)[1], 0, axis)]


_CUMULATIVE = {
    "cumsum": lambda _, eqn, x: _cumulated(jnp.add, 0, eqn, x),
    "cumprod": lambda _, eqn, x: _cumulated(jnp.multiply, 1, eqn, x),
}


def add_at(
    x: Shaped[Array, "rows *axes"], at: Int[Array, "n"], added: Shaped[Array, "n *axes"]
) -> Shaped[Array, "rows *axes"]:
    """`x.at[at].add(added)` in one order, by additions of single numbers.

    A GPU adds in the order in which its threads come. Here rows of one index are brought together,
    and each adds the sum that ends 1, 2, 4, ... places before it (Hillis and Steele, Commun. ACM
    29, 1170 (1986)). The order then follows from the number of rows with that index alone, wherever
    these stand and whatever stands between. Rows whose index is out of bounds are left out.
    """
    n_rows, n = len(x), len(added)
    if not n:
        return x

    def over_axes(mask):
        return mask.reshape(-1, *(1,) * (x.ndim - 1))

    at = jnp.where((at >= 0) & (at < n_rows), at, n_rows)
    order = jnp.argsort(at, stable=True)
    at, sums, before = at[order], added[order], 1
    while before < n:
        is_same = over_axes(at[before:] == at[:-before])
        later = jnp.where(is_same, sums[:-before] + sums[before:], sums[before:])
        sums, before = jnp.concatenate([sums[:before], later]), 2 * before
    rows = jnp.arange(n_rows, dtype=at.dtype)
    last = jnp.searchsorted(at, rows, side="right") - 1
    is_met = over_axes(at[last] == rows)  # -1 is the last of all
    return jnp.where(is_met, x + sums[last], x)


def _scatter_add(evaluate, eqn, x, at, added):
    del evaluate
    how, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    adds_rows = (
        tuple(how.scatter_dims_to_operand_dims) == tuple(how.inserted_window_dims) == (0,)
        and tuple(how.update_window_dims) == tuple(range(1, added.ndim))
        and at.ndim == 2
        and added.shape[1:] == x.shape[1:]
    )
    if not adds_rows:
        raise RefusedOperation("a scatter adds to single entries, not to whole rows")
    at = at[:, 0]
    if mode == lax.GatherScatterMode.CLIP:
        at = jnp.clip(at, 0, len(x) - 1)
    return [add_at(x, at, added)]


def _scatter_mul(evaluate, eqn, *inputs):
    del evaluate, inputs
    raise RefusedOperation(f"{eqn.primitive.name} multiplies in any order")


_SCATTERS = {"scatter-add": _scatter_add, "scatter_add": _scatter_add} | dict.fromkeys(
    ("scatter-mul", "scatter_mul"), _scatter_mul
)


def _sum(x, *, axes, **_):
    for axis in sorted(axes, reverse=True):
        x = _fold(x, axis)
    return x


def _fold(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    def add(k, total):
        return total + lax.dynamic_index_in_dim(x, k, axis, keepdims=False)

    start = jnp.zeros(x.shape[:axis] + x.shape[axis + 1 :], x.dtype)
    if not x.shape[axis]:
        return start
    return lax.fori_loop(0, x.shape[axis], add, start)


def _matrix_product(a, b, *, dimension_numbers, preferred_element_type=None, **_):
    if preferred_element_type is not None:
        a, b = (x.astype(preferred_element_type) for x in (a, b))
    (a_summed, b_summed), (a_batch, b_batch) = dimension_numbers

    def arranged(x, batch, summed, n_before, n_behind):
        """The axes of x as: batch, ones for the other operand's free axes, free, summed."""
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
    terms = _rounded(jnp.broadcast_to(left, shape) * jnp.broadcast_to(right, shape))
    return _sum(terms, axes=range(terms.ndim - len(a_summed), terms.ndim))


REDUCTIONS = {"reduce_sum": _sum, "dot_general": _matrix_product}

# fmt: off
_UNORDERED = frozenset({
    "cholesky", "cond", "conv_general_dilated", "cumlogsumexp", "cumprod", "cumsum", "eig", "eigh",
    "fft", "householder_product", "lu", "pallas_call", "qr", "reduce", "reduce_prod",
    "reduce_window", "reduce_window_sum", "scan", "scatter-add", "scatter-mul", "scatter_add",
    "scatter_mul", "select_and_gather_add", "select_and_scatter_add", "svd", "triangular_solve",
    "tridiagonal_solve", "while",
})
# fmt: on
"""Operations that add or multiply in an order of their own, and loops, which may contain them."""
