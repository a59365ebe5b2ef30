"""A run is watched by a bar, and ended by signals."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from basinax.cli._console import err

TOGETHER = 1.0
"""Seconds within which signals are one."""


class Interrupt:
    """Turns Ctrl-C, or SIGTERM, into a flag that the run asks for.

    Another one ends the program at once, unless it comes with the first: what runs a command often
    hands a signal on that the command has got as well.
    """

    def __enter__(self) -> Callable[[], bool]:
        self._event, self._since = threading.Event(), math.inf
        self._previous = {
            number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self._event.is_set

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

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
    with bar:
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
