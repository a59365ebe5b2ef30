"""Energies, forces and stresses of a system have the same bits in every batch and alone."""

import functools
import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from ase import Atoms

from basinax.atoms import EMT, AbstractPotential, Batch
from basinax.numerics import xla
from cover import one_in
from ions import POTENTIALS as OF_IONS, SYSTEMS as IONS
from metals import SYSTEMS as METALS
from structures import (
    POTENTIALS,
    STRUCTURES,
    evaluate as plainly,
    evaluate_as_users as evaluate,
    evaluated_op_by_op,
    evaluated_with,
    jitted_as_users as jitted,
    listed,
    mixed,
    moved,
    results_of,
    with_programs_alone,
)
from xla import jit_as_users

pytestmark = pytest.mark.usefixtures("few_shapes")


class Case(NamedTuple):
    potential: AbstractPotential
    names: list[str]
    systems: list[Atoms]
    few: tuple[str, ...]
    """For what takes long."""


# What else there is differs from these in its list alone, which other tests compare.
LEFT_OUT = ("cell of 256", "left-handed", "open in two directions", "unwrapped", "wire")
NOBLE = {
    name: mixed(atoms, k)
    for k, (name, atoms) in enumerate(
        (name, atoms) for name, atoms in STRUCTURES.items() if name not in LEFT_OUT
    )
}


def of_noble_gases(name, largest=64):
    few = ("cell of four", "slab", "needle", "open pair")
    chosen = {key: atoms for key, atoms in NOBLE.items() if len(atoms) <= largest}
    return Case(POTENTIALS[name], list(chosen), list(chosen.values()), few)


def of_metals(potential, *further):
    few = ("one open atom", "slab with atoms", "slab with a molecule", "molecule")
    names = [*few, "cluster of 13", "alloy with gases", *further]
    return Case(potential, names, [METALS[name] for name in names], few)


def of_ions(name):
    few = ("open pair", "cluster of 13")
    names = [*few, "slab", "skewed and tiny", "one open atom", "silica"]
    return Case(OF_IONS[name], names, [IONS[name] for name in names], few)


# "smooth" and "named" are covered by "named and smooth" and "shifted". Sums over hundreds of atoms,
# which are further programs, are those of one potential as of another.
CASES = {
    "shifted": of_noble_gases("shifted", largest=400),
    "named and smooth": of_noble_gases("named and smooth"),
    "EMT": of_metals(EMT(), "cell of 32", "skewed and tiny", "tiny and light"),
    "EMT with the cutoff of ASAP": of_metals(EMT(asap_cutoff=True)),
    "Morse": of_noble_gases("Morse"),
    "Buckingham": of_ions("short and unshifted"),
}


RARE = ("named and smooth", "EMT with the cutoff of ASAP", "Morse")
BY_TURNS = [
    pytest.param(name, dtype, id=f"{name}-{dtype.__name__}", marks=marks)
    for name, dtype in zip(CASES, itertools.cycle((np.float64, np.float32)), strict=False)
    for marks in [[pytest.mark.exhaustive] * (name in RARE)]
]
"""Every potential with one of the dtypes: another with the same code has the other one.

The order of each is looked through every day (test_order_of_potentials.py). Mixed species relax
alone and in a batch every day in test_relax.py. EMT is in float32 every day in test_narrowing.py,
and with ASAP's cutoff in test_emt.py.
"""
by_turns = pytest.mark.parametrize(("name", "dtype"), BY_TURNS)


def assert_same_bits(got, expected, name):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b), err_msg=name)


@functools.cache
def together(name, dtype):
    """All systems in one batch; the first test shows that each is as it is alone."""
    return evaluate(CASES[name].systems, CASES[name].potential, dtype)


def assert_as_together(batch, got, name, dtype, order=None, folded=None):
    names = CASES[name].names
    order = np.arange(len(names)) if order is None else order
    for at in range(len(order)) if folded is None else folded:
        k = order[at]
        expected = results_of(*together(name, dtype), k)
        assert_same_bits(results_of(batch, got, at), expected, names[k])


@with_programs_alone(BY_TURNS, as_users=("Buckingham", "Morse"))
def test_batched_equals_alone(name, dtype, program):
    """Also from lists without a skin, where folds end with the longest, as in relaxations.

    What fills one block has a program of its own alone, which two of the potentials run.
    """
    potential, names, systems, _ = CASES[name]
    batch, got = together(name, dtype)
    for k, atoms in enumerate(systems):
        if len(atoms) <= 8 and name not in ("shifted", "EMT"):
            continue
        alone = plainly([atoms], potential, dtype, skin=0.0, folded=[0], program=program)
        assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), names[k])


@pytest.mark.parametrize(("name", "dtype"), one_in(4, BY_TURNS, first=1))
def test_programs_of_short_runs_have_the_bits_of_others(name, dtype):
    batch, expected = together(name, dtype)
    got = evaluated_with(xla.SHORT, batch, CASES[name].potential)
    assert_same_bits(jax.tree.leaves(got), jax.tree.leaves(expected), name)


@pytest.mark.parametrize(("name", "dtype"), one_in(2, BY_TURNS, first=1))
def test_order_copies_padding_and_leaving_out_others_change_nothing(name, dtype):
    """Systems in chunks of a batch, by how long their lists are, as in relaxations.

    Two of each, so that they have room in the program of all together.
    """
    potential, names, systems, _ = CASES[name]
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(names)), 2))
    chosen = [systems[k] for k in order]
    folded = np.flatnonzero(np.random.default_rng(2).random(len(order)) < 0.6)
    batch, got = evaluate(chosen, potential, dtype, folded=folded)
    assert_as_together(batch, got, name, dtype, order, folded)


@by_turns
def test_skin_and_the_positions_of_the_last_rebuild_change_nothing(name, dtype):
    random, systems = np.random.default_rng(2), CASES[name].systems
    built_at = []
    for atoms in systems:
        near = atoms.copy()
        near.set_positions(near.positions + random.uniform(-0.5, 0.5, near.positions.shape))
        built_at.append(near)
    # Displacements reach 0.87 Å at most, half of this skin.
    batch, got = evaluate(systems, CASES[name].potential, dtype, skin=1.8, built_at=built_at)
    assert_as_together(batch, got, name, dtype)


@pytest.mark.exhaustive  # every day test_order_of_potentials.py looks through the order of all
@pytest.mark.parametrize(("name", "dtype"), BY_TURNS)
def test_a_jitted_evaluation_equals_the_one_op_by_op(name, dtype):
    potential, names, systems, few = CASES[name]
    chosen = [systems[names.index(n)] for n in few]
    batch, got = evaluate(chosen, potential, dtype, folded=range(len(few)))
    slowly = evaluated_op_by_op(batch, potential)
    for k in range(len(few)):
        assert_same_bits(results_of(batch, got, k), results_of(batch, slowly, k), few[k])


@pytest.mark.parametrize(("name", "dtype"), one_in(4, BY_TURNS, first=2))
def test_constant_parameters_give_the_bits_of_traced_ones(name, dtype):
    """Both as users compile them: with other options XLA folds constants otherwise."""
    potential, (batch, got) = CASES[name].potential, together(name, dtype)
    neighbors = listed(batch, potential)
    constant = jit_as_users(lambda b, n: potential(b, n, stress=True))(batch, neighbors)
    assert_same_bits(jax.tree.leaves(constant), jax.tree.leaves(got), name)


@by_turns
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_positions_that_are_not_finite_touch_no_other_system(name, dtype, value):
    potential, names, systems, _ = CASES[name]
    batch = Batch.from_atoms(systems, dtype)
    neighbors = listed(batch, potential)
    ids = np.asarray(batch.index.ids)
    broken = [k for k in range(len(names)) if k % 3 == 0]
    positions = np.array(batch.positions)
    positions[np.isin(ids, broken)] = value
    got = jitted(potential, moved(batch, positions), neighbors)
    for k in range(len(names)):
        if k not in broken:
            expected = results_of(*together(name, dtype), k)
            assert_same_bits(results_of(batch, got, k), expected, names[k])


@pytest.mark.parametrize("atom", [0, 8, 12])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["shifted", "EMT"])
def test_an_atom_without_a_finite_position_shows_in_its_systems_energy(name, atom, value):
    """Also a lonely one, whose slots are all padding."""
    potential, names, systems, _ = CASES[name]
    batch = Batch.from_atoms([systems[names.index(n)] for n in ("one open atom", "cluster of 13")])
    neighbors = listed(batch, potential, folded=[0, 1])
    positions = np.array(batch.positions)
    positions[atom, 1] = value
    got = jitted(potential, moved(batch, positions), neighbors)
    ends = int(batch.index.ids[atom])
    assert np.isnan(got.energies[ends])
    assert np.isfinite(got.energies[1 - ends])
