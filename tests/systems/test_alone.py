"""Models of one system, called for each of a batch by itself, keep its bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import GradientDescent, SystemIndex, each_alone, relax
from cases import DTYPES
from cover import exhaustive
from xla import jit_as_users

SIZES = (5, 1, 0, 13, 6, 16)
"""Of four shapes, of which two have two systems."""
DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.normal(size=(3, 20))
STARTS = [DRAW.normal(size=(n, 3)) for n in SIZES]
ORDER = (3, 0, 5, 1, 4)


def energy(x, is_row):
    """A small net over all pairs of a system: nothing is rounded, and no sum in order."""
    d = x[:, None] - x[None]
    hidden = jnp.tanh((d * d) @ WEIGHTS.astype(x.dtype)).sum(-1) * jnp.exp(-(d * d).sum(-1))
    pairs = is_row[:, None] & is_row[None]
    return jnp.where(pairs, hidden, 0.0).sum() + jnp.where(is_row[:, None], x * x, 0.0).sum()


MODEL = each_alone(energy)


@functools.cache
def found(systems, dtype, *, spoiled=False):
    """The end of a short run of each system.

    Args:
        spoiled: the first system begins at NaN.
    """
    index = SystemIndex.from_sizes([SIZES[k] for k in systems])
    rows = np.concatenate([STARTS[k] for k in systems])
    if spoiled:
        rows[0] = np.nan
    start = jnp.asarray(rows, dtype)

    def ended(start):
        model = lambda x: MODEL(x, index)  # noqa: E731
        descent = GradientDescent(0.1)
        return relax(model, start, descent, index_prefix=index, fmax=1e-2, max_steps=60)

    run = jit_as_users(ended)(start)
    whole = run.energies, run.steps, run.evaluations, run.status
    of_rows = run.params, run.gradients
    return [
        [np.asarray(x)[at] for x in whole]
        + [np.asarray(x)[np.asarray(index.ids) == at] for x in of_rows]
        for at in range(len(systems))
    ]


@pytest.mark.parametrize(
    ("dtype", "orders"),
    [
        pytest.param(np.float32, [], id="float32"),
        *(exhaustive(dtype, [ORDER], id=f"{dtype.__name__}, reordered") for dtype in DTYPES),
    ],
)
def test_each_system_has_the_bits_that_it_has_alone(dtype, orders):
    everyone = (5, *range(len(SIZES)))
    broken, *together = found(everyone, dtype, spoiled=True)
    assert np.isnan(broken[0])
    batches = [together, *(dict(zip(order, found(order, dtype), strict=True)) for order in orders)]
    differing = []
    for k in (1, 3):
        (alone,) = found((k,), dtype)
        differing += [k for some in batches if not all(map(np.array_equal, alone, some[k]))]
    assert differing == []
    assert min(together[3][1], together[0][1]) > 5


jit_of_energy = jax.jit(jax.value_and_grad(energy))


def test_energies_and_gradients_are_those_of_the_function():
    index = SystemIndex.from_sizes(SIZES)
    energies, gradient = jax.jit(lambda x: MODEL(x, index))(jnp.concatenate(STARTS))
    for k in (0, 2, 3):
        plain = jit_of_energy(jnp.asarray(STARTS[k]), jnp.ones(SIZES[k], bool))
        np.testing.assert_allclose(energies[k], plain[0], rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(gradient[index.ids == k], plain[1], rtol=1e-12, atol=1e-13)


PARTS = {"x": SystemIndex.from_ids([1, -1, 0, 1, 1]), "cell": SystemIndex.from_sizes([1, 1])}
POINTS = SystemIndex.from_sizes([3, 4])


def of_parts(params, is_row, data, is_point):
    weights, offset = data["weights"], data["offset"]
    x = jnp.where(is_row["x"], params["x"], 0.0).sum()
    cell = jnp.where(is_row["cell"][:, None, None], params["cell"], 0.0).sum()
    return jnp.where(is_point, weights * (x * cell + offset) ** 2, 0.0).sum()


def test_leaves_have_indices_of_their_own_and_so_have_data():
    params = {"x": jnp.arange(5.0), "cell": jnp.arange(8.0).reshape(2, 2, 2)}
    data = {"weights": jnp.arange(7.0), "offset": jnp.ones(7)}
    model = jax.jit(lambda params, data: each_alone(of_parts)(params, PARTS, data, POINTS))
    energies, gradient = model(params, data)
    # x adds up to 2 and 0 + 3 + 4, cells to 6 and 22; weights to 3 and 18.
    np.testing.assert_allclose(energies, [3 * 13**2, 18 * 155**2])
    np.testing.assert_allclose(gradient["x"], [122760, 0, 468, 122760, 122760])
    np.testing.assert_allclose(gradient["cell"][:, 0, 0], [156, 39060])


def test_a_derivative_forwards_is_that_of_the_function():
    index = SystemIndex.from_sizes([5])
    x, v = jnp.asarray(STARTS[0]), jnp.ones((5, 3))
    forwards = jax.jit(lambda f, x, v: jax.jvp(f, (x,), (v,))[1], static_argnums=0)
    got = forwards(lambda x: MODEL(x, index)[1], x, v)
    plain = forwards(lambda x: jax.grad(energy)(x, jnp.ones(5, bool)), x, v)
    np.testing.assert_allclose(got, plain, rtol=1e-11, atol=1e-12)


def test_no_systems_are_no_systems():
    energies, gradient = MODEL(jnp.zeros((0, 3)), SystemIndex.from_sizes([]))
    assert energies.shape == (0,) and gradient.shape == (0, 3)


def test_padding_alone_is_no_system():
    index = SystemIndex.from_ids([-1, -1, -1])
    energies, gradient = each_alone(lambda x, is_row: jnp.where(is_row, x, 0.0).sum())(
        jnp.ones(3), index
    )
    assert energies.shape == (0,) and (gradient == 0).all()


def test_a_system_without_rows_is_one_alone_too():
    energies, gradient = MODEL(jnp.zeros((0, 3)), SystemIndex.from_sizes([0]))
    beside, _ = MODEL(jnp.zeros((2, 3)), SystemIndex.from_sizes([2, 0]))
    assert energies[0] == beside[1] and gradient.shape == (0, 3)


def test_what_does_not_fit_is_named():
    index, x = SystemIndex.from_sizes([2]), jnp.zeros((2, 3))
    with pytest.raises(TypeError, match="must be a SystemIndex"):
        MODEL(x, None)
    with pytest.raises(TypeError, match="known before tracing"):
        jax.jit(MODEL)(x, index)
    with pytest.raises(ValueError, match="1 systems, the data 2"):
        each_alone(of_parts)(x, index, x, SystemIndex.from_sizes([1, 1]))
    with pytest.raises(TypeError, match="energy must be a function"):
        each_alone(3.0)
    for energy in (lambda x, is_row: x[:, 0], lambda x, is_row: (x.sum(), x)):
        with pytest.raises(TypeError, match="energy must return one number, got shape"):
            each_alone(energy)(jnp.ones((3, 2)), SystemIndex.from_sizes([1, 2]))
