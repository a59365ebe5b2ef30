"""Single points, stresses of fixed cells, and potentials as ASE calculators."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import BFGS as ASEBFGS

from basinax import FIRE, GradientDescent
from basinax.atoms import EMT, ASECalculator, LennardJones, evaluate, relax, vibrations
from comparison import same_bits
from cover import exhaustive

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}


@pytest.fixture(scope="module")
def metals():
    """Cells of 1 to 32 atoms, a slab with fixed atoms and a cluster without a cell."""
    slab = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    slab.set_constraint(FixAtoms(mask=slab.positions[:, 2] < 10))
    cluster = Atoms("Au4", [(0, 0, 0), (2.7, 0, 0), (0, 2.7, 0), (0, 0, 2.7)])
    made = [bulk("Cu"), bulk("Au", cubic=True) * 2, bulk("Cu", cubic=True), slab, cluster]
    for seed, atoms in enumerate(made):
        atoms.rattle(0.05, seed=seed)
    return made


@pytest.fixture(scope="module", params=["float32", exhaustive("float64")])
def found(metals, request):
    return evaluate(metals, EMT(), stress=True, dtype=request.param), request.param


def test_energies_forces_and_stresses_are_those_of_ase(metals, found):
    result, dtype = found
    tolerance = 1e-9 if dtype == "float64" else 2e-4
    for k, atoms in enumerate(metals):
        theirs = atoms.copy()
        theirs.set_constraint()
        theirs.calc = ASEEMT()
        assert result.energies[k] == pytest.approx(theirs.get_potential_energy(), abs=tolerance)
        np.testing.assert_allclose(result.forces[k], theirs.get_forces(), atol=tolerance)
        if atoms.cell.rank == 3:
            np.testing.assert_allclose(result.stresses[k], theirs.get_stress(), atol=tolerance)
    assert np.isnan(result.stresses[4]).all() and "stress" not in result.atoms[4].calc.results


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize("at", [exhaustive(0), 1, exhaustive(3), exhaustive(4)])
def test_a_structure_has_the_bits_that_it_has_alone(metals, found, at):
    result, dtype = found
    alone = evaluate(metals[at : at + 1], EMT(), stress=True, dtype=dtype)
    assert alone.energies[0] == result.energies[at]
    assert same_bits(alone.forces[0], result.forces[at])
    assert same_bits(alone.stresses[0], result.stresses[at])
    energies = [x.atoms[k].calc.results["energies"] for x, k in ((alone, 0), (result, at))]
    assert same_bits(*energies)


@pytest.mark.usefixtures("exhaustively_as_users")
def test_bits_do_not_depend_on_which_batch_a_structure_comes_into(metals, found, monkeypatch):
    result, dtype = found
    monkeypatch.setattr("basinax.structures.machine.CPU.point_rows", 40)
    parted = evaluate(metals[::-1], EMT(), stress=True, dtype=dtype)
    assert np.array_equal(parted.energies[::-1], result.energies)
    assert all(map(same_bits, parted.forces[::-1], result.forces))


def test_a_relaxation_begins_with_the_bits_of_a_single_point(metals):
    start = relax(metals[2:3], EMT(), FIRE(), max_steps=0, stress=True)
    found = evaluate(metals[2:3], EMT(), stress=True)
    assert start.energies[0] == found.energies[0]
    assert same_bits(start.atoms[0].get_forces(), found.forces[0])
    assert same_bits(start.atoms[0].get_stress(), found.stresses[0])


def test_stress_is_found_with_calculators_of_their_own():
    """Of the crystal, whose calculator tells it when asked alone; the molecule has no volume."""
    crystal, water = bulk("Cu", cubic=True), molecule("H2O")
    for atoms in (crystal, water):
        atoms.calc = WhenAsked()
    relaxed = relax([crystal, water], max_steps=1, stress=True).atoms
    expected = relaxed[0].copy()
    expected.calc = ASEEMT()
    np.testing.assert_allclose(relaxed[0].get_stress(), expected.get_stress(), atol=1e-9)
    assert "stress" not in relaxed[1].calc.results


def test_a_structure_that_explodes_has_no_stress_and_leaves_the_others_theirs():
    good, bad = bulk("Ar", a=5.3, cubic=True), bulk("Ar", a=5.3, cubic=True)
    good.rattle(0.1)
    bad.positions[1] = bad.positions[0] + [0.4, 0, 0]
    run = {"optimizer": GradientDescent(0.05), "stress": True, "max_steps": 20}
    together = relax([bad, good], LennardJones(**ARGON), **run)
    alone = relax([good], LennardJones(**ARGON), **run)
    assert together.status[0] == "not_finite" and together.messages == ["", ""]
    assert "stress" not in together.atoms[0].calc.results
    assert same_bits(together.atoms[1].get_stress(), alone.atoms[0].get_stress())


class WhenAsked(ASEEMT):
    """Keeps no stress that nobody has asked for."""

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, list(properties), list(system_changes) or all_changes)
        if "stress" not in properties:
            self.results.pop("stress", None)


def test_a_copy_keeps_its_constraints_and_raw_forces(metals, found):
    slab = found[0].atoms[3]
    assert (slab.get_forces()[slab.constraints[0].index] == 0).all()
    assert (slab.get_forces(apply_constraint=False) == found[0].forces[3]).all()


def test_the_largest_force_is_that_under_the_constraints(metals):
    slab, free = metals[3].copy(), metals[4]
    slab.set_constraint(FixAtoms(range(3, 12)))
    found = evaluate([slab, free], ASECalculator(ASEEMT()))
    expected = [np.linalg.norm(a.get_forces(), axis=1).max() for a in found.atoms]
    assert found.to_dict()["fmax_eV_per_A"] == found.fmax.tolist() == expected
    assert expected[0] < np.linalg.norm(found.forces[0], axis=1).max()


def test_calculators_are_evaluated_too(metals):
    found = evaluate(metals[:2], ASECalculator(ASEEMT()), stress=True)
    ours = evaluate(metals[:2], EMT(), stress=True, dtype="float64")
    np.testing.assert_allclose(found.energies, ours.energies, atol=1e-9)
    np.testing.assert_allclose(found.stresses, ours.stresses, atol=1e-9)


def test_a_calculator_that_fails_costs_its_structure_alone():
    found = evaluate(
        [molecule("H2O"), Atoms("W2", [(0, 0, 0), (2, 0, 0)])], ASECalculator(ASEEMT())
    )
    assert np.isfinite(found.energies[0]) and np.isnan(found.energies[1])
    assert found.messages[0] == "" and "W" in found.messages[1]


def test_a_calculator_of_a_potential_serves_ase(metals):
    """A band of images, an optimizer, and a change of composition."""
    potential = LennardJones(**ARGON)
    calculator = potential.calculator(dtype="float64")
    atoms = bulk("Ar", a=5.2, cubic=True)
    atoms.rattle(0.1, seed=0)
    ends = atoms.copy(), atoms.copy()
    for end in ends:
        end.calc = calculator
    assert ASEBFGS(ends[0], logfile=None).run(fmax=0.02, steps=50)
    found = evaluate([ends[0]], potential, stress=True, dtype="float64")
    assert ends[0].get_potential_energy() == found.energies[0]
    assert same_bits(ends[0].get_forces(), found.forces[0])
    assert same_bits(ends[0].get_stress(), found.stresses[0])
    ends[1].positions = ends[0].positions
    ends[1].positions[0, 0] += 0.3
    images = [ends[0], ends[0].copy(), ends[1]]
    band = NEB(images, allow_shared_calculator=True, method="improvedtangent")
    band.images[1].calc = calculator
    band.interpolate()
    assert np.isfinite(band.get_forces()).all()
    pair = Atoms("Ar2", [(0, 0, 0), (3.7, 0, 0)], calculator=calculator)
    assert pair.get_potential_energy() < 0 and "stress" not in calculator.results


def test_a_structure_without_finite_numbers_is_named():
    found = evaluate([Atoms("Cu2"), molecule("CO")], EMT())
    assert found.messages == ["energy, forces or stress are NaN or infinite", ""]
    assert "2 structures, 1 of them failed" in repr(found)
    (collapsed,) = vibrations([Atoms("Cu2")], EMT(), hessian="analytical")
    assert collapsed.message == "the Hessian has entries that are NaN or infinite"


def test_what_cannot_be_evaluated_is_named_before():
    with pytest.raises(ValueError, match="no parameters for Fe"):
        evaluate([bulk("Cu"), bulk("Fe")], EMT())
    with pytest.raises(TypeError, match="stress must be True or False"):
        evaluate([bulk("Cu")], EMT(), stress="yes")
    with pytest.raises(TypeError, match="potential must be one of"):
        evaluate([bulk("Cu")], 3)
