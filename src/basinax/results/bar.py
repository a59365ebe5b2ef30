"""A bar that shows the progress of a relaxation, on a terminal or in a notebook."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

WIDE = 110
"""Columns of a terminal from which on the bar has room for forces."""

COUNTS = (
    "[green]{task.fields[converged]} converged[/], {task.fields[running]} running,"
    " [red]{task.fields[failed]} failed[/]{task.fields[forces]}"
)


class Bar:
    """The phase, counts, times, and fmax of running structures on a wide terminal."""

    def __init__(
        self,
        console: Console | None = None,
        line: Callable[[], str] | None = None,
        *,
        is_off: bool = False,
    ):
        """A hidden bar.

        Args:
            console: the console of the bar; standard error if None.
            line: the text at its beginning; the phase of the run if None.
        """
        self._phase = ""
        self._bar = Progress(
            _Line(line or (lambda: self._phase)),
            BarColumn(),
            TextColumn(COUNTS),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("left:"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            console=console or Console(stderr=True),
            disable=is_off,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(
            "", total=None, converged=0, running="all", failed=0, forces=""
        )

    def start(self) -> None:
        with suppress(OSError):
            self._bar.start()

    def stop(self) -> None:
        with suppress(OSError):
            self._bar.stop()

    def refresh(self) -> None:
        self._bar.refresh()

    def show(self, progress: Any, *, has_total: bool = True) -> None:
        """Show a `Progress` of `relax`.

        Args:
            has_total: whether its number of structures is the total.
        """
        self._phase = progress.text or progress.phase
        forces = ""
        if np.isfinite(progress.fmax_median) and self._bar.console.width >= WIDE:
            forces = (
                f", fmax {progress.fmax_median:.2g} (median) {progress.fmax_largest:.2g} (worst)"
            )
        self._bar.update(
            self._task,
            total=progress.n_systems if has_total else None,
            completed=progress.n_systems - progress.n_running,
            converged=progress.n_converged,
            running=progress.n_running,
            failed=progress.n_failed,
            forces=forces,
        )


class _Line(ProgressColumn):
    """A text that changes."""

    def __init__(self, text: Callable[[], str]):
        super().__init__()
        self._text = text

    def render(self, task: Any) -> Text:
        del task
        return Text(self._text(), no_wrap=True, overflow="ellipsis")
