"""The structures of a run, and their way through the relaxation."""

import abc
import dataclasses
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ase import Atoms

from basinax.atoms import Trajectories
from basinax.cli.console import fail, print_warning, reported, with_sources
from basinax.cli.contents import Found, Plan, found_structures, plans_of
from basinax.cli.inputs import InputItem, count, items_of
from basinax.cli.options import Outputs, RelaxOptions, StoreOptions
from basinax.cli.outputs import Writing
from basinax.cli.record import described
from basinax.cli.setup import Setup, Work, fix, nothing_held, read_works, symmetrize
from basinax.cli.values import Shard
from basinax.config.tables import Table
from basinax.engine.relax_stream import refused
from basinax.numerics.settings import one_line
from basinax.results.history import AnyRecorder, Log, Together
from basinax.results.record import Relaxed
from basinax.results.trajectory import Recorder
from basinax.runs.on_ray import WINDOW
from basinax.runs.results import Brief
from basinax.runs.rows import not_kept
from basinax.structures.charges import unused_of, uses_of
from basinax.structures.formats.held import losses
from basinax.structures.read import Fault, Item as Input

Ended = list[tuple[int, Relaxed]]
"""Outcomes, with the numbers of the structures."""

Done = Mapping[int, str]
"""The numbers of works that have ended, and their names."""


class AbstractWorks(abc.ABC):
    """What a run works on, structures or paths, in the order of the input."""

    _warned: set[str]
    is_sole: bool
    """Whether the run has no folder of its own."""
    shard: Shard
    n_items: int | None
    """The number of works in the input; None until all have been read."""
    paths: list[Path]
    """The file of each work that has been read."""
    sources: list[str]
    """The name of each work that has been read."""
    inputs: list[Table] | None
    skipped: list[str]

    @property
    def n_structures(self) -> int | None:
        """The number of works in this part of the input."""
        return None if self.n_items is None else sum(map(self.shard.has, range(self.n_items)))

    @property
    @abc.abstractmethod
    def at_once(self) -> int | None:
        """The number of works in memory; None for as many as keep all threads busy."""

    @abc.abstractmethod
    def plans(self, writing: Writing) -> list[Plan]:
        """How structures are written; empty if they have not been read."""

    @abc.abstractmethod
    def left(self, done: Done, should_stop: Callable[[], bool]) -> Iterator[Work]:
        """The works that remain to be done; exits if a number was that of another one."""

    @abc.abstractmethod
    def recorder(self, to: Trajectories, n_structures: int) -> Any:
        """What writes trajectories, in the way of `Recorder`."""

    @abc.abstractmethod
    def images(self, work: Work) -> list[Atoms]:
        """The structure, or the images of a path; none of what cannot be read."""

    def is_left(self, number: int, source: str, done: Done) -> bool:
        """Whether a work is of this part and remains; exits if its number was that of another."""
        before = done.get(number)
        if before is not None and _last_names(before) != _last_names(source):
            fail(
                f"structure {number} was {before} and is {source} now: give the files of the run in"
                " their order, new ones last, or begin another run"
            )
        return self.shard.has(number) and number not in done

    def warn_of(self, texts: Iterable[str], source: str) -> None:
        """Print each warning once, with the first structure that it is about."""
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                print_warning(f"{text} (first of {source})")

    def check(self, briefs: list[Brief], name: str) -> None:
        """Exit if the database of this name holds a work that the input lacks."""
        n = self.n_items
        strange = [b.number for b in briefs if n is not None and b.number >= n]
        strange += [b.number for b in briefs if not self.shard.has(b.number)]
        if strange and n is not None:
            which = f"part {self.shard} of the {n} structures of the input"
            fail(f"{name} holds structure {min(strange)}, which is not in {which}")


def _last_names(source: str) -> list[str]:
    """The names of a work's files without their folders; the first image may be the only one."""
    return [Path(name).name.removesuffix("@0") for name in source.split(" and ")]


class Works(AbstractWorks):
    """The structures of a relaxation.

    A run without a folder of its own reads all of them first, and ends with an error if one is
    unusable. Another one reads each when needed, and records the unusable.
    """

    def __init__(self, given: RelaxOptions, setup: Setup, keeping: StoreOptions, *, is_sole: bool):
        self.setup, self.is_sole, self._given = setup, is_sole, given
        self.shard, self._is_strict = keeping.shard, keeping.strict
        self._warned = set[str]()
        self.paths, self.sources, self.inputs, self.skipped = [], [], None, []
        self._all: list[Work] = []
        self._are_held = set[bool]()
        """Whether --fix-atoms holds of atoms of the structures that have been read."""
        if is_sole:
            inputs, self._all = read_works(given, setup)
            self.paths, self.skipped, self.inputs = inputs.paths, inputs.skipped, described(inputs)
            self.sources = [work.source for work in self._all]
            if keeping.ray is not None:  # whose workers have windows, and record the unusable
                setup.check([work for work in self._all if self.shard.has(work.number)])
        self.n_items = len(self._all) if is_sole else count(given.files)

    def plans(self, writing: Writing) -> list[Plan]:
        works = [work for work in self._all if self.shard.has(work.number)]
        files = writing.files_of([self.paths[work.number] for work in works])
        atoms, sources = [work.atoms for work in works], [work.source for work in works]
        moving = [w.own["cell"] is not None and bool(w.atoms.pbc.any()) for w in works]
        return plans_of(files, atoms, sources, moving)

    @property
    def at_once(self) -> int | None:
        return max(len(self._all), 1) if self.is_sole else None

    def left(self, done: Done, should_stop: Callable[[], bool]) -> Iterator[Work]:
        if self.is_sole:
            yield from (w for w in self._all if self.is_left(w.number, w.source, done))
            return
        number = -1
        for number, item in enumerate(items_of(self._given.files)):
            if should_stop():
                return
            self.paths.append(item.path)
            self.sources.append(item.source)
            if self.is_left(number, item.source, done):
                work = self._read(number, item)
                if self._is_strict and work.fault is not None:
                    fail(f"{item.source} cannot be read: {one_line(work.fault)}")
                yield work
        choice = self._given.fix_atoms
        if choice and self._are_held == {False} and not done and self.shard.of == 1:
            fail(nothing_held(choice))
        self.n_items = number + 1

    def recorder(self, to: Trajectories, n_structures: int) -> Recorder:
        return Recorder(to, n_structures=n_structures)

    def images(self, work: Work) -> list[Atoms]:
        return [work.atoms]

    def _read(self, number: int, item: InputItem) -> Work:
        atoms = Atoms()
        try:
            atoms = item.read()
            return Work(number, item.source, atoms, self._prepared(atoms, item))
        except Exception as error:  # whatever fails is the structure's own fault
            return Work(number, item.source, atoms, {}, error)

    def _prepared(self, atoms: Atoms, item: InputItem) -> dict[str, Any]:
        """Add the constraints that are asked for; what `Work` has as its own."""
        own = self.setup.own_of(atoms, item.source)
        if self._given.fix_atoms is not None:
            self._are_held.add(fix(atoms, item.source, self._given.fix_atoms) > 0)
        if self._given.symmetrize and not symmetrize(atoms, item.source):
            text = "--symmetrize leaves what is not periodic in three directions as it is"
            self.warn_of([text], item.source)
        potential = self.setup.settings["potential"]
        unused, kind = unused_of(atoms, uses_of(potential)), type(potential).__name__
        self.warn_of((f"the potential {kind} does not use {name}" for name in unused), item.source)
        self.warn_of((f"the folder does not keep {x}" for x in not_kept(atoms)), item.source)
        return own


class Recorders:
    """The log and the trajectories of a run, which go on with it."""

    def __init__(self, outputs: Outputs, works: AbstractWorks, *, is_begun: bool):
        self._works, self._trajectories = works, trajectories_of(outputs)
        self.has_work = False
        """Whether a structure was to be relaxed."""
        self._all: list[Any] = []
        if self._trajectories is not None:
            self._all.append(works.recorder(self._trajectories, works.n_items or 1))
        if outputs.log is not None:
            self._all.append(Log.to(outputs.log, "a" if is_begun else "w"))

    def expecting(self, works: Iterable[Work]) -> Iterator[Work]:
        """These structures, each made known before it is relaxed; warns of losses."""
        for work in works:
            self.has_work = True
            if self._trajectories is not None:
                images = self._works.images(work)
                lost = losses(self._trajectories.format, images, [False] * len(images))
                self._works.warn_of((f"trajectories do not keep {x}" for x in lost), work.source)
                self._all[0].expect(work.number, *images, source=work.source)
            yield work

    @property
    def used(self) -> AnyRecorder | None:
        return Together(self._all) if self._all else None

    def flush(self) -> None:
        """Wait until the trajectories of structures that have ended are whole."""
        if self._trajectories is not None:
            self._all[0].flush()

    def close(self) -> None:
        for recorder in self._all:
            recorder.close()


def trajectories_of(outputs: Outputs) -> Trajectories | None:
    """The trajectories that are asked for."""
    if outputs.trajectory is None:
        return None
    form = outputs.trajectory_format.value
    return Trajectories(outputs.trajectory, outputs.trajectory_interval, form)


def relax_works(
    setup: Setup, works: Iterable[Work], *, is_strict: bool = False, **how: Any
) -> Generator[Ended]:
    """The outcomes of structures as they end; those that cannot be relaxed end with the reason.

    Args:
        is_strict: exit with an error at a structure that cannot be relaxed.
        how: further arguments of `relax_items`.
    """
    sources: dict[int, str] = {}

    def items() -> Iterator[Input | Fault]:
        for work in works:
            sources[work.number] = work.source
            if work.fault is None:
                yield setup.item_of(work)
            else:
                yield Fault(work.number, work.atoms, work.fault)

    def entry_of(end: Relaxed | Fault, source: str) -> Relaxed:
        if not isinstance(end, Fault):
            return dataclasses.replace(end, source=source)
        if is_strict:
            with reported([source]):
                raise end.error
        reason = re.sub(r"^system 0 \(.*?\):? ", "", one_line(end.error))
        return refused(end.atoms, source, with_sources(reason, [source]))

    for ended in setup.relax_items(items(), **how):
        yield [(number, entry_of(end, sources.pop(number))) for number, end in ended]


def relax_window(
    relax: Callable[..., Generator[Ended]], setup: Any, works: list[Work], **how: Any
) -> Ended:
    """All outcomes of some works, for a worker of a cluster."""
    return list(itertools.chain.from_iterable(relax(setup, works, **how)))


class Job(NamedTuple):
    """What sets a command that keeps its results in a folder apart from the others."""

    command: str
    title: str
    """The word before the names of files in the title of a report."""
    noun: str
    """What it works on, in the plural."""
    setup: Callable[[Any], Any]
    """A function from the options to the setup."""
    works: Callable[..., AbstractWorks]
    """A class with the arguments of `Works`."""
    relax: Callable[..., Generator[Ended]]
    """A function with the arguments of `relax_works`."""
    found: Callable[..., Found]
    """A function of the first two arguments of `found_structures`."""
    window: int = WINDOW
    """How many of them a worker of a cluster takes at a time."""


RELAXATION = Job(
    "relax", "Relaxation", "structures", Setup.read, Works, relax_works, found_structures
)
