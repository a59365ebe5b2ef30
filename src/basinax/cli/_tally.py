"""How far a run is that is kept in a folder."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from basinax._loop.status import Status
from basinax.cli._watch import Watch


@dataclasses.dataclass
class Tally:
    """Counts of structures that are done."""

    n_structures: int
    """In all, of this run."""
    counts: Counter[Status]
    """Structures that are done, by their status."""
    n_before: int
    """Structures that were done when the command began."""
    watch: Watch

    @property
    def n_done(self) -> int:
        return self.counts.total()

    @property
    def is_done(self) -> bool:
        return self.n_done == self.n_structures

    def add(self, statuses: Iterable[Status]) -> None:
        self.counts.update(statuses)

    def show(self, progress: Any) -> None:
        """Shows the run's phase; `relax` calls it."""
        converged = self.counts[Status.CONVERGED]
        failed = self.n_done - converged
        shown = dataclasses.replace(
            progress, n_systems=self.n_structures, n_converged=converged, n_failed=failed
        )
        self.watch.show(shown)

    def results(self) -> dict[str, int]:
        """Counts by the names of statuses."""
        return {str(status): n for status, n in sorted(self.counts.items())}
