"""Each documented error, and that its text names what is wrong and what to do."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    AbstractCriterion,
    AbstractLimit,
    AbstractState,
    BFGSLineSearch,
    ClipByGlobalNorm,
    GradientDescent,
    LBFGSLineSearch,
    MaxForce,
    MaxStepSize,
    RMSForce,
    SystemIndex,
    apply_updates,
    chain,
    clip_by_norm,
    relax,
    segment,
    where_systems,
)

INDEX = SystemIndex.from_sizes([2, 1])
ROWS = jnp.ones((3, 3))


def raised(call) -> str:
    """The kind and the text of what is raised."""
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    return f"{error.type.__name__}: {error.value}"


def update(transform, updates=ROWS, prefix=INDEX, params=ROWS):
    return transform.update(updates, transform.init(params, prefix), params)


def bowl(x):
    return 0.5 * segment.dot(x, x, INDEX), x


def run(evaluate=bowl, params=ROWS, optimizer=None, prefix=INDEX, **options):
    return relax(evaluate, params, optimizer or FIRE(), index_prefix=prefix, **options)


class Hasty(AbstractCriterion):
    found: Callable = eqx.field(static=True, default=lambda fmax: (fmax < 0.05).all())

    def __call__(self, evidence):
        return self.found(evidence.fmax)


class Returning(GradientDescent):
    """Descent whose `update` returns something else."""

    what: Callable = eqx.field(static=True, kw_only=True)

    def update(self, updates, state, params=None, **extra):
        return self.what(*super().update(updates, state, params, **extra))


class Starting(GradientDescent):
    """Descent whose state is a dictionary."""

    def init(self, parameters, index_prefix=None):
        return {}


class Bare(AbstractLimit):
    def limit(self, updates, index_prefix=None):
        return updates


# What is done, and the words that the error must have.
OF_INDICES = {
    "a negative size": (lambda: SystemIndex.from_sizes([2, -1]), ["ValueError", "system 1", "-1"]),
    "sizes that are no integers": (
        lambda: SystemIndex.from_sizes([2.0, 1.0]),
        ["TypeError", "sizes must be integers", "float64"],
    ),
    "sizes that are not flat": (
        lambda: SystemIndex.from_sizes([[2, 1]]),
        ["ValueError", "sizes must have one axis", "(1, 2)"],
    ),
    "traced sizes": (
        lambda: jax.jit(SystemIndex.from_sizes)(jnp.array([2, 1])),
        ["TypeError", "sizes", "outside jit"],
    ),
    "systems that do not fit": (
        lambda: SystemIndex.from_sizes([2, 1], n_rows=2),
        ["ValueError", "add up to 3", "n_rows=2"],
    ),
    "aligned systems that do not fit": (
        lambda: SystemIndex.from_sizes([2, 1], align=8, n_rows=8),
        ["ValueError", "add up to 16", "align=8", "n_rows=8"],
    ),
    "an alignment of zero": (
        lambda: SystemIndex.from_sizes([2], align=0),
        ["ValueError", "align must be a positive", "0"],
    ),
    "an id beyond the number of systems": (
        lambda: SystemIndex.from_ids([0, 5], 2),
        ["ValueError", "n_systems=2", "row 1", "5"],
    ),
    "an id below minus one": (
        lambda: SystemIndex.from_ids([0, -2]),
        ["ValueError", "row 1", "-2"],
    ),
    "a negative number of systems": (
        lambda: SystemIndex.from_ids([-1], -3),
        ["ValueError", "n_systems=-3"],
    ),
    "ids that are no integers": (
        lambda: SystemIndex.from_ids([0.0, 1.0]),
        ["TypeError", "ids must be integers", "float64"],
    ),
    "ids that are not flat": (
        lambda: SystemIndex.from_ids([[0, 1]]),
        ["ValueError", "ids must have one axis", "(1, 2)"],
    ),
    "traced ids": (
        lambda: jax.jit(SystemIndex.from_ids)(jnp.array([0, 1])),
        ["TypeError", "ids", "outside jit"],
    ),
}

OF_PREFIXES = {
    "sizes in place of an index": (
        lambda: run(prefix=[2, 1]),
        ["TypeError", "index_prefix must be SystemIndex", "got int", "from_sizes"],
    ),
    "ids in place of an index": (
        lambda: FIRE().init(ROWS, jnp.array([0, 0, 1])),
        ["TypeError", "index_prefix must be SystemIndex", "from_ids"],
    ),
    "sizes that do not add up": (
        lambda: update(GradientDescent(0.1), prefix=SystemIndex.from_sizes([2, 2])),
        ["ValueError", "(3, 3)", "4 rows", "leading axis"],
    ),
    "a leaf of another number of rows": (
        lambda: segment.sum({"a": ROWS, "cell": jnp.ones((4, 3))}, INDEX),
        ["ValueError", "['cell']", "(4, 3)", "3 rows"],
    ),
    "a scalar leaf with a prefix": (
        lambda: segment.sum({"a": ROWS, "scale": jnp.ones(())}, INDEX),
        ["ValueError", "['scale']", "()", "leading axis"],
    ),
    "a prefix of another structure": (
        lambda: segment.sum({"positions": ROWS}, {"cell": INDEX}),
        ["ValueError", "tree prefix", "positions", "cell"],
    ),
    "a prefix deeper than the tree": (
        lambda: segment.sum(ROWS, {"positions": INDEX}),
        ["ValueError", "tree prefix", "positions"],
    ),
    "a prefix of something else": (
        lambda: segment.sum(ROWS, INDEX.ids),
        ["TypeError", "must be SystemIndex"],
    ),
    "indices of different systems": (
        lambda: segment.sum(
            {"a": ROWS, "b": ROWS}, {"a": INDEX, "b": SystemIndex.from_sizes([1, 1, 1])}
        ),
        ["ValueError", "['b']", "3 systems", "2"],
    ),
    "an empty prefix": (
        lambda: FIRE().init({}, {}),
        ["ValueError", "no SystemIndex", "None for global mode"],
    ),
}

OF_TREES = {
    "trees of different structure": (
        lambda: segment.dot({"a": ROWS}, {"b": ROWS}, INDEX),
        ["ValueError", "same structure", "'a'", "'b'"],
    ),
    "leaves of different shape": (
        lambda: segment.dot({"a": ROWS}, {"a": jnp.ones((3, 2))}, INDEX),
        ["ValueError", "['a']", "(3, 3)", "(3, 2)"],
    ),
    "updates of another structure": (
        lambda: apply_updates({"a": ROWS}, [ROWS]),
        ["ValueError", "same structure"],
    ),
    "updates of another shape": (
        lambda: apply_updates({"a": ROWS}, {"a": jnp.ones(3)}),
        ["ValueError", "['a']", "(3, 3)", "(3,)"],
    ),
    "a gradient unlike the parameters of init": (
        lambda: update(FIRE(), updates=jnp.ones((3, 2))),
        ["ValueError", "same shape", "(3, 3)", "(3, 2)"],
    ),
    "a mask of rows": (
        lambda: segment.where(jnp.ones(3, bool), ROWS, ROWS, INDEX),
        ["ValueError", "mask must have one entry", "2 systems", "(3,)"],
    ),
    "a mask of numbers": (
        lambda: segment.where(jnp.array([0, 1]), ROWS, ROWS, INDEX),
        ["TypeError", "mask must be of booleans", "int64"],
    ),
    "a mask of one of two systems": (
        lambda: where_systems(
            jnp.ones(1, bool), FIRE().init(ROWS, INDEX), FIRE().init(ROWS, INDEX)
        ),
        ["ValueError", "mask must have one entry", "2 systems", "(1,)"],
    ),
    "factors of rows": (
        lambda: segment.scale(ROWS, jnp.ones(3), INDEX),
        ["ValueError", "factors must be a number", "2 systems", "(3,)"],
    ),
    "no limit": (
        lambda: clip_by_norm(ROWS, None, INDEX),
        ["TypeError", "max_norm must be a real number, inf for no limit", "None"],
    ),
    "no limit of a transform": (
        lambda: ClipByGlobalNorm(None),
        ["TypeError", "max_norm must be a real number, inf for no limit", "None"],
    ),
    "complex limits": (
        lambda: clip_by_norm(ROWS, jnp.array([1j, 2j]), INDEX),
        ["TypeError", "max_norm must be a real number", "complex"],
    ),
    "a switch that is a word": (
        lambda: FIRE2(use_abc="maybe"),
        ["TypeError", "use_abc must be True or False", "'maybe'"],
    ),
    "a count that is no integer": (
        lambda: LBFGS(memory=2.5),
        ["TypeError", "memory must be an integer", "2.5"],
    ),
    "rows that are no count": (
        lambda: BFGS(max_rows=True),
        ["TypeError", "max_rows must be an integer", "True"],
    ),
    "no setting": (
        lambda: update(FIRE(maxstep=None)),
        ["TypeError", "maxstep must be a real number", "None"],
    ),
    "limits in global mode": (
        lambda: ClipByGlobalNorm(jnp.ones(2)).limit(ROWS),
        ["ValueError", "max_norm must be a number", "1 systems", "(2,)"],
    ),
    "integer leaves": (
        lambda: segment.sum(jnp.ones((3, 3), int), INDEX),
        ["TypeError", "floating-point", "int64"],
    ),
    "complex leaves": (
        lambda: segment.norm(jnp.ones((3, 3), complex), INDEX),
        ["TypeError", "floating-point", "complex128"],
    ),
}

OF_SETTINGS = {
    f"{name} of the wrong shape": (
        lambda make=make, name=name: update(make(**{name: jnp.ones(5)})),
        ["ValueError", f"{name} must be a number", "2 systems", "(5,)"],
    )
    for make, name in [
        (FIRE, "dt"),
        (FIRE, "maxstep"),
        (FIRE, "Nmin"),
        (FIRE, "finc"),
        (GradientDescent, "learning_rate"),
        (MaxStepSize, "max_step_size"),
        (ClipByGlobalNorm, "max_norm"),
    ]
}

OF_RUNS = {
    "energies of the wrong shape": (
        lambda: run(lambda x: (jnp.zeros(3), x)),
        ["ValueError", "one entry per system", "(2,)", "(3,)"],
    ),
    "a list of energies": (
        lambda: run(lambda x: ([*jnp.zeros(2)], x)),
        ["TypeError", "energies as one array", "got a list"],
    ),
    "one energy for all": (
        lambda: run(lambda x: (jnp.zeros(()), x)),
        ["ValueError", "one entry per system", "(2,)", "()"],
    ),
    "a gradient of another shape": (
        lambda: run(lambda x: (jnp.zeros(2), x[:2])),
        ["ValueError", "same shape", "(3, 3)", "(2, 3)"],
    ),
    "a gradient of another structure": (
        lambda: run(lambda x: (jnp.zeros(2), {"x": x})),
        ["ValueError", "same structure"],
    ),
    "a prefix that does not match": (
        lambda: run(prefix=SystemIndex.from_sizes([2, 2])),
        ["ValueError"],
    ),
    "fmax of the wrong shape": (
        lambda: run(fmax=np.ones(3)),
        ["ValueError", "fmax must be a number", "2 systems", "(3,)"],
    ),
    "max_steps of the wrong shape": (
        lambda: run(max_steps=np.ones(3, int)),
        ["ValueError", "max_steps must be a number", "2 systems", "(3,)"],
    ),
    "a tolerance of the wrong shape": (
        lambda: run(convergence=MaxForce(0.1) & RMSForce(np.ones(3))),
        ["ValueError", "tolerance of RMSForce must be a number", "2 systems", "(3,)"],
    ),
    "fmax beside another criterion": (
        lambda: run(fmax=0.1, convergence=RMSForce(0.1)),
        ["ValueError", "fmax and convergence", "MaxForce(fmax) &"],
    ),
    "a criterion that is a number": (
        lambda: run(convergence=0.05),
        ["TypeError", "convergence must be a criterion", "float"],
    ),
    "a criterion that is a class": (
        lambda: run(convergence=MaxForce),
        ["TypeError", "such as MaxForce(0.05), got the class MaxForce"],
    ),
    "a criterion that looks at all systems at once": (
        lambda: run(convergence=Hasty()),
        ["ValueError", "Hasty must return one bool per system", "(2,)", "()"],
    ),
    "a criterion that says True": (
        lambda: run(convergence=Hasty(lambda _: True)),
        ["ValueError", "Hasty must return one bool per system, in an array", "got a bool"],
    ),
    "extras that were not announced": (
        lambda: run(lambda x: (*bowl(x), jnp.zeros(2))),
        ["ValueError", "2 values", "has_extras=False", "got 3"],
    ),
    "extras that are missing": (
        lambda: run(has_extras=True),
        ["ValueError", "3 values", "has_extras=True", "got 2"],
    ),
    "extras of the wrong shape": (
        lambda: run(lambda x: (*bowl(x), {"stress": jnp.zeros((3, 3))}), has_extras=True),
        ["ValueError", "extras['stress']", "2 systems", "(3, 3)"],
    ),
    "energies alone": (
        lambda: run(lambda x: bowl(x)[0]),
        ["ValueError", "2 values", "got 1"],
    ),
    "a class in place of an optimizer": (
        lambda: run(optimizer=FIRE),
        ["TypeError", "optimizer must be a transform", "the class FIRE", "FIRE()"],
    ),
    "a function that makes an optimizer": (
        lambda: run(optimizer=optax.adam),
        ["TypeError", "optimizer must be a transform", "the function adam", "chain(...)"],
    ),
    "an optax transformation in place of an optimizer": (
        lambda: run(optimizer=optax.adam(0.1)),
        ["TypeError", "optimizer must be a transform", "optax", "chain(...)"],
    ),
    "an optimizer that returns its step alone": (
        lambda: run(optimizer=Returning(0.1, what=lambda step, _: step)),
        ["TypeError", "Returning.update must return the pair (updates, state), got"],
    ),
    "an optimizer whose step has another shape": (
        lambda: run(
            optimizer=chain(MaxStepSize(0.1), Returning(0.1, what=lambda x, s: (x[:, 0], s)))
        ),
        ["ValueError", "updates that Returning gets and returns do not fit", "(3, 3) and (3,)"],
    ),
    "an optimizer that returns no state": (
        lambda: run(optimizer=Returning(0.1, what=lambda step, _: (step, None))),
        ["TypeError", "Returning.update must return a state like", "a NoneType where it got a"],
    ),
    "an optimizer whose state is a dictionary": (
        lambda: run(optimizer=Starting()),
        ["TypeError", "init of an optimizer must return an AbstractState, got a dict"],
    ),
    "a limit that returns its tree alone": (
        lambda: run(optimizer=chain(Bare(), FIRE())),
        ["TypeError", "Bare.limit must return a named tuple with the limited `tree`"],
    ),
    "a wrong name of an optimizer": (
        lambda: run(optimizer="fyre"),
        ["ValueError", "unknown optimizer 'fyre'", "did you mean 'fire'"],
    ),
    "throw inside of jit": (
        lambda: jax.jit(lambda x: run(params=x, throw=True).energies)(ROWS),
        ["TypeError", "throw=True", "outside of jit"],
    ),
    "no memory for a line search": (
        lambda: LBFGSLineSearch(memory=0).init(ROWS),
        ["ValueError", "memory must be at least 1", "got 0"],
    ),
    "the name of a search": (
        lambda: BFGSLineSearch(search="armijo"),
        ["TypeError", "search must be MoreThuente(...) or Armijo(...)", "'armijo'"],
    ),
    "too few rows for a dense Hessian": (
        lambda: jax.jit(BFGS(max_rows=2).init)(ROWS),
        ["ValueError", "max_rows=2", "3 rows"],
    ),
    "structures in place of a function": (
        lambda: run([object()]),
        ["TypeError", "value_and_gradient must be a function", "basinax.atoms.relax"],
    ),
    "complex gradients": (
        lambda: run(lambda x: (jnp.zeros(2), {"x": x["x"].astype(complex)}), params={"x": ROWS}),
        ["TypeError", "value_and_gradient", "gradient['x'] has dtype complex128"],
    ),
    "energies of integers": (
        lambda: run(lambda x: (jnp.zeros(2, int), x)),
        ["TypeError", "value_and_gradient", "energies has dtype int64"],
    ),
    "parameters of integers": (
        lambda: run(lambda x: (jnp.zeros(2), x), params=jnp.ones((3, 3), int)),
        ["TypeError", "floating-point", "int64"],
    ),
}

CASES = OF_INDICES | OF_PREFIXES | OF_TREES | OF_SETTINGS | OF_RUNS


@pytest.mark.parametrize(("call", "words"), CASES.values(), ids=list(CASES))
def test_an_error_names_what_is_wrong(call, words):
    text = raised(call)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", ["sizes that do not add up", "trees of different structure"])
def test_an_error_comes_while_tracing_too(name):
    call, words = CASES[name]
    text = raised(lambda: jax.jit(lambda _: call())(0.0))
    assert [word for word in words if word not in text] == []


def test_a_field_of_a_state_that_does_not_say_what_it_leads_with_is_named():
    class Undeclared(AbstractState):
        index_prefix: object
        speeds: jax.Array

    state = Undeclared(INDEX, ROWS)
    text = raised(lambda: where_systems(np.array([True, False]), state, state))
    assert "speeds of Undeclared" in text
    assert "systems_field" in text


def test_a_misspelt_setting_is_refused():
    with pytest.raises(TypeError, match="max_step"):
        FIRE(max_step=0.1)


def test_a_transform_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FIRE().dt = 0.2


@pytest.mark.parametrize(
    "energy",
    [lambda x: jnp.asarray(np.sum(np.asarray(x) ** 2)), lambda x: x.sum() if x.sum() > 0 else 0.0],
    ids=["numpy", "a branch"],
)
def test_a_function_that_needs_values_is_told_what_to_write(energy):
    with pytest.raises(jax.errors.JAXTypeError) as raised:
        relax(lambda x: (energy(x)[None], x), ROWS, FIRE())
    assert "jax.numpy" in "".join(raised.value.__notes__)
    assert "jax.pure_callback" in "".join(raised.value.__notes__)
