"""Functions done again with sums in order: the values of the original, and no bit by padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax._rewriting import with_ordered_sums

DRAW = np.random.default_rng(0)
A, B, C = (jnp.asarray(DRAW.normal(size=shape)) for shape in ((5, 8, 3), (5, 3, 4), (8, 7)))

FUNCTIONS = {
    "sum of all": lambda a, b, c: jnp.sum(a),
    "sums over axes": lambda a, b, c: jnp.sum(a * a, axis=(0, 2)),
    "batches of matrices": lambda a, b, c: a @ b,
    "two axes at once": lambda a, b, c: jnp.einsum("ikc,kx,icy->iyx", a, c, b),
    "an outer product": lambda a, b, c: jnp.einsum("ikc,xy->kxicy", a, c),
    "of a gradient": lambda a, b, c: jax.grad(lambda a: jnp.sum(jnp.tanh(a @ b) ** 2))(a),
    "of a jitted one": lambda a, b, c: jax.jit(lambda a: jnp.linalg.norm(a, axis=1))(a),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_the_original(name):
    function = FUNCTIONS[name]
    got, expected = jax.jit(with_ordered_sums(function))(A, B, C), function(A, B, C)
    assert got.shape == expected.shape
    # Some ten terms of size 1, added in another order.
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [1, 5, 8, 100])
def test_zeros_behind_change_no_bit_of_a_sum(n):
    x = jnp.asarray(DRAW.normal(size=(37, 9)))
    padded = jnp.concatenate([x, jnp.zeros((n, 9))])
    total = jax.jit(with_ordered_sums(lambda x: jnp.sum(x**3, axis=0)))
    np.testing.assert_array_equal(total(padded), total(x))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("cumsum", jnp.cumsum),
        ("reduce_prod", jnp.prod),
        ("scatter-add", lambda x: x.at[jnp.array([0, 0])].add(x[:2])),
        ("scan", lambda x: jax.lax.scan(lambda s, y: (s + y, None), 0.0, x)[0]),
    ],
)
def test_what_adds_in_an_order_of_its_own_is_refused(name, function):
    with pytest.raises(TypeError, match=f"^{name} adds in an order that depends on shapes"):
        with_ordered_sums(function)(A[0, :, 0])
