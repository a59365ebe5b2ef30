"""Limits per system against optax and NumPy on each system alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import (
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    MaxStepSize,
    SystemIndex,
    segment,
)
from cases import DTYPES, LAYOUTS, in_turns, place, same_bits, take
from oracle import times

SIZES = [13, 0, 1, 77, 8]
LIMITS = [2.0, 1.0, 0.5, 30.0, 4.0]


def updates_of(layout, dtype):
    draw = np.random.default_rng(0)
    prefix = {"positions": layout.index(SIZES), "cell": layout.index([1] * 5)}
    systems = [
        {"positions": draw.normal(size=(size, 3)) * 2, "cell": draw.normal(size=(1, 3, 3))}
        for size in SIZES
    ]
    return prefix, place(prefix, systems, dtype)


@jax.jit
def limited(transform, updates, prefix):
    return transform.update(updates, transform.init(updates, prefix))[0]


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_clipping_by_norm_is_that_of_optax_on_each_system_alone(layout, dtype):
    prefix, updates = updates_of(layout, dtype)
    got = limited(ClipByGlobalNorm(np.array(LIMITS, dtype)), updates, prefix)
    for at, limit in enumerate(LIMITS):
        of_one = take(prefix, updates, at)
        clip = optax.clip_by_global_norm(float(limit))
        expected = jax.jit(clip.update)(of_one, clip.init(of_one))[0]
        # Where rounding would lift the norm above the limit, the factor is lowered by a bound of
        # all rounding errors: with at most 240 entries, 30 ulps. Optax's own sum is off by a few.
        for name, leaf in take(prefix, got, at).items():
            np.testing.assert_allclose(leaf, expected[name], 40 * np.finfo(dtype).eps)


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_the_longest_row_of_each_system_is_scaled_to_the_limit(layout, dtype):
    prefix, updates = updates_of(layout, dtype)
    got = limited(MaxStepSize(np.array(LIMITS, dtype)), updates, prefix)
    for at, limit in enumerate(np.array(LIMITS, dtype)):
        of_one = take(prefix, updates, at)
        assert same_bits(take(prefix, got, at), by_numpy(of_one, limit))


def by_numpy(tree, limit):
    """Squares added in index order, as everywhere for so few components."""
    longest = limit.dtype.type(0)
    for leaf in tree.values():
        for row in leaf.reshape(-1, 3):
            x, y, z = times(row, row)
            longest = max(longest, np.sqrt(x + y + z))
    if longest <= limit:
        return tree
    return {name: times(leaf, limit / longest) for name, leaf in tree.items()}


INDEX = SystemIndex.from_sizes([2, 1])
ROWS = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [0.6, 0.8, 0.0]])


def test_a_norm_beyond_the_limit_becomes_the_limit():
    got = limited(ClipByGlobalNorm(1.0), ROWS, INDEX)
    # The root of 29 and its quotient are rounded, downward where it matters.
    np.testing.assert_allclose(np.linalg.norm(got[:2]), 1.0, rtol=1e-14)


def test_one_long_row_shortens_all_rows_of_its_system():
    got = limited(MaxStepSize(0.5), ROWS, INDEX)
    np.testing.assert_allclose(got[:2], ROWS[:2] / 10, rtol=1e-15)


@pytest.mark.parametrize(
    "transform", [ClipByGlobalNorm(10.0), MaxStepSize(5.0)], ids=["norm", "row"]
)
def test_updates_within_the_limit_come_back_bit_for_bit(transform):
    assert same_bits(limited(transform, ROWS, INDEX), ROWS)


@pytest.mark.parametrize("make", [ClipByGlobalNorm, MaxStepSize])
def test_a_limit_of_zero_gives_zero_and_of_infinity_changes_nothing(make):
    assert not np.any(limited(make(0.0), ROWS, INDEX))
    assert same_bits(limited(make(np.inf), ROWS, INDEX), ROWS)


@pytest.mark.parametrize("make", [ClipByGlobalNorm, MaxStepSize])
def test_updates_of_zero_stay_zero_whatever_the_limit(make):
    zero = np.zeros((3, 3))
    assert same_bits(limited(make(np.array([0.0, 1.0])), zero, INDEX), zero)


@pytest.mark.parametrize("make", [ClipByGlobalNorm, MaxStepSize])
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
def test_what_is_not_finite_stays_in_its_system(make, value):
    spoiled = ROWS.copy()
    spoiled[0, 0] = value
    got = limited(make(0.3), spoiled, INDEX)
    assert same_bits(got[2], limited(make(0.3), ROWS, INDEX)[2])
    assert not np.isfinite(got[:2]).all()


@pytest.mark.parametrize("make", [ClipByGlobalNorm, MaxStepSize])
def test_a_limit_per_system_is_the_limit_of_that_system(make):
    both = limited(make(np.array([0.5, 0.25])), ROWS, INDEX)
    assert same_bits(both[:2], limited(make(0.5), ROWS, INDEX)[:2])
    assert same_bits(both[2:], limited(make(0.25), ROWS, INDEX)[2:])


def test_a_step_has_no_negative_length():
    with pytest.raises(ValueError, match=r"max_step_size must not be negative, got -0\.2"):
        MaxStepSize(-0.2)
    got = limited(MaxStepSize(np.array([-0.2, np.nan])), ROWS, INDEX)
    assert not np.any(got)


def test_no_step_is_as_short_as_none():
    """Not one either whose length underflows."""
    assert not np.any(limited(MaxStepSize(0.0), 1e-200 * ROWS, INDEX))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_steps_of_low_precision_are_limited_in_float32(dtype):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)) * 1e4, dtype)
    got = limited(MaxStepSize(0.002), x, INDEX)
    assert got.dtype == dtype
    longest = np.asarray(segment.longest_row(got, INDEX))
    assert (longest <= 0.002 * (1 + 1e-6)).all()
    np.testing.assert_allclose(longest, 0.002, rtol=2 * float(jnp.finfo(dtype).eps))


def test_limits_have_a_derivative_at_zero():
    slope = jax.jit(jax.grad(lambda x, limit: limit.limit(x, INDEX).tree.sum()))
    for limit in (MaxStepSize(0.2), ClipByGlobalNorm(0.2)):
        assert np.array_equal(slope(jnp.zeros((3, 3)), limit), np.ones((3, 3)))


@pytest.mark.parametrize("make", [MaxStepSize, ClipByGlobalNorm, ClipByRowNorm, ClipByLayerNorm])
def test_rows_without_components_are_left_alone(make):
    x = np.zeros((3, 0))
    assert limited(make(0.2), x, INDEX).shape == (3, 0)
