"""Loops that are one kernel have the bits of those that are many, whatever is passed to them."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from basinax import exact, product, rounded
from basinax.numerics import kernel as _kernel
from basinax.numerics.kernel import POSSIBLE, one_kernel
from cover import exhaustive
from xla import jit_as_users

both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def folded(x, indices, n_turns):
    """A loop like those over neighbours, in a loop of turns."""

    def add(k, sums):
        weight = jnp.asarray(k + 1, x.dtype)
        d = x.at[indices].get(mode="promise_in_bounds") - x
        r = rounded(jnp.sqrt(rounded(d * d) + 0.1))
        return tuple(s + rounded(rounded(jnp.exp(-r) / r) * weight) for s in sums)

    def turn(_, sums):
        return lax.fori_loop(0, n_turns, add, sums)

    return lax.fori_loop(0, jnp.int32(2), turn, (jnp.zeros_like(x), x))


def arguments(n, dtype):
    random = np.random.default_rng(n)
    x, indices = random.normal(size=n).astype(dtype), random.permutation(n).astype(np.int32)
    return jnp.asarray(x), jnp.asarray(indices), jnp.int32(5)


def is_one(function, *args) -> bool:
    """Whether it asks to be one. (XLA may make one of it even so where arrays are small.)"""
    text = jax.jit(function).lower(*args).compile().as_text()
    return 'inlineable="false"' in text


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (1, np.float64),
        (13, np.float64),
        *((n, np.float32) for n in (8, 48)),
        *(exhaustive(n, np.float64) for n in (8, 48, 256)),
        exhaustive(256, np.float32),
    ],
)
def test_it_has_the_bits_of_many_kernels(n, dtype):
    """In single precision exp has them in vectors alone: rows are multiples of eight there."""
    args = arguments(n, dtype)
    found = jit_as_users(one_kernel(folded))(*args)
    with jax.disable_jit():
        op_by_op = one_kernel(folded)(*args)
    for a, b, c in zip(found, jit_as_users(folded)(*args), op_by_op, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert is_one(one_kernel(folded), *args) and not is_one(folded, *args)


def test_arguments_may_be_anything_and_need_not_be_read():
    """What is not read, or constant, or enclosed, has ended the process."""
    x, indices, n_turns = arguments(13, np.float64)

    def program(x, indices, n_turns, is_up, table):
        doubled, unread = 2.0 * x, {"table": table.ravel(), "flags": [is_up, jnp.float32(2.0)]}

        def of_closure(unread, constant, _):
            shifted = jnp.where(is_up, doubled, -doubled) + constant[3]
            gather_unread = unread["table"][indices]
            del gather_unread
            return folded(shifted, indices, n_turns), doubled

        def turn(_, x):
            (sums, other), same = one_kernel(of_closure)(unread, jnp.arange(5.0), None)
            return x + sums + other + same

        return lax.fori_loop(0, 3, turn, x)

    args = x, indices, n_turns, np.arange(13) % 2 == 0, np.ones((1, 13))
    with jax.disable_jit():
        expected = program(*args)
    np.testing.assert_array_equal(jit_as_users(program)(*args), expected)
    assert is_one(program, *args)


@pytest.mark.parametrize(
    "further",
    [jnp.sort, jnp.cumsum, lambda x: x @ x, lambda x: x.at[::2].set(0.0)],
    ids=["sort", "cumsum", "dot", "scatter"],
)
def test_what_cannot_be_one_is_many(further):
    def function(*args):
        return folded(*args)[0] + further(args[0])

    args = arguments(16, np.float64)
    assert not is_one(one_kernel(function), *args)
    found = jit_as_users(one_kernel(function))(*args)
    np.testing.assert_array_equal(found, jit_as_users(function)(*args))


def test_derivatives_are_many():
    """With derivatives under `vmap`, also by what is enclosed, one has ended the process."""
    x, indices, n_turns = arguments(13, np.float64)

    def derivatives(function, x):
        def forces(x):
            return sum(function(lambda at: folded(at, indices, n_turns)[0] + x[0])(x) * x)

        return jax.vmap(lambda unit: jax.jvp(forces, (x,), (unit,))[1])(jnp.eye(len(x)))

    def as_one(x):
        return derivatives(one_kernel, x)

    assert not is_one(as_one, x)
    np.testing.assert_array_equal(as_one(x), derivatives(lambda inner: inner, x))


@pytest.mark.parametrize(
    ("where", "value"), [("UNTRIED", (0, 1)), ("jax.default_backend", lambda: "cuda")]
)
def test_other_versions_and_devices_have_many(where, value, monkeypatch):
    args = arguments(16, np.float64)
    if "." in where:
        monkeypatch.setattr(where, value)
    else:
        monkeypatch.setattr(_kernel, where, value)
    assert not is_one(one_kernel(folded), *args)


def every_operation(x, y, k):
    """Of numbers from 1 to 2, and an integer of 2; what `POSSIBLE` names, once at least."""
    n, integer = len(x), jnp.int32 if x.dtype == np.float32 else jnp.int64
    table = jnp.broadcast_to(x, (2, n)) + jnp.broadcast_to(y, (2, n))
    for function in (jnp.exp, jnp.log, jnp.sqrt, lax.rsqrt, jnp.tanh, jnp.square, jnp.abs):
        x = 1.0 + rounded(function(x) / 3.0)
    for function in (jnp.floor, jnp.ceil, jnp.sign, lax.neg):
        y = y + rounded(function(x) / 7.0)
    x = jnp.where(jnp.isfinite(x) & ~(x == y) | (x != y), x, y)
    x = x + product(x, y) + lax.pow(x, y) + lax.integer_pow(y, 3)
    x = jnp.where((x < y) | (x <= y) & (x > y) | (x >= y), jnp.minimum(x, y), jnp.maximum(y, x))
    x = lax.clamp(jnp.zeros_like(x), x, jnp.full_like(x, 9.0))
    nearest = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    x = x - lax.bitcast_convert_type(lax.bitcast_convert_type(nearest, integer) << 1, x.dtype)
    part = lax.dynamic_slice(x, (k,), (n - 4,)) + x[2 : n - 2]
    x = lax.dynamic_update_slice(x, part, (k - 1,))
    numbers = jnp.arange(n, dtype=jnp.int32) + k
    x = x + numbers.astype(x.dtype) + table.T.reshape(-1)[: len(x)] + jnp.copy(table[0])
    x = x.at[numbers % n].get(mode="promise_in_bounds", wrap_negative_indices=False)
    x, _ = lax.scan(lambda s, a: (s + a, None), x, table)
    x = exact(x, reason="a name for the test")
    return jax.nn.relu(lax.fori_loop(0, k, lambda i, s: s - jnp.asarray(i, s.dtype), x))


def operations_of(jaxpr) -> set[str]:
    found = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            found |= operations_of(inner)
    return found


@both_dtypes
def test_every_operation_is_possible(dtype):
    random = np.random.default_rng(0)
    args = *random.uniform(1, 2, (2, 24)).astype(dtype), np.int32(2)
    used = operations_of(jax.make_jaxpr(every_operation)(*args).jaxpr)
    assert used - POSSIBLE == set() and POSSIBLE - used == set()
    assert is_one(one_kernel(every_operation), *args)
    found = jit_as_users(one_kernel(every_operation))(*args)
    np.testing.assert_array_equal(found, jit_as_users(every_operation)(*args))
