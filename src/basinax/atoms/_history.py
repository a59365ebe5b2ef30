"""The energy and the largest force of each step, kept or logged without trajectories."""

import collections
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

import numpy as np
from jaxtyping import Float, Int32

from basinax.atoms._trajectory import Frame, NotWhole


class AbstractRecorder(Protocol):
    """Takes frames of structures as a run goes; shared by threads."""

    interval: int
    """Steps between two frames of a structure."""

    def add(self, frames: Iterable[Frame]) -> None:
        """Take frames; those of one structure come in the order of its steps."""

    def close(self) -> None:
        """End when all frames have come."""


class History(NamedTuple):
    """One structure at each of its steps, the start and the end included."""

    steps: Int32[np.ndarray, "frames"]
    energies: Float[np.ndarray, "frames"]
    """In eV."""
    fmax: Float[np.ndarray, "frames"]
    """In eV/Å, as in the result."""
    volumes: Float[np.ndarray, "frames"] | None
    """In Å³; None where the cell is fixed."""
    evaluations: Int32[np.ndarray, "frames"]
    """How many there had been at each step, that of the step among them."""


_Kept = tuple[int, float, float, float | None, int]
"""Step, energy, fmax, volume and evaluations."""


class Histories:
    """Keeps a few numbers of every step of every structure."""

    interval = 1

    def __init__(self, n_structures: int):
        self._n_structures = n_structures
        self._frames: dict[int, list[_Kept]] = collections.defaultdict(list)

    def add(self, frames: Iterable[Frame]) -> None:
        for number, step, snapshot, fmax, _, evaluations in frames:
            kept = self._frames[number]
            if kept and step <= kept[-1][0]:
                continue  # an end has come before, as each step does
            is_moving = snapshot.stress is not None
            volume = abs(float(np.linalg.det(snapshot.cell))) if is_moving else None
            kept.append((step, snapshot.energy, fmax, volume, evaluations))

    def close(self) -> None:
        pass

    def all(self) -> list[History]:
        """The history of each structure; empty for one that was never evaluated."""
        return [self._of(number) for number in range(self._n_structures)]

    def _of(self, number: int) -> History:
        frames = self._frames[number]
        columns = zip(*frames, strict=True) if frames else ((),) * 5
        steps, energies, fmax, volumes, evaluations = columns
        is_moving = any(volume is not None for volume in volumes)
        return History(
            np.array(steps, np.int32),
            np.array(energies, float),
            np.array(fmax, float),
            np.array(volumes, float) if is_moving else None,
            np.array(evaluations, np.int32),
        )


class Together:
    """Several recorders, each of which has the frames that its own interval asks for."""

    interval = 1

    def __init__(self, recorders: Sequence[AbstractRecorder]):
        self._recorders = list(recorders)

    def add(self, frames: Iterable[Frame]) -> None:
        frames = list(frames)
        for recorder in self._recorders:
            recorder.add([f for f in frames if f.is_last or f.step % recorder.interval == 0])

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()


class Log:
    """Writes a line a step and structure as the run goes, as ASE's optimizers do for one."""

    interval = 1

    def __init__(self, file: TextIO, *, is_own: bool):
        """Args: is_own: whether the file is to be closed at the end."""
        self._file, self._is_own = file, is_own
        self._lock = threading.Lock()
        self._steps: dict[int, int] = {}
        self._fault = ""
        titles = f"{'structure':>9} {'step':>6} {'time':>8}"
        self._write(f"{titles} {'energy_eV':>16} {'fmax_eV_per_A':>13}\n")

    @classmethod
    def to(cls, path: str | os.PathLike[str]) -> "Log":
        """A log in a file, or on standard output if the path is "-"."""
        if os.fspath(path) == "-":
            return cls(sys.stdout, is_own=False)
        return cls(Path(path).open("w", encoding="utf-8"), is_own=True)

    def add(self, frames: Iterable[Frame]) -> None:
        now, lines = time.strftime("%H:%M:%S"), []
        with self._lock:
            for number, step, snapshot, fmax, *_ in frames:
                if step <= self._steps.get(number, -1):
                    continue  # an end has come before, as each step does
                self._steps[number] = step
                lines.append(f"{number:9d} {step:6d} {now} {snapshot.energy:16.6f} {fmax:13.6g}\n")
            self._write("".join(lines))

    def close(self) -> None:
        """Warns if not all could be written: a run is worth more than its log."""
        if self._is_own:
            self._file.close()
        if self._fault:
            warnings.warn(f"the log is not whole: {self._fault}", NotWhole, stacklevel=3)

    def _write(self, text: str) -> None:
        if self._fault:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._fault = error.strerror or str(error)
