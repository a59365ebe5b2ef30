"""Files of trajectories: what is replaced or refused, and what is left where writing fails."""

import errno
import os
import shutil
import time
import warnings
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from basinax.atoms import Trajectories
from basinax.results.snapshot import Snapshot
from basinax.results.trajectory import TOGETHER, Frame, NotWhole

FORMS = ["traj", "extxyz"]
DIMER = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]])


def frames(number, steps, *, is_last=False):
    """Of a structure, the same in number and step."""
    made = [
        Snapshot(np.full((2, 3), number + 0.01 * k), np.zeros((3, 3)), np.ones((2, 3)), None, -k)
        for k in steps
    ]
    last = steps[-1] if is_last else None
    return [Frame(number, k, x, 0.0, k == last) for k, x in zip(steps, made, strict=True)]


def record(folder, form, n_structures=1, n_frames=2):
    """A whole run."""
    recorder = Trajectories(folder, 1, form).recorder([DIMER] * n_structures)
    for number in range(n_structures):
        recorder.add(frames(number, range(n_frames), is_last=True))
    recorder.close()


def steps_of(path) -> list[int]:
    return [atoms.info["step"] for atoms in ase.io.iread(path, index=":")]


def wait_for(path):
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def end_of(recorder) -> str:
    """What it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, to ASE
        recorder.close()
    return " ".join(str(w.message) for w in caught)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path("runs")


# --- frames of an earlier run

STALE = {
    "more structures": (3, "traj", 2, "traj", "2.traj"),
    "wider numbers": (3, "traj", 11, "traj", "0.traj and 2 more"),
    "narrower numbers": (11, "traj", 3, "traj", "00.traj and 10 more"),
    "the other format": (2, "traj", 2, "extxyz", "0.traj and 1 more"),
    "more in extended XYZ": (3, "extxyz", 1, "extxyz", "1.extxyz and 1 more"),
}


@pytest.mark.parametrize("kind", STALE)
def test_frames_of_an_earlier_run_that_would_stay_are_refused(folder, kind):
    n_before, form_before, n, form, named = STALE[kind]
    record(folder, form_before, n_before)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match=f"runs holds {named}, which would stay"):
        record(folder, form, n, n_frames=1)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("form", FORMS)
def test_frames_of_an_earlier_run_are_replaced_and_other_files_stay(folder, form):
    record(folder, form, 3, n_frames=5)
    for name in ("notes.txt", "best.traj", "1.traj.bak", "x1.extxyz"):
        Path(folder, name).write_text(name)
    record(folder, form, 3)
    assert [steps_of(folder / f"{k}.{form}") for k in range(3)] == [[0, 1]] * 3
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [f"{k}.{form}" for k in range(3)] + ["notes.txt", "best.traj", "1.traj.bak", "x1.extxyz"]
    )


def test_a_structure_that_passes_no_step_has_none_of_an_earlier_run(folder):
    record(folder, "traj", 2)
    recorder = Trajectories(folder).recorder([DIMER] * 2)
    recorder.add(frames(1, [0], is_last=True))
    recorder.close()
    assert [path.name for path in folder.iterdir()] == ["1.traj"]


# --- links and what is no plain file


@pytest.mark.parametrize("is_there", [True, False])
def test_links_stay_and_what_they_lead_to_is_written(folder, is_there):
    Path("far").mkdir()
    if is_there:
        Path("far/runs").mkdir()
        ase.io.write("far/target", DIMER, format="traj")
        Path("far/runs/0.traj").symlink_to("../target")
    folder.symlink_to("far/runs")
    record(folder, "traj", n_frames=3 * TOGETHER)
    assert folder.is_symlink()
    assert (folder / "0.traj").is_symlink() == is_there
    assert steps_of("far/runs/0.traj") == list(range(3 * TOGETHER))
    assert Path("far/target").exists() == is_there


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkdir, "is a folder"),
        (os.mkfifo, "is a named pipe"),
        (lambda name: os.symlink(os.devnull, name), "is a device"),
    ],
    ids=["folder", "pipe", "device"],
)
def test_what_is_no_plain_file_is_refused(folder, make, message):
    record(folder, "traj", 2)
    Path("runs/1.traj").unlink()
    make("runs/1.traj")
    with pytest.raises(OSError, match=f"runs/1.traj {message}"):
        record(folder, "traj", 2)
    assert steps_of("runs/0.traj") == [0, 1]


# --- what happens meanwhile


@pytest.mark.parametrize("form", FORMS)
def test_two_runs_write_no_file_together(folder, form):
    """What the first has begun when the second begins stays the second's, and the reverse."""
    where, atoms = Trajectories(folder, 1, form), [DIMER] * 2
    first = where.recorder(atoms)
    first.add(frames(0, range(TOGETHER)))
    wait_for(folder / f"0.{form}")
    second = where.recorder(atoms)
    second.add(frames(0, range(3), is_last=True))
    second.add(frames(1, range(TOGETHER)))
    assert end_of(second) == ""
    first.add(frames(0, range(TOGETHER, 2 * TOGETHER)))
    first.add(frames(1, range(2), is_last=True))
    said = end_of(first)
    assert "trajectory of system 0 (Ar2) is not whole: FileExistsError: another program" in said
    assert "1 of the trajectories took the place of files that another program" in said
    assert steps_of(folder / f"0.{form}") == [0, 1, 2]
    assert steps_of(folder / f"1.{form}") == [0, 1]
    assert len(os.listdir(folder)) == 2


def recording(folder, form):
    return Trajectories(folder, 1, form).recorder([DIMER])


def begun(folder, form):
    """A recorder whose file has its first frames."""
    recorder = recording(folder, form)
    recorder.add(frames(0, range(TOGETHER)))
    wait_for(folder / f"0.{form}")
    return recorder


REST = range(TOGETHER, 2 * TOGETHER)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_folder_that_went_is_named(folder, form, is_begun):
    recorder = (begun if is_begun else recording)(folder, form)
    shutil.rmtree(folder)
    recorder.add(frames(0, REST))
    message = "trajectory of system 0 (Ar2) is not whole: FileNotFoundError: No such file"
    assert message in end_of(recorder)
    assert not folder.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_writes", range(3))
def test_a_disk_that_fills_leaves_whole_frames(folder, form, n_writes, monkeypatch):
    """Where a part of what was to be written still fitted."""
    recorder, opened, room = begun(folder, form), Path.open, [n_writes]

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            if room[0] == 0:
                self.file.write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            room[0] -= 1
            return self.file.write(data[: max(1, len(data) // 2)])

    monkeypatch.setattr(Path, "open", lambda path, *a, **how: Full(opened(path, *a, **how)))
    recorder.add(frames(0, REST))
    with pytest.warns(NotWhole, match="is not whole: OSError: No space left on device"):
        recorder.close()
    monkeypatch.setattr(Path, "open", opened)
    assert steps_of(folder / f"0.{form}") == list(range(TOGETHER))
    assert len(os.listdir(folder)) == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_disk_that_is_full_from_the_first_leaves_no_file(folder, form, monkeypatch):
    opened = Path.open

    def full(path, *args, **how):
        with opened(path, *args, **how) as file:
            file.write(b"some bytes")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    recorder = recording(folder, form)
    monkeypatch.setattr(Path, "open", full)
    recorder.add(frames(0, range(2)))
    assert "is not whole: OSError: No space left on device" in end_of(recorder)
    monkeypatch.setattr(Path, "open", opened)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("path", ["file", "file/runs"])
def test_a_folder_that_cannot_be_made_is_found(path):
    Path("file").write_text("")
    with pytest.raises(OSError, match=f"{path} cannot be written to: Not a directory"):
        record(path, "traj")
    assert os.listdir() == ["file"]
