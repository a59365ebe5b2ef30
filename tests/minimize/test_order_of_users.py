"""A warning names what a user's function or transform leaves to the compiler, by file and line."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

from basinax import (
    FIRE,
    GradientDescent,
    OrderWarning,
    SystemIndex,
    chain,
    each_alone,
    relax,
    rounded,
    segment,
)
from basinax.optimizers.limits.max_step_size import StepsLimited
from basinax.optimizers.limits.protocol import AbstractLimit

INDEX, X = SystemIndex.from_sizes([2, 3]), jnp.arange(15.0).reshape(5, 3)


def kept(x):
    """A product that is returned, not added, is rounded by the loop."""
    return rounded(0.3 * segment.dot(x, x, INDEX)), 0.6 * x


def broken(x):
    return segment.sum(0.3 * x * x, INDEX), 0.6 * x  # line 1


def relaxed(function, optimizer=None, index=INDEX, **how):
    optimizer = GradientDescent(0.5) if optimizer is None else optimizer
    return relax(function, X, optimizer, index_prefix=index, max_steps=2, **how)


def warned(function, *args, **how):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        relaxed(function, *args, **how)
    return said


def test_a_function_is_told_once_where_its_bits_may_depend_on_the_batch():
    line = broken.__code__.co_firstlineno + 1
    (said,) = warned(broken)
    assert said.category is OrderWarning
    assert (said.filename, said.lineno) == (__file__, line)
    text = str(said.message)
    assert f"\n{__file__}:{line}: product in a sum (add): a compiler may round" in text
    assert "Remedy: write rounded(a * b) + c" in text
    assert warned(broken) == []


def test_a_strict_run_raises():
    with pytest.raises(ValueError, match=r"test_order_of_users.py:\d+: product in a sum"):
        relaxed(broken, strict=True)
    relaxed(kept, strict=True)


def test_one_system_has_no_batch_to_depend_on():
    def function(x):
        return jnp.sum(0.3 * x * x)[None], 0.6 * x

    relaxed(function, index=None, strict=True)


def test_what_runs_alone_may_leave_everything_to_the_compiler():
    model = each_alone(lambda x, is_row: jnp.where(is_row[:, None], jnp.cosh(x), 0.0).sum())
    relaxed(lambda x: model(x, INDEX), strict=True)


def test_many_findings_are_counted():
    def function(x):
        y = x + 0.3 * x
        y = jnp.exp(y) / y[0, 0]
        y = jnp.linalg.norm(y @ y.T) + y
        return jnp.cumsum(y)[:2], x

    (said,) = warned(function)
    assert str(said.message).count("Remedy") == 5
    assert str(said.message).endswith(" more")


class Shrunk(AbstractLimit):
    """A limit of a user, with a naked product."""

    def limit(self, updates, index_prefix=None):
        shorter = jax.tree.map(lambda x: x - 0.1 * x, updates)
        return StepsLimited(shorter, jnp.zeros(2), jnp.ones(2, bool))


def test_a_transform_of_a_user_is_told_too():
    with pytest.raises(ValueError, match=r"test_order_of_users.py:\d+: product in a sum \(sub\)"):
        relaxed(kept, chain(Shrunk(), FIRE()), strict=True)


def test_a_transformation_of_optax_is_done_again_in_rounded_products():
    relaxed(kept, chain(optax.adamw(0.1), optax.trace(0.9)), strict=True)
