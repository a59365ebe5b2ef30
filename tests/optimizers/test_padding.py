"""Rows of no system change no bit of a system, whatever stands in them, and never move."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax import (
    BFGS,
    FIRE,
    LBFGS,
    BFGSLineSearch,
    ConjugateGradient,
    LBFGSLineSearch,
    SystemIndex,
    relax,
    rounded,
    segment,
)
from cases import (
    ALIGNED,
    ALL_KINDS,
    BOWL,
    CONTIGUOUS,
    SHUFFLED_WITH_GAPS,
    in_turns,
    make_batch,
    make_systems,
    same_bits,
    steps,
    take,
    take_state,
    without_branches,
)
from cover import exhaustive, one_in

SIZES = (13, 1, 40, 13)
FILLINGS = [np.nan, np.inf, -1e30, 0.0]
PADDED = [ALIGNED, SHUFFLED_WITH_GAPS]


def parts(case, batch):
    transform = case.make(batch.numbers)
    state = transform.init(batch.params, batch.prefix)
    params, state = steps(transform, batch, batch.params, state, 20)
    return [
        (take(batch.prefix, params, at), take_state(state, at)) for at in range(len(batch.systems))
    ]


@pytest.mark.parametrize(("case", "layout"), one_in(3, in_turns(ALL_KINDS, PADDED), first=1))
def test_padding_changes_no_bit_whatever_it_holds(case, layout):
    systems = make_systems(BOWL, *SIZES)
    expected = parts(case, make_batch(BOWL, systems, CONTIGUOUS, np.float32))
    differing = [
        filling
        for filling in FILLINGS
        if not same_bits(
            parts(case, make_batch(BOWL, systems, layout, np.float32, filling)), expected
        )
    ]
    assert differing == []


@pytest.mark.parametrize(("case", "layout"), one_in(3, in_turns(ALL_KINDS, PADDED), first=1))
def test_padding_without_a_gradient_does_not_move(case, layout):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), layout, np.float32, padding=0.0)
    transform = case.make(batch.numbers)
    params, _ = steps(
        transform, batch, batch.params, transform.init(batch.params, batch.prefix), 20
    )
    is_padding = ~np.asarray(batch.prefix.has_system())
    assert not np.asarray(params)[is_padding].any()


PLACES = np.arange(1.0, 19.0).reshape(6, 3)
IN_GAPS = SystemIndex.from_ids([0, -1, 1, 1, -1, 0], 2)


def squares(x):
    """Squares of all rows, those of padding too."""
    return segment.sum(rounded(x * x), IN_GAPS), 2 * x


SEARCHES = [ConjugateGradient(), LBFGSLineSearch(), BFGSLineSearch()]


@pytest.mark.parametrize(
    ("optimizer", "branches"),
    [
        (LBFGS(), contextlib.nullcontext),
        *(exhaustive(x, contextlib.nullcontext) for x in (BFGS(), *SEARCHES)),
        *(exhaustive(x, without_branches) for x in (LBFGS(), BFGS(), *SEARCHES)),
    ],
    ids=lambda x: getattr(x, "__name__", None) or type(x).__name__,
)
def test_padding_with_a_gradient_beside_what_is_not_finite_does_not_move(optimizer, branches):
    x = PLACES.copy()
    x[0, 0] = np.nan
    params, state = jnp.asarray(x), optimizer.init(jnp.asarray(x), IN_GAPS)
    with branches():
        for _ in range(4):
            energies, gradient = squares(params)
            step, state = jax.jit(optimizer.update)(gradient, state, params, energies=energies)
            params = params + step
    np.testing.assert_array_equal(params[np.array([1, 4])], x[[1, 4]])
    assert not np.array_equal(params[2:4], x[2:4])


@pytest.mark.exhaustive  # every day a relaxation of a padded batch in test_isolation.py
@pytest.mark.parametrize("layout", PADDED, ids=str)
def test_a_relaxation_ignores_padding(layout):
    systems = make_systems(BOWL, *SIZES)

    def relaxed(layout):
        batch = make_batch(BOWL, systems, layout, np.float64)
        result = relax(batch.evaluate, batch.params, FIRE(), index_prefix=batch.prefix, fmax=1e-3)
        numbers = jax.tree.map(np.asarray, (result.energies, result.steps, result.status))
        return [take(batch.prefix, result.params, at) for at in range(len(systems))], numbers

    assert same_bits(relaxed(layout), relaxed(CONTIGUOUS))
