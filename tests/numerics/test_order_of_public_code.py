"""What `check_order` finds in code that people write, as the table in docs/bits.md says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import basinax
from basinax import SystemIndex, check_order

PAGE = Path(__file__).parents[2] / "docs" / "bits.md"
X = jnp.ones((5, 3))
SOME = jnp.asarray(np.random.default_rng(0).uniform(0, 4, (5, 3)))
FROM, TO = np.nonzero(~np.eye(5, dtype=bool))
ARGUMENTS: dict[str, tuple[Any, ...]] = {"zero_nans": (), "normalize_by_update_norm": ()}


def rules(function: Callable[..., Any], *arguments: Any) -> set[str]:
    with jax.numpy_dtype_promotion("standard"):
        return {x.rule for x in check_order(function, *arguments).findings if x.in_batches}


def rules_of_optax(name: str) -> set[str]:
    transformation = getattr(optax, name)(*ARGUMENTS.get(name, (0.1,)))
    state = transformation.init(X)

    def step(gradient, state, params):
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return rules(step, X, state, X)


def test_the_table_of_optax_is_true():
    rows = re.findall(r"^\| optax: (.*?) \| (.*?) \|$", PAGE.read_text(), flags=re.M)
    table = {name: said for names, said in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(table) > 25
    for name, said in table.items():
        found = rules_of_optax(name)
        if said.startswith("nothing"):
            assert not found, name
        else:
            always = set(said.partition(", for most ")[0].split(", "))
            every = set(said.replace("for most ", "").split(", "))
            assert always <= found <= every, (name, found)


def scattered(positions):
    vectors = positions[TO] - positions[FROM]
    r2 = jnp.sum(vectors**2, axis=1)
    s6 = (3.4**2 / r2) ** 3
    pulls = -24.0 * 0.0104 * (2.0 * s6**2 - s6) / r2
    return jnp.zeros_like(positions).at[FROM].add(pulls[:, None] * vectors)


def summed(positions):
    def energy(positions):
        r = jnp.linalg.norm(positions[TO] - positions[FROM], axis=1)
        energies = 4.0 * 0.0104 * ((3.4 / r) ** 12 - (3.4 / r) ** 6)
        return jnp.sum(jax.ops.segment_sum(energies, FROM, 5))

    return -jax.grad(energy)(positions)


def layers(x):
    a, b = jnp.full((3, 8), 0.1), jnp.full((8, 1), 0.1)
    return jnp.tanh(x @ a) @ b


@pytest.mark.parametrize(
    ("function", "row"),
    [
        (scattered, "Lennard-Jones forces of pairs"),
        (summed, "energies of pairs by"),
        (layers, "a network of two layers"),
    ],
)
def test_the_table_of_formulas_is_true(function, row):
    said = re.search(rf"^\| {row}.* \| (.*?) \|$", PAGE.read_text(), flags=re.M)
    assert said is not None
    assert rules(function, SOME) == set(said[1].split(", "))


def test_a_chain_by_rows_does_optax_again():
    transform = basinax.chain(optax.adam(0.1))
    state = transform.init(X, SystemIndex.from_sizes([2, 3]))
    assert not rules(lambda g, s, p: transform.update(g, s, p), X, state, X)
