"""Derivatives of minima by the numbers of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import FIRE, GradientDescent, SystemIndex, relax, rounded, segment
from cover import exhaustive

INDEX = SystemIndex.from_sizes([3, 1, 4])
CENTRES = np.random.default_rng(0).normal(size=(8, 2))
START = np.random.default_rng(1).normal(size=(8, 2))


def bowl(stiffness, shift):
    """Rows in quartic bowls, in a field that pulls them off the bottom."""

    def value_and_gradient(x):
        d = x - CENTRES - shift
        squares = rounded(d * d)
        terms = rounded(stiffness * squares) + rounded(squares * squares) + rounded(0.3 * d)
        gradient = rounded(stiffness * d) + rounded(2.0 * squares * d) + 0.15
        return 0.5 * segment.sum(terms, INDEX), gradient

    return value_and_gradient


@jax.jit
def measured(stiffness, shift):
    """A number that depends on where the minimum is, and on its energy."""
    model = bowl(stiffness, shift)
    descent = GradientDescent(0.02)
    result = relax(model, START, descent, index_prefix=INDEX, fmax=1e-10, max_steps=5000)
    return (result.params**3).sum() + result.energies[0] * 2.0


POINT = (1.7, 0.4)


@pytest.fixture(scope="module")
def slopes():
    """The value and its derivatives by stiffness and shift, in one program."""
    return jax.jit(jax.value_and_grad(measured, (0, 1)))(*POINT)


@pytest.mark.parametrize("argument", [0, 1])
def test_a_derivative_is_that_of_differences(slopes, argument):
    ends, h = [], 1e-5
    for sign in (-1, 1):
        moved = list(POINT)
        moved[argument] += sign * h
        ends.append(float(measured(*moved)))
    assert float(slopes[1][argument]) == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-6)


def test_the_minimum_itself_keeps_its_bits(slopes):
    assert slopes[0] == measured(*POINT)


def test_a_derivative_forward_is_that_in_reverse(slopes):
    _, forward = jax.jvp(measured, POINT, (0.5, 2.0))
    expected = 0.5 * slopes[1][0] + 2.0 * slopes[1][1]
    assert float(forward) == pytest.approx(float(expected), rel=1e-8)


def test_the_start_has_no_part_in_the_minimum():
    def end(start):
        model, descent = bowl(*POINT), GradientDescent(0.02)
        return relax(model, start, descent, index_prefix=INDEX, fmax=1e-4).params.sum()

    assert (jax.grad(end)(jnp.asarray(START)) == 0).all()


@pytest.mark.parametrize("name", ["dt", exhaustive("fmax")])
def test_the_way_to_it_has_no_part_in_the_minimum(name):
    def end(value):
        model = bowl(POINT[0] + 0 * value, POINT[1])
        optimizer = FIRE(dt=value) if name == "dt" else FIRE()
        fmax = value if name == "fmax" else 1e-2
        return relax(model, START, optimizer, index_prefix=INDEX, fmax=fmax).params.sum()

    assert jax.grad(end)(0.02) == 0
    assert jax.jvp(end, (0.02,), (1.0,))[1] == 0


def test_a_function_of_traced_numbers_leaks_none():
    def end(shift):
        return relax(bowl(POINT[0], shift), START, GradientDescent(0.02), index_prefix=INDEX).params

    with jax.checking_leaks():
        found = jax.jit(end)(POINT[1])
    assert np.array_equal(found, end(POINT[1]))


def test_a_system_of_many_coordinates_is_solved():
    """A chain of springs hangs on an anchor, so all of it moves with the anchor."""

    def end(anchor):
        def chain(x):
            stretches = jnp.diff(x[:, 0], prepend=anchor)
            gradient = stretches - jnp.append(stretches[1:], 0.0)
            return 0.5 * segment.sum(rounded(stretches * stretches)), gradient[:, None]

        return relax(chain, jnp.ones((600, 1)), GradientDescent(0.1), fmax=1e-8).params[-1, 0]

    assert float(jax.grad(end)(1.0)) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("stiffness", [1e-4, 1.0, 1e30])
def test_a_soft_minimum_moves_far(stiffness):
    def end(force):
        def spring(x):
            pull = rounded(stiffness * x)
            return 0.5 * segment.sum(rounded(pull * x)) - segment.sum(force * x), pull - force

        return relax(spring, jnp.zeros((1, 1)), GradientDescent(0.1), fmax=1e-8).params[0, 0]

    assert float(jax.grad(end)(0.0)) == pytest.approx(1 / stiffness)


def test_the_minimum_moves_in_second_derivatives_too():
    """A force stretches springs: x = 1/k and E = -1/(2k), and a dipole of 3x goes with it."""
    index = SystemIndex.from_sizes([1, 1])

    def ends(stiffness):
        def springs(x):
            pull = rounded(stiffness * x)
            energies = segment.sum(0.5 * rounded(pull * x) - x, index)
            extras = {"dipole": rounded(3.0 * x[:, 0]), "count": jnp.ones(2, int)}
            return energies, pull - 1.0, extras

        start = jnp.zeros((2, 1))
        descent = GradientDescent(0.3)
        result = relax(springs, start, descent, index_prefix=index, fmax=1e-12, has_extras=True)
        return jnp.stack([result.params[0, 0], result.energies[0], result.extras["dipole"][0]])

    first, second = jax.jvp(jax.jacfwd(ends), (2.0,), (1.0,))
    np.testing.assert_allclose(first, [-1 / 4, 1 / 8, -3 / 4], rtol=1e-9)
    np.testing.assert_allclose(second, [1 / 4, -1 / 8, 3 / 4], rtol=1e-9)


def test_what_is_not_solved_is_nan_in_its_system_alone():
    index = SystemIndex.from_sizes([1, 1], n_rows=3)
    signs = jnp.asarray([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])

    def ends(shift):
        def bowl_and_saddle(x):
            d = x - shift
            return 0.5 * segment.sum(rounded(signs * rounded(d * d)), index), signs * d

        start = jnp.ones((3, 2))
        return relax(bowl_and_saddle, start, GradientDescent(0.1), index_prefix=index).params

    _, slopes = jax.jvp(ends, (1.0,), (1.0,))
    np.testing.assert_allclose(slopes[0], 1.0)
    assert np.isnan(slopes[1]).all()
    assert (slopes[2] == 0).all()  # a row of no system
