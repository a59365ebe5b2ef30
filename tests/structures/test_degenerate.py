"""Atoms at one place and angles of 0 and 180 degrees: alone and in a batch, the same bits and ends.

What such a system has that is not finite stays where it is, and whether it has it does not depend
on how many neighbours other atoms have.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.data import chemical_symbols

from basinax import FIRE, Status
from basinax.atoms import EMT, AbstractAtomEnergyPotential, AbstractPotential, ZhouEAM, relax
from comparison import FIELDS, same_bits
from covalent import POTENTIALS as COVALENT
from cover import every_day
from ions import POTENTIALS as IONIC
from metal_tables import potential as of_tables
from structures import (
    POTENTIALS as NOBLE,
    evaluate,
    jitted,
    jitted_as_users,
    results_of,
)


class Products(AbstractAtomEnergyPotential):
    """Bonds and angles, of which those that are not there are multiplied by zero."""

    species: tuple[int, ...] = eqx.field(static=True, default=(14,))

    def reach(self):
        return jnp.full((1, 1), 4.0)

    def energy(self, near):
        there = near.is_there.astype(near.distances.dtype)
        units = near.vectors / near.distances[:, None]
        others = 1.0 - jnp.eye(len(there), dtype=there.dtype)
        cosines = jnp.clip(units @ units.T, -1.0, 1.0)
        angles = jnp.sqrt(1.0 - cosines) * others * there[:, None] * there[None, :]
        return jnp.sum(there / near.distances) + jnp.sum(angles)


class Case(NamedTuple):
    potential: AbstractPotential
    dtype: type
    shapes: str = "few_shapes"
    """A fixture; the one that other tests of it have, so that they share programs."""
    program: Callable = jitted
    """What is exhaustive is compiled as users do."""


SINGLE, DOUBLE, SHORT = np.float32, np.float64, "few_short_shapes"
CASES = {
    "LennardJones": Case(NOBLE["shifted"], DOUBLE, program=jitted_as_users),
    "LennardJones, smooth": Case(NOBLE["named and smooth"], SINGLE),
    "Morse": Case(NOBLE["Morse"], DOUBLE),
    "Buckingham": Case(IONIC["short and unshifted"], SINGLE),
    "EMT": Case(EMT(), DOUBLE, program=jitted_as_users),
    "EAM": Case(of_tables("mix.eam.fs"), SINGLE),
    "ZhouEAM": Case(ZhouEAM("Cu"), SINGLE),
    "StillingerWeber": Case(COVALENT["StillingerWeber"][0], SINGLE, SHORT),
    "StillingerWeber, mixed": Case(COVALENT["StillingerWeber, mixed"][0], DOUBLE, SHORT),
    "Tersoff": Case(COVALENT["Tersoff"][0], SINGLE, SHORT, jitted_as_users),
    "Tersoff, mixed": Case(COVALENT["Tersoff, mixed"][0], DOUBLE, SHORT),
    "an energy of atoms": Case(Products(), SINGLE, SHORT, jitted_as_users),
}

RARE = ("LennardJones, smooth", "StillingerWeber, mixed", "Tersoff, mixed", "ZhouEAM")
RARE += ("Morse", "StillingerWeber", "Tersoff", "EAM", "an energy of atoms")
"""Their folds are those of others, of pairs and densities; angles and energies of atoms compile for
longest."""

# Coordinates in units of 0.6 cutoffs.
GEOMETRIES = {
    "two at one place": [[0, 0, 0], [0, 0, 0]],
    "two at one place, and a third": [[0, 0, 0], [0, 0, 0], [1, 0, 0]],
    "two at one place, and two": [[0.1, 0.2, 0], [0.1, 0.2, 0], [0.1, 1.2, 0], [1, 0.2, 0]],
    "three at one place": [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    "a straight angle": [[-1, 0, 0], [0, 0, 0], [1, 0, 0]],
    "a straight angle along no axis": [[-0.5, -0.5, -0.5], [0, 0, 0], [0.5, 0.5, 0.5]],
    "no angle": [[0, 0, 0], [0, 0.5, 0], [0, 1, 0]],
    "a right angle": [[0, 0, 0], [1, 0, 0], [0, 1, 0]],
}


def scaled(potential, name: str) -> Atoms:
    positions = 0.6 * potential.cutoff * np.array(GEOMETRIES[name], float)
    return Atoms(np.resize(elements_of(potential), len(positions)), positions)


def elements_of(potential) -> list[str]:
    return [chemical_symbols[z] for z in potential.species] or ["Ar"]


def crowd(potential) -> Atoms:
    """Atoms with more neighbours."""
    atoms = bulk("Cu", "fcc", a=0.9 * potential.cutoff, cubic=True).repeat(2)
    atoms.symbols = np.resize(elements_of(potential), len(atoms))
    atoms.rattle(0.05 * potential.cutoff, seed=1)
    return atoms


def is_met(atoms: Atoms) -> bool:
    """Whether two atoms are at one place."""
    return len(np.unique(atoms.positions, axis=0)) < len(atoms)


@pytest.mark.parametrize("name", every_day(list(CASES), lambda name: name not in RARE))
def test_a_degenerate_geometry_has_the_bits_it_has_alone(name, request):
    potential, dtype, shapes, program = CASES[name]
    program = jitted_as_users if name in RARE else program
    request.getfixturevalue(shapes)
    atoms = [scaled(potential, geometry) for geometry in GEOMETRIES]
    batch, got = evaluate([*atoms, crowd(potential)], potential, dtype, program=program)
    for k, geometry in enumerate(GEOMETRIES):
        batched, alone = (
            results_of(batch, got, k),
            results_of(*evaluate([atoms[k]], potential, dtype, program=program), 0),
        )
        for x, y in zip(batched, alone, strict=True):
            np.testing.assert_array_equal(x, y, err_msg=geometry)
        forces, _, energy, _ = alone
        is_finite = np.isfinite(forces).all() and np.isfinite(energy)
        assert not (is_finite and is_met(atoms[k])), geometry


@pytest.mark.exhaustive
def test_a_mask_that_multiplies_does_the_same_where_a_list_is_full():
    """Alone each atom has eight neighbours in a list of eight, two of them at one place."""
    potential = Products()
    positions = np.random.default_rng(0).uniform(0.0, 2.0, (9, 3))
    positions[1] = positions[0]
    atoms = Atoms("Si9", positions)
    evaluated = functools.partial(evaluate, program=jitted_as_users)
    batch, got = evaluated([atoms, crowd(potential)], potential, np.float32)
    alone = results_of(*evaluated([atoms], potential, np.float32), 0)
    for x, y in zip(results_of(batch, got, 0), alone, strict=True):
        np.testing.assert_array_equal(x, y)


@functools.cache
def geometries_of(name):
    potential = CASES[name].potential
    return [scaled(potential, geometry) for geometry in GEOMETRIES], crowd(potential)


@pytest.mark.exhaustive  # every day another one of two atoms at one place: test_optimizers.py
@pytest.mark.usefixtures("few_short_shapes", "few_places")
@pytest.mark.parametrize("name", ["Tersoff", "LennardJones"])
def test_a_relaxation_from_there_ends_alone_as_in_a_batch(name):
    potential, (atoms, more) = CASES[name].potential, geometries_of(name)
    batch = relax([*atoms, more], potential, FIRE(), max_steps=3)
    for k, structure in enumerate(atoms):
        assert (batch.status[k] == Status.NOT_FINITE) == is_met(structure)
        alone = relax([structure], potential, FIRE(), max_steps=3)
        for field in FIELDS:
            assert same_bits(getattr(batch, field)[k], getattr(alone, field)[0]), field
        forces = [r.atoms[j].get_forces() for r, j in ((batch, k), (alone, 0))]
        np.testing.assert_array_equal(*forces)
