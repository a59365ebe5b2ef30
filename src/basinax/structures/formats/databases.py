"""Structures of ASE databases, key-value pairs and data included.

A structure's `info` holds key-value pairs under their own names, and data in `info["data"]`, as in
ASE. Other entries become pairs if ASE allows it, and data otherwise.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ase.db
from ase import Atoms
from ase.db.core import check
from ase.db.row import AtomsRow

FORMATS = ("db", "json")

DATA = "data"


def read(file: Any, form: str, images: slice | str) -> Iterator[Atoms]:
    """The structures of some rows.

    Args:
        file: the name of the file, or the open file for JSON.
        images: a slice of the rows, or the text of a query.
    """
    database: Any = ase.db.connect(file, type=form, serial=True)
    with database:
        if isinstance(images, str):
            rows = database.select(images)
        else:
            start, stop, step = images.indices(database.count())
            if step != 1:
                rows = list(database.select())[images]
            else:
                rows = database.select(offset=start, limit=stop - start) if start < stop else []
        for row in rows:
            atoms = row.toatoms()
            atoms.info |= row.key_value_pairs
            data = dict(row.get(DATA) or {})
            if "charge" in data:  # rows have an attribute of this name, so it is no pair
                atoms.info["charge"] = data.pop("charge")
            if data:
                atoms.info[DATA] = data
            yield atoms


def count(path: Path) -> int:
    """The number of rows of an SQLite database."""
    database: Any = ase.db.connect(path, type="db", serial=True)
    with database:
        return database.count()


def write(path: Path, form: str, structures: Iterable[Atoms]) -> None:
    """Make a database of the structures."""
    database: Any = ase.db.connect(path, type=form, append=False, serial=True)
    with database:
        for atoms in structures:
            pairs, data = _sorted(atoms.info)
            database.write(atoms, key_value_pairs=pairs, data=data)


def _sorted(info: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Entries that become key-value pairs, and entries that become data."""
    pairs, data = {}, {}
    for name, value in info.items():
        if _is_pair(name, value):
            pairs[name] = value
        elif name != DATA or not isinstance(value, Mapping):
            data[name] = value
    nested = info.get(DATA)
    return pairs, data | dict(nested) if isinstance(nested, Mapping) else data


def _is_pair(name: Any, value: Any) -> bool:
    # Some names are attributes of rows, which hide a pair of the same name.
    if not isinstance(name, str) or name.startswith("_") or hasattr(AtomsRow, name):
        return False
    if name == "external_tables":
        return False
    try:
        # ASE warns if a name is a chemical formula too; the name is the user's choice.
        with warnings.catch_warnings(action="ignore"):
            check({name: value})
    except (TypeError, ValueError):
        return False
    return True
