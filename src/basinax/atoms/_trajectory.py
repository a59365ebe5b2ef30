"""Trajectories: one file a structure, written by ASE in a thread beside the run.

Which steps are written depends on a structure's own count of them alone.
"""

import os
import queue
import tempfile
import threading
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Literal

import ase.io
import equinox as eqx
from ase import Atoms
from ase.io.trajectory import TrajectoryWriter

from basinax.atoms._snapshot import Snapshot

FORMATS = ("extxyz", "traj")

TOGETHER = 16
"""Frames of a structure that are written at once: opening a file costs as much as a frame."""

Frame = tuple[Snapshot, int]
"""Where a structure stood, and after how many steps."""


class Trajectories(eqx.Module):
    """Where trajectories go: FOLDER/0.traj, FOLDER/1.traj, ..., numbered as the structures are.

    Each holds the structure at its steps 0, interval, 2 interval, ... and where it ended, with
    energy, forces and, where the cell moves, stress, and `step` in its `info`. ASE reads them. A
    file that is there is replaced. Files grow as the run goes; after a crash they hold what had
    been written.
    """

    folder: str | os.PathLike[str]
    """Made if it is not there."""

    interval: int = 10
    """Steps between two frames; every frame costs some 0.2 ms."""

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
        self._waiting: dict[int, list[Frame]] = defaultdict(list)
        self._queue: queue.SimpleQueue[tuple[int, list[Frame]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, number: int, snapshot: Snapshot, step: int, *, is_last: bool) -> None:
        with self._lock:
            self._waiting[number].append((snapshot, step))
            if is_last or len(self._waiting[number]) >= TOGETHER:
                self._queue.put((number, self._waiting.pop(number)))

    def close(self) -> None:
        """Waits until all is written; warns if something could not be."""
        for number, frames in self._waiting.items():
            self._queue.put((number, frames))
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            warnings.warn(f"trajectories are not whole: {self._error}", stacklevel=3)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            # The relaxation is worth more than its trajectory: it goes on.
            try:
                if self._error is None:
                    self._append(*item)
            except OSError as error:
                self._error = error

    def _append(self, number: int, frames: list[Frame]) -> None:
        path = self._trajectories.path(number, len(self._atoms))
        original = self._atoms[number]
        if self._trajectories.format == "extxyz":
            images = []
            for snapshot, step in frames:
                images.append(snapshot.of(original))
                images[-1].info["step"] = step
            ase.io.write(path, images, format="extxyz", append=True)
            return
        # Of a calculator ASE would ask every property there is, each with a comparison of all that
        # the structure holds, which takes as long as to write it.
        image, writer = frames[0][0].of(original), TrajectoryWriter(path, "a", properties=[])
        try:
            for snapshot, step in frames:
                snapshot.place(image, original)
                image.info["step"] = step
                writer.write(image, **snapshot.properties())
        finally:
            writer.close()
