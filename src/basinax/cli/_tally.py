"""The progress of a run that is stored in a folder."""

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any

from basinax._loop.status import Status
from basinax.cli._watch import Watch


@dataclasses.dataclass
class Tally:
    """Counts of finished structures."""

    n_structures: int | None
    """The total number of structures; None while unknown."""
    counts: Counter[Status]
    """The number of finished structures by status."""
    n_before: int
    """Structures finished before the command began."""
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
        """Show the phase of the run; called by `relax`."""
        converged = self.counts[Status.CONVERGED]
        failed = self.n_done - converged
        n_known = self.n_done + progress.n_running
        n_all = n_known if self.n_structures is None else self.n_structures
        shown = dataclasses.replace(
            progress, n_systems=n_all, n_converged=converged, n_failed=failed
        )
        self.watch.show(shown, has_total=self.n_structures is not None)

    def results(self) -> dict[str, int]:
        """Counts by names of statuses."""
        return {str(status): n for status, n in sorted(self.counts.items())}
