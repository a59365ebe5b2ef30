"""A chain is its members one after another, whatever they are."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import basinax
from basinax import (
    FIRE,
    Adam,
    ClipByGlobalNorm,
    GradientDescent,
    MaxStepSize,
    SystemIndex,
    apply_updates,
    chain,
    product,
    relax,
    reset,
    segment,
)
from cases import (
    BOWL,
    CONTIGUOUS,
    begun_steps,
    evaluate,
    make_batch,
    make_systems,
    same_bits,
    steps,
    take,
    update,
)
from cover import exhaustive, named_daily, one_in

SIZES = (13, 1, 40, 13)
INDEX = SystemIndex.from_sizes([2, 1])
ROWS = jnp.arange(1.0, 7.0).reshape(3, 2)
MEMBERS = [ClipByGlobalNorm(2.0), Adam(0.1), MaxStepSize(0.05)]
"""Two limits, and between them what is compiled soon."""


def batch_of(dtype=np.float64):
    return make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, dtype)


def stepped(transform, batch, count=10):
    state = transform.init(batch.params, batch.prefix)
    return steps(transform, batch, batch.params, state, count)[0]


def test_a_chain_is_its_members_in_turn():
    batch = batch_of()
    whole = chain(*MEMBERS)
    state = whole.init(batch.params, batch.prefix)
    states = [member.init(batch.params, batch.prefix) for member in MEMBERS]
    gradient = batch.params
    for _ in range(5):
        expected = gradient
        for at, member in enumerate(MEMBERS):
            expected, states[at] = update(member, expected, states[at], batch.params)
        got, state = update(whole, gradient, state, batch.params)
        gradient = 0.8 * gradient
    assert same_bits(got, expected)


def test_a_chain_of_chains_is_the_flat_one():
    batch = batch_of()
    clip, adam, limit = MEMBERS
    nested = stepped(chain(chain(clip, chain(adam)), limit), batch)
    assert same_bits(nested, stepped(chain(*MEMBERS), batch))


def test_the_order_of_members_matters():
    """A limit before an optimizer limits the gradient, one behind it the step."""
    batch = batch_of()
    limit, descent = ClipByGlobalNorm(0.5), GradientDescent(0.1)
    index = batch.prefix

    def norms(transform):
        state = transform.init(batch.params, index)
        step = update(transform, batch.params, state, batch.params)[0]
        return [np.linalg.norm(take(index, step, at)) for at in range(len(SIZES))]

    # Rounding of a norm of at most 120 entries.
    np.testing.assert_allclose(norms(chain(limit, descent)), 0.05, rtol=1e-14)
    assert max(norms(chain(descent, limit))) > 0.1


def test_an_empty_chain_returns_what_it_gets():
    batch = batch_of()
    state = chain().init(batch.params, batch.prefix)
    assert same_bits(chain().update(batch.params, state)[0], batch.params)


def test_the_states_in_a_chain_hold_no_index_of_their_own():
    batch = batch_of()
    state = chain(chain(*MEMBERS), optax.adam(0.1)).init(batch.params, batch.prefix)

    def prefixes(state):
        yield state.index_prefix
        for inner in getattr(state, "states", ()):
            yield from prefixes(inner)

    own, *inner = prefixes(state)
    assert eqx.tree_equal(own, batch.prefix)
    assert inner == [None] * 5


def test_a_state_of_a_chain_shows_those_of_its_members():
    batch = batch_of()
    state = chain(*MEMBERS).init(batch.params, batch.prefix)
    assert [type(inner).__name__ for inner in state.states] == [
        "LimitState",
        "AdamState",
        "LimitState",
    ]


@pytest.mark.parametrize(
    "member", [FIRE, optax.adam, 0.1, None], ids=["a class", "a maker", "a number", "nothing"]
)
def test_what_is_no_transform_is_refused_by_its_position(member):
    with pytest.raises(TypeError, match="argument 1 of chain"):
        chain(FIRE(), member)


def test_multisteps_of_optax_is_refused_with_what_to_write():
    steps = optax.MultiSteps(optax.sgd(0.1), 2)
    for use in (chain, lambda x: basinax.relax(lambda x: (x, x), jnp.ones(1), x)):
        with pytest.raises(TypeError, match=r"MultiSteps: put .gradient_transformation\(\) of it"):
            use(steps)
    index, x = SystemIndex.from_sizes([1, 2]), jnp.ones((3, 1))
    transform, step = chain(steps.gradient_transformation()), jnp.zeros_like(x)
    state = transform.init(x, index)
    for expected in (0.0, -0.1):
        step, state = transform.update(x, state, x)
        np.testing.assert_allclose(step, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 3), (5, 2)])
@pytest.mark.parametrize("index", [SystemIndex.from_sizes([2, 3]), None], ids=["batch", "global"])
def test_a_gradient_of_another_shape_than_params_is_named(index, shape):
    x = jnp.ones((5, 3))
    transform = chain(optax.adam(0.1))
    with pytest.raises(ValueError, match=r"params and their gradient .*\(5, 3\) and"):
        transform.update(jnp.ones(shape), transform.init(x, index), x)


def test_a_class_in_place_of_an_instance_is_named():
    with pytest.raises(TypeError, match="an instance, not the class"):
        chain(FIRE)


def test_a_list_of_transforms_is_named():
    with pytest.raises(TypeError, match=r"argument 0 of chain .* write chain\(\*transforms\)"):
        chain([FIRE(), MaxStepSize(0.1)])


# --- optax

ELEMENTWISE = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "amsgrad": optax.amsgrad(0.1),
    "adabelief": optax.adabelief(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "lion": optax.lion(0.1),
    "yogi": optax.yogi(0.1),
    "clip": optax.clip(0.3),
    "scale": optax.scale(-0.1),
    "schedule": optax.sgd(optax.exponential_decay(0.1, 2, 0.5)),
    "cycle": optax.sgd(optax.cosine_onecycle_schedule(10, 0.1)),
    "third roots": optax.contrib.madgrad(0.1),
    "chain": optax.chain(optax.clip(0.5), optax.trace(0.9), optax.scale(-0.1)),
    "sign": optax.sign_sgd(0.1),
}


# The schedule of a cycle is one more, and takes as long to compile as all others.
@pytest.mark.parametrize("transformation", named_daily(ELEMENTWISE, set(ELEMENTWISE) - {"cycle"}))
def test_an_elementwise_optax_transformation_steps_as_in_optax(transformation):
    batch = batch_of()
    got = chain(transformation)
    state, of_optax = got.init(batch.params, batch.prefix), transformation.init(batch.params)
    gradient = batch.params
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for _ in range(5):
            expected, of_optax = transformation.update(gradient, of_optax, batch.params)
            step, state = update(got, gradient, state, batch.params)
            gradient = 0.8 * gradient
    # Optax's products are not rounded one by one; ten or so of them meet in a step.
    np.testing.assert_allclose(step, expected, rtol=1e-13)


def of_leaves(function):
    return optax.stateless_with_tree_map(lambda update, _: function(update))


def of_each_row(x):
    """Its components turned around, in units of their sum."""
    x = x[..., ::-1] / (1.0 + jnp.sum(x * x, axis=-1, keepdims=True))
    return jax.lax.cond(True, lambda x: x @ jnp.diag(jnp.arange(3.0)), lambda x: x, x)


DIVIDING = {"adam": optax.adam(0.1), "a number": of_leaves(lambda x: x / 0.9)}


# A row of one number is one number where a system of one row is alone.
@pytest.mark.parametrize("shape", [(), exhaustive((1,)), exhaustive((3,))])
@pytest.mark.parametrize("dtype", [np.float64, exhaustive(np.float32)])
@pytest.mark.parametrize("name", DIVIDING)
def test_no_divisor_is_known_to_the_compiler(name, dtype, shape):
    """Neither a number, nor one that follows from a state that the program begins."""
    transform, whole = chain(DIVIDING[name]), SystemIndex.from_sizes([1, 2, 3])
    gradients = jnp.asarray(np.random.default_rng(1).normal(size=(3, 6, *shape)), dtype)

    def steps(gradients, index):
        return jnp.stack(begun_steps(transform, gradients, gradients[0], index)[0])

    expected = steps(gradients, whole)
    jitted = jax.jit(lambda gradients: steps(gradients, whole))
    np.testing.assert_array_equal(jitted(gradients), expected)
    alone = steps(gradients[:, :1], SystemIndex.from_sizes([1]))
    np.testing.assert_array_equal(alone, expected[:, :1])


BY_ROW = {
    "each row": of_leaves(of_each_row),
    "flat": optax.flatten(optax.adam(0.1)),
    "every third step": optax.MultiSteps(optax.sgd(0.1), 3).gradient_transformation(),
    "a loop": of_leaves(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * x, x)),
}


@pytest.mark.parametrize("name", BY_ROW)
def test_what_does_the_same_with_each_row_is_accepted(name):
    batch = batch_of()
    chain(BY_ROW[name]).init(batch.params, batch.prefix)


MIXING = {
    "clip_by_global_norm": optax.clip_by_global_norm(1.0),
    "lbfgs": optax.lbfgs(),
    "adaptive_grad_clip": optax.adaptive_grad_clip(0.1),
    "clip_by_block_rms": optax.clip_by_block_rms(0.1),
    "add_noise": optax.add_noise(0.1, 0.5, 0),
    "apply_if_finite": optax.apply_if_finite(optax.sgd(0.1), 3),
    "normalize_by_update_norm": optax.normalize_by_update_norm(),
    "centralize": optax.centralize(),
    # Made of parts and without a function of their own, these are known by the part that mixes.
    "scale_by_trust_ratio": optax.lamb(0.1),
    "scale_by_factored_rms": optax.adafactor(0.1),
    "dadapt_adamw": optax.contrib.dadapt_adamw(),
    "flatten": optax.flatten(optax.clip_by_global_norm(1.0)),
    "of the first row": of_leaves(lambda x: x * x[0]),
    "of numbered rows": of_leaves(lambda x: x * jnp.arange(x.shape[0])[:, None]),
    "of as many rows": of_leaves(lambda x: x / x.shape[0]),
    "of sorted rows": of_leaves(lambda x: jnp.sort(x, axis=0)),
    "of rows in one axis": of_leaves(lambda x: x * x.reshape(-1)[:3]),
    "of steps before": optax.GradientTransformation(
        lambda params: [jnp.zeros(())] * 3,
        lambda updates, state, params=None: (
            jax.tree.map(lambda x: x / (1 + state[0]), updates),
            [*state[1:], sum(jnp.abs(x).max() for x in jax.tree.leaves(updates))],
        ),
    ),
    "summed in a loop": of_leaves(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y - y.mean(), x)),
}


@pytest.mark.parametrize("name", MIXING)
def test_an_optax_transformation_that_mixes_systems_is_refused_by_name(name):
    batch = batch_of()
    known = name if hasattr(optax, name) else ""
    reason = "(mixes systems|cannot be run row by row)"
    with pytest.raises(ValueError, match=f"optax transformation .*{known}.* {reason}") as error:
        chain(FIRE(), MIXING[name]).init(batch.params, batch.prefix)
    assert "ClipByGlobalNorm" in str(error.value)
    assert "index_prefix=None" in str(error.value)


def test_an_operation_whose_bits_may_depend_on_the_batch_is_refused_by_name():
    batch = batch_of()
    gamma = optax.stateless_with_tree_map(lambda x, _: jax.lax.lgamma(x))
    with pytest.raises(ValueError, match=r"stateless.* may depend on the batch \(lgamma "):
        chain(FIRE(), gamma).init(batch.params, batch.prefix)


def test_a_mixing_part_of_an_optax_chain_is_refused_by_name():
    batch = batch_of()
    mixed = optax.chain(optax.clip(1.0), optax.clip_by_global_norm(1.0), optax.adam(0.1))
    with pytest.raises(ValueError, match="clip_by_global_norm"):
        chain(mixed).init(batch.params, batch.prefix)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixing_is_found_whatever_the_dtype(dtype):
    batch = batch_of(dtype)
    with pytest.raises(ValueError, match="mixes systems"):
        chain(optax.clip_by_global_norm(1.0)).init(batch.params, batch.prefix)


def test_mixing_is_found_while_tracing():
    batch = batch_of()
    init = chain(optax.clip_by_global_norm(1.0)).init
    with pytest.raises(ValueError, match="clip_by_global_norm"):
        jax.jit(init)(batch.params, batch.prefix)


def test_leaves_of_every_shape_are_looked_at():
    index = SystemIndex.from_sizes([2, 1])
    params = {"charge": jnp.ones(3), "cell": jnp.ones((3, 3, 3))}
    with pytest.raises(ValueError, match="clip_by_global_norm"):
        chain(optax.clip_by_global_norm(1.0)).init(params, index)
    chain(optax.adam(0.1)).init(params, index)


def test_an_optax_transformation_may_have_derivatives_of_its_own():
    batch = batch_of()
    square = chain(optax.stateless(lambda tree, _: jax.tree.map(lambda x: product(x, x), tree)))
    state = square.init(batch.params, batch.prefix)
    got = update(square, batch.params, state, batch.params)[0]
    assert same_bits(got, batch.params * batch.params)


def test_what_cannot_be_traced_is_refused_before_the_first_step():
    batch = batch_of()
    scale = optax.stateless_with_tree_map(lambda x, _: float(jnp.cos(0.1)) * x)
    with pytest.raises(ValueError, match=r"cannot be run row by row \(Concretization"):
        chain(scale).init(batch.params, batch.prefix)


def label(tree):
    """Each leaf's name, by its path alone."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key, tree)


def is_position(tree):
    return jax.tree.map(lambda name: name == "positions", label(tree))


BY_LEAF = {
    "a mask": optax.masked(optax.sgd(0.1), {"cells": False, "positions": True}),
    "a mask of all": optax.masked(optax.adam(0.1), True),
    "a masking function": optax.chain(
        optax.sgd(0.1), optax.masked(optax.set_to_zero(), lambda tree: is_position(tree))
    ),
    "masks in masks": optax.masked(
        optax.chain(optax.masked(optax.adam(0.1), is_position), optax.scale(2.0)), is_position
    ),
    "labels": optax.partition(
        {"quick": optax.adam(0.1), "slow": optax.sgd(0.1, momentum=0.9)},
        {"cells": "quick", "positions": "slow"},
    ),
    "a labelling function": optax.partition(
        {"cells": optax.adam(0.1), "positions": optax.set_to_zero()}, label
    ),
    "labels of keys": optax.multi_transform(
        {"cells": optax.lion(0.1), "positions": optax.sgd(0.1)}, lambda tree: {k: k for k in tree}
    ),
    "frozen": optax.selective_transform(
        optax.adam(0.1), freeze_mask={"cells": True, "positions": False}
    ),
    "decay": optax.adamw(0.1, weight_decay=0.3, mask={"cells": True, "positions": False}),
    "a decaying function": optax.add_decayed_weights(0.3, mask=is_position),
}
N_CELLS, N_POSITIONS = (2, 0, 3), (5, 1, 7)


def leaves_and_prefixes():
    """Two leaves of as many rows, then of others, and the prefixes that they may have."""
    draw = np.random.default_rng(0)
    cells, positions = (jnp.asarray(draw.normal(size=(sum(n), 3))) for n in (N_CELLS, N_POSITIONS))
    index, of_cells = SystemIndex.from_sizes(N_POSITIONS), SystemIndex.from_sizes(N_CELLS)
    one_index = {"cells": 2 * positions, "positions": positions}
    for prefix in (None, index, {"cells": index, "positions": index}):
        yield one_index, prefix
    yield {"cells": cells, "positions": positions}, {"cells": of_cells, "positions": index}


BITS_EVERY_DAY = {"a mask of all", "masks in masks", "frozen", "labels", "a decaying function"}
"""The others are compared with optax every day."""


@pytest.mark.parametrize(
    "transformation", named_daily(BY_LEAF, set(BY_LEAF) - BITS_EVERY_DAY | {"labels"})
)
def test_masks_and_labels_see_the_paths_of_the_whole_tree(transformation):
    for params, prefix in leaves_and_prefixes():
        got = chain(transformation)
        state, of_optax = got.init(params, prefix), transformation.init(params)
        gradient = jax.tree.map(jnp.cos, params)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            for _ in range(3):
                expected, of_optax = transformation.update(gradient, of_optax, params)
                step, state = update(got, gradient, state, params)
                gradient = jax.tree.map(lambda x: 0.8 * x, gradient)
        for name in ("cells", "positions"):
            # As above, some ten products.
            np.testing.assert_allclose(step[name], expected[name], rtol=1e-13)


@pytest.mark.parametrize("transformation", named_daily(BY_LEAF, BITS_EVERY_DAY))
def test_systems_have_their_bits_with_masks_and_labels(transformation):
    *_, (params, prefix) = leaves_and_prefixes()
    got = chain(transformation)

    def run(params, prefix):
        state, x = got.init(params, prefix), params
        for _ in range(20):
            gradient = jax.tree.map(jnp.sin, x)
            step, state = update(got, gradient, state, x)
            x = apply_updates(x, step)
        return x

    batched = run(params, prefix)
    for system in range(len(N_CELLS)):
        own = {name: take(prefix[name], params[name], system) for name in params}
        alone = run(own, {name: SystemIndex.from_sizes([len(rows)]) for name, rows in own.items()})
        for name in params:
            assert same_bits(take(prefix[name], batched[name], system), alone[name])


# Without a state, with one, with a count, and a chain. Without optimisation, XLA's third roots have
# other bits in other shapes; exhaustive tests are compiled as users do.
@pytest.mark.parametrize(
    "transformation", named_daily(ELEMENTWISE, ("clip", "adam", "schedule", "chain"))
)
def test_leaves_with_indices_of_their_own_step_as_by_themselves(transformation):
    *_, (params, prefix) = leaves_and_prefixes()
    prefix = prefix | {"none": prefix["cells"]}
    params, whole = params | {"none": {}}, chain(transformation)
    states = {name: whole.init(params[name], prefix[name]) for name in ("cells", "positions")}
    state = whole.init(params, prefix)
    for _ in range(3):
        step, state = update(whole, params, state, params)
        for name in states:
            own = update(whole, params[name], states[name], params[name])
            assert same_bits(step[name], own[0])
            states[name] = own[1]
    fresh = reset(whole, state, params, jnp.ones(len(N_CELLS), bool))
    assert same_bits(fresh, whole.init(params, prefix))


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (lambda tree: {name: x.ndim > 0 for name, x in tree.items()}, "has no attribute 'ndim'"),
        (
            lambda tree: jax.tree.structure(tree).unflatten(
                [at == 0 for at in range(len(jax.tree.leaves(tree)))]
            ),
            "in place of the others: index_prefix has several",
        ),
    ],
    ids=["looks at leaves", "counts leaves"],
)
def test_what_needs_leaves_of_other_indices_is_refused(mask, reason):
    *_, (params, index), (_, prefix), _ = leaves_and_prefixes()
    masked = chain(optax.masked(optax.sgd(0.1), mask))
    masked.init(params, index)
    with pytest.raises(ValueError, match=f"on the leaves of one SystemIndex.*{reason}"):
        masked.init(params, prefix)


def test_extra_arguments_reach_optax_in_a_batch():
    """A number serves all rows; what leads with systems is that of each row's."""

    def multiplied(updates, state, params=None, *, factor=1.0, settings=None, **_):
        if settings is not None:
            factor = settings["power"](factor) + settings["more"]
        return jax.tree.map(lambda x: factor * x, updates), state

    init = optax.identity().init
    whole = chain(optax.GradientTransformationExtraArgs(init, multiplied))
    for prefix in (None, INDEX):
        step, _ = whole.update(ROWS, whole.init(ROWS, prefix), factor=10.0)
        assert same_bits(step, 10.0 * ROWS)
    step, _ = whole.update(ROWS, whole.init(ROWS, INDEX), ROWS, factor=jnp.array([2.0, 3.0]))
    assert same_bits(step, jnp.array([[2.0], [2.0], [3.0]]) * ROWS)
    settings = {"more": jnp.array([1.0, 2.0]), "power": lambda x: x**2}
    step, _ = whole.update(ROWS, whole.init(ROWS, INDEX), factor=3.0, settings=settings)
    assert same_bits(step, jnp.array([[10.0], [10.0], [11.0]]) * ROWS)
    with pytest.raises(ValueError, match=r"factor must .* the 2 systems; got shape \(3,\)"):
        whole.update(ROWS, whole.init(ROWS, INDEX), factor=jnp.ones(3))
    mask = optax.conditionally_mask(
        optax.scale(5.0), lambda step, is_on=True, **_: is_on, forward_extra_args=True
    )
    step, _ = chain(mask).update(ROWS, chain(mask).init(ROWS, INDEX), is_on=False)
    assert same_bits(step, 0.0 * ROWS)


def test_optax_has_the_energy_as_value():
    """A plateau of one system changes its own rate alone, and steps are those of optax."""
    plateau = optax.contrib.reduce_on_plateau(patience=2, factor=0.3)
    sizes, rows = [3, 0, 9], np.random.default_rng(0).normal(size=(12, 3))

    def relaxed(start, index):
        def model(x):
            return 0.5 * segment.dot(x, x, index), x

        descent = chain(optax.sgd(1.9), plateau)
        how = {"index_prefix": index, "max_steps": 60, "fmax": 1e-12}
        return relax(model, jnp.asarray(start), descent, **how).params

    together = relaxed(rows, SystemIndex.from_sizes(sizes))
    for k, own in enumerate(np.split(np.arange(12), np.cumsum(sizes)[:-1])):
        assert same_bits(relaxed(rows[own], SystemIndex.from_sizes([sizes[k]])), together[own])
    theirs = optax.chain(optax.sgd(1.9), plateau)
    x = jnp.asarray(rows[:3])
    state = theirs.init(x)

    @jax.jit
    def step_of(x, state):
        return theirs.update(x, state, x, value=0.5 * jnp.sum(x * x))

    with jax.numpy_dtype_promotion("standard"):
        for _ in range(60):
            step, state = step_of(x, state)
            x += step
    assert np.allclose(together[:3], x, rtol=1e-12)


def test_a_traced_rate_of_optax_is_named():
    def begun(rate):
        return chain(optax.sgd(rate)).init(ROWS, INDEX)

    with pytest.raises(ValueError, match="a number of it is traced"):
        jax.jit(begun)(0.1)


def test_optax_gets_no_argument_that_it_does_not_take():
    ascent = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.01), sync_period=2)
    for prefix in (None, INDEX):
        sam = chain(ascent)
        step, _ = sam.update(ROWS, sam.init(ROWS, prefix), ROWS, energies=jnp.zeros(2))
        assert step.shape == ROWS.shape
    with pytest.raises(ValueError, match="optax transformation momo mixes systems"):
        chain(optax.contrib.momo(0.1)).init(ROWS, INDEX)


def test_padding_does_not_move_under_optax():
    padded, descent = SystemIndex.from_ids([0, -1, 1]), chain(optax.sgd(0.1))
    step, _ = descent.update(ROWS, descent.init(ROWS, padded), ROWS)
    assert (step[1] == 0).all() and (step[::2] < 0).all()


def test_a_mask_that_looks_at_shapes_is_told_what_to_write():
    decay = optax.add_decayed_weights(
        0.1, mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
    )
    with pytest.raises(ValueError, match="shapes of leaves, give them as trees"):
        chain(decay).init({"w": ROWS, "b": ROWS[:, 0]}, INDEX)


def test_optax_counts_steps_of_each_system_by_itself():
    """So that a system that is reset starts its bias correction anew."""
    batch = batch_of()
    state = chain(optax.adam(0.1)).init(batch.params, batch.prefix)
    counts = [
        leaf for leaf in jax.tree.leaves(state.states[0].inner) if leaf.dtype == np.dtype("int32")
    ]
    assert [count.shape for count in counts] == [(sum(SIZES),)]


@pytest.mark.parametrize(
    "name", ["clip_by_global_norm", "adaptive_grad_clip", "scale_by_trust_ratio"]
)
def test_in_global_mode_every_optax_transformation_is_itself(name):
    params = batch_of().params
    transformation = MIXING[name]
    got, expected = chain(transformation), transformation.init(params)
    state = got.init(params)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        step, _ = transformation.update(params, expected, params)
        assert same_bits(got.update(params, state, params)[0], step)


@pytest.mark.parametrize("transform", [*one_in(3, MEMBERS), exhaustive(FIRE(), id="FIRE")])
def test_in_a_chain_of_optax_systems_stay_apart(transform):
    batch = batch_of()
    ours = chain(transform, optax.scale(0.5))
    theirs = optax.chain(transform.to_optax(batch.prefix), optax.scale(0.5))
    state, optax_state = ours.init(batch.params, batch.prefix), theirs.init(batch.params)
    gradient = evaluate(batch.evaluate, batch.params)[1]
    for _ in range(3):
        updates, state = update(ours, gradient, state, batch.params)
        optax_updates, optax_state = update(theirs, gradient, optax_state, batch.params)
        assert same_bits(updates, optax_updates)


def test_a_limit_that_optax_gives_no_index_says_so():
    limit, params = MaxStepSize(0.1), jnp.ones(3)
    with pytest.warns(UserWarning, match="MaxStepSize in optax.chain limits all parameters as one"):
        optax.chain(limit, optax.scale(0.5)).init(params)
    optax.chain(limit.to_optax(), optax.scale(0.5)).init(params)  # silent, as these are
    chain(optax.scale(0.5), limit).init(params)
    limit.init(params)


def test_a_chain_may_be_rebuilt_with_another_member():
    whole = chain(*MEMBERS)
    changed = dataclasses.replace(whole, transforms=(*whole.transforms[:2], MaxStepSize(0.5)))
    assert changed.transforms[2].max_step_size == 0.5
