"""What cannot be clipped or relaxed is refused by `init`, which names the leaf and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import basinax
from basinax import FIRE, MaxStepSize, SystemIndex, chain, clip_by_layer_norm, clip_by_norm
from cases import TRANSFORMS
from cover import one_in

INDEX = SystemIndex.from_sizes([2, 1])
ROWS = np.ones((3, 3))
INITS = {str(case): case.make(np.arange(2)).init for case in TRANSFORMS} | {
    "BFGS": basinax.BFGS().init,
    "BFGSLineSearch": basinax.BFGSLineSearch().init,
    "LBFGSLineSearch": basinax.LBFGSLineSearch().init,
    "ConjugateGradient": basinax.ConjugateGradient().init,
    "fixed rate": basinax.GradientDescent().init,
    "optax by name": chain(basinax.optax_transform("adam", learning_rate=0.1)).init,
    "optax": chain(optax.sgd(0.1)).init,
}


def relaxed(params, prefix=None):
    return basinax.relax(lambda x: (jnp.zeros(2), x), params, MaxStepSize(0.1), index_prefix=prefix)


TAKERS = INITS | {
    "relax": relaxed,
    "reset": lambda tree, prefix=None: basinax.reset(
        FIRE(), FIRE().init(ROWS, INDEX), tree, np.array([True, False])
    ),
    "clip_by_norm": lambda tree, prefix=None: clip_by_norm(tree, 1.0, prefix),
    "clip_by_layer_norm": lambda tree, prefix=None: clip_by_layer_norm(tree, 1.0, prefix),
    "observe": lambda tree, prefix=None: basinax.observe(
        MaxStepSize(0.1), tree, MaxStepSize(0.1).init(ROWS)
    ),
    "segment.norm": basinax.segment.norm,
    "segment.sum": basinax.segment.sum,
    "segment.longest_row": basinax.segment.longest_row,
}

# A leaf, and what is said of it.
LEAVES = {
    "integers": (ROWS.astype(int), "got int64: convert it with .astype(float), or take it out"),
    "booleans": (ROWS > 0, "got bool: convert it with .astype(float), or take it out"),
    "complex numbers": (ROWS * 1j, "got complex128: give its real and imaginary part as two"),
    "an integer": (3, "got int64: convert it"),
    "a text": ("1.0", "got str: take it out of the tree"),
    "texts": (np.array(["a"]), "got ndarray: take it out of the tree"),
    "an object": (object(), "got object: take it out of the tree"),
    "objects": (np.array([None]), "got ndarray: take it out of the tree"),
    "random keys": (jax.random.key(0), "got PRNGKeyArray: take it out of the tree"),
    "an index": (INDEX, "got SystemIndex: take it out of the tree"),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_leaf_that_is_no_floating_point_is_named(taker):
    for leaf, words in LEAVES.values():
        with pytest.raises(TypeError) as error:
            TAKERS[taker]({"a": ROWS, "b": (ROWS, leaf)})
        assert f"leaf ['b'][1] must hold floating-point numbers, {words}" in str(error.value)


# A tree and its prefix, and what is said of them.
MISFITS = {
    "a branch too few": ({"a": ROWS, "b": ROWS}, {"a": INDEX}, "must be a tree prefix"),
    "a branch too many": ({"a": ROWS}, {"a": INDEX, "b": INDEX}, "must be a tree prefix"),
    "deeper than the tree": (ROWS, {"a": INDEX}, "must be a tree prefix"),
    "other rows": ({"a": ROWS, "b": ROWS[:2]}, INDEX, r"leaf ['b'] has shape (2, 3)"),
    "a scalar": ({"a": ROWS, "b": 1.0}, INDEX, "leaf ['b'] has shape ()"),
    "other systems": (
        {"a": ROWS, "b": ROWS},
        {"a": INDEX, "b": SystemIndex.from_sizes([1, 1, 1])},
        "all must have the same systems",
    ),
    "sizes": (ROWS, [2, 1], "leaves of index_prefix must be SystemIndex, got int"),
    "a class": (ROWS, SystemIndex, "got the class SystemIndex: make one with"),
}


@pytest.mark.parametrize("init", [*INITS, "relax"])
def test_a_prefix_that_does_not_fit_is_refused_by_init(init):
    for params, prefix, words in MISFITS.values():
        with pytest.raises((TypeError, ValueError)) as error:
            TAKERS[init](params, prefix)
        assert words in str(error.value)


def test_none_is_no_leaf():
    state = FIRE().init({"a": ROWS, "b": None}, INDEX)
    assert jax.tree.structure(state.velocities) == jax.tree.structure({"a": 0, "b": None})


# --- states that do not fit

OWNERS = {
    "FIRE": basinax.FIRE(),
    "FIRE2": basinax.FIRE2(),
    "MDMin": basinax.MDMin(),
    "Adam": basinax.Adam(),
    "LBFGS": basinax.LBFGS(),
    "BFGS": basinax.BFGS(),
    "LBFGSLineSearch": basinax.LBFGSLineSearch(),
    "GradientDescent": basinax.GradientDescent(),
    "GradientDescent, fitted": basinax.GradientDescent(barzilai_borwein=True),
    "Chain": chain(optax.sgd(0.1)),
    "OptaxTransform": basinax.optax_transform("adam", learning_rate=0.1),
}


@pytest.mark.parametrize("name", OWNERS)
def test_the_state_of_another_optimizer_is_refused(name):
    last = "GradientDescent, fitted" if name != "GradientDescent, fitted" else "FIRE"
    others = [OWNERS["MDMin" if name == "FIRE" else "FIRE"], OWNERS[last]]
    for other in others:
        state = other.init(ROWS, INDEX)
        with pytest.raises(TypeError, match=r"State that its init makes, got a .*State"):
            OWNERS[name].update(ROWS, state, ROWS, energies=jnp.zeros(2))


def test_the_state_of_a_longer_or_shorter_chain_is_refused():
    short, long = chain(basinax.FIRE()), chain(basinax.FIRE(), basinax.MaxStepSize(0.1))
    for owner, other in ((short, long), (long, short)):
        with pytest.raises(ValueError, match=r"Chain has . transforms, and its state is one of ."):
            owner.update(ROWS, other.init(ROWS, INDEX), ROWS)
        with pytest.raises(ValueError, match=r"Chain has . transforms, and its state is one of ."):
            basinax.observe(owner, ROWS, other.init(ROWS, INDEX), ROWS)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (chain(basinax.FIRE()), ValueError, "chain of 2 transforms has no state of 1"),
        (basinax.FIRE(), TypeError, "two states of one optimizer, got a ChainState and a FIREStat"),
        (chain(basinax.MaxStepSize(0.1), basinax.FIRE()), TypeError, "a FIREState and a LimitStat"),
    ],
)
def test_a_state_of_another_optimizer_is_not_reset(other, error, message):
    owner, mask = chain(basinax.FIRE(), basinax.MaxStepSize(0.1)), jnp.zeros(2, bool)
    with pytest.raises(error, match=message):
        basinax.reset(owner, other.init(ROWS, INDEX), ROWS, mask)


@pytest.mark.parametrize("name", one_in(3, [name for name in OWNERS if "Optax" not in name]))
def test_a_state_of_numpy_arrays_takes_the_same_step(name):
    """As from `jax.device_get`, or from a file."""
    transform, energies = OWNERS[name], {"energies": jnp.zeros(2)}
    state = transform.update(ROWS, transform.init(ROWS, INDEX), ROWS, **energies)[1]
    expected = transform.update(ROWS, state, ROWS, **energies)[0]
    got = transform.update(ROWS, jax.device_get(state), ROWS, **energies)[0]
    np.testing.assert_array_equal(got, expected)
