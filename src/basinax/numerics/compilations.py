"""The number of programs that JAX compiles for a call, in all threads of the call."""

import contextlib
import functools
import threading
from collections.abc import Iterator

import jax

EVENT = "/jax/core/compile/backend_compile_duration"
"""The event that JAX records for each program that is compiled or loaded from its disk cache."""

LOADED = "/basinax/programs/loaded"
"""The event that `jax.monitoring` gets for each program from the cache of this package."""


class Compilations:
    """A counter of programs that any thread compiles within `counted`."""

    def __init__(self):
        self.count = 0
        self._lock = threading.Lock()  # `+=` on an attribute is not atomic across threads

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """A context in which this counter alone counts the programs that this thread compiles."""
        _listen()
        before, _OF_THREAD.counter = getattr(_OF_THREAD, "counter", None), self
        try:
            yield
        finally:
            _OF_THREAD.counter = before

    def add(self) -> None:
        with self._lock:
            self.count += 1


_OF_THREAD = threading.local()
_OF_PROCESS = Compilations()


def made_so_far() -> int:
    """The number of programs that this process has compiled or loaded since the first call."""
    _listen()
    return _OF_PROCESS.count


def counter_of_thread() -> Compilations:
    """The counter of this thread, for threads that it starts; a new one if there is none."""
    return getattr(_OF_THREAD, "counter", None) or Compilations()


@functools.cache
def _listen() -> None:
    """Register the listeners once per process, since JAX cannot remove a single listener."""

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event != EVENT:
            return
        _OF_PROCESS.add()
        counter = getattr(_OF_THREAD, "counter", None)
        if counter is not None:
            counter.add()

    def count_loaded(event: str, **_: str | int) -> None:
        if event == LOADED:
            _OF_PROCESS.add()

    jax.monitoring.register_event_duration_secs_listener(count)
    jax.monitoring.register_event_listener(count_loaded)
