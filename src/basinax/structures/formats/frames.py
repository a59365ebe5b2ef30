"""The structures of extended XYZ one by one, so that a bad one hides no other.

ASE counts as many atoms as a line says, however long the file.
"""

import io
from collections.abc import Iterator
from typing import IO

from ase import Atoms
from ase.io.extxyz import read_xyz


def frames_of(file: IO[bytes]) -> Iterator[bytes]:
    """The texts of the structures of a file.

    Raises:
        ValueError: a structure has no count, or fewer lines than its count.
    """
    number, structure, head = 1, 0, file.readline()
    while head.strip():
        try:
            count = int(head)
        except ValueError:
            text = head.decode(errors="replace").strip()
            raise ValueError(f"line {number}: expected a number of atoms, got {text!r}") from None
        if count < 0:
            raise ValueError(f"line {number}: a structure cannot have {count} atoms")
        lines = [head, file.readline()]
        for k in range(count):
            if not (line := file.readline()):
                raise ValueError(
                    f"the file ends after {k} of the {count} atoms of its structure {structure}"
                )
            lines.append(line)
        while (head := file.readline()).lstrip().startswith(b"VEC"):  # a cell in older files
            lines.append(head)
        yield b"".join(lines)
        number, structure = number + len(lines), structure + 1


def structure_of(frame: bytes) -> Atoms:
    """The structure of a text. ASE's reader raises errors of its own."""
    (atoms,) = read_xyz(io.StringIO(frame.decode()), index=0)
    return atoms
