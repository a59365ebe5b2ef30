"""`check_order` finds what its table says, at the line of the caller, and nothing beside."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jax_core

from basinax import check_order, exact, product, rounded
from basinax.numerics.order_rules import RULES, UNKNOWN
from basinax.numerics.rounding import add_components, rounded_clamped, scaled, scaling_top
from basinax.numerics.switches import usual_promotion
from xla import jit_as_users

X = jnp.arange(24.0).reshape(8, 3)
C = jnp.array([3.0, 5.0, 7.0])
unheard_of = jax_core.Primitive("unheard_of")
unheard_of.def_abstract_eval(lambda x: x)


# Each row: functions that must be found, and neighbours that must not.
TABLE = {
    "product in a sum": (
        [
            lambda x, y: x * y + 1.0,
            lambda x, y: y - x * x,
            lambda x, y: x**3 + y,
            lambda x, y: x / 3.0 + y,
            lambda x, y: -(x * y)[::-1].reshape(-1)[:3] + C,
            lambda x, y: jnp.where(x > y, x * y, 0.0) + 1.0,  # the constant moves inside
            lambda x, y: jnp.where(x > y, x * y, x * x) + y,
            lambda x, y: jnp.where((x > y)[:, :1], x * y, 0.0) + y,  # one mask for many entries
            lambda x, y: jnp.where(x > y, x * y, 0.0) + jnp.where(x > y, y, 0.0),
            lambda x, y: lax.optimization_barrier(x * y) + y,
            lambda x, y: jax.jit(lambda x: x * y)(x) + y,
            lambda x, y: jax.checkpoint(lambda x: x * y)(x) + y,
            lambda x, y: jax.nn.silu(x) + y,
            lambda x, y: lax.cond(x[0, 0] > 0, lambda: x * y, lambda: x) + y,
            lambda x, y: lax.fori_loop(0, 3, lambda _, c: (c[0] * y, c[0] + y), (x, y))[1],
            lambda x, y: lax.scan(lambda c, x: (x * x, c + x), x[0], y)[1],
            lambda x, y: lax.while_loop(lambda c: jnp.all(c + c * c < y), lambda c: c + x, x),
            lambda x, y: jax.vmap(lambda x, y: jnp.stack([x[0] * y[0], y[1]])[0] + y[2])(x, y),
            lambda x, y: jax.grad(lambda x: rounded(x * x * x)[0, 0])(x),
            lambda x, y: exact(x * y, "not the sum") * 3.0 + y,
            lambda x, y: jnp.abs(x * x) + jnp.abs(y**4),  # the simplifier drops what does nothing
            lambda x, y: jnp.maximum(x * y, -jnp.inf) + y,
            lambda x, y: jnp.clip(x * y, -jnp.inf, jnp.inf) + y,
            lambda x, y: jnp.minimum(x * y, x * y) + y,
            lambda x, y: lax.clamp(-np.inf, x * y, np.inf) + y,
            lambda x, y: jnp.where(x * x < 0.0, 0.0, x * x) + y,
            lambda x, y: jnp.where(np.ones(x.shape, bool), x * y, 0.0) + y,
            lambda x, y: jnp.max((x * y)[..., None], axis=-1) + y,
            lambda x, y: jnp.prod((x * y)[None], axis=0) + y,
            lambda x, y: jnp.sort((x * y)[None], axis=0)[0] + y,
            lambda x, y: lax.cummax((x * y)[None], axis=0)[0] + y,
            lambda x, y: lax.top_k((x * y)[..., None], 1)[0][..., 0] + y,
            lambda x, y: jnp.where(jnp.arange(x.size).reshape(x.shape) < x.size, x * y, 0.0) + y,
        ],
        [
            lambda x, y: rounded(x * y) + 1.0,
            lambda x, y: rounded_clamped(x * y) - rounded_clamped(y * y),
            lambda x, y: scaled(x, y, scaling_top(y)) + 1.0,
            lambda x, y: 0.5 * x + y * -4.0,
            lambda x, y: x / 4.0 + x / y,
            lambda x, y: (x > y).astype(x.dtype) * x + jnp.sign(x) * y,
            lambda x, y: jnp.where(x > y, x * y, 0.0) + y,
            lambda x, y: jnp.maximum(x * y, 0.0) + jnp.abs(x * y) + jnp.floor(x * y),
            lambda x, y: jnp.clip(x * y, -jnp.inf, 5.0) + jnp.where(x * x > 1.0, x * x, y),
            lambda x, y: exact(x * y, reason="for this test") + y,
            lambda x, y: jax.grad(lambda x: product(x, y)[0, 0])(x) + y,
            lambda x, y: (x * y) * x,
            lambda x, y: x.astype(int) * y.astype(int) + 1,
        ],
    ),
    "sum over an axis": (
        [
            lambda x, y: x.sum(),
            lambda x, y: x.mean(0),
            lambda x, y: jnp.prod(x),
            lambda x, y: jnp.cumsum(x, axis=1),
            lambda x, y: jnp.linalg.norm(rounded(x * y)),
            lambda x, y: lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "valid"),
            lambda x, y: lax.reduce(x, np.float64(0), lambda a, b: a + b + 1.0, (0,)),
        ],
        [
            lambda x, y: x[:1].sum(0) + jnp.cumsum(x[:1], axis=0),
            lambda x, y: [x.max(), x.min(0), jnp.argmax(x), (x > y).any(), (x > y).all()],
            lambda x, y: [jnp.sum(x > y), x.astype(int).sum()],
            lambda x, y: lax.reduce(x, -np.inf, lax.max, (0,)),
            lambda x, y: lax.reduce_window(x, -np.inf, lax.max, (2, 1), (1, 1), "valid"),
            lambda x, y: add_components(x),
            lambda x, y: exact((x > y).astype(x.dtype).sum(), reason="whole numbers"),
        ],
    ),
    "matrix product": (
        [lambda x, y: x @ y.T, lambda x, y: jnp.einsum("ij,ij->i", x, y)],
        [lambda x, y: x[:, :1] @ y[:1]],
    ),
    "scatter that adds": (
        [
            lambda x, y: x.at[jnp.array([0, 0])].add(1.0),
            lambda x, y: jax.ops.segment_sum(x, jnp.arange(8) % 2, 2),
            lambda x, y: x.at[jnp.array([0, 0])].mul(2.0),
            lambda x, y: jax.grad(lambda x: product(x[jnp.array([1, 1])], y[:2])[0, 0])(x),
        ],
        [
            lambda x, y: x.at[jnp.array([0, 1])].add(1.0, unique_indices=True),
            lambda x, y: x.at[3].add(y[0]),
            lambda x, y: x.at[jnp.array([0, 0])].max(y[:2]),
        ],
    ),
    "sort that is not stable": (
        [lambda x, y: lax.sort((x, y), is_stable=False, num_keys=1)],
        [lambda x, y: [jnp.sort(x), jnp.argsort(x), lax.sort((x, y), num_keys=1)]],
    ),
    "library function": (
        [
            lambda x, y: jnp.linalg.eigvalsh(x[:3]),
            lambda x, y: jnp.fft.fft(x),
            lambda x, y: jnp.convolve(x[0], y[0]),
        ],
        [lambda x, y: [x[0, 0] * y[0, 0] * x[1, 1], jnp.diagonal(x)]],
    ),
    "elementary function": (
        [
            lambda x, y: jnp.exp(x),
            lambda x, y: jnp.tanh(x[0]),
            lambda x, y: lax.erf(x[:, 0]),
            lambda x, y: jax.nn.sigmoid(x),
        ],
        [lambda x, y: [jnp.exp(x[:, 0]), jnp.log(x.reshape(-1)), jnp.sin(x), jnp.cos(y), x**y]],
    ),
    "division by one number": (
        [
            lambda x, y: x / y[0, 0],
            lambda x, y: x / jnp.where(y[0, 0] > 0, y[0, 0], 1.0),
            # One number for a system of one row, with which XLA computes before it spreads it.
            lambda x, y: x / rounded(1.3 * jnp.broadcast_to(y[:, :1], x.shape)),
            lambda x, y: x / jnp.abs(jnp.broadcast_to(y[:, :1], x.shape)),
            lambda x, y: x / rounded(jnp.full_like(x, 1.3) * y[:, :1]),
            lambda x, y: x / jnp.maximum(jnp.broadcast_to(y[:, :1], x.shape), 1.0),
            lambda x, y: x / jnp.where(y[:, :1] > 1, jnp.broadcast_to(y[:, :1], x.shape), 1.0),
            lambda x, y: x / jnp.tile(y[:, :1], (1, x.shape[1])),
        ],
        [
            lambda x, y: [x * rounded(1.0 / y[0, 0]), x[0, 0] / y[0, 0], x / 3.0, x / y[:, :1]],
            lambda x, y: x / jnp.broadcast_to(rounded(1.3 * y[:, :1]), x.shape),
            lambda x, y: x / jnp.where(x > 5, 1.0, y[:, :1]),
            lambda x, y: x / rounded(jnp.linspace(1.0, 1.3, x.shape[1]) * y[:, :1]),
            lambda x, y: x / rounded(1.3 * y[jnp.array([0, 0, 1, 2, 3, 4, 5, 6])]),
        ],
    ),
    "complex product": ([lambda x, y: (x + 1j) * (y + 2j)], [lambda x, y: lax.complex(x, y) + 1j]),
    "quotient, root or power that is taken apart": (
        [
            lambda x, y: x / jnp.sqrt(y),
            lambda x, y: (x / y) / x,
            lambda x, y: x / (y / x),
            lambda x, y: jnp.sqrt(x) ** 2,
            lambda x, y: jnp.exp(x[:, 0]) * jnp.exp(y[:, 0]),
            lambda x, y: jnp.log(jnp.exp(x[:, 0])),
        ],
        [
            lambda x, y: [x / rounded(jnp.sqrt(y)), rounded(x / y) / x, x / rounded(y / x)],
            lambda x, y: [rounded(jnp.sqrt(x)) ** 2, jnp.sqrt(x) * jnp.sqrt(y), jnp.sqrt(x) / y],
            lambda x, y: jnp.exp(x[:, 0]) * y[:, 0] + (x[:, 0] > 0),
            lambda x, y: (x / y) / 2.0,
        ],
    ),
    "two constants": (
        [
            lambda x, y: (x * 3.1) * 7.1,
            lambda x, y: (x / 3.1) * C,
            lambda x, y: (x + 3.1) - 7.1,
            lambda x, y: 2.0 - (x - 7.1),
        ],
        [
            lambda x, y: [(x * 3.1) * 2.0, (x * 3.1) * y, rounded(x * 3.1) * 7.1, (x + 0.0) + 1.0],
            lambda x, y: [(x + 3.1) - y, rounded(x + 3.1) - 7.1, (x + 3.1) * 7.1],
        ],
    ),
    "constant exponent": (
        [lambda x, y: lax.pow(x, 1.5), lambda x, y: jnp.arctan2(x, jnp.ones_like(x))],
        [lambda x, y: [x**y, jnp.arctan2(x, y), x * x, jnp.sqrt(x)]],
    ),
    "unknown operation": (
        [lambda x, y: unheard_of.bind(x)],
        [lambda x, y: unheard_of.bind(x.astype(int)).astype(x.dtype)],
    ),
}


def found(function):
    with usual_promotion():
        return {finding.rule for finding in check_order(function, X, X + 1.0).findings}


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_finds_its_operations_and_not_their_neighbours(name):
    broken, kept = TABLE[name]
    assert [k for k, function in enumerate(broken) if name not in found(function)] == []
    assert [k for k, function in enumerate(kept) if name in found(function)] == []


def test_every_rule_is_in_the_table():
    assert list(TABLE) == [rule.name for rule in (*RULES, UNKNOWN)]
    assert len(TABLE) == len(set(TABLE))


def test_a_finding_names_the_line_of_the_caller():
    def function(x):
        y = x * x
        return jnp.linalg.norm(y + 1.0)  # line 2

    first = function.__code__.co_firstlineno
    for _ in range(2):  # the second time, JAX has kept its own part of the program
        found_at = [finding.source for finding in check_order(function, X).findings]
        assert found_at == [f"{__file__}:{first + 2}"] * 3
    elsewhere = check_order(lambda x: jnp.linalg.norm(x), X).findings
    assert [Path(finding.source).name for finding in elsewhere[1:]] == [
        f"test_order.py:{first + 8}"
    ]


def test_the_printed_check_says_what_where_why_and_what_to_write():
    check = check_order(lambda x: jnp.sqrt(x) / jnp.sqrt(x) + x.sum(), X)
    lines = str(check).splitlines()
    assert lines[-1] == "2 findings, of which 1 change no bit between batches"
    assert check.in_batches == check.findings[1:]
    assert f"{__file__}:" in lines[1]
    assert "sum over an axis (reduce_sum): XLA chooses the order" in lines[1]
    assert lines[1].endswith("Remedy: use segment.sum, segment.dot or segment.norm over rows.")
    assert str(check_order(rounded, X)) == "no rounding and no order is left to the compiler"


def test_shapes_are_enough_and_nothing_is_compiled(count_compilations):
    shape = jax.ShapeDtypeStruct((8, 3), np.float32)
    with count_compilations() as counted:
        assert check_order(lambda x: rounded(x * x) - x, shape).findings == ()
        assert len(check_order(lambda x: x * x - x, shape).findings) == 1
    assert counted.count == 0


def test_a_mark_of_exactness_leaves_no_trace_in_the_program():
    def marked(x):
        return exact(x * 3.0, reason="for this test")

    assert "exact" not in jax.jit(marked).lower(X).as_text().replace("jit_marked", "")
    np.testing.assert_array_equal(
        jax.grad(lambda x: marked(x).max())(X), jnp.where(X.max() == X, 3.0, 0.0)
    )
    np.testing.assert_array_equal(jax.vmap(marked)(X), 3.0 * X)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_found_differs_and_what_is_not_found_does_not(dtype):
    """Masks of rows and constants move into selections; masks of entries do not."""
    draw = np.random.default_rng(0)
    x, y = (jnp.asarray(draw.normal(size=(500, 2)), dtype) for _ in range(2))

    def same(function):
        with jax.disable_jit():
            expected = function(x, y)
        return np.array_equal(jit_as_users(function)(x, y), expected)

    broken, kept = TABLE["product in a sum"]
    for function in (broken[5], broken[6], broken[7], broken[8]):
        assert not same(function)
    for function in kept[:8]:
        assert same(function)
