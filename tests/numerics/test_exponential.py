"""exp of four operations: as near as NumPy's, and with the same bits wherever it stands."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import rounded
from basinax.numerics.exponential import FORMATS, _quotient_of_two, exp, exp2, exp2_fermi2, fermi2
from basinax.numerics.kernel import one_kernel
from cover import cover, exhaustive
from xla import jit_as_users

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])

LN2 = {dtype.type: format.ln2 for dtype, format in FORMATS.items()}
ENDS = {np.float32: (-80.0, 88.72), np.float64: (-701.0, 709.78)}
ENDS_OF_TWO = {np.float32: (-115.0, 127.9), np.float64: (-1011.0, 1023.9)}


def numbers(dtype, n=40_000, ends=ENDS):
    """Over all that has an exponential, most of them small; 0 and what is next to it."""
    random = np.random.default_rng(n)
    tiny = np.finfo(dtype).tiny
    x = [*random.uniform(*ends[dtype], n // 2), *random.normal(size=n // 2), 0.0, -0.0, tiny, -tiny]
    return np.asarray(x).astype(dtype)


def precise(x):
    """With eleven bits more than a double, where the machine has them."""
    return np.exp(np.asarray(x, np.longdouble))


def precise_power(x):
    return np.exp2(np.asarray(x, np.longdouble))


def error(found, expected, dtype):
    """The largest, in half units of the last place."""
    relative = np.abs(np.asarray(found, np.longdouble) - expected) / expected
    return float(relative.max() / (np.finfo(dtype).eps / 2))


@both_dtypes
def test_values(dtype):
    x = numbers(dtype)
    assert error(jax.jit(exp)(x), precise(x), dtype) < 4
    assert exp(jnp.zeros(1, dtype))[0] == 1


@both_dtypes
def test_values_of_powers_of_two(dtype):
    x = numbers(dtype, ends=ENDS_OF_TWO)
    assert error(jax.jit(exp2)(x), precise_power(x), dtype) < 4
    integers = np.arange(-100, 101).astype(dtype)
    np.testing.assert_array_equal(exp2(integers), np.exp2(integers))
    x = x[np.abs(x) < 0.9 * ENDS_OF_TWO[dtype][1]]
    assert error(jax.jit(fermi2)(x), 1 / (1 + precise_power(x)), dtype) < 5
    y = np.random.default_rng(0).permutation(x)
    is_normal = np.abs(x) + np.abs(y) < 0.8 * ENDS_OF_TWO[dtype][1]
    x, y = x[is_normal], y[is_normal]
    expected = precise_power(x) / (1 + precise_power(y))
    assert error(jax.jit(exp2_fermi2)(x, y), expected, dtype) < 8
    low = np.asarray([-np.inf, -1e30, -1e4, -130, -65], dtype)
    assert (np.asarray(fermi2(low)) == 1).all()
    some = np.full_like(low, 0.7)
    np.testing.assert_allclose(exp2_fermi2(some, low), exp2(some), rtol=3 * np.finfo(dtype).eps)


@both_dtypes
def test_beyond_its_ends_it_is_as_there(dtype):
    (least, most), largest = ENDS[dtype], np.finfo(dtype).max
    low = np.asarray([-np.inf, -largest, 10 * least, least - 1, least], dtype)
    high = np.asarray([most, most + 1, 10 * most, largest, np.inf], dtype)
    assert (np.asarray(exp(low)) == exp(low)[-1]).all() and 0 < exp(low)[0] < 1e-34
    assert (np.asarray(exp(high)[1:]) == exp(high)[-1]).all()
    assert exp(high)[0] > 0.98 * largest and np.isfinite(exp(high)[-1])


@both_dtypes
def test_nan_shows(dtype):
    # NaN of either sign, and with digits that stand where those of an exponent are looked for.
    nan = np.asarray([np.nan, -np.nan, 0, 0], dtype)
    bits = nan.view(np.int32 if dtype == np.float32 else np.int64)
    bits[2:] = bits[:2] | 0xABC
    assert np.isnan(nan).all()
    zeros = np.zeros_like(nan)
    one, other = lambda x: exp2_fermi2(x, zeros), lambda x: exp2_fermi2(zeros, x)
    for function in (exp, exp2, fermi2, one, other):
        assert np.isnan(np.asarray(jax.jit(function)(nan))).all()


def among_others(x, scale):
    """Products before, sums and divisions after: what a compiler might draw into it."""
    a, b = exp(scale * x), fermi2(scale * (x - 1.0))
    c = exp2_fermi2(scale * x, x * x)
    return (
        a + b,
        exp2(scale * x) + a,
        rounded(a * b) + c,
        rounded(a) / (jnp.abs(x) + 4.0) + exp(-x) + a,
        rounded(c * x) - a,
    )


@pytest.mark.parametrize(
    *cover("n, dtype", [1, 5, 8, 31, 1003], [np.float32, np.float64], strength=1)
)
def test_bits_are_those_of_single_operations_at_any_length_and_alone(n, dtype):
    x = numbers(dtype)[:n] / ENDS[dtype][1]
    scale = np.random.default_rng(n).uniform(0.1, 3, n).astype(dtype)
    for values in (x, 30 * x):
        found = jit_as_users(among_others)(values, scale)
        with jax.disable_jit():
            op_by_op = among_others(values, scale)
        k = n // 2
        alone = jit_as_users(among_others)(values[k : k + 1], scale[k : k + 1])
        for a, b, c in zip(found, op_by_op, alone, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a[k], c[0])


@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.float64)])
def test_bits_in_rows_and_in_loops(dtype):
    x = numbers(dtype)[:999].reshape(-1, 3) / ENDS[dtype][1]

    def steps(x, n=450):
        def step(_, x):
            sums = among_others(x, jnp.asarray(0.7, dtype))
            return rounded(0.3 * (sums[0] + sums[2])) - rounded(0.2 * (sums[1] - sums[3]))

        return jax.lax.fori_loop(0, jnp.int32(n), step, x)

    found = jit_as_users(steps)(x)
    np.testing.assert_array_equal(found.ravel(), jit_as_users(steps)(x.ravel()))
    np.testing.assert_array_equal(found, jit_as_users(one_kernel(steps))(x))
    found = jit_as_users(steps)(x, 30)
    with jax.disable_jit():
        np.testing.assert_array_equal(found[:2], steps(x[:2], 30))


@both_dtypes
@pytest.mark.parametrize(
    ("function", "n_sums_of_it", "n_exact"),
    [(exp.__wrapped__, 10, 2), (_quotient_of_two, 9, 0)],
    ids=["exp", "exp2"],
)
def test_no_product_meets_a_sum(function, n_sums_of_it, n_exact, dtype):
    """Which CPUs forgive where a product has many readers. Those with parts of log 2 are exact."""
    products, n_sums = {}, 0
    for eqn in jax.make_jaxpr(lambda x: function(x * x))(jnp.ones(8, dtype)).eqns:
        name = eqn.primitive.name
        if name == "mul":
            constants = [v.val for v in eqn.invars if isinstance(v, jax.extend.core.Literal)]
            products[eqn.outvars[0]] = bool(constants) and abs(constants[0]) in LN2[dtype]
        elif name in ("add", "sub"):
            n_sums += 1
            assert all(
                products.get(v, True) for v in eqn.invars if isinstance(v, jax.extend.core.Var)
            )
    assert n_sums == n_sums_of_it and sum(products.values()) == n_exact


@pytest.mark.parametrize("dtype", [exhaustive(np.float32), np.float64])
def test_derivatives(dtype):
    x = jnp.linspace(-3, 3, 7, dtype=dtype)
    tolerance = 20 * np.finfo(dtype).eps

    def plain_fermi(x):
        return 1 / (1 + 2**x)

    for own, plain in (
        (exp, jnp.exp),
        (exp2, lambda x: 2**x),
        (fermi2, plain_fermi),
        (lambda x: exp2_fermi2(2 * x, x), lambda x: 2 ** (2 * x) * plain_fermi(x)),
        (lambda x: exp2_fermi2(x, 2 * x), lambda x: 2**x * plain_fermi(2 * x)),
    ):
        for derivative in (lambda f: f, jax.grad, lambda f: jax.grad(jax.grad(f)), jax.jacfwd):
            found, expected = jax.vmap(derivative(own))(x), jax.vmap(derivative(plain))(x)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
