"""A folder for one calculator, in place of the caller's.

The path of a file in it is a root and the caller's path, so relative paths mean the same. Small
files of the caller's folder are copied, since a program that writes to a link would change the
caller's file. What is larger is a link if the calculator's options name it, and missing otherwise.
Processes load this file by its path; it imports nothing of basinax.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

PREFIX = "basinax-process-"
"""The beginning of the names of roots, which are never copied."""

MOST, BYTES = 256, 4_000_000
"""The largest number of copies in a folder, and their bytes together."""

FILLED = ".filled"
"""A file beside the copies, with their names; written after them."""


class Names:
    """Words of texts, such as the parts of paths."""

    def __init__(self, texts: Iterable[str]):
        self._text = "\n".join(texts)
        self._words = set(re.split(r"[^\w.+@-]+", self._text))

    def __contains__(self, name: str) -> bool:
        if name not in self._text:
            return False
        return name in self._words or not re.fullmatch(r"[\w.+@-]+", name)


def texts_of(thing: Any, depth: int = 6, seen: set[int] | None = None) -> Iterator[str]:
    """Texts and paths in a calculator's attributes, and in their attributes and entries."""
    seen = set() if seen is None else seen
    if isinstance(thing, str | os.PathLike):
        yield str(thing)
        return
    is_code = isinstance(thing, type | ModuleType | FunctionType)
    if depth and not is_code and id(thing) not in seen:
        seen.add(id(thing))
        for part in _parts_of(thing):
            yield from texts_of(part, depth - 1, seen)


def _parts_of(thing: Any) -> list[Any]:
    try:
        parts = thing if isinstance(thing, list | tuple | set | Mapping) else vars(thing)
        return [*parts, *parts.values()] if isinstance(parts, Mapping) else list(parts)
    except Exception:  # it has no attributes, or is no ordinary mapping
        return []


class Folder:
    """A folder that is filled from the caller's, and can be emptied of all else."""

    def __init__(self, root: str, caller: str, names: Names, written: Iterable[str] = ()):
        """Fill the folder.

        Args:
            root: the path before all paths; made if missing.
            caller: the caller's folder, an absolute path.
            names: the names of the caller's files that may be links.
            written: folders that the calculator writes to, which are never links.
        """
        self.root, self.path = root, root + caller
        self._names, self._left = names, [MOST, BYTES]
        folders = [os.path.normpath(os.path.join(caller, path)) for path in (".", *written)]
        above = {path for folder in folders for path in _above(folder)}
        self._folders = above | set(folders)
        for path in self._folders:
            os.makedirs(root + path, exist_ok=True)
        for path in dict.fromkeys(reversed(folders)):
            self._show(path)
        if ".." in names:
            for path in sorted(above.difference(folders)):
                self._show(path, only_named=True)
        self._shared = {path: _mark_of_link(path) for path in self._linked()}
        self._before = self._entries()
        self._fill()

    def clean(self) -> None:
        """Remove what was written since the folder was filled, and restore what was changed."""
        before, now = self._before, self._entries()
        if now == before:
            return
        for path in sorted(now, reverse=True):  # entries come before their folder
            if now[path] != before.get(path):
                with contextlib.suppress(OSError):
                    (os.rmdir if now[path][0] == stat.S_IFDIR else os.unlink)(path)
        for path, (kind, *_) in sorted(before.items()):
            if now.get(path) != before[path]:
                with contextlib.suppress(OSError):
                    self._restore(path, kind)
        self._before = self._entries()
        self._fill()

    def check_shared(self) -> None:
        """Raise RuntimeError if a file behind a link is not what it was."""
        for path, mark in self._shared.items():
            if _mark_of_link(path) != mark:
                raise RuntimeError(
                    f"{path.removeprefix(self.root)} has changed, which is too large for a copy in"
                    " the folder of each process: if the calculator writes it, remove it or begin"
                    " in another folder"
                )

    def kept(self) -> str:
        """The path of a copy of the folder, with all that was written."""
        root = os.path.join(tempfile.mkdtemp(prefix="basinax-failed-"), "files")
        with contextlib.suppress(OSError):
            shutil.copytree(self.root, root, symlinks=True)
        return root + self.path.removeprefix(self.root)

    def has_written(self) -> bool:
        """Whether a file is new or changed since the folder was filled."""
        now = self._entries()
        kinds = {path: mark[0] for path, mark in now.items() if mark != self._before.get(path)}
        return stat.S_IFREG in kinds.values()

    def _linked(self) -> list[str]:
        return [path for path, found in _walk(self.root) if stat.S_ISLNK(found.st_mode)]

    def _fill(self) -> None:
        with open(os.path.join(self.root, FILLED), "w", encoding="utf-8") as file:
            json.dump(list(self._before), file)

    def _restore(self, path: str, kind: int) -> None:
        source = path.removeprefix(self.root)
        if kind == stat.S_IFDIR:
            os.makedirs(path, exist_ok=True)
        elif kind == stat.S_IFLNK:
            os.symlink(source, path)
        else:
            shutil.copy2(source, path)

    def _show(self, folder: str, *, only_named: bool = False) -> None:
        """Copy or link the entries of one of the caller's folders."""
        try:
            with os.scandir(folder) as found:
                entries = [(x.name not in self._names, x.is_dir(), x.name) for x in found]
        except OSError:  # there is none yet, or it is not readable
            return
        for is_unnamed, _, name in sorted(entries):
            if is_unnamed and (only_named or not self._left[0]):
                return
            path = os.path.join(folder, name)
            if path in self._folders or (is_unnamed and name.startswith((".", PREFIX))):
                continue
            size = _size(path, *self._left)
            with contextlib.suppress(OSError):  # another program has just removed it
                if size is not None:
                    self._left = [x - y for x, y in zip(self._left, size, strict=True)]
                    _copy(path, self.root + path)
                elif not is_unnamed:
                    os.symlink(path, self.root + path)

    def _entries(self) -> dict[str, tuple[int, ...]]:
        """A mark of each entry, which differs once the entry has been changed."""
        return {path: _mark(found) for path, found in _walk(self.root)}


def has_written(root: str) -> bool:
    """Whether a file is new or changed since a folder at this root was filled."""
    try:
        filled = os.path.join(root, FILLED)
        with open(filled, encoding="utf-8") as file:
            known = set(json.load(file))
        since = os.stat(filled).st_ctime_ns
    except (OSError, ValueError):
        return False
    return any(
        stat.S_ISREG(found.st_mode) and (path not in known or found.st_ctime_ns > since)
        for path, found in _walk(root)
    )


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """All entries under a root, without those behind links."""
    waiting = [root]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name != FILLED:
                    yield entry.path, entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)


def _mark(found: os.stat_result) -> tuple[int, ...]:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:  # changes with its entries, which have marks of their own
        return (kind,)
    return kind, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _mark_of_link(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The entries of a folder may be of anyone.
    return _mark(found)[:4]


def _above(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) != "/":
        yield path


def _size(path: str, most: int, most_bytes: int) -> tuple[int, int] | None:
    """The number of files and folders at a path, and their bytes; None if too many or not plain."""
    waiting, n, n_bytes = [path], 0, 0
    while waiting:
        try:
            one = waiting.pop()
            found = os.stat(one)
            if stat.S_ISDIR(found.st_mode):
                with os.scandir(one) as entries:
                    waiting += [
                        entry.path
                        for entry in itertools.islice(entries, most + 1)
                        if not entry.name.startswith(PREFIX)
                    ]
            elif not stat.S_ISREG(found.st_mode) or not os.access(one, os.R_OK):
                return None
            else:
                n_bytes += found.st_size
        except OSError:
            return None
        n += 1
        if n > most or n_bytes > most_bytes:
            return None
    return n, n_bytes


def _copy(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.mkdir(target)
        for name in os.listdir(source):
            if not name.startswith(PREFIX):
                _copy(os.path.join(source, name), os.path.join(target, name))
    else:
        shutil.copy2(source, target)
