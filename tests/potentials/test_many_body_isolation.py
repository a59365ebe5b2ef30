"""Many-body potentials give a system the same bits in every batch and alone, relaxed ones too."""

import functools
import itertools

import jax
import numpy as np
import pytest

from basinax import FIRE
from basinax.atoms import relax
from basinax.numerics import xla
from covalent import POTENTIALS, SYSTEMS, of
from cover import exhaustive
from structures import (
    evaluate as plainly,
    evaluate_as_users as evaluate,
    evaluated_op_by_op,
    evaluated_with,
    jitted_as_users as jitted,
    listed,
    moved,
    results_of,
    with_programs_alone,
)
from xla import jit_as_users

pytestmark = pytest.mark.usefixtures("few_short_shapes")

NAMES = list(SYSTEMS)
DTYPES = (np.float32, np.float64)
# What is not here has other numbers, and the code of the mixed one.
CHOSEN = ("StillingerWeber", "StillingerWeber, mixed", "Tersoff", "Tersoff, mixed")
DTYPE_OF = dict(zip(CHOSEN, itertools.cycle(DTYPES), strict=False))
"""The two by turns, so that each kind of potential has both; all would take twice as long.

A single element without tables is exhaustive for Stillinger and Weber, and every day for Tersoff.
"""


def cells_of(*names):
    """Of these every day, of the others in exhaustive runs."""
    cells = [(n, DTYPE_OF[n]) for n in CHOSEN]
    return [pytest.param(*x) if x[0] in names else exhaustive(*x) for x in cells]


def potentials(*names):
    return pytest.mark.parametrize(("name", "dtype"), cells_of(*names))


# Folds over angles are those of Stillinger and Weber, too; the order of each potential is looked
# through every day (test_order_of_potentials.py).
MIXED = "Tersoff, mixed"
mixed_potentials = potentials(MIXED)


@functools.cache
def systems(name):
    _, elements, scale = POTENTIALS[name]
    return [of(elements, s, scale) for s in NAMES]


@functools.cache
def together(name, dtype):
    """All systems in one batch; the first test shows that each is as it is alone."""
    return evaluate(systems(name), POTENTIALS[name][0], dtype)


def assert_same_bits(got, expected, name):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b), err_msg=name)


@with_programs_alone(cells_of(MIXED), as_users=(MIXED, "StillingerWeber, mixed"))
def test_batched_equals_alone(name, dtype, program):
    batch, got = together(name, dtype)
    # Elsewhere every one of them is compared.
    for k in map(NAMES.index, ("skewed and tiny", "cluster", "squeezed")):
        own = systems(name)[k : k + 1]
        alone = plainly(own, POTENTIALS[name][0], dtype, program=program)
        assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), NAMES[k])


@potentials()  # every day of EMT: test_potential_isolation.py
def test_programs_of_short_runs_have_the_bits_of_others(name, dtype):
    batch, expected = together(name, dtype)
    got = evaluated_with(xla.SHORT, batch, POTENTIALS[name][0])
    assert_same_bits(jax.tree.leaves(got), jax.tree.leaves(expected), name)


@potentials("Tersoff, mixed")
def test_order_copies_padding_and_skin_change_nothing(name, dtype):
    """Two of each but the largest: they have room in the program of all together."""
    random = np.random.default_rng(1)
    copies = [1 + (len(a) < 20) for a in systems(name)]
    order = random.permutation(np.repeat(np.arange(len(NAMES)), copies))
    atoms, built_at = [systems(name)[k] for k in order], []
    for a in atoms:
        built_at.append(a.copy())
        built_at[-1].positions += random.uniform(-0.4, 0.4, a.positions.shape)
    # Displacements reach 0.7 Å at most, half of this skin.
    batch, got = evaluate(atoms, POTENTIALS[name][0], dtype, skin=1.4, built_at=built_at)
    for at, k in enumerate(order):
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, at), expected, NAMES[k])


@pytest.mark.exhaustive
@potentials("Tersoff")
def test_a_jitted_evaluation_equals_the_one_op_by_op(name, dtype):
    potential = POTENTIALS[name][0]
    for k in map(NAMES.index, ("bent",)):
        # Alone they run the program that others ran alone.
        batch, got = evaluate(systems(name)[k : k + 1], potential, dtype)
        slowly = evaluated_op_by_op(batch, potential)
        assert_same_bits(results_of(batch, got, 0), results_of(batch, slowly, 0), NAMES[k])


@potentials()  # every day of Buckingham: test_potential_isolation.py
def test_constant_parameters_give_the_bits_of_traced_ones(name, dtype):
    """Both as users compile them: with other options XLA folds constants otherwise."""
    potential, (batch, got) = POTENTIALS[name][0], together(name, dtype)
    constant = jit_as_users(lambda b, n: potential(b, n, stress=True))(
        batch, listed(batch, potential)
    )
    assert_same_bits(jax.tree.leaves(constant), jax.tree.leaves(got), name)


@mixed_potentials
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_positions_that_are_not_finite_touch_no_other_system(name, dtype, value):
    potential, (batch, _) = POTENTIALS[name][0], together(name, dtype)
    broken = range(0, len(NAMES), 3)
    positions = np.array(batch.positions)
    positions[np.isin(np.asarray(batch.index.ids), broken)] = value
    got = jitted(potential, moved(batch, positions), listed(batch, potential))
    for k in set(range(len(NAMES))) - set(broken):
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, k), expected, NAMES[k])


@mixed_potentials
def test_an_atom_without_a_finite_position_shows_in_its_systems_energy(name, dtype):
    potential, (batch, _) = POTENTIALS[name][0], together(name, dtype)
    for k in range(len(NAMES)):
        positions = np.array(batch.positions)
        positions[np.flatnonzero(np.asarray(batch.index.ids) == k)[-1], 1] = np.nan
        got = jitted(potential, moved(batch, positions), listed(batch, potential))
        assert np.isnan(np.asarray(got.energies)[: len(NAMES)]).tolist() == [
            k == other for other in range(len(NAMES))
        ]


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [exhaustive("StillingerWeber, mixed", np.float32), exhaustive("Tersoff", np.float64)],
)
def test_four_hundred_steps_of_a_relaxation_have_the_bits_they_have_alone(name, dtype):
    few = [systems(name)[NAMES.index(n)] for n in ("cell of 8", "cluster", "squeezed")]
    potential = POTENTIALS[name][0]
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(few, potential, FIRE(), **settings)
    # Another skin, so that lists are made at other steps.
    alone = relax(few[1:2], potential, FIRE(), skin=0.2, **settings)
    got = (batch.atoms[1].positions, batch.atoms[1].get_forces(), batch.energies[1])
    expected = (alone.atoms[0].positions, alone.atoms[0].get_forces(), alone.energies[0])
    assert_same_bits(got, expected, "cluster")
    assert batch.steps[1] == alone.steps[0] == 400
