"""How many programs JAX compiles for a call, in whichever threads the call runs."""

import contextlib
import functools
import threading
from collections.abc import Iterator

import jax

EVENT = "/jax/core/compile/backend_compile_duration"
"""JAX records it for each program that is compiled, or loaded from its cache on the disk."""


class Compilations:
    """Counts programs that are compiled within `counted`, by any thread."""

    def __init__(self):
        self.count = 0
        self._lock = threading.Lock()  # `+=` on an attribute is not atomic across threads

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the programs that this thread compiles meanwhile, here alone."""
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


def counter_of_thread() -> Compilations:
    """The counter of this thread's compilations, for threads that it starts; else a new one."""
    return getattr(_OF_THREAD, "counter", None) or Compilations()


@functools.cache
def _listen() -> None:
    """Once a process: JAX has no way to take one listener back."""

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        counter = getattr(_OF_THREAD, "counter", None)
        if event == EVENT and counter is not None:
            counter.add()

    jax.monitoring.register_event_duration_secs_listener(count)
