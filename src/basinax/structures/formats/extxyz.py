"""ASE's extended XYZ: its structures one by one, and entries that it reads back as they are.

A bad structure hides no other; ASE counts as many atoms as a line says, however long the file.
Entries that are not read back as they are become JSON or are left out.
"""

import functools
import io
import numbers
import re
from collections.abc import Iterator, Mapping
from json import dumps
from typing import IO, Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.io.extxyz import key_val_dict_to_str, key_val_str_to_dict, read_xyz
from ase.spacegroup import Spacegroup

NOTHING = object()

TAKEN = {*all_properties, "Lattice", "Properties", "pbc"}
"""Names in a comment line that describe the structure itself."""

COLUMNS = {*all_properties, "pos", "Z", "species", "symbols", "charge", "move_mask"}
"""Names of columns that ASE takes for something else than arrays."""

LARGEST = np.iinfo(np.int32).max
"""The largest integer of a column that ASE can read."""

REMEMBERED = 1 << 16
"""Entries that are known to be read again: those of a run are asked for twice, and most differ."""


def entry_of(name: Any, value: Any) -> Any:
    """The value, or a text that ASE's reader turns into it; `NOTHING` if there is none."""
    if not isinstance(name, str) or name in TAKEN:
        return NOTHING
    if type(value) is float or (type(value) is int and abs(value) < LARGEST):
        return NOTHING if _read_again(name, 1.5) is NOTHING else value
    return (_read_again if isinstance(value, str) else _read_again.__wrapped__)(name, value)


@functools.lru_cache(REMEMBERED)
def _read_again(name: str, value: Any) -> Any:
    try:
        meant = _plain(value)
        # The reader drops one of two backslashes.
        as_json = "_JSON " + dumps(meant).replace("\\", "\\\\")
    except (TypeError, RecursionError):
        return NOTHING
    is_text = isinstance(value, str | numbers.Real | np.bool_ | np.ndarray | Spacegroup)
    for candidate in (value, as_json) if is_text else (as_json,):
        try:
            text = key_val_dict_to_str({"before": 1, name: candidate, "behind": 2})
            got = _plain(key_val_str_to_dict(text))
        except Exception:  # any value may fail to parse
            continue
        expected = {"before": 1, name: meant, "behind": 2}
        if len(text.splitlines()) == 1 and _is_same(expected, got):
            return candidate
    return NOTHING


def _plain(value: Any) -> Any:
    """The value without NumPy; raises TypeError if JSON has nothing like it."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUO":
        return _plain(value.tolist())
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if isinstance(value, Spacegroup):
        return value.symbol
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} is no JSON")


def _is_same(meant: Any, got: Any) -> bool:
    if isinstance(meant, dict | list) and type(meant) is type(got) and len(meant) == len(got):
        if isinstance(meant, list):
            return all(map(_is_same, meant, got))
        return list(meant) == list(got) and all(_is_same(meant[k], got[k]) for k in meant)
    if {type(meant), type(got)} <= {int, float}:
        return meant == got or (meant != meant and got != got)
    return type(meant) is type(got) and meant == got


def is_column(name: Any, array: np.ndarray) -> bool:
    """Whether ASE writes and reads the array under this name."""
    is_name = isinstance(name, str) and re.fullmatch(r"[^\s\"'\[\\{:]+", name) is not None
    if not is_name or name in COLUMNS or array.ndim > 2 or {0, 1} & {*array.shape[1:]}:
        return False
    if array.dtype.kind in "UO":  # ASE reads text as objects
        return all(isinstance(x, str) and x.split() == [x] for x in array.ravel().tolist())
    is_small = array.dtype.kind == "i" and bool((np.abs(array) <= LARGEST).all())
    return is_small or array.dtype.kind in "fb"


def frames_of(file: IO[bytes]) -> Iterator[bytes]:
    """The texts of the structures of a file.

    Raises:
        ValueError: a structure has no count, or fewer lines than its count, or is behind a blank
            line, where ASE reads no further.
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
    if any(line.strip() for line in file):
        raise ValueError(f"line {number} is blank, and more text follows: remove it")


def structure_of(frame: bytes) -> Atoms:
    """The structure of a text. ASE's reader raises errors of its own."""
    (atoms,) = read_xyz(io.StringIO(frame.decode()), index=0)
    return atoms
