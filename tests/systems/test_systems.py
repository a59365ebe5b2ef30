"""The index of rows, and sums over systems in the documented order, bit for bit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from basinax import GradientDescent, SystemIndex, relax, segment
from cases import DTYPES, LAYOUTS, in_turns, rows_of, same_bits
from oracle import tree_sum

# Around the ends of blocks, of blocks of blocks, and beyond.
SIZES = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 77, 127, 511, 512, 513, 0, 3000, 1]
COMPONENTS = [(), (1,), (2,), (3,), (3, 3), (8,), (9,), (2, 0)]


@eqx.filter_jit
def summed(index, rows):
    return index.sum(rows)


@eqx.filter_jit
def maximum(index, rows):
    return index.max(rows)


def filled(index, shape, dtype, seed=0):
    """Values of very different magnitude, so that another order has other bits; NaN in padding."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(index.n_rows, *shape)) * 10.0 ** draw.integers(
        -4, 5, (index.n_rows, *shape)
    )
    rows[np.asarray(index.ids) == len(index)] = np.nan
    return rows.astype(dtype)


def by_oracle(index, rows):
    return np.array([tree_sum(rows[rows_of(index, at)]) for at in range(len(index))], rows.dtype)


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS, DTYPES))
def test_sums_have_the_bits_of_the_documented_order(layout, dtype):
    index = layout.index(SIZES)
    rows = filled(index, (3,), dtype)
    assert same_bits(summed(index, jnp.asarray(rows)), by_oracle(index, rows))


@pytest.mark.parametrize(("shape", "layout"), in_turns(COMPONENTS, LAYOUTS[:2]))
def test_sums_over_any_components_have_the_documented_order(shape, layout):
    index = layout.index([13, 0, 1, 77])
    rows = filled(index, shape, np.float32)
    assert same_bits(summed(index, jnp.asarray(rows)), by_oracle(index, rows))


# Of every number of levels; in batches there are more sizes.
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 65, 77, 512, 513, 3000])
def test_a_sum_of_one_system_has_the_documented_order(size):
    index = SystemIndex.from_sizes([size])
    rows = filled(index, (3,), np.float64, seed=size)
    assert same_bits(summed(index, jnp.asarray(rows)), by_oracle(index, rows))


def test_another_order_has_other_bits():
    """What the comparisons above can see: NumPy's own order differs in most systems."""
    index = SystemIndex.from_sizes(SIZES)
    rows = filled(index, (3,), np.float32)
    plain = np.array([rows[rows_of(index, at)].sum() for at in range(len(index))])
    assert (plain != by_oracle(index, rows)).sum() > 10


def test_signs_of_zeros_do_not_depend_on_what_ran_before():
    """JAX keeps programs of gathers by the number that fills, where -0.0 equals 0.0."""
    index, rows = SystemIndex.from_sizes([3, 0]), jnp.full((3,), -0.0)
    rows.at[index._block_rows].get(mode="fill", fill_value=0.0, wrap_negative_indices=False)
    assert np.signbit(segment.sum(rows, index)).tolist() == [True, False]


@pytest.mark.parametrize(("layout", "dtype"), in_turns(LAYOUTS, DTYPES))
def test_maxima_are_those_of_numpy(layout, dtype):
    index = layout.index(SIZES)
    rows = filled(index, (3,), dtype)
    expected = [rows[rows_of(index, at)].max(initial=-np.inf) for at in range(len(index))]
    assert same_bits(maximum(index, jnp.asarray(rows)), np.array(expected, dtype))


def test_a_maximum_over_nan_is_nan_in_its_own_system_alone():
    index = SystemIndex.from_sizes([2, 3])
    assert np.array_equal(maximum(index, jnp.array([1.0, jnp.nan, 1, 3, 2])), [np.nan, 3], True)


N_ROWS, N_SYSTEMS = 96, 5
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 1.1754944e-38, 3.4e38, -3.4e38]
floats = st.one_of(st.sampled_from(SPECIAL), st.floats(width=32))
rows_of_floats = st.lists(floats, min_size=N_ROWS, max_size=N_ROWS)
ids = st.lists(st.integers(-1, N_SYSTEMS - 1), min_size=N_ROWS, max_size=N_ROWS)
sizes = st.lists(st.integers(0, 16), min_size=N_SYSTEMS, max_size=N_SYSTEMS)


@given(ids, rows_of_floats)
@example([0] + [-1] * (N_ROWS - 1), [-0.0] * N_ROWS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_sums_of_any_rows_in_any_order_are_those_of_the_oracle(ids, rows):
    index = SystemIndex.from_ids(ids, N_SYSTEMS)
    rows = np.array(rows, np.float32)
    assert same_bits(summed(index, jnp.asarray(rows)), by_oracle(index, rows))


@given(sizes, rows_of_floats)
@example([16] * N_SYSTEMS, [-0.0] * N_ROWS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_aligned_path_and_the_general_path_have_the_same_bits(sizes, rows):
    rows = np.array(rows, np.float32)
    aligned = SystemIndex.from_sizes(sizes, align=8, n_rows=N_ROWS)
    general = SystemIndex.from_ids(
        np.where(aligned.has_system(), np.asarray(aligned.ids), -1), N_SYSTEMS
    )
    assert (aligned.is_aligned, general.is_aligned) == (True, False)
    results = [
        jax.device_get((summed(index, jnp.asarray(rows)), maximum(index, jnp.asarray(rows))))
        for index in (aligned, general)
    ]
    assert same_bits(*results)


@given(st.lists(floats, min_size=1, max_size=40), st.integers(0, 20))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_rows_of_another_system_before_it_change_no_bit(rows, before):
    rows = np.array(rows, np.float32)
    alone = padded_sum(np.zeros(0, np.float32), rows)
    assert same_bits(padded_sum(np.full(before, 1e30, np.float32), rows), alone)


def padded_sum(before, rows):
    ids = np.full(64, -1)
    ids[: len(before)] = 0
    ids[len(before) : len(before) + len(rows)] = 1
    values = np.full(64, np.nan, np.float32)
    values[: len(before) + len(rows)] = np.concatenate([before, rows])
    return np.asarray(summed(SystemIndex.from_ids(ids, 2), jnp.asarray(values)))[1]


# --- what an index says of itself


def test_sizes_lie_one_after_another():
    index = SystemIndex.from_sizes([2, 0, 3])
    assert index.ids.tolist() == [0, 0, 2, 2, 2]
    assert index.sizes.tolist() == [2, 0, 3]
    assert (len(index), index.n_systems, index.n_rows) == (3, 3, 5)


@pytest.mark.parametrize(("align", "n_rows"), [(1, 14), (3, 15), (4, 20), (8, 24), (16, 32)])
def test_aligned_systems_start_on_multiples_and_padding_belongs_to_none(align, n_rows):
    sizes = [5, 0, 9]
    index = SystemIndex.from_sizes(sizes, align=align)
    starts = [rows_of(index, at)[0] for at in (0, 2)]
    assert index.n_rows == n_rows
    assert [start % align for start in starts] == [0, 0]
    assert np.bincount(index.ids, minlength=4).tolist() == [*sizes, n_rows - 14]


@pytest.mark.parametrize("align", [1, 8])
def test_rows_beyond_the_last_system_are_padding(align):
    index = SystemIndex.from_sizes([5, 3], align=align, n_rows=40)
    assert index.n_rows == 40
    assert int(index.has_system().sum()) == 8


@pytest.mark.parametrize("align", [1, 8])
def test_padding_is_chosen_from_the_second_tree_and_stays_in_place(align):
    """Also what fills up the last eight rows of a system."""
    index = SystemIndex.from_sizes([2, 9], align=align, n_rows=32)
    is_own, one = np.asarray(index.has_system()), np.ones((32, 3))
    everyone, tree = jnp.ones(2, bool), {"rows": jnp.asarray(one), "numbers": jnp.ones(32)}
    chosen = segment.where(everyone, tree, jax.tree.map(jnp.zeros_like, tree), index)
    assert np.array_equal(chosen["rows"][:, 0], is_own)
    assert np.array_equal(chosen["numbers"], is_own)

    def end(target):
        def bowl(x):
            return 0.5 * segment.dot(x - target, x - target, index), x - target

        return relax(
            bowl, jnp.asarray(one), GradientDescent(1.0), index_prefix=index, fmax=1e-9
        ).params

    np.testing.assert_allclose(end(jnp.asarray(3 * one)), np.where(is_own, 3.0, 1.0)[:, None] * one)
    slopes = jax.grad(lambda target: end(target).sum())(jnp.asarray(3 * one))
    np.testing.assert_allclose(slopes, is_own[:, None] * one, atol=1e-9)


def test_ids_may_stand_in_any_order_and_mark_padding_by_minus_one_or_their_number():
    for absent in (-1, 3):
        index = SystemIndex.from_ids([2, absent, 0, 2, absent], 3)
        assert index.ids.tolist() == [2, 3, 0, 2, 3]
        assert index.sizes.tolist() == [1, 0, 2]


def test_the_number_of_systems_is_the_largest_id_plus_one_by_default():
    assert SystemIndex.from_ids([0, 4, -1]).n_systems == 5


EMPTY = {
    "sizes": lambda: SystemIndex.from_sizes([]),
    "ids": lambda: SystemIndex.from_ids([]),
    "aligned": lambda: SystemIndex.from_sizes([], align=8),
    "an array of sizes": lambda: SystemIndex.from_sizes(np.zeros(0, np.int32), n_rows=0),
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=list(EMPTY))
def test_an_index_of_no_systems_sums_to_nothing(make):
    index = make()
    assert (len(index), index.n_rows) == (0, 0)
    assert index.sum(jnp.zeros((0, 3))).shape == (0,)


def test_rows_of_no_system_sum_to_nothing():
    index = SystemIndex.from_ids([-1, -1], 2)
    assert index.sum(jnp.array([1.0, 2.0])).tolist() == [0, 0]


@pytest.mark.parametrize("kind", [list, np.array, jnp.asarray, tuple])
def test_sizes_may_be_any_sequence_of_integers(kind):
    assert SystemIndex.from_sizes(kind([2, 1])).ids.tolist() == [0, 0, 1]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_index_may_be_an_argument_of_a_jitted_function(layout):
    index = layout.index([3, 9])
    back = jax.jit(lambda index: index)(index)
    assert same_bits(back, index)
    assert len(back) == 2


OF_ONE_SHAPE = {
    "contiguous": SystemIndex.from_sizes,
    "aligned": lambda sizes: SystemIndex.from_sizes(sizes, align=8, n_rows=88),
    "any order": lambda sizes: SystemIndex.from_ids(np.repeat(np.arange(4), sizes)),
}


@pytest.mark.parametrize("make", OF_ONE_SHAPE.values(), ids=list(OF_ONE_SHAPE))
def test_indices_of_one_shape_have_one_program(make):
    """Whatever the composition, if the largest systems have as many levels of blocks."""
    one, other = make([13, 1, 40, 13]), make([25, 25, 9, 8])
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.map(jnp.shape, one) == jax.tree.map(jnp.shape, other)


@pytest.mark.parametrize(
    ("size", "most"), [(0, 8), (8, 8), (9, 64), (64, 64), (65, 512), (513, 4096)]
)
@pytest.mark.parametrize("align", [1, 8])
def test_the_shapes_of_an_index_bound_its_systems(size, most, align):
    assert SystemIndex.from_sizes([size, 1], align=align).most_rows == most
