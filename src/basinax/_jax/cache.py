"""Compiled programs in a folder, from which later processes load them.

JAX writes into its folder in place, keeps partial files of a killed process, and needs a lock to
bound the folder's size. So each process has a folder of its own, with links to the programs whose
digests are right; when the process ends, new programs are renamed into the shared folder.
"""

import atexit
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from basinax._jax.processor import described

VARIABLE = "BASINAX_CACHE"
OFF = ("", "0", "off")
"""Values of the variable that switch the cache off."""

MAX_SIZE = 1 << 28
"""The size in bytes: some thousand programs. Every process reads all of them in 0.25 s."""

ABANDONED = 7 * 86400.0
"""Seconds after which the folder of a killed process is removed."""

_OWN = "process-"
_PROGRAM = re.compile(r"(.+-cache)\.([0-9a-f]{32})")
_log = logging.getLogger("basinax")


def enable_cache(
    folder: str | os.PathLike[str] | None = None, max_size: int = MAX_SIZE
) -> Path | None:
    """Keep compiled programs in a folder, from which other processes load them: JAX's cache.

    Bits do not depend on the cache. Several processes may share a folder; damaged entries and files
    of other programs are ignored. Each kind of processor has a folder of its own. Loaded programs
    are executed, so a folder that other users own or may write to is not used.

    Args:
        folder: if None, the folder of the environment variable `BASINAX_CACHE`, or the user's cache
            folder; the value `off` switches the cache off.
        max_size: in bytes; beyond, the oldest programs are removed.

    Returns:
        The folder, or None if the cache is off, or the folder cannot be written or, with a warning,
        not be trusted.

    Raises:
        ImportError: `folder` is None, and platformdirs is not installed.
    """
    folder = _default_folder() if folder is None else Path(folder).expanduser()
    if folder is None:
        _log.info("cache: off, by %s", VARIABLE)
        return None
    programs = folder.absolute() / _processor()
    try:
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        programs = programs.resolve()
        if os.name == "posix" and (fault := _fault_of(programs)):
            text = f"compiled programs are not kept: {fault}; programs are code that is executed"
            warnings.warn(text, stacklevel=2)
            return None
        _remove_abandoned(programs)
        own = Path(tempfile.mkdtemp(prefix=_OWN, dir=programs))
    except OSError as error:
        _log.info("cache: none, as %s cannot be written: %s", folder, error.strerror or error)
        return None
    n_known = sum(_link(program, own) for program in _programs(programs))
    _OWN_FOLDERS.append(own)
    atexit.register(_leave, own, max_size, os.getpid())
    compilation_cache.reset_cache()  # otherwise JAX keeps the folder of its first program
    for name, value in _SWITCHES.items():
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(own))
    _log.info("cache: %s, which has %d programs", programs, n_known)
    return folder


_OWN_FOLDERS: list[Path] = []


def abandon() -> None:
    """Remove the process's own folder, for an end in the middle of a compilation."""
    for own in _OWN_FOLDERS:
        shutil.rmtree(own, ignore_errors=True)


_SWITCHES = {
    "jax_compilation_cache_max_size": -1,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # With these caches the key of a program would contain the name of the folder.
    "jax_persistent_cache_enable_xla_caches": "none",
}


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
    """A name for processors of one kind, the only property missing in JAX's keys of programs."""
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


def _programs(folder: Path) -> Iterator[Path]:
    """The entries with the name of a program, the oldest first."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            status = path.lstat()
            is_plain = stat.S_ISREG(status.st_mode) and not _is_of_others(status)
            if _PROGRAM.fullmatch(path.name) and is_plain:
                found.append((status.st_mtime_ns, path))
    return (path for _, path in sorted(found))


def _link(program: Path, own: Path) -> bool:
    """Link a program into the process's own folder if it is whole; return whether it is."""
    name, _, digest = program.name.rpartition(".")
    with suppress(OSError):
        if _digest_of(program) == digest:
            (own / name).symlink_to(program)
            return True
        program.unlink()
    return False


def _digest_of(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _leave(own: Path, max_size: int, process: int) -> None:
    """Move new programs to the shared folder, remove the oldest beyond its size, and clean up."""
    if os.getpid() != process:  # a forked child inherits its parent's exit functions
        return
    for program in own.glob("*-cache"):
        with suppress(OSError):
            if not program.is_symlink():
                program.replace(own.parent / f"{program.name}.{_digest_of(program)}")
    with suppress(OSError):
        _remove_oldest(own.parent, max_size)
    shutil.rmtree(own, ignore_errors=True)


def _remove_oldest(folder: Path, max_size: int) -> None:
    programs = list(_programs(folder))
    excess = sum(path.stat().st_size for path in programs) - max_size
    for path in programs:
        if excess <= 0:
            return
        excess -= path.stat().st_size
        path.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    for own in folder.glob(f"{_OWN}*"):
        with suppress(OSError):
            if own.stat().st_mtime < time.time() - ABANDONED:
                shutil.rmtree(own)
