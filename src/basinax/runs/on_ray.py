"""Windows of structures on a Ray cluster: one worker per GPU, or per machine without GPUs.

If a worker or machine dies, other workers start its windows again. Machines that join get workers.
"""

import contextlib
import dataclasses
import itertools
import math
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from basinax.models.packing import packed
from basinax.numerics.switches import switches
from basinax.results.record import Relaxed

T = TypeVar("T")

Ended = tuple[int, Relaxed]
"""The number of a structure, and its outcome."""

WINDOW = 512
"""Structures of a window: the unit of sending, and the loss if a worker dies."""

AT_A_TIME = 2
"""Windows of a worker: one travels while the other is relaxed."""

LOOK = 1.0
"""Seconds between two checks of the cluster."""

MOST_DEATHS = 3
"""The run ends with an error once this many workers died with one window."""


class Worker:
    """Relaxes windows on one machine or GPU, in its own process."""

    def __init__(self, relax_window: bytes, describe: bytes, wanted: dict[str, Any]):
        """A worker with JAX's switches of the run.

        Args:
            relax_window: a pickled function, unpickled after the switches are set: without float64,
                arrays would lose digits.
            describe: a pickled function, unpickled first: it sees the modules that the other loads.
        """
        for name, value in wanted.items():
            if getattr(jax.config, name) != value:
                jax.config.update(name, value)
        self._describe: Callable[[], Any] = pickle.loads(describe)
        self._relax_window: Callable[..., Any] = pickle.loads(relax_window)

    def relax(self, window: list[Any]) -> tuple[Any, list[Ended]]:
        """What made the results, and the results."""
        ended = self._relax_window(window)
        return self._describe(), ended


@dataclasses.dataclass
class _Window:
    items: list[Any]
    deaths: int = 0


def relaxed_on_ray(
    items: Iterator[T],
    relax_window: Callable[[list[T]], list[Ended]],
    should_stop: Callable[[], bool],
    address: str,
    describe: Callable[[], Any] = lambda: None,
    admit: Callable[[Any], None] = lambda made: None,
    size: int = WINDOW,
) -> Iterator[list[Ended]]:
    """Relax items by the window on a Ray cluster; yields their numbers and results.

    Args:
        relax_window: relaxes the items of a window; it and the items must be picklable.
        address: the address of the cluster, "auto" for the cluster of this machine, or "local" to
            start a cluster for this run.
        describe: called by a worker, says what makes its results; must be picklable.
        admit: called with that before a window is handed out; an error ends the run.
        size: the number of items of a window.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster answers at the address.
        RuntimeError: a window ended several workers.
    """
    ray = _imported()
    has_begun = not ray.is_initialized()
    if has_begun:
        with warnings.catch_warnings():
            # JAX warns of forks that go on with its threads; those of Ray run another program.
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
    crew = _Workers(ray, relax_window, describe)
    begin, waiting = time.monotonic(), deque[_Window]()
    try:
        while not should_stop():
            crew.look()
            while crew.has_room():
                if not waiting and (taken := list(itertools.islice(items, size))):
                    waiting.append(_Window(taken))
                if not waiting:
                    break
                crew.give(waiting.popleft())
            if not crew.is_busy() and not waiting and crew.has_room():
                return
            for window, ended in crew.take():
                if isinstance(ended, Exception):
                    waiting.appendleft(_begun_again(window, ended))
                    continue
                made, entries = ended
                admit(made)
                seconds = time.monotonic() - begin
                yield [(k, dataclasses.replace(entry, seconds=seconds)) for k, entry in entries]
    finally:
        crew.leave()
        if has_begun:
            ray.shutdown()


class _Workers:
    """The workers of a cluster, and their windows."""

    def __init__(self, ray: Any, relax_window: Callable[..., Any], describe: Callable[[], Any]):
        self._ray = ray
        self._functions = [packed(x) for x in (relax_window, describe)]
        self._workers: dict[tuple[str, int], Any] = {}
        """Workers, by machine and number on the machine."""
        self._given: dict[Any, tuple[tuple[str, int], _Window]] = {}
        """The worker and window of each pending Ray object."""
        self._looked_at = -math.inf

    def look(self) -> None:
        """Start a worker at each place of the cluster without one."""
        if time.monotonic() < self._looked_at + LOOK:
            return
        self._looked_at = time.monotonic()
        alive = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        for place in [place for place in self._workers if place[0] not in alive]:
            del self._workers[place]
        for name, resources in alive.items():
            n_gpus, n_cpus = int(resources.get("GPU", 0)), resources.get("CPU", 0)
            for k in range(n_gpus or min(1, int(n_cpus))):
                if (name, k) not in self._workers:
                    self._workers[name, k] = self._hired(name, n_cpus / max(n_gpus, 1), n_gpus > 0)

    def _hired(self, node: str, n_cpus: float, needs_gpu: bool) -> Any:
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            NodeAffinitySchedulingStrategy,
        )

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": int(n_cpus), "num_gpus": int(needs_gpu)}
        made = self._ray.remote(Worker).options(**options, scheduling_strategy=there)
        return made.remote(*self._functions, switches())

    def has_room(self) -> bool:
        return self._next() is not None

    def is_busy(self) -> bool:
        return bool(self._given)

    def give(self, window: _Window) -> None:
        """Send a window to a worker with the fewest windows."""
        place = self._next()
        assert place is not None
        promise = self._workers[place].relax.remote(window.items)
        self._given[promise] = place, window

    def take(
        self,
    ) -> Iterator[tuple[_Window, tuple[Any, list[Ended]] | Exception]]:
        """Windows that have ended, with the answer, or the error that ended the worker."""
        if not self._given:
            time.sleep(LOOK)
            return
        ready, _ = self._ray.wait([*self._given], num_returns=1, timeout=LOOK)
        for promise in ready:
            place, window = self._given.pop(promise)
            try:
                ended = self._ray.get(promise)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._workers.pop(place, None)
                ended = error
            yield window, ended

    def leave(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            with contextlib.suppress(Exception):  # the worker may have died already
                self._ray.kill(worker)

    def _next(self) -> tuple[str, int] | None:
        counts = dict.fromkeys(self._workers, 0)
        for place, _ in self._given.values():
            if place in counts:
                counts[place] += 1
        place = min(counts, key=counts.__getitem__, default=None)
        return None if place is None or counts[place] >= AT_A_TIME else place


def _begun_again(window: _Window, error: Exception) -> _Window:
    """The window with its count of deaths increased."""
    window.deaths += 1
    if window.deaths == MOST_DEATHS:
        n = len(window.items)
        text = f"{MOST_DEATHS} workers have died with the same {n} structures: {error}"
        raise RuntimeError(text) from error
    return window


def _imported() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("--ray needs Ray: pip install 'basinax[ray]'") from error
    return ray
