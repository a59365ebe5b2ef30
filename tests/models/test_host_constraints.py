"""Constraints that act on the host, by ASE's own methods: ASE's steps, and the bits of a batch."""

import warnings

import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixAtoms, FixBondLengths, FixCom, FixInternals, Hookean
from ase.io import read

import basinax
from basinax import BFGS, FIRE, LBFGS, BFGSLineSearch, MDMin, Status
from basinax.atoms import (
    EMT,
    ASECalculator,
    Batch,
    Frechet,
    InternalLBFGS,
    JaxModel,
    elastic,
    evaluate,
    neb,
    relax,
    relax_stream,
    vibrations,
)
from comparison import same
from cover import exhaustive
from follow_ase import walk_of_ase

pytestmark = pytest.mark.usefixtures("one_shape")


def ethanol(seed: int, *constraints, name: str = "CH3CH2OH") -> Atoms:
    atoms = molecule(name)
    atoms.rattle(0.08, seed=seed)
    atoms.set_constraint(list(constraints))
    return atoms


INTERNALS = {
    "bonds": [[None, [0, 1]]],
    "angles_deg": [[None, [1, 0, 2]]],
    "dihedrals_deg": [[None, [1, 0, 2, 3]]],
}


def several() -> dict[str, Atoms]:
    """Molecules of several sizes, most with constraints that act on the host."""
    return {
        "bonds": ethanol(0, FixBondLengths([[0, 1], [0, 2]])),
        "springs": ethanol(1, Hookean(0, 1, 5.0, rt=1.2), Hookean(3, (0.0, 0.0, 0.0), 2.0, rt=0.5)),
        "plane": ethanol(2, FixAtoms([0]), Hookean(2, (0, 0, 1, -0.2), 3.0)),
        "internals": ethanol(3, FixInternals(**INTERNALS)),
        "free": ethanol(4, name="CH4"),
        "atoms": ethanol(5, FixAtoms([1]), name="H2O"),
        "given": ethanol(6, FixBondLengths([[0, 1]], bondlengths=[1.2]), FixAtoms([3])),
        "all": ethanol(7, Hookean(0, 1, 5.0, rt=1.2), FixAtoms([0]), FixBondLengths([[2, 3]])),
    }


NAMES = list(several())
STRAIGHT = ["springs", "plane", "free", "atoms"]

ASE = {
    "FIRE": (FIRE(), ase.optimize.FIRE, NAMES, 35),
    "BFGS": (BFGS(), ase.optimize.BFGS, NAMES, 35),
    "LBFGS": (LBFGS.ase(), ase.optimize.LBFGS, NAMES, 15),
    "MDMin": (MDMin(), ase.optimize.MDMin, NAMES, 35),
    "BFGSLineSearch": (BFGSLineSearch(), ase.optimize.BFGSLineSearch, STRAIGHT, 15),
}
"""With the number of steps. At a minimum, those of ASE's `LBFGS` become 0/0."""


def walk_with_energy(optimizer: type, atoms: Atoms, steps: int):
    """ASE's walk, with its energy and the largest constrained force at the end."""
    atoms.calc = ASEEMT()
    walk = walk_of_ase(optimizer, atoms, 0.0, steps, kept=(1, 10))
    fmax = np.linalg.norm(atoms.get_forces(), axis=1).max()
    return walk | {"energy": np.array(atoms.get_potential_energy()), "fmax": np.array(fmax)}


@pytest.mark.parametrize("name", ["FIRE", *map(exhaustive, list(ASE)[1:])])
def test_steps_are_those_of_ase(name, recorded):
    """1e-9 Å after 1, 10 and all steps: sums in another order, multiplied by the dynamics."""
    ours, theirs, chosen, most = ASE[name]
    atoms = [several()[one] for one in chosen]
    ends = [relax(atoms, ASEEMT(), ours, fmax=0.0, max_steps=n) for n in (1, 10, most)]
    for k, start in enumerate(atoms):
        walk = recorded(walk_with_energy, theirs, start.copy(), most)
        for result, there in zip(ends, walk["positions"], strict=True):
            np.testing.assert_allclose(result[k].positions, there, rtol=0, atol=1e-9)
        entry = ends[-1][k]
        assert entry.energy == pytest.approx(float(walk["energy"]), abs=1e-9)
        assert entry.fmax == pytest.approx(float(walk["fmax"]), abs=1e-8)


# --- the promise


@pytest.mark.exhaustive
@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [(FIRE(), np.float32), (BFGS(), np.float64)],
    ids=["fire", "bfgs"],
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(optimizer, dtype):
    """There are places for four of these sixteen, so the others take theirs."""
    atoms = list(several().values())
    settings = {"fmax": 1e-3, "max_steps": 60, "dtype": dtype, "keep_best": True}
    batch = relax([*atoms, *atoms[::-1]], ASEEMT(), optimizer, **settings)
    alone = [relax([a], ASEEMT(), optimizer, **settings) for a in atoms]
    twice = [*enumerate(alone), *((2 * len(atoms) - 1 - k, one) for k, one in enumerate(alone))]
    assert [k for k, one in twice if not same(batch, k, one, 0)] == []
    streamed = dict(relax_stream(atoms, ASEEMT(), optimizer, **settings))
    for k, one in enumerate(alone):
        assert np.array_equal(streamed[k].positions, one[0].positions)
        assert streamed[k].energy == one[0].energy


def test_moving_cells_beside_them_change_nothing():
    crystal = bulk("Cu", a=3.5, cubic=True)
    start = several()["bonds"]
    cells = [Frechet(), None, Frechet()]
    mixed = relax([crystal, start, crystal], ASEEMT(), FIRE(), cell=cells, max_steps=20)
    assert same(mixed, 1, relax([start], ASEEMT(), FIRE(), max_steps=20), 0)
    streamed = dict(relax_stream([crystal, start], ASEEMT(), FIRE(), cell=Frechet(), max_steps=20))
    assert np.array_equal(streamed[1].positions, mixed[1].positions)


def site_energies(vectors, numbers, senders, receivers):
    """Springs of 0.5 eV/Å² between atoms, ended smoothly at 4 Å."""
    del senders
    r2 = (vectors * vectors).sum(1)
    energies = 0.25 * r2 * jnp.maximum(1 - r2 / 16, 0) ** 2
    return jax.ops.segment_sum(energies, receivers, len(numbers))


def test_models_evaluate_them_with_the_same_bits_in_a_batch():
    model = JaxModel.of_vectors(site_energies, 4.0)
    atoms = [several()[name] for name in ("internals", "plane", "bonds")]
    settings = {"fmax": 1e-3, "max_steps": 15}
    batch = relax(atoms, model, FIRE(), **settings)
    alone = [relax([a], model, FIRE(), **settings) for a in atoms]
    assert [k for k, one in enumerate(alone) if not same(batch, k, one, 0)] == []
    internals = batch.atoms[0].get_dihedral(1, 0, 2, 3), atoms[0].get_dihedral(1, 0, 2, 3)
    assert internals[0] == pytest.approx(internals[1], abs=1e-6)


def test_own_potentials_as_calculators_do_as_well():
    atoms = several()["internals"]
    theirs = relax([atoms], ASEEMT(), FIRE(), max_steps=5)
    own = relax([atoms], ASECalculator(EMT("C", "O", "H").calculator()), FIRE(), max_steps=5)
    np.testing.assert_allclose(own[0].positions, theirs[0].positions, rtol=0, atol=1e-9)


# --- what the constraints of a structure keep, and what is told


def test_structures_and_their_constraints_are_not_changed():
    atoms = several()
    before = {name: a.copy() for name, a in atoms.items()}
    result = relax(list(atoms.values()), ASEEMT(), FIRE(), max_steps=3)
    for name, entry in zip(atoms, result, strict=True):
        assert atoms[name] == before[name]
        told = [str(c.todict()) for c in before[name].constraints]
        assert [str(c.todict()) for c in atoms[name].constraints] == told
        assert [str(c.todict()) for c in entry.atoms.constraints] == told
    assert atoms["bonds"].constraints[0].bondlengths is None
    assert not atoms["internals"].constraints[0].initialized


@pytest.mark.exhaustive
def test_lengths_and_angles_stay():
    starts, names = several(), ["bonds", "internals", "given", "all"]
    result = relax([starts[name] for name in names], ASEEMT(), BFGS(), fmax=0.01)
    bonds, internals, given, every = result.atoms
    for pair in ([0, 1], [0, 2]):
        assert bonds.get_distance(*pair) == pytest.approx(
            starts["bonds"].get_distance(*pair), abs=1e-10
        )
    for of, indices in (("distance", (0, 1)), ("angle", (1, 0, 2)), ("dihedral", (1, 0, 2, 3))):
        of_end, of_start = (
            getattr(a, f"get_{of}")(*indices) for a in (internals, starts["internals"])
        )
        assert of_end == pytest.approx(of_start, abs=1e-6)
    assert given.get_distance(0, 1) == pytest.approx(1.2, abs=1e-10)
    assert np.array_equal(every.positions[0], starts["all"].positions[0])
    assert np.array_equal(given.positions[3], starts["given"].positions[3])


def test_fixed_coordinates_keep_their_bits_in_single_precision():
    starts = [several()[name] for name in ("plane", "given", "all")]
    result = relax(starts, ASEEMT(), FIRE(), max_steps=10, dtype=np.float32)
    for fixed, start, entry in zip((0, 3, 0), starts, result, strict=True):
        # Bonds that come later may move what was fixed before, here of other atoms.
        expected = start.positions[fixed]
        if start.constraints[-1].__class__ is FixBondLengths:
            np.testing.assert_allclose(entry.positions[fixed], expected, rtol=0, atol=1e-6)
        else:
            assert np.array_equal(entry.positions[fixed], expected)


def test_energies_are_those_that_ase_reports(tmp_path):
    """With the springs' in results, histories and logs, without it in calculators and files."""
    atoms = [several()[name] for name in ("springs", "plane", "bonds")]
    log = tmp_path / "log"
    result = relax(
        atoms, ASEEMT(), FIRE(), max_steps=4, history=True, log=log, trajectory=tmp_path / "paths"
    )
    for start, entry in zip(atoms, result, strict=True):
        there = entry.atoms.copy()
        there.calc = ASEEMT()
        raw = there.get_potential_energy(apply_constraint=False)
        assert entry.results["energy"] == entry.results["free_energy"] == raw
        assert entry.energy == entry.atoms.get_potential_energy() == there.get_potential_energy()
        assert entry.history.energies[-1] == entry.energy
        first = start.copy()
        first.calc = ASEEMT()
        assert entry.initial_energy == entry.history.energies[0] == first.get_potential_energy()
    assert result[0].energy > result[0].results["energy"] + 1
    lines = [line.split() for line in log.read_text().splitlines()[1:]]
    told = {(int(line[0]), int(line[1])): float(line[3]) for line in lines}
    for k, entry in enumerate(result):
        assert told[k, 4] == pytest.approx(entry.energy, abs=1e-6)
    for k, path in enumerate(sorted((tmp_path / "paths").iterdir())):
        frame = read(path, index=-1)
        assert frame.calc.results["energy"] == pytest.approx(result[k].results["energy"], abs=1e-7)


def test_files_keep_constraints_as_ase_writes_them(tmp_path):
    atoms = [several()[name] for name in ("bonds", "springs", "internals")]
    relaxed = relax(atoms, ASEEMT(), FIRE(), max_steps=2).atoms
    for name in ("ends.traj", "ends.json", "ends.db"):
        ase.io.write(tmp_path / name, relaxed)
        for one, again in zip(relaxed, read(tmp_path / name, index=":"), strict=True):
            assert [type(c) for c in again.constraints] == [type(c) for c in one.constraints]
            assert again.get_potential_energy() == one.get_potential_energy()


@pytest.mark.exhaustive
def test_the_default_optimizer_takes_springs_to_a_minimum_of_ase():
    """It steps on the host with potentials of the device, too."""
    starts = [several()[name] for name in ("springs", "plane")]
    for potential, optimizer in ((ASEEMT(), None), (EMT("C", "O", "H"), InternalLBFGS())):
        result = relax(starts, potential, optimizer, fmax=1e-4)
        assert result.converged.all()
        assert (result.energies < result.initial_energies).all()
        for start, entry in zip(starts, result, strict=True):
            end = entry.atoms.copy()
            end.calc = ASEEMT()
            assert np.linalg.norm(end.get_forces(), axis=1).max() < 1e-4
            assert entry.energy == pytest.approx(end.get_potential_energy(), abs=1e-9)
            fixed = [c.index for c in start.constraints if isinstance(c, FixAtoms)]
            assert all((end.positions[k] == start.positions[k]).all() for k in fixed)
        alone = relax(starts[1:], potential, optimizer, fmax=1e-4)
        assert same(result, 1, alone, 0)


def test_the_default_optimizer_takes_springs_beside_fixed_atoms():
    start = ethanol(1, FixAtoms([0, 1]), Hookean(2, (0, 0, 1, -0.2), 3.0), name="CH3OH")
    (entry,) = relax([start], ASEEMT(), fmax=0.02)
    assert entry.status == Status.CONVERGED and entry.evaluations < 40
    assert np.array_equal(entry.positions[:2], start.positions[:2])


# --- what fails, and what is refused


def test_a_constraint_that_fails_ends_its_structure_alone():
    bad = ethanol(0, FixInternals(bonds=[[1.4, [0, 1]]]))
    bad.constraints[0].epsilon = -1.0  # never reached
    good = several()["bonds"]
    result = relax([bad, good], ASEEMT(), FIRE(), max_steps=5)
    assert result[0].status == Status.EVALUATION_FAILED
    assert "ValueError of a constraint: FixInternals.adjust_positions did not" in result[0].message
    assert np.array_equal(result[0].positions, bad.positions)
    assert same(result, 1, relax([good], ASEEMT(), FIRE(), max_steps=5), 0)


def test_unusable_constraints_are_named_before_the_run():
    unusable = {
        r"system 1 \(C2H6O\): FixBondLengths cannot act on it: .*out of bounds": FixBondLengths(
            [[0, 99]]
        ),
        r"system 1 \(C2H6O\): FixInternals cannot act on it: Invalid target": FixInternals(
            bonds=[[-1.0, [0, 1]]]
        ),
    }
    for message, constraint in unusable.items():
        with pytest.raises(ValueError, match=message):
            relax([ethanol(0), ethanol(1, constraint)], ASEEMT(), FIRE())


@pytest.mark.parametrize("name", ["bonds", "springs", "internals"])
def test_the_device_refuses_them_and_says_what_to_do(name):
    atoms = [several()[name]]
    kind = type(atoms[0].constraints[0]).__name__
    message = rf"system 0 .*constraints \({kind}\), which are not supported.*ASECalculator\(...\)"
    potential = EMT("C", "O", "H")
    refused = {
        "relax": lambda: relax(atoms, potential, FIRE()),
        "relax_stream": lambda: list(relax_stream(atoms, potential, FIRE())),
        "evaluate": lambda: evaluate(atoms, ASEEMT()),
        "vibrations": lambda: vibrations(atoms, ASEEMT()),
        "elastic": lambda: elastic(atoms, ASEEMT()),
        "neb": lambda: neb([[atoms[0], atoms[0].copy()]], ASEEMT()),
        "a batch": lambda: Batch.from_atoms(atoms),
    }
    for call in refused.values():
        with pytest.raises(NotImplementedError, match=message):
            call()


def test_cells_that_move_refuse_them():
    crystal = bulk("Cu", a=3.5, cubic=True)
    crystal.set_constraint(Hookean(0, 1, 5.0, rt=1.0))
    with pytest.raises(NotImplementedError, match=r"\(Hookean\).* where its cell moves.*cell=None"):
        relax([crystal], ASEEMT(), FIRE(), cell=Frechet())


@pytest.mark.parametrize(
    ("name", "optimizer", "message"),
    [
        ("bonds", None, r"\(FixBondLengths\).*InternalLBFGS.*pass FIRE\(\), BFGS\(\)"),
        ("all", InternalLBFGS(), r"\(FixBondLengths\).*InternalLBFGS.*pass FIRE\(\), BFGS\(\)"),
        ("internals", BFGSLineSearch(), r"\(FixInternals\).*BFGSLineSearch, which searches"),
        (
            "all",
            basinax.chain(basinax.ConjugateGradient(), basinax.MaxStepSize(0.1)),
            r"\(FixBondLengths\).*Chain, which searches along lines",
        ),
    ],
)
def test_optimizers_whose_steps_must_be_as_made_refuse_them(name, optimizer, message):
    with pytest.raises(NotImplementedError, match=message):
        relax([several()[name]], ASEEMT(), optimizer)


def test_other_classes_are_refused_with_the_names_of_all():
    class Own(FixBondLengths):
        pass

    with pytest.raises(NotImplementedError, match=r"\(Own\).*FixAtoms.*FixBondLengths, FixInt"):
        relax([ethanol(0, Own([[0, 1]]))], ASEEMT(), FIRE())


def test_a_centre_of_mass_beside_them_is_kept_as_in_ase():
    start = ethanol(0, FixCom(), Hookean(0, 1, 5.0, rt=1.2))
    (entry,) = relax([start], ASEEMT(), FIRE(), max_steps=30)
    with warnings.catch_warnings(action="ignore"):
        there = start.copy()
        there.calc = ASEEMT()
        ase.optimize.FIRE(there, logfile=None).run(0.05, 30)
    np.testing.assert_allclose(entry.positions, there.positions, rtol=0, atol=1e-9)
