"""The primitive that every promise rests on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import product, rounded
from basinax.numerics.rounding import (
    FEW_PARTS,
    LEAST_TURNS,
    MOST_TURNS,
    PIECE,
    PIECES,
    SHARES,
    _turns_and_piece,
    add_components,
    add_parts,
    part_additions,
    rounded_clamped,
    scaled,
    scaling_top,
    tree_sum,
)
from cover import cover, every_day
from xla import DEFAULTS, jit_as_users

DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_changes_no_value_but_the_largest(dtype):
    top = np.finfo(dtype).max
    x = np.array([0.0, -0.0, 1.5, np.finfo(dtype).tiny, np.inf, -np.inf, np.nan, -top], dtype)
    got = np.asarray(rounded(jnp.asarray(x)))
    assert got.tobytes() == x.tobytes()
    assert rounded(jnp.asarray(top)) == np.inf


@pytest.mark.parametrize("dtype", DTYPES)
def test_apart_changes_no_value_but_what_is_too_large(dtype):
    top = np.finfo(dtype).max
    x = np.array([0.0, -0.0, 1.5, np.finfo(dtype).tiny, top, -np.inf, np.nan, -top], dtype)
    got = np.asarray(rounded_clamped(jnp.asarray(x)))
    assert got.tobytes() == x.tobytes()
    assert rounded_clamped(jnp.asarray(np.inf, dtype)) == top


CONTRACTIBLE = {
    "product and sum": lambda r, x, y, z: r(x * y) + z,
    "product and constant": lambda r, x, y, z: r(x * y) + 1.0,
    "two products": lambda r, x, y, z: r(x * y) - r(y * z),
    "quotient of a quotient": lambda r, x, y, z: r(x / y) / z,
    "division by a quotient": lambda r, x, y, z: x / r(y / z),
    "division by a root": lambda r, x, y, z: x / r(jnp.sqrt(jnp.abs(y))),
    "two constant factors": lambda r, x, y, z: r(x * 3.1) * 7.1,
    "constants around a product": lambda r, x, y, z: (1.3 - r(x * 0.7)) * 1.7,
    "square minus square": lambda r, x, y, z: product(x, x) - product(y, y),
}


@pytest.mark.parametrize(
    *cover(
        "name, dtype, size, rounds",
        CONTRACTIBLE.keys(),
        DTYPES,
        [1, 1003],
        [rounded, rounded_clamped],
    )
)
def test_jitted_arithmetic_is_that_of_one_operation_at_a_time(name, dtype, size, rounds):
    draw = np.random.default_rng(0)
    x, y, z = (jnp.asarray(draw.normal(size=size), dtype) for _ in range(3))
    function = functools.partial(CONTRACTIBLE[name], rounds)
    with jax.disable_jit():
        expected = function(x, y, z)
    assert np.array_equal(jit_as_users(function)(x, y, z), expected)


def test_without_rounding_the_same_arithmetic_differs():
    """The reason of it all; if this ever passes, `rounded` may be needed no more."""
    draw = np.random.default_rng(0)
    x, y, z = (jnp.asarray(draw.normal(size=1003)) for _ in range(3))
    with jax.disable_jit():
        expected = x * y + z
    naked = jax.jit(lambda x, y, z: x * y + z, compiler_options=DEFAULTS)
    assert not np.array_equal(naked(x, y, z), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_of_one_changes_nothing_and_others_round(dtype):
    top = np.finfo(dtype).max
    x = jnp.asarray([top, -top, 3.0, np.inf, np.nan], dtype)
    one, half = jnp.ones_like(x), jnp.full_like(x, 0.5)
    assert np.array_equal(scaled(x, one, scaling_top(one)), x, equal_nan=True)
    assert np.array_equal(scaled(x, half, scaling_top(half)), rounded(x * half), equal_nan=True)


def test_a_product_of_arrays_of_other_shapes_raises():
    with pytest.raises(ValueError, match=r"shapes must be equal, got \(3,\) and \(\)"):
        jax.grad(lambda a: product(a, 2.0).sum())(jnp.ones(3))


def test_the_derivative_of_a_product_is_that_of_multiplication():
    a, b = jnp.array([1.5, -2.0]), jnp.array([0.3, 7.0])
    by_a, by_b = jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1))(a, b)
    assert np.array_equal(by_a, b)
    assert np.array_equal(by_b, a)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 9, 24, 100])
def test_components_are_added_in_an_order_of_their_own(count):
    x = np.random.default_rng(0).normal(size=(37, count))
    expected = np.full(37, -0.0)
    if 0 < count <= 8:
        expected = x[:, 0]
        for k in range(1, count):
            expected = expected + x[:, k]
    elif count:
        width = 1 << (count - 1).bit_length()
        halves = np.concatenate([x, np.full((37, width - count), -0.0)], axis=1)
        while halves.shape[1] > 1:
            halves = halves[:, : halves.shape[1] // 2] + halves[:, halves.shape[1] // 2 :]
        expected = halves[:, 0]
    assert np.array_equal(jax.jit(add_components)(jnp.asarray(x)), expected)


def test_halves_ignore_absent_entries():
    x = np.random.default_rng(0).normal(size=(5, 8))
    x[:, 3:] = -0.0
    narrow = jax.jit(tree_sum)(jnp.asarray(x[:, :4]))
    assert np.array_equal(jax.jit(tree_sum)(jnp.asarray(x)), narrow)


def halves(add, parts):
    """The sum of eight or sixteen parts, or fewer than eight with nothing for the others."""
    parts = [*parts, *[np.full_like(parts[0], -0.0)] * (8 - len(parts))]
    while len(parts) > 1:
        parts = [add(a, b) for a, b in zip(*np.split(np.array(parts), 2), strict=True)]
    return parts[0]


def by_parts(add, x, is_looped=True):
    """As `add_parts`, with another addition of arrays."""
    if not len(x):
        return x.dtype.type(-0.0)
    if len(x) > FEW_PARTS:
        n_turns = max(LEAST_TURNS, -(-len(x) // (PIECES * PIECE)))
        length = len(x) // (PIECES * n_turns * SHARES) * SHARES
        if n_turns > MOST_TURNS or not is_looped:
            length = len(x) // 8
            parts = x[: 8 * length].reshape(8, length)
            rest = x[8 * length :]
            total = by_parts(add, halves(add, parts))
            return add(total, halves(add, rest)) if len(rest) else total
        rest = x[PIECES * n_turns * length :]
        sums = np.pad(rest, (0, length - len(rest)))
        for turn in range(n_turns):
            pieces = x[PIECES * turn * length :][: PIECES * length].reshape(PIECES, length)
            sums = add(sums, halves(add, pieces))
        return by_parts(add, sums)
    while len(x) > 8:
        length = (len(x) - 1) // 8
        x = np.concatenate([halves(add, x[: 8 * length].reshape(8, length)), x[8 * length :]])
    return halves(add, x)


LOOPED = PIECES * PIECE * MOST_TURNS
LONG = [1, 9, 100, FEW_PARTS, FEW_PARTS + 1, 8 * FEW_PARTS + 1, 500_009, LOOPED, LOOPED + 9]


@pytest.mark.parametrize("count", every_day(LONG, lambda x: x not in (500_009, LOOPED, LOOPED + 9)))
def test_long_axes_are_added_by_parts(count):
    x = np.random.default_rng(count).normal(size=count)
    assert jax.jit(add_parts)(jnp.asarray(x)) == by_parts(np.add, x) == add_parts(jnp.asarray(x))
    assert np.isnan(add_parts(jnp.asarray(x).at[count // 2].set(jnp.nan)))
    assert np.isnan(add_parts(jnp.asarray(x).at[0].set(jnp.nan)))


def test_what_is_left_over_is_no_longer_than_a_piece():
    some = [*range(FEW_PARTS + 1, 3 * FEW_PARTS), *range(3 * FEW_PARTS, LOOPED, 9973), LOOPED]
    for count in some:
        n_turns, length = _turns_and_piece(count)
        assert 0 <= count - PIECES * n_turns * length <= length <= PIECE


@pytest.mark.parametrize("count", LONG)
def test_no_entry_is_in_more_additions_than_said(count):
    def add(a, b):
        return np.maximum(a, b) + 1

    for is_looped in (True, False):
        assert by_parts(add, np.zeros(count), is_looped) <= part_additions(count)


@pytest.mark.parametrize("count", every_day(LONG, lambda x: x not in (500_009, LOOPED)))
def test_terms_of_long_axes(count):
    x = jnp.asarray(np.random.default_rng(count).normal(size=count), jnp.float32)
    square = jax.jit(lambda x: add_parts(x, lambda x: rounded(x * x)))
    assert square(x) == by_parts(np.add, np.square(np.asarray(x)))
    wide = jax.jit(lambda x: add_parts(x, lambda x: x.astype(jnp.float64)))
    assert wide(x) == by_parts(np.add, np.asarray(x, np.float64), is_looped=False)
