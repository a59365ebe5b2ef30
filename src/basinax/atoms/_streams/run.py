"""A run: it reads structures as they are needed, and yields each as it ends.

structures, read ahead -> groups -> batches (`stream`), in threads or on the host -> outcomes
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from ase import Atoms

from basinax._bits.rounding import BLOCK
from basinax._jax.switches import switches
from basinax.atoms._history import AnyRecorder
from basinax.atoms._intake import Fault, Item, Structure
from basinax.atoms._record import Relaxed
from basinax.atoms._streams.groups import RunSettings, needs_stress
from basinax.atoms._streams.hosted import OnHost
from basinax.atoms._streams.queue import Monitor
from basinax.atoms._streams.slots import Group
from basinax.atoms._streams.stream import BatchGroup
from basinax.atoms._streams.workers import in_threads

Outcomes = Sequence[tuple[int, Relaxed | Fault]]
"""The numbers of structures, and how each ended, or why it cannot be relaxed."""


def rows_of(atoms: Any) -> int:
    """The rows that a structure needs in a batch; those of one atom for what is no structure."""
    return max(-(-len(atoms) // BLOCK), 1) * BLOCK if isinstance(atoms, Atoms) else BLOCK


class Feed:
    """Structures on their way into batches, of which so many are in memory at a time."""

    def __init__(
        self,
        items: Iterator[Item | Fault],
        read: Callable[[list[Item | Fault]], list[Structure | Fault]],
        most: int,
        size_of: Callable[[Any], int] = rows_of,
    ):
        """Structures that are read when there is room for them.

        Args:
            read: reads and checks structures; it returns faults in order.
            most: no further structure is read once the sizes of those in memory reach this.
            size_of: the size of a structure.
        """
        self._items, self._read, self._most, self._size_of = items, read, most, size_of
        self._held: dict[int, int] = {}
        """The sizes of structures in memory, by number."""
        self.waiting: list[Structure] = []
        """Structures that await a group."""

    @classmethod
    def of(cls, structures: list[Structure]) -> "Feed":
        """Structures that have been read already."""
        feed = cls(iter(()), lambda items: [], 0)
        feed.waiting = structures
        return feed

    def read(self) -> Outcomes:
        """Read while there is room; returns structures that cannot be relaxed."""
        read = self._read(self._taken())
        self.waiting += [x for x in read if isinstance(x, Structure)]
        return [(x.number, x) for x in read if isinstance(x, Fault)]

    def _taken(self) -> list[Item | Fault]:
        taken: list[Item | Fault] = []
        size = sum(self._held.values())
        while size < self._most and (item := next(self._items, None)) is not None:
            self._held[item.number] = self._size_of(item.atoms)
            size += self._held[item.number]
            taken.append(item)
        return taken

    def release(self, outcomes: Outcomes) -> None:
        """Make room: these outcomes have been handed over."""
        for number, _ in outcomes:
            self._held.pop(number, None)

    def take(self) -> list[Structure]:
        """The structures that await a group."""
        taken, self.waiting = self.waiting, []
        return taken


def relaxed(
    run: RunSettings, feed: Feed, monitor: Monitor, recorder: AnyRecorder | None = None
) -> Generator[Outcomes]:
    """Relax the structures of a feed.

    What has been read becomes groups, whose programs fit it. Further structures join a group that
    has room for them, and the others wait for the next groups.

    Yields:
        Structures that have ended since the last yield. Those that a stopped run leaves on the way
        are `Status.RUNNING`.
    """
    wanted, is_over = switches(), False
    while not is_over:
        while faults := feed.read():
            yield faults
            feed.release(faults)
        structures = feed.take()
        if not structures:
            return
        monitor.n_structures += len(structures)
        groups = run.groups(structures, monitor, recorder)
        if run.evaluator is not None:
            for ended in _on_host(run, groups, structures):
                yield ended
                feed.release(ended)
        else:
            batches = [run.batches(group) for group in groups]
            with contextlib.closing(in_threads(batches, monitor, run.lanes, wanted)) as ends:
                for ended in ends:
                    yield ended
                    feed.release(ended)
                    if not monitor.is_stopped():
                        if faults := feed.read():
                            yield faults
                            feed.release(faults)
                        _join(run, groups, feed)
        is_over = monitor.is_stopped()


def _on_host(
    run: RunSettings, groups: list[Group], structures: list[Structure]
) -> Generator[Outcomes]:
    """Relax groups by a session of the evaluator, in the thread of the caller."""
    assert run.evaluator is not None
    atoms = [structure.atoms for structure in structures]
    numbers = {structure.number: k for k, structure in enumerate(structures)}
    with contextlib.closing(run.evaluator.open(atoms, needs_stress(structures))) as session:
        for group in groups:
            for ended in BatchGroup(group, OnHost(session, numbers)).drain():
                if ended:
                    yield ended


def _join(run: RunSettings, groups: list[Group], feed: Feed) -> None:
    """Let waiting structures join groups with room for them."""
    waiting = feed.take()
    if not waiting:
        return
    for structure, n_neighbors in zip(waiting, run.neighbors(waiting), strict=True):
        group = next((g for g in groups if g.suits(structure, n_neighbors)), None)
        if group is None:
            feed.waiting.append(structure)
            continue
        group.monitor.n_structures += 1
        group.queue.add(structure)
