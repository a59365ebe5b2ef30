"""Options of XLA: those that it lacks are left out, and programs of either kind have one result."""

import math
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from basinax.numerics import elementary, exponential, xla
from cases import DTYPES
from cover import cover
from xla import DEFAULTS

pytestmark = pytest.mark.usefixtures("as_users")

OF_XLA = {
    "exp": jnp.exp,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "expm1": jnp.expm1,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "pow": lambda x: lax.pow(x, x),
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "quotient": lambda x: 1 / x,
}
OWN = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in (
        (exponential, ("exp", "exp2", "fermi2")),
        (elementary, ("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "rsqrt")),
        (elementary, ("cbrt", "tan", "asin", "acos", "atan")),
        (elementary, ("sinh", "cosh", "asinh", "erf", "erfc")),
    )
    for name in names
}


@pytest.mark.parametrize(*cover("options, dtype", ["SHORT", "ONCE"], DTYPES, strength=1))
def test_functions_have_the_same_bits(options, dtype):
    """Those of XLA where a program is compiled for a short run, of arrays over rows."""
    functions = OWN | (OF_XLA if options == "SHORT" else {})
    random = np.random.default_rng(0)
    x = np.exp(random.normal(0, 2, (len(functions), 1024))).astype(dtype)

    def all_of(x):
        return [function(row) for function, row in zip(functions.values(), x, strict=True)]

    expected = xla.jitted(all_of, DEFAULTS)(x)
    got = xla.jitted(all_of, getattr(xla, options))(x)
    for name, a, b in zip(functions, got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_are_right_at_the_ends_of_their_numbers(dtype):
    info = np.finfo(dtype)
    x = np.array([info.tiny, -info.tiny, 8 * info.tiny, info.max, -info.max, 0.0, 1e-6], dtype)
    found = np.asarray(jax.jit(elementary.cbrt)(x), np.longdouble)
    np.testing.assert_allclose(found, np.cbrt(x.astype(np.longdouble)), rtol=3 * info.eps)
    x = np.array([info.tiny, -info.tiny, info.eps, -2 * info.eps, 1e-5, 0.0], dtype)
    found = np.asarray(jax.jit(elementary.asin)(x), np.longdouble)
    np.testing.assert_allclose(found, np.arcsin(x.astype(np.longdouble)), rtol=3 * info.eps)


HYPERBOLIC = {
    "sinh": (np.sinh, (1e-6, 700.0)),
    "cosh": (np.cosh, (1e-6, 700.0)),
    "asinh": (np.arcsinh, (1e-6, 1e30)),
    "acosh": (np.arccosh, (1.001, 1e30)),
    "atanh": (np.arctanh, (1e-6, 0.99)),
    "erf": (np.vectorize(math.erf), (1e-6, 7.0)),
    "erfc": (np.vectorize(math.erfc), (1e-6, 26.0)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HYPERBOLIC)
def test_hyperbolic_and_error_functions_err_by_a_few_units_in_the_last_place(name, dtype):
    of_numpy, (least, most) = HYPERBOLIC[name]
    x = np.geomspace(least, most, 500)
    x = (np.concatenate([x, -x]) if name != "acosh" else x).astype(dtype)
    expected = of_numpy(x.astype(np.float64))
    normal = (np.abs(expected) > np.finfo(dtype).tiny) & (np.abs(expected) < np.finfo(dtype).max)
    found = np.asarray(jax.jit(getattr(elementary, name))(x), np.float64)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found[normal], expected[normal], rtol=6 * eps)
    assert normal.sum() > 300


ENDS = {
    "sinh": {np.inf: np.inf, -np.inf: -np.inf, 0.0: 0.0},
    "cosh": {np.inf: np.inf, -np.inf: np.inf, 0.0: 1.0},
    "asinh": {np.inf: np.inf, -np.inf: -np.inf, 0.0: 0.0},
    "acosh": {np.inf: np.inf, 1.0: 0.0, 0.5: np.nan, -3.0: np.nan, -np.inf: np.nan},
    "atanh": {1.0: np.inf, -1.0: -np.inf, 0.0: 0.0, 2.0: np.nan, -np.inf: np.nan},
    "erf": {np.inf: 1.0, -np.inf: -1.0, 0.0: 0.0},
    "erfc": {np.inf: 0.0, -np.inf: 2.0, 0.0: 1.0},
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_hyperbolic_and_error_functions_at_their_ends(dtype):
    for name, ends in ENDS.items():
        x = np.array([*ends, np.nan], dtype)
        found = jax.jit(getattr(elementary, name))(x)
        np.testing.assert_array_equal(found, [*ends.values(), np.nan], err_msg=name)


def test_options_that_xla_does_not_have_are_left_out():
    options = xla.SHORT | {"xla_of_another_time": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        double = xla.jitted(lambda x, n: x * n, options, static_argnums=1)
        assert [double(np.float32(x), 2).item() for x in (3, 4)] == [6, 8]
    assert xla.is_known("xla_backend_optimization_level", 1)
    assert not xla.is_known("xla_of_another_time", 1)


def test_threads_leave_options_out_side_by_side():
    """Both are refused before one of them has found out which options there are."""
    both_trace, first_traces = threading.Barrier(2, timeout=60), iter(range(2))

    def twice(x):
        if next(first_traces, None) is not None:
            both_trace.wait()
        return 2 * x

    call = xla.jitted(twice, {"no_such_option": 1})
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(call, (np.ones(1), np.ones(2))))
    assert [result.tolist() for result in results] == [[2], [2, 2]]


def test_errors_of_a_program_are_raised():
    def fails(_):
        raise jax.errors.JaxRuntimeError("of its own")

    def program(x):
        return jax.pure_callback(fails, jax.ShapeDtypeStruct((), x.dtype), x)

    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(xla.jitted(program, xla.SHORT)(np.float32(0)))
