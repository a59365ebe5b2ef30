"""Embedded atoms of a system have the same bits in every batch and alone, relaxed ones too."""

import functools

import jax
import numpy as np
import pytest

from basinax import FIRE
from basinax.atoms import NeighborTable, ZhouEAM, relax
from cover import exhaustive
from metal_tables import ELEMENTS, metal, potential
from structures import (
    SKIN,
    evaluate as plainly,
    evaluate_as_users as evaluate,
    evaluated_op_by_op,
    jitted_as_users as jitted,
    moved,
    rattled,
    results_of,
    with_programs_alone,
)
from xla import jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")

NAMES = (
    "one open atom",
    "cell of 32",
    "skewed and tiny",
    "cluster of 13",
    "slab and a far atom",
    "needle",
)
MAKERS = {
    "tables": lambda: potential("mix.eam.fs"),
    "Zhou": lambda: ZhouEAM(*ELEMENTS),
    "tables of one element": lambda: potential("one.eam"),
    "Zhou, one element": lambda: ZhouEAM("Cu"),
}
SINGLE = ("tables of one element", "Zhou, one element")
MADE = functools.cache(lambda name: MAKERS[name]())
CROSSED = [exhaustive("tables", np.float32), pytest.param("Zhou", np.float64)]
crossed = pytest.mark.parametrize(("name", "dtype"), CROSSED)
"""Each of several elements in one dtype, and of one element in the other one.

Tables are read every day alone and in a batch with one element.
"""


@functools.cache
def systems(name):
    elements = ("Cu",) if name in SINGLE else ELEMENTS
    return [rattled(metal(s, elements, seed=k), k) for k, s in enumerate(NAMES)]


@functools.cache
def together(name, dtype):
    """All systems in one batch; the first test shows that each is as it is alone."""
    return evaluate(systems(name), MADE(name), dtype)


def assert_same_bits(got, expected, name):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b), err_msg=name)


@with_programs_alone(CROSSED)
def test_batched_equals_alone(name, dtype, program):
    """Also from lists without a skin, where folds end with the longest, as in relaxations."""
    batch, got = together(name, dtype)
    # Elsewhere every one of them is compared.
    how = {"skin": 0.0, "folded": [0]}
    # Of one shape alone: the tiny one is compared with one element, below.
    for k in (1, 3):
        alone = plainly(systems(name)[k : k + 1], MADE(name), dtype, program=program, **how)
        assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), NAMES[k])


@with_programs_alone([pytest.param(SINGLE[0], np.float64), exhaustive(SINGLE[1], np.float32)])
def test_batched_equals_alone_with_one_element(name, dtype, program):
    """It differs from several in its lookup alone."""
    batch, got = together(name, dtype)
    k = NAMES.index("skewed and tiny")
    alone = plainly(systems(name)[k : k + 1], MADE(name), dtype, program=program)
    assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), NAMES[k])


@crossed
def test_order_copies_padding_and_skin_change_nothing(name, dtype):
    random = np.random.default_rng(1)
    order = random.permutation(np.repeat(np.arange(len(NAMES)), 2))
    atoms, built_at = [systems(name)[k] for k in order], []
    for a in atoms:
        built_at.append(a.copy())
        built_at[-1].positions += random.uniform(-0.4, 0.4, a.positions.shape)
    # Displacements reach 0.7 Å at most, half of this skin.
    batch, got = evaluate(atoms, MADE(name), dtype, skin=1.4, built_at=built_at)
    for at, k in enumerate(order):
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, at), expected, NAMES[k])


@pytest.mark.parametrize(
    ("name", "dtype"), [exhaustive("tables", np.float32), exhaustive("Zhou", np.float64)]
)
def test_a_jitted_evaluation_equals_the_one_op_by_op(name, dtype):
    few = [systems(name)[k] for k in (0, 5)]
    batch, got = evaluate(few, MADE(name), dtype, folded=[0, 1])
    slowly = evaluated_op_by_op(batch, MADE(name))
    for k in range(len(few)):
        assert_same_bits(results_of(batch, got, k), results_of(batch, slowly, k), str(k))


@pytest.mark.parametrize(
    ("name", "dtype"), [exhaustive("tables", np.float32), exhaustive("Zhou", np.float64)]
)
def test_constant_parameters_give_the_bits_of_traced_ones(name, dtype):
    """Both as users compile them: with other options XLA folds constants otherwise."""
    batch, got = together(name, dtype)
    neighbors = NeighborTable(batch, MADE(name).cutoff, SKIN).to_device()
    constant = jit_as_users(lambda b, n: MADE(name)(b, n, stress=True))(batch, neighbors)
    assert_same_bits(jax.tree.leaves(constant), jax.tree.leaves(got), name)


@crossed
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_positions_that_are_not_finite_touch_no_other_system(name, dtype, value):
    batch, _ = together(name, dtype)
    neighbors = NeighborTable(batch, MADE(name).cutoff, SKIN).to_device()
    broken = range(0, len(NAMES), 3)
    positions = np.array(batch.positions)
    positions[np.isin(np.asarray(batch.index.ids), broken)] = value
    got = jitted(MADE(name), moved(batch, positions), neighbors)
    for k in set(range(len(NAMES))) - set(broken):
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, k), expected, NAMES[k])


@crossed
def test_an_atom_without_a_finite_position_shows_in_its_systems_energy(name, dtype):
    batch, _ = together(name, dtype)
    neighbors = NeighborTable(batch, MADE(name).cutoff, SKIN).to_device()
    for k in range(len(NAMES)):
        positions = np.array(batch.positions)
        positions[np.flatnonzero(np.asarray(batch.index.ids) == k)[-1], 1] = np.nan
        got = jitted(MADE(name), moved(batch, positions), neighbors)
        assert np.isnan(np.asarray(got.energies)[: len(NAMES)]).tolist() == [
            k == other for other in range(len(NAMES))
        ]


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("name", "dtype"), [exhaustive("tables", np.float32), exhaustive("Zhou", np.float64)]
)
def test_four_hundred_steps_of_a_relaxation_have_the_bits_they_have_alone(name, dtype):
    atoms = [systems(name)[NAMES.index(n)] for n in ("cell of 32", "cluster of 13")]
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, MADE(name), FIRE(), **settings)
    assert batch.steps.max() == 400
    for k, a in enumerate(atoms):
        # Another skin, so that lists are made at other steps.
        alone = relax([a], MADE(name), FIRE(), skin=0.2, **settings)
        got = (batch.atoms[k].positions, batch.atoms[k].get_forces(), batch.energies[k])
        expected = (alone.atoms[0].positions, alone.atoms[0].get_forces(), alone.energies[0])
        assert_same_bits(got, expected, str(k))
        assert batch.steps[k] == alone.steps[0]
