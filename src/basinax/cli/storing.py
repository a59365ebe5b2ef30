"""Storing structures as they end, counts of them, and the progress that these show."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import typer

from basinax.cli.console import NOT_SAVED, print_error, print_warning
from basinax.cli.watch import Watch
from basinax.cli.works import AbstractWorks, Ended
from basinax.engine.relax import Progress
from basinax.minimize.status import Status
from basinax.runs.folder import RunFolder
from basinax.runs.results import Brief
from basinax.runs.stores import Busy

TOGETHER = 1000
"""The largest number of structures of one transaction: ASE commits every few thousand rows."""

MOST = 1_000_000
"""The most atoms that wait in memory while the run goes on: some hundred MB."""

ROW = 100
"""The atoms that take the memory of a structure without any, with its history."""

LAST = 5
"""The times that the database is tried at the end of an interrupted run, a second each."""


class Tally:
    """Counts of structures that have ended, and the progress that they show."""

    def __init__(self, works: AbstractWorks, watch: Watch, done: list[Brief]):
        self.counts = Counter(brief.status for brief in done)
        self._works, self._watch = works, watch

    def add(self, ended: Ended) -> None:
        self.counts.update(entry.status for _, entry in ended)
        self.show(Progress(0, 0, 0, "running"))

    def show(self, progress: Progress) -> None:
        """Show the phase of the run; called by `relax`."""
        n_ended, n_converged = self.counts.total(), self.counts[Status.CONVERGED]
        n_all = self._works.n_structures
        shown = dataclasses.replace(
            progress,
            n_systems=n_ended + progress.n_running if n_all is None else n_all,
            n_converged=n_converged,
            n_failed=n_ended - n_converged,
        )
        self._watch.show(shown, has_total=n_all is not None)


class Storing:
    """Stores structures; while another program holds the database, they wait in memory."""

    def __init__(
        self, kept: RunFolder, tally: Tally, done: list[Brief], should_stop: Callable[[], bool]
    ):
        """Args: done: what the run has stored before."""
        self.kept, self._tally, self._should_stop = kept, tally, should_stop
        self._has_warned = False
        self._before = max((brief.pairs.get("seconds", 0.0) for brief in done), default=0.0)
        self.waiting: Ended = []

    @property
    def n(self) -> int:
        """The number of structures that are stored."""
        return self._tally.counts.total()

    def add(self, ended: Ended) -> None:
        """Store structures now or later; waits if too many are in memory.

        Their seconds are those in which the run was going on, earlier sessions among them.

        Raises:
            OSError: the database cannot be written.
        """
        self.waiting += [
            (number, dataclasses.replace(entry, seconds=self._before + entry.seconds))
            for number, entry in ended
        ]
        while self._try() and self._size() > MOST and not self._should_stop():
            pass

    def finish(self) -> None:
        """Wait until all structures are stored, or the run is to stop; raises as `add`."""
        tries = 0
        while self._try() and tries < LAST:
            tries += self._should_stop()

    def _size(self) -> int:
        return sum(ROW + entry.n_atoms for _, entry in self.waiting)

    def _try(self) -> bool:
        """Store what waits; return whether another program prevents it."""
        try:
            while some := self.waiting[:TOGETHER]:
                self.kept.results.add(some)
                del self.waiting[:TOGETHER]
                self._tally.add(some)
        except Busy as error:
            if not self._has_warned:
                print_warning(f"{error}: results wait in memory until it is free")
            self._has_warned = True
            self._tally.show(Progress(0, 0, 0, "waiting for the database"))
            return True
        self._has_warned = False
        return False


def work_off(storing: Storing, relaxed: Any, prepare: Callable[[], None] | None) -> None:
    """Store each structure as it ends; exit if it cannot be stored.

    Args:
        relaxed: the outcomes of structures as they end.
        prepare: called before some are stored.
    """

    @contextlib.contextmanager
    def kept_or_left() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            print_error(
                f"{error}; {storing.n} structures are kept in it: {hint_to_resume(storing.kept)}"
            )
            raise typer.Exit(NOT_SAVED) from None

    with contextlib.closing(relaxed):
        for ended in relaxed:
            with kept_or_left():
                if ended and prepare is not None:
                    prepare()
                storing.add(ended)
    with kept_or_left():
        storing.finish()
    if storing.waiting:
        n, name = len(storing.waiting), storing.kept.results.name
        print_warning(f"{n} structures that have ended are not in {name}, and will begin again")


def hint_to_resume(kept: RunFolder) -> str:
    """What to do for a run that did not end."""
    return f"basinax resume {kept.name} goes on"
