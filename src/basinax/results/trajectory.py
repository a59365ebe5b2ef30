"""Trajectories: one file per structure, written by ASE in a thread beside the run.

The written steps depend only on a structure's own number of steps.
"""

import abc
import io
import os
import queue
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ase.io
import equinox as eqx
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.trajectory import TrajectoryWriter

from basinax.config.files import (
    check_folder_writable,
    check_plain,
    replacing,
    resolved,
    write_whole,
)
from basinax.numerics.settings import MOST, require_whole, shown, warn
from basinax.results.snapshot import Snapshot, Template
from basinax.structures.formats.held import in_words, losses, prepared
from basinax.structures.read import SOURCE, name_of, source_of, without_outcome

FORMATS = ("extxyz", "traj")

TOGETHER = 16
"""Frames of a structure that are written at once: opening a file costs as much as a frame."""

NUMBERED = re.compile(rf"\d+\.({'|'.join(FORMATS)})")
"""The pattern of names of trajectories."""


class NotWhole(UserWarning):
    """A trajectory lacks frames of the run."""


class Frame(NamedTuple):
    """A structure at one point of its path."""

    number: int
    """The number of the structure."""
    step: int
    snapshot: Snapshot
    fmax: float
    """The largest force in eV/Å, as in the result."""
    is_last: bool
    """Whether the structure ended at this frame."""
    image: int = 0
    """The number of the image, if the structure is a path of several; each has a frame."""


class AbstractTrajectories(eqx.Module):
    """Trajectories that are asked for, of structures that are not known yet."""

    @abc.abstractmethod
    def recorder(self, atoms: Sequence[Atoms]) -> Any:
        """What takes the frames of these structures, in the way of `Recorder`."""


class Trajectories(AbstractTrajectories):
    """The place of trajectories: FOLDER/0.traj, FOLDER/1.traj, ..., by numbers of structures.

    Each file holds the structure at its steps 0, interval, 2 interval, ... and at the end of its
    path, with energy, free energy, forces and, if the cell moves, stress, and with `step` and
    `relax_source` in its `info`.
    The last frame is that of the last step even with `keep_best`, which may return another point. A
    step beyond all bounds, without an evaluation, is no frame. ASE reads the files. Existing files
    of the same names are replaced; a folder with further trajectories, of an earlier run with more
    structures or in the other format, is refused. Files grow during the run; after a crash they
    hold the frames written so far.
    """

    folder: str | os.PathLike[str]
    """The folder, made if missing."""

    interval: int = 10
    """The number of steps between two frames; every frame costs some 0.3 ms."""

    format: Literal["extxyz", "traj"] = "traj"
    """ASE's own format, which is faster and keeps all digits, or extended XYZ."""

    names: Sequence[str] | None = None
    """The names of the files without their endings, if they are not the numbers; files of other
    names may stand in the folder then."""

    def __check_init__(self):
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"folder must be the name of a folder, got {shown(self.folder)}")
        require_whole(self.interval, "interval")
        if self.interval < 1:
            raise ValueError(f"interval must be a positive number of steps, got {self.interval}")
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")

    def recorder(self, atoms: Sequence[Atoms]) -> "Recorder":
        """What writes the frames of these structures; see `Recorder`.

        Raises:
            OSError: files cannot be written, or files of an earlier run would remain among them.
            ValueError: there is not one name for each structure.
        """
        check_folder(self, len(atoms))
        return Recorder(self, atoms)

    def paths(self, n_structures: int) -> list[Path]:
        """The files of `n_structures` structures."""
        return [self.path(number, n_structures) for number in range(n_structures)]

    def path(self, number: int, n_structures: int = 1) -> Path:
        """The file of one of `n_structures` structures, by its number."""
        width = len(str(n_structures - 1))
        name = f"{number:0{width}d}" if self.names is None else self.names[number]
        return Path(self.folder) / f"{name}.{self.format}"


def check_folder(trajectories: Trajectories, n_structures: int) -> list[Path]:
    """The files that trajectories of these structures will replace; changes nothing.

    Raises:
        OSError: files cannot be written, or files of an earlier run would remain.
        ValueError: there is not one name for each structure.
    """
    names = trajectories.names
    if names is not None and not len(set(names)) == len(names) == n_structures:
        raise ValueError(
            f"names of trajectories must differ, one for each of {n_structures} structures, got"
            f" {shown(names)}"
        )
    folder = Path(trajectories.folder)
    target = resolved(folder)
    above = next(path for path in (target, *target.parents) if path.exists())
    try:
        there = set(os.listdir(target)) if above == target else set()
        check_folder_writable(above)
    except OSError as error:
        raise type(error)(f"{folder} cannot be written to: {error.strerror or error}") from error
    replaced = [path for path in trajectories.paths(n_structures) if path.name in there]
    for path in replaced:
        check_plain(path)
    stale = sorted(filter(NUMBERED.fullmatch, there.difference(path.name for path in replaced)))
    if stale and trajectories.names is None:
        which = f"{stale[0]} and {len(stale) - 1} more" if len(stale) > 1 else stale[0]
        raise FileExistsError(
            f"{folder} holds {which}, which would stay among the new trajectories: remove what an"
            " earlier run has left, or choose another folder"
        )
    return replaced


class Recorder:
    """Writes the frames of many structures; shared by threads."""

    def __init__(
        self, trajectories: Trajectories, atoms: Sequence[Atoms] = (), n_structures: int = 1
    ):
        """Make the folder if it is missing, and expect these structures.

        Warns of losses of the format.

        Args:
            n_structures: the number of structures, if they are expected later.

        Raises:
            OSError: the folder cannot be made.
        """
        self.interval = min(int(trajectories.interval), MOST)
        self._format, self._write = trajectories.format, _WRITERS[trajectories.format]
        self._path = partial(trajectories.path, n_structures=len(atoms) or n_structures)
        resolved(trajectories.folder).mkdir(parents=True, exist_ok=True)
        self._images: dict[int, Sequence[Atoms]] = {}
        self._sources: dict[int, str] = {}
        for number, structure in enumerate(atoms):
            self.expect(number, structure)
        if lost := losses(trajectories.format, atoms, [False] * len(atoms)):
            names = [name_of(a, k) for k, a in enumerate(atoms)]
            warn(f"trajectories do not keep {in_words(lost, names)}")
        self._queue: queue.SimpleQueue[Iterable[Frame] | None] = queue.SimpleQueue()
        self._marks: dict[int, tuple[int, ...]] = {}
        """The marks of the files when last written, by number of the structure."""
        self._n_replaced = 0
        """The number of files that other programs made during the run."""
        self._faults: dict[int, tuple[str, str]] = {}
        """The names of structures whose files are incomplete, and the reasons, by number."""
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def expect(self, number: int, *images: Atoms, source: str | None = None) -> None:
        """Remove the file that this structure's trajectory replaces.

        Args:
            images: the structure, or the images of a path.
            source: its origin; that of the structure if None.
        """
        resolved(self._path(number)).unlink(missing_ok=True)
        self._images[number] = images
        self._sources[number] = source_of(images[0], number) if source is None else source

    def add(self, frames: Iterable[Frame]) -> None:
        """Queue frames for writing. A structure's frames arrive in the order of its steps.

        Args:
            frames: if a generator, the writing thread makes the frames.
        """
        self._queue.put(frames)

    def flush(self) -> None:
        """Wait until the files of structures that have ended hold all their frames."""
        is_written = threading.Event()

        def tell() -> Iterator[Frame]:
            is_written.set()
            yield from ()

        self.add(tell())
        while self._thread.is_alive() and not is_written.wait(1.0):
            pass

    def close(self) -> None:
        """Wait until all is written; warn if a write failed or a foreign file was replaced."""
        self._queue.put(None)
        self._thread.join()
        if self._n_replaced:
            warn(
                f"{self._n_replaced} of the trajectories took the place of files that another"
                " program had written since the run began"
            )
        if not self._faults:
            return
        (name, fault), n_more = next(iter(self._faults.values())), len(self._faults) - 1
        which = (
            f"trajectories of {name} and {n_more} more are"
            if n_more
            else f"trajectory of {name} is"
        )
        warn(f"the {which} not whole: {fault}", NotWhole)

    def _write_all(self) -> None:
        waiting: dict[int, list[Frame]] = defaultdict(list)
        steps: dict[int, tuple[int, int]] = {}
        while (frames := self._queue.get()) is not None:
            for frame in frames:
                number = frame.number
                # An end that is also due has been recorded already.
                if (frame.step, frame.image) > steps.get(number, (-1, 0)):
                    waiting[number].append(frame)
                    steps[number] = frame.step, frame.image
                if frame.image + 1 < len(self._images.get(number, ())):
                    continue
                if number in waiting and (frame.is_last or len(waiting[number]) >= TOGETHER):
                    self._append(number, waiting.pop(number))
                if frame.is_last:
                    self._images.pop(number, None)
                    self._sources.pop(number, None)
        for number, last in waiting.items():
            self._append(number, last)

    def _append(self, number: int, frames: list[Frame]) -> None:
        # A failed trajectory must end neither the relaxation nor other trajectories.
        if number in self._faults:
            return
        try:
            if number in self._marks:
                self._extend(number, frames)
            else:
                self._begin(number, frames)
        except Exception as error:  # every writer of ASE raises errors of its own
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            name = name_of(self._images[number][0], number)
            self._faults[number] = name, f"{type(error).__name__}: {reason}"

    def _begin(self, number: int, frames: list[Frame]) -> None:
        path = self._path(number)
        with replacing(path) as part:
            self._write(part, "w", self._copies(number), frames)
            mark, has_another = _mark(part.stat()), path.exists()
        self._marks[number] = mark
        self._n_replaced += has_another

    def _extend(self, number: int, frames: list[Frame]) -> None:
        path = self._path(number)
        if _mark(path.stat()) != self._marks[number]:
            raise FileExistsError(REPLACED)
        self._write(path, "a", self._copies(number), frames)
        self._marks[number] = _mark(path.stat())

    def _copies(self, number: int) -> list[Atoms]:
        """The images with what files keep, of this run and none before."""
        copies = [prepared(self._format, image)[0] for image in self._images[number]]
        for copy in copies:
            copy.info = without_outcome(copy.info) | {SOURCE: self._sources[number]}
        return copies


REPLACED = "another program has put a file of its own in this place"

Mode = Literal["w", "a"]
"""Write a new file, or append to a file."""


def _mark(found: os.stat_result) -> tuple[int, ...]:
    """A mark that differs for a file of another program, even if it reuses the inode number."""
    return found.st_dev, found.st_ino, found.st_size


def _write_extxyz(path: Path, mode: Mode, copies: list[Atoms], frames: list[Frame]) -> None:
    """Frames that cannot be written completely leave no part."""
    templates = list(map(Template.of, copies))
    images, text = [], io.StringIO()
    for frame in frames:
        images.append(frame.snapshot.of(templates[frame.image]))
        images[-1].info["step"] = frame.step
    ase.io.write(text, images, format="extxyz")
    with path.open("wb" if mode == "w" else "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            write_whole(file, text.getvalue().encode())
        except BaseException:
            file.truncate(end)
            raise


def _write_traj(path: Path, mode: Mode, copies: list[Atoms], frames: list[Frame]) -> None:
    """The file counts complete frames, and readers ignore all others."""
    # Move one structure from frame to frame. Its calculator holds no properties, since ASE would
    # compare the structure with the calculator's; pass the properties separately.
    for image in copies:
        image.calc = SinglePointCalculator(image)
    writer = TrajectoryWriter(path, mode)
    backend: Any = writer.backend
    # Closing the writer would write once more, and fail again on a full disk.
    with closing(backend.fd):
        for frame in frames:
            image = copies[frame.image]
            image.set_cell(frame.snapshot.cell, apply_constraint=False)
            image.set_positions(frame.snapshot.positions, apply_constraint=False)
            image.info["step"] = frame.step
            writer.write(image, **frame.snapshot.properties())


_WRITERS = {"extxyz": _write_extxyz, "traj": _write_traj}
