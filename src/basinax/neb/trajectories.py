"""Trajectories of paths: all images of each step, one after another, as ASE writes those of `NEB`.

The loop knows the forces of bands alone; energies and forces of the images come from the evaluator.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from ase import Atoms

from basinax.neb.evaluator import OfImages, PathEvaluator
from basinax.results.snapshot import Snapshot
from basinax.results.trajectory import AbstractTrajectories, Frame, Recorder, Trajectories


class PathTrajectories(AbstractTrajectories):
    """Trajectories of the paths of an evaluator."""

    to: Trajectories
    evaluator: PathEvaluator

    @classmethod
    def of(cls, to: Trajectories | str | os.PathLike[str], evaluator: PathEvaluator) -> Self:
        return cls(to if isinstance(to, Trajectories) else Trajectories(to), evaluator)

    def recorder(self, atoms: Sequence[Atoms]) -> "PathRecorder":
        images = [self.evaluator.bands[k].images for k in range(len(atoms))]
        recorder = PathRecorder(self.to.recorder([x[0] for x in images]), self.evaluator.last)
        for number, each in enumerate(images):
            recorder.expect(number, *each, source=str(number))
        return recorder


class PathRecorder:
    """Writes the images of each frame of a path."""

    def __init__(self, recorder: Recorder, last: Mapping[int, OfImages]):
        """Args: last: the results of each path's images at its last point."""
        self._recorder, self._last = recorder, last
        self.interval, self.close = recorder.interval, recorder.close
        self.expect, self.flush = recorder.expect, recorder.flush

    def add(self, frames: Iterable[Frame]) -> None:
        # At once, since the next evaluation replaces these results.
        self._recorder.add([each for frame in frames for each in self._split(frame)])

    def _split(self, frame: Frame) -> Iterator[Frame]:
        if np.isnan(frame.snapshot.energy):  # the path ends where an image cannot be evaluated
            return
        results = self._last[frame.number]
        path = frame.snapshot.positions.reshape(len(results), -1, 3)
        for k, (positions, found) in enumerate(zip(path, results, strict=True)):
            yield frame._replace(snapshot=_snapshot(positions, frame.snapshot.cell, found), image=k)


def _snapshot(positions: np.ndarray, cell: np.ndarray, found: dict[str, Any]) -> Snapshot:
    energies = found["energy"], None, found.get("free_energy")
    return Snapshot(positions, cell, found["forces"], None, *energies)
