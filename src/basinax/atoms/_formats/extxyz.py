"""Structures in the form that extended XYZ can hold.

Entries that ASE would read back as another type are written as JSON, which ASE reads unchanged, or
left out and named.
"""

import functools
import io
import json
import numbers
from collections.abc import Iterator
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.io.extxyz import key_val_dict_to_str, key_val_str_to_dict
from ase.spacegroup import Spacegroup

from basinax.atoms._formats.equality import KNOWN_ARRAYS, are_equal, losses

OF_THE_FORMAT = ("Lattice", "Properties", "pbc")
"""Names in a comment line that describe the structure itself."""

LARGEST = np.iinfo(np.int32).max
"""The largest integer of a column that ASE can read."""


def as_extxyz(atoms: Atoms) -> tuple[Atoms, list[str]]:
    """A copy whose `info` and arrays survive ASE's writer and reader, and the names of the rest."""
    copy, left_out = atoms.copy(), []
    copy.calc = atoms.calc
    for name, value in atoms.info.items():
        text = _nothing if name in all_properties else _writable(name, value)
        if text is not _nothing:
            copy.info[name] = text
            continue
        del copy.info[name]
        left_out.append(f"info {name!r}")
    for name, array in atoms.arrays.items():
        if name in ("numbers", "positions") or _is_column(name, array):
            continue
        del copy.arrays[name]
        left_out.append(KNOWN_ARRAYS.get(name, f"array {name!r}"))
    return copy, left_out


_nothing = object()


def _writable(name: Any, value: Any) -> Any:
    """The value, or a text that ASE's reader turns into the value; `_nothing` if there is none."""
    if not isinstance(name, str) or name in OF_THE_FORMAT:
        return _nothing
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST):
        return value if _is_name_of_numbers(name) else _nothing
    return _readable(name, value)


@functools.cache
def _is_name_of_numbers(name: str) -> bool:
    return _readable(name, 1.5) is not _nothing


def _readable(name: str, value: Any) -> Any:
    for candidate in _candidates(value):
        try:
            text = key_val_dict_to_str({"before": 1, name: candidate, "behind": 2})
            got = key_val_str_to_dict(text)
        except Exception:  # any value may fail to parse
            continue
        expected = {"before": 1, name: value, "behind": 2}
        if len(text.splitlines()) == 1 and are_equal(expected, got):
            return candidate
    return _nothing


def _candidates(value: Any) -> Iterator[Any]:
    is_number = isinstance(value, numbers.Real | np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    )
    if is_number or isinstance(value, str | Spacegroup):
        yield value
    try:
        # The reader drops one of two backslashes.
        yield "_JSON " + json.dumps(value, default=_plain).replace("\\", "\\\\")
    except (TypeError, ValueError, RecursionError):
        return


def _plain(value: Any) -> Any:
    """Convert NumPy values for JSON."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufUO":
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _is_column(name: Any, array: np.ndarray) -> bool:
    """Whether ASE writes and reads the array under this name."""
    if not isinstance(name, str) or not _is_name_of_columns(name, array.dtype, array.shape[1:]):
        return False
    if array.dtype.kind == "U":
        return all(len(text.split()) == 1 for text in array.ravel().tolist())
    return array.dtype.kind != "i" or bool((np.abs(array) <= LARGEST).all())


@functools.cache
def _is_name_of_columns(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Whether ASE reads a small array of that kind as written."""
    small = Atoms("H2", [[0, 0, 0], [0, 0, 1]], info={"before": 1})
    ones = np.ones((2, *shape)).astype(dtype)
    small.arrays[name] = ones
    text = io.StringIO()
    try:
        ase.io.write(text, small, format="extxyz")
        text.seek(0)
        (got,) = ase.io.iread(text, ":", format="extxyz")
    except Exception:  # any name or kind may fail
        return False
    return losses(small, got) == [] and set(got.arrays) == set(small.arrays)
