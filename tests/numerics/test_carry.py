"""A state can be carried through a loop, and every array in it leads with rows or systems."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import apply_updates
from cases import (
    ALL_KINDS,
    CELLS,
    CONTIGUOUS,
    DTYPES,
    SHUFFLED_WITH_GAPS,
    TRANSFORMS,
    in_turns,
    is_index,
    make_batch,
    make_systems,
    take_state,
)
from cover import one_in

SIZES = (13, 1, 40, 13)


def fresh(case, dtype, layout=CONTIGUOUS):
    batch = make_batch(CELLS, make_systems(CELLS, *SIZES), layout, dtype)
    transform = case.make(batch.numbers)
    return batch, transform, transform.init(batch.params, batch.prefix)


@functools.cache
def shapes(case, dtype):
    """Of a step and of the state that comes with it."""
    batch, transform, state = fresh(case, dtype)
    return jax.eval_shape(transform.update, batch.params, state, batch.params)


def signature(tree):
    leaves = jax.tree.leaves(tree)
    return jax.tree.structure(tree), [(x.shape, x.dtype, x.weak_type) for x in leaves]


@pytest.mark.parametrize("case", TRANSFORMS)
def test_a_donated_state_leaves_index_parameters_and_settings_as_they_are(case):
    batch, transform, state = fresh(case, np.float64)
    given, kept = (
        {buffer_of(x) for x in jax.tree.leaves(tree) if eqx.is_array(x) and x.size}
        for tree in ((batch.prefix, batch.params, transform), state)
    )
    assert not given & kept


def buffer_of(x):
    return jnp.asarray(x).unsafe_buffer_pointer()


# The carry of a scan below is in single precision for each.
@pytest.mark.parametrize(("case", "dtype"), in_turns(TRANSFORMS, DTYPES))
def test_update_returns_a_state_like_its_own(case, dtype):
    state = fresh(case, dtype)[2]
    before = jax.eval_shape(lambda state: state, state)
    assert signature(shapes(case, dtype)[1]) == signature(before)


@pytest.mark.parametrize(("case", "dtype"), in_turns(TRANSFORMS, DTYPES))
def test_update_returns_steps_like_the_gradient(case, dtype):
    params = fresh(case, dtype)[0].params
    given = jax.eval_shape(lambda params: params, params)
    assert signature(shapes(case, dtype)[0]) == signature(given)


@pytest.mark.parametrize("case", one_in(2, ALL_KINDS))
def test_a_state_is_the_carry_of_a_scan_in_the_strictest_sense(case):
    batch, transform, state = fresh(case, np.float32, SHUFFLED_WITH_GAPS)

    def turn(carry, _):
        params, state = carry
        gradient = batch.evaluate(params)[1]
        step, state = transform.update(gradient, state, params)
        return (apply_updates(params, step), state), None

    carried = jax.eval_shape(lambda c: jax.lax.scan(turn, c, length=2)[0], (batch.params, state))
    assert jax.tree.structure(carried[1]) == jax.tree.structure(state)


@pytest.mark.parametrize("case", TRANSFORMS, ids=str)
def test_every_field_of_a_state_says_what_it_leads_with(case):
    state = fresh(case, np.float32)[2]
    assert list(undeclared(state)) == []


def undeclared(state):
    for field in dataclasses.fields(state):
        kind = field.metadata.get("leads_with")
        if kind == "states":
            for inner in getattr(state, field.name):
                yield from undeclared(inner)
        elif kind is None and field.name != "index_prefix":
            yield f"{type(state).__name__}.{field.name}"


@pytest.mark.parametrize("case", TRANSFORMS, ids=str)
def test_the_parts_of_systems_are_the_whole_state(case):
    """Each entry of a state belongs to one system: none is shared, and none is a bare scalar."""
    state = fresh(case, np.float32)[2]
    entries = sum(
        np.size(leaf)
        for leaf in jax.tree.leaves(
            jax.tree.map(lambda x: None if is_index(x) else x, state, is_leaf=is_index)
        )
    )
    of_systems = sum(
        np.size(leaf) for at in range(len(SIZES)) for leaf in jax.tree.leaves(take_state(state, at))
    )
    assert of_systems == entries


@pytest.mark.parametrize("case", TRANSFORMS, ids=str)
def test_a_state_holds_each_index_once(case):
    batch, _, state = fresh(case, np.float32)
    count = lambda tree: sum(map(is_index, jax.tree.leaves(tree, is_leaf=is_index)))  # noqa: E731
    assert count(state) == count(batch.prefix)


@pytest.mark.parametrize(("case", "dtype"), one_in(3, in_turns(TRANSFORMS, DTYPES)))
def test_extra_keywords_are_ignored(case, dtype):
    batch, transform, state = fresh(case, dtype)
    energies = jnp.zeros(len(SIZES), dtype)

    def with_extra(updates, state, params):
        return transform.update(updates, state, params, energies=energies, of_no_use=7)

    assert jax.eval_shape(with_extra, batch.params, state, batch.params) == shapes(case, dtype)
