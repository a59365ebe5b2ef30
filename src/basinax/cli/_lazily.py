"""Structures of files, each read when needed."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ase import Atoms
from ase.io.formats import UnknownFileTypeError

from basinax.atoms._formats.formats import form_to_read
from basinax.atoms._formats.frames import frames_of, structure_of
from basinax.atoms._formats.texts import binary
from basinax.cli._guard import Unreadable, check_file
from basinax.cli._inputs import (
    Watch,
    file_and_images,
    files_in,
    namer_of,
    names_of_images,
    read_structures,
    reason_of,
)

ONE_BY_ONE = ("traj", "db")
"""Formats that ASE reads one structure at a time."""


class Item(NamedTuple):
    """A structure that can be read."""

    source: str
    """The file and image of the structure."""
    read: Callable[[], Atoms]
    """Reads the structure; raises Unreadable if that fails."""


def items_of(paths: list[Path]) -> Iterator[Item]:
    """The structures of files in order.

    An unreadable file, and an unreadable structure in a file, is an item whose `read` fails. If
    such a structure hides the start of the next one, the file ends there.
    """
    for path in files_in(paths):
        readers = map(partial(_watched, Watch(path)), _readers_of(path))
        none = partial(_fail, "it holds no structure")
        first, second = next(readers, none), next(readers, None)
        if second is None:
            yield Item(names_of_images(path, 1)[0], first)
            continue
        name = namer_of(path)
        for number, reader in enumerate(itertools.chain((first, second), readers)):
            yield Item(name(number), reader)


def _watched(watch: Watch, read: Callable[[], Atoms]) -> Callable[[], Atoms]:
    return lambda: watch.seen(read())


def count(paths: list[Path]) -> int | None:
    """The number of items; None if only reading the structures would show it.

    A damaged file may have fewer.
    """
    counts = [_count(path) for path in files_in(paths)]
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(path: Path) -> int | None:
    try:
        file, selected = file_and_images(path)
        form = form_to_read(file.absolute())
        if form.name == "extxyz" and selected is None:
            return sum(1 for _ in _frames(file))
        n = form.n_read(file.absolute())
    except Exception:  # an unreadable file counts as one item
        return 1
    if isinstance(selected, slice) and n is not None:
        n = len(range(*selected.indices(n)))
    elif isinstance(selected, str):
        return None
    return 1 if isinstance(selected, int) or n == 0 else n


def _readers_of(path: Path) -> Iterator[Callable[[], Atoms]]:
    """Functions that read the structures of a file; at least one."""
    try:
        file, selected = file_and_images(path)
        form = form_to_read(file.absolute())
        if form.name == "extxyz" and selected is None:
            yield from _frames(file)
        elif form.name in ONE_BY_ONE:
            check_file(file)
            yield from _one_by_one(form.read(file.absolute(), selected))
        else:
            yield from (lambda atoms=atoms: atoms for atoms in read_structures(path))
    except UnknownFileTypeError:
        yield partial(_fail, "ASE does not know this kind of file")
    except Exception as error:  # every reader of ASE raises errors of its own
        yield partial(_fail, reason_of(error))


def _frames(file: Path) -> Iterator[Callable[[], Atoms]]:
    with binary(file) as text:
        try:
            for frame in frames_of(text):
                yield partial(_of_frame, frame)
        except ValueError as error:
            yield partial(_fail, f"{error}; nothing behind it is read")


def _of_frame(frame: bytes) -> Atoms:
    try:
        return structure_of(frame)
    except Exception as error:  # every reader of ASE raises errors of its own
        raise Unreadable(reason_of(error)) from error


def _one_by_one(images: Iterator[Atoms]) -> Iterator[Callable[[], Atoms]]:
    """The images that ASE finds, and its last error as an item."""
    while True:
        try:
            image = next(images)
        except StopIteration:
            return
        except Exception as error:  # every reader of ASE raises errors of its own
            yield partial(_fail, f"{reason_of(error)}; nothing behind it is read")
            return
        yield lambda image=image: image


def _fail(reason: str) -> Atoms:
    raise Unreadable(reason)
