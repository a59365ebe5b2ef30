"""Conversion of results to rows of ASE's databases and back, with the same bits."""

import functools
import math
import os
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from ase import Atoms
from ase.constraints import dict2constraint
from ase.data import chemical_symbols
from ase.db.core import (
    bytes_to_object,
    convert_str_to_int_float_bool_or_str,
    now,
    object_to_bytes,
)
from ase.db.row import AtomsRow
from ase.io.jsonio import decode, encode

from basinax.minimize.status import Status
from basinax.numerics.settings import warn
from basinax.results.history import History
from basinax.results.record import Relaxed
from basinax.results.report.curves import Curve
from basinax.results.snapshot import Template
from basinax.results.table import Column, fields_of
from basinax.runs.values import parted, restored, stored

T = TypeVar("T", bound=Relaxed)

NUMBER = "number"
"""The key of a structure's place in the input, from 0."""

ENDED = [str(status) for status in Status if status is not Status.RUNNING]
"""The statuses of rows."""

LARGEST = np.iinfo(np.int32).max
"""The largest count."""

ARRAYS: dict[str, tuple[int, ...]] = {
    "initial_magmoms": (),
    "initial_charges": (),
    "masses": (),
    "tags": (),
    "momenta": (3,),
}
"""Arrays with a column in the database, with the shape of one atom's entry. The data of a row hold
them as well, with their dtypes."""

PROPERTIES = ("energy", "free_energy", "forces", "stress", "dipole", "magmom", "magmoms", "charges")
"""Results with a column in the database."""

BLOBS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "numbers": (np.int32, (-1,)),
    "positions": (float, (-1, 3)),
    "cell": (float, (3, 3)),
    "forces": (float, (-1, 3)),
    "stress": (float, (6,)),
}
"""The types and shapes of columns with arrays."""

_EXACT = ("energy", "free_energy", "forces", "stress")
"""Results that their columns preserve: double precision, of one shape."""


COLUMNS = ("numbers", "positions", "cell", "pbc", "constraints", *_EXACT, "data")
"""The columns from which a record is made."""

POINTS = 128
"""The largest number of points of a structure's curve in a row."""


def not_kept(atoms: Atoms) -> list[str]:
    """The names of parts of a structure that no row can hold."""
    info, arrays = parted(atoms.info)[1], parted(atoms.arrays)[1]
    kinds = [type(each).__name__ for each in atoms.constraints if _constraint(each) is None]
    named = [f"info {name!r}" for name in info] + [f"array {name!r}" for name in arrays]
    return named + [f"constraint {kind}" for kind in kinds]


@functools.cache
def pairs_of(kind: type) -> dict[str, Column]:
    """The fields of a class of records that rows hold as key-value pairs, by name."""
    return {name: column for name, column in fields_of(kind).items() if column.key}


def row_of(number: int, entry: Relaxed) -> AtomsRow:
    """The row of one structure, with its key-value pairs and data.

    ASE stores pairs and data that belong to the row unchanged, but checks those given separately.
    """
    template, results = entry.template, entry.results
    values = {name: getattr(entry, name) for name in pairs_of(type(entry))}
    arrays = {name: x for name, x in template.arrays.items() if name != "numbers"}
    columns = {
        "numbers": template.arrays["numbers"],
        "positions": entry.positions,
        "cell": entry.cell,
        "pbc": template.pbc,
        "constraints": [c for each in template.constraints if (c := _constraint(each))],
        "unique_id": uuid.uuid4().hex,
        "ctime": now(),
        "user": os.getenv("USER"),
        "key_value_pairs": {NUMBER: number} | _pairs(values, type(entry)),
        **{x: y for x, y in arrays.items() if y.shape[1:] == ARRAYS.get(x)},
        **{x: _as_column(results[x]) for x in PROPERTIES if results.get(x) is not None},
        **({"calculator": "basinax", "calculator_parameters": {}} if results else {}),
    }
    others, lost = parted({x: y for x, y in results.items() if x not in _EXACT})
    for name in lost:
        warn(f"no database of ASE holds the result {name!r} of a structure")
    data = {
        **{name: text for name, text in values.items() if type(text) is str},
        "info": stored(parted(template.info)[0]),
        "arrays": stored(parted(arrays)[0]),
        "order": list(results),
        "results": stored(others),
        **({} if entry.history is None else {"curve": _stored_curve(entry.history)}),
    }
    return AtomsRow(columns | {"data": object_to_bytes(data)})


def entry_of(pairs: Mapping[str, Any], *values: Any, kind: type[T]) -> tuple[int, T]:
    """The number and the record of a structure.

    Args:
        pairs: the key-value pairs of a row, checked.
        values: those of `COLUMNS`.
    """
    row = dict(zip(COLUMNS, values, strict=True))
    data = bytes_to_object(row["data"])
    fields = {name: _value_of(name, x, pairs, data) for name, x in pairs_of(kind).items()}
    place = {name: _array_of(row[name], *BLOBS[name]) for name in ("numbers", "positions", "cell")}
    arrays = {"numbers": place["numbers"].astype(int)}
    arrays |= {name: np.array(array) for name, array in restored(data["arrays"]).items()}
    _check_shapes(arrays, place)
    stored_constraints: Any = decode(row["constraints"] or "[]")
    constraints = [dict2constraint(each) for each in stored_constraints]
    pbc = np.array([row["pbc"] >> k & 1 for k in range(3)], bool)
    template = Template(Atoms, arrays, pbc, restored(data["info"]), constraints)
    found: dict[str, Any] = {"energy": math.nan, "free_energy": math.nan}
    for name in _EXACT:
        if row[name] is not None:
            found[name] = _array_of(row[name], *BLOBS[name]) if name in BLOBS else row[name]
    found |= restored(data["results"])
    for name in ("energy", "free_energy"):
        check_number(name, found[name], float)
    if np.shape(found.get("forces", place["positions"])) != place["positions"].shape:
        n_atoms = len(place["positions"])
        raise ValueError(f"{len(found['forces'])} forces for {n_atoms} atoms")
    results = {name: found[name] for name in data["order"] if name in found}
    fields |= {"positions": place["positions"], "cell": place["cell"]}
    return pairs[NUMBER], kind(template=template, results=results, **fields)


def _array_of(blob: bytes, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The array in a column, which ASE stores with the least byte first."""
    return np.frombuffer(blob, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)


def _check_shapes(arrays: dict[str, np.ndarray], place: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless the arrays are those of one structure of known elements."""
    numbers = arrays["numbers"]
    if not ((numbers >= 0) & (numbers < len(chemical_symbols))).all():
        raise ValueError(f"its atoms have the numbers {numbers.tolist()}")
    shapes = {"positions": (len(numbers), 3), "cell": (3, 3)}
    for name, array in (arrays | place).items():
        if array.shape != shapes.get(name, (len(numbers), *array.shape[1:])):
            raise ValueError(f"its {name} have the shape {array.shape}")


def _value_of(name: str, column: Column, pairs: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    """The value of a field, from the key-value pairs and the data of a row."""
    if column.type is Status:
        return status_of(pairs)
    if column.type is str:
        if not isinstance(data[name], str):
            raise ValueError(f"its {name} is no text")
        return data[name]
    if column.key in pairs:
        return pairs[column.key] if column.type is int else float(pairs[column.key])
    return math.nan


def curve_of(data: Any) -> Curve | None:
    """The convergence curve in a row's data; energies relative to the lowest."""
    data = bytes_to_object(data)
    if "curve" not in data:
        return None
    evaluations, energies, fmax = np.array(data["curve"], np.float32)
    return Curve(energies, fmax, evaluations)


def source_of(data: Any) -> str:
    """The source in a row's data; the pairs of a row lack one that looks like a number."""
    return str(bytes_to_object(data)["source"])


def info_of(data: Any) -> dict[Any, Any]:
    """The `info` in a row's data."""
    return restored(bytes_to_object(data)["info"])


def _stored_curve(history: History) -> np.ndarray:
    """Evaluations, energies relative to the lowest (eV) and fmax (eV/Å), in single precision."""
    energies = history.energies
    with np.errstate(all="ignore"):  # a structure that exploded overflows
        lowest = energies[np.isfinite(energies)].min(initial=np.inf)
        columns = history.evaluations, energies - lowest, history.fmax
        return np.array(columns).astype(np.float32)


def status_of(pairs: Mapping[str, Any]) -> Status:
    """The status of a row, from its key-value pairs."""
    return Status(pairs["status"])


def check_number(name: str, value: Any, kind: Any) -> None:
    """Raise ValueError unless a value of a row is a number that counts, or measures, something."""
    if kind is int and type(value) is int and 0 <= value <= LARGEST:
        return
    if kind is not int and type(value) in (int, float):
        return
    raise ValueError(f"its {name} is {value!r}")


def checked_pairs(pairs: Any, kind: type[Relaxed]) -> dict[str, Any]:
    """The key-value pairs of a row; raises ValueError if they are not those of a structure."""
    if not isinstance(pairs, dict):
        raise ValueError(f"the key-value pairs of a row are {pairs!r}")
    check_number(NUMBER, pairs.get(NUMBER), int)
    for column in pairs_of(kind).values():
        key, value = column.key, pairs.get(column.key)
        is_right = {Status: value in ENDED, str: isinstance(pairs.get(key, ""), str)}
        if column.type not in is_right:
            check_number(key, value if column.type is int else pairs.get(key, 0.0), column.type)
        elif not is_right[column.type]:
            raise ValueError(f"the {key} of structure {pairs[NUMBER]} is {value!r}")
    return pairs


def _pairs(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Key-value pairs; a database accepts neither NaN nor a text that looks like a number."""
    found = {column.key: values[name] for name, column in pairs_of(kind).items()}
    return {
        key: str(x) if isinstance(x, str) else x
        for key, x in found.items()
        if (_is_pair(x) if isinstance(x, str) else _is_number(x))
    }


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _is_pair(text: str) -> bool:
    return bool(text) and isinstance(convert_str_to_int_float_bool_or_str(text), str)


def _constraint(constraint: Any) -> Any:
    """The constraint in ASE's stored form; None if ASE cannot store it."""
    try:
        stored = constraint.todict()
        encode(stored)
    except Exception:  # constraints may raise errors of any class
        return None
    return stored


def _as_column(value: Any) -> Any:
    return np.asarray(value, float) if np.ndim(value) else float(value)
