"""Waiting structures, and outcomes of structures that have ended."""

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from basinax._bits.rounding import BLOCK
from basinax._loop.status import Status
from basinax.atoms._record import Relaxed


class Queue:
    """Waiting structures by their number of blocks; shared by threads, hence the lock."""

    def __init__(self, members: np.ndarray, blocks: np.ndarray):
        self._lock, self._blocks = threading.Lock(), blocks
        self._waiting: dict[int, deque[int]] = {}
        for member in members.tolist():
            self._waiting.setdefault(int(blocks[member]), deque()).append(member)

    def fill(self, n_rows: int, n_systems: int) -> list[int]:
        """Structures for a new batch, the same share of the waiting structures of every size.

        Thus a free place finds a waiting structure of its size until the queue is empty.
        """
        taken: list[int] = []
        with self._lock:
            waiting = sorted(self._waiting.items(), reverse=True)
            rows = sum(blocks * BLOCK * len(members) for blocks, members in waiting)
            part = min(1.0, n_rows / max(rows, 1))
            shares = {blocks: int(part * len(members)) for blocks, members in waiting}
            # First the shares, then all others that fit, large structures first.
            for blocks, members in [*waiting, *waiting]:
                while (
                    members
                    and shares[blocks] > 0
                    and len(taken) < n_systems
                    and blocks * BLOCK <= n_rows
                ):
                    taken.append(members.popleft())
                    shares[blocks] -= 1
                    n_rows -= blocks * BLOCK
                shares[blocks] = len(members)
        return taken

    def replace(self, blocks: int) -> int | None:
        """A waiting structure of the given number of blocks."""
        with self._lock:
            waiting = self._waiting.get(blocks)
            return waiting.popleft() if waiting else None

    def put_back(self, members: list[int]) -> None:
        """Put structures back in front of the queue."""
        with self._lock:
            for member in reversed(members):
                self._waiting.setdefault(int(self._blocks[member]), deque()).appendleft(member)


PHASES = ("listing", "compiling")
"""Phases in order; the caller receives the latest phase of any thread."""


class Monitor:
    """Collects outcomes and the progress of batches, and reports both, one thread at a time."""

    def __init__(
        self,
        n_structures: int,
        progress: Any,
        should_stop: Callable[[], bool],
        on_end: Callable[[int, Relaxed], None] | None,
    ):
        """Args: on_end: called with each structure that ends and its entry, in turn."""
        self.entries: list[Relaxed | None] = [None] * n_structures
        self._begin = time.monotonic()
        self._should_stop, self._progress, self._on_end = should_stop, progress, on_end
        self._is_stopped = False
        self._in_batches: dict[Any, tuple[int, int]] = {}
        self._fmax: dict[Any, np.ndarray] = {}
        """Forces of running structures, by batch."""
        self._ended = (0, 0)
        self._phases: list[str] = []
        """Phases of the threads that list or compile."""
        self._lock = threading.Lock()  # the caller's functions run one at a time

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

    def end(self, member: int, entry: Relaxed) -> None:
        """Args: entry: without the time to its end."""
        with self._lock:
            has_ended, converged = entry.status != Status.RUNNING, entry.status == Status.CONVERGED
            if has_ended:
                entry = dataclasses.replace(entry, seconds=time.monotonic() - self._begin)
            self.entries[member] = entry
            failed = has_ended and not converged
            self._ended = (self._ended[0] + converged, self._ended[1] + failed)
            if self._on_end is not None and has_ended:
                self._on_end(member, entry)

    def report(self, stream: Any, status: np.ndarray, fmax: np.ndarray) -> None:
        """Args: status, fmax: values of the structures in the stream's batch."""
        if self._progress is None:
            return
        with self._lock:
            n_converged = int((status == Status.CONVERGED).sum())
            n_failed = int((status != Status.RUNNING).sum()) - n_converged
            self._in_batches[stream] = n_converged, n_failed
            self._fmax[stream] = fmax[(status == Status.RUNNING) & np.isfinite(fmax)]
            self._tell()

    def forget(self, stream: Any) -> None:
        """Stop counting the structures of the stream's batch, which is given up."""
        with self._lock:
            self._in_batches.pop(stream, None)
            self._fmax.pop(stream, None)

    def _tell(self) -> None:
        if self._progress is not None:
            counts = zip(self._ended, *self._in_batches.values(), strict=True)
            phase = max(self._phases, key=PHASES.index, default="running")
            fmax = np.concatenate([*self._fmax.values(), np.zeros(0)])
            forces = (float(np.median(fmax)), float(fmax.max())) if len(fmax) else (np.nan, np.nan)
            self._progress(*(sum(count) for count in counts), phase, *forces)
