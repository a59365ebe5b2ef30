"""Structures that wait for batches, and the progress of those in batches."""

import contextlib
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from basinax.minimize.status import Status
from basinax.numerics.rounding import BLOCK
from basinax.structures.read import Structure


class Queue:
    """Waiting structures by their number of blocks; shared by threads, hence the lock."""

    def __init__(self, structures: Iterable[Structure], *, largest_first: bool = False):
        """Args: largest_first: whether large structures begin before smaller ones."""
        self._lock, self._largest_first = threading.Lock(), largest_first
        self._waiting: dict[int, deque[Structure]] = defaultdict(deque)
        for structure in structures:
            self._waiting[structure.n_blocks].append(structure)

    def add(self, structure: Structure) -> None:
        with self._lock:
            self._waiting[structure.n_blocks].append(structure)

    @property
    def n_rows(self) -> int:
        """The number of rows of all waiting structures."""
        return sum(blocks * BLOCK * len(some) for blocks, some in list(self._waiting.items()))

    def fill(self, n_rows: int, n_systems: int) -> list[Structure]:
        """Structures for free rows, so that a free place finds another one until the queue is
        empty: the largest, or the same share of the waiting structures of every size."""
        taken: list[Structure] = []
        with self._lock:
            part = 1.0 if self._largest_first else min(1.0, n_rows / max(self.n_rows, 1))
            waiting = sorted(self._waiting.items(), key=lambda item: -item[0])
            shares = {blocks: int(part * len(some)) for blocks, some in waiting}
            # First the shares, then all others that fit, large structures first.
            for blocks, some in [*waiting, *waiting]:
                fitting = min(n_systems - len(taken), n_rows // (blocks * BLOCK))
                n = min(shares[blocks], fitting)
                taken += [some.popleft() for _ in range(n)]
                n_rows -= n * blocks * BLOCK
                shares[blocks] = len(some)
        return taken

    def replace(self, blocks: int) -> Structure | None:
        """A waiting structure for a place of the given number of blocks."""
        with self._lock:
            waiting = self._waiting.get(blocks)
            return waiting.popleft() if waiting else None

    def put_back(self, structures: list[Structure]) -> None:
        """Put structures back in front of the queue."""
        with self._lock:
            for structure in reversed(structures):
                self._waiting[structure.n_blocks].appendleft(structure)


NOBODY = np.zeros(0, np.int32)
"""The codes of no structures."""

PHASES = ("listing", "compiling")
"""Phases in order; the caller receives the latest phase of any thread."""


class Monitor:
    """The progress of a run and whether it must stop; reports of all threads, one at a time."""

    def __init__(self, progress: Callable[..., None] | None, should_stop: Callable[[], bool]):
        self._begin = time.monotonic()
        self._should_stop, self._progress = should_stop, progress
        self._is_stopped = False
        self._in_batches: dict[Any, tuple[int, int]] = {}
        self._fmax: dict[Any, np.ndarray] = {}
        """Forces of running structures, by batch."""
        self._ended: tuple[int, ...] = (0, 0)
        self._phases: list[str] = []
        """Phases of the threads that list or compile."""
        self._compiled: dict[Any, str] = {}
        """What models compile, in words, by the batch that waits for it."""
        self._lock = threading.Lock()  # the caller's function runs in one thread at a time
        self.n_structures = 0
        """The number of structures that have been read."""

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A context in which progress has this phase, whatever other threads do."""
        with self._lock:
            self._phases.append(phase)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._phases.remove(phase)
                self._tell()

    def is_compiling(self) -> bool:
        return "compiling" in self._phases

    def stop(self) -> None:
        """End the run when the host next reads the batches."""
        self._is_stopped = True

    def is_stopped(self) -> bool:
        self._is_stopped = self._is_stopped or bool(self._should_stop())
        return self._is_stopped

    def seconds(self) -> float:
        """The time since the run began."""
        return time.monotonic() - self._begin

    def report(
        self, batch: Any, status: np.ndarray, fmax: np.ndarray, ended: np.ndarray = NOBODY
    ) -> None:
        """Count the structures of a batch.

        Args:
            status, fmax: values of the structures in the batch.
            ended: codes of those that have left it; those that still run do not count.
        """
        if self._progress is None:
            return
        with self._lock:
            counts = zip(self._ended, _counts(ended), strict=True)
            self._ended = tuple(before + now for before, now in counts)
            self._in_batches[batch] = _counts(status)
            self._fmax[batch] = fmax[(status == Status.RUNNING.code) & np.isfinite(fmax)]
            self._tell()

    def compiles(self, batch: Any, what: str) -> None:
        """Args: what: the programs that the batch waits for, in words; empty for none."""
        with self._lock:
            if what != self._compiled.get(batch, ""):
                self._compiled[batch] = what
                self._tell()

    def forget(self, batch: Any) -> None:
        """Stop counting the structures of a batch that has ended or is given up."""
        with self._lock:
            self._compiled.pop(batch, None)
            self._in_batches.pop(batch, None)
            self._fmax.pop(batch, None)

    def _tell(self) -> None:
        if self._progress is not None:
            counts = zip(self._ended, *self._in_batches.values(), strict=True)
            what = next(filter(None, self._compiled.values()), "")
            phases = [*self._phases, *([PHASES[-1]] if what else [])]
            phase = max(phases, key=PHASES.index, default="running")
            fmax = np.concatenate([*self._fmax.values(), np.zeros(0)])
            forces = (float(np.median(fmax)), float(fmax.max())) if len(fmax) else (np.nan, np.nan)
            counted = (sum(count) for count in counts)
            self._progress(self.n_structures, *counted, phase, *forces, what)


def _counts(status: np.ndarray) -> tuple[int, int]:
    """How many of these codes are of structures that have converged, and that have failed."""
    n_converged = int((status == Status.CONVERGED.code).sum())
    return n_converged, int((status != Status.RUNNING.code).sum()) - n_converged
