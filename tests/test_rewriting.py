"""Functions done again: the values of the original.

With sums in order no bit depends on padding; with products rounded, none on what is compiled.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from basinax import product
from basinax._rewriting import with_ordered_sums, with_rounded_products

DRAW = np.random.default_rng(0)
A, B, C = (jnp.asarray(DRAW.normal(size=shape)) for shape in ((5, 8, 3), (5, 3, 4), (8, 7)))

FUNCTIONS = {
    "sum of all": lambda a, b, c: jnp.sum(a),
    "sums over axes": lambda a, b, c: jnp.sum(a * a, axis=(0, 2)),
    "batches of matrices": lambda a, b, c: a @ b,
    "two axes at once": lambda a, b, c: jnp.einsum("ikc,kx,icy->iyx", a, c, b),
    "an outer product": lambda a, b, c: jnp.einsum("ikc,xy->kxicy", a, c),
    "of a gradient": lambda a, b, c: jax.grad(lambda a: jnp.sum(jnp.tanh(a @ b) ** 2))(a),
    "of a product": lambda a, b, c: jnp.sum(product(a, a), axis=0),
    "of one that is kept for its derivative": lambda a, b, c: jax.checkpoint(jnp.sum)(a),
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


def polynomial(x):
    return 0.7 * x + 0.1 * x * x


# Each is given one row, of which the first entry is positive or negative.
CALLS = {
    "a function with a derivative of its own": lambda x: product(x, x) + 0.7 * x,
    "another": jax.nn.softplus,
    "a jitted function": jax.jit(polynomial),
    "what is found again for a derivative": jax.checkpoint(polynomial),
    "its derivative": jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: polynomial(y) * y)(x))),
    "a scan": lambda x: lax.scan(lambda s, y: (polynomial(s) + y, s), x[0], x, reverse=True),
    "a loop": lambda x: lax.fori_loop(0, 4, lambda _, y: polynomial(y), x),
    "a loop that rows leave": lambda x: lax.while_loop(lambda y: y[0] > 0.3, polynomial, x),
    "a choice": lambda x: lax.cond(x[0] > 0, polynomial, lambda y: y * y + y, x),
    "a choice for all rows": lambda x: lax.switch(jnp.arange(3)[1], [jnp.sin, polynomial], x),
    "a linear equation": lambda x: lax.custom_linear_solve(
        lambda y: 2.1 * y, x, lambda _, y: polynomial(y) / 2.1
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_products_are_rounded_in_functions_of_a_function(name):
    function = jax.vmap(CALLS[name])
    # Far below 3, from where the polynomial leads to infinity and no loop ends. Many in a row: exp
    # has other bits in loops that are not vectorised, as those over a few (JAX 0.12).
    x = jnp.asarray(DRAW.uniform(-0.5, 0.5, size=(24, 128)))
    got = jax.jit(with_rounded_products(function))(x)
    with jax.disable_jit():
        expected = with_rounded_products(function)(x)
    for values, one_by_one, original in zip(
        *map(jax.tree.leaves, (got, expected, function(x))), strict=True
    ):
        np.testing.assert_array_equal(values, one_by_one)
        # Some roundings of numbers of size 1, of which the scan adds up a few.
        np.testing.assert_allclose(values, original, rtol=1e-13, atol=1e-14)
