"""Claims: the structures of the input that this process still has to relax."""

import time
from collections.abc import Callable, Iterable

from basinax._loop.status import Status
from basinax.atoms._runs.results import Brief, Results
from basinax.atoms._runs.stores import ServerDatabase

LOOK = 2.0
"""Seconds between two checks for structures that other processes left."""


class Alone:
    """A single process, which relaxes all structures that are not done."""

    def __init__(self, done: Iterable[Brief]):
        self._done = {brief.number for brief in done}

    def has(self, number: int) -> bool:
        """Whether this process must relax the structure, which is not done."""
        return number not in self._done

    def add(self, numbers: Iterable[int]) -> None:
        """Mark structures as done."""
        self._done.update(numbers)

    def wait(self, should_stop: Callable[[], bool]) -> bool:
        """Wait at the end of the input while others work; return whether they left structures."""
        del should_stop
        return False


class Shared:
    """One of several processes, each of which claims one block of the input after another.

    A claim is a lock of the server, so a claim ends when its process ends, for any reason. Other
    processes then relax the rest of the block.
    """

    def __init__(
        self,
        store: ServerDatabase,
        results: Results,
        done: list[Brief],
        size: int,
        on_others: Callable[[Iterable[Status]], None],
    ):
        """Args:
        size: the number of structures of a block. on_others: called with the statuses of structures
        that other processes have finished since.
        """
        self._store, self._results, self._size, self._on_others = store, results, size, on_others
        self._done = {brief.number for brief in done}
        self._last = max((brief.row for brief in done), default=0)
        self._own = set[int]()
        self._left = dict[int, set[int]]()
        """The unfinished structures of blocks that others claimed."""

    def has(self, number: int) -> bool:
        if number in self._done:
            return False
        block = number // self._size
        if block not in self._own and block not in self._left and not self._claim(block):
            self._left[block] = set()
        if block in self._own:
            return number not in self._done
        self._left[block].add(number)
        return False

    def add(self, numbers: Iterable[int]) -> None:
        self._done.update(numbers)

    def wait(self, should_stop: Callable[[], bool]) -> bool:
        while not should_stop():
            self._look()
            left = {block: numbers - self._done for block, numbers in self._left.items()}
            self._left = {block: numbers for block, numbers in left.items() if numbers}
            if not self._left:
                return False
            if any([self._claim(block) for block in self._left]):
                self._left = {}
                return True
            time.sleep(LOOK)
        return False

    def _claim(self, block: int) -> bool:
        if not self._store.claimed(block):
            return False
        self._own.add(block)
        self._look()  # the previous owner may have finished some structures
        return True

    def _look(self) -> None:
        """Read the results of other processes."""
        found = self._results.briefs(self._last)
        self._last = max((brief.row for brief in found), default=self._last)
        others = [brief for brief in found if brief.number not in self._done]
        self._done.update(brief.number for brief in others)
        self._on_others(brief.status for brief in others)


Claims = Alone | Shared
"""The distribution of structures among processes."""
