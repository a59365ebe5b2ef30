"""Structures from files, and the names that messages have for them."""

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
    if count == 1 and not isinstance(images, slice):
        return [str(path)]
    if images is None:
        images = slice(None)
    first, step = (images.start or 0, images.step or 1) if isinstance(images, slice) else (-1, 1)
    if first < 0 or step < 0:  # counted from an end that is not known
        return [f"{path}, image {k}" for k in range(count)]
    return [f"{file}@{first + k * step}" for k in range(count)]


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
