"""Structures from files, and the names that messages have for them."""

import os
import re
import warnings
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io.formats import UnknownFileTypeError, parse_filename

from basinax.atoms._formats.formats import form_to_read
from basinax.cli._console import fail, print_warning, text_of
from basinax.cli._guard import Unreadable, check_file, limited
from basinax.cli._named import in_few


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


def files_read(files: list[Path], potential: str, optimizer: str | None) -> list[Path]:
    """Those of the structures, and those that texts of options name."""
    named = [] if optimizer is None else [optimizer]
    _, _, rest = potential.partition(":")
    while rest:
        named.append(rest)
        rest, _, _ = rest.rpartition(",")
    named = [os.path.expanduser(name) for name in named]
    return [file_and_images(path)[0] for path in files] + [
        Path(name) for name in named if os.path.isfile(name)
    ]


def read_all(files: list[Path]) -> tuple[list[Any], list[str]]:
    """The structures of all files, and a name for each; leaves if one of them cannot be read.

    All that cannot are named, each with its own reason.
    """
    atoms, sources, faults = [], [], []
    for path in files:
        try:
            images = read_structures(path)
            sources += names_of_images(path, len(images))
            atoms += images
        except Unreadable as error:
            faults.append(f"{path} cannot be read: {error}")
    if faults:
        fail(*in_few(faults, len(files)))
    return atoms, sources


def read_structures(path: Path) -> list[Any]:
    """Those of a file.

    Raises:
        Unreadable: there are none, or they cannot be read.
    """
    try:
        file, selected = file_and_images(path)
        check_file(file, selected)
        if isinstance(selected, str) and file.suffix not in (".db", ".json"):
            raise Unreadable(f"expected FILE@START:STOP, got @{selected}")
        # With its folder before it, no name stands for a server of databases or for a stream.
        file = file.absolute()
        form = form_to_read(file)
        with limited(file):
            images = list(form.read(file, selected))
            n_held = form.count(file) if selected is None else 1
            not_read = form.not_read(file)
    except Unreadable:
        raise
    except UnknownFileTypeError:
        raise Unreadable("ASE does not know this kind of file") from None
    except Exception as error:  # every reader of ASE has errors of its own
        raise Unreadable(_reason(error)) from error
    if not all(isinstance(x, Atoms) for x in images):
        raise Unreadable("ASE finds no structure in it")
    if not images:
        chosen = "" if selected is None else " of that number"
        raise Unreadable(f"it holds no structure{chosen}")
    if n_held > len(images):
        raise Unreadable(f"it holds {n_held} structures, and ASE reads one of them: split the file")
    if not_read:
        print_warning(f"{path}: ASE does not read {' and '.join(not_read)} of {form.title}")
    return images


def _reason(error: Exception) -> str:
    """In words, from what Python says to a programmer."""
    text = text_of(error)
    match error:
        case OSError(strerror=str(reason)):
            is_of_file = error.filename is not None
            return reason if is_of_file else f"it is broken or cut off ({reason})"
        case KeyError(args=[str(key)]) if re.fullmatch(r"[A-Z][A-Za-z]{0,2}", key):
            return f"there is no element {key}"
        case KeyError(args=[str(key)]):
            return key if " " in key else f"it has no {key!r}"
        case MemoryError():
            return f"it asks for more memory than a file of its size can fill ({text})"
        case UnicodeDecodeError():
            return f"byte {error.start} is no UTF-8, so it is no text"
        case RecursionError():
            return "its parts stand too deep in one another"
        case _ if not str(error) or isinstance(error.__cause__, StopIteration):
            return f"it is broken or cut off ({type(error).__name__})"
    return text
