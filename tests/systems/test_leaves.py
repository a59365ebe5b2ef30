"""How the rows of systems are divided among leaves."""

import jax
import numpy as np
import pytest

from basinax import SystemIndex
from cases import (
    BOWL,
    CONTIGUOUS,
    KINDS,
    KINDS_OF_LIMITS,
    make_batch,
    make_systems,
    same_bits,
    update,
)
from cover import one_in

# Divided by system or by halves, two leaves have 34 and 33 rows: one program for both tests. All
# 67 rows share one with tests of other properties.
SIZES = (13, 1, 21, 32)


class TwoLeaves:
    """The systems of a batch of one leaf, by turns in one of two."""

    def __init__(self, batch):
        numbers = range(len(batch.systems))
        counts = [system.sizes for system in batch.systems]
        self.rows = [
            np.flatnonzero(np.asarray(batch.prefix.ids) % 2 == parity) for parity in (0, 1)
        ]
        self.prefix = [
            SystemIndex.from_sizes([counts[at] * (at % 2 == parity) for at in numbers])
            for parity in (0, 1)
        ]

    def split(self, leaf):
        return [leaf[rows] for rows in self.rows]


CASES = KINDS + KINDS_OF_LIMITS


@pytest.mark.parametrize("case", one_in(3, CASES, first=1))
def test_systems_in_different_leaves_have_the_bits_of_systems_in_one(case):
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    two = TwoLeaves(batch)
    transform = case.make(batch.numbers)

    gradient = batch.params
    state = transform.init(batch.params, batch.prefix)
    split_state = transform.init(two.split(batch.params), two.prefix)
    for _ in range(5):
        step, state = update(transform, gradient, state, batch.params)
        split_step, split_state = update(
            transform, two.split(gradient), split_state, two.split(batch.params)
        )
        gradient = 0.7 * gradient
    assert same_bits(split_step, two.split(step))


@pytest.mark.parametrize("case", one_in(4, [case for case in CASES if not case.is_by_leaf]))
def test_a_system_divided_among_leaves_takes_the_same_step(case):
    """Up to rounding: its sums are made leaf by leaf, so in another order."""
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    transform = case.make(batch.numbers)
    halves = lambda x: [x[::2], x[1::2]]  # noqa: E731
    prefix = [SystemIndex.from_ids(ids, len(SIZES)) for ids in halves(np.asarray(batch.prefix.ids))]
    state = transform.init(batch.params, batch.prefix)
    split_state = transform.init(halves(batch.params), prefix)
    step, _ = update(transform, batch.params, state, batch.params)
    split, _ = update(transform, halves(batch.params), split_state, halves(batch.params))
    # Sums of at most 156 products differ by a few of 2.2e-16.
    for got, expected in zip(split, halves(step), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def program(transform, params, prefix) -> str:
    """An update from the start, as a compiler gets it, with numbers for the names of its arrays."""
    leaves, structure = jax.tree.flatten((params, transform.init(params, prefix)))

    def update(*leaves):
        params, state = structure.unflatten(leaves)
        return jax.tree.leaves(transform.update(params, state, params))

    return jax.jit(update).lower(*leaves).as_text()


@pytest.mark.parametrize("case", one_in(3, KINDS, first=1))
def test_the_names_of_leaves_change_no_bit(case):
    """They change no operation."""
    batch = make_batch(BOWL, make_systems(BOWL, *SIZES), CONTIGUOUS, np.float64)
    transform = case.make(batch.numbers)
    named = program(transform, {"positions": batch.params}, {"positions": batch.prefix})
    assert named == program(transform, batch.params, batch.prefix)
