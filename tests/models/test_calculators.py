"""ASE calculators as potentials: the promise, ASE's steps, and calculators that fail."""

import contextlib
import functools
import importlib
import itertools
import os
import signal
import subprocess
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.calculator import all_changes
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.io import read
from ase.optimize import BFGS as ASEBFGS, FIRE as ASEFIRE

from basinax import BFGS, FIRE, LBFGS, LBFGSLineSearch, Status
from basinax.atoms import (
    AbstractEvaluator,
    AbstractSession,
    ASECalculator,
    Evaluated,
    EvaluationError,
    Frechet,
    InternalLBFGS,
    Request,
    evaluate,
    potential_from,
    relax,
    relax_stream,
)
from basinax.engine.groups import shape_of_batches
from basinax.engine.stream import Stream
from basinax.models.evaluators import folders
from basinax.models.evaluators.calculator import evaluator_of
from basinax.models.evaluators.workers import Workers
from calculators import (
    Counted,
    Duck,
    Faulty,
    Hungry,
    InFiles,
    Leaving,
    NoStress,
    Outer,
    Refilled,
    Silent,
    Springs,
)
from comparison import same_ends
from cover import exhaustive
from follow_ase import walk_of_ase

pytestmark = pytest.mark.usefixtures("one_shape")


def metals() -> list[Atoms]:
    """Crystals and slabs of 4 to 18 atoms, off their minima; one with fixed atoms."""
    made = [
        bulk("Al", cubic=True),
        fcc111("Cu", (2, 2, 3), vacuum=5),
        bulk("Cu", "fcc", 3.7).repeat((3, 3, 1)),
        fcc111("Ag", (3, 3, 2), vacuum=5),
        bulk("Al", cubic=True).repeat((3, 1, 1)),
    ]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    made[3].set_constraint(FixAtoms([0, 1, 2]))
    return made


def dimers(n: int) -> list[Atoms]:
    """Copper, a little off its minimum, with its number in `info`."""
    return [
        Atoms("Cu2", [[0, 0, 0], [0, 0, 2.232 + 1e-4 * k]], info={"number": k}) for k in range(n)
    ]


def on_springs(symbols: str, seed: int) -> Atoms:
    atoms = Atoms(symbols, np.random.default_rng(seed).uniform(-1, 1, (len(Atoms(symbols)), 3)))
    atoms.positions[0, 0] = 1.0
    return atoms


# --- the promise


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (FIRE(), {}),
        # Cells of another evaluator move every day in test_models.py.
        pytest.param(FIRE(), {"cell": Frechet()}, marks=pytest.mark.exhaustive),
        pytest.param(LBFGSLineSearch(), {"keep_best": True}, marks=pytest.mark.exhaustive),
    ],
    ids=["fire", "moving-cells", "line-search"],
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(optimizer, options):
    # There are places for two or three of these six, so the others take theirs.
    few = metals()[2:]
    settings = {"fmax": 0.05, "max_steps": 15, **options}
    batch = relax([*few, *few[::-1]], EMT(), optimizer, **settings)
    alone = [relax([a], EMT(), optimizer, **settings) for a in few]
    alone += alone[::-1]
    assert (batch.steps > 0).all()
    assert same_ends(batch, alone)
    assert batch.steps.tolist() == [int(result.steps[0]) for result in alone]


def test_processes_find_the_bits_of_this_one():
    here = relax(metals()[1:], EMT(), max_steps=10)
    there = relax(metals()[1:], ASECalculator(EMT, workers=2), max_steps=10)
    assert same_ends(there, [here])


def test_a_calculator_forgets_what_it_saw_before():
    atoms = [on_springs("H3", 0), on_springs("C5", 1), on_springs("O2", 2)]
    shared = Springs()
    batch = relax(atoms, shared, fmax=1e-4)
    assert same_ends(batch, [relax([a], shared, fmax=1e-4) for a in atoms])


def test_reused_calculators_remember_their_own_structure_alone():
    atoms = [on_springs("H3", 0), on_springs("C5", 1), on_springs("O2", 2)]
    reused = ASECalculator(Springs, workers=2, reuse=True)
    batch = relax(atoms, reused, fmax=1e-4)
    assert same_ends(batch, [relax([a], reused, fmax=1e-4) for a in atoms])
    assert not same_ends(batch, [relax(atoms, Springs(), fmax=1e-4)])


# --- ASE


@pytest.mark.parametrize(("optimizer", "theirs"), [(FIRE(), ASEFIRE), exhaustive(BFGS(), ASEBFGS)])
def test_steps_are_those_of_ase(optimizer, theirs, recorded):
    atoms = metals()[1:3]
    for a in atoms:
        a.calc = EMT()
    result = relax(atoms, optimizer=optimizer, fmax=0.02)
    for a, relaxed, steps in zip(atoms, result.atoms, result.steps, strict=True):
        walk = recorded(walk_of_ase, theirs, a, 0.02)
        assert walk["steps"] == steps
        # Sums in another order: some units in the last place, which steps make larger.
        np.testing.assert_allclose(relaxed.positions, walk["positions"][-1], rtol=0, atol=1e-10)


def walk_of_cell(atoms):
    walk = walk_of_ase(ASEFIRE, FrechetCellFilter(atoms), 0.02)
    return walk | {"stress": atoms.get_stress()}


def test_cells_move_as_those_of_ase(recorded):
    atoms = metals()[0]
    result = relax([atoms], EMT(), FIRE(), cell="frechet", fmax=0.02)
    atoms.calc = EMT()
    theirs = recorded(walk_of_cell, atoms)
    assert theirs["steps"] == result.steps[0]
    np.testing.assert_allclose(result.atoms[0].cell, theirs["cells"][-1], rtol=0, atol=1e-10)
    np.testing.assert_allclose(result.atoms[0].get_stress(), theirs["stress"], atol=1e-10)


def test_frames_are_those_of_the_path(tmp_path):
    atoms = metals()[1:3]
    result = relax(atoms, EMT(), fmax=0.05, trajectory=tmp_path)
    for k, (relaxed, steps) in enumerate(zip(result.atoms, result.steps, strict=True)):
        frames = read(tmp_path / f"{k}.traj", ":")
        assert [frame.info["step"] for frame in frames] == [*range(0, steps, 10), steps]
        assert np.array_equal(frames[0].positions, atoms[k].positions)
        assert np.array_equal(frames[-1].positions, relaxed.positions)


def test_results_keep_everything_that_the_calculator_found():
    atoms = on_springs("Fe2", 0)
    atoms.set_initial_magnetic_moments([2.0, -2.0])
    result = relax([atoms], ASECalculator(Springs, workers=1), FIRE(), fmax=1e-3)
    relaxed = result.atoms[0]
    assert relaxed.get_magnetic_moments().tolist() == [2.0, -2.0]
    assert np.array_equal(relaxed.get_dipole_moment(), relaxed.positions.sum(0))
    assert np.array_equal(relaxed.calc.results["bond-orders"], np.eye(2))
    # The path follows the free energy; the potential energy is the other one.
    assert result.energies[0] == relaxed.get_potential_energy() > 1.0
    assert relaxed.get_potential_energy(force_consistent=True) < 1e-5


def test_results_are_kept_where_a_structure_of_another_size_takes_the_place(monkeypatch):
    """Of all structures but the last ones, whose places are taken before they are handed over."""
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 16)
    monkeypatch.setattr("basinax.structures.machine.CPU.few_rows", 16)
    atoms = [Atoms(f"Ar{n}", np.full((n, 3), 0.1) * np.arange(3)) for n in (2, 7, 3, 8, 1, 5)]
    result = relax(atoms, ASECalculator(Springs()), FIRE(), fmax=1e-3, max_steps=[3, 5, 2, 4, 6, 3])
    for k, end in enumerate(result.atoms):
        bonds = end.calc.results["bond-orders"]
        np.testing.assert_array_equal(bonds, np.eye(len(atoms[k])))


def test_results_are_not_those_of_arrays_that_were_filled_again():
    atoms = [on_springs("H3", k) for k in range(3)]
    for found, a in zip(evaluate(atoms, Refilled()).atoms, atoms, strict=True):
        assert np.array_equal(found.get_forces(), -a.positions)
        assert np.array_equal(found.get_dipole_moment(), a.positions.sum(0))


def test_everything_called_energy_is_ase_s_energy(tmp_path):
    """The minimised one is 1 eV lower, and called free energy."""
    atoms = [on_springs("H3", 0), Atoms("H3", np.zeros((3, 3)))]
    kept = {"trajectory": tmp_path / "frames", "log": tmp_path / "log", "history": True}
    result = relax(atoms, Springs(), FIRE(), fmax=1e-3, **kept)
    first = 1 + 0.5 * (atoms[0].positions ** 2).sum()
    assert result.initial_energies.tolist() == [first, 1.0]
    assert result.to_dict()["initial_energy_eV"] == [first, 1.0]
    for k, end in enumerate(result):
        frames = read(tmp_path / "frames" / f"{k}.traj", ":")
        assert frames[0].get_potential_energy() == result.initial_energies[k]
        assert frames[-1].get_potential_energy() == end.energy == end.atoms.get_potential_energy()
        for frame in [*frames, end.atoms]:
            results = frame.calc.results
            assert results["free_energy"] == pytest.approx(results["energy"] - 1, abs=1e-12)
        assert end.history.energies[[0, -1]].tolist() == [end.initial_energy, end.energy]
    logged = (tmp_path / "log").read_text().splitlines()[1].split()
    assert float(logged[3]) == pytest.approx(result.initial_energies[int(logged[0])], abs=1e-6)
    found = evaluate(atoms, Springs())
    assert found.energies.tolist() == [first, 1.0]
    assert found.free_energies.tolist() == [first - 1, 0.0]


def test_the_best_point_has_all_results():
    """Under pressure, where the lowest energy is at another point, in single precision."""
    steps = [0, 6, 7, 8, 9, 10]
    atoms = [bulk("Cu", cubic=True, a=3.55) for _ in steps]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    options = {"cell": Frechet(pressure=0.1), "keep_best": True, "dtype": np.float32}
    optimizer = FIRE(dt=0.3, dtmax=2.0, maxstep=1.0)
    result = relax(atoms, EMT(), optimizer, fmax=0.0, max_steps=steps, **options)
    for end in result:
        assert end.energy == pytest.approx(sum(end.atoms.calc.results["energies"]), abs=1e-12)


# --- calculators that fail


FAULTS = {
    "raises": (Status.EVALUATION_FAILED, "RuntimeError: SCF did not converge"),
    "exits": (Status.EVALUATION_FAILED, "ended with exit status 3"),
    "hangs": (Status.EVALUATION_FAILED, "took longer than 5 s"),
    "shape": (Status.EVALUATION_FAILED, "forces of shape (3,), not (2, 3)"),
    "nothing": (Status.EVALUATION_FAILED, "returned no forces"),
    "text": (Status.EVALUATION_FAILED, "energy that is no array"),
    "complex": (Status.EVALUATION_FAILED, "returned complex forces"),
    "nan": (Status.NOT_FINITE, ""),
}
OF_PROCESSES = ("raises", "exits", "hangs")
"""Faults that a process of its own shows, or reports."""


@pytest.mark.parametrize(
    ("fault", "workers"),
    [
        *((fault, 2) for fault in OF_PROCESSES),
        *((fault, 0) for fault in FAULTS if fault not in OF_PROCESSES),
        *(exhaustive(fault, 2) for fault in FAULTS if fault not in OF_PROCESSES),
    ],
)
def test_what_fails_ends_its_structure_alone(fault, workers):
    status, message = FAULTS[fault]
    make = functools.partial(Faulty, fault)
    calculator = ASECalculator(make, workers, timeout=5.0) if workers else make()
    atoms = [on_springs("H3", 0), on_springs("AuH", 1), on_springs("O2", 2)]
    result = relax(atoms, calculator, fmax=1e-3)
    assert [Status(x) for x in result.status] == [Status.CONVERGED, status, Status.CONVERGED]
    assert message in result.messages[1]
    assert [bool(text) for text in result.messages] == [False, bool(message), False]
    assert np.isnan(result.energies).tolist() == [False, bool(message), False]
    assert result.fmax[1] == np.inf
    assert same_ends(
        relax(atoms[::2], calculator, fmax=1e-3),
        [relax([a], Springs(), fmax=1e-3) for a in atoms[::2]],
    )


class WithoutEnergyAtZero(Springs):
    """Has the energy of smeared electrons alone."""

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        self.results |= {"free_energy": self.results["energy"], "energy": np.nan}


def test_an_energy_that_is_not_finite_ends_its_structure_whatever_its_free_energy():
    result = relax([on_springs("H3", 0)], WithoutEnergyAtZero(), fmax=1e-3)
    assert result.status[0] == Status.NOT_FINITE


LACKS = {"host": "MemoryError", "torch": "OutOfMemoryError: CUDA", "killed": "by SIGKILL"}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are not in /proc")
@pytest.mark.parametrize("lack", ["host", *map(exhaustive, ["torch", "killed"])])
@pytest.mark.parametrize("most", [1, exhaustive(2)])
def test_fewer_processes_go_on_where_memory_runs_out_with_the_same_bits(lack, most, tmp_path):
    symbols = ("H3", "AuH", "C5", "O2", "N4", "F6")
    atoms = [on_springs(symbol, k) for k, symbol in enumerate(symbols)]
    hungry = ASECalculator(functools.partial(Hungry, lack, tmp_path, 4, most), workers=4)
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        result = relax(atoms, hungry, fmax=1e-3)
    assert [k for k, text in enumerate(result.messages) if text] == [1]
    start, lacked = "memory has run out for this structure alone: ", LACKS[lack]
    assert result.messages[1].startswith(start) and lacked in result.messages[1]
    others = [a for k, a in enumerate(atoms) if k != 1]
    found = [result.atoms[k] for k in range(len(atoms)) if k != 1]
    whole = [relax([a], Springs(), fmax=1e-3).atoms[0] for a in others]
    assert result.converged.sum() == 5
    assert all(np.array_equal(a.positions, b.positions) for a, b in zip(found, whole, strict=True))


def test_reused_calculators_that_begin_anew_are_told_of(tmp_path):
    hungry = functools.partial(Hungry, "host", tmp_path, 2, 1)
    with pytest.warns(RuntimeWarning, match="begin anew, so last digits may change"):
        atoms = [on_springs("H3", k) for k in range(3)]
        result = relax(atoms, ASECalculator(hungry, workers=2, reuse=True), fmax=1e-3)
    assert result.converged.all()


def test_a_calculator_of_this_process_that_has_too_little_memory_fails_alone(tmp_path):
    found = evaluate([on_springs("H3", 0), on_springs("AuH", 1)], Hungry("host", tmp_path, 1, 1))
    assert found.messages == ["", "memory has run out for this structure alone: MemoryError"]


def broken():
    raise FileNotFoundError("no such model: x.model")


def lock():
    return threading.Lock()


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (lambda: broken, {}, ValueError, "could not be made: FileNotFoundError: no such model"),
        (lambda: functools.partial(Faulty, lock()), {}, TypeError, "cannot be sent to another"),
        (lambda: NoStress, {"cell": "frechet"}, ValueError, "system 0 needs its stress"),
        (NoStress, {"cell": "frechet"}, ValueError, "system 0 needs its stress"),
        (lambda: None, {}, ValueError, "there is no calculator for 1 structure (0)"),
        (EMT, {"skin": 1.0}, TypeError, "skin is for potentials with neighbour lists"),
        (lambda: 3, {}, TypeError, "potential must be"),
    ],
    ids=["unmade", "unpicklable", "no-stress", "no-stress-here", "none", "skin", "number"],
)
def test_what_cannot_run_raises_before_it_runs(make, options, error, text):
    potential = make()
    if callable(potential):
        potential = ASECalculator(potential, workers=2)
    with pytest.raises(error) as raised:  # and no warning that others go on
        relax([bulk("Cu", cubic=True)], potential, **options)
    assert text in str(raised.value)


@pytest.mark.parametrize(("potential", "number"), [(None, 2), (ASECalculator(NoStress, 1), 1)])
def test_who_asks_for_a_stress_that_there_is_not_is_told_before_anything_runs(potential, number):
    """By the number of the first structure that lacks it; a molecule has no stress to miss."""
    atoms, told = [on_springs("H3", 0), bulk("Cu"), bulk("Cu")], []
    for a, calculator in zip(atoms, (NoStress(), EMT(), NoStress()), strict=True):
        a.calc = calculator
    asked = rf"system {number} needs its stress .* choose another calculator, .* leave out stress"
    with pytest.raises(ValueError, match=asked):
        relax(atoms, potential, FIRE(), stress=True, on_end=lambda *end: told.append(end))
    assert not told
    with pytest.raises(ValueError, match=asked):
        evaluate(atoms, potential, stress=True)


def test_stored_results_are_no_calculator():
    atoms = bulk("Cu", cubic=True)
    atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((4, 3)))
    with pytest.raises(TypeError, match="system 0: its calculator holds results of one point"):
        relax([atoms])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"calculator": 3}, "calculator must be an ASE calculator"),
        ({"calculator": EMT(), "workers": 2}, "workers needs a function"),
        ({"calculator": EMT(), "reuse": True}, "reuse needs a function"),
        ({"calculator": EMT(), "threads": 2}, "threads needs a function"),
        ({"calculator": EMT, "workers": 0}, "workers must be at least 1"),
        ({"calculator": EMT, "threads": 1.5}, "threads must be an integer"),
        ({"calculator": EMT, "timeout": -1.0}, "timeout must be positive"),
    ],
)
def test_settings_that_are_of_no_use_raise(arguments, text):
    with pytest.raises((TypeError, ValueError), match=text):
        ASECalculator(**arguments)


def test_a_calculator_need_not_say_which_properties_it_has():
    atoms = [on_springs("H3", 0)]
    there = relax(atoms, ASECalculator(Silent, workers=1), fmax=1e-3)
    assert same_ends(there, [relax(atoms, Springs(), fmax=1e-3)])


def test_a_process_that_cannot_make_its_calculator_is_left_out(tmp_path):
    """Only the first one can."""

    def once():
        (tmp_path / "made").touch(exist_ok=False)
        return Springs()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = relax([on_springs("H3", 0)] * 3, ASECalculator(once, workers=2), fmax=1e-2)
    assert result.converged.all()


def test_a_module_that_starts_processes_when_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "starting_module.py").write_text(
        "from ase.build import bulk\n"
        "from ase.calculators.emt import EMT\n"
        "from basinax.atoms import ASECalculator, evaluate\n"
        "def make():\n"
        "    return EMT()\n"
        "evaluate([bulk('Cu')], ASECalculator(make, workers=1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="imports this module, which starts such processes"):
        importlib.import_module("starting_module")


def test_a_calculator_that_is_made_once_for_all_is_no_reused_one():
    one = EMT()
    result = relax(dimers(2), ASECalculator(lambda: one, workers=1, reuse=True), FIRE())
    assert (result.status == "evaluation_failed").all()
    assert "each structure needs its own" in result.messages[0]
    with pytest.raises(ValueError, match="returned None, which is no calculator"):
        relax(dimers(1), ASECalculator(lambda: None), FIRE())


def test_to_make_a_calculator_of_its_own_is_no_part_of_an_evaluation():
    def make():
        time.sleep(0.6)
        return EMT()

    calculator = ASECalculator(make, workers=1, reuse=True, timeout=0.5)
    assert evaluate(dimers(1), calculator).messages == [""]


def test_objects_of_classes_of_a_script_go_to_processes_and_back():
    note = type("Note", (), {"__module__": "__main__"})

    class Noting(EMT):
        def calculate(self, atoms=None, *args):
            super().calculate(atoms, *args)
            self.results["noted"] = atoms.info["note"]

    atoms = dimers(1)
    atoms[0].info["note"] = note()
    result = relax(atoms, ASECalculator(Noting, workers=1), FIRE(), max_steps=1)
    assert type(result.atoms[0].calc.results["noted"]).__name__ == "Note"


def test_calculators_of_structures_that_have_ended_are_dropped():
    atoms = dimers(4)
    atoms[-1].positions[1, 2] += 0.4
    calculator = ASECalculator(Counted, workers=1, reuse=True)
    result = relax(atoms, calculator, FIRE(), fmax=0.05, max_steps=100)
    assert result.steps[-1] > result.steps[:-1].max()
    assert result.atoms[-1].calc.results["alive"] == 2  # its own, and that of the start


def test_a_process_that_ends_is_seen_though_its_programs_live_on():
    """Without that, the run would wait for ten minutes."""
    result = relax(dimers(1), ASECalculator(Leaving, workers=1), FIRE(), fmax=1e-9)
    assert result.status[0] == "evaluation_failed" and "SIGKILL" in result.messages[0]


def test_a_process_that_ends_while_it_is_idle_costs_no_structure():
    atoms = dimers(1)
    request = Request(0, atoms[0].positions, atoms[0].cell.array, False)
    with contextlib.closing(Workers(EMT, atoms, 1, True, None, 1)) as workers:
        for _ in range(2):
            process = workers._workers[0]._process
            process.send_signal(signal.SIGSEGV)
            process.wait()
            workers.end(0)
            workers.ask([request])
            found = []
            while not found:
                found = workers.answers(1.0)
            ((_, answer),) = found
            workers._again.clear()
            assert isinstance(answer, Evaluated)


def test_a_calculator_that_leaves_the_program_fails_its_structure_alone():
    class Exiting(EMT):
        def calculate(self, atoms=None, *args):
            if atoms.info["number"] == 1:
                raise SystemExit(3)
            super().calculate(atoms, *args)

    result = relax(dimers(2), Exiting(), FIRE(), fmax=0.05)
    assert result.status.tolist() == ["converged", "evaluation_failed"]
    assert result.messages[1] == "SystemExit: 3"


def test_a_stopped_run_returns_where_structures_are():
    asked = iter([False, False, True])
    result = relax(metals()[1:3], EMT(), should_stop=lambda: next(asked, True))
    assert (result.status == Status.RUNNING).all()


# --- calculators in files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, and a place for temporary ones beside it."""
    for name in ("run", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "run"


@pytest.mark.parametrize("where", [".", "calc", "../calc", "absolute"])
def test_processes_do_not_read_each_other_s_files(where, folder):
    """Nor those that an earlier run has left, which stay as they are."""
    place = folder.parent / "calc" if where == "absolute" else folder / where
    place.mkdir(exist_ok=True)
    left = [place / name for name in ("job.in", "job.out", "guess")]
    for path in left:
        path.write_text("0")
    (folder / "table").write_text("1" + " " * folders.BYTES)
    directory = str(place) if where == "absolute" else where
    make = functools.partial(InFiles, table="table", directory=directory)
    atoms = [on_springs("H2", k) for k in range(6)]
    for a in atoms:
        a.positions[0, 0] += a.positions[1, 0]
    found = evaluate(atoms, ASECalculator(make, workers=2))
    assert found.messages == [""] * 6
    right = [0.5 * (a.positions**2).sum() for a in atoms]
    np.testing.assert_allclose(found.energies, right, rtol=1e-12)
    assert [path.read_text() for path in left] == ["0"] * 3
    assert os.listdir(folder.parent / "temporary") == []


def test_a_reused_calculator_finds_the_files_of_its_own_structure(folder):
    atoms = [on_springs("H3", 0), on_springs("C5", 1), on_springs("O2", 2)]
    reused = ASECalculator(InFiles, workers=2, reuse=True)
    settings = {"fmax": 1e-9, "max_steps": 2}
    batch = relax(atoms, reused, **settings)
    assert same_ends(batch, [relax([a], reused, **settings) for a in atoms])
    assert os.listdir(folder.parent / "temporary") == os.listdir(folder) == []


def test_a_process_that_cannot_be_started_leaves_nothing(folder, monkeypatch):
    start, begun = subprocess.Popen, []

    def refuse(*arguments, **options):
        if begun:
            raise OSError("Resource temporarily unavailable")
        begun.append(start(*arguments, **options))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="temporarily"):
        evaluate([on_springs("H2", k) for k in range(2)], ASECalculator(InFiles, workers=2))
    assert begun[0].poll() is not None
    assert os.listdir(folder.parent / "temporary") == []


def test_the_files_of_a_failed_structure_are_kept(folder):
    atoms = [on_springs("H2", 0), on_springs("Au2", 1)]
    found = evaluate(atoms, ASECalculator(InFiles, workers=1))
    assert found.messages[0] == ""
    text, kept = found.messages[1].split("; its files are in ")
    assert text == "RuntimeError: gold"
    assert np.array_equal(np.loadtxt(Path(kept) / "job.in"), atoms[1].positions)
    assert len(os.listdir(folder.parent / "temporary")) == 1 and os.listdir(folder) == []


def test_a_folder_shows_what_is_small_or_named_and_forgets_the_rest(folder):
    large = dict.fromkeys(("large", "named", "data/named"), 2 * folders.BYTES)
    contents = {"small": 3, "a/b": 1, **large}
    for name, size in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x" * size)
    root = str(folder.parent / "temporary" / "root")
    made = folders.Folder(root, str(folder), folders.Names(["named 3", "./data/x"]))
    assert sorted(os.listdir(made.path)) == ["a", "data", "named", "small"]
    assert (Path(made.path) / "data" / "named").stat().st_size == contents["data/named"]
    assert not made.has_written()
    (Path(made.path) / "small").write_text("y")
    (Path(made.path) / "a" / "b").unlink()
    (Path(made.path) / "new").mkdir()
    assert made.has_written() and folders.has_written(root)
    made.clean()
    assert sorted(os.listdir(made.path)) == ["a", "data", "named", "small"]
    assert [(Path(made.path) / name).read_text() for name in ("small", "a/b")] == ["xxx", "x"]
    made.check_shared()
    (folder / "data" / "more").touch()
    made.check_shared()
    (folder / "named").touch()
    with pytest.raises(RuntimeError, match="named has changed"):
        made.check_shared()


# --- calculators of other kinds


def test_calculators_inside_a_calculator_forget_too():
    outer = Outer(Springs(), Outer(Springs(), Springs()))
    atoms = [on_springs("H3", 0), on_springs("H3", 1)]
    found = evaluate(atoms, outer)
    right = [evaluate([a], Springs()).energies[0] * 3 for a in atoms]
    np.testing.assert_allclose(found.energies, right, rtol=1e-14)


@pytest.mark.parametrize("potential", [Duck(), None, ASECalculator(Duck, workers=1)])
def test_an_object_with_the_methods_of_a_calculator_is_one(potential):
    atoms = [on_springs("H3", 0)]
    atoms[0].calc = Duck()
    found = evaluate(atoms, potential)
    right = 0.5 * (atoms[0].positions ** 2).sum()
    assert (found.energies[0], found.free_energies[0]) == (right + 1, right)
    assert np.array_equal(found.forces[0], -atoms[0].positions)


def test_an_object_without_these_methods_is_named():
    atoms = on_springs("H3", 0)
    atoms.calc = object()
    with pytest.raises(TypeError, match=r"system 0: .* object, lacks get_potential_energy"):
        evaluate([atoms])
    atoms.pbc, atoms.calc = True, Duck()
    atoms.set_cell([9.0, 9.0, 9.0])
    with pytest.raises(ValueError, match="its calculator has no stress"):
        evaluate([atoms], stress=True)


# --- by name


def test_a_text_names_a_calculator_and_its_arguments():
    calculator = potential_from("ase:calculators:Faulty,fault=raises")
    result = relax([on_springs("AuH", 1)], calculator, fmax=1e-3)
    assert result.messages == ["RuntimeError: SCF did not converge"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ase:", "expected ase:MODULE:CALLABLE"),
        ("ase:calculators", "expected ase:MODULE:CALLABLE"),
        ("ase:no_such_module:EMT", "no_such_module cannot be imported"),
        ("ase:calculators:NoSuch", "calculators has no NoSuch"),
        ("ase:calculators:Springs,fast", "expected OPTION=VALUE, got 'fast'"),
    ],
)
def test_a_text_that_names_none_raises(text, error):
    with pytest.raises(ValueError, match=error):
        potential_from(text)


# --- evaluators of one's own


class Slow(AbstractEvaluator):
    """Answers one request at a time, the last one first."""

    def open(self, atoms, needs_stress):
        del needs_stress
        return SlowSession(atoms)


class SlowSession(AbstractSession):
    def __init__(self, atoms):
        self.atoms, self.waiting = atoms, []

    def ask(self, requests):
        assert all(isinstance(request, Request) for request in requests)
        self.waiting += requests

    def answers(self, timeout):
        del timeout
        if not self.waiting:
            return []
        request = self.waiting.pop()
        if len(request.positions) == 5:
            return [(request.number, EvaluationError("five atoms are too many"))]
        x = request.positions
        return [(request.number, Evaluated(0.5 * float((x * x).sum()), -x))]

    def end(self, number):
        self.waiting = [request for request in self.waiting if request.number != number]

    def close(self):
        self.atoms = []


class Fourfold(Slow):
    """Counts the structures whose requests wait at a time."""

    n_at_once = 4

    def open(self, atoms, needs_stress):
        session = super().open(atoms, needs_stress)
        self.most, ask = 0, session.ask

        def counting(requests):
            ask(requests)
            self.most = max(self.most, len(session.waiting))

        session.ask = counting
        return session


class Odd(Slow):
    """Answers what `answer` makes of positions."""

    def __init__(self, answer):
        self.answer = answer

    def open(self, atoms, needs_stress):
        session, answers = super().open(atoms, needs_stress), SlowSession.answers
        session.answers = lambda timeout: [
            (number, self.answer(-found.forces)) for number, found in answers(session, timeout)
        ]
        return session


ODD = {
    "forces of shape (3,), not (2, 3)": lambda x: Evaluated(0.0, -x.sum(0)),
    "energy of shape (1,), not ()": lambda x: Evaluated(np.zeros(1), -x),  # pyright: ignore
    "stress of shape (2,), not (6,)": lambda x: Evaluated(0.0, -x, np.zeros(2)),
    "no stress": lambda x: Evaluated(0.0, -x),
    "complex forces": lambda x: Evaluated(0.0, -x * 1j),
    "None, which is no Evaluated(energy, ...)": lambda _: None,
}


@pytest.mark.parametrize("text", ODD)
def test_what_an_evaluator_returns_is_checked(text):
    """A stress that was not returned would be 0, and forces of another shape are broadcast."""
    atoms = Atoms("H2", [(1, 0, 0), (0, 1, 0)], cell=np.eye(3) * 9, pbc=True)
    result = relax([atoms], Odd(ODD[text]), FIRE(), cell="frechet", fmax=1e-3)
    assert result.status == ["evaluation_failed"]
    assert result.messages == [f"the evaluator returned {text}"]
    assert evaluate([atoms], Odd(ODD[text]), stress=True).messages == result.messages


def test_a_stress_of_an_evaluator_may_be_a_matrix():
    atoms = Atoms("H2", [(1, 0, 0), (0, 1, 0)], cell=np.eye(3) * 9, pbc=True)
    matrix = np.arange(9.0).reshape(3, 3)
    odd = Odd(lambda x: Evaluated(0.0, -x, matrix + matrix.T))
    assert evaluate([atoms], odd, stress=True).stresses.tolist() == [[0, 8, 16, 12, 8, 4]]


def test_large_structures_keep_all_processes_busy(monkeypatch):
    """A batch has few rows for the sake of caches, which does not matter beside evaluations."""
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", shape_of_batches)
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 48)
    evaluator = Fourfold()
    atoms = [on_springs(f"H{40 + k}", k) for k in range(10)]
    together = relax(atoms, evaluator, fmax=1e-3)
    assert evaluator.most >= evaluator.n_at_once
    assert same_ends(together, [relax([a], Slow(), fmax=1e-3) for a in atoms])


def test_a_stream_has_structures_for_all_processes_in_memory(monkeypatch):
    monkeypatch.setattr("basinax.engine.relax_stream._most_rows", lambda run: 8)
    evaluator, opened = Fourfold(), []
    begin = Fourfold.open
    monkeypatch.setattr(Fourfold, "open", lambda *args: opened.append(args) or begin(*args))
    atoms = (on_springs("H9", k) for k in range(40))
    assert len(list(relax_stream(atoms, evaluator, fmax=1e-3))) == 40
    assert [len(structures) for _, structures, _ in opened] == [32, 8]


def test_the_processes_of_a_stream_go_on_with_structures_that_follow(monkeypatch):
    monkeypatch.setattr("basinax.engine.relax_stream._most_rows", lambda run: 8)
    sessions, begin = [], Workers.__init__
    monkeypatch.setattr(
        Workers, "__init__", lambda self, *args: sessions.append(self) or begin(self, *args)
    )
    atoms = [on_springs(f"H{2 + (k == 20)}", k) for k in range(24)]
    calculator = ASECalculator(Springs, workers=1)
    found = dict(relax_stream(iter(atoms), calculator, FIRE(), fmax=1e-2))
    assert len(sessions) == 2  # the second begins with a structure larger than those before
    assert not sessions[0]._atoms and not sessions[1]._atoms
    together = relax(atoms, calculator, FIRE(), fmax=1e-2)
    assert [found[k].energy for k in range(24)] == together.energies.tolist()
    assert all(
        np.array_equal(found[k].positions, a.positions) for k, a in enumerate(together.atoms)
    )


def test_evaluations_that_wait_begin_between_two_steps_of_the_host():
    atoms = dimers(3)
    requests = [Request(k, a.positions, a.cell.array, False) for k, a in enumerate(atoms)]
    with contextlib.closing(Workers(EMT, atoms, 1, False, None, 1)) as workers:
        workers.ask(requests)
        while len(workers._ready) < 3:
            workers.look()
        assert sorted(number for number, _ in workers.answers(0.0)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("calculator", "expected"),
    [(EMT(), [1, 3, 2, 0]), (ASECalculator(EMT, workers=1), [3, 1, 2, 0])],
    ids=["here", "process"],
)
def test_those_that_began_first_are_evaluated_first(calculator, expected):
    atoms, ranks = dimers(4), [3, 0, 2, 1]
    requests = [
        Request(k, a.positions, a.cell.array, False, rank)
        for k, (a, rank) in enumerate(zip(atoms, ranks, strict=True))
    ]
    evaluator = evaluator_of(calculator)
    with contextlib.closing(evaluator.open(atoms, [False] * 4)) as session:
        session.ask(requests[2:])  # of which a process begins one
        session.ask(requests[:2])
        order = []
        while len(order) < 4:
            order += [number for number, _ in session.answers(1.0)]
    assert order == expected


class InTurn(Slow):
    """Answers one request at a time, the one of the lowest rank."""

    def open(self, atoms, needs_stress):
        session, self.order = super().open(atoms, needs_stress), []
        answers = session.answers

        def in_turn(timeout):
            session.waiting.sort(key=lambda request: -request.rank)
            found = answers(timeout)
            self.order += [number for number, _ in found]
            return found

        session.answers = in_turn
        return session


def test_structures_end_one_after_another_where_evaluations_are_slow(monkeypatch):
    """Of a run that a time limit ends, as many as possible are done."""
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", shape_of_batches)
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 48)
    evaluator = InTurn()
    result = relax([on_springs(f"H{3 + k % 4}", k) for k in range(14)], evaluator, FIRE())
    assert sorted(set(result.status)) == ["converged", "evaluation_failed"]  # of five atoms
    order = [number for number, _ in itertools.groupby(evaluator.order)]
    assert sorted(order) == list(range(14))


class Quartic(Fourfold):
    """Springs that stiffen; NaN for structures of seven atoms after some evaluations."""

    def open(self, atoms, needs_stress):
        session = super().open(atoms, needs_stress)
        answers, seen = session.answers, Counter()

        def changed(timeout):
            session.waiting.reverse()  # those that have waited longest come first
            found = answers(timeout)
            session.waiting.reverse()
            for number, answer in found:
                x = -answer.forces
                seen[number] += 1
                if len(x) == 7 and seen[number] > 3:
                    yield number, Evaluated(np.nan, x * np.nan, np.zeros(6))
                    continue
                energy = float((0.5 * x**2 + 0.25 * x**4).sum())
                stress = np.diag(((x**2 + x**4) / 9**3).sum(0))
                yield number, Evaluated(energy, -x - x**3, stress)

        session.answers = lambda timeout: list(changed(timeout))
        return session


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("optimizer", "cell", "dtype"),
    [
        exhaustive(FIRE(), None, "float32"),
        (FIRE(), "frechet", "float64"),
        exhaustive(LBFGS(), None, "float64"),
        exhaustive(LBFGS(), "frechet", "float64"),
        exhaustive(BFGS(), None, "float32"),
        exhaustive(InternalLBFGS(), "frechet", "float64"),
    ],
)
def test_a_place_serves_smaller_structures_with_the_bits_that_each_has_alone(
    monkeypatch, optimizer, cell, dtype
):
    begun, begin = [], Stream.run
    sizes = [3, 61, 7, 20, 1, 33, 45, 16, 9, 28, 52, 8, 40, 12, 24]
    atoms = [on_springs(f"H{n}", k) for k, n in enumerate(sizes)]
    for a in atoms:
        a.set_cell(np.eye(3) * 9)
        a.pbc = cell is not None
        a.set_constraint(FixAtoms([0]) if len(a) % 2 else None)
    how = {"cell": cell, "dtype": dtype, "fmax": 1e-3, "max_steps": 400}
    with monkeypatch.context() as patch:
        patch.setattr("basinax.engine.groups.shape_of_batches", shape_of_batches)
        patch.setattr("basinax.structures.machine.CPU.max_rows", 48)
        patch.setattr("basinax.structures.machine.CPU.few_rows", 8)
        patch.setattr(Stream, "run", lambda stream: begun.append(stream) or begin(stream))
        together = relax(atoms, Quartic(), optimizer, history=True, **how)
    assert len(begun) == 1
    assert together.status[2] == Status.NOT_FINITE and together.converged.sum() > 10
    small = [k for k, n in enumerate(sizes) if n <= 24]
    for k in small:
        alone = relax([atoms[k]], Quartic(), optimizer, **how)
        for name in ("energies", "steps", "fmax"):
            both = getattr(together, name)[k], getattr(alone, name)[0]
            assert np.array_equal(*both, equal_nan=True)
        assert np.array_equal(together.atoms[k].positions, alone.atoms[0].positions)
        assert np.array_equal(together.atoms[k].cell, alone.atoms[0].cell)


def test_the_order_of_answers_changes_no_bit():
    atoms = [on_springs("H3", 0), on_springs("C5", 1), on_springs("O2", 2)]
    batch = relax(atoms, Slow(), fmax=1e-4)
    assert batch.messages == ["", "five atoms are too many", ""]
    assert same_ends(
        relax(atoms[::2], Slow(), fmax=1e-4), [relax([a], Slow(), fmax=1e-4) for a in atoms[::2]]
    )
