"""A jitted run has the bits of the same run executed one operation at a time.

Every day one optimizer shows that what is compiled quickly has the bits of single operations, and
one that what is compiled as users do has those of what is compiled quickly, which takes a tenth of
the time; that no rounding is left out, test_order_of_transforms.py shows of each. With
`BASINAX_TESTS_XLA=default` both are one; then all run op by op.
"""

import functools

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    Adam,
    BFGSLineSearch,
    ClipByGlobalNorm,
    ConjugateGradient,
    GradientDescent,
    LBFGSLineSearch,
    MDMin,
    apply_updates,
    relax,
)
from basinax.numerics import xla
from basinax.numerics.compilations import Compilations
from cases import (
    BOWL,
    KINDS,
    SHUFFLED_WITH_GAPS,
    begun_steps,
    evaluate,
    make_batch,
    make_systems,
    plain_advance,
    plain_run,
    run_batch,
    same_bits,
    steps,
)
from cover import every_day, exhaustive, named_daily, one_in
from xla import AS_USERS, jit_as_users

LENGTH = 60


OP_BY_OP = [
    pytest.param(case, np.float32, id=f"{case}-float32", marks=marks)
    for case in KINDS
    for marks in [() if case.name == "GradientDescent" else pytest.mark.exhaustive]
]
OP_BY_OP += [exhaustive(KINDS[0], np.float64, id=f"{KINDS[0]}-float64")]


def small_batch(dtype=np.float32):
    """Of as many rows as in tests of other properties, so that an update is the same program."""
    sound, short, _, nan, _, huge = make_systems(BOWL, 40, 1, 13, spoiled=True)
    return make_batch(BOWL, [sound, short, nan, huge], SHUFFLED_WITH_GAPS, dtype)


@functools.partial(eqx.filter_jit, compiler_options=AS_USERS)
def turn_as_users(transform, gradient, state, params):
    step, state = transform.update(gradient, state, params)
    return apply_updates(params, step), state


@pytest.mark.parametrize("case", every_day(KINDS, lambda case: case.name == "FIRE"))
def test_steps_compiled_as_users_are_those_compiled_quickly(case):
    """The first steps, and later ones in which FIRE goes uphill."""
    batch = small_batch()
    transform = case.make(batch.numbers)
    params, state = batch.params, transform.init(batch.params, batch.prefix)
    for before, count in ((0, 2), (37, 3)):
        params, state = steps(transform, batch, params, state, before)
        for _ in range(count):
            gradient = evaluate(batch.evaluate, params)[1]
            expected = turn_as_users(transform, gradient, state, params)
            params, state = steps(transform, batch, params, state, 1)
            assert same_bits((params, state), expected)


@pytest.mark.parametrize("case", every_day(KINDS, lambda case: case.name == "FIRE2 with ABC"))
def test_a_run_that_a_program_begins_has_the_steps_of_one_that_it_is_given(case):
    """The index and the first state are then constants of the program."""
    batch = small_batch()
    transform = case.make(batch.numbers)
    gradient = evaluate(batch.evaluate, batch.params)[1]

    def two_steps(gradient, params, index):
        return begun_steps(transform, [gradient] * 2, params, index)

    begun = jax.jit(lambda gradient, params: two_steps(gradient, params, batch.prefix))
    given = jax.jit(two_steps)(gradient, batch.params, batch.prefix)
    assert same_bits(begun(gradient, batch.params), given)


@pytest.mark.parametrize(("case", "dtype"), OP_BY_OP)
def test_jitted_steps_are_the_steps_op_by_op(case, dtype):
    """The first steps, and later ones in which FIRE goes uphill: op by op, each takes a while."""
    batch = small_batch(dtype)
    with jax.disable_jit():
        transform = case.make(batch.numbers)
        state = transform.init(batch.params, batch.prefix)
    params = batch.params
    for before, count in ((0, 2), (37, 3)):
        params, state = steps(transform, batch, params, state, before)
        with jax.disable_jit():
            op_by_op = plain_advance(transform, batch.evaluate, params, state, count)
        params, state = steps(transform, batch, params, state, count)
        assert same_bits((params, state), op_by_op[:2])


EVERY = [FIRE(), FIRE2(), MDMin(), LBFGS(), BFGS(), ConjugateGradient(), LBFGSLineSearch()]
EVERY += [BFGSLineSearch(), Adam(0.1), ClipByGlobalNorm(1.0)]
BY_NAME = {type(transform).__name__: transform for transform in EVERY}


@pytest.mark.parametrize("transform", named_daily(BY_NAME, ["LBFGS"]))
def test_later_steps_op_by_op_compile_nothing(transform):
    """JAX would compile a branch or a loop outside of `jit` anew in each call."""
    batch = make_batch(BOWL, make_systems(BOWL, 5, 13, 3), SHUFFLED_WITH_GAPS, np.float64)
    params, state = batch.params, transform.init(batch.params, batch.prefix)
    counts = []
    for _ in range(4):
        energies, gradient = evaluate(batch.evaluate, params)
        compilations = Compilations()
        with compilations.counted():
            step, state = transform.update(gradient, state, params, energies=energies)
        params = apply_updates(params, jax.tree.map(lambda x: 0.1 * x, step))
        counts.append(compilations.count)
    assert counts[2:] == [0, 0]


@pytest.mark.parametrize("case", every_day(KINDS, lambda case: case.name in ("FIRE", "LBFGS")))
def test_steps_and_relaxations_run_under_shard_map(case):
    """One device will do: JAX checks the types of a loop's carry as it traces the loop."""
    batch = small_batch()
    given = eqx.partition(case.make(batch.numbers), eqx.is_array)  # settings of a system, others
    rows = jax.sharding.PartitionSpec("devices")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))

    def with_steps(transform, params):
        state = transform.init(params, batch.prefix)
        return plain_advance(transform, batch.evaluate, params, state, 3)[0]

    def relaxed(transform, params):
        return relax(batch.evaluate, params, transform, index_prefix=batch.prefix).params

    for run in (with_steps, relaxed):
        run_of = lambda own, params, run=run: run(eqx.combine(own, given[1]), params)  # noqa: E731
        sharded = jax.shard_map(run_of, mesh=mesh, in_specs=rows, out_specs=rows)
        assert jax.eval_shape(sharded, given[0], batch.params).shape == batch.params.shape


@pytest.mark.parametrize("case", one_in(8, KINDS, first=7))
def test_a_state_may_be_donated(case):
    """No array stands in it twice. It takes its index along."""
    batch, taken = small_batch(), small_batch()
    transform = case.make(batch.numbers)

    def update(gradient, state, params, energies):
        return transform.update(gradient, state, params, energies=energies)

    donating = jax.jit(update, donate_argnums=1)
    kept = transform.init(batch.params, batch.prefix)
    state = transform.init(batch.params, taken.prefix)
    for _ in range(2):
        energies, gradient = batch.evaluate(batch.params)
        step, kept = jax.jit(update)(gradient, kept, batch.params, energies)
        same_step, state = donating(gradient, state, batch.params, energies)
        assert same_bits((same_step, state), (step, kept))


@pytest.mark.parametrize("case", every_day(KINDS[::2], KINDS[1:3].__contains__))
def test_constants_of_a_program_and_its_arguments_give_the_same_bits(case):
    """A compiler folds constants and may not round them in another way."""
    batch = small_batch()
    transform = case.make(batch.numbers)

    @jax.jit
    def run_of_constants():
        state = transform.init(batch.params, batch.prefix)
        return plain_advance(transform, batch.evaluate, batch.params, state, LENGTH)

    assert same_bits(run_of_constants(), run_batch(case, batch, LENGTH))


@pytest.mark.parametrize("case", every_day(KINDS[1::2], KINDS[:3].__contains__))
def test_settings_as_numbers_and_as_arrays_give_the_same_bits(case):
    batch = small_batch()
    transform = jax.tree.map(jnp.asarray, case.make(batch.numbers))
    of_arrays = eqx.filter_jit(plain_run)(
        transform, batch.evaluate, batch.params, batch.prefix, LENGTH
    )
    assert same_bits(of_arrays, run_batch(case, batch, LENGTH))


@pytest.mark.parametrize("case", one_in(len(KINDS), KINDS, first=2))
def test_one_program_for_all_steps_and_one_for_each_step_give_the_same_bits(case):
    batch = small_batch()
    transform = case.make(batch.numbers)
    state = transform.init(batch.params, batch.prefix)
    stepped = steps(transform, batch, batch.params, state, LENGTH)
    assert same_bits(stepped, run_batch(case, batch, LENGTH)[:2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_that_a_foreign_transform_returns_is_rounded_before_it_is_added(dtype):
    draw = np.random.default_rng(0)
    params, gradient, rates = (jnp.asarray(draw.normal(size=(1003, 3)), dtype) for _ in range(3))
    add = lambda params, rates, gradient: apply_updates(params, rates * gradient)  # noqa: E731
    with jax.disable_jit():
        expected = add(params, rates, gradient)
    assert same_bits(jit_as_users(add)(params, rates, gradient), expected)


@pytest.mark.parametrize(
    ("transform", "most"), [(FIRE(), 1), (MDMin(), 2), (LBFGS(), 8), (GradientDescent(0.1), 0)]
)
def test_a_step_decides_seldom_whether_a_rare_case_is_there(transform, most):
    """Each takes kernels that reduce its mask."""
    assert count_decisions(step_of(transform), {"cond"}) <= most


@pytest.mark.parametrize(("transform", "most"), [(FIRE(), 0), (MDMin(), 0), (LBFGS(), 1)])
def test_a_step_on_a_gpu_seldom_waits_for_the_host(transform, most):
    """By a decision, or a loop of unknown length: `fori_loop` makes a `scan` of any other."""
    with xla.without("branches"):
        step = step_of(transform)
    assert count_decisions(step, {"cond", "while"}) <= most


def step_of(transform):
    batch = small_batch()
    state = transform.init(batch.params, batch.prefix)
    # A lambda: JAX keeps what it has traced of a function.
    update = lambda *args: transform.update(*args)  # noqa: E731
    return jax.make_jaxpr(update)(batch.params, state, batch.params).jaxpr


def count_decisions(jaxpr, names) -> int:
    """Those of the usual way, on which no rare case is there."""
    return sum(
        1
        if eqn.primitive.name in names
        else sum(count_decisions(x, names) for x in jax.extend.core.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )
