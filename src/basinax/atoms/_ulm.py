"""ASE's binary format, some small items at a time.

Bytes are those of `ase.io.ulm.Writer`, which seeks, flushes and asks NumPy much at every item: it
takes three times as long.
"""

import functools
import struct
from collections.abc import Iterable
from io import FileIO

import numpy as np
from ase.io import ulm

from basinax._text.files import write_whole

COUNT = 32
"""Where a file says how many items it has and, behind that, where the table of their places is."""

TABLE = 48
"""Where that is in a new file, with room for one item."""


Item = Iterable[str | np.ndarray]
"""The text of an item in JSON, with arrays where the text refers to them."""


def content(tag: str, items: Iterable[Item]) -> bytes:
    """A new file, which says that it is a `tag`."""
    added = _Addition(TABLE + 8, TABLE, [])
    added.extend(items)
    head = b"- of Ulm" + f"{tag:16}".encode() + _integers(ulm.VERSION)
    return b"".join([head, added.count(), added.into_table(), added.data()])


def append(file: FileIO, items: Iterable[Item]) -> None:
    """Appends to a file. Raises OSError where it cannot be read or written."""
    *_, table, places = ulm.read_header(file)
    start, n_before = file.seek(0, 2), len(places)
    added = _Addition(start, table, places.tolist())
    added.extend(items)
    # What counts is written last.
    for place, data in (
        (start, added.data()),
        (table + 8 * n_before, added.into_table()),
        (COUNT, added.count()),
    ):
        file.seek(place)
        write_whole(file, data)


class _Addition:
    """The bytes to append to a file that ends there and has items in these places."""

    def __init__(self, end: int, table: int, places: list[int]):
        self._end, self._table, self._places = end, table, places
        self._room = 1
        while self._room < len(places):
            self._room *= ulm.N1
        self._old = slice(len(places), self._room)
        """Which places go into the table that the file has."""
        self._parts: list[bytes] = []
        self._moved: int | None = None
        """Which part is a larger table."""

    def extend(self, items: Iterable[Item]) -> None:
        for item in items:
            pieces = [x if isinstance(x, str) else self._reference(x) for x in item]
            text = "".join(pieces).encode()
            place = self._add(_integers(len(text)))
            self._add(text)
            if len(self._places) == self._room:
                self._move_table()
            self._places.append(place)

    def data(self) -> bytes:
        """What follows the end."""
        self._fill_table()
        return b"".join(self._parts)

    def into_table(self) -> bytes:
        """What follows in the table that the file has."""
        return _integers(*self._places[self._old])

    def count(self) -> bytes:
        return _integers(len(self._places), self._table)

    def _move_table(self) -> None:
        self._fill_table()
        self._room *= ulm.N1
        self._table, self._moved = self._align(), len(self._parts)
        self._add(bytes(8 * self._room))

    def _fill_table(self) -> None:
        if self._moved is not None:
            spare = [0] * (self._room - len(self._places))
            self._parts[self._moved] = _integers(*self._places, *spare)

    def _add(self, data: bytes) -> int:
        """Says where it is."""
        place = self._end
        self._parts.append(data)
        self._end += len(data)
        return place

    def _align(self) -> int:
        """Where the next array or table begins."""
        if self._end % 8:
            self._add(b"#" * (-self._end % 8))
        return self._end

    def _reference(self, array: np.ndarray) -> str:
        """Adds the array."""
        place = self._align()
        self._add(array.tobytes())
        return f'{{"ndarray": [{list(array.shape)}, "{_name(array.dtype)}", {place}]}}'


def _integers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


@functools.cache
def _name(dtype: np.dtype) -> str:
    """NumPy takes as long to say it as to copy the array."""
    return dtype.name
