"""Criteria of convergence in whole relaxations of ASE structures."""

import functools
import itertools
import operator

import equinox as eqx
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import FixAtoms
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE, EnergyChange, ForceNorm, MaxDisplacement, MaxForce, RMSForce, Status
from basinax.atoms import LennardJones, MaxAtomForce, MaxStress, relax
from comparison import same
from structures import fcc, rattled, skewed_tiny

pytestmark = pytest.mark.usefixtures("few_shapes")

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}
POTENTIAL = LennardJones(**ARGON)


def structures() -> list[Atoms]:
    """Crystals, a tiny skewed cell, a dimer, a lone atom, and two atoms at one place."""
    return [
        rattled(fcc(1, 5.2), 0, 0.15),
        rattled(fcc((2, 1, 3), 5.4), 1, 0.15),
        rattled(skewed_tiny(), 2, 0.05),
        Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]]),
        Atoms("Ar", [[1, 2, 3]]),
        Atoms("Ar2", [[0, 0, 0], [0, 0, 0]]),
    ]


# A column a structure; the first ends by energy, the second by force, the third by RMS and step.
TOLERANCES = np.array(
    [
        [9.0, 1e-3, 0.0, 0.0, 0.05, 0.05],
        [1e-7, 9.0, 0.0, 0.0, 1e-4, 1e-4],
        [0.0, 0.0, 9.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 1e-4, 0.0, 0.0, 0.0],
    ]
)


def mixed(force, energy, rms, displacement):
    return (MaxForce(force) & EnergyChange(energy)) | (
        RMSForce(rms) & MaxDisplacement(displacement)
    )


@pytest.mark.exhaustive
def test_a_structure_with_tolerances_of_its_own_has_the_bits_that_it_has_alone():
    """The fourth can meet none of them; thin skins let systems wait for lists.

    tests/minimize/test_convergence.py has both dtypes, and the other tests here the other one.
    """
    atoms, settings = structures(), {"max_steps": 430, "dtype": np.float32}
    batch = relax(atoms, POTENTIAL, FIRE(), convergence=mixed(*TOLERANCES), **settings)
    alone = [
        relax([a], POTENTIAL, FIRE(), convergence=mixed(*TOLERANCES[:, [k]]), **settings)
        for k, a in enumerate(atoms)
    ]
    assert [k for k in range(6) if not same(batch, k, alone[k], 0)] == []
    backwards = mixed(*TOLERANCES[:, ::-1])
    thin = relax(atoms[::-1], POTENTIAL, FIRE(), convergence=backwards, skin=0.02, **settings)
    assert [k for k in range(6) if not same(batch, k, thin, 5 - k)] == []
    assert batch.converged.tolist() == [True] * 3 + [False, True, False]
    assert batch.steps[3] == 430


@pytest.mark.usefixtures("few_places")
def test_a_place_that_is_taken_again_has_the_tolerances_of_its_structure():
    """Twelve structures of one or two blocks go through places for six, or have places alone."""
    atoms = [rattled(fcc((1, 1, 1 + k % 3), 5.1 + 0.02 * k), k) for k in range(12)]
    energy = EnergyChange(10.0 ** -(3 + np.arange(12) % 4))
    step = MaxDisplacement(np.linspace(0.01, 0.002, 12))
    streamed = relax(atoms, POTENTIAL, FIRE(), convergence=energy & step)
    for k in range(0, 12, 3):
        own = EnergyChange(energy.tolerance[k : k + 3]) & MaxDisplacement(step.tolerance[k : k + 3])
        three = relax(atoms[k : k + 3], POTENTIAL, FIRE(), convergence=own)
        assert [i for i in range(3) if not same(three, i, streamed, k + i)] == []
    assert streamed.converged.all()
    assert len(set(streamed.steps.tolist())) > 4


LONGEST = 120
"""Steps; each criterion is met before."""

MEASURES = [
    (EnergyChange, lambda a, b: abs(b[0] - a[0]) / len(b[1]), 5e-6),
    (MaxDisplacement, lambda a, b: np.linalg.norm(b[2] - a[2], axis=1).max(), 4e-3),
    (RMSForce, lambda a, b: np.sqrt((b[1] ** 2).mean()), 4e-3),
    (ForceNorm, lambda a, b: np.linalg.norm(b[1]), 0.03),
]


def measured_by_ase(atoms: Atoms):
    """What each measures after the steps of ASE's FIRE."""
    atoms = atoms.copy()
    atoms.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    walk = ASEFIRE(atoms, logfile=None).irun(fmax=0.0, steps=LONGEST)
    path = [(atoms.get_potential_energy(), atoms.get_forces(), atoms.get_positions()) for _ in walk]
    return {
        make.__name__: [measure(*pair) for pair in itertools.pairwise(path)]
        for make, measure, _ in MEASURES
    }


def test_each_stops_where_the_path_of_ase_first_meets_its_criterion(recorded):
    """Both walk alike to 1e-9, so that none of them meets it sooner; what is 0 is never met."""
    atoms = structures()[:3]
    criteria = [
        make(np.repeat(np.eye(len(MEASURES))[k] * tolerance, 3))
        for k, (make, _, tolerance) in enumerate(MEASURES)
    ]
    any_of = functools.reduce(operator.or_, criteria)
    result = relax(atoms * len(MEASURES), POTENTIAL, FIRE(), convergence=any_of)
    assert result.converged.all()
    steps = result.steps.reshape(len(MEASURES), 3)
    for k, a in enumerate(atoms):
        found = recorded(measured_by_ase, a)
        expected = [
            next(n for n, x in enumerate(found[make.__name__], 1) if x < tolerance)
            for make, _, tolerance in MEASURES
        ]
        assert steps[:, k].tolist() == expected


def test_criteria_see_what_constraints_leave_of_forces():
    atoms = structures()[0]
    atoms.set_constraint(FixAtoms([0, 1, 2]))
    result = relax([atoms], POTENTIAL, FIRE(), convergence=RMSForce(1e-3) & ForceNorm(3e-3))
    left = result.atoms[0].get_forces()
    assert result.converged[0]
    assert np.sqrt((left**2).mean()) < 1e-3 < np.linalg.norm(left[3]) < 3e-3
    assert np.linalg.norm(result.atoms[0].get_forces(apply_constraint=False)) > 3e-3


def test_the_last_step_is_not_taken_from_the_structure_that_stood_there_before(monkeypatch):
    """A lone atom never moves: only a step of its own may end it."""
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 8)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    atoms = [Atoms("Ar", [[k, 2, 3]]) for k in range(5)]
    result = relax(atoms, POTENTIAL, FIRE(), convergence=EnergyChange(1e-3))
    assert result.steps.tolist() == [1] * 5
    assert result.status.tolist() == [Status.CONVERGED] * 5


@pytest.mark.parametrize("criterion", [MaxForce, MaxAtomForce, MaxStress, EnergyChange])
def test_tolerances_may_be_lists(criterion):
    assert eqx.tree_equal(criterion([0.1, 0.2]), criterion(np.array([0.1, 0.2])))


def test_fmax_and_another_criterion_contradict():
    with pytest.raises(ValueError, match="fmax and convergence"):
        relax(structures()[:1], POTENTIAL, FIRE(), fmax=0.01, convergence=RMSForce(0.1))


def test_tolerances_of_another_length_are_named():
    criterion = MaxForce(0.1) & EnergyChange([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"convergence.criteria\[1\].tolerance .* 2 structures"):
        relax(structures()[:2], POTENTIAL, FIRE(), convergence=criterion)
