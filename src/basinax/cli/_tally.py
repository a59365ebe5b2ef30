"""The progress of a run that is stored in a folder."""

import dataclasses
from collections import Counter
from typing import Any

from basinax._loop.status import Status
from basinax.atoms._runs.results import Brief
from basinax.cli._storing import Ended
from basinax.cli._watch import Watch


@dataclasses.dataclass
class Tally:
    """Counts of finished structures."""

    n_structures: int | None
    """The total number of structures; None while unknown."""
    n_before: int
    """Structures finished before the command began."""
    watch: Watch
    counts: Counter[Status] = dataclasses.field(default_factory=Counter)
    """The number of finished structures by status."""
    reasons: list[str] = dataclasses.field(default_factory=list)
    """The name of each structure that has not converged, and why."""

    @classmethod
    def begun(cls, n_structures: int | None, done: list[Brief], watch: Watch) -> "Tally":
        """Args: done: the structures that earlier commands have finished."""
        tally = cls(n_structures, len(done), watch)
        for brief in done:
            source = brief.pairs.get("source", str(brief.number))
            tally._count(brief.status, source, brief.pairs.get("message", ""))
        return tally

    @property
    def n_done(self) -> int:
        return self.counts.total()

    @property
    def is_done(self) -> bool:
        return self.n_done == self.n_structures

    def add(self, ended: Ended) -> None:
        for _, entry in ended:
            self._count(entry.status, entry.source, entry.message)

    def _count(self, status: Status, source: str, message: str) -> None:
        self.counts[status] += 1
        if status != Status.CONVERGED:
            self.reasons.append(f"{source}: {message or status.meaning}")

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
