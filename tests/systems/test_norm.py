"""Norms of every order: exact to a few ulps over the whole range, and of each system alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from basinax import SystemIndex, segment
from cases import ALIGNED, DTYPES, ONE_BLOCK_OR_MANY, SHUFFLED_WITH_GAPS, place
from cover import cover, exhaustive, one_in
from xla import jit_as_users

ORDERS = [1, 1.5, 2, np.inf, -np.inf]
LIBM = np.longdouble
"""Its 64 bits and 15 of exponent hold the squares of every double; rounding adds 0.01 ulp."""


def exact_norm(x, ord):
    size = np.abs(np.asarray(x, LIBM).reshape(-1))
    if np.isinf(ord):
        return size.max() if ord > 0 else size.min()
    top = size.max()
    return top if top == 0 else top * ((size / top) ** LIBM(ord)).sum() ** (1 / LIBM(ord))


def ulps_off(got, exact, dtype):
    """By how many units in the last place of `dtype` the exact value is missed."""
    with np.errstate(over="ignore"):
        nearest = np.asarray(exact).astype(dtype)
    if np.isinf(nearest):
        return 0.0 if np.isinf(got) else np.inf
    below = np.nextafter(nearest, np.zeros_like(nearest)) if nearest else -np.spacing(nearest)
    return float(abs(LIBM(got) - exact) / (LIBM(nearest) - LIBM(below)))


@functools.cache
def jitted(ord):
    return jit_as_users(functools.partial(segment.norm, ord=ord))


@functools.cache
def quickly(ord):
    """It takes a third of the time to compile."""
    return jax.jit(functools.partial(segment.norm, ord=ord))


def scales(dtype):
    info = np.finfo(dtype)
    smallest, largest = float(info.smallest_subnormal), float(info.max)
    return [1.0, 1e30, 1e-30, smallest * 3, smallest * 1e5, largest / 5, largest**0.5]


@pytest.mark.parametrize(("count", "dtype"), [(1000, np.float64), (100_000, np.float32)])
def test_euclidean_norms_are_within_four_ulps(dtype, count):
    draw = np.random.default_rng(count)
    index = SystemIndex.from_sizes([count])
    for scale in scales(dtype):
        x = (draw.uniform(-1, 1, count) * scale).astype(dtype)
        assert ulps_off(jitted(2)(x, index)[0], exact_norm(x, 2), dtype) < 4
        assert ulps_off(jitted(2)(x)[0], exact_norm(x, 2), dtype) < 4


@pytest.mark.parametrize(
    ("ord", "dtype"), [(1.01, np.float64), (3, np.float32), (100, np.float64), (1e6, np.float32)]
)
def test_norms_of_other_orders_are_within_eight_ulps(ord, dtype):
    draw = np.random.default_rng(0)
    for scale in scales(dtype):
        x = (draw.uniform(-1, 1, 100) * scale).astype(dtype)
        assert ulps_off(jitted(ord)(x)[0], exact_norm(x, ord), dtype) < 8


def finite(dtype):
    width = 8 * np.dtype(dtype).itemsize
    number = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=True)
    row = st.lists(number, min_size=4, max_size=4)
    return row.map(lambda x: np.array(x, dtype))


@pytest.mark.parametrize(*cover("ord, dtype", ORDERS, DTYPES, strength=1))
def test_norms_of_any_finite_numbers_are_right(ord, dtype):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(finite(dtype))
    def check(x):
        assert ulps_off(jitted(ord)(x)[0], exact_norm(x, ord), dtype) < 4

    check()


@pytest.mark.parametrize("ord", ORDERS)
def test_norms_that_are_not_finite_say_so(ord):
    index = SystemIndex.from_sizes([2, 2, 2, 0])
    x = np.array(
        [
            1,
            np.nan,
            np.inf,
            np.inf,
            -3,
            -3,
        ],
        np.float32,
    )
    got = np.asarray(jitted(ord)(x, index))
    assert np.isnan(got[0])
    assert got[1] == np.inf
    assert np.isfinite(got[2])
    assert got[3] == 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_low_precision_is_computed_in_float32(dtype):
    x = jnp.asarray(np.full(1000, 60000.0).astype(dtype))
    got = jitted(2)(x)
    assert got.dtype == np.float32
    assert ulps_off(got[0], exact_norm(np.asarray(x).astype(np.float32), 2), np.float32) < 4
    tiny = jnp.asarray(np.full(5, jnp.finfo(dtype).smallest_subnormal))
    exact = exact_norm(np.asarray(tiny).astype(np.float64), 2)
    assert ulps_off(jitted(2)(tiny)[0], exact, np.float32) < 4


def test_leaves_of_two_dtypes_are_computed_in_the_wider():
    tree = {"a": np.full(3, 1e-30, np.float32), "b": np.array([1e-31])}
    got = jitted(2)(tree)
    assert got.dtype == np.float64
    exact = exact_norm(np.concatenate([tree["a"].astype(np.float64), tree["b"]]), 2)
    assert ulps_off(got[0], exact, np.float64) < 4


def draw_rows(sizes, dtype, seed=0):
    draw = np.random.default_rng(seed)
    scales = np.array([1.0, 1e-25, 1e25, 1e-41, 1.0])
    return [
        (draw.normal(size=(size, 3)) * scales[k % 5]).astype(dtype) for k, size in enumerate(sizes)
    ]


SIZES = ONE_BLOCK_OR_MANY
BY_TURNS = [(1, np.float64), (1.5, np.float32), *((2, dtype) for dtype in DTYPES)]
BY_TURNS += [(np.inf, np.float32), (-np.inf, np.float64)]
NAMED = [pytest.param(ord, dtype, id=f"{ord}-{dtype.__name__}") for ord, dtype in BY_TURNS]
"""Half of them every day for each of two properties."""
# Few shapes, so that single operations too need not be compiled for each order.
LAYOUTS = {np.float32: ALIGNED, np.float64: SHUFFLED_WITH_GAPS}


def draw_batch(dtype, seed=0):
    """Systems, one of which is not a number, their index, and the rows of them all."""
    systems = draw_rows(SIZES, dtype, seed)
    systems[3] = np.full_like(systems[3], np.nan)
    index = LAYOUTS[dtype].index(SIZES)
    return systems, index, place(index, systems, dtype)


@pytest.mark.parametrize(("ord", "dtype"), one_in(2, NAMED))
def test_every_system_has_the_norm_it_has_alone(ord, dtype):
    """As users compile it in the batch, and quickly alone."""
    systems, index, rows = draw_batch(dtype)
    # Of one shape in spite of their sizes: one program for all systems with as many levels.
    room = sum(SIZES)
    alone = [
        np.asarray(
            quickly(ord)(
                np.concatenate([x, np.full((room - len(x), 3), np.nan, dtype)]),
                SystemIndex.from_sizes([len(x)], n_rows=room),
            )
        )
        for x in systems
    ]
    assert np.array_equal(jitted(ord)(rows, index), np.concatenate(alone), equal_nan=True)


@pytest.mark.parametrize(("size", "ord"), [(8, 1.5), (6000, 2)])
def test_global_mode_is_a_batch_of_one(size, ord):
    for x in draw_rows([size] * 4, np.float32):
        expected = jitted(ord)(x, SystemIndex.from_sizes([size]))
        assert np.array_equal(jitted(ord)(x), expected)


@pytest.mark.parametrize(("ord", "dtype"), one_in(3, NAMED, first=2))
def test_a_jitted_norm_is_the_norm_one_operation_at_a_time(ord, dtype):
    """Of many systems: of three in a hundred a root hides no change of the sum."""
    for seed in range(12):
        _, index, rows = draw_batch(dtype, seed)
        with jax.disable_jit():
            expected = segment.norm(rows, index, ord=ord)
        assert np.array_equal(jitted(ord)(rows, index), expected, equal_nan=True)


@functools.cache
def derivatives(ord):
    """Norms of systems of 0, 2 and 3 rows; derivatives by the formula, backward and forward."""
    index, plain = SystemIndex.from_sizes([0, 2, 3]), functools.partial(jnp.linalg.norm, ord=ord)

    def total(x):
        norms = segment.norm(x, index, ord=ord)
        return norms.sum(), norms

    def formula(x):
        return plain(x[:2].reshape(-1)) + plain(x[2:].reshape(-1))

    @jax.jit
    def of(x):
        backward, norms = jax.grad(total, has_aux=True)(x)
        return norms, jax.grad(formula)(x), backward, jax.jacfwd(total, has_aux=True)(x)[0]

    return of


@pytest.mark.parametrize("ord", ORDERS)
def test_the_derivative_of_a_norm_is_that_of_the_formula(ord):
    _, expected, backward, forward = derivatives(ord)(np.random.default_rng(0).normal(size=(5, 3)))
    np.testing.assert_allclose(backward, expected, rtol=1e-13)  # sums of 15 terms in another order
    np.testing.assert_allclose(forward, expected, rtol=1e-13)


@pytest.mark.parametrize("ord", ORDERS)
def test_the_derivative_of_a_zero_norm_is_zero(ord):
    norms, _, backward, forward = derivatives(ord)(np.zeros((5, 3)))
    assert not np.asarray(norms).any()
    assert not np.asarray(backward).any()
    assert not np.asarray(forward).any()


@pytest.mark.parametrize("rows", [4, 0])
def test_the_derivative_of_a_zero_norm_in_global_mode_is_zero(rows):
    norm, slope = jax.jit(jax.value_and_grad(lambda x: segment.norm(x)[0]))(np.zeros((rows, 3)))
    assert norm == 0
    assert not np.asarray(slope).any()


@pytest.mark.parametrize("ord", [2, exhaustive(3)])
def test_the_curvature_of_a_norm_is_that_of_the_formula(ord):
    x = np.random.default_rng(0).normal(size=4)
    expected = jax.jit(jax.hessian(lambda x: jnp.linalg.norm(x, ord=ord)))(x)
    got = jax.jit(jax.hessian(lambda x: segment.norm(x, ord=ord)[0]))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)  # cancelling terms


@pytest.mark.parametrize(("ord", "same"), [(None, 2), ("inf", np.inf), ("-inf", -np.inf), ("3", 3)])
def test_orders_may_be_strings_and_none_is_two(ord, same):
    x = np.arange(1.0, 5.0)
    assert jitted(ord)(x) == jitted(same)(x)


@pytest.mark.parametrize("ord", [0, 0.5, -1, np.nan, "two", [2]])
def test_what_is_no_order_is_refused(ord):
    with pytest.raises(ValueError, match="ord must be a number of 1 or more"):
        segment.norm(np.ones(3), ord=ord)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="floating-point numbers, got int"):
        segment.norm(np.ones(3, int))
