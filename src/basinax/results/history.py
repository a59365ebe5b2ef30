"""The energy and the largest force of each step, stored or logged without trajectories."""

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

import numpy as np
from jaxtyping import Float, Int32

from basinax.numerics.settings import count_of, warn
from basinax.results.trajectory import REPLACED, Frame, NotWhole, Recorder


class History(NamedTuple):
    """One structure at all or some of its steps, including the start and the end."""

    steps: Int32[np.ndarray, "frames"]
    energies: Float[np.ndarray, "frames"]
    """Energies in eV, as in the result: not free energies, where a calculator has both."""
    fmax: Float[np.ndarray, "frames"]
    """The largest forces in eV/Å, as in the result."""
    volumes: Float[np.ndarray, "frames"] | None
    """Volumes in Å³; None for a fixed cell."""
    evaluations: Int32[np.ndarray, "frames"]
    """The number of evaluations up to each step, including the step's own."""

    def __repr__(self) -> str:
        steps = f", steps {self.steps[0]} to {self.steps[-1]}" if len(self.steps) else ""
        return f"History({count_of(len(self.steps), 'point')}{steps})"

    @classmethod
    def empty(cls) -> "History":
        """The history of a structure that was never evaluated."""
        whole, real = np.zeros(0, np.int32), np.zeros(0)
        return cls(whole, real, real, None, whole)


class Together:
    """Several recorders; each receives the frames of its own interval."""

    interval = 1

    def __init__(self, recorders: "Sequence[AnyRecorder]"):
        self._recorders = list(recorders)

    def add(self, frames: Iterable[Frame]) -> None:
        frames = list(frames)
        for recorder in self._recorders:
            recorder.add([f for f in frames if f.is_last or f.step % recorder.interval == 0])

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.close()


class Log:
    """Writes one line per step and structure during the run, like ASE's optimizers."""

    interval = 1

    def __init__(self, file: TextIO, path: Path | None = None):
        """Args: path: where the file is, which is closed at the end; None for a stream."""
        self._file, self._path = file, path
        self._lock = threading.Lock()  # batches in several threads write whole lines
        self._steps: dict[int, int] = {}
        self._fault = ""
        titles = f"{'structure':>9} {'step':>6} {'time':>8}"
        self._write(f"{titles} {'energy_eV':>16} {'fmax_eV_per_A':>13}\n")

    @classmethod
    def to(cls, path: str | os.PathLike[str], mode: Literal["w", "a"] = "w") -> "Log":
        """A log in a file, new or after what it holds, or on standard output if the path is "-"."""
        if os.fspath(path) == "-":
            return cls(sys.stdout)
        path = Path(path).absolute()  # a run may change the current folder
        file = path.open(mode, encoding="utf-8")
        if mode == "a" and path.is_file() and _is_cut(path):
            file.write("\n")
        return cls(file, path)

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
        """Close the log; warn if it is incomplete, since a failed log must not end the run."""
        if self._path is not None:
            try:
                with self._file:  # its end tries again to write what could not be written
                    own, there = os.fstat(self._file.fileno()), self._path.stat()
                if not os.path.samestat(own, there):
                    raise FileExistsError(REPLACED)
            except OSError as error:
                self._fault = self._fault or error.strerror or str(error)
        if self._fault:
            warn(f"the log is not whole: {self._fault}", NotWhole)

    def _write(self, text: str) -> None:
        if self._fault:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._fault = error.strerror or str(error)


def _is_cut(path: Path) -> bool:
    """Whether a file ends within a line, as on a disk that was full."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


AnyRecorder = Recorder | Log | Together
"""A receiver of frames during a run, shared by threads, with the `interval` that it asks for."""
