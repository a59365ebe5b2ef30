"""Files that appear at their place only when complete, and only where a plain file may stand.

If a name is a link, its target is written and the link stays.
"""

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from basinax.config.reading import kind_of

PARTIAL = ".partial-"
"""The first characters of names of incomplete files."""

LONGEST_ENDING = 32
"""Bytes of a name's ending that a partial file keeps, because formats depend on it."""

Anywhere = str | os.PathLike[str]


def check_plain(path: Anywhere) -> None:
    """Raise OSError, with the path, if the path leads to anything but a plain file."""
    found = _found(path)
    if found is None or stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{path} is a folder: expected a file to write")
    kind = kind_of(found.st_mode)
    raise FileExistsError(f"{path} is {kind}: expected a plain file, or a new one")


def check_sole(path: Anywhere) -> None:
    """Raise OSError, with the path, if writing there would change a file of another name."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        text = f"{path} is a link to {os.readlink(path)}: expected the file itself"
        raise FileExistsError(text)
    check_plain(path)
    if found.st_nlink > 1:
        text = f"{path} is a hard link, and its file has another name: expected a copy of the file"
        raise FileExistsError(text)


def check_creatable(path: Anywhere) -> None:
    """Raise OSError, with the path, unless a plain file can be put there, in folders that may have
    to be made."""
    check_plain(path)
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise PermissionError(f"{path} is write-protected: choose another output")
    folder = resolved(path).parent
    with _named(path):
        if not os.path.lexists(path):
            folder = next(x for x in (folder, *folder.parents) if os.path.lexists(x))
        check_folder_writable(folder)


def check_folder_writable(folder: Anywhere) -> None:
    """Raise OSError unless a file can be made in the folder."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=PARTIAL):
        pass


def resolved(path: Anywhere) -> Path:
    """The path behind links; the file need not exist yet."""
    return Path(os.path.realpath(path))


def key_of(path: Anywhere) -> tuple[object, ...]:
    """A key that is equal for all names of one file, hard links included, existing or not."""
    target = resolved(path)
    for known, rest in ((target, ()), (target.parent, (target.name,))):
        with suppress(OSError):
            found = os.stat(known)
            return found.st_dev, found.st_ino, *rest
    return (target,)


def name_of(path: Anywhere) -> str:
    """The name as text, with escapes for bytes that are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def stamp_of(path: Anywhere) -> tuple[int, ...] | None:
    """A key that changes when the file is replaced or written; None without a file."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    return None


@contextmanager
def replacing(path: Anywhere) -> Iterator[Path]:
    """A context with a name for a new file, which replaces a plain file when complete.

    No other process uses the name. On an error the old file stays, and the new one is removed.

    Raises:
        OSError: no file can be put there.
    """
    target = resolved(path)
    partial = target.with_name(f"{PARTIAL}{secrets.token_hex(8)}{ending_of(target)}")
    try:
        yield partial
        check_plain(path)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except BaseException as error:
        _remove_all(partial)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(partial)):
            error.filename = os.fspath(path)
            del error.filename2  # None would be shown
        raise


def ending_of(path: Path) -> str:
    """The ending that determines format and compression, if it is short."""
    ending = "".join(path.suffixes[-2:])
    if len(os.fsencode(ending)) > LONGEST_ENDING:
        ending = path.suffix if len(os.fsencode(path.suffix)) <= LONGEST_ENDING else ""
    return ending


def write_whole(file: FileIO, data: bytes) -> None:
    """Write all data: an unbuffered file may take only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _remove_all(partial: Path) -> None:
    """Remove the file and files beside it, such as writers' locks, as far as possible."""
    with suppress(OSError):
        for name in os.listdir(partial.parent):
            if name.startswith(partial.name):
                beside = partial.with_name(name)
                shutil.rmtree(beside, ignore_errors=True)
                with suppress(OSError):
                    beside.unlink(missing_ok=True)


def _found(path: Anywhere) -> os.stat_result | None:
    with _named(path), suppress(FileNotFoundError):
        return os.stat(path)
    return None


@contextmanager
def _named(path: Anywhere) -> Iterator[None]:
    """A context in which errors of the system name the given path."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{path} cannot be written: {error.strerror or error}") from error
