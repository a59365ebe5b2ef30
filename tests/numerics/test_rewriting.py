"""Functions done again: the values of the original.

With sums in order no bit depends on padding; with products rounded, none on what is compiled.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jax_core

from basinax import exact, product
from basinax.numerics.interpret import (
    ELEMENTARY,
    EXACT,
    REDUCTIONS,
    ROUNDED,
    RefusedOperation,
    add_at,
    with_ordered_scatters,
    with_ordered_sums,
    with_rounded_products,
)
from cover import every_day
from xla import jit_as_users

DRAW = np.random.default_rng(0)
A, B, C = (jnp.asarray(DRAW.normal(size=shape)) for shape in ((5, 8, 3), (5, 3, 4), (8, 7)))

FUNCTIONS = {
    "sum of all": lambda a, b, c: jnp.sum(a),
    "sums over axes": lambda a, b, c: jnp.sum(a * a, axis=(0, 2)),
    "batches of matrices": lambda a, b, c: a @ b,
    "two axes at once": lambda a, b, c: jnp.einsum("ikc,kx,icy->iyx", a, c, b),
    "an outer product": lambda a, b, c: jnp.einsum("ikc,xy->kxicy", a, c),
    "of a gradient": lambda a, b, c: jax.grad(lambda a: jnp.sum(jnp.tanh(a @ b) ** 2))(a),
    "of a product": lambda a, b, c: jnp.sum(product(a, a), axis=0),
    "of one that is kept for its derivative": lambda a, b, c: jax.checkpoint(jnp.sum)(a),
    "of a jitted one": lambda a, b, c: jax.jit(lambda a: jnp.linalg.norm(a, axis=1))(a),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_the_original(name):
    function = FUNCTIONS[name]
    got, expected = jax.jit(with_ordered_sums(function))(A, B, C), function(A, B, C)
    assert got.shape == expected.shape
    # Some ten terms of size 1, added in another order.
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [1, 5, 8, 100])
def test_zeros_behind_change_no_bit_of_a_sum(n):
    x = jnp.asarray(DRAW.normal(size=(37, 9)))
    padded = jnp.concatenate([x, jnp.zeros((n, 9))])
    total = jax.jit(with_ordered_sums(lambda x: jnp.sum(x**3, axis=0)))
    np.testing.assert_array_equal(total(padded), total(x))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cumsum", jnp.cumsum),
        ("reduce_prod", jnp.prod),
        ("scatter-add", lambda x: x.at[jnp.array([0, 0])].add(x[:2])),
        ("scan", lambda x: jax.lax.scan(lambda s, y: (s + y, None), 0.0, x)[0]),
    ],
)
def test_what_adds_in_an_order_of_its_own_is_refused(name, function):
    with pytest.raises(TypeError, match=f"^{name} adds in an order that depends on shapes"):
        with_ordered_sums(function)(A[0, :, 0])


def polynomial(x):
    return 0.7 * x + 0.1 * x * x


# Each is given one row, of which the first entry is positive or negative.
CALLS = {
    "a function with a derivative of its own": lambda x: product(x, x) + 0.7 * x,
    "another": jax.nn.softplus,
    "a jitted function": jax.jit(polynomial),
    "what is found again for a derivative": jax.checkpoint(polynomial),
    "its derivative": jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: polynomial(y) * y)(x))),
    "a scan": lambda x: lax.scan(lambda s, y: (polynomial(s) + y, s), x[0], x, reverse=True),
    "a loop": lambda x: lax.fori_loop(0, 4, lambda _, y: polynomial(y), x),
    "a loop that rows leave": lambda x: lax.while_loop(lambda y: y[0] > 0.3, polynomial, x),
    "a choice": lambda x: lax.cond(x[0] > 0, polynomial, lambda y: y * y + y, x),
    "a choice for all rows": lambda x: lax.switch(jnp.arange(3)[1], [jnp.sin, polynomial], x),
    "a linear equation": lambda x: lax.custom_linear_solve(
        lambda y: 2.1 * y, x, lambda _, y: polynomial(y) / 2.1
    ),
}


# Op by op a scan is a loop of Python, with 140 programs.
@pytest.mark.parametrize("name", every_day(CALLS.keys(), lambda name: name != "a scan"))
def test_products_are_rounded_in_functions_of_a_function(name):
    function = jax.vmap(CALLS[name])
    # Far below 3, from where the polynomial leads to infinity and no loop ends. Many in a row: exp
    # has other bits in loops that are not vectorised, as those over a few (JAX 0.12).
    x = jnp.asarray(DRAW.uniform(-0.5, 0.5, size=(24, 128)))
    got = jit_as_users(with_rounded_products(function))(x)
    with jax.disable_jit():
        expected = with_rounded_products(function)(x)
    for values, one_by_one, original in zip(
        *map(jax.tree.leaves, (got, expected, function(x))), strict=True
    ):
        np.testing.assert_array_equal(values, one_by_one)
        # Some roundings of numbers of size 1, of which the scan adds up a few.
        np.testing.assert_allclose(values, original, rtol=1e-13, atol=1e-14)


def last_bits(x):
    return lax.bitcast_convert_type(x, jnp.int32 if x.dtype == jnp.float32 else jnp.int64)


# Of rows of three numbers between 0 and 1.
OPERATIONS = {
    "acos": lambda x, y: lax.acos(x),
    "acosh": lambda x, y: lax.acosh(1 + 9 * x),
    "asin": lambda x, y: lax.asin(x),
    "asinh": lambda x, y: lax.asinh(9 * x - 4),
    "atan": lambda x, y: lax.atan(9 * x - 4),
    "atan2": lambda x, y: lax.atan2(x - 0.5, y - 0.5) + jnp.arctan2(x, 1.0),
    "atanh": lambda x, y: lax.atanh(1.9 * x - 0.95),
    "cbrt": lambda x, y: lax.cbrt(9 * x - 4),
    "clamp": lambda x, y: lax.clamp(y[0], x, y[1]),
    "cos": lambda x, y: lax.cos(30 * x),
    "cosh": lambda x, y: lax.cosh(9 * x - 4),
    "div": lambda x, y: x / y,
    "erf": lambda x, y: lax.erf(4 * x - 2),
    "erfc": lambda x, y: lax.erfc(9 * x - 4),
    "exp": lambda x, y: lax.exp(30 * x - 15),
    "exp2": lambda x, y: lax.exp2(30 * x - 15),
    "expm1": lambda x, y: lax.expm1(4 * x - 2),
    "integer_pow": lambda x, y: x**7 + (x + 1) ** -4,
    "log": lambda x, y: lax.log(x),
    "log1p": lambda x, y: lax.log1p(4 * x - 0.9),
    "logistic": lambda x, y: lax.logistic(9 * x - 4),
    "max": lambda x, y: lax.max(x, y),
    "min": lambda x, y: lax.min(x, y),
    "mul": lambda x, y: x * y,
    "nextafter": lambda x, y: lax.nextafter(x, y),
    "pow": lambda x, y: lax.pow(x, 9 * y) + (x + 0.1) ** 0.3 + (x + 0.2) ** 2.5,
    "pow of a half": lambda x, y: lax.pow(x, jnp.full_like(x, 0.5)) + lax.pow(x, jnp.arange(3)),
    "rem": lambda x, y: lax.rem(9 * x, y),
    "round": lambda x, y: jnp.round(9 * x) + jnp.floor(7 * x) + jnp.ceil(5 * y),
    "rsqrt": lambda x, y: lax.rsqrt(x),
    "sin": lambda x, y: lax.sin(30 * x),
    "sinh": lambda x, y: lax.sinh(9 * x - 4),
    "sqrt": lambda x, y: lax.sqrt(x),
    "square": lambda x, y: lax.square(x),
    "sub": lambda x, y: jnp.abs(-x - y) + jnp.sign(x - y),
    "tan": lambda x, y: lax.tan(9 * x - 4),
    "tanh": lambda x, y: lax.tanh(9 * x - 4),
    "functions of several": lambda x, y: jnp.hypot(x, y) + jnp.logaddexp(x, y) + x ** (9 * y),
    "names": lambda x, y: exact(x, reason="for this test"),
    "a derivative": lambda x, y: jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 3 * jnp.arccos(y)))(x),
    "a derivative of erf": lambda x, y: jax.grad(lambda x: jnp.sum(lax.erf(x) * y))(x),
    "reduce_sum": lambda x, y: x / jnp.sum(x),
    "dot_general": lambda x, y: x * (x @ y),
    "cumprod": lambda x, y: jnp.cumprod(x) + jnp.cumsum(y),
}


def test_derivatives_are_those_of_the_original():
    """Of what is rewritten, as a Hessian needs them from forces."""
    smooth = [f for name, f in OPERATIONS.items() if name in ELEMENTARY or "several" in name]
    x, y = jnp.array([0.1, 0.45, 0.8]), jnp.array([0.2, 0.7, 0.9])

    def all_of(x):
        return jnp.stack([f(x, y) for f in smooth])

    found, expected = (
        jax.jit(lambda x, f=f: jax.jvp(f, (x,), (jnp.ones(3),))[1])(x)
        for f in (with_rounded_products(all_of), all_of)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def turns(x, y):
    """Each of them is added up, and meets products before and a sum behind."""

    def turn(k, carry):
        totals, x, y = carry
        terms = with_rounded_products(
            jax.vmap(lambda x, y: [f(x, y) for f in OPERATIONS.values()])
        )(x, y)
        return [total + term for total, term in zip(totals, terms, strict=True)], y, x

    return lax.fori_loop(0, 3, turn, ([jnp.zeros_like(x) for _ in OPERATIONS], x, y))[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_bit_of_an_operation_depends_on_how_many_rows_there_are(dtype):
    """One row is fewer than a vector has, 21 are no multiple of eight, 128 more than small loops
    have."""
    x, y = (jnp.asarray(DRAW.uniform(0.01, 1.0, (128, 3)), dtype) for _ in range(2))
    whole = jit_as_users(turns)(x, y)
    for rows in (slice(0, 21), slice(7, 8)):
        for name, one, other in zip(
            OPERATIONS, whole, jit_as_users(turns)(x[rows], y[rows]), strict=True
        ):
            np.testing.assert_array_equal(other, one[rows], err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operations_jitted_have_the_bits_they_have_op_by_op(dtype):
    x, y = (jnp.asarray(DRAW.uniform(0.01, 1.0, (21, 3)), dtype) for _ in range(2))
    got = jit_as_users(turns)(x, y)
    with jax.disable_jit():
        slow = turns(x, y)
    for name, one, other in zip(OPERATIONS, got, slow, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


EVERYWHERE = jax.NamedSharding(
    jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Explicit,)),
    jax.P(),
)

# That they are done as they are is all there is to try: the values of the original.
EXACT_OPERATIONS = {
    "arithmetic": lambda x, y: jnp.abs(lax.neg(x)) + y - jnp.sign(x) * jnp.floor(7 * x),
    "halves": lambda x, y: jnp.ceil(5 * y) + jnp.round(9 * x) + lax.rem(9 * x, y),
    "neighbours": lambda x, y: lax.nextafter(x, y),
    "comparisons": lambda x, y: [x < y, x <= y, x > y, x >= y, x == y, x != y, jnp.isfinite(x)],
    "logic": lambda x, y: [(x < y) & (x > 0.3), (x < y) | (y < 0.1), (x < y) ^ (y < 0.3), ~(x < y)],
    "bits": lambda x, y: [last_bits(x) >> 3, last_bits(x) << 2, lax.population_count(last_bits(x))],
    "other bits": lambda x, y: lax.shift_right_logical(last_bits(x), last_bits(x) * 0 + 3),
    "choices": lambda x, y: [jnp.where(x < y, x, y), jnp.argmax(x), jnp.argmin(x), jnp.sort(x)],
    "extremes": lambda x, y: [x.max(), x.min(), (x < y).any(), (x < y).all()],
    "orders": lambda x, y: [lax.cummax(x), lax.cummin(y), lax.top_k(x, 2)],
    "shapes": lambda x, y: [x[None, ::-1].T.reshape(-1), jnp.pad(x, 1), jnp.squeeze(x[:, None])],
    "parts": lambda x, y: [jnp.concatenate([x, y]), *jnp.split(x, 3), jnp.stack([x, y])],
    "places": lambda x, y: [x[jnp.argmax(y)], x[jnp.argsort(y)], x.at[jnp.argmax(y)].set(1.0)],
    "slices": lambda x, y: lax.dynamic_update_slice(
        x, lax.dynamic_slice(y, (jnp.argmax(x) % 2,), (2,)), (jnp.argmax(y) % 2,)
    ),
    "copies": lambda x, y: [jnp.copy(x), lax.stop_gradient(y), lax.optimization_barrier(x)],
    "numbers": lambda x, y: [jnp.arange(3) + lax.iota(int, 3), (9 * x).astype(int)],
    "rows": lambda x, y: [*jnp.unstack(x), jnp.tile(y, 2)],
    "devices": lambda x, y: [jax.device_put(x), jax.sharding.reshard(y, EVERYWHERE)],
    "names": lambda x, y: [exact(x, reason="for this test"), checkpoint_name(y, "y")],
    "a derivative": lambda x, y: jax.grad(lambda x: jnp.sum(x * x))(x),
}


@jax.jit
@jax.shard_map(mesh=EVERYWHERE.mesh, in_specs=jax.P(), out_specs=jax.P("devices"))
@with_rounded_products
def varying(x):
    return lax.pcast(x, "devices", to="varying")


def test_numbers_under_shard_map_are_as_they_are():
    x = jnp.asarray(DRAW.uniform(0.01, 1.0, 3))
    np.testing.assert_array_equal(varying(x), x)


@pytest.mark.parametrize("name", EXACT_OPERATIONS)
def test_exact_operations_are_done_as_they_are(name):
    x, y = (jnp.asarray(DRAW.uniform(0.01, 1.0, 3)) for _ in range(2))
    function = EXACT_OPERATIONS[name]
    got = with_rounded_products(function)(x, y)
    jax.tree.map(np.testing.assert_array_equal, got, function(x, y))


def primitives_of(jaxpr) -> set[str]:
    inner = [jax_core.jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns]
    found = {eqn.primitive.name for eqn in jaxpr.eqns}
    return found.union(*(primitives_of(jaxpr) for jaxprs in inner for jaxpr in jaxprs))


NEWER = {"one_minus_square", "polynomial"}
"""Derivatives of tanh and erf have them from JAX 0.12 on."""


def test_every_operation_that_is_allowed_is_tried():
    x, tried = jnp.ones(3), set()
    for function in (*OPERATIONS.values(), *EXACT_OPERATIONS.values()):
        tried |= primitives_of(jax.make_jaxpr(function)(x, x).jaxpr)
    tried |= primitives_of(jax.make_jaxpr(varying)(x).jaxpr)
    assert (EXACT | ROUNDED | ELEMENTARY.keys() | REDUCTIONS.keys()) - tried <= NEWER


unheard_of = jax_core.Primitive("unheard_of")
unheard_of.def_abstract_eval(lambda x: x)

REFUSED = {
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "digamma": lax.digamma,
    "erf_inv": lax.erf_inv,
    "igamma": lambda x: lax.igamma(x, x),
    "igammac": lambda x: lax.igammac(x, x),
    "lgamma": lax.lgamma,
    "polygamma": lambda x: lax.polygamma(x, x),
    "random_seed": lambda x: x * jax.random.uniform(jax.random.key(0), x.shape, x.dtype),
    "regularized_incomplete_beta": lambda x: lax.betainc(x, x, x),
    "unheard_of": unheard_of.bind,
    "zeta": lambda x: lax.zeta(x + 2, x),
}


@pytest.mark.parametrize("rewritten", [with_rounded_products, with_ordered_sums])
@pytest.mark.parametrize("name", REFUSED)
def test_any_other_operation_is_refused_by_its_name(name, rewritten):
    with pytest.raises(RefusedOperation, match=rf"^{name}\b.* may have other last bits"):
        jax.eval_shape(rewritten(REFUSED[name]), jnp.ones(3))


# --- scatters that add


def test_rows_are_added_where_a_scatter_adds_them():
    draw = np.random.default_rng(1)
    for n, n_rows, axes in ((37, 5, (3,)), (1, 4, ()), (0, 4, (2,)), (64, 1, (2, 2)), (9, 12, ())):
        at = draw.integers(-1, n_rows + 2, size=n)  # some out of bounds
        x, added = draw.normal(size=(n_rows, *axes)), draw.normal(size=(n, *axes))
        inside = (at >= 0) & (at < n_rows)
        expected = x.copy()
        np.add.at(expected, at[inside], added[inside])
        got = jax.jit(add_at)(x, at, added)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_has_its_bits_wherever_its_rows_stand_and_whatever_stands_beside(dtype):
    draw = np.random.default_rng(2)
    added = draw.normal(size=(23, 3)).astype(dtype)
    alone = jax.jit(add_at)(np.zeros((1, 3), dtype), np.zeros(23, int), added)
    add = jax.jit(jax.vmap(add_at))
    for n_others in (1, 8, 100):
        at = np.sort(draw.permutation(n_others + 23)[:23])  # in order, among rows of others
        rows = np.full((2, n_others + 23, 3), np.nan, dtype)
        where = draw.integers(1, 6, size=(2, n_others + 23))
        rows[:, at], where[:, at] = added, 0
        got = add(jnp.zeros((2, 6, 3), dtype), jnp.asarray(where), jnp.asarray(rows))
        for sums in np.asarray(got):
            np.testing.assert_array_equal(sums[:1], alone)


def test_scatters_of_gradients_and_in_loops_add_in_order():
    draw = np.random.default_rng(3)
    at = jnp.asarray(draw.integers(0, 7, 40))
    weights = jnp.asarray(draw.normal(size=(40, 2)))

    def gathered(x):
        def turn(x, w):
            x = jnp.tanh(x.at[at].add(w * x[at]))
            return x, jax.ops.segment_sum(x[at], at, 7).sum()

        x, sums = lax.scan(turn, x, jnp.stack([weights, 2 * weights]))
        return jnp.sum(x**2) + jnp.sum(sums)

    x = jnp.asarray(draw.normal(size=(7, 2)))
    ordered = with_ordered_scatters(jax.value_and_grad(gathered))
    assert "scatter" not in str(jax.make_jaxpr(ordered)(x))
    for got, expected in zip(ordered(x), jax.value_and_grad(gathered)(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.at[[0, 1], [1, 1]].add(1.0), lambda x: x.at[jnp.array([0, 0])].mul(2.0)],
    ids=["single-entries", "products"],
)
def test_other_scatters_are_refused(function):
    with pytest.raises(RefusedOperation, match="scatter"):
        with_ordered_scatters(function)(jnp.ones((3, 2)))


def test_products_of_matrices_add_in_the_precision_that_is_asked_for():
    whole = jnp.full((2, 4), 100, jnp.int8)
    found = with_rounded_products(lambda x: jnp.matmul(x, x.T, preferred_element_type=jnp.int32))(
        whole
    )
    assert found.dtype == jnp.int32 and (found == 40_000).all()
    half = jnp.full((2, 4096), 1.001, jnp.float16)
    found = with_rounded_products(lambda x: jnp.matmul(x, x.T, preferred_element_type=jnp.float32))(
        half
    )
    assert found.dtype == jnp.float32 and found[0, 0] > 4100


def test_a_sum_of_nothing_is_zero():
    assert (with_rounded_products(lambda x: x[:0].sum(0))(jnp.ones((3, 2))) == 0).all()
