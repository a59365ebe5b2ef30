"""Models that do not keep a system's bits are found, and the systems named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    Finding,
    GradientDescent,
    SystemIndex,
    rounded,
    segment,
    verify,
)

INDEX = SystemIndex.from_sizes([3, 20, 7])
START = jnp.asarray(np.random.default_rng(0).normal(size=(30, 3)))


def by_segments(x, index):
    """Sums in an order that the whole batch decides."""
    n = index.n_systems

    def energies(x):
        of_rows = (jnp.cos(x) * x + x * x).sum(1)
        total = jax.ops.segment_sum(of_rows, index.ids, n)
        return total + 1e-3 * jnp.sum(of_rows) * jnp.ones(n)

    found, pull_back = jax.vjp(energies, x)
    return found, pull_back(jnp.ones(n))[0]


def bowl(x, index):
    return rounded(0.5 * segment.dot(x, x, index)), x


def with_a_leak(x, index):
    """Others pull at the system of seven rows."""
    energies, gradient = bowl(x, index)
    is_pulled = (index.sizes[index.ids] == 7) & (index.n_systems > 1)
    return energies, gradient + jnp.where(is_pulled[:, None], 1e-9, 0.0)


def checked(model, **options):
    return verify(model, START, INDEX, GradientDescent(np.array([0.1, 0.2, 0.1])), **options)


def test_a_model_that_keeps_the_bits_passes():
    """One of `each_alone` passes every day in the example of `verify`."""
    found = checked(bowl, steps=5)
    assert found.is_kept and found.differing == [] and found.compared == [0, 1, 2]
    assert [finding.n_compared for finding in found.findings] == [3] * 8
    assert found.left_open == []
    assert repr(found).startswith("all 3 systems compared have the bits that they have alone\n")


def test_a_sum_over_the_batch_is_found():
    found = checked(by_segments, steps=1, most=2)
    assert found.differing == found.compared and len(found.compared) == 2
    assert all(isinstance(finding, Finding) for finding in found.findings)
    assert f"2 of 2 systems compared differ: {found.differing[0]}, " in repr(found)
    rules = {finding.rule for finding in found.left_open}
    assert rules >= {"product in a sum", "sum over an axis", "scatter that adds"}
    assert f"{__file__}:" in str(found.left_open[0]) in repr(found)


def test_the_system_that_differs_is_named():
    found = checked(with_a_leak, steps=1)
    assert found.differing == [2]
    together = found.findings[0]
    assert together.name == "together, first evaluation" and together.n_wrong == 1
    assert together.largest == pytest.approx(1e-9, rel=1e-3)


def test_one_system_says_nothing():
    with pytest.raises(ValueError, match="at least two systems"):
        verify(bowl, START[:3], SystemIndex.from_sizes([3]), GradientDescent(0.1))


def test_extras_are_compared_too():
    def model(x, index):
        norms = jnp.full(index.n_systems, jnp.sqrt(jnp.sum(x * x)))
        return *bowl(x, index), {"norm of all": norms}

    assert checked(model, steps=1, has_extras=True).differing == [0, 1, 2]
