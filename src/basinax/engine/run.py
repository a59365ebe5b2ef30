"""A run: it reads structures as they are needed, and yields each as it ends.

structures, read ahead -> groups -> batches (`stream`), in threads or on the host -> outcomes
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from ase import Atoms

from basinax.engine.groups import RunSettings
from basinax.engine.hosted import HostBackend
from basinax.engine.queue import Monitor
from basinax.engine.slots import Group
from basinax.engine.stream import BatchGroup
from basinax.engine.workers import in_threads
from basinax.numerics.rounding import BLOCK
from basinax.numerics.switches import switches
from basinax.results.history import AnyRecorder
from basinax.results.record import Relaxed
from basinax.structures.batch import rows_of_sizes
from basinax.structures.charges import warn_of_unused
from basinax.structures.formats.occupancy import check_occupancies
from basinax.structures.read import Fault, Item, Structure, intake

Outcomes = Mapping[int, Relaxed | Fault]
"""How structures ended, or why they cannot be relaxed, by number."""


def rows_of(atoms: Any) -> int:
    """The rows that a structure needs in a batch; those of one atom for what is no structure."""
    return max(rows_of_sizes([len(atoms)]), BLOCK) if isinstance(atoms, Atoms) else BLOCK


class Feed:
    """Structures on their way into batches, of which so many are in memory at a time."""

    def __init__(
        self,
        run: RunSettings,
        items: Iterable[Item | Fault] = (),
        most: int = 0,
        size_of: Callable[[Any], int] = rows_of,
        fewest: int = 0,
    ):
        """Structures that are read when there is room for them.

        Args:
            most: no further structure is read once the sizes of those in memory reach this,
            size_of: the size of a structure,
            fewest: and once so many are in memory.
        """
        self._run, self._items, self._most, self._size_of = run, iter(items), most, size_of
        self._fewest = fewest
        self._held: dict[int, int] = {}
        """The sizes of structures in memory, by number."""
        self._has_warned = False
        self.waiting: list[Structure] = []
        """Structures that await a group."""

    def read(self) -> Outcomes:
        """Read while there is room; returns structures that cannot be relaxed, in order."""
        taken: list[Item | Fault] = []
        size = sum(self._held.values())
        while size < self._most or len(self._held) < self._fewest:
            if (item := next(self._items, None)) is None:
                break
            self._held[item.number] = self._size_of(item.atoms)
            size += self._held[item.number]
            taken.append(item)
        return {fault.number: fault for fault in self._take_in(taken)}

    def _take_in(self, items: list[Item | Fault]) -> list[Fault]:
        """Let structures wait for a group; return the faults of those that cannot be relaxed."""
        if not items:
            return []
        try:
            structures = _checked(self._run, items)
        except Exception as error:  # those of models and libraries may be of any class
            if len(items) == 1:
                (item,) = items
                is_known = isinstance(item, Fault)
                return [item if is_known else Fault(item.number, item.atoms, error)]
        else:
            atoms = [structure.atoms for structure in structures]
            self._has_warned = self._has_warned or warn_of_unused(atoms, self._run.potential)
            self.waiting += structures
            return []
        # Behind the handler, since errors in it would have this one as their context.
        half = len(items) // 2
        return self._take_in(items[:half]) + self._take_in(items[half:])

    def release(self, outcomes: Outcomes) -> None:
        """Make room: these outcomes have been handed over."""
        for number in outcomes if self._held else ():
            self._held.pop(number, None)

    def take(self) -> list[Structure]:
        """The structures that await a group."""
        taken, self.waiting = self.waiting, []
        return taken


def _checked(run: RunSettings, items: list[Item | Fault]) -> list[Structure]:
    """The structures; raises for one that cannot be relaxed."""
    for item in items:
        if isinstance(item, Fault):
            raise item.error
    each = [item for item in items if isinstance(item, Item)]
    atoms, cells = [item.atoms for item in each], [item.cell for item in each]
    structures = intake(atoms, cells, is_hosted=run.evaluator is not None)
    check_occupancies(atoms)
    run.check(structures)
    return [
        dataclasses.replace(structure, number=item.number, own=item.own)
        for structure, item in zip(structures, each, strict=True)
    ]


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
            yield from _on_host(run, groups, structures, feed)
        else:
            batches = [run.batches(group) for group in groups]
            with contextlib.closing(in_threads(batches, monitor, run.lanes, wanted)) as ends:
                for ended in ends:
                    yield ended
                    yield from _renewed(run, groups, feed, ended)
        is_over = monitor.is_stopped()


def _on_host(
    run: RunSettings, groups: list[Group], structures: list[Structure], feed: Feed
) -> Generator[Outcomes]:
    """Relax groups by a session of the evaluator, in the thread of the caller."""
    assert run.evaluator is not None
    atoms = [structure.atoms for structure in structures]
    numbers = {structure.number: k for k, structure in enumerate(structures)}
    with contextlib.closing(run.evaluator.open(atoms, run.needs_stress(structures))) as session:

        def take(structure: Structure) -> None:
            numbers[structure.number] = session.add(structure.atoms)

        for group in groups:
            batches = BatchGroup(group, lambda slots, _: HostBackend(slots, session, numbers))
            for ended in filter(None, batches.drain()):
                yield ended
                for number in ended:
                    session.forget(numbers.pop(number))
                if session.takes_more:
                    yield from _renewed(run, [group], feed, ended, take)
                else:
                    feed.release(ended)


def _renewed(
    run: RunSettings,
    groups: list[Group],
    feed: Feed,
    ended: Outcomes,
    take: Callable[[Structure], None] = lambda structure: None,
) -> Generator[Outcomes]:
    """Read on in place of structures that have ended; yields those that cannot be relaxed."""
    feed.release(ended)
    if groups[0].monitor.is_stopped():
        return
    if faults := feed.read():
        yield faults
        feed.release(faults)
    _join(run, groups, feed, take)


def _join(
    run: RunSettings, groups: list[Group], feed: Feed, take: Callable[[Structure], None]
) -> None:
    """Let waiting structures join groups with room for them.

    Args:
        take: makes a structure known to what evaluates it.
    """
    waiting = feed.take()
    if not waiting:
        return
    for structure, n_neighbors in zip(waiting, run.neighbors(waiting), strict=True):
        group = next((g for g in groups if g.suits(structure, n_neighbors)), None)
        if group is None:
            feed.waiting.append(structure)
            continue
        take(structure)
        group.monitor.n_structures += 1
        group.queue.add(structure)
