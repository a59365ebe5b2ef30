"""Whole relaxations of ASE structures: the bits of a batch, and the trajectories of ASE."""

import io
import itertools
import re
import signal
import threading

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.cluster import Icosahedron
from ase.filters import FrechetCellFilter, StrainFilter
from ase.optimize import FIRE as ASEFIRE
from rich.console import Console

import basinax
from basinax import (
    BFGS,
    FIRE,
    LBFGS,
    GradientDescent,
    LevenbergMarquardt,
    MaxForce,
    MaxStepSize,
    Status,
    chain,
)
from basinax.atoms import (
    EMT,
    ASECalculator,
    Frechet,
    LennardJones,
    Progress,
    StillingerWeber,
    Tersoff,
    ZhouEAM,
    evaluate,
    relax,
    relax_stream,
)
from basinax.engine import stream
from basinax.engine.slots import Slots
from basinax.neighbors.search import check_listable
from basinax.results.bar import Bar
from comparison import same
from cover import exhaustive
from follow_ase import walk_of_ase
from lost import Lost

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}

few_lengths = pytest.mark.usefixtures("few_lengths")
"""Where it is not used, lists are as long as they need to be, and make further programs."""


def structures() -> list[Atoms]:
    """Crystals, a slab, clusters and a lone atom, off their minima by up to half an Å."""
    made = [
        bulk("Ar", "fcc", 5.2, cubic=True),
        bulk("Ar", "fcc", 5.4).repeat((2, 1, 3)),
        bulk("Ar", "fcc", 5.26, cubic=True).repeat((2, 2, 1)),
        fcc111("Ar", (2, 2, 3), a=5.3, vacuum=12.0),
        Atoms("Ar13", Icosahedron("Ar", 2, latticeconstant=5.4).positions),
        Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]]),
        Atoms("Ar", [[1, 2, 3]]),
    ]
    for k, atoms in enumerate(made):
        atoms.rattle(0.15, seed=k)
        atoms.info["number"] = k
    return made


@few_lengths
@pytest.mark.parametrize("dtype", [np.float32, exhaustive(np.float64)])
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(dtype, as_users):
    atoms = structures()
    # In place of a pair: as many as there are run a program of other tests.
    atoms[5].positions[1] = atoms[5].positions[0]
    potential, settings = LennardJones(**ARGON), {"fmax": 1e-3, "max_steps": 450, "dtype": dtype}
    batch = relax(atoms, potential, FIRE(), **settings)
    assert batch.status[5] == Status.NOT_FINITE
    assert batch.steps.max() > 60
    differing = [
        i
        for i, a in enumerate(atoms)
        if not same(batch, i, relax([a], potential, FIRE(), **settings), 0)
    ]
    assert differing == []


def test_lbfgs_steps_where_no_optimizer_is_named():
    atoms = structures()[:3]
    found = relax(atoms, LennardJones(**ARGON), fmax=0.01)
    expected = relax(atoms, LennardJones(**ARGON), LBFGS(), fmax=0.01)
    assert all(same(found, i, expected, i) for i in range(3))
    assert found.converged.all() and found.steps.max() < 15


def test_order_skin_and_rebuilds_change_no_bit():
    atoms, potential = structures(), LennardJones(**ARGON)
    batch = relax(atoms, potential, FIRE(), fmax=1e-3)
    # With so thin a skin a moving system needs a new list every few steps.
    thin = relax(atoms[::-1], potential, FIRE(), fmax=1e-3, skin=0.02)
    assert [i for i in range(len(atoms)) if not same(batch, i, thin, len(atoms) - 1 - i)] == []


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.exhaustive  # every day in places that are taken again, below
def test_how_structures_are_grouped_changes_no_bit(monkeypatch):
    atoms, potential = structures(), LennardJones(**ARGON)
    batch = relax(atoms, potential, FIRE(), fmax=1e-3)
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 24)
    monkeypatch.setattr("basinax.structures.machine.CPU.worth_compiling", 0)
    parts = relax(atoms, potential, FIRE(), fmax=1e-3)
    assert [i for i in range(len(atoms)) if not same(batch, i, parts, i)] == []


@few_lengths
def test_a_place_that_is_taken_again_remembers_nothing(monkeypatch):
    """Twelve structures of one or two blocks go through a batch with room for four."""
    atoms, potential = [], LennardJones(**ARGON)
    for k in range(12):
        atoms.append(bulk("Ar", "fcc", 5.1 + 0.02 * k, cubic=True).repeat((1, 1, 1 + k % 3)))
        atoms[-1].rattle(0.1, seed=k)
    atoms[1].positions[1] = atoms[1].positions[0]
    settings = {"fmax": 1e-3, "keep_best": True, "dtype": np.float32}
    together = relax(atoms, potential, FIRE(), **settings)
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 48)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    streamed = relax(atoms, potential, FIRE(), **settings)
    assert [i for i in range(12) if not same(together, i, streamed, i)] == []
    assert together.status[1] == Status.NOT_FINITE


@few_lengths
def test_structures_of_other_sizes_begin_in_a_batch_that_is_half_empty(monkeypatch):
    """Of 96 rows, for two to ten of them."""
    atoms, potential = [], LennardJones(**ARGON)
    for k in range(10):
        atoms.append(bulk("Ar", "fcc", 5.2, cubic=True).repeat((2, 2, 1 + k % 5))[: 5 + 7 * k])
        atoms[-1].rattle(0.1, seed=k)
    atoms[5].positions[1] = atoms[5].positions[0]
    # Small ones, which begin behind large ones, run on when these have ended.
    settings = {"fmax": 0.0, "max_steps": [9, 400, 400, 400, 9, 9, 9, 9, 9, 9]}
    together = relax(atoms, potential, FIRE(), **settings, history=True)
    moved = []
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 96)
    monkeypatch.setattr("basinax.structures.machine.CPU.alike", np.inf)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    move = Slots._closed_up
    monkeypatch.setattr(Slots, "_closed_up", lambda *args: moved.append(args) or move(*args))
    streamed = relax(atoms, potential, FIRE(), **settings, history=True)
    assert [i for i in range(10) if not same(together, i, streamed, i)] == []
    assert len(moved) >= 3
    for one, other in zip(together.history, streamed.history, strict=True):
        assert np.array_equal(one.energies, other.energies)


@few_lengths
def test_a_structure_that_is_lost_ends_in_the_same_turn_wherever_it_stands(monkeypatch):
    """No list can be made for it, so it must not move; some are lost in a look's last turn."""
    atoms = [bulk("Ar", "fcc", 5.2 + 0.02 * k).repeat((2, 1, 1 + 4 * (k % 4))) for k in range(24)]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    settings = {"fmax": 0.0, "max_steps": 14}
    optimizer = Lost(1 + np.arange(24, dtype=np.int32) // 2)
    together = relax(atoms, LennardJones(**ARGON), optimizer, **settings)
    assert (together.evaluations == 3 + np.arange(24) // 2).all()
    for name, value in {
        "max_rows": 96,
        "alike": np.inf,
        "worth_closing_up": 1.0,
        "turns": 2,
    }.items():
        monkeypatch.setattr(f"basinax.structures.machine.CPU.{name}", value)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    streamed = relax(atoms, LennardJones(**ARGON), optimizer, **settings)
    assert [i for i in range(24) if not same(together, i, streamed, i)] == []
    assert np.array_equal(together.evaluations, streamed.evaluations)


@few_lengths
@pytest.mark.parametrize("steps", [1, 10, 50])
def test_fire_walks_as_ase_walks(steps, recorded):
    """1e-9 Å: sums in another order differ in the last bits, which 50 steps multiply."""
    atoms = structures()
    result = relax(atoms, LennardJones(**ARGON), FIRE(), fmax=0.0, max_steps=steps)
    for a, relaxed in zip(atoms, result.atoms, strict=True):
        reference = a.copy()
        reference.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
        expected = recorded(walk_of_ase, ASEFIRE, reference, 0.0, steps)["positions"][-1]
        assert np.abs(relaxed.positions - expected).max() < 1e-9


@few_lengths
def test_it_stops_after_as_many_steps_as_ase(recorded):
    atoms = structures()
    result = relax(atoms, LennardJones(**ARGON), FIRE(), fmax=0.005)
    expected = []
    for a in atoms:
        a.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
        expected.append(recorded(walk_of_ase, ASEFIRE, a, 0.005)["steps"])
    assert result.steps.tolist() == expected
    assert result.converged.all()


def test_relaxed_structures_are_the_originals_elsewhere():
    original = bulk("Ar", "fcc", 5.3, cubic=True)
    original.rattle(0.1, seed=0)
    original.info["name"], original.arrays["tags"] = "crystal", np.array([3, 1, 2, 0])
    before = original.positions.copy()
    (relaxed,) = relax([original], LennardJones(**ARGON), FIRE()).atoms
    assert np.array_equal(original.positions, before)
    assert original.calc is None
    assert relaxed.info["name"] == "crystal"
    assert relaxed.arrays["tags"].tolist() == [3, 1, 2, 0]
    assert np.array_equal(relaxed.cell, original.cell)
    assert relaxed.pbc.all()
    reference = relaxed.copy()
    reference.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    assert relaxed.get_potential_energy() == pytest.approx(
        reference.get_potential_energy(), rel=1e-10
    )
    assert np.abs(relaxed.get_forces() - reference.get_forces()).max() < 1e-10
    energies, expected = (x.get_potential_energies() for x in (relaxed, reference))
    np.testing.assert_allclose(energies, expected, rtol=0, atol=1e-12)
    assert relaxed.get_potential_energy(force_consistent=True) == relaxed.get_potential_energy()


def test_a_converged_start_makes_no_step():
    (relaxed,) = relax([structures()[5]], LennardJones(**ARGON), FIRE()).atoms
    again = relax([relaxed], LennardJones(**ARGON), FIRE())
    assert again.steps[0] == 0
    assert again.evaluations[0] == 1
    assert np.array_equal(again.atoms[0].positions, relaxed.positions)


@few_lengths
def test_limits_and_numbers_may_differ_between_structures():
    atoms, potential = structures()[:3], LennardJones(**ARGON)
    fire = basinax.FIRE(maxstep=np.array([0.2, 0.05, 0.2]))
    result = relax(atoms, potential, fire, fmax=[0.05, 0.01, 0.0], max_steps=[500, 500, 7])
    alone = relax([atoms[1]], potential, basinax.FIRE(maxstep=0.05), fmax=0.01)
    assert same(result, 1, alone, 0)
    assert result.steps[2] == 7
    assert result.status.tolist() == [Status.CONVERGED, Status.CONVERGED, Status.MAX_STEPS]


@few_lengths
def test_species_mix_in_one_batch():
    atoms = structures()[4:6]
    atoms[0].numbers[::2] = 36
    mixture = LennardJones.named("Ar", "Kr", cutoff=9.0)
    result = relax(atoms, mixture, FIRE(), fmax=0.001)
    assert same(result, 0, relax(atoms[:1], mixture, FIRE(), fmax=0.001), 0)


def test_progress_counts_and_a_stop_keeps_what_was_reached():
    seen: list[Progress] = []
    result = relax(
        structures(),
        LennardJones(**ARGON),
        FIRE(),
        fmax=0.0,
        progress=seen.append,
        should_stop=lambda: bool(seen),
    )
    assert seen[0].n_systems == 7
    assert seen[0].n_converged + seen[0].n_failed + seen[0].n_running == 7
    assert (result.status == Status.RUNNING).any()
    assert result.steps.max() < 100


def test_progress_counts_every_structure_once_whenever_another_thread_tells(monkeypatch):
    outcomes, seen = Slots._outcomes, list[Progress]()

    def told(self, *args):
        found = outcomes(self, *args)
        with self.group.monitor.during("listing"):
            return found

    monkeypatch.setattr(Slots, "_outcomes", told)
    relax(structures(), LennardJones(**ARGON), FIRE(), fmax=0.01, progress=seen.append)
    ended = [progress.n_converged + progress.n_failed for progress in seen]
    assert ended == sorted(ended) and ended[-1] == 7
    assert min(progress.n_running for progress in seen) == 0


def test_progress_has_phases():
    seen: list[Progress] = []
    relax(structures()[4:6], LennardJones(**ARGON), FIRE(), fmax=0.01, progress=seen.append)
    phases = [phase for phase, _ in itertools.groupby(progress.phase for progress in seen)]
    assert phases[0] == "listing"
    assert phases[-1] == "running"
    assert "compiling" in phases
    known = [p for p in seen if np.isfinite(p.fmax_median)]
    assert known and all(0 < p.fmax_median <= p.fmax_largest for p in known)


@pytest.mark.parametrize("width", [80, 160])
def test_a_bar_shows_the_phase_counts_and_times_and_forces_where_it_has_room(width):
    shown = io.StringIO()
    bar = Bar(Console(file=shown, force_terminal=True, width=width))
    bar.start()
    bar.show(Progress(1000, 300, 100, "running", 0.25, 1.5))
    bar.refresh()
    bar.stop()
    line = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    counts = "300 converged, 600 running, 100 failed"
    assert re.search(rf"running .*{counts}.* \d:\d\d:\d\d left: [-\d]:[-\d]+:[-\d]+", line)
    assert ("fmax 0.25 (median) 1.5 (worst)" in line) == (width == 160)


def test_a_bar_is_shown_where_it_is_asked_for(capfd):
    relax(structures()[4:6], LennardJones(**ARGON), FIRE(), fmax=0.01, progress=True)
    with pytest.raises(TypeError, match="progress"):
        relax(structures()[4:6], LennardJones(**ARGON), FIRE(), progress="yes")


@pytest.mark.parametrize(("patience", "is_shown"), [(0.0, True), (1000.0, False)])
def test_a_long_run_on_a_terminal_shows_a_bar_unasked(patience, is_shown, monkeypatch):
    has_begun, ended = threading.Event(), []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("basinax.engine.relax.PATIENCE", patience)
    monkeypatch.setattr(Bar, "start", lambda bar: has_begun.set())
    monkeypatch.setattr(Bar, "stop", lambda bar: ended.append(has_begun.is_set()))

    def wait(*ended):
        if is_shown:
            has_begun.wait()

    relax(structures()[4:6], LennardJones(**ARGON), FIRE(), fmax=0.01, on_end=wait)
    assert ended == [is_shown]
    relax(structures()[4:6], LennardJones(**ARGON), FIRE(), fmax=0.01, progress=False)
    assert ended == [is_shown]


def test_a_run_that_is_stopped_makes_no_further_lists(monkeypatch):
    """Each kind of cell has a group of its own."""
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    made, make = [], stream.Stream
    monkeypatch.setattr(stream, "Stream", lambda *of: made.append(of) or make(*of))
    kinds = ["frechet", "strain", "unit-cell"]
    atoms, should_stop = structures()[:3], lambda: bool(made)
    result = relax(atoms, LennardJones(**ARGON), FIRE(), cell=kinds, should_stop=should_stop)
    assert len(made) == 1
    assert (result.status == Status.RUNNING).all()


@few_lengths
@pytest.mark.parametrize(("cell", "keep_best"), [(None, True), exhaustive("frechet", False)])
def test_what_is_stopped_has_no_energy_of_another_point(cell, keep_best):
    """Structures are stopped right after a step: nothing is known of them but where they stand."""
    potential, looks = LennardJones(**ARGON), itertools.count()
    how = {"cell": cell, "keep_best": keep_best, "fmax": 1e-9}
    stop = {"should_stop": lambda: next(looks) > 0}
    result = relax(structures()[:2], potential, FIRE(), **how, **stop)
    assert (result.status == Status.RUNNING).all()
    assert (result.steps > 0).all()
    for atoms, energy, fmax in zip(result.atoms, result.energies, result.fmax, strict=True):
        if not keep_best:
            assert np.isnan([energy, atoms.get_potential_energy()]).all()
            assert np.isnan(atoms.get_forces()).all()
            assert np.isnan(atoms.get_potential_energies()).all()
            assert np.isinf(fmax)
            continue
        assert atoms.get_potential_energies().sum() == pytest.approx(energy, rel=1e-12)
        atoms.calc = ASELennardJones(epsilon=0.0104, sigma=3.4, rc=8.5)
        assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-9)


BAD = {
    "a filter": (FrechetCellFilter(Atoms("Ar")), TypeError, r"cell=Frechet\(\)"),
    "filters": ([StrainFilter(Atoms("Ar"))], TypeError, r"entry 0 .* cell=Strain\(\)"),
    "one Atoms": (Atoms("Ar"), TypeError, r"pass \[atoms\]"),
    "no atoms": ([Atoms("Ar"), Atoms()], ValueError, "system 1 .* has no atoms"),
    "a position that is NaN": (
        [Atoms("Ar2", [[0, 0, 0], [0, 0, np.nan]])],
        ValueError,
        "atom 1 is not finite",
    ),
    "a zero cell with pbc": ([Atoms("Ar", pbc=True)], ValueError, "cell vectors"),
    "a species without parameters": (
        [Atoms("Ar"), Atoms("Fe")],
        ValueError,
        "no parameters for Fe",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_before_anything_runs(name):
    atoms, error, message = BAD[name]
    with pytest.raises(error, match=message):
        relax(atoms, LennardJones.named("Ar", "Kr"), FIRE())


def test_nothing_in_is_an_empty_result():
    argon = LennardJones.named("Ar")
    result, found = relax([], argon, "fire:maxstep=0.1"), evaluate([], argon, stress=True)
    assert len(result) == 0 and str(result) and not any(result.to_dict().values())
    assert result.energies.shape == (0,) and result.steps.dtype == np.int32
    assert len(found) == 0 and found.stresses.shape == (0, 6)
    assert not any(found.to_dict().values())
    assert list(relax_stream([], argon, "fire")) == []


@pytest.mark.parametrize(
    "options, match",
    [
        ({"cell": Frechet}, r"make one with Frechet\(\)"),
        ({"optimizer": basinax.FIRE}, r"make one with FIRE\(\)"),
        ({"steps": 5}, "write max_steps="),
        ({"logfile": "-"}, "write log="),
        ({"maxstep": 0.1}, "give it to the optimizer"),
        ({"pressure": 0.1}, "give it to the cell"),
        ({"restart": "a"}, "run folders"),
        ({"scalar_pressure": 0.1}, "give it to the cell"),
        ({"append_trajectory": True}, "another folder"),
    ],
)
@pytest.mark.parametrize("of", [relax, relax_stream])
def test_names_of_ase_and_classes_say_what_to_write(of, options, match):
    with pytest.raises(TypeError, match=match):
        list(of([Atoms("Ar")], LennardJones.named("Ar"), **options))


def shifted(by: float) -> Atoms:
    atoms = bulk("Ar", "fcc", 6.0, cubic=True)
    atoms.translate([by, 0, 0])
    return atoms


UNLISTABLE = {
    "float32 far from the origin": (shifted(2e7), "float32", r"system 2 \(Ar4\).* known to 2 Å"),
    "beyond float32": (Atoms("Ar", [[1e39, 0, 0]]), "float32", r"system 2 \(Ar\).* up to inf Å"),
    "beyond all bounds": (shifted(2e8), "float64", r"system 2 \(Ar4\).* at most 1e\+08 Å"),
    "a tiny cell": (Atoms("Ar", cell=np.eye(3) / 2, pbc=True), "float64", r"system 2 \(Ar\)"),
}


@pytest.mark.parametrize("name", UNLISTABLE)
def test_structures_without_a_list_in_the_runs_precision_are_named_before_it_runs(name):
    """By their number among all structures, wherever they would have stood in a batch."""
    bad, dtype, message = UNLISTABLE[name]
    with pytest.raises(ValueError, match=message):
        relax([*structures()[:2], bad], LennardJones(**ARGON), FIRE(), dtype=dtype)


def test_a_structure_may_be_as_far_away_as_its_precision_allows():
    check_listable([shifted(2e7)], 10.0, np.float64)
    check_listable([shifted(1e3)], 10.0, np.float32)


@few_lengths
def test_a_structure_that_loses_its_list_in_a_run_ends_alone(monkeypatch):
    """Thrown out so far that float32 knows no distances; first of a batch, or in a place of it."""
    atoms = [bulk("Ar", "fcc", 5.1 + 0.02 * k, cubic=True) for k in range(6)]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    rates = np.full(6, 1e-3)
    rates[[0, 5]] = 1e9
    settings = {"max_steps": 20, "dtype": "float32", "fmax": 2e-5}
    potential = LennardJones(**ARGON)
    together = relax(atoms, potential, GradientDescent(rates), **settings)
    assert together.status.tolist() == [
        Status.NOT_FINITE,
        *[Status.MAX_STEPS] * 4,
        Status.NOT_FINITE,
    ]
    for k in (0, 5):
        assert np.isnan([together.energies[k], together.atoms[k].get_potential_energy()]).all()
        assert np.isnan(together.atoms[k].get_forces()).all()
        assert np.isnan(together.atoms[k].get_potential_energies()).all()
        assert np.isinf(together.fmax[k])
        assert together.evaluations[k] == together.steps[k] == 1
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", lambda *_: (16, 2))
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    streamed = relax(atoms, potential, GradientDescent(list(rates)), **settings)
    assert [k for k in range(6) if not same(together, k, streamed, k)] == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"fmax": [0.1, 0.1, 0.1]}, "fmax"),
        ({"max_steps": [1, 2, 3]}, "max_steps"),
        ({"optimizer": FIRE(dt=np.full(3, 0.1))}, "optimizer.dt"),
        ({"optimizer": chain(FIRE(), MaxStepSize([0.1] * 3))}, r"transforms\[1\].max_step_size"),
        ({"convergence": MaxForce(np.full(3, 0.1))}, "convergence.fmax"),
    ],
)
def test_settings_of_another_length_are_refused(options, name):
    with pytest.raises(ValueError, match=f"{name} .*one entry for each of the 2 structures"):
        relax(structures()[:2], LennardJones(**ARGON), **options)


WRONG = {
    "text for fmax": ({"fmax": "0.05"}, ValueError, "fmax must be a number"),
    "NaN for fmax": ({"fmax": [0.1, np.nan]}, ValueError, "fmax must be a number"),
    "no number of steps": (
        {"max_steps": None},
        ValueError,
        "integer of 0 or more, or one for each",
    ),
    "half a step": ({"max_steps": 2.5}, ValueError, "max_steps must be an integer .* 2.5"),
    "steps below zero": ({"max_steps": -3}, ValueError, "max_steps must be an integer .* -3"),
    "a skin below zero": ({"skin": -1.0}, ValueError, "skin must be 0 Å or more, got -1.0"),
    "a skin that is NaN": ({"skin": np.nan}, ValueError, "skin must be 0 Å or more"),
    "a skin beyond the cutoff": (
        {"skin": 8.6},
        ValueError,
        r"skin must not exceed the cutoff, 8.5 Å, got 8.6",
    ),
    "a class of optimizers": ({"optimizer": FIRE}, TypeError, "the class FIRE"),
    "a fit of residuals": (
        {"optimizer": chain(LevenbergMarquardt(), MaxStepSize(0.1))},
        TypeError,
        "LevenbergMarquardt fits residuals",
    ),
    "an optimizer of ASE": ({"optimizer": ASEFIRE}, TypeError, "optimizer must be a transform"),
    "a wrong name of an optimizer": ({"optimizer": "fyre"}, ValueError, "did you mean 'fire'"),
    "too small a matrix": ({"optimizer": chain(BFGS(max_rows=4))}, ValueError, "max_rows=4, but"),
    "a class of potentials": ({"potential": EMT}, TypeError, "the class EMT"),
    "the name of a potential": (
        {"potential": "etm"},
        ValueError,
        "unknown potential 'etm', did you mean",
    ),
    "the name of what makes potentials": (
        {"potential": "asse:ase.calculators.emt:EMT"},
        ValueError,
        "did you mean 'ase'",
    ),
    "a function": ({"potential": len}, TypeError, "potential must be one of basinax.atoms"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    options, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        relax(structures()[:2], **{"potential": LennardJones(**ARGON)} | options)


@pytest.mark.parametrize(
    "make",
    [EMT, ZhouEAM, LennardJones.named, Tersoff.named, StillingerWeber.named],
    ids=lambda make: make.__qualname__,
)
def test_a_list_of_elements_is_refused(make):
    with pytest.raises(TypeError, match="one by one"):
        make(["Cu", "Au"])


def test_a_stop_before_anything_runs_evaluates_nothing():
    start = structures()
    result = relax(start, LennardJones(**ARGON), FIRE(), should_stop=lambda: True)
    assert (result.status == Status.RUNNING).all()
    assert not result.evaluations.any()
    assert np.isnan(result.atoms[0].get_potential_energies()).all()
    assert np.array_equal(result.atoms[0].positions, start[0].positions)


def test_switches_of_jax_change_no_bit():
    """Of structures that have not ended there are no results, which are NaN on purpose."""
    start, argon = structures()[3:5], LennardJones(**ARGON)
    expected = relax(start, argon, FIRE(), max_steps=2)
    with jax.debug_nans(True):
        got = relax(start, argon, FIRE(), max_steps=2)
    for x, y in zip(got.atoms, expected.atoms, strict=True):
        assert np.array_equal(x.positions, y.positions)
    both = [bulk("Ar", a=5.3), Atoms("Ar2", [(0, 0, 0), (0, 0, 3.7)])]
    with jax.debug_nans(True):
        relax(start[:1], ASECalculator(argon.calculator("float64")), FIRE(), max_steps=1)
        stresses = evaluate(both, argon, stress=True).stresses
        moved = relax(both, argon, FIRE(), cell=Frechet(), max_steps=1)
    assert np.isfinite(stresses).all(axis=1).tolist() == [True, False]
    assert np.isfinite(moved.energies).all()


@pytest.mark.exhaustive  # every day numerics/test_switches.py turns it, among others
def test_without_jit_no_bit_changes():
    argon = LennardJones(**ARGON)
    points = evaluate(structures()[3:4], argon)
    with jax.disable_jit():
        one_by_one = evaluate(structures()[3:4], argon)
    assert np.array_equal(one_by_one.forces[0], points.forces[0])
    dimer = Atoms("Cu2", [(0, 0, 0), (0, 0, 2.3)])
    expected = relax([dimer], EMT("Cu"), FIRE(), max_steps=1)
    with jax.disable_jit():
        got = relax([dimer], EMT("Cu"), FIRE(), max_steps=1)
    assert np.array_equal(got.atoms[0].positions, expected.atoms[0].positions)


@pytest.mark.exhaustive
def test_the_operation_that_makes_a_nan_is_found_in_selections_of_pairs():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        relax([Atoms("Cu2", [(0, 0, 0)] * 2)], EMT("Cu"), FIRE(), max_steps=1)


def test_a_warning_names_the_line_of_the_caller():
    charged = structures()[3]
    charged.info["charge"] = 1
    with pytest.warns(Warning, match="does not use charge 1") as said:
        relax([charged], LennardJones(**ARGON), FIRE(), max_steps=0)
    assert said[0].filename == __file__


ENDLESS = {"fmax": 0.0, "max_steps": 10**9}


def test_an_interruption_ends_all_batches():
    """The caller's thread waits while others work."""

    once = iter([threading.main_thread().ident])

    def interrupt(progress):
        for thread in once if progress.phase == "running" else ():
            signal.pthread_kill(thread, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        relax(structures()[3:6], LennardJones(**ARGON), FIRE(), progress=interrupt, **ENDLESS)
    assert not [t for t in threading.enumerate() if "ThreadPoolExecutor" in t.name]


def test_an_interruption_waits_for_no_compiler(monkeypatch):
    """Compiling goes on in a thread of its own until the test lets it end."""
    may_end, main = threading.Event(), threading.main_thread().ident

    def compiling(*_):
        signal.pthread_kill(main, signal.SIGINT)
        may_end.wait(60)
        raise ZeroDivisionError("of the compiler")

    monkeypatch.setattr("basinax.engine.on_device.started", compiling)
    with pytest.raises(KeyboardInterrupt):
        relax(structures()[5:6], LennardJones(**ARGON), FIRE())
    # A thread that the interruption met while it was being started cannot be joined.
    threads = [t for t in threading.enumerate() if "ThreadPoolExecutor" in t.name and t.is_alive()]
    may_end.set()
    for thread in threads:
        thread.join()
    assert threads


def test_a_batch_that_fails_ends_the_others(monkeypatch):
    """One structure a batch, of which the first look at one raises."""
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", lambda *_: (16, 1))
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 2)
    seen = set()

    def fail(progress):
        seen.add(threading.current_thread().name)
        if len(seen) == 2:
            raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        relax(structures()[4:6], LennardJones(**ARGON), FIRE(), progress=fail, **ENDLESS)


def test_throw_names_what_did_not_converge():
    with pytest.raises(RuntimeError, match=r"1 of 1 .* 0 \(max_steps\)"):
        relax(structures()[:1], LennardJones(**ARGON), FIRE(), fmax=0.0, max_steps=1, throw=True)


@pytest.mark.usefixtures("few_shapes")
def test_a_structure_ends_where_no_list_can_be_made_whatever_its_lists_reach():
    """Beyond 1e8 Å; where the last list was made depends on the skin, and on the batch."""
    dimer = Atoms("Ar2", [[1e8 - 2.9, 0, 0], [1e8 - 0.3, 0, 0]])
    ends = [
        relax(
            [dimer], LennardJones(**ARGON), FIRE(maxstep=0.02), fmax=0.001, max_steps=60, skin=skin
        )
        for skin in (0.5, 2.0, 8.5)
    ]
    assert {str(end.status[0]) for end in ends} == {"not_finite"}
    assert len({end.steps[0] for end in ends}) == 1
    for end in ends:
        assert np.array_equal(end.atoms[0].positions, ends[0].atoms[0].positions)
