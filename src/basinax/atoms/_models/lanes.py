"""The number of concurrent evaluations on each device, reduced if memory runs out."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple


class Lane(NamedTuple):
    """The permission for one evaluation."""

    device: Any
    """The device; None for JAX's default."""
    n_beside: int
    """The allowed number of concurrent evaluations at the start of this one, including it."""


class Lanes:
    """The lanes of all devices, shared by threads."""

    def __init__(self, devices: Sequence[Any]):
        """Args: devices: one device per lane."""
        self._counts, self._surplus = Counter(devices), Counter[Any]()
        self._free: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()  # threads return lanes at the same time
        for device in devices:
            self._free.put(device)

    @contextlib.contextmanager
    def turn(self) -> Iterator[Lane]:
        """A context with a lane of its own."""
        device = self._free.get()
        try:
            yield Lane(device, self._counts[device])
        finally:
            with self._lock:
                is_left = self._surplus[device] > 0
                self._surplus[device] -= is_left
            if not is_left:
                self._free.put(device)

    def fewer(self, lane: Lane) -> bool:
        """Halve the number of lanes of the device; return whether there was more than one."""
        with self._lock:
            n = self._counts[lane.device]
            if n == lane.n_beside > 1:
                self._counts[lane.device] -= n // 2
                self._surplus[lane.device] += n // 2
        return lane.n_beside > 1
