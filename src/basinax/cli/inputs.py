"""Structures from files, each read when needed, and their names in messages."""

import functools
import hashlib
import itertools
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ase import Atoms
from ase.io.bundletrajectory import BundleTrajectory
from ase.io.formats import UnknownFileTypeError, parse_filename

from basinax.cli.config import is_config, potential_in
from basinax.cli.console import fail, print_warning, text_of
from basinax.cli.guard import Unreadable, check_file
from basinax.cli.named import STDIN, in_few, named_in
from basinax.cli.options import ModelOptions, PathOptions, RelaxOptions
from basinax.config.files import key_of, name_of, stamp_of
from basinax.config.tables import ENDINGS, RECORD, Table
from basinax.neighbors.contacts import closest_contact
from basinax.structures.charges import unused_by_words, uses_of
from basinax.structures.formats.beside import beside
from basinax.structures.formats.extxyz import frames_of, structure_of
from basinax.structures.formats.formats import Form, form_to_read
from basinax.structures.formats.texts import binary

STDIN_NAME = "stdin.extxyz"
"""The file name for standard input."""

ONE_BY_ONE = ("traj", "db")
"""Formats that ASE reads one structure at a time."""

WATCHED = 100
"""The number of structures of a file that are looked at."""

HINT = "look whether units, cell and elements are read as they are meant"


def file_and_images(path: Path) -> tuple[Path, Any]:
    """`FILE@START:STOP` in ASE's meaning: the file and a slice, or None for all images."""
    with warnings.catch_warnings(action="ignore"):
        name, images = parse_filename(str(path), do_not_split_by_at_sign=path.exists())
    return Path(name), images


def _checked_images(path: Path) -> tuple[Path, Any]:
    """`file_and_images` of a file that can be read; raises Unreadable."""
    file, selected = file_and_images(path)
    check_file(file)
    if isinstance(selected, str) and file.suffix not in (".db", ".json"):
        raise Unreadable(f"expected FILE@START:STOP, got @{selected}")
    if isinstance(selected, slice) and selected.step == 0:
        raise Unreadable("expected FILE@START:STOP:STEP with a step other than 0")
    return file, selected


def home_of(run: Path, settings: Table) -> Path:
    """The folder to which the names in the record of a run are relative.

    If the folder of the run was moved or copied together with its input, that is a new one; the
    current one if there is none any more.
    """
    before, place = Path(settings[RECORD]["folder"]), Path(settings[RECORD].get("place", "/"))
    names = [file_and_images(Path(x))[0] for x in settings["files"]]
    names = [x for x in names if x != STDIN and not x.is_absolute()]
    if names and not place.is_absolute() and ".." not in place.parts:
        above, depth = [run.absolute(), *run.absolute().parents], len(place.parts)
        if depth < len(above) and all((above[depth] / name).exists() for name in names):
            return above[depth]
    return before if before.is_dir() else Path()


def note_place(run: Path, record: Table) -> None:
    """Note in the table of a record where the folder of the run is, for `home_of`."""
    if folder := record["folder"]:
        record["place"] = name_of(os.path.relpath(run, folder))


def name_of_sole(path: Path) -> str:
    """The name of the only image read from a file."""
    return namer_of(path)(0) if isinstance(file_and_images(path)[1], slice) else name_of(path)


def namer_of(path: Path) -> Callable[[int], str]:
    """A function from numbers to names of the images read from a file."""
    file, images = file_and_images(path)
    images = slice(None) if images is None else images
    first, step = (images.start or 0, images.step or 1) if isinstance(images, slice) else (-1, 1)
    if first < 0 or step < 0:  # counted from the end, which is unknown
        return lambda k: f"{name_of(path)}, image {k}"
    begin = name_of(file)
    return lambda k: f"{begin}@{first + k * step}"


def files_read(given: ModelOptions) -> list[Path]:
    """The files of structures, and files named in the texts of options."""
    optimizer = (given.optimizer or "") if isinstance(given, RelaxOptions | PathOptions) else ""
    named = [optimizer] if optimizer.endswith(ENDINGS) else []
    named += [os.fspath(given.config)] if given.config else []
    named += named_in(given.potential)
    if is_config(given.potential):
        named.append(given.potential)
        with suppress(OSError, ValueError):
            named += named_in(potential_in(given.potential)["potential"])
    named = [os.path.expanduser(name) for name in named]
    return [file_and_images(path)[0] for path in files_in(given.files)] + [
        Path(name) for name in named if os.path.isfile(name)
    ]


class InputItem(NamedTuple):
    """A structure that can be read."""

    source: str
    """The file and image of the structure."""
    path: Path
    """The file, or standard input."""
    read: Callable[[], Atoms]
    """Reads the structure; raises Unreadable if that fails."""


class Inputs(NamedTuple):
    """The structures of files."""

    atoms: list[Any]
    sources: list[str]
    """The name of each structure: its file and image."""
    paths: list[Path]
    """The file of each structure."""
    skipped: list[str]
    """Unreadable files, each with the reason."""


def read_all(given: ModelOptions) -> Inputs:
    """The structures of all files; exits if any is unreadable, or, with skipping, if all are.

    Every unreadable file is named with its own reason.
    """
    found, faults = Inputs([], [], [], []), []
    files = files_in(given.files)
    for path in files:
        try:
            read = list(_read(path))
        except Unreadable as error:
            faults.append(f"{path} cannot be read: {error}")
            continue
        for item, atoms in read:
            found.atoms.append(atoms)
            found.sources.append(item.source)
            found.paths.append(item.path)
    if faults and not (given.skip_unreadable and found.atoms):
        n_read = len(files) - len(faults)
        hint = f"{n_read} of {len(files)} can be read: --skip-unreadable goes on with these"
        fail(*in_few(faults, len(files)), *([hint] if n_read else []))
    for fault in in_few(faults, len(files)):
        print_warning(fault)
    found.skipped.extend(faults)
    return found


def _read(path: Path) -> Iterator[tuple[InputItem, Atoms]]:
    """The structures of a file; raises Unreadable, with the number of the one at fault."""
    for number, item in enumerate(items_in(path)):
        try:
            yield item, item.read()
        except Unreadable as error:
            is_named = not number or "structure" in str(error)
            raise Unreadable(
                f"{error}{'' if is_named else f', in its structure {number}'}"
            ) from error


def items_of(paths: list[Path]) -> Iterator[InputItem]:
    """The structures of files in order, each read when needed.

    An unreadable file, and an unreadable structure in a file, is an item whose `read` fails. If
    such a structure hides the start of the next one, the file ends there.
    """
    return itertools.chain.from_iterable(map(items_in, files_in(paths)))


def items_in(path: Path) -> Iterator[InputItem]:
    """`items_of` one file."""
    readers = map(FirstLook(path).taken, _readers_of(path))
    named, file = (path, file_and_images(path)[0]) if path != STDIN else (Path(STDIN_NAME), path)
    first, second = next(readers, partial(_fail, "it holds no structure")), next(readers, None)
    if second is None:
        yield InputItem(name_of_sole(named), file, first)
        return
    name = namer_of(named)
    for number, reader in enumerate(itertools.chain((first, second), readers)):
        yield InputItem(name(number), file, reader)


def files_in(paths: list[Path], written: Collection[Path] = ()) -> list[Path]:
    """The paths, with each folder replaced by its files in the order of their names.

    Args:
        written: files that the run itself wrote, which are left out of folders.
    """
    files, own = [], set(map(key_of, written))
    for path in paths:
        within: list[Path] = []
        if path.is_dir() and not BundleTrajectory.is_bundle(str(path)):
            with suppress(OSError):
                within = sorted(x for x in path.iterdir() if x.is_file() and x.name[0] != ".")
        files += [x for x in within if not own or key_of(x) not in own] or [path]
    return files


def count(paths: list[Path]) -> int | None:
    """The number of items; None if only reading the structures would show it.

    A damaged file may have fewer.
    """
    counts = [_count(path) for path in files_in(paths)]
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(path: Path) -> int | None:
    if path == STDIN:
        return None
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
        if path == STDIN:
            yield from map(_given, _of_stdin())
            return
        file, selected = _checked_images(path)
        form = form_to_read(file.absolute())
        if form.name == "extxyz" and selected is None:
            yield from _frames(file)
        elif form.name in ONE_BY_ONE:
            yield from _one_by_one(form.read(file.absolute(), selected))
        else:
            yield from map(_given, read_structures(path))
    except UnknownFileTypeError:
        yield partial(_fail, "ASE does not know this kind of file")
    except Exception as error:  # every reader of ASE raises errors of its own
        yield partial(_fail, reason_of(error))


def _given(atoms: Atoms) -> Callable[[], Atoms]:
    return lambda: atoms


def _of_stdin() -> list[Atoms]:
    with tempfile.TemporaryDirectory(prefix="basinax-") as folder:
        copy = Path(folder) / STDIN_NAME
        copy.write_bytes(content_of_stdin())
        return read_structures(copy)


def is_terminal() -> bool:
    """Whether standard input is one, or is closed."""
    return sys.stdin is None or sys.stdin.isatty()


def content_of_stdin() -> bytes:
    """All of standard input; raises Unreadable if it is a terminal."""
    if is_terminal():
        raise Unreadable("it is a terminal: send structures to it, as in: cat FILE | basinax ...")
    return _content(sys.stdin.buffer)


@functools.lru_cache(maxsize=1)
def _content(stream: BinaryIO) -> bytes:
    return stream.read()


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
        yield _given(image)


def _fail(reason: str) -> Atoms:
    raise Unreadable(reason)


def files_beside(path: Path) -> list[Path]:
    """The files that are read beside one, such as the POSCAR beside an OUTCAR."""
    with suppress(Exception):  # every reader of ASE raises errors of its own
        file = file_and_images(path)[0].absolute()
        return beside(form_to_read(file).name, file) if file.is_file() else []  # a pipe would wait
    return []


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder; empty if unreadable.

    Exits with an error if a terminal is the standard input that it is asked for.
    """
    with suppress(OSError):
        if path == STDIN:
            try:
                return hashlib.sha256(content_of_stdin()).hexdigest()
            except Unreadable as error:
                fail(f"{STDIN} cannot be read: {error}")
        if path.is_file():
            return _digest(path, stamp_of(path))
        if path.is_dir():
            files = sorted(x for x in path.rglob("*") if x.is_file())
            lines = (f"{digest_of(x)} {name_of(x.relative_to(path))}\n" for x in files)
            return hashlib.sha256("".join(lines).encode()).hexdigest()
    return ""


@functools.cache
def _digest(path: Path, stamp: tuple[int, ...] | None) -> str:
    """Args: stamp: changes with the file, so that one that stays is read once."""
    del stamp
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_structures(path: Path) -> list[Any]:
    """The structures of a file.

    Raises:
        Unreadable: there are no structures, or they cannot be read.
    """
    try:
        file, selected = _checked_images(path)
        # An absolute path is never taken for a database server or a stream.
        file = file.absolute()
        form = form_to_read(file)
        images = _images_of(form, file, selected, partial(_warn, path))
    except Unreadable:
        raise
    except UnknownFileTypeError:
        raise Unreadable("ASE does not know this kind of file") from None
    except Exception as error:  # every reader of ASE raises errors of its own
        raise Unreadable(reason_of(error)) from error
    if not all(isinstance(x, Atoms) for x in images):
        raise Unreadable("ASE finds no structure in it")
    if not images:
        chosen = "" if selected is None else " of that number"
        raise Unreadable(f"it holds no structure{chosen}")
    return images


def _warn(path: Path, text: str) -> None:
    print_warning(f"{path}: {text}")


class FirstLook:
    """Warns once for each file that its structures look as if they were read wrongly.

    The first structures are looked at: a file is read wrongly as a whole.
    """

    def __init__(self, path: Path):
        self._path, self._n_left = path, WATCHED

    def taken(self, read: Callable[[], Atoms]) -> Callable[[], Atoms]:
        """The reader, whose structure is looked at."""
        return lambda: self._seen(read())

    def _seen(self, atoms: Atoms) -> Atoms:
        self._n_left -= 1
        if self._n_left >= 0 and (word := _suspicion(atoms)):
            self._n_left = 0
            _warn(self._path, word)
        return atoms


def _suspicion(atoms: Atoms) -> str | None:
    """The reason why a structure may not be meant as it is."""
    if contact := closest_contact(atoms):
        return f"{contact.of(atoms)}, closer than any bond: {HINT}"
    if 0 < (atoms.numbers == 0).sum() < len(atoms):
        return "it has dummy atoms (X), which are no element: remove them"
    words = [str(key) for key, value in atoms.info.items() if value is True]
    if words and words[0] != "0" and all(re.fullmatch(r"[-+]?\d", word) for word in words):
        return f"a charge is not read from its comment {' '.join(words)}: write charge={words[0]}"
    return None


def _images_of(form: Form, file: Path, selected: Any, say: Callable[[str], None]) -> list[Any]:
    """The images of a file; if one of several is unreadable, the error has its number."""
    images = []
    try:
        for image in form.read_as_meant(file, selected, say):
            images.append(image)
    except Exception as error:
        if not images or selected is not None:
            raise
        raise Unreadable(f"{reason_of(error)}, in its structure {len(images)}") from error
    return images


_IN_WORDS = {
    r"assign tuple of length (\d+) to structure with (\d+) fields": (
        r"an atom has \1 values, and its Properties say \2"
    ),
    r"atom_style cannot be guessed|Style .* not supported or invalid": (
        "it does not name a style of atoms that ASE knows: write it behind Atoms, as in"
        " Atoms # charge"
    ),
    r"could not broadcast|inhomogeneous|not aligned|^matmul:": (
        "it is broken or cut off: a table of numbers has too few in a line"
    ),
    r"^('.*') is not in list": r"it has no \1",
    r"could not convert string to float: (?:np\.str_\()?('.*')\)?": (
        r"\1 stands where a number is expected"
    ),
    r"invalid literal for int\(\) with base 10: (.*)": r"\1 stands where an integer is expected",
    r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)\)": (
        r"a line has \2 values in place of \1"
    ),
}
"""Python's messages, and their meaning for the user of a file."""

BARE = (LookupError, AssertionError, AttributeError, NameError, TypeError, ArithmeticError)
"""Errors of readers that did not expect a file as it is."""


def reason_of(error: Exception) -> str:
    """The reason in words for a user, instead of Python's message for a programmer."""
    text = text_of(error)
    for pattern, words in _IN_WORDS.items():
        if found := re.search(pattern, text):
            return found.expand(words)
    match error:
        case OSError(strerror=str(reason)):
            is_of_file = error.filename is not None
            return reason if is_of_file else f"it is broken or cut off ({reason})"
        case KeyError(args=[str(key)]) if re.fullmatch(r"[A-Z][A-Za-z]{0,2}\d*", key):
            return f"there is no element {key}"
        case KeyError(args=[str(key)]) if re.fullmatch(r"\d+", key):
            return f"there is no element {key}: write symbols in place of numbers"
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
        case _ if isinstance(error, BARE):
            return f"ASE does not understand it ({type(error).__name__}: {text})"
    return text


def print_unused(atoms: list[Atoms], sources: list[str], potential: Any) -> None:
    """List the contents of files that the potential does not use, in one warning."""
    if unused := unused_by_words(atoms, sources.__getitem__, uses_of(potential)):
        print_warning(f"the potential {type(potential).__name__} does not use {unused}")
