"""Clipping: the guarantee, the table of limits, and what the five libraries say it is."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st

import basinax
from basinax import SystemIndex, clip_by_layer_norm, clip_by_norm, segment
from cases import ALIGNED, DTYPES, ONE_BLOCK_OR_MANY, SHUFFLED_WITH_GAPS, place, take
from cover import cover, exhaustive
from xla import jit_as_users


@functools.cache
def jitted(**options):
    return jit_as_users(functools.partial(clip_by_norm, **options))


@functools.cache
def quickly(**options):
    """It takes a third of the time to compile, and gives the bits that users get, below."""
    return jax.jit(functools.partial(clip_by_norm, **options))


def bits(x):
    return np.asarray(x).tobytes()


# --- the guarantee


def assert_within(tree, limit, got, again, is_rescaled=False):
    """Clipped by `got` to the limit, of which `again` is the same clip of the result."""
    norm, after = np.asarray(got.norm), np.asarray(again.norm)  # JAX sees subnormals as zero
    if not is_rescaled and norm <= limit:
        assert bits(tree) == bits(got.tree)
        assert not got.is_clipped
    else:
        assert after <= (1 if is_rescaled else limit)


def numbers(dtype):
    width = 8 * np.dtype(dtype).itemsize
    return st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=True)


# Each order, and each dtype with and without rescaling.
KINDS = [
    exhaustive(1, False, np.float64),
    (1.5, True, np.float32),
    exhaustive(2, False, np.float32),
    (2, False, np.float64),
    exhaustive(2, True, np.float32),
    (np.inf, False, np.float64),
    exhaustive(-np.inf, True, np.float32),
]


# Orders 1 and 1.5 are among `KINDS` every day, and order 2 in double precision.
THOUSANDS = [exhaustive(1, np.float32), exhaustive(1.5, np.float64)]
THOUSANDS += [(2, np.float32), exhaustive(2, np.float64)]


@pytest.mark.parametrize(("ord", "dtype"), THOUSANDS)
def test_no_norm_of_thousands_over_the_whole_range_exceeds_its_limit(ord, dtype):
    """Entries and limits of any exponent: where squares overflow, underflow, or neither."""
    draw, info, n_systems = np.random.default_rng(1), np.finfo(dtype), 3000
    index = SystemIndex.from_sizes([4] * n_systems)

    def any_size(shape):
        return np.exp2(draw.uniform(info.minexp, info.maxexp - 1, shape)).astype(dtype)

    near = (any_size((n_systems, 1)) * draw.uniform(0, 1, (n_systems, 4))).astype(dtype)
    for x in (any_size((n_systems, 4)), near):
        limits, clip = any_size(n_systems), quickly(ord=ord)
        got = clip(x.ravel(), limits, index)
        assert got.is_clipped.any()
        assert (np.asarray(clip(got.tree, limits, index).norm) <= limits)[got.is_clipped].all()


@pytest.mark.parametrize(("ord", "rescale", "dtype"), KINDS)
def test_no_norm_of_any_finite_numbers_exceeds_its_limit(ord, rescale, dtype):
    clip = quickly(ord=ord, rescale_to_unit_norm=rescale)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.lists(numbers(dtype), min_size=4, max_size=4),
        numbers(dtype).map(abs),
    )
    def check(entries, limit):
        x, limit = np.array(entries, dtype), np.array(limit, dtype)
        got = clip(x, limit)
        if rescale and (got.norm == 0 or not np.isfinite(got.tree).all()):
            return  # of -inf, where the largest entry divided by the smallest is not a number
        assert_within(x, limit, got, clip(got.tree, limit), rescale)

    check()


MANY = [
    exhaustive(1, np.float64),
    (2, np.float32),
    (2, jnp.bfloat16),
    exhaustive(2, np.float16),
    exhaustive(np.inf, jnp.bfloat16),
]


@pytest.mark.parametrize(("ord", "dtype"), MANY)
def test_no_norm_of_many_systems_exceeds_its_limit(dtype, ord):
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 40, 2000)
    index = SystemIndex.from_sizes(sizes, align=8)
    x = jnp.asarray(draw.normal(size=(index.n_rows, 3)), dtype)
    limits = jnp.asarray(10 ** draw.uniform(-3, 1, 2000), np.float32)
    clip = quickly(ord=ord)
    first = clip(x, limits, index)
    second = clip(first.tree, limits, index)
    assert (np.asarray(second.norm) <= np.asarray(limits)).all()
    assert not np.asarray(second.is_clipped).any()
    assert np.array_equal(first.tree, second.tree)
    # Not much below either: a few ulps of the leaf, which with one entry may be rounded down.
    is_large = np.asarray(first.is_clipped) & (sizes > 10)
    ratio = np.asarray(second.norm, float)[is_large] / np.asarray(limits, float)[is_large]
    assert (ratio > 1 - 64 * float(jnp.finfo(dtype).eps)).all()


norm_of = jax.jit(segment.norm)


@pytest.mark.parametrize(
    ("rows", "dtype", "prefix"),
    [
        exhaustive(1366, np.float64, SystemIndex.from_sizes([1366])),
        exhaustive(20_000, np.float32, None),
        exhaustive(200_000, np.float64, None),
        (200_000, jnp.bfloat16, None),
        exhaustive(700_000, np.float32, None),
    ],
    ids=lambda x: getattr(x, "__name__", str(x) if isinstance(x, int) else "global" * (x is None)),
)
def test_no_norm_of_a_large_system_exceeds_its_limit(rows, dtype, prefix):
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=(rows, 3)).astype(dtype)
        got = quickly()(x, dtype(1), prefix)
        assert quickly()(got.tree, dtype(1), prefix).norm <= 1
        norm = np.asarray(norm_of(got.tree, prefix))
        assert norm[0] <= 1
        np.testing.assert_allclose(norm, 1, rtol=64 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_a_limit_in_double_precision_is_never_rounded_up(make):
    limits = np.array([0.1, 0.3, 1 / 3])
    index = SystemIndex.from_sizes([4, 4, 4])
    got = clip_by_norm(np.ones(12, np.float32), make(limits), index)
    assert (np.asarray(segment.norm(got.tree, index), np.float64) <= limits).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_direction_is_kept_at_both_ends_of_the_range(dtype):
    info = np.finfo(dtype)
    largest, smallest = float(info.max), float(info.smallest_subnormal)
    near = functools.partial(np.testing.assert_allclose, rtol=32 * info.eps)  # safe factors
    units = np.array([3.0, 0.0, 0.0, 4.0], dtype)
    clip = quickly()
    huge = clip(np.full(4, largest, dtype), dtype(1))
    assert huge.norm == np.inf
    near(huge.tree, np.full(4, 0.5, dtype))
    near(clip(units * dtype(largest / 5), dtype(1)).tree, [0.6, 0, 0, 0.8])
    near(clip(units * dtype(1e30), dtype(1e-20)).tree, units * dtype(2e-21))
    unit = quickly(rescale_to_unit_norm=True)(units * dtype(smallest), dtype(0))
    near(unit.tree, [0.6, 0, 0, 0.8])
    mixed = np.array([4.0, 0.9, 0.25, 0.0], dtype) * info.tiny  # a normal number, and smaller ones
    unit = quickly(rescale_to_unit_norm=True, ord=np.inf)(mixed, dtype(0))
    near(unit.tree, [1, 0.225, 0.0625, 0])


# --- the table of limits

ROW = np.array([3.0, 4.0])
TABLE = [
    # limit, rescale_to_unit_norm, output, is clipped
    (0.0, False, [0, 0], True),
    (0.0, True, [0.6, 0.8], True),
    (-0.0, True, [0.6, 0.8], True),
    (np.inf, False, [3, 4], False),
    (np.inf, True, [0, 0], False),
    (-1.0, False, [0, 0], True),
    (-1.0, True, [0, 0], True),
    (-np.inf, False, [0, 0], True),
    (np.nan, False, [0, 0], True),
    (np.nan, True, [0, 0], True),
    (2.5, False, [1.5, 2], True),
    (2.5, True, [0.6, 0.8], True),
    (10.0, False, [3, 4], False),
    (10.0, True, [0.3, 0.4], False),
]


# Of the table, and of all that follows: one program for each option.
SEVEN = SystemIndex.from_sizes([2] * 7)


@pytest.mark.parametrize("rescale", [False, True])
def test_limits_act_per_system_by_the_table(rescale):
    rows = [row for row in TABLE if row[1] is rescale]
    limits = np.array([row[0] for row in rows])
    got = quickly(rescale_to_unit_norm=rescale)(np.tile(ROW, 7), limits, SEVEN)
    expected = np.array([row[2] for row in rows])
    np.testing.assert_allclose(got.tree.reshape(-1, 2), expected, rtol=4e-16)  # two ulps
    assert np.array_equal(got.is_clipped, [row[3] for row in rows])
    assert np.array_equal(got.norm, np.full(7, 5.0))


@pytest.mark.parametrize("rescale", [False, True])
def test_a_norm_of_zero_leaves_a_system_as_it_is_whatever_the_limit(rescale):
    limits = np.array([0.0, np.inf, -1.0, np.nan, 2.0, -0.0, -np.inf])
    zeros = np.array([0.0, -0.0] * 7)
    got = quickly(rescale_to_unit_norm=rescale)(zeros, limits, SEVEN)
    assert bits(got.tree) == bits(zeros)
    assert not np.asarray(got.is_clipped).any()


def test_what_is_not_finite_stays_in_its_system():
    x = np.array([np.nan, 1, np.inf, 1, -np.inf, -2, np.nan, np.inf, 3, 4, 0, -2, 0, 0.5])
    got = quickly()(x, np.ones(7), SEVEN)
    assert np.array_equal(got.norm, [np.nan, np.inf, np.inf, np.nan, 5, 2, 0.5], equal_nan=True)
    expected = [np.nan, 0, np.nan, 0, np.nan, 0, np.nan, np.nan, 0.6, 0.8, 0, -1, 0, 0.5]
    np.testing.assert_allclose(got.tree, expected, rtol=1e-15)
    assert np.array_equal(got.is_clipped, [True] * 6 + [False])
    safe = quickly(nan_safe=True)(x, np.ones(7), SEVEN)
    np.testing.assert_allclose(safe.norm, [1, 1, 2, 0, 5, 2, 0.5], rtol=1e-15)
    np.testing.assert_allclose(safe.tree[:8], [0, 1, 0, 1, 0, -1, 0, 0], rtol=1e-15)


def test_zeros_may_be_asked_for():
    got = clip_by_norm({"a": ROW, "b": np.array([np.nan])}, 1.0, nan_safe=True, return_zero=True)
    assert not np.asarray(got.tree["a"]).any() and not np.asarray(got.tree["b"]).any()
    assert got.norm == 5
    traced = jax.jit(lambda yes: clip_by_norm(ROW, 1.0, return_zero=yes).tree)
    assert not np.asarray(traced(True)).any()
    assert np.asarray(traced(False)).any()


# --- the libraries, which take seconds to import


@pytest.fixture(scope="module")
def brainstate():
    import brainstate

    jax.config.update("jax_enable_x64", True)  # it switches that off when it is imported
    return brainstate


@pytest.fixture(scope="module")
def jax_privacy():
    from jax_privacy import clipping

    return clipping


def random_tree(seed, dtype):
    draw = np.random.default_rng(seed)
    shapes = {"weights": (5, 4), "bias": (4,)}
    return {
        name: jnp.asarray(draw.normal(size=shape).astype(dtype)) for name, shape in shapes.items()
    }


def with_entry(tree, value):
    bias = np.array(tree["bias"])
    bias[1] = value
    return {**tree, "bias": jnp.asarray(bias)}


def assert_close(got, expected, dtype):
    """Within a few ulps of the leaf: the sums are taken in different orders."""
    rtol = 8 * float(jnp.finfo(dtype).eps)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=rtol)


# jax-privacy calls a function of optax by its old name.
old_name_in_jax_privacy = pytest.mark.filterwarnings(
    "ignore:optax.global_norm is deprecated:DeprecationWarning"
)


@old_name_in_jax_privacy
@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, np.float32),
        exhaustive({}, jnp.bfloat16),
        exhaustive({"rescale_to_unit_norm": True}, np.float64),
        ({"nan_safe": True, "rescale_to_unit_norm": True}, np.float16),
        exhaustive({"return_zero": True}, jnp.bfloat16),
    ],
)
def test_it_agrees_with_jax_privacy(jax_privacy, options, dtype):
    theirs = {"nan_safe": False, **options}
    for seed, limit in enumerate([0.0, 0.3, 1.0, 50.0, np.inf]):
        tree = random_tree(seed, dtype)
        for value in (1.0, np.nan, np.inf, -np.inf):
            spoiled = with_entry(tree, value)
            got = clip_by_norm(spoiled, limit, **options)
            with jax.numpy_dtype_promotion("standard"):
                expected, norm = jax_privacy.clip_pytree(spoiled, limit, **theirs)
            if options.get("return_zero"):
                expected = jax.tree.map(jnp.zeros_like, expected)
            assert_close(got.tree, expected, dtype)
            np.testing.assert_allclose(got.norm, norm, rtol=4 * float(jnp.finfo(dtype).eps) + 1e-6)


@old_name_in_jax_privacy
def test_a_negative_limit_in_an_array_gives_zero_where_jax_privacy_does_not(jax_privacy):
    """Its table says zero in both cases; its code says so in one."""
    limit = jnp.asarray(-1.0)
    for rescale in (False, True):
        assert not np.asarray(clip_by_norm(ROW, limit, rescale_to_unit_norm=rescale).tree).any()
    with jax.numpy_dtype_promotion("standard"):
        theirs, _ = jax_privacy.clip_pytree(ROW, limit, rescale_to_unit_norm=True)
    np.testing.assert_allclose(theirs, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("norm_type", "dtype"),
    [
        (1, np.float32),
        exhaustive(2, np.float32),
        (2, np.float64),
        exhaustive(2.5, np.float64),
        *((norm_type, np.float64) for norm_type in (np.inf, "inf")),
        *((norm_type, np.float32) for norm_type in (-np.inf, "-inf")),
        (None, np.float64),
    ],
    ids=repr,
)
def test_it_agrees_with_brainstate(brainstate, norm_type, dtype):
    for seed, limit in enumerate([0.0, 0.01, 1.0, 50.0, np.inf]):
        tree = random_tree(seed, dtype)
        got = clip_by_norm(tree, limit, ord=norm_type)
        with jax.numpy_dtype_promotion("standard"):
            expected, norm = brainstate.nn.clip_grad_norm(tree, limit, norm_type, True)
        np.testing.assert_allclose(got.norm, norm, rtol=16 * np.finfo(dtype).eps)
        for x, y in zip(jax.tree.leaves(got.tree), jax.tree.leaves(expected), strict=True):
            # It adds 1e-6 to the norm.
            np.testing.assert_allclose(x, y, rtol=2e-6 / float(norm) + 16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_agrees_with_declearn(dtype):
    from declearn.model.api import Vector  # pyright: ignore[reportPrivateImportUsage]
    from declearn.optimizer.modules import (
        L2GlobalClipping,  # pyright: ignore[reportPrivateImportUsage]
    )

    for seed, limit in enumerate([0.3, 1.0, 50.0]):  # it divides by the limit
        tree = {k: np.asarray(x) for k, x in random_tree(seed, dtype).items()}
        expected = L2GlobalClipping(max_norm=limit).run(Vector.build(tree))
        assert_close(clip_by_norm(tree, limit).tree, dict(expected.coefs), dtype)


NAMES_OF_TWO = [({}, np.float32), ({"ord": None}, np.float64), ({"ord": "2"}, np.float32)]


@pytest.mark.parametrize(("options", "dtype"), NAMES_OF_TWO)
def test_the_transform_is_that_of_optax_in_global_mode(options, dtype):
    for seed, limit in enumerate([0.0, 0.3, 1.0, 50.0, np.inf]):
        for value in (1.0, np.nan, np.inf):
            tree = with_entry(random_tree(seed, dtype), value)
            ours, theirs = (
                basinax.ClipByGlobalNorm(limit, **options),
                optax.clip_by_global_norm(limit),
            )
            got, _ = ours.update(tree, ours.init(tree))
            expected, _ = theirs.update(tree, theirs.init(tree))
            for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
                assert np.array_equal(x, y, equal_nan=True)


@pytest.mark.parametrize("rescale", [False, True])
def test_a_limit_of_zero_makes_no_nan_on_the_way(rescale):
    index = basinax.SystemIndex.from_sizes([2, 1])
    with jax.debug_nans(True):
        found = clip_by_norm(jnp.ones((3, 3)), 0.0, index, rescale_to_unit_norm=rescale)
    assert jnp.isfinite(found.tree).all()


@pytest.mark.parametrize(*cover("uniform, dtype", [True, False], DTYPES, strength=1))
def test_all_layers_together_keep_to_the_limit(uniform, dtype):
    sizes = [3.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    clipped = jax.jit(functools.partial(clip_by_layer_norm, uniform=uniform))
    for count in (3, 6):
        layers = [np.full((1 + k % 2,), size, dtype) for k, size in enumerate(sizes[:count])]
        for limit in (0.7, 1.0, 1.3):
            squares = [
                Fraction(float(x)) ** 2 for leaf in clipped(layers, limit).tree for x in leaf
            ]
            assert (1 - 1e-5) * limit**2 < sum(squares) <= Fraction(float(dtype(limit))) ** 2
            assert segment.norm(clipped(layers, limit).tree)[0] <= dtype(limit)


sums_of = jax.jit(lambda clipped, index: clipped.sums(index))
sums_of_optax = jax.jit(optax.per_example_layer_norm_clip, static_argnums=2)


@pytest.mark.parametrize("uniform", [True, False])
def test_layers_agree_with_optax(uniform):
    draw, dtype = np.random.default_rng(0), np.float32
    index = SystemIndex.from_sizes([1] * 6)
    for limit in (0.0, 0.7, 2.0, 100.0, np.inf):
        for value in (1.0, np.nan, np.inf, 0.0):
            layers = [draw.normal(size=(6, *s)).astype(dtype) for s in ((), (3,), (2, 4))]
            layers[1][2] *= dtype(value)
            layers = [jnp.asarray(layer) for layer in layers]
            clipped = clip_by_layer_norm(layers, limit, index, uniform=uniform)
            sums, counts = sums_of(clipped, index)
            expected, expected_counts = sums_of_optax(layers, limit, uniform)
            for x, y in zip(sums, expected, strict=True):
                # Sums that cancel, in another order.
                tolerance = 32 * np.finfo(dtype).eps
                np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
            assert [int(x) for x in counts] == [int(x) for x in expected_counts]


@pytest.mark.exhaustive
def test_one_layer_is_the_global_clip_of_optax():
    rows = np.random.default_rng(0).normal(size=(8, 3))
    index = SystemIndex.from_sizes([1] * 8)
    (total,), (count,) = clip_by_layer_norm([rows], 1.25, index).sums(index)
    with jax.numpy_dtype_promotion("standard"):
        (expected,), n_clipped = optax.per_example_global_norm_clip([jnp.asarray(rows)], 1.25)
    np.testing.assert_allclose(total, expected, rtol=1e-13)
    assert int(count) == int(n_clipped)


# --- the examples of each, number for number


@pytest.mark.exhaustive  # every day on a page, docs/clipping.md
def test_the_example_of_brainstate():
    grads = {"w": np.array([3.0, 4.0], np.float32), "b": np.array([12.0], np.float32)}
    got = clip_by_norm(grads, 5.0)
    assert str(got.tree["w"]) == "[1.1538461 1.5384616]"
    assert got.norm == 13
    layer = np.array([[-2.0, 3.0], [1.0, -4.0]])
    norms = [float(clip_by_norm(layer, 1.0, ord=p).norm) for p in (2, 1, "inf")]
    assert [round(x, 2) for x in norms] == [5.48, 10, 4]


@pytest.mark.parametrize(("limit", "total", "count"), [(np.inf, 7, 0), (0, 0, 3), (1.25, 1.75, 3)])
def test_the_example_of_optax(limit, total, count):
    rows = np.array([[0, 0, 0], [0, 3, 4], [4, 0, 3], [3, 4, 0]], np.float32)
    index = SystemIndex.from_sizes([1] * 4)
    (sums,), (clipped,) = clip_by_layer_norm([rows], limit, index).sums(index)
    assert np.array_equal(sums, [total] * 3)
    assert clipped == count


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("align", [1, 8])
def test_systems_without_any_row_can_be_clipped(sizes, align):
    index, x = SystemIndex.from_sizes(sizes, align=align), jnp.zeros((0, 3))
    for clip in (clip_by_norm, quickly()):
        got = clip(x, 1.0, index)
        assert got.tree.shape == x.shape
        assert np.array_equal(got.norm, np.zeros(len(sizes)))
        assert not got.is_clipped.any()


def test_an_empty_tree_is_returned_as_it_is():
    got = clip_by_norm({}, 1.0)
    assert got.tree == {}
    assert got.norm == 0
    assert not got.is_clipped
    limit = basinax.ClipByGlobalNorm(1.0)
    assert limit.update({}, limit.init({}))[0] == {}


# --- the promise

SIZES = ONE_BLOCK_OR_MANY


def draw_systems(dtype):
    draw = np.random.default_rng(0)
    subnormal = 7000 * float(np.finfo(dtype).smallest_subnormal)
    scales = [1.0, 1e-25, 1e25, subnormal, 1.0]
    with np.errstate(over="ignore"):
        systems = [
            (draw.normal(size=(size, 3)) * scales[k % 5]).astype(dtype)
            for k, size in enumerate(SIZES)
        ]
    systems[4][0, 1] = np.nan
    systems[7][2, 2] = np.inf
    systems[9][0, 0] = np.finfo(dtype).max
    limits = np.array([0.5, 1e-26, 3.0, 1e-30, 1.0, np.inf, 1e-30, -1.0, 1.0, 0.0])
    return systems, limits.astype(dtype)


# Few shapes, so that single operations too need not be compiled for each option. Other orders
# differ in the norm alone, on which test_norm.py asks the same every day.
OPTIONS = [
    ({}, np.float32, ALIGNED),
    ({}, np.float64, SHUFFLED_WITH_GAPS),
    ({"ord": 1}, np.float64, SHUFFLED_WITH_GAPS),
    ({"ord": 1.5}, np.float32, ALIGNED),
    ({"ord": "-inf"}, np.float64, SHUFFLED_WITH_GAPS),
    ({"nan_safe": True, "rescale_to_unit_norm": True}, np.float32, ALIGNED),
]


def of_options(every_day, others):
    """Options by their places, of which the first are tested every day."""
    rows = [OPTIONS[k] for k in every_day] + [exhaustive(*OPTIONS[k]) for k in others]
    return pytest.mark.parametrize(("options", "dtype", "layout"), rows, ids=str)


@of_options([1], [0, 2, 3, 4])
def test_a_system_at_its_limit_comes_back_bit_for_bit(options, dtype, layout):
    """Subnormal entries too, which arithmetic on a CPU makes zero."""
    systems, limits = draw_systems(dtype)
    clip, index = jitted(**options), layout.index(SIZES)
    rows = place(index, systems, dtype)
    norms = clip(rows, np.full_like(limits, np.inf), index).norm
    got = clip(rows, norms, index)
    for k, x in enumerate(systems):
        is_finite = np.isfinite(x).all()
        assert bool(got.is_clipped[k]) is not is_finite
        assert not is_finite or bits(take(index, got.tree, k)) == bits(x)


@of_options([1], [0, 2, 3, 4, 5])
def test_every_system_is_clipped_as_it_is_alone(options, dtype, layout):
    """As users compile it in the batch, and quickly alone."""
    systems, limits = draw_systems(dtype)
    clip, room = quickly(**options), sum(SIZES)
    index = layout.index(SIZES)
    got = jitted(**options)(place(index, systems, dtype), limits, index)
    same = functools.partial(np.array_equal, equal_nan=True)
    for k, x in enumerate(systems):
        alone = SystemIndex.from_sizes([len(x)], n_rows=room)
        rows = np.concatenate([x, np.full((room - len(x), 3), np.nan, dtype)])
        expected = clip(rows, limits[k : k + 1], alone)
        assert same(take(index, got.tree, k), np.asarray(expected.tree)[: len(x)])
        assert same(got.norm[k], expected.norm[0])
        assert got.is_clipped[k] == expected.is_clipped[0]


@pytest.mark.parametrize(("dtype", "align"), [(np.float32, 8), exhaustive(np.float64, 1)])
def test_more_small_systems_than_are_tried_at_once_are_clipped_as_they_are_in_few(dtype, align):
    draw = np.random.default_rng(5)
    sizes = draw.integers(0, 12, 1500)
    whole = SystemIndex.from_sizes(sizes, align=align)
    tree, limits = np.zeros((whole.n_rows, 3), dtype), draw.uniform(0.5, 3, 1500).astype(dtype)
    of_whole = np.asarray(whole.ids)
    tree[of_whole < 1500] = draw.normal(size=(sizes.sum(), 3))
    got = np.asarray(jitted()(tree, limits, whole).tree)
    for begin in range(0, 1500, 300):
        few = slice(begin, begin + 100)
        index = SystemIndex.from_sizes(sizes[few], align=align, n_rows=1600)
        is_here = (begin <= of_whole) & (of_whole < begin + 100)
        part = np.zeros((index.n_rows, 3), dtype)
        part[np.asarray(index.has_system())] = tree[is_here]
        expected = np.asarray(quickly()(part, limits[few], index).tree)
        assert np.array_equal(got[is_here], expected[np.asarray(index.has_system())])


@pytest.mark.parametrize("n_systems", [exhaustive(1), 511, 1300])
def test_small_systems_get_the_nearest_factor(n_systems):
    index = SystemIndex.from_ids(np.arange(n_systems)[::-1])
    rows = np.tile(np.float32([3, 4]), (n_systems, 1))
    got = clip_by_norm(rows, 2.5, index)
    assert np.array_equal(got.tree, rows / 2)


@pytest.mark.parametrize(("size", "dtype"), [(5, np.float32), (1366, np.float64)])
def test_global_mode_is_a_batch_of_one_for_systems_of_usual_size(size, dtype):
    draw = np.random.default_rng(0)
    for scale, limit in ((1.0, np.inf), (1e25, 1e-30), (1e-41, -1.0), (1.0, 1.0)):
        x, limit = (draw.normal(size=(size, 3)) * scale).astype(dtype), dtype(limit)
        got = jitted()(x, limit)
        expected = quickly()(x, limit, SystemIndex.from_sizes([len(x)]))
        assert np.array_equal(got.tree, expected.tree, equal_nan=True)


@of_options([], range(6))  # every day as compiled quickly, above, which has the same bits
def test_a_jitted_clip_is_the_clip_one_operation_at_a_time(options, dtype, layout):
    systems, limits = draw_systems(dtype)
    index = layout.index(SIZES)
    rows = place(index, systems, dtype)
    with jax.disable_jit():
        expected = clip_by_norm(rows, limits, index, **options)
    got = jitted(**options)(rows, limits, index)
    for x, y in zip(got, expected, strict=True):
        assert np.array_equal(x, y, equal_nan=True)


@pytest.mark.parametrize(
    "clip", [quickly(), jax.jit(clip_by_layer_norm)], ids=["by norm", "by layer norm"]
)
def test_padding_changes_nothing(clip):
    systems, limits = draw_systems(np.float32)
    index = ALIGNED.index(SIZES)
    expected, mine = clip(place(index, systems, np.float32), limits, index), index.has_system()
    for padding in (0.0, np.inf, 1e30):
        got = clip(place(index, systems, np.float32, padding), limits, index)
        assert np.array_equal(got.norm, expected.norm, equal_nan=True)
        assert np.array_equal(got.tree[mine], expected.tree[mine], equal_nan=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("uniform", [True, False])
def test_layers_of_a_system_are_clipped_as_they_are_alone(uniform):
    draw = np.random.default_rng(0)
    prefix = {"cell": SystemIndex.from_sizes([1] * 3), "atoms": SystemIndex.from_sizes([9, 4, 9])}
    tree = {"cell": draw.normal(size=(3, 3, 3)), "atoms": draw.normal(size=(22, 3))}
    clip = functools.partial(clip_by_layer_norm, uniform=uniform)
    got = jit_as_users(clip)(tree, 1.0, prefix)
    for k in (0, 2):
        mine = take(prefix, tree, k)
        alone = jax.tree.map(lambda x: SystemIndex.from_sizes([len(x)]), mine)
        expected = jax.jit(clip)(mine, 1.0, alone)
        for x, y in zip(
            jax.tree.leaves(take(prefix, got.tree, k)),
            jax.tree.leaves(expected.tree),
            strict=True,
        ):
            assert np.array_equal(x, y)
    assert (np.asarray(norm_of(got.tree, prefix)) <= 1 + 1e-15).all()


def test_another_limit_compiles_nothing():
    index = SystemIndex.from_sizes([3, 5])
    x = np.random.default_rng(0).normal(size=(8, 3))
    traced = []

    @jax.jit
    def clip(limits):
        traced.append(limits)
        return clip_by_norm(x, limits, index)

    for limits in ([1.0, 2.0], [0.0, np.nan], [-1.0, np.inf]):
        clip(np.array(limits))
    for limit in (1.0, 2.0):
        clip(limit)
    assert len(traced) == 2


def test_the_derivative_is_that_of_the_formula():
    x = np.random.default_rng(0).normal(size=(5, 3))
    index = SystemIndex.from_sizes([2, 3])
    weights = np.arange(15.0).reshape(5, 3)

    def plain(x):
        return x * jnp.minimum(1, 1.5 / jnp.sqrt((x * x).sum()))

    @jax.jit
    @jax.grad
    def expected(x):
        return (jnp.concatenate([plain(x[:2]), plain(x[2:])]) * weights).sum()

    @jax.jit
    @jax.grad
    def derivative(x):
        return (clip_by_norm(x, 1.5, index).tree * weights).sum()

    np.testing.assert_allclose(derivative(x), expected(x), rtol=1e-12)
    assert np.array_equal(derivative(0 * x), weights)


@pytest.mark.parametrize(*cover("rescale, size", [False, True], [1e-20, 1e20], strength=1))
def test_the_derivative_is_right_where_squares_are_out_of_range(rescale, size):
    """(1 - x̂x̂ᵀ) c/|x|, beside a system of usual size."""
    size, index = np.float32(size), SystemIndex.from_sizes([1, 1])
    x = jnp.asarray([[3.0, 4.0], [3 * size, 4 * size]], jnp.float32)
    limits = np.zeros(2) if rescale else np.array([1.0, size])

    def clipped(x):
        return clip_by_norm(x, limits, index, rescale_to_unit_norm=rescale).tree

    slopes = jax.grad(lambda x: clipped(x)[:, 0].sum())(x)
    over = 1 / (size if rescale else np.float32(1))
    expected = np.float32([0.128, -0.096]) * np.array([[1], [over]], np.float32)
    np.testing.assert_allclose(slopes, expected, rtol=1e-5)
    along = np.asarray(jax.jvp(clipped, (x,), (x,))[1])
    np.testing.assert_allclose(along / (1 if rescale else limits[:, None]), 0.0, atol=1e-6)


def test_leaves_of_short_numbers_have_derivatives():
    """Of single precision beside double, with the norm of both: no derivative is lost."""
    index, draw = SystemIndex.from_sizes([3, 2]), np.random.default_rng(0)
    short, long = (jnp.asarray(draw.normal(size=(5, 3)), dtype) for dtype in (np.float32, float))

    def clipped(x):
        return clip_by_norm({"short": x, "long": long}, 0.5, index).tree["short"]

    found, expected = (jax.jvp(clipped, (x,), (x,))[1] for x in (short, short.astype(float)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("power", [-67, 67])
def test_second_derivatives_are_right_where_squares_are_out_of_range(power):
    """Of a norm and of a clip, which are those of numbers of usual size in other units."""
    x, w = jnp.array([[3.0, 4.0]], jnp.float32), jnp.array([[1.0, 0.0]], jnp.float32)

    @jax.jit
    def derivatives(unit):
        def slope(x):
            return jax.jvp(lambda x: clip_by_norm(x, unit).tree, (x,), (unit * w,))[1]

        bent = jax.hessian(lambda x: segment.norm(x)[0])(unit * x)
        return unit * bent, jax.jvp(slope, (unit * x,), (unit * w,))[1] / unit

    expected, got = derivatives(np.float32(1.0)), derivatives(np.float32(2.0**power))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_many_small_systems_have_the_derivative_of_each():
    x, limits = np.random.default_rng(0).normal(size=(1300, 3)), np.full(1300, 1.5)
    weights = np.arange(x.size, dtype=float).reshape(x.shape)
    index = SystemIndex.from_sizes([1] * 1300)

    def plain(x, limits):
        return x * jnp.minimum(1, limits / jnp.linalg.norm(x, axis=1))[:, None]

    def clipped(x, limits):
        return clip_by_norm(x, limits, index).tree

    got, expected = (
        jax.jit(jax.grad(lambda x, y, f=f: (f(x, y) * weights).sum(), (0, 1)))(x, limits)
        for f in (clipped, plain)
    )
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-9)


# --- arguments


def test_numpy_and_python_numbers_are_taken():
    got = clip_by_norm({"a": np.array([3.0]), "b": 4.0}, 1)
    np.testing.assert_allclose([got.tree["a"][0], got.tree["b"]], [0.6, 0.8], rtol=1e-15)
    assert jnp.shape(got.norm) == jnp.shape(got.is_clipped) == ()


@pytest.mark.parametrize("limit", [-1, -0.5, np.float32(-1)])
def test_a_negative_number_is_refused(limit):
    makers = [
        lambda x: clip_by_norm(ROW, x),
        lambda x: clip_by_layer_norm(ROW, x),
        basinax.ClipByGlobalNorm,
        basinax.ClipByLayerNorm,
        basinax.ClipByRowNorm,
        basinax.ClipByValue,
    ]
    for make in makers:
        with pytest.raises(ValueError, match="must not be negative"):
            make(limit)


def test_limits_of_another_number_of_systems_are_refused():
    index = SystemIndex.from_sizes([1, 1])
    with pytest.raises(ValueError, match=r"one entry for each of the 2 systems, got shape \(3,\)"):
        clip_by_norm(ROW, np.ones(3), index)


@pytest.mark.exhaustive
@pytest.mark.parametrize("index", [None, SystemIndex.from_sizes([2, 1])])
def test_derivatives_need_no_jit(index):
    def clipped(x):
        found = clip_by_norm(x, 1.0, index)
        return found.tree[0].sum() + segment.norm(x, index).sum()

    def in_a_chain(x):
        optimizer = basinax.chain(basinax.ClipByGlobalNorm(1.0), basinax.FIRE())
        return optimizer.update(x, optimizer.init(x, index), x)[0].sum()

    x = jnp.arange(1.0, 10.0).reshape(3, 3)
    for function in (clipped, in_a_chain):
        expected = jax.jit(jax.grad(function))(x)
        np.testing.assert_allclose(jax.grad(function)(x), expected, rtol=1e-12)
        _, along = jax.linearize(function, x)
        assert float(along(x)) == pytest.approx(float((expected * x).sum()), abs=1e-12)
