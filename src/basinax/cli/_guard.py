"""Checks of files before ASE reads them, and limits of memory and time while it does.

ASE trusts the size that a file declares, opens pipes and devices, adds tables to foreign databases,
and has a reader that does not stop at the end of a file.
"""

import itertools
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from ase.io.bundletrajectory import BundleTrajectory
from ase.io.formats import get_compression, open_with_compression

from basinax._text.reading import found
from basinax.atoms._formats.texts import binary

MB = 1 << 20

LONGEST_LINE = 4 * MB
"""Bytes of a line of extended XYZ: ASE takes up to seven seconds for each MB of a comment."""

VALUES = 4
"""The fewest values of an atom in extended XYZ: its element and position."""

MOST_UNPACKED = 64 * MB
"""Bytes to which any compressed file may unpack, however small it is."""

PACKED = 200
"""The largest size in memory or unpacked, relative to the file: structures compress to a third, and
many copies of one structure to a hundredth."""

SLACK = 4096 * MB
"""Address space for a reader of any file; only part of it is used."""

PATIENCE = 20.0
"""Seconds for a reader of any file."""

SLOWEST = 5000.0
"""Bytes per second that every reader achieves."""


class Unreadable(Exception):
    """A file without readable structures; the text is the reason."""


def check_file(path: Path, images: Any) -> None:
    """Check that a file can be read without harm.

    Args:
        images: the structures to read: a number, a slice, or None for all.

    Raises:
        Unreadable: the file cannot be read safely.
        OSError: the file does not exist, or is no plain file.
    """
    if path.is_dir():
        if not BundleTrajectory.is_bundle(str(path)):
            raise Unreadable("it is a folder in which no file can be seen")
        return
    found(path)
    if not path.stat().st_size:
        raise Unreadable("the file is empty")
    name, packing = get_compression(path.name)
    if packing is not None:
        _check_packed(path, packing)
    suffix = Path(name).suffix.lower()
    if suffix in (".xyz", ".extxyz"):
        with binary(path) as file:
            for k, frame in enumerate(itertools.islice(frames_of(file), _last_of(images))):
                check_frame(frame, k)
    elif suffix == ".db":
        _check_database(path)


def _check_packed(path: Path, packing: str) -> None:
    size = path.stat().st_size
    most, held = max(MOST_UNPACKED, PACKED * size), 0
    try:
        with open_with_compression(str(path), "rb") as file:
            while held <= most and (part := file.read(MB)):
                held += len(part)
    except Exception as error:  # libraries of formats raise errors of their own
        raise Unreadable(f"it cannot be unpacked as {packing}: {error}") from error
    if held > most:
        raise Unreadable(
            f"its {size} bytes unpack to more than {most // MB} MB: unpack it first if you trust it"
        )
    if not held:
        raise Unreadable("the file is empty")


def _last_of(images: Any) -> int | None:
    """The first structure that no reader reaches; None if readers reach all."""
    last = images + 1 if isinstance(images, int) else getattr(images, "stop", None)
    return None if last is None or last < 1 else last


class Frame(NamedTuple):
    """The text of a structure in extended XYZ."""

    line: int
    """The number of its first line, from 1."""
    lines: list[bytes]
    """The count of atoms, a comment, the atoms, and the cell in an older program's format."""


def frames_of(file: IO[bytes]) -> Iterator[Frame]:
    """The structures of a file, one after another.

    Raises:
        Unreadable: a structure has no count, or fewer lines than its count.
    """
    number = 0

    def line() -> bytes:
        nonlocal number
        number += 1
        text = file.readline(LONGEST_LINE)
        if len(text) == LONGEST_LINE:
            raise Unreadable(f"line {number} is longer than {LONGEST_LINE // MB} MB")
        return text

    head, structure = line(), 0
    while head.strip():
        first = number
        count, lines = _count_of(head, number), [head, line()]
        for k in range(count):
            if not (text := line()):
                raise Unreadable(
                    f"the file ends after {k} of the {count} atoms of its structure {structure}"
                )
            lines.append(text)
        while (head := line()).lstrip().startswith(b"VEC"):
            lines.append(head)
        yield Frame(first, lines)
        structure += 1


def _count_of(head: bytes, number: int) -> int:
    try:
        count = int(head)
    except ValueError:
        text = head.decode(errors="replace").strip()
        raise Unreadable(f"line {number}: expected a number of atoms, got {text!r}") from None
    if count < 0:
        raise Unreadable(f"line {number}: a structure cannot have {count} atoms")
    return count


def check_frame(frame: Frame, structure: int) -> None:
    """Raise Unreadable if an atom has fewer values than the one before."""
    most, atoms = 0, frame.lines[2 : 2 + int(frame.lines[0])]
    for k, text in enumerate(atoms):
        n_values = len(text.split(None, VALUES))
        if n_values < min(most, VALUES):
            raise Unreadable(
                f"line {frame.line + 2 + k}: atom {k} of structure {structure} has {n_values}"
                " values, and those before have more"
            )
        most = max(most, n_values)


def _check_database(path: Path) -> None:
    where = f"{path.absolute().as_uri()}?mode=ro"
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'systems'"
    try:
        with closing(sqlite3.connect(where, uri=True)) as database:
            has_structures = database.execute(query).fetchone()
    except sqlite3.Error as error:
        raise Unreadable(f"it is no database of ASE: {error}") from error
    if not has_structures:
        raise Unreadable("it is no database of ASE: it has no table of systems")


@contextmanager
def limited(path: Path) -> Iterator[None]:
    """A context that ends a reader which needs more memory or time than its file can justify.

    Systems without such limits are not limited.

    Raises:
        MemoryError, Unreadable: the reader exceeds a limit.
    """
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files)
    with _limited_memory(SLACK + PACKED * size), _limited_time(PATIENCE + size / SLOWEST):
        yield


@contextmanager
def _limited_memory(more: int) -> Iterator[None]:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * os.sysconf("SC_PAGE_SIZE") + more
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Unreadable(f"ASE does not come to its end within {seconds:.3g} seconds")

    is_main = threading.current_thread() is threading.main_thread()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    if not is_main or 0 < left < seconds:  # only the main thread receives signals
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    # Repeat the alarm: a reader may catch the first.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)
