"""Structures in windows: one window is read and relaxed after another."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

from basinax._jax.switches import switched, switches
from basinax.atoms._result import Relaxed

T = TypeVar("T")

OnEnd = Callable[[int, Relaxed], None]
"""A function of the place of an item in its window, and of its outcome."""


Take = Callable[[Iterator[T]], list[T]]
"""Takes the items of the next window; returns an empty list at the end."""


def by_number(n: int) -> Take[Any]:
    """A function that takes n items."""
    return lambda items: list(itertools.islice(items, n))


def relaxed_windows(
    items: Iterator[T],
    relax_window: Callable[[list[T], OnEnd, Callable[[], bool]], Any],
    should_stop: Callable[[], bool],
    take: Take[T],
) -> Generator[list[tuple[T, Relaxed]]]:
    """Relax items in windows, each window in a thread.

    Args:
        relax_window: relaxes the items of a window; its arguments are a function to call with each
            ended item, and one that returns True once the window must end.

    Yields:
        All items that have ended since the last yield, with their outcomes; `seconds` count from
        the start of the first window.
    """
    begin, first = time.monotonic(), 0
    while window := take(items):
        if should_stop():
            return
        since = time.monotonic() - begin
        with _Run(lambda *how, window=window: relax_window(window, *how), should_stop) as run:
            try:
                for ended in run.ended():
                    yield [
                        (window[k], entry._replace(seconds=entry.seconds + since))
                        for k, entry in ended
                    ]
            except Exception as error:
                if first:
                    error.add_note(f"System 0 is structure {first} of the input.")
                raise
        first += len(window)


class _Run(contextlib.AbstractContextManager):
    """A thread that relaxes a window, and that stops if the context is left."""

    def __init__(self, relax_it: Callable[..., Any], should_stop: Callable[[], bool]):
        self._ended: SimpleQueue[tuple[int, Relaxed] | BaseException | None] = SimpleQueue()
        """Structures as they end; finally None or an exception."""
        self._is_wanted, wanted = True, switches()

        def is_over() -> bool:
            return not self._is_wanted or should_stop()

        def work() -> None:
            last: BaseException | None = None
            try:
                with switched(wanted):
                    relax_it(lambda *found: self._ended.put(found), is_over)
            except BaseException as error:
                last = error
            self._ended.put(last)

        self._thread = threading.Thread(target=work, name="basinax-stream", daemon=True)

    def __enter__(self) -> "_Run":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_wanted = False
        if not isinstance(raised[1], KeyboardInterrupt):  # who interrupts does not wait
            self._thread.join()

    def ended(self) -> Iterator[list[tuple[int, Relaxed]]]:
        """Structures as they end, all waiting ones at a time."""
        last: Any = ()
        while isinstance(last, tuple):
            waiting = [self._ended.get()]
            while not self._ended.empty():
                waiting.append(self._ended.get())
            last = waiting[-1]
            if found := [x for x in waiting if isinstance(x, tuple)]:
                yield found
        if isinstance(last, BaseException):
            raise last
