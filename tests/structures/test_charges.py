"""Charge and spin of structures reach models, and those that do not use them are named."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import FixAtoms

from basinax import FIRE
from basinax.atoms import ASECalculator, JaxModel, LennardJones, evaluate, relax
from basinax.structures.charges import (
    Unused,
    charge_of,
    spin_of,
    unused_of,
    uses_of,
    warn_of_unused,
)
from comparison import same_ends


def ion(symbols: str = "OH", *, charges=None, moments=None, pbc=False, **info) -> Atoms:
    atoms = Atoms(symbols, [[0, 0, 0], [0, 0, 0.98]], cell=[5, 5, 5], pbc=pbc, info=info)
    if charges is not None:
        atoms.set_initial_charges(charges)
    if moments is not None:
        atoms.set_initial_magnetic_moments(moments)
    return atoms


TOTALS = {
    "nothing": (ion(), 0, 1),
    "info": (ion(charge=-1, spin=3), -1, 3),
    "info of NumPy's and of files": (ion(charge=np.int64(2), spin="3"), 2, 3),
    "initial charges": (ion(charges=[-0.7, -0.3]), -1, 1),
    "charges of a few digits": (ion(charges=[-0.703, -0.299]), -1, 1),
    "a fraction": (ion(charges=[-0.5, 0.0]), -0.5, 1),
    "info before initial values": (ion(charge=1, charges=[0, -1], spin=1, moments=[1, 1]), 1, 1),
    "initial moments": (molecule("O2"), 0, 3),
    "moments in three directions": (ion(moments=[[0, 0, 1], [0, 0, -1]]), 0, 1),
    "a crystal has none": (bulk("Fe"), 0, 0),
    "a crystal with some": (ion(pbc=True, spin=2), 0, 2),
}


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_those_of_info_or_the_sums_over_atoms(name):
    atoms, charge, spin = TOTALS[name]
    assert (charge_of(atoms), spin_of(atoms)) == (charge, spin)


def springs(vectors, numbers, senders, receivers):
    length = jnp.sqrt((vectors**2).sum(1))
    bonds = jnp.where(length < 3.0, (length - 1.0) ** 2, 0.0)
    return jnp.zeros(len(numbers), vectors.dtype).at[receivers].add(bonds)


def of_ions(vectors, numbers, senders, receivers, charge, *, spin):
    """Bonds are longer in anions, and softer with more unpaired electrons."""
    assert charge.dtype == spin.dtype == vectors.dtype
    assert charge.shape == spin.shape == ()
    length = jnp.sqrt((vectors**2).sum(1)) + 0.1 * charge
    bonds = jnp.where(length < 2.5, (length - 1.0) ** 2 / spin, 0.0)
    return jnp.zeros(len(numbers), vectors.dtype).at[receivers].add(bonds)


NEUTRAL, IONS = JaxModel.of_vectors(springs, 3.0), JaxModel.of_vectors(of_ions, 3.0)
ARGON = LennardJones.named("Ar", cutoff=6.0)
ANION, TRIPLET = ion(charge=-1), ion(moments=[2, 0])
POLAR = ion(charges=[-0.5, 0.5])

USES = {
    "a potential": (ARGON, ANION, "LennardJones does not use charge -1 .of system 1 .HO.."),
    "a potential, charges": (ARGON, POLAR, "does not use charges .of system 1 .HO.."),
    "a model": (NEUTRAL, ANION, "JaxModel does not use charge -1 .of system 1"),
    "a model, spin": (NEUTRAL, TRIPLET, "JaxModel does not use magnetic moments .of system 1"),
    "a model of ions": (IONS, ANION, None),
    "a model of ions, charges": (IONS, POLAR, None),
    "a model of ions, moments": (IONS, TRIPLET, None),
    "moments of a crystal": (NEUTRAL, bulk("Fe"), None),
    "a calculator": (ASECalculator(ASELennardJones()), ANION, None),
    "a potential as a calculator": (ARGON.calculator(), ANION, "does not use charge -1"),
    "each its own": (None, ANION, None),
}


@pytest.mark.parametrize("name", USES)
def test_what_is_not_used_is_named(name):
    potential, atoms, said = USES[name]
    if said is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warn_of_unused([ion(), atoms], potential)
    else:
        with pytest.warns(Unused, match=said):
            warn_of_unused([ion(), atoms], potential)


def test_files_name_masses_too_and_no_moments_of_a_crystal():
    iron = bulk("Fe")
    iron.set_masses([57.0])
    assert list(unused_of(iron, uses_of(ARGON))) == ["masses of isotopes"]
    assert list(unused_of(iron, uses_of(ASELennardJones()))) == []
    assert list(unused_of(molecule("O2"), uses_of(ARGON))) == ["magnetic moments"]


def test_ions_have_the_same_bits_alone_and_in_a_batch():
    few = [ion(), ANION, TRIPLET, ion(charge=1, spin=2)]
    for atoms in few:
        atoms.set_constraint(FixAtoms([0]))
    found = evaluate(few, IONS)
    expected = [2 * (0.98 + 0.1 * q - 1) ** 2 / s for q, s in ((0, 1), (-1, 1), (0, 3), (1, 2))]
    np.testing.assert_allclose(found.energies, expected, rtol=1e-12)
    batch = relax(few, IONS, FIRE(), max_steps=3)
    assert same_ends(batch, [relax([a], IONS, FIRE(), max_steps=3) for a in few])


def test_what_is_no_charge_is_named():
    with pytest.raises(ValueError, match=r"system 1 \(HO\): info\['charge'\] must be a number"):
        evaluate([ion(), ion(charge="plus")], IONS)
