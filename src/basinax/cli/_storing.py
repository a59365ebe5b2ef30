"""Structures on their way into the database of a run, which other programs may hold for a time."""

from collections.abc import Callable

from basinax.atoms._record import Relaxed
from basinax.atoms._relax import Progress
from basinax.atoms._runs.results import Results
from basinax.atoms._runs.stores import Busy
from basinax.cli._console import print_warning

TOGETHER = 1000
"""The largest number of structures of one transaction: ASE commits every few thousand rows."""

MOST = 1_000_000
"""The most atoms that wait in memory while the run goes on: some hundred MB."""

ROW = 100
"""The atoms that take the memory of a structure without any, with its history."""

LAST = 5
"""The times that the database is tried at the end of an interrupted run, a second each."""

Ended = list[tuple[int, Relaxed]]


class Storing:
    """Stores structures; while another program holds the database, they wait in memory."""

    def __init__(
        self,
        results: Results,
        on_stored: Callable[[Ended], None],
        show: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ):
        """Args: on_stored: called with structures once they are stored."""
        self._results, self._on_stored = results, on_stored
        self._show, self._should_stop = show, should_stop
        self._has_warned = False
        self.waiting: Ended = []

    def add(self, ended: Ended) -> None:
        """Store structures now or later; waits if too many are in memory.

        Raises:
            OSError: the database cannot be written.
        """
        self.waiting += ended
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
                self._results.add(some)
                del self.waiting[:TOGETHER]
                self._on_stored(some)
        except Busy as error:
            if not self._has_warned:
                print_warning(f"{error}: results wait in memory until it is free")
            self._has_warned = True
            self._show(Progress(0, 0, 0, "waiting for the database"))
            return True
        self._has_warned = False
        return False
