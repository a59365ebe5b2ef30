"""The text of plain files; devices and pipes, which may have no end, are refused."""

import errno
import os
import stat
from pathlib import Path


def kind_of(mode: int) -> str:
    """The kind of what has that mode and is no plain file."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def text_of(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """The text of a file in UTF-8; `~` is the home folder.

    Raises:
        ValueError: the text is no UTF-8, and `errors` is strict.
        OSError: the file does not exist, or is a folder, a pipe or a device.
    """
    path = found(path)
    try:
        return path.read_text(encoding="utf-8-sig", errors=errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is no UTF-8, so it is no text") from None


def found(path: str | os.PathLike[str]) -> Path:
    """The path of a plain file; `~` is the home folder.

    Raises:
        OSError: the file does not exist, or is a folder, a pipe or a device.
    """
    name = os.path.expanduser(path)
    try:
        mode = os.stat(name).st_mode
    except ValueError:  # the name contains a NUL
        mode = None
    if mode is None:
        raise FileNotFoundError(errno.ENOENT, "no file can have this name", name)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, not a file", name)
    return Path(name)
