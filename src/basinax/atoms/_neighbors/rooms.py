"""For how much there is room in neighbour tables: every size is a program of its own.

A table's own room follows from its needs alone. A program that has been compiled is worth more than
a table that is no larger than it must be, so the tables of a later group take the room of an
earlier one where they fit.
"""

import threading
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from basinax._bits.rounding import BLOCK
from basinax.atoms._batch import STEPS_PER_OCTAVE, padded_size

SMALL = 1024
"""In batches of up to so many rows a table costs little, so it has ample room: a cell that shrinks
or another composition needs no other program."""

AMPLE, HEADROOM = 1.5, 1.05
"""How many times its needs the room of a table is, where it is ample and where not."""

SPARE, SPARE_OF_LEAN = 8, 2
"""How many times a table's own room that of another may be, for it to be taken."""


class Room(NamedTuple):
    """For how many slots of a row, further images and shifts there is room."""

    slots: int
    images: int
    shifts: int


def room_of_images(n_images: int, n_rows: int) -> int:
    """For how many further images there is room where `n_images` need it, one at least.

    With the rows and the far one they fill a table of a power of two.
    """
    others = n_rows + BLOCK
    return padded_size(others + max(n_images, 1), steps=1) - others


def own_room(needs: Room, n_rows: int, *, is_lean: bool) -> Room:
    """The room of tables with these needs, for batches of so many rows.

    Args:
        is_lean: slots cost time or much memory, as they do in batches that are not small.
    """

    def room(n: int, is_lean: bool) -> tuple[int, int]:
        return int((HEADROOM if is_lean else AMPLE) * n), STEPS_PER_OCTAVE if is_lean else 1

    is_large = n_rows > SMALL
    slots, steps = room(needs.slots, is_lean or is_large)
    images, _ = room(needs.images, is_large)
    shifts, _ = room(needs.shifts, is_large)
    return Room(
        padded_size(slots, BLOCK, steps),
        room_of_images(images, n_rows),
        padded_size(shifts, BLOCK, 1),
    )


class Rooms:
    """The room of tables that have been made, by the programs that read them."""

    def __init__(self):
        self._lock = threading.Lock()  # tables of several threads must agree on one room
        self._taken: dict[Hashable, list[Room]] = {}

    def of(self, program: Hashable, needs: Room, n_rows: int, *, is_lean: bool) -> Room:
        """The first room that suits these needs, or their own, which is kept for others.

        No room is forgotten and none comes before another, so that equal needs have equal rooms.

        Args:
            program: everything else that a program depends on.
        """
        own = own_room(needs, n_rows, is_lean=is_lean)
        is_large = n_rows > SMALL
        spare = np.where([is_lean or is_large, is_large, is_large], SPARE_OF_LEAN, SPARE)
        # A table of images holds the rows as well.
        rows = np.array([0, n_rows + BLOCK, 0])

        def suits(room: Room) -> bool:
            has_room = np.array(room) >= np.minimum(HEADROOM * np.array(needs), own)
            return bool((has_room & (rows + room <= spare * (rows + own))).all())

        with self._lock:
            taken = self._taken.setdefault((program, n_rows, is_lean), [])
            fitting = [room for room in taken if suits(room)]
            if not fitting:
                taken.append(own)
            return (fitting or [own])[0]


def largest(needs: list[Room]) -> Room:
    """The needs of the tables together."""
    return Room(*np.max(np.array(needs), axis=0).tolist())
