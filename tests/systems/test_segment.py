"""Reductions, scalings and selections per system over trees, against NumPy and bit for bit."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import SystemIndex, segment
from cases import ALIGNED, DTYPES, LAYOUTS, in_turns, place, rows_of, same_bits, take
from oracle import add, times, tree_sum
from xla import AS_USERS

SIZES = [13, 0, 1, 77, 8]

# Jitted, since each operation for itself would be compiled for each shape.
total, norm, longest_row, largest, scale, where = map(
    eqx.filter_jit,
    (
        segment.sum,
        segment.norm,
        segment.longest_row,
        segment.max,
        segment.scale,
        segment.where,
    ),
)
# As users compile it, which contracts a product that is not rounded.
dot, dots = (eqx.filter_jit(f, compiler_options=AS_USERS) for f in (segment.dot, segment.dots))
SHAPES = {"positions": (3,), "cell": (3, 3), "charge": ()}


def prefix_of(layout):
    return {
        "positions": layout.index(SIZES),
        "cell": layout.index([1, 0, 1, 1, 1]),
        "charge": layout.index(SIZES),
    }


def tree_of(prefix, dtype, seed=0):
    draw = np.random.default_rng(seed)

    def leaf(name, index):
        rows = draw.normal(size=(index.n_rows, *SHAPES[name]))
        rows *= 10.0 ** draw.integers(-3, 4, rows.shape)
        rows[np.asarray(index.ids) == len(index)] = np.nan
        return jnp.asarray(rows.astype(dtype))

    return {name: leaf(name, index) for name, index in prefix.items()}


def by_oracle(prefix, tree):
    """Leaf by leaf in the order of the tree, which sorts names."""
    sums = []
    for at in range(len(SIZES)):
        parts = [
            tree_sum(np.asarray(tree[name])[rows_of(index, at)])
            for name, index in sorted(prefix.items())
        ]
        sums.append(functools.reduce(add, parts))
    return np.array(sums)


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_a_dot_has_the_bits_of_rounded_products_in_the_documented_order(layout, dtype):
    prefix = prefix_of(layout)
    a, b = tree_of(prefix, dtype), tree_of(prefix, dtype, seed=1)
    products = {name: times(np.asarray(a[name]), np.asarray(b[name])) for name in a}
    assert same_bits(dot(a, b, prefix), by_oracle(prefix, products))


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_dots_that_are_added_side_by_side_have_the_bits_of_each(layout, dtype):
    prefix = prefix_of(layout)
    a, b = tree_of(prefix, dtype), tree_of(prefix, dtype, seed=1)
    pairs = [(a, a), (a, b), (b, b)]
    assert same_bits(dots(pairs, prefix), [dot(*pair, prefix) for pair in pairs])


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_a_sum_has_the_bits_of_the_documented_order(layout, dtype):
    prefix = prefix_of(layout)
    tree = tree_of(prefix, dtype)
    assert same_bits(total(tree, prefix), by_oracle(prefix, tree))


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS[:2], DTYPES))
def test_a_norm_is_the_root_of_the_exact_sum_of_squares(layout, dtype):
    prefix = prefix_of(layout)
    tree = tree_of(prefix, dtype)
    entries = [
        np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(take(prefix, tree, at))])
        for at in range(len(SIZES))
    ]
    expected = [math.sqrt(math.fsum(float(x) ** 2 for x in of_one)) for of_one in entries]
    # Half an ulp for each of the levels of the tree, of the products and of the root.
    np.testing.assert_allclose(norm(tree, prefix), expected, 4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_a_maximum_is_the_largest_entry_of_all_leaves(layout):
    prefix = prefix_of(layout)
    tree = tree_of(prefix, np.float32)
    expected = [
        max(leaf.max(initial=-np.inf) for leaf in jax.tree.leaves(take(prefix, tree, at)))
        for at in range(len(SIZES))
    ]
    assert np.array_equal(largest(tree, prefix), expected)


@pytest.mark.parametrize("layout", LAYOUTS[::2], ids=str)
def test_scaling_multiplies_the_rows_of_each_system_by_its_factor(layout):
    prefix = prefix_of(layout)
    tree = tree_of(prefix, np.float32)
    factors = jnp.asarray([0.3, 2.0, -1.7, 1.0, 0.0], np.float32)
    got = scale(tree, factors, prefix)
    for at, factor in enumerate(np.asarray(factors)):
        expected = jax.tree.map(lambda x, f=factor: times(x, f), take(prefix, tree, at))
        assert same_bits(take(prefix, got, at), expected)


def test_a_number_scales_all_systems():
    prefix = prefix_of(LAYOUTS[0])
    tree = tree_of(prefix, np.float32)
    assert same_bits(scale(tree, 0.5, prefix), scale(tree, jnp.full(5, 0.5), prefix))


@pytest.mark.parametrize("layout", LAYOUTS[1::2], ids=str)
def test_selecting_takes_the_rows_of_masked_systems_and_no_others(layout):
    prefix = prefix_of(layout)
    a, b = tree_of(prefix, np.float32), tree_of(prefix, np.float32, seed=1)
    mask = np.array([True, True, False, False, True])
    got = where(mask, a, b, prefix)
    for at, is_masked in enumerate(mask):
        assert same_bits(take(prefix, got, at), take(prefix, (b, a)[int(is_masked)], at))


@pytest.mark.parametrize("name", ["scale", "where"])
def test_rows_outside_of_blocks_of_systems_come_back_as_they_are(name):
    index = SystemIndex.from_ids([-1, 0, -1, 1, -1])
    tree = jnp.asarray([7.0, 1.0, jnp.nan, 2.0, jnp.inf])
    changed = {
        "scale": scale(tree, jnp.array([3.0, 5.0]), index),
        "where": where(np.array([True, True]), -tree, tree, index),
    }[name]
    assert np.array_equal(changed[::2], tree[::2], equal_nan=True)


@pytest.mark.parametrize("reduce", [total, norm, largest], ids=["sum", "norm", "max"])
def test_in_global_mode_a_tree_is_one_system(reduce):
    tree = {"a": jnp.arange(7.0).reshape(7, 1), "b": jnp.asarray(3.0), "c": jnp.ones((2, 2))}
    prefix = {name: SystemIndex.from_sizes([n]) for name, n in (("a", 7), ("b", 1), ("c", 2))}
    rows = tree | {"b": jnp.asarray([3.0])}
    assert same_bits(reduce(tree), reduce(rows, prefix))


def test_a_global_dot_is_that_of_one_system():
    index = SystemIndex.from_sizes([3000])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3000, 3)), np.float32)
    assert same_bits(dot(x, x), dot(x, x, index))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_leaves_of_low_precision_are_reduced_in_float32(dtype):
    index = SystemIndex.from_sizes([300])
    ones = jnp.ones((300, 3), dtype)
    assert total(ones, index).dtype == np.float32
    assert dot(ones, ones, index)[0] == 900


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, *DTYPES])
def test_scaling_keeps_the_dtype(dtype):
    index = SystemIndex.from_sizes([2])
    scaled = scale(jnp.ones((2, 3), dtype), jnp.asarray([0.5], np.float32), index)
    assert scaled.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_longest_row_is_the_largest_norm_along_the_last_axis(dtype):
    prefix = prefix_of(ALIGNED)
    tree = tree_of(prefix, dtype)
    expected = [
        max(
            np.linalg.norm(rows.reshape(-1, rows.shape[-1] if rows.ndim > 1 else 1), axis=1).max(
                initial=0.0
            )
            for rows in jax.tree.leaves(take(prefix, tree, at))
        )
        for at in range(len(SIZES))
    ]
    # Nine squares and a root, each half an ulp.
    np.testing.assert_allclose(longest_row(tree, prefix), expected, 4 * np.finfo(dtype).eps)


DOT_WITH_ITSELF = lambda tree, index: dot(tree, tree, index)  # noqa: E731
NOTHING = {
    "sum": (total, 0.0),
    "norm": (norm, 0.0),
    "dot": (DOT_WITH_ITSELF, 0.0),
    "longest_row": (longest_row, 0.0),
    "max": (largest, -np.inf),
}


@pytest.mark.parametrize(("reduce", "value"), NOTHING.values(), ids=list(NOTHING))
@pytest.mark.parametrize("align", [1, 8])
def test_a_system_without_rows_reduces_to_a_designed_value(reduce, value, align):
    index = SystemIndex.from_sizes([0, 3, 0], align=align)
    tree = place(index, [np.ones((n, 2)) for n in (0, 3, 0)], np.float64)
    assert same_bits(np.asarray(reduce(tree, index))[[0, 2]], np.full(2, value))


@pytest.mark.parametrize(("reduce", "value"), NOTHING.values(), ids=list(NOTHING))
def test_no_system_reduces_to_nothing(reduce, value):
    assert reduce(jnp.zeros((0, 3)), SystemIndex.from_sizes([])).shape == (0,)
