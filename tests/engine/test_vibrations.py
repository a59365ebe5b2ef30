"""Hessians against ASE's Vibrations and derivatives; each structure's bits; minima and saddles."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, molecule
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixAtoms, FixCartesian, FixCom, FixSymmetry
from ase.io import read
from ase.thermochemistry import IdealGasThermo
from ase.vibrations import Vibrations as ASEVibrations

from basinax import FIRE
from basinax.atoms import (
    EMT,
    ASECalculator,
    Batch,
    LennardJones,
    NeighborTable,
    check_minima,
    relax,
    vibrations,
)
from calculators import WithoutEnergy
from comparison import same_bits
from cover import exhaustive

pytestmark = pytest.mark.usefixtures("few_shapes")


def adatom(site: str) -> Atoms:
    atoms = fcc100("Cu", (2, 2, 2), vacuum=6.0)
    add_adsorbate(atoms, "Cu", 1.8, site)
    atoms.set_constraint(FixAtoms(mask=[atom.tag > 0 for atom in atoms]))
    return atoms


def cluster() -> Atoms:
    return Atoms("Au4", [(0, 0, 0), (2.7, 0, 0), (0, 2.7, 0), (0.1, 0.2, 2.7)])


@pytest.fixture(scope="module")
def structures():
    """A molecule, a cluster, an adatom on fixed atoms, and a crystal."""
    return [molecule("NH3"), cluster(), adatom("hollow"), bulk("Cu", cubic=True)]


@pytest.fixture(scope="module", params=["float64", exhaustive("float32")])
def found(structures, request):
    return vibrations(structures, EMT(), dtype=request.param), request.param


def ase_vibrations(atoms: Atoms, folder, **options) -> ASEVibrations:
    atoms = atoms.copy()
    atoms.calc = ASEEMT()
    theirs = ASEVibrations(atoms, name=str(folder / "vib"), **options)
    theirs.run()
    return theirs


@pytest.mark.parametrize("at", range(4))
def test_hessians_frequencies_and_modes_are_those_of_ase(structures, at, tmp_path):
    ours = vibrations(structures, EMT())[at]
    theirs = ase_vibrations(structures[at], tmp_path).get_vibrations()
    np.testing.assert_allclose(ours.hessian, theirs.get_hessian_2d(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours.frequencies**2, theirs.get_frequencies() ** 2, atol=0.1)
    assert ours.zero_point_energy == pytest.approx(theirs.get_zero_point_energy(), abs=1e-5)
    assert ours.modes.shape == theirs.get_modes(all_atoms=True).shape


def test_four_displacements_and_chosen_atoms_are_those_of_ase(tmp_path):
    options = {"nfree": 4, "delta": 0.02}
    atoms = cluster()
    atoms.set_masses([1.0, 10.0, 100.0, 1000.0])
    theirs = ase_vibrations(atoms, tmp_path, indices=[1, 3], **options).get_vibrations()
    for ours in vibrations([atoms, atoms], EMT(), indices=[[1, 3], [3, 1]], **options):
        np.testing.assert_allclose(ours.hessian, theirs.get_hessian_2d(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(ours.frequencies**2, theirs.get_frequencies() ** 2, atol=0.1)


def test_differences_are_derivatives_of_the_forces():
    argon = LennardJones.named("Ar", cutoff=8.5)
    atoms = Atoms("Ar3", [(0, 0, 0), (0, 0, 3.7), (0, 3.3, 1.9)])
    batch = Batch.from_atoms([atoms])
    lists = NeighborTable(batch, argon.cutoff, 0.0).lists()

    @jax.jit
    def forces(positions):
        return argon(eqx.tree_at(lambda b: b.positions, batch, positions), lists).forces

    along = jnp.zeros_like(batch.positions).at[1, 2].set(1.0)
    _, column = jax.jvp(forces, (batch.positions,), (along,))
    (ours,) = vibrations([atoms], argon, nfree=4)
    np.testing.assert_allclose(ours.hessian[5], -np.asarray(column[:3]).ravel(), atol=1e-7)


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize("at", [0, exhaustive(1), 2, exhaustive(3)])
def test_a_structure_has_the_bits_that_it_has_alone(structures, found, at, monkeypatch):
    result, dtype = found
    monkeypatch.setattr("basinax.engine.vibrations.BYTES", 20_000)
    (alone,) = vibrations(structures[at : at + 1], EMT(), dtype=dtype)
    assert same_bits(alone.hessian, result[at].hessian)
    assert same_bits(alone.frequencies.view(float), result[at].frequencies.view(float))


def test_calculators_are_asked_too(structures, found):
    own = [a.copy() for a in structures[:2]]
    for a in own:
        a.calc = ASEEMT()
    for theirs in (vibrations(own), vibrations(own, ASECalculator(ASEEMT()))):
        for k in range(2):
            tolerance = 1e-6 if found[1] == "float64" else 1e-2
            np.testing.assert_allclose(theirs[k].hessian, found[0][k].hessian, atol=tolerance)


def test_a_structure_without_an_energy_is_no_minimum():
    (found,) = vibrations([bulk("Cu")], WithoutEnergy())
    assert found.message and np.isnan(found.hessian).all() and not found.is_minimum


def test_what_cannot_be_evaluated_is_told_and_spoils_no_other(structures):
    tungsten = Atoms("W2", [(0, 0, 0), (0, 0, 2)])
    calculator = ASECalculator(ASEEMT())
    failed, ours = vibrations([tungsten, structures[0]], calculator)
    assert "W" in failed.message and not failed.is_minimum
    assert np.isnan(failed.frequencies).all() and np.isnan(failed.zero_point_energy)
    assert ours.message == "" and ours.is_finite
    assert "W" in repr(vibrations([tungsten], calculator))


@pytest.mark.parametrize("hessian", ["numerical", "analytical"])
def test_a_structure_without_a_list_is_told_of_and_spoils_no_other(hessian):
    lost = cluster()
    lost.positions[0] = 2e8
    failed, ours = vibrations([lost, cluster()], EMT(), hessian=hessian)
    (alone,) = vibrations([cluster()], EMT(), hessian=hessian)
    assert failed.message.startswith("system 0 (Au4): no neighbour list can be made")
    assert not failed.is_minimum and np.isnan(failed.frequencies).all()
    assert ours.message == "" and same_bits(ours.hessian, alone.hessian)


@pytest.mark.exhaustive
def test_a_bridge_is_a_saddle_and_a_hollow_a_minimum():
    """The bridge lies on a mirror plane, and its adatom does not leave it."""
    relaxed = relax([adatom("hollow"), adatom("bridge")], EMT(), FIRE(), fmax=1e-3)
    result = vibrations(relaxed.atoms, EMT())
    assert [v.is_minimum for v in result] == [True, False]
    assert len(result[1].imaginary) == 1
    assert result[1].imaginary[0] == pytest.approx(result[1].frequencies[0].imag, rel=1e-6)
    assert f"{result[1].imaginary[0]:.0f}i" in repr(result)
    assert check_minima(relaxed, EMT()).tolist() == [True, False]


def test_no_translation_and_no_rotation_counts_as_imaginary():
    """Turns of a molecule on which forces are left are imaginary in its own frequencies."""
    water = molecule("H2O")
    (start,) = relax([water], EMT(), FIRE(), fmax=0.02).atoms
    wire = Atoms("Cu2", [(0, 0, 0), (0, 0, 2.2)], cell=[0, 0, 4.4], pbc=[False, False, True])
    crystal = bulk("Cu", cubic=True)
    molecule_, of_wire, of_crystal = vibrations([start, wire, crystal], EMT(), tolerance=1e-3)
    assert molecule_.frequencies[0].imag > 10 and len(molecule_.imaginary) == 0
    assert len(of_crystal.imaginary) == 0
    assert len(of_wire.imaginary) <= 2


def test_frequencies_go_into_thermochemistry_and_modes_into_files(tmp_path):
    (atoms,) = relax([molecule("H2O")], EMT(), FIRE(), fmax=1e-4).atoms
    (found,) = vibrations([atoms], EMT())
    thermo = IdealGasThermo(
        vib_energies=found.data.get_energies()[6:].real,
        geometry="nonlinear",
        atoms=atoms,
        symmetrynumber=2,
        spin=0,
    )
    assert thermo.get_ZPE_correction() == pytest.approx(found.zero_point_energy, abs=5e-3)
    found.data.write_jmol(str(tmp_path / "modes.xyz"))
    assert len(read(tmp_path / "modes.xyz", ":")) == 9


def test_constraints_that_hold_no_atom_change_nothing():
    crystal = bulk("Cu", cubic=True)
    held = crystal.copy()
    held.set_constraint(FixSymmetry(held))
    free, symmetric = vibrations([crystal, held], EMT())
    assert same_bits(free.hessian, symmetric.hessian)


def test_no_structures_and_no_free_atoms_are_fine():
    assert vibrations([], EMT()) == () and repr(vibrations([], EMT())) is not None
    fixed = molecule("N2")
    fixed.set_constraint(FixAtoms([0, 1]))
    (found,) = vibrations([fixed], EMT())
    assert found.hessian.shape == (0, 0) and found.is_minimum


def test_an_atom_that_is_held_by_its_place_from_the_end_stays():
    water = molecule("H2O")
    water.set_constraint(FixAtoms([-1, 0]))
    (found,) = vibrations([water], EMT())
    assert found.hessian.shape == (3, 3)


def of_mass(mass: float) -> Atoms:
    atoms = molecule("N2")
    atoms.set_masses([mass, 14])
    return atoms


class FixPart(FixCom):
    """That of some atoms, as ASE's FixSubsetCom."""


def of_a_part() -> Atoms:
    atoms = molecule("N2")
    atoms.set_constraint(FixPart())
    return atoms


def in_a_plane() -> Atoms:
    atoms = molecule("N2")
    atoms.set_constraint(FixCartesian(0, (True, False, False)))
    return atoms


@pytest.mark.parametrize(
    ("atoms", "options", "error", "text"),
    [
        (molecule("N2"), {}, TypeError, "pass \\[atoms\\]"),
        ([molecule("N2")], {"nfree": 3}, ValueError, "nfree must be 2 or 4"),
        ([molecule("N2")], {"nfree": [2]}, ValueError, r"nfree must be 2 or 4, got \[2\]"),
        ([molecule("N2")], {"delta": 0.0}, ValueError, "delta must be positive"),
        ([molecule("N2")], {"tolerance": -1}, ValueError, "tolerance must be 0 or more"),
        ([molecule("N2")], {"indices": [0, 1]}, ValueError, "2 entries for 1 structures"),
        ([molecule("N2")], {"indices": [0]}, TypeError, "list of integers, got 0"),
        ([molecule("N2")], {"indices": [[0, 0]]}, ValueError, "distinct, from 0 to 1"),
        ([molecule("N2")], {"indices": [[-1]]}, ValueError, "distinct, from 0 to 1"),
        ([molecule("N2")], {"indices": [[True, False]]}, TypeError, "integers, no mask, got"),
        ([molecule("N2"), of_mass(0)], {}, ValueError, "system 1 .* without a positive mass"),
        ([molecule("N2"), of_mass(np.nan)], {}, ValueError, "system 1 .* without a positive mass"),
        ([in_a_plane()], {}, NotImplementedError, "FixCartesian"),
        ([of_a_part()], {}, NotImplementedError, "FixPart"),
    ],
)
def test_what_is_unusable_is_named(atoms, options, error, text):
    with pytest.raises(error, match=text):
        vibrations(atoms, EMT(), **options)


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="tolerence"):
        check_minima([molecule("N2")], EMT(), tolerence=1.0)
