"""Trajectories: which frames are written, what they hold, and that nothing else changes."""

from pathlib import Path

import ase.io
import ase.optimize
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.constraints import FixAtoms
from ase.io.ulm import N1

import basinax
from basinax import FIRE
from basinax.atoms import Frechet, LennardJones, Trajectories, relax
from basinax.results import trajectory as trajectory
from basinax.results.trajectory import TOGETHER
from cover import exhaustive

pytestmark = pytest.mark.usefixtures("few_lengths")

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
CELLS = [None, Frechet(), None, Frechet()]


def structures() -> list[Atoms]:
    made = [bulk("Ar", "fcc", 5.1 + 0.1 * k, cubic=True) for k in range(3)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.2, seed=k)
    made[1].set_constraint(FixAtoms([1]))
    return [*made, bulk("Ar", "fcc", 5.35)]


def path_of_ase(atoms):
    """Positions, energy and forces where ASE's FIRE stood."""
    atoms, path = atoms.copy(), []
    atoms.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    for _ in ase.optimize.FIRE(atoms, logfile=None).irun(fmax=0.01):
        found = atoms.get_potential_energy(), atoms.get_forces()
        path.append((atoms.get_positions(), *found))
    columns = map(np.array, zip(*path, strict=True))
    return dict(zip(("positions", "energies", "forces"), columns, strict=True))


@pytest.mark.parametrize(("form", "interval"), [("traj", 3), ("extxyz", 10)])
def test_frames_are_those_of_ase(tmp_path, form, interval, recorded):
    """1e-7 Å: extxyz has eight digits behind the point."""
    atoms = structures()[:3]
    where = Trajectories(tmp_path / "new", interval, form)
    result = relax(atoms, ARGON, FIRE(), fmax=0.01, trajectory=where)
    for k, start in enumerate(atoms):
        path = list(zip(*recorded(path_of_ase, start).values(), strict=True))
        frames = ase.io.read(tmp_path / "new" / f"{k}.{form}", index=":")
        last = len(path) - 1
        expected = sorted({*range(0, last + 1, interval), last})
        assert [frame.info["step"] for frame in frames] == expected
        for step, frame in zip(expected, frames, strict=True):
            positions, energy, forces = path[step]
            np.testing.assert_allclose(frame.positions, positions, rtol=0, atol=1e-7)
            np.testing.assert_allclose(frame.get_forces(), forces, rtol=0, atol=1e-7)
            assert frame.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        assert np.array_equal(frames[-1].pbc, result.atoms[k].pbc)


@pytest.mark.exhaustive
def test_frames_are_the_same_alone_and_in_a_batch(tmp_path, monkeypatch):
    """Four structures go through places for two, of which one alone leaves the other empty."""
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 16)
    monkeypatch.setattr("basinax.engine.groups.padded_size", lambda _, least=1: 2 * least)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
    atoms, settings = structures(), {"fmax": 0.01}
    plain = relax(atoms, ARGON, FIRE(), cell=CELLS, **settings)
    result = relax(
        atoms, ARGON, FIRE(), cell=CELLS, trajectory=Trajectories(tmp_path, 1), **settings
    )
    assert result.steps.tolist() == plain.steps.tolist()
    for k in range(4):
        assert np.array_equal(result.atoms[k].positions, plain.atoms[k].positions)
        frames = ase.io.read(tmp_path / f"{k}.traj", index=":")
        assert [frame.info["step"] for frame in frames] == list(range(result.steps[k] + 1))
        assert all(("stress" in f.calc.results) == (CELLS[k] is not None) for f in frames)
    where = Trajectories(tmp_path / "alone", 1)
    relax([atoms[1]], ARGON, FIRE(), cell=CELLS[1], trajectory=where, **settings)
    frames = ase.io.read(tmp_path / "1.traj", index=":")
    for ours, theirs in zip(frames, ase.io.read(where.paths(1)[0], index=":"), strict=True):
        assert np.array_equal(ours.positions, theirs.positions)
        assert np.array_equal(ours.cell.array, theirs.cell.array)
        assert ours.calc.results.keys() == theirs.calc.results.keys()


@pytest.mark.parametrize("cell", [None, exhaustive(Frechet())])
def test_frames_keep_tags_constraints_and_info(tmp_path, cell):
    """Of a structure with info that cannot be written, and with step and outcome of an earlier run.

    There are more frames than go together and than the table of a file has room for at first.
    """
    atoms = structures()[0]
    atoms.set_tags([0, 1, 2, 3])
    atoms.set_constraint(FixAtoms([2]))
    atoms.info |= {"step": 7, "name": '100 % {of} a "cell"', "key": object()}
    atoms.info |= {"relax_source": "wells@7", "relax_status": "max_steps", "relax_number": 9}
    with pytest.warns(UserWarning, match="do not keep info 'key'$"):
        result = relax(
            [atoms], ARGON, FIRE(), cell=cell, fmax=1e-4, trajectory=Trajectories(tmp_path, 1)
        )
    frames = ase.io.read(tmp_path / "0.traj", index=":")
    assert len(frames) == result.steps[0] + 1 > max(2 * TOGETHER, N1 + 1)
    for step, frame in enumerate(frames):
        kept = {"name": '100 % {of} a "cell"', "relax_source": "wells@7"}
        assert frame.info == kept | {"step": step}
        assert frame.get_tags().tolist() == [0, 1, 2, 3]
        assert frame.constraints[0].index.tolist() == [2]
    assert np.array_equal(frames[0].positions, atoms.positions)
    assert np.array_equal(frames[-1].positions, result.atoms[0].positions)
    assert frames[-1].get_potential_energy() == result.energies[0]
    assert ("stress" in frames[-1].calc.results) == (cell is not None)


@pytest.mark.parametrize(("cell", "max_steps"), [(None, 20), exhaustive(Frechet(), 22)])
def test_the_last_frame_is_where_the_path_ended(tmp_path, cell, max_steps):
    """Its number of steps is a multiple of one interval, and not of another; steps go uphill."""
    start, settings = structures()[2], {"cell": cell, "fmax": 0.0, "max_steps": max_steps}
    heavy = basinax.chain(basinax.GradientDescent(100.0), basinax.MaxStepSize(0.1))
    plain = relax([start], ARGON, heavy, trajectory=Trajectories(tmp_path / "0", 1), **settings)
    path = ase.io.read(tmp_path / "0" / "0.traj", index=":")
    assert path[-1].info["step"] == max_steps
    assert np.array_equal(path[-1].positions, plain.atoms[0].positions)
    for interval in (1, 7, 10, 11):
        where = Trajectories(tmp_path / str(interval), interval)
        best = relax([start], ARGON, heavy, keep_best=True, trajectory=where, **settings)
        assert best.energies[0] < plain.energies[0]
        frames = ase.io.read(where.paths(1)[0], index=":")
        steps = sorted({*range(0, max_steps + 1, interval), max_steps})
        assert [frame.info["step"] for frame in frames] == steps
        for step, frame in zip(steps, frames, strict=True):
            assert np.array_equal(frame.positions, path[step].positions)
            assert np.array_equal(frame.cell.array, path[step].cell.array)
            assert frame.calc.results["energy"] == path[step].calc.results["energy"]
            assert np.array_equal(frame.calc.results["forces"], path[step].calc.results["forces"])


def test_paths_that_end_in_no_numbers_end_with_a_frame(tmp_path):
    """Whether it falls due or not. Two atoms step onto each other, where float32 overflows."""
    atoms = Atoms("Ar2", [[0, 0, 0], [0, 0, 4.0]])
    rate = 4.0 / (
        2 * np.abs(relax([atoms], ARGON, FIRE(), max_steps=0).atoms[0].get_forces()).max()
    )
    for interval in (1, 10):
        where = Trajectories(tmp_path / str(interval), interval)
        settings = {"fmax": 1e-3, "dtype": "float32", "trajectory": where}
        result = relax([atoms], ARGON, basinax.GradientDescent(rate), **settings)
        assert result.status[0] == basinax.Status.NOT_FINITE
        frames = ase.io.read(where.paths(1)[0], index=":")
        assert [frame.info["step"] for frame in frames] == [0, 1]
        assert not np.isfinite(frames[-1].get_forces()).all()
        np.testing.assert_array_equal(frames[-1].positions, result.atoms[0].positions)


def test_a_step_beyond_all_bounds_is_no_frame(tmp_path):
    for interval in (1, 10):
        where = Trajectories(tmp_path / str(interval), interval)
        far = basinax.GradientDescent(1e300)
        result = relax(structures()[:1], ARGON, far, trajectory=where)
        assert result.status[0] == basinax.Status.NOT_FINITE
        assert [a.info["step"] for a in ase.io.read(where.paths(1)[0], index=":")] == [0]


@pytest.mark.exhaustive
def test_trials_of_a_line_search_are_no_frames(tmp_path):
    optimizer, where = basinax.ConjugateGradient(), Trajectories(tmp_path, 1)
    result = relax(structures()[:1], ARGON, optimizer, fmax=1e-3, trajectory=where)
    frames = ase.io.read(tmp_path / "0.traj", index=":")
    assert result.evaluations[0] > result.steps[0] + 1
    assert [frame.info["step"] for frame in frames] == list(range(result.steps[0] + 1))


def test_a_second_run_replaces_the_first(tmp_path):
    atoms = structures()[2:3]
    for max_steps in (20, 5):
        relax(atoms, ARGON, FIRE(), fmax=0.0, max_steps=max_steps, trajectory=tmp_path)
    assert [frame.info["step"] for frame in ase.io.read(tmp_path / "0.traj", index=":")] == [0, 5]


def test_an_interrupted_run_leaves_what_it_reached(tmp_path):
    looks = iter([False] * 8)
    relax(
        structures()[2:3],
        ARGON,
        FIRE(),
        fmax=0.0,
        max_steps=1000,
        trajectory=tmp_path,
        should_stop=lambda: next(looks, True),
    )
    steps = [frame.info["step"] for frame in ase.io.read(tmp_path / "0.traj", index=":")]
    assert len(steps) > 2
    assert steps == list(range(0, 10 * len(steps), 10))


def test_a_folder_that_cannot_be_written_is_found_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        relax(structures(), ARGON, FIRE(), trajectory=tmp_path / "file" / "folder")


def test_a_full_disk_costs_the_trajectory_alone(tmp_path, monkeypatch):
    """What was written before stays as it was."""
    opened = Path.open

    def full(path, mode="r", *args, **kwargs):
        if mode == "r+b":
            raise OSError("no space left on device")
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.warns(UserWarning, match="not whole: OSError: no space left"):
        result = relax(
            structures()[2:3], ARGON, FIRE(), fmax=1e-3, trajectory=Trajectories(tmp_path, 1)
        )
    assert result.converged.all()
    frames = ase.io.read(tmp_path / "0.traj", index=":")
    assert [frame.info["step"] for frame in frames] == list(range(TOGETHER))


def test_a_disk_that_is_full_at_the_first_byte_is_told_as_well(tmp_path, monkeypatch):
    opened = Path.open

    def full(path, mode="r", *args, **kwargs):
        if mode == "wb":
            raise OSError("no space left on device")
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr("pathlib.Path.open", full)
    with pytest.warns(UserWarning, match="not whole: OSError: no space left"):
        result = relax(structures()[2:3], ARGON, FIRE(), trajectory=tmp_path)
    assert result.converged.all()


def bad(index: int, **how) -> list[Atoms]:
    """Structures of which one has what ASE cannot write: `info`, or an array."""
    atoms = structures()
    atoms[index].info |= how.get("info", {})
    for name, array in how.get("arrays", {}).items():
        atoms[index].set_array(name, array)
    return atoms


@pytest.mark.parametrize(
    ("form", "what", "name"),
    [
        ("extxyz", {"arrays": {"tensors": np.zeros((4, 3, 3))}}, "array 'tensors'"),
        ("extxyz", {"arrays": {"phases": np.ones(4, complex)}}, "array 'phases'"),
        ("extxyz", {"info": {1: 2}}, "info 1"),
        ("traj", {"info": {(1, 2): 3}}, r"info \(1, 2\)"),
        ("traj", {"arrays": {"labels": np.ones(4)}}, "array 'labels'"),
    ],
    ids=["tensors", "complex", "number", "tuple", "array"],
)
def test_contents_that_a_format_cannot_hold_are_left_out_by_name(tmp_path, form, what, name):
    atoms, where = bad(1, **what), Trajectories(tmp_path, 2, form)
    with pytest.warns(UserWarning, match=rf"do not keep {name} \(of system 1 \(Ar4\)\)$"):
        result = relax(atoms, ARGON, FIRE(), fmax=0.01, trajectory=where)
    assert result.converged.all()
    for k, path in enumerate(where.paths(4)):
        frames = ase.io.read(path, index=":")
        assert frames[-1].info["step"] == result.steps[k]


def test_the_first_of_many_faults_is_named_and_the_others_are_counted(tmp_path, monkeypatch):
    write = trajectory._WRITERS["traj"]

    def write_some(path, mode, original, frames):
        if frames[0].number in (1, 2):
            raise ValueError("no frame")
        return write(path, mode, original, frames)

    monkeypatch.setitem(trajectory._WRITERS, "traj", write_some)
    message = r"of system [12] \(.*\) and 1 more are not whole: ValueError: no frame"
    with pytest.warns(UserWarning, match=message):
        result = relax(structures(), ARGON, FIRE(), fmax=0.01, trajectory=tmp_path)
    assert result.converged.all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.traj", "3.traj"]


@pytest.mark.parametrize("cell", [None, exhaustive(Frechet())])
def test_what_was_found_stands_in_place_of_info_and_arrays_of_its_name(tmp_path, cell):
    """In extxyz, which has one of a name; .traj has both."""
    own = dict.fromkeys(("energy", "free_energy", "energies", "stress"), 1.0)
    atoms = bad(0, info=own | {"name": "cell"}, arrays={"forces": np.ones((4, 3))})[:1]
    for form in ("extxyz", "traj"):
        where = Trajectories(tmp_path / form, 3, form)
        lost = ["array 'forces'", *(f"info {name!r}" for name in own if form == "extxyz")]
        with pytest.warns(UserWarning, match=f"do not keep {', '.join(lost)}$"):
            result = relax(atoms, ARGON, FIRE(), cell=cell, fmax=0.01, trajectory=where)
        last = ase.io.read(where.paths(1)[0], index=-1)
        assert last.get_potential_energy() == pytest.approx(result.energies[0], abs=1e-7)
        np.testing.assert_allclose(last.get_forces(), result.atoms[0].get_forces(), atol=1e-7)
        assert ("stress" in last.calc.results) == (cell is not None)
        kept = {"relax_source": 0} if form == "extxyz" else own | {"relax_source": "0"}
        assert last.info == kept | {"name": "cell", "step": result.steps[0]}
    assert result.atoms[0].info["energy"] == atoms[0].info["energy"] == 1.0


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_names_that_are_not_one_a_structure_are_refused(tmp_path, names):
    two = [Atoms("Ar2", [[0, 0, 0], [0, 0, 3.8]])] * 2
    with pytest.raises(ValueError, match="names of trajectories must differ, one for each of 2"):
        relax(two, ARGON, FIRE(), trajectory=Trajectories(tmp_path / "new", names=names))
    assert not (tmp_path / "new").exists()


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="interval must be a positive"):
        Trajectories("runs", 0)
    with pytest.raises(ValueError, match="format must be one of extxyz, traj"):
        Trajectories("runs", format="xyz")  # pyright: ignore[reportArgumentType]
