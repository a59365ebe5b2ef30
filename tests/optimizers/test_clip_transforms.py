"""Clips as transforms: each what its function is, per row and entry too, and what they saw."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import basinax
from basinax import (
    AbstractLimit,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    ClipByValue,
    GradientDescent,
    MaxStepSize,
    SystemIndex,
    chain,
    clip_by_layer_norm,
    clip_by_norm,
    observe,
    optax_transform,
)
from cases import DTYPES, TWO_LAYOUTS, in_turns, place, take
from cover import exhaustive

SIZES = [4, 1, 9, 3]


def draw_rows(dtype=np.float64, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=(size, 3)).astype(dtype) for size in SIZES]


@jax.jit
def updated(transform, updates, index=None):
    return transform.update(updates, transform.init(updates, index))[0]


@jax.jit
def limited(limit, updates, index=None):
    return limit.limit(updates, index)


@pytest.mark.parametrize(
    "options",
    [{}, {"ord": "inf", "nan_safe": True}, exhaustive({"rescale_to_unit_norm": True})],
    ids=str,
)
def test_clip_by_global_norm_is_the_function(options):
    index = SystemIndex.from_sizes(SIZES)
    x, limits = np.concatenate(draw_rows()), np.array([0.5, 3.0, 1.0, np.inf])
    expected = jax.jit(partial(clip_by_norm, **options))(x, limits, index)
    transform = ClipByGlobalNorm(limits, **options)
    assert np.array_equal(updated(transform, x, index), expected.tree)
    for got, wanted in zip(limited(transform, x, index), expected, strict=True):
        assert np.array_equal(got, wanted)


def test_clip_by_global_norm_can_return_zeros_and_has_the_norm_of_optax():
    x = np.array([3.0, 4.0])
    assert not np.asarray(updated(ClipByGlobalNorm(1.0, return_zero=True), x)).any()
    seen = limited(ClipByGlobalNorm(1.0), x)
    assert seen.norm == 5
    assert seen.is_clipped
    of_optax = jax.jit(optax.clip_by_global_norm(1.0).update)(jnp.asarray(x), optax.EmptyState())
    assert np.array_equal(seen.tree, of_optax[0])


@pytest.mark.parametrize("uniform", [exhaustive(True), False])
def test_clip_by_layer_norm_is_the_function(uniform):
    index = SystemIndex.from_sizes(SIZES)
    tree = {"a": np.concatenate(draw_rows()), "b": np.concatenate(draw_rows(seed=1))[:, 0]}
    expected = jax.jit(partial(clip_by_layer_norm, uniform=uniform))(tree, 1.5, index)
    got = updated(ClipByLayerNorm(1.5, uniform=uniform), tree, index)
    assert all(np.array_equal(got[name], expected.tree[name]) for name in tree)


clipped_alone = jax.jit(clip_by_norm)


@pytest.mark.parametrize(("layout", "dtype"), in_turns(TWO_LAYOUTS, DTYPES))
def test_rows_are_clipped_one_by_one(layout, dtype):
    index, rows = layout.index(SIZES), draw_rows(dtype)
    rows[2][3] = np.nan
    rows[3][1] = 1e-41
    limits = np.array([0.5, 10.0, 1.0, 0.0], dtype)
    clip = ClipByRowNorm(limits)
    seen = limited(clip, place(index, rows, dtype), index)
    for k, (x, limit) in enumerate(zip(rows, limits, strict=True)):
        got, norm = take(index, seen.tree, k), take(index, seen.norm, k)
        for row, clipped, size in zip(x, got, norm, strict=True):
            alone = clipped_alone(row.reshape(1, 3), limit)
            assert np.array_equal(clipped, alone.tree[0], equal_nan=True)
            assert np.array_equal(size, alone.norm, equal_nan=True)


def test_rows_of_any_rank_are_clipped_along_the_last_axis():
    draw = np.random.default_rng(0)
    tree = {"flat": draw.normal(size=5), "cells": draw.normal(size=(4, 3, 3))}
    seen = limited(ClipByRowNorm(0.5), tree)
    assert np.array_equal(seen.tree["flat"], np.clip(tree["flat"], -0.5, 0.5))
    assert (np.linalg.norm(seen.tree["cells"], axis=-1) <= 0.5 + 1e-15).all()
    assert seen.norm["cells"].shape == seen.is_clipped["cells"].shape == (4, 3)
    assert ClipByRowNorm(0.5).limit(3.0).tree == 0.5


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.bfloat16])
def test_values_are_clipped_as_optax_does(dtype):
    x = jnp.asarray([-3.0, -0.0, 0.2, 3.0, np.nan, np.inf, -np.inf], dtype)
    got = updated(ClipByValue(0.5), x)
    expected, _ = optax.clip(0.5).update(x, optax.EmptyState())
    assert np.array_equal(got, expected, equal_nan=True)
    subnormal = jnp.full(2, jnp.finfo(dtype).smallest_subnormal)
    assert (
        np.asarray(updated(ClipByValue(0.5), subnormal)).tobytes()
        == np.asarray(subnormal).tobytes()
    )
    seen = limited(ClipByValue(0.0), -subnormal)
    assert seen.is_clipped.all()
    assert np.asarray(seen.tree).tobytes() == np.asarray(jnp.full(2, -0.0, dtype)).tobytes()


def test_values_have_limits_per_system_that_are_never_rounded_up():
    index = SystemIndex.from_sizes([2, 2, 2, 2])
    x = jnp.asarray([3.0, -0.1] * 4, jnp.bfloat16)
    limits = np.array([1.004, 0.0, np.nan, np.inf])
    seen = limited(ClipByValue(limits), x, index)
    assert np.array_equal(seen.tree[:4].astype(float), [1, float(x[1]), 0, 0])
    assert np.array_equal(seen.tree[4:], [0, 0, *x[:2]])
    assert np.array_equal(seen.is_clipped, [True, False, True, True, True, True, False, False])


def test_what_limits_saw_is_returned_beside_the_same_step():
    index = SystemIndex.from_sizes(SIZES)
    x = np.concatenate(draw_rows())
    descent = GradientDescent(0.1)
    optimizer = chain(ClipByGlobalNorm(1.0), chain(ClipByValue(0.3), descent), MaxStepSize(0.1))
    state = optimizer.init(x, index)
    step, following = jax.jit(optimizer.update)(x, state, x)
    got, got_following, seen = jax.jit(partial(observe, optimizer))(x, state, x)
    assert np.array_equal(got, step)
    same = jax.tree.map(np.array_equal, got_following, following)
    assert all(jax.tree.leaves(same))
    clip, (values, of_descent), longest = seen
    assert np.array_equal(clip.norm, limited(ClipByGlobalNorm(1.0), x, index).norm)
    assert values.is_clipped.shape == x.shape
    assert of_descent is None
    assert longest is None or isinstance(longest, tuple)


def test_what_limits_saw_is_no_state():
    for limit in (
        ClipByGlobalNorm(1.0),
        ClipByLayerNorm(1.0),
        ClipByRowNorm(1.0),
        ClipByValue(1.0),
    ):
        assert isinstance(limit, AbstractLimit)
        x = np.ones((3, 3))
        state = limit.init(x)
        after = jax.eval_shape(limit.update, x, state)[1]
        assert jax.tree.leaves(state) == jax.tree.leaves(after) == []


def test_an_optax_transform_by_name_is_that_of_optax():
    x, theirs = np.concatenate(draw_rows()), optax.adam(0.1)
    ours = optax_transform("adam", learning_rate=0.1)
    with jax.numpy_dtype_promotion("standard"):  # which optax counts on
        expected, _ = theirs.update(x, theirs.init(x), x)
        for transform in (ours, chain(ours)):
            assert np.array_equal(transform.update(x, transform.init(x), x)[0], expected)


def test_an_optax_transform_by_name_acts_on_each_system_alone():
    index = SystemIndex.from_sizes(SIZES)
    x = np.concatenate(draw_rows())
    with pytest.raises(ValueError, match="mixes systems"):
        optax_transform("clip_by_global_norm", max_norm=1.0).init(x, index)
    adam = optax_transform("adam", learning_rate=0.1)
    assert np.array_equal(updated(chain(adam), x, index), updated(chain(optax.adam(0.1)), x, index))


def test_equal_arguments_make_the_same_transformation():
    """It is static, so that another object would compile the loop anew."""
    first, second = (optax_transform("adam", learning_rate=0.1, b1=0.5) for _ in range(2))
    assert jax.tree.structure(first) == jax.tree.structure(second)


def test_names_of_optax_transforms_are_checked():
    with pytest.raises(ValueError, match="optax has no transformation 'adma'; did you mean ada"):
        optax_transform("adma")
    with pytest.raises(ValueError, match=r"optax.adam has no argument 'lr'; it has learning_rate"):
        optax_transform("adam", lr=1.0)
    with pytest.raises(TypeError, match=r"arguments of optax.adam must be numbers.*itself"):
        optax_transform("adam", learning_rate=optax.constant_schedule(1.0))
    with pytest.raises(ValueError, match="no transformation"):
        optax_transform("l2_loss", predictions=1.0)
    assert basinax.OptaxByName is type(optax_transform("contrib.prodigy"))
