"""Leaves of one index are computed together, with the bits of each alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import SystemIndex, clip_by_norm, segment
from cases import DTYPES
from cover import exhaustive

SIZES = [1, 3, 0, 9, 20]
WIDTHS = [(), (1,), (3,), (8,), (9,), (4, 8), (4, 8), (33,), (100,), (2, 64)]


def tree(dtype, sizes=SIZES, align=1):
    """Ten leaves of normal, tiny and huge numbers."""
    draw, index = np.random.default_rng(0), SystemIndex.from_sizes(sizes, align=align)
    sizes_of_numbers = np.array([1.0, 1e-30, 1e30])[np.asarray(index.ids) % 3]
    leaves = [draw.normal(size=(index.n_rows, *width)) for width in WIDTHS]
    scaled = [x * sizes_of_numbers.reshape(-1, *[1] * (x.ndim - 1)) for x in leaves]
    return [jnp.asarray(x.astype(dtype)) for x in scaled], index


def results(leaves, index):
    clipped = clip_by_norm(leaves, 0.5, index)
    return segment.sum(leaves, index), segment.norm(leaves, index), clipped


computed = jax.jit(results)


@pytest.mark.parametrize("align", [8, exhaustive(1)])
@pytest.mark.parametrize("dtype", [DTYPES[0], *map(exhaustive, [DTYPES[1], jnp.bfloat16])])
def test_leaves_that_share_an_index_have_the_bits_of_leaves_that_do_not(dtype, align):
    leaves, index = tree(dtype, align=align)
    of_each = [SystemIndex.from_sizes(SIZES, align=align) for _ in leaves]
    together, apart = computed(leaves, index), computed(leaves, of_each)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.exhaustive
def test_leaves_of_two_dtypes_may_share_an_index():
    leaves, index = tree(np.float64)
    leaves = [x.astype(jnp.float32 if k % 2 else jnp.float64) for k, x in enumerate(leaves)]
    of_each = [SystemIndex.from_sizes(SIZES) for _ in leaves]
    together, apart = computed(leaves, index), computed(leaves, of_each)
    assert [x.dtype for x in together[2].tree] == [x.dtype for x in leaves]
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_systems_of_many_leaves_have_the_bits_of_a_run_alone(dtype):
    leaves, index = tree(dtype)
    leaves = [x.at[4].set(jnp.nan) for x in leaves]  # in the fourth system
    together = computed(leaves, index)
    begin = 0
    for k, size in enumerate(SIZES):
        own = [x[begin : begin + size] for x in leaves]
        total, norm, clipped = computed(own, SystemIndex.from_sizes([size]))
        np.testing.assert_array_equal(total[0], together[0][k])
        np.testing.assert_array_equal(norm[0], together[1][k])
        for a, b in zip(clipped.tree, together[2].tree, strict=True):
            np.testing.assert_array_equal(a, b[begin : begin + size])
        begin += size


def test_the_program_of_a_clip_hardly_grows_with_the_number_of_leaves():
    index = SystemIndex.from_sizes([1] * 6)

    def lines(n_leaves):
        leaves = [jnp.ones((6, 32, 4))] * n_leaves
        text = jax.jit(lambda x: clip_by_norm(x, 1.0, index)).lower(leaves).as_text()
        return len(text.splitlines())

    assert lines(8) < 1.3 * lines(1)
