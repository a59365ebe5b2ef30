"""A run is watched by a bar, and ended by signals."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from basinax.cli._console import err

TOGETHER = 1.0
"""Seconds within which signals are one."""


class Interrupt:
    """Turns Ctrl-C, SIGTERM, or the end of a terminal into a flag that the run asks for.

    Another one ends the program at once, unless it comes with the first: what runs a command often
    hands a signal on that the command has got as well.
    """

    def __enter__(self) -> Callable[[], bool]:
        self._event, self._since = threading.Event(), math.inf
        numbers = [signal.SIGINT, signal.SIGTERM]
        # Systems differ in whether they have it, and `nohup` ignores it.
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            numbers.append(hangup)
        self._previous = {number: signal.signal(number, self._set) for number in numbers}
        return self._event.is_set

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt:
            err.print("Interrupted again: what had not been written by then is lost.")

    def _set(self, *_: Any) -> None:
        now = time.monotonic()
        if now > self._since + TOGETHER:
            raise KeyboardInterrupt
        self._since = min(self._since, now)
        self._event.set()


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[Any], None]]:
    columns = "[green]{task.fields[converged]} converged[/], {task.fields[running]} running,"
    bar = Progress(
        BarColumn(),
        TextColumn(columns + " [red]{task.fields[failed]} failed[/]"),
        TimeElapsedColumn(),
        console=err,
        disable=quiet or not err.is_terminal,
        transient=True,
    )
    with _lenient(bar):
        task = bar.add_task("", total=None, converged=0, running="all", failed=0)

        def show(progress: Any) -> None:
            bar.update(
                task,
                total=progress.n_systems,
                completed=progress.n_systems - progress.n_running,
                converged=progress.n_converged,
                running=progress.n_running,
                failed=progress.n_failed,
            )

        yield show


@contextmanager
def _lenient(bar: Progress) -> Iterator[None]:
    """Shows a bar as long as there is a terminal."""
    with suppress(OSError):
        bar.start()
    try:
        yield
    finally:
        with suppress(OSError):
            bar.stop()
