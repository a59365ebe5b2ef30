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
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import ase
import ase.io
import equinox as eqx
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.jsonio import encode
from ase.io.trajectory import write_atoms

from basinax.atoms import _ulm as ulm
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
    snapshot: Snapshot
    is_last: bool
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
    """Steps between two frames; every frame costs some 0.05 ms."""

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
        there = set(os.listdir(trajectories.folder))
        for path in self._paths:
            if path.name in there:
                path.unlink()
        self._queue: queue.SimpleQueue[Iterable[Frame] | None] = queue.SimpleQueue()
        self._begun: set[int] = set()
        """Whose files are there, by number."""
        self._faults: dict[int, str] = {}
        """Why the files of structures are not whole, by number."""
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def add(self, frames: Iterable[Frame]) -> None:
        """Has them written. A structure's frames come in the order of its steps.

        Args:
            frames: made by the thread that writes, if this is a generator.
        """
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
        waiting: dict[int, list[Frame]] = defaultdict(list)
        while (frames := self._queue.get()) is not None:
            for frame in frames:
                number = frame.number
                waiting[number].append(frame)
                if frame.is_last or len(waiting[number]) >= TOGETHER:
                    self._append(number, waiting.pop(number))
        for number, last in waiting.items():
            self._append(number, last)

    def _append(self, number: int, frames: list[Frame]) -> None:
        # The relaxation is worth more than its trajectory, and the others' go on.
        if number in self._faults:
            return
        try:
            is_new = number not in self._begun
            self._append_to(self._paths[number], self._atoms[number], frames, is_new=is_new)
            self._begun.add(number)
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


def _append_extxyz(path: Path, original: Atoms, frames: list[Frame], *, is_new: bool) -> None:
    images, original = [], without_found(original)
    for frame in frames:
        images.append(frame.snapshot.of(original))
        images[-1].info["step"] = frame.step
    # What cannot be written leaves no part of a frame.
    text = io.StringIO()
    ase.io.write(text, images, format="extxyz")
    with path.open("w" if is_new else "a") as file:
        file.write(text.getvalue())


def _append_traj(path: Path, original: Atoms, frames: list[Frame], *, is_new: bool) -> None:
    """What `TrajectoryWriter` writes, byte by byte.

    It would look at every frame for what none changes, which takes most of its time.
    """
    entries = _entries(original, with_header=is_new)
    names = list(entries)
    header = _described(entries, names[: names.index("positions")])
    others = _described(entries, names[names.index("cell") + 1 :])
    cell, stress = encode(entries["cell"]), ""
    # Each frame's number of steps takes the place of the one here.
    info = {k: x for k, x in _writable(original.info).items() if k != "step"}
    info = encode(info | {"step": 0}).removesuffix("0}")
    items = []
    for _, step, snapshot, _ in frames:
        positions, its_cell = snapshot.place(original)
        found = snapshot.properties()
        if "stress" in found:
            cell = _floats(its_cell.tolist())
            stress = f', "stress": {_floats(found["stress"].tolist())}'
        about = f'{CALCULATOR}"energy": {_floats(found["energy"])}, "forces.": '
        end = f'{stress}}}, "info": {info}{step}}}}}'
        place = ["{", *header, '"positions.": ', positions, f', "cell": {cell}, ', *others]
        items.append([*place, about, found["forces"], end])
        header = []
    if is_new:
        ulm.write(path, "ASE-Trajectory", items)
    else:
        ulm.append(path, items)


CALCULATOR = f'"calculator.": {{"name": "{SinglePointCalculator.name}", "parameters": {{}}, '


def _entries(atoms: Atoms, *, with_header: bool) -> dict[str, Any]:
    """What ASE's format has of a structure, and of all frames in the first."""
    found: dict[str, Any] = {}
    if with_header:
        found |= {"version": 1, "ase_version": ase.__version__}
    write_atoms(SimpleNamespace(write=lambda **some: found.update(some)), atoms, with_header)
    return found


def _described(entries: dict[str, Any], names: list[str]) -> list[str | np.ndarray]:
    """The text of some entries, each with a comma behind."""
    pieces = []
    for name in names:
        value = entries[name]
        if isinstance(value, np.ndarray):
            pieces += [f'"{name}.": ', value, ", "]
        else:
            pieces.append(f'"{name}": {encode(value)}, ')
    return pieces


def _floats(floats: Any) -> str:
    """The text of a float, or lists of them, which `encode` takes longer to say."""
    return str(floats).replace("nan", "NaN").replace("inf", "Infinity")


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
