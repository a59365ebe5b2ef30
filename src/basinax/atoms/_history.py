"""The energy and the largest force of each step, kept or logged without trajectories."""

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
    """One structure at its steps, or at some of them, the start and the end included."""

    steps: Int32[np.ndarray, "frames"]
    energies: Float[np.ndarray, "frames"]
    """In eV."""
    fmax: Float[np.ndarray, "frames"]
    """In eV/Å, as in the result."""
    volumes: Float[np.ndarray, "frames"] | None
    """In Å³; None where the cell is fixed."""
    evaluations: Int32[np.ndarray, "frames"]
    """How many there had been at each step, that of the step among them."""

    @classmethod
    def empty(cls) -> "History":
        """That of a structure that was never evaluated."""
        whole, real = np.zeros(0, np.int32), np.zeros(0)
        return cls(whole, real, real, None, whole)


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
        self._lock = threading.Lock()  # batches in several threads write whole lines
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
                    continue  # an end that is also due has been recorded already
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
