"""Structure files: ASE's format for a name, reading and writing."""

import io
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ase.io
from ase import Atoms
from ase.io.formats import (
    IOFormat,
    UnknownFileTypeError,
    extension2format,
    filetype,
    get_compression,
    ioformats,
)
from ase.io.trajectory import Trajectory

from basinax.structures.formats import databases
from basinax.structures.formats.beside import structures_of_outcar
from basinax.structures.formats.extxyz import frames_of, structure_of
from basinax.structures.formats.held import prepared
from basinax.structures.formats.lammps import HEAD
from basinax.structures.formats.mends import MENDED, count, structures_of
from basinax.structures.formats.texts import binary, created, has_mark, opened, text_in

SHARED = ("data", "in")
"""Endings that several programs share: the content of the file decides."""

PEEKED = 4000
"""Bytes that are looked through for the format of a file."""

OPTIONS = {"lammps-data": {"masses": True}}
"""Without masses ASE would read no elements."""


class Form(NamedTuple):
    """The format of a structure file."""

    name: str

    @property
    def _of_ase(self) -> IOFormat:
        return ioformats[self.name]

    @property
    def title(self) -> str:
        return self._of_ase.description

    def can_write(self, path: Path) -> bool:
        """Whether a file of this name would be packed as its ending says."""
        is_packed = get_compression(path.name)[1] is not None
        has_file = self._of_ase.acceptsfd and self.name not in databases.FORMATS
        return has_file or not is_packed

    def write(self, path: Path, structures: Iterable[Atoms]) -> None:
        """Write the structures to a file. Every writer of ASE raises errors of its own."""
        structures = (prepared(self.name, atoms)[0] for atoms in structures)
        if self.name in databases.FORMATS:
            databases.write(path, self.name, structures)
            return
        options: dict[str, Any] = {"format": self.name, **OPTIONS.get(self.name, {})}
        if self._of_ase.acceptsfd and not self._of_ase.isbinary:
            with created(path) as file:
                ase.io.write(file, list(structures), **options)
        else:
            ase.io.write(path, list(structures), **options)

    def read(self, path: Path, images: Any = None) -> Iterator[Atoms]:
        """All or some structures of a file. Every reader of ASE raises errors of its own.

        Args:
            images: a number, a slice, or the text of a database's query; all if None.
        """
        if isinstance(images, int):
            images = slice(images, images + 1 or None)
        images = slice(None) if images is None else images
        options: dict[str, Any] = {"format": self.name, "do_not_split_by_at_sign": True}
        if self.name == "json":
            with opened(path) as file:
                yield from databases.read(file, self.name, images)
        elif self.name in databases.FORMATS:
            yield from databases.read(str(path), self.name, images)
        elif self.name == "extxyz":
            with binary(path) as file:
                yield from map(structure_of, _selected(frames_of(file), images))
        elif self._of_ase.acceptsfd:
            with (binary if self._of_ase.isbinary else opened)(path) as file:
                yield from ase.io.iread(file, images, **options)
        elif path.is_file() and has_mark(path):
            with tempfile.TemporaryDirectory() as folder, binary(path) as file:
                copy = Path(folder, get_compression(path.name)[0])
                copy.write_bytes(file.read())
                yield from ase.io.iread(str(copy), images, **options)
        else:
            yield from ase.io.iread(str(path), images, **options)

    def read_as_meant(self, path: Path, images: Any, say: Callable[[str], None]) -> Iterator[Atoms]:
        """`read`, with what the text of the file says where ASE reads something else.

        Args:
            say: called with what the user has to know.

        Raises:
            ValueError: ASE would read another structure than the file holds.
        """
        if self.name == "vasp-out":
            poscar = partial(Form("vasp").read_as_meant, images=None, say=lambda _: None)
            yield from structures_of_outcar(path, images, poscar, say)
            return
        if self.name not in MENDED:
            yield from self.read(path, images)
            return

        def of_ase(text: str) -> list[Atoms]:
            if not self._of_ase.acceptsfd:
                return list(self.read(path))
            stream = io.StringIO(text)
            stream.name = str(path)  # beside which ASE looks for the files that it names
            return list(ase.io.iread(stream, slice(None), format=self.name))

        text = text_in(path)
        if images is None and (n := count(self.name, text)) > 1:
            raise ValueError(f"it holds {n} structures, and ASE reads one of them: split the file")
        found = structures_of(self.name, path, text, of_ase, say)
        if isinstance(images, int):
            images = slice(images, images + 1 or None)
        yield from found if images is None else found[images]

    def n_read(self, path: Path) -> int | None:
        """The number of structures that ASE reads, or None if only reading them would show it."""
        if self._of_ase.single:
            return 1
        if self.name == "traj":
            with closing(Trajectory(path)) as images:
                return len(images)
        return databases.count(path) if self.name == "db" else None


def _selected(frames: Iterator[bytes], images: slice) -> Iterable[bytes]:
    """The frames; none behind them is read unless the slice counts from the end."""
    bounds = images.start, images.stop, images.step
    is_forward = all(x is None or x >= 0 for x in bounds)
    return itertools.islice(frames, *bounds) if is_forward else list(frames)[images]


def form_to_read(path: Path) -> Form:
    """The format of a file.

    The ending decides if it belongs to one of the formats that can be written. Otherwise ASE checks
    other parts of the name and the content.

    Raises:
        UnknownFileTypeError: ASE has no such format.
        OSError: the file cannot be read.
    """
    ending = None
    if not path.is_dir():
        with path.open("rb") as file:
            if not file.read(1):
                raise UnknownFileTypeError(f"Empty file: {path}")
        ending = _format_of_ending(path)
    if ending and _ending(path) not in SHARED:
        return Form(ending)
    if path.is_dir():
        return Form(filetype(str(path)))
    with binary(path) as file:
        # Data files of LAMMPS have names of all kinds.
        head = file.read(PEEKED)
        file.seek(0)
        is_data = re.search(HEAD, head)
        name = filetype(file if has_mark(path) else str(path)) if not is_data else "lammps-data"
        # Outputs have all words of inputs.
        name = "abinit-out" if name == "abinit-in" and b" of ABINIT" in head else name
    if name not in ioformats:
        raise UnknownFileTypeError(name)
    return Form(name)


def form_to_write(path: Path) -> Form:
    """The format of a file name.

    Raises:
        UnknownFileTypeError: ASE has no such format.
    """
    name = _format_of_ending(path) or filetype(path.name, read=False)
    if name not in ioformats:
        raise UnknownFileTypeError(name)
    return Form(name)


def _format_of_ending(path: Path) -> str | None:
    """The format of an unambiguous ending; None if other parts of the name decide."""
    ending, name = _ending(path), get_compression(path.name)[0]
    known = extension2format.get(ending) or ioformats.get(ending)
    if known is None or not known.can_write or ending.isdigit():
        return None
    for other in ioformats.values():
        # "XDATCAR.vasp" belongs to the VASP module; the glob "xyz.in" is a whole name.
        if other.match_name(name) and (
            other.module_name == known.module_name or name in other.globs
        ):
            return None
    return known.name


def _ending(path: Path) -> str:
    root = get_compression(path.name)[0]
    return os.path.splitext(root)[1].removeprefix(".").lower()
