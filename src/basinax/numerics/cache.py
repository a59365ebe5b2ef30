"""Compiled programs in the user's cache folder, from which later processes load them.

An entry has the name `KEY.DIGEST`: what decides the program (`programs`), and the digest of its
content. It appears whole, by a renaming, so that processes may share the folder.
"""

import functools
import hashlib
import logging
import os
import platform
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from basinax.numerics.processor import described
from basinax.numerics.settings import warn

VARIABLE = "BASINAX_CACHE"
OFF = ("", "0", "off")
"""Values of the variable that switch the cache off."""

MAX_SIZE = 1 << 28
"""The size in bytes: some hundred programs."""

_ENTRY = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{32})")
_log = logging.getLogger("basinax")


class Cache(NamedTuple):
    """A folder of compiled programs of one kind of processor."""

    folder: Path
    max_size: int

    def load(self, key: str) -> bytes | None:
        """The content of the newest entry with a key that is whole; others are removed."""
        for path in reversed(_entries(self.folder, f"{key}.*")):
            with suppress(OSError):
                content = path.read_bytes()
                if _digest(content) == path.name.rpartition(".")[2]:
                    os.utime(path)  # the entries that are used last stay longest
                    return content
                path.unlink()
        return None

    def keep(self, key: str, content: bytes) -> None:
        """Write an entry, and remove the oldest ones beyond the size of the folder."""
        with suppress(OSError):
            written, name = tempfile.mkstemp(dir=self.folder, prefix=_PART)
            try:
                with os.fdopen(written, "wb") as file:
                    file.write(content)
                os.replace(name, self.folder / f"{key}.{_digest(content)}")
            except BaseException:
                os.unlink(name)
                raise
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        entries = _entries(self.folder)
        excess = sum(path.stat().st_size for path in entries) - self.max_size
        for path in entries:
            if excess <= 0:
                return
            excess -= path.stat().st_size
            path.unlink(missing_ok=True)


_PART = ".part-"
"""The names of entries that are being written begin with this."""

_chosen: list[Cache | None] = []
"""The cache of `enable_cache`, if that was called."""


def cache() -> Cache | None:
    """The cache of this process: that of `enable_cache`, or the user's; None if it is off."""
    return _chosen[-1] if _chosen else _of_user()


def enable_cache(
    folder: str | os.PathLike[str] | None = None, max_size: int = MAX_SIZE
) -> Path | None:
    """Choose the folder of compiled programs, from which later processes load them.

    Without a call it is the folder of the environment variable `BASINAX_CACHE`, or the user's cache
    folder; the value `off` switches the cache off. Bits do not depend on the cache. Several
    processes may share a folder; damaged entries and files of other programs are ignored. Each kind
    of processor has a folder of its own. Loaded programs are executed, so a folder that other users
    own or may write to is not used. Where JAX is given a folder (`jax_compilation_cache_dir`), that
    folder alone is used.

    Args:
        folder: if None, the folder that is used without a call.
        max_size: in bytes; beyond, the programs that were not used for longest are removed.

    Returns:
        The folder, or None if the cache is off, or the folder cannot be written or, with a warning,
        not be trusted.

    Raises:
        ImportError: `folder` is None, and platformdirs is not installed.
    """
    folder = _default_folder() if folder is None else Path(folder).expanduser()
    _chosen[:] = [None]
    if folder is None:
        _log.info("cache: off, by %s", VARIABLE)
        return None
    try:
        _chosen[:] = [_opened(folder, max_size)]
    except PermissionError as error:
        warn(str(error))
        return None
    return folder if _chosen[-1] is not None else None


@functools.cache
def _of_user() -> Cache | None:
    with suppress(ImportError):
        folder = _default_folder()
        try:
            return None if folder is None else _opened(folder, MAX_SIZE)
        except PermissionError as error:
            _log.info("cache: none, as %s", error)
    return None


def _opened(folder: Path, max_size: int) -> Cache | None:
    """The cache in a folder, which is made; None where it cannot be written.

    Raises:
        PermissionError: others could put programs into the folder.
    """
    programs = folder.absolute() / _processor()
    try:
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        programs = programs.resolve()
        fault = _fault_of(programs) if os.name == "posix" else None
        with tempfile.TemporaryFile(dir=programs):
            pass
    except OSError as error:
        _log.info("cache: none, as %s cannot be written: %s", folder, error.strerror or error)
        return None
    if fault is not None:
        raise PermissionError(
            f"compiled programs are not kept: {fault}; programs are code that is executed"
        )
    _log.info("cache: %s, which has %d programs", programs, len(_entries(programs)))
    return Cache(programs, max_size)


def _default_folder() -> Path | None:
    given = os.environ.get(VARIABLE)
    if given is not None:
        return None if given.strip().lower() in OFF else Path(given).expanduser()
    try:
        import platformdirs
    except ImportError as error:
        raise ImportError(
            "the user's cache folder is found by platformdirs: name a folder, or run"
            ' pip install "basinax[atoms]"'
        ) from error
    return platformdirs.user_cache_path("basinax")


def _processor() -> str:
    """A name for processors of one kind: programs of another may not run, or have other bits."""
    kinds = ("model name", "flags", "Features", "CPU part")
    lines = [f"{name}: {described()[name]}" for name in kinds if name in described()]
    text = "\n".join(lines) or platform.processor()
    return f"{platform.machine()}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _fault_of(programs: Path) -> str | None:
    """How others could put programs into a folder; None if they could not."""
    for place in (programs, *programs.parents):
        found = place.stat()
        if found.st_uid not in _trusted():
            return f"{place} belongs to another user"
        # Those above the named folder may be as /tmp, where nobody can replace what others own.
        is_passage = place not in (programs, programs.parent) and found.st_mode & stat.S_ISVTX
        if _is_of_others(found) and not is_passage:
            return f"other users may write to {place}"
    return None


def _is_of_others(found: os.stat_result) -> bool:
    """Whether another user owns a file or folder, or may write to it."""
    if os.name != "posix":
        return False
    if found.st_uid not in _trusted() or found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)


def _trusted() -> tuple[int, int]:
    return 0, os.getuid()


def _is_own_group(group: int) -> bool:
    """Whether a group has its user alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        known, user = grp.getgrgid(group), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return known.gr_name == user and set(known.gr_mem) <= {user}


def _entries(folder: Path, pattern: str = "*") -> list[Path]:
    """The plain files with the name of an entry, the one used least recently first."""
    found = []
    for path in folder.glob(pattern):
        with suppress(OSError):
            status = path.lstat()
            is_plain = stat.S_ISREG(status.st_mode) and not _is_of_others(status)
            if _ENTRY.fullmatch(path.name) and is_plain:
                found.append((status.st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
