"""What stands beside a system, before it or after it, changes none of its bits."""

import numpy as np
import pytest

from cases import (
    BOWL,
    CONTIGUOUS,
    SHUFFLED_WITH_GAPS,
    TRANSFORMS,
    make_batch,
    make_systems,
    not_variants,
    same_bits,
    steps,
    take,
    take_state,
)
from cover import named_daily, one_in

SIZES = (13, 1, 40, 13)
ORDERS = {"reversed": (3, 2, 1, 0), "rotated": (2, 3, 0, 1)}


def parts(case, batch):
    """Params and state of each system after some steps, by the number of the system."""
    transform = case.make(batch.numbers)
    state = transform.init(batch.params, batch.prefix)
    params, state = steps(transform, batch, batch.params, state, 20)
    return {
        number: (take(batch.prefix, params, at), take_state(state, at))
        for at, number in enumerate(batch.numbers)
    }


@pytest.mark.parametrize("case", one_in(2, not_variants(TRANSFORMS), first=1))
@pytest.mark.parametrize("order", named_daily(ORDERS, ["reversed"]))
def test_the_order_of_systems_changes_no_bit(case, order):
    systems = make_systems(BOWL, *SIZES)
    expected = parts(case, make_batch(BOWL, systems, CONTIGUOUS, np.float32))
    reordered = [systems[at] for at in order]
    assert same_bits(parts(case, make_batch(BOWL, reordered, CONTIGUOUS, np.float32)), expected)


@pytest.mark.parametrize("case", one_in(2, not_variants(TRANSFORMS)))
def test_the_order_of_rows_of_different_systems_changes_no_bit(case):
    systems = make_systems(BOWL, *SIZES)
    expected = parts(case, make_batch(BOWL, systems, CONTIGUOUS, np.float32))
    shuffled = make_batch(BOWL, systems, SHUFFLED_WITH_GAPS, np.float32)
    assert same_bits(parts(case, shuffled), expected)


@pytest.mark.parametrize("case", one_in(2, not_variants(TRANSFORMS)))
def test_another_neighbour_changes_no_bit(case):
    one, *others = make_systems(BOWL, *SIZES)
    other = make_systems(BOWL, 1, 1, 1, 1, 1, 40, 13, 1)[5:]
    expected = parts(case, make_batch(BOWL, [one, *others], CONTIGUOUS, np.float32))[0]
    beside = make_batch(BOWL, [one, *other], CONTIGUOUS, np.float32)
    assert same_bits(parts(case, beside)[0], expected)
