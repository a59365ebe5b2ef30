"""Structures from files, and the names that messages have for them."""

import os
import warnings
from pathlib import Path
from typing import Any

import ase.io
from ase.io.formats import UnknownFileTypeError, parse_filename

from basinax.cli._console import fail, text_of


def file_and_images(path: Path) -> tuple[Path, Any]:
    """`FILE@START:STOP` as ASE reads it: the file and a slice, or None for all images."""
    with warnings.catch_warnings(action="ignore"):
        name, images = parse_filename(str(path), do_not_split_by_at_sign=path.exists())
    return Path(name), images


def names_of_images(path: Path, count: int) -> list[str]:
    file, images = file_and_images(path)
    given, name = _text_of_name(path), _text_of_name(file)
    if count == 1 and not isinstance(images, slice):
        return [given]
    if images is None:
        images = slice(None)
    first, step = (images.start or 0, images.step or 1) if isinstance(images, slice) else (-1, 1)
    if first < 0 or step < 0:  # counted from an end that is not known
        return [f"{given}, image {k}" for k in range(count)]
    return [f"{name}@{first + k * step}" for k in range(count)]


def _text_of_name(path: Path) -> str:
    """With escapes for bytes that are no text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def files_read(files: list[Path], potential: str, optimizer: str) -> list[Path]:
    """Those of the structures, and those that texts of options name."""
    named = [optimizer]
    _, _, rest = potential.partition(":")
    while rest:
        named.append(rest)
        rest, _, _ = rest.rpartition(",")
    named = [os.path.expanduser(name) for name in named]
    return [file_and_images(path)[0] for path in files] + [
        Path(name) for name in named if os.path.isfile(name)
    ]


def read_structures(path: Path) -> list[Any]:
    try:
        images = list(ase.io.iread(path, do_not_split_by_at_sign=path.exists()))
    except UnknownFileTypeError:
        fail(f"{path}: ASE does not know this kind of file")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror or text_of(error)}")
    except Exception as error:  # every reader of ASE has errors of its own
        fail(f"{path} cannot be read: {text_of(error)}")
    if not images:
        fail(f"{path} holds no structure")
    return images
