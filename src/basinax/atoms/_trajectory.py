"""Trajectories: one file a structure, written by ASE in a thread beside the run.

Which steps are written depends on a structure's own count of them alone.
"""

import functools
import io
import os
import queue
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import ase
import ase.io
import equinox as eqx
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import ulm
from ase.io.jsonio import encode
from ase.io.trajectory import write_atoms

from basinax.atoms._snapshot import Snapshot

FORMATS = ("extxyz", "traj")

TOGETHER = 16
"""Frames of a structure that are written at once: opening a file costs as much as a frame."""

FOUND = ("energy", "free_energy", "forces", "stress")
"""Names that extxyz has for what a calculator says, and for nothing else."""


class Frame(NamedTuple):
    """Where a structure stood."""

    number: int
    """Of the structure."""
    step: int
    snapshot: Callable[[], Snapshot]
    """Called by the thread that writes."""
    is_last: bool = False
    """Whether the structure has ended there."""


class Trajectories(eqx.Module):
    """Where trajectories go: FOLDER/0.traj, FOLDER/1.traj, ..., numbered as the structures are.

    Each holds the structure at its steps 0, interval, 2 interval, ... and where its path ended,
    with energy, forces and, where the cell moves, stress, and `step` in its `info`. The last frame
    is the last step's with `keep_best`, too, which may return another point. A step beyond all
    bounds, where nothing was evaluated, is no frame. ASE reads the files. One that is there is
    replaced. Files grow as the run goes; after a crash they hold what had been written.
    """

    folder: str | os.PathLike[str]
    """Made if it is not there."""

    interval: int = 10
    """Steps between two frames; every frame costs some 0.06 ms."""

    format: Literal["extxyz", "traj"] = "traj"
    """ASE's own, which is faster and keeps all digits, or extended XYZ."""

    def __check_init__(self):
        if self.interval < 1:
            raise ValueError(f"interval must be a positive number of steps, got {self.interval}")
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")

    def paths(self, n_structures: int) -> list[Path]:
        """The files of so many structures."""
        folder, ending, width = Path(self.folder), self.format, len(str(n_structures - 1))
        return [folder / f"{number:0{width}d}.{ending}" for number in range(n_structures)]


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes sure that files can be written there. Raises OSError where they cannot."""
    Path(path).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path):
        pass


class Recorder:
    """Writes the frames of many structures; shared by threads."""

    def __init__(self, trajectories: Trajectories, atoms: list[Atoms]):
        """Makes sure that the folder can be written to, and removes the files to be replaced.

        Raises:
            OSError: it cannot be.
        """
        self.interval = trajectories.interval
        self._append_to = _append_traj if trajectories.format == "traj" else _append_extxyz
        self._atoms, self._paths = atoms, trajectories.paths(len(atoms))
        make_folder(trajectories.folder)
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._queue: queue.SimpleQueue[list[Frame] | None] = queue.SimpleQueue()
        self._faults: dict[int, str] = {}
        """Why the files of structures are not whole, by number."""
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, frames: list[Frame]) -> None:
        """Has them written. A structure's frames come in the order of its steps."""
        self._queue.put(frames)

    def close(self) -> None:
        """Waits until all is written; warns if something could not be."""
        self._queue.put(None)
        self._thread.join()
        if not self._faults:
            return
        number, fault = next(iter(self._faults.items()))
        name, n_more = f"system {number} ({self._atoms[number].symbols})", len(self._faults) - 1
        which = (
            f"trajectories of {name} and {n_more} more are"
            if n_more
            else f"trajectory of {name} is"
        )
        warnings.warn(f"the {which} not whole: {fault}", stacklevel=3)

    def _write_all(self) -> None:
        waiting: dict[int, list[tuple[Snapshot, int]]] = defaultdict(list)
        while (frames := self._queue.get()) is not None:
            for number, step, snapshot, is_last in frames:
                waiting[number].append((snapshot(), step))
                if is_last or len(waiting[number]) >= TOGETHER:
                    self._append(number, waiting.pop(number))
        for number, last in waiting.items():
            self._append(number, last)

    def _append(self, number: int, frames: list[tuple[Snapshot, int]]) -> None:
        # The relaxation is worth more than its trajectory, and the others' go on.
        if number in self._faults:
            return
        try:
            self._append_to(self._paths[number], self._atoms[number], frames)
        except Exception as error:  # every writer of ASE has errors of its own
            self._faults[number] = f"{type(error).__name__}: {error}"


def without_found(atoms: Atoms) -> Atoms:
    """A copy as extxyz can have it: what stands in `info` and `arrays` beside what was found.

    ASE refuses two of a name, and would read one that stands alone as the calculator's.
    """
    copy = atoms.copy()
    copy.calc = atoms.calc
    for name in FOUND:
        copy.info.pop(name, None)
        copy.arrays.pop(name, None)
    return copy


def _append_extxyz(path: Path, original: Atoms, frames: list[tuple[Snapshot, int]]) -> None:
    images, original = [], without_found(original)
    for snapshot, step in frames:
        images.append(snapshot.of(original))
        images[-1].info["step"] = step
    # What cannot be written leaves no part of a frame.
    text = io.StringIO()
    ase.io.write(text, images, format="extxyz")
    with path.open("a") as file:
        file.write(text.getvalue())


def _append_traj(path: Path, original: Atoms, frames: list[tuple[Snapshot, int]]) -> None:
    """What `TrajectoryWriter` writes, byte by byte, in less than half the time.

    It would look at every frame for what none changes, and ask NumPy much about every array.
    """
    is_new, written = not path.exists(), _writable(original.info | {"step": 0})
    # A new file is written at once: in it ASE goes back and forth at every frame.
    file, mode = (io.BytesIO(), "w") if is_new else (path, "a")
    backend: Any = ulm.open(file, mode, tag="ASE-Trajectory")
    try:
        if is_new:
            backend.write(version=1, ase_version=ase.__version__)
        later = _entries(original, with_header=False)
        first = _entries(original, with_header=True) if is_new else later
        for k, (snapshot, step) in enumerate(frames):
            positions, cell = snapshot.place(original)
            place = {"positions": positions, "cell": cell.tolist()}
            _put(backend.fd, backend.data, (later if k else first) | place)
            found = snapshot.properties()
            if "stress" in found:
                found["stress"] = found["stress"].tolist()
            about = {"name": SinglePointCalculator.name, "parameters": {}}
            _put(backend.fd, backend.data.setdefault("calculator.", {}), about | found)
            backend.write(info=written | {"step": step})
            backend.sync()
        if isinstance(file, io.BytesIO):
            path.write_bytes(file.getvalue())
    finally:
        backend.close()


def _entries(atoms: Atoms, *, with_header: bool) -> dict[str, Any]:
    """What ASE's format has of a structure."""
    found: dict[str, Any] = {}
    write_atoms(SimpleNamespace(write=lambda **some: found.update(some)), atoms, with_header)
    return found


def _put(file: Any, data: dict[str, Any], entries: dict[str, Any]) -> None:
    """Writes arrays to the file, and the rest, with where the arrays are, to the data.

    As `ulm.Writer.write` does for arrays of a dimension and what JSON has.
    """
    for name, value in entries.items():
        if isinstance(value, np.ndarray):
            about = value.shape, _name(value.dtype), ulm.align(file)
            data[f"{name}."] = {"ndarray": about}
            file.write(value.tobytes())
        else:
            data[name] = value


@functools.cache
def _name(dtype: np.dtype) -> str:
    """NumPy takes as long to say it as to copy the array."""
    return dtype.name


def _writable(info: dict[str, Any]) -> dict[str, Any]:
    """What of it ASE's format has; warns of the rest, as ASE does."""
    written = {}
    for name, value in info.items():
        if _can_be_written(value):
            written[name] = value
        else:
            warnings.warn(f'Skipping "{name}" info.', stacklevel=2)
    return written


def _can_be_written(value: Any) -> bool:
    try:
        encode(value)
    except TypeError:
        return False
    return True
