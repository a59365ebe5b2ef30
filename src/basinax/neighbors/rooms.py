"""Room in neighbour tables: every size is a program of its own.

A table's own room depends on its needs alone. But reusing a compiled program gains more than a
smaller table, so tables of later groups take the room of earlier ones if it suits them.
"""

import threading
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from basinax.numerics.rounding import BLOCK
from basinax.structures.batch import STEPS_PER_OCTAVE, padded_size

SMALL = 1024
"""Batches of up to this many rows have ample room, since their tables cost little: a shrinking cell
or another composition then needs no other program."""

AMPLE, HEADROOM = 1.5, 1.05
"""The room of a table relative to its needs: ample, and otherwise."""

SPARE, SPARE_OF_LEAN = 8, 2
"""The largest accepted room of another table, relative to a table's own room."""


class Room(NamedTuple):
    """The numbers of slots per row, further images and shifts that fit."""

    slots: int
    images: int
    shifts: int


def room_of_images(n_images: int, n_rows: int) -> int:
    """The room for at least `n_images` further images.

    Together with the rows and the far image, they fill a table whose length is a power of two.
    """
    others = n_rows + BLOCK
    return padded_size(others + max(n_images, 1), steps=1) - others


def own_room(needs: Room, n_rows: int, *, is_lean: bool) -> Room:
    """The room of tables with these needs, for batches of `n_rows` rows.

    Args:
        is_lean: slots cost time or much memory, as in large batches.
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
    """The rooms of earlier tables, by the programs that read them."""

    def __init__(self):
        self._lock = threading.Lock()  # tables of several threads must agree on one room
        self._taken: dict[Hashable, list[Room]] = {}

    def of(self, program: Hashable, needs: Room, n_rows: int, *, is_lean: bool) -> Room:
        """The first earlier room that suits these needs, or a new room, which is kept for others.

        Rooms are never removed or reordered, so equal needs get equal rooms.

        Args:
            program: everything else on which a program depends.
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
    """The largest needs of several tables."""
    return Room(*np.max(np.array(needs), axis=0).tolist())
