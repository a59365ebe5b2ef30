"""Trajectories: one file a structure, written by ASE in a thread beside the run.

Which steps are written depends on a structure's own count of them alone.
"""

import io
import os
import queue
import tempfile
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ase.io
import equinox as eqx
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.jsonio import encode
from ase.io.trajectory import TrajectoryWriter, write_atoms

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
    """Steps between two frames; every frame costs some 0.1 ms."""

    format: Literal["extxyz", "traj"] = "traj"
    """ASE's own, which is faster and keeps all digits, or extended XYZ."""

    def __check_init__(self):
        if self.interval < 1:
            raise ValueError(f"interval must be a positive number of steps, got {self.interval}")
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")

    def path(self, number: int, n_structures: int) -> Path:
        """The file of one of so many structures."""
        width = len(str(n_structures - 1))
        return Path(self.folder) / f"{number:0{width}d}.{self.format}"


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
        self._trajectories, self._atoms = trajectories, atoms
        make_folder(trajectories.folder)
        for number in range(len(atoms)):
            trajectories.path(number, len(atoms)).unlink(missing_ok=True)
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
        append = _append_traj if self._trajectories.format == "traj" else _append_extxyz
        path = self._trajectories.path(number, len(self._atoms))
        try:
            append(path, self._atoms[number], frames)
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
    (first, step), *others = frames
    image = original.copy()
    first.place(image, original)
    image.info["step"] = step
    # A new file is written at once: in it ASE goes back and forth at every frame.
    beginning = None if path.exists() else io.BytesIO()
    file, mode = (path, "a") if beginning is None else (beginning, "w")
    # Of a calculator ASE would ask every property there is, each with a comparison of all that the
    # structure holds, which takes as long as to write it.
    writer = TrajectoryWriter(file, mode, properties=[])
    try:
        writer.write(image, **first.properties())
        image.info = {name: x for name, x in image.info.items() if _can_be_written(x)}
        for snapshot, step in others:
            snapshot.place(image, original)
            image.info["step"] = step
            _write_frame(writer.backend, image, snapshot.properties())
        if beginning is not None:
            path.write_bytes(beginning.getvalue())
    finally:
        writer.close()


def _write_frame(backend: Any, image: Atoms, properties: dict[str, Any]) -> None:
    """What `TrajectoryWriter.write` writes, which would compare again what no frame changes."""
    write_atoms(backend, image, write_header=False)
    if "stress" in properties:
        properties["stress"] = properties["stress"].tolist()
    about = {"name": SinglePointCalculator.name, "parameters": {}}
    backend.child("calculator").write(**about, **properties)
    backend.write(info=image.info)
    backend.sync()


def _can_be_written(value: Any) -> bool:
    """Whether ASE's format has it; of other info `TrajectoryWriter` warns."""
    try:
        encode(value)
    except TypeError:
        return False
    return True
