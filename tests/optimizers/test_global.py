"""With `index_prefix=None` the whole tree is one system, and clipping is that of optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import FIRE, ClipByGlobalNorm, MaxStepSize, chain, relax, segment
from cases import DTYPES, KINDS, MIXED, in_turns, make_alone, make_systems, run, same_bits
from cover import one_in

DRAW = np.random.default_rng(0)
TREES = {
    "one leaf": DRAW.normal(size=(13, 3)),
    "a scalar": np.array(3.0),
    "nested": {
        "layers": [{"w": DRAW.normal(size=(4, 7)), "b": DRAW.normal(size=7)} for _ in range(3)],
        "scale": np.array(-2.5),
    },
    "large": (DRAW.normal(size=(3000, 3)), DRAW.normal(size=(2, 3, 5, 7))),
    "zeros": [np.zeros(4), np.zeros(())],
    "without rows": [np.zeros((0, 3)), np.ones(2)],
    "with a NaN": [np.array([1.0, np.nan])],
}
NORMS = [0.0, 0.3, 1e9, np.inf]


def as_dtype(tree, dtype):
    return jax.tree.map(lambda x: jnp.asarray(x.astype(dtype)), tree)


def clipped(max_norm, updates):
    clip = ClipByGlobalNorm(max_norm)
    return clip.update(updates, clip.init(updates))[0]


def by_optax(max_norm, updates):
    clip = optax.clip_by_global_norm(max_norm)
    return clip.update(updates, clip.init(updates))[0]


@pytest.mark.parametrize(("name", "dtype"), in_turns(list(TREES), DTYPES))
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jitted", "not jitted"])
def test_global_clipping_has_the_bits_of_optax(name, dtype, wrap):
    tree = TREES[name]
    updates, ours, theirs = as_dtype(tree, dtype), wrap(clipped), wrap(by_optax)
    differing = [
        max_norm
        for max_norm in NORMS
        if not same_bits(ours(max_norm, updates), theirs(max_norm, updates))
    ]
    assert differing == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("of", [np.float32, np.float64])
def test_a_global_limit_may_be_an_array_of_any_floating_dtype(dtype, shape, of):
    updates = as_dtype(TREES["nested"], dtype)
    got = jax.jit(lambda x: clipped(np.full(shape, 0.5, of), x))(updates)
    assert same_bits(got, jax.jit(by_optax)(0.5, updates))


@pytest.mark.parametrize("dtypes", [(jnp.bfloat16, np.float32), (np.float32, np.float64)], ids=str)
def test_a_global_limit_that_is_traced_clips_leaves_of_mixed_dtypes(dtypes):
    draw = np.random.default_rng(0)
    updates = [jnp.asarray(draw.normal(size=(4, 3)), dtype) for dtype in dtypes]
    with jax.numpy_dtype_promotion("standard"):
        expected = jax.jit(lambda x: by_optax(0.5, x))(updates)
        for limit in (0.5, np.float64(0.5), jnp.float32(0.5)):
            got = jax.jit(lambda limit, x: clipped(limit, x))(limit, updates)
            assert same_bits(got, expected)
            assert same_bits(jax.jit(lambda x, limit=limit: clipped(limit, x))(updates), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_relaxation_in_global_mode_may_have_a_clip(dtype):
    optimizer = chain(ClipByGlobalNorm(0.5), FIRE(), MaxStepSize(0.3))
    start = jnp.ones((3, 2), dtype)
    result = relax(lambda x: (0.5 * segment.dot(x, x), x), start, optimizer, fmax=0.1)
    assert result.params.dtype == dtype
    assert result.converged.all()


# Of the size, the dtype and the length of runs alone in test_isolation.py: one program for both. Of
# some optimizers, since the mode is a matter of indices, of which none of them knows.
IN_GLOBAL_MODE = [
    pytest.param(case, dtype, id=f"{case}-{dtype.__name__}")
    for k, case in enumerate(KINDS)
    if case.is_alone_in_global_mode
    for dtype in [DTYPES[2 * k // len(KINDS)]]
][1::2]


@pytest.mark.parametrize(("case", "dtype"), one_in(3, IN_GLOBAL_MODE))
def test_global_mode_has_the_bits_of_a_single_system(case, dtype):
    alone = make_alone(MIXED, make_systems(MIXED, 77)[0], dtype)
    transform = case.make(alone.numbers)
    of_one, _, energies = run(transform, alone.evaluate, alone.params, alone.prefix, 420)
    in_global, _, global_energies = run(transform, alone.evaluate, alone.params, None, 420)
    assert same_bits((in_global, global_energies), (of_one, energies))
