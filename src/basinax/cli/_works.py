"""The structures of a run that is stored in a folder, each read when needed."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ase import Atoms

from basinax._settings import said
from basinax.atoms._charges import unused_of, uses_of
from basinax.atoms._intake import Fault, Item as Input
from basinax.atoms._record import Relaxed
from basinax.atoms._relax_stream import refused
from basinax.atoms._runs.rows import not_kept
from basinax.cli._console import fail, print_warning, with_sources
from basinax.cli._constrained import constrain_one
from basinax.cli._lazily import Item, items_of
from basinax.cli._options import Given
from basinax.cli._setup import Setup


class Work(NamedTuple):
    """A structure to relax."""

    number: int
    """The place of the structure in the input."""
    source: str
    """The file and image of the structure."""
    atoms: Atoms
    own: dict[str, Any]
    """Cell, fmax and max_steps of the structure."""
    fault: Exception | None = None
    """The reason why the structure cannot be read."""


class Works:
    """The structures that remain to be relaxed, in the order of the input."""

    def __init__(
        self,
        given: Given,
        setup: Setup,
        is_left: Callable[[int], bool],
        should_stop: Callable[[], bool],
        *,
        is_strict: bool,
    ):
        """The structures of these options.

        Args:
            is_left: whether the structure of a number still has to be relaxed.
            is_strict: exit with an error at an unreadable structure.
        """
        self._given, self._setup, self._is_left = given, setup, is_left
        self._should_stop, self._is_strict = should_stop, is_strict
        self._warned: set[str] = set()
        self.n_items: int | None = None
        """The number of items in the input; known once all have been read."""

    def __iter__(self) -> Iterator[Work]:
        number = -1
        for number, item in enumerate(items_of(self._given.files)):
            if self._should_stop():
                return
            if self._is_left(number):
                try:
                    yield self._read(number, item)
                except Exception as error:  # whatever fails is the structure's own fault
                    if self._is_strict:
                        fail(f"{item.source} cannot be read: {said(error)}")
                    yield Work(number, item.source, Atoms(), {}, error)
        self.n_items = number + 1

    def _read(self, number: int, item: Item) -> Work:
        atoms = item.read()
        own = self._setup.own_of(atoms, item.source)
        constrain_one(atoms, item.source, self._given)
        potential, of = self._setup.settings["potential"], f"(of {item.source} and others)"
        unused, kind = unused_of(atoms, uses_of(potential)), type(potential).__name__
        self._warn((f"the potential {kind} does not use {name}" for name in unused), of)
        self._warn((f"the folder does not keep {name}" for name in not_kept(atoms)), of)
        return Work(number, item.source, atoms, own)

    def _warn(self, texts: Iterable[str], of: str) -> None:
        """Print each warning once, with the structure that it is about."""
        for text in texts:
            if text not in self._warned:
                self._warned.add(text)
                print_warning(f"{text} {of}")


def relax_works(
    setup: Setup, works: Iterable[Work], **how: Any
) -> Iterator[list[tuple[int, Relaxed]]]:
    """The outcomes of structures as they end; those that cannot be relaxed end with the reason.

    Args:
        how: further arguments of `relax_items`.
    """
    sources: dict[int, str] = {}

    def items() -> Iterator[Input | Fault]:
        for work in works:
            sources[work.number] = work.source
            if work.fault is None:
                yield setup.item_of(work.number, work.atoms, work.own)
            else:
                yield Fault(work.number, work.atoms, work.fault)

    def entry_of(end: Relaxed | Fault, source: str) -> Relaxed:
        if isinstance(end, Fault):
            return refused(end.atoms, source, with_sources(said(end.error), [source]))
        return dataclasses.replace(end, source=source)

    for ended in setup.relax_items(items(), **how):
        yield [(number, entry_of(end, sources.pop(number))) for number, end in ended]


def relax_window(setup: Setup, works: list[Work], **how: Any) -> list[tuple[int, Relaxed]]:
    """All outcomes of some structures, for a worker of a cluster."""
    return list(itertools.chain.from_iterable(relax_works(setup, works, **how)))
