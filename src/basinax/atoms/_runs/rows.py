"""Entries of results as rows of ASE's databases, from which they come back in the same bits."""

import math
import os
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db.core import check, now, object_to_bytes
from ase.db.row import AtomsRow
from ase.io.jsonio import encode

from basinax._loop.status import Status
from basinax.atoms._result import Relaxed

NUMBER = "number"
"""The key-value pair with the place of a structure in the input, from 0."""

ARRAYS: dict[str, tuple[int, ...]] = {
    "initial_magmoms": (),
    "initial_charges": (),
    "masses": (),
    "tags": (),
    "momenta": (3,),
}
"""Arrays that rows have columns for, with the shape of an atom's entry; a row's data have them as
well, with their dtypes."""

PROPERTIES = ("energy", "free_energy", "forces", "stress", "dipole", "magmom", "magmoms", "charges")
"""Results that rows have columns for."""

_EXACT = ("energy", "free_energy", "forces", "stress")
"""Those that come back from their columns: double precision, and of one shape."""


def row_of(number: int, entry: Relaxed) -> tuple[AtomsRow, dict[str, Any], dict[str, Any]]:
    """The row of one structure, its key-value pairs and its data."""
    atoms = entry.atoms
    results = {} if atoms.calc is None else atoms.calc.results
    arrays = {x: atoms.arrays[x] for x in atoms.arrays if x not in ("numbers", "positions")}
    row = AtomsRow(
        {
            "numbers": atoms.numbers,
            "positions": atoms.positions,
            "cell": atoms.cell.array,
            "pbc": atoms.pbc,
            "constraints": [c for each in atoms.constraints if (c := _constraint(each))],
            "unique_id": uuid.uuid4().hex,
            "ctime": now(),
            "user": os.getenv("USER"),
            **{x: y for x, y in arrays.items() if y.shape[1:] == ARRAYS.get(x)},
            **{x: _as_column(results[x]) for x in PROPERTIES if results.get(x) is not None},
            **({"calculator": "basinax", "calculator_parameters": {}} if results else {}),
        }
    )
    texts = {"source": entry.source, "message": entry.message}
    data = {
        **texts,
        "info": _storable(atoms.info),
        "arrays": _storable(arrays),
        "order": list(results),
        "results": _storable({x: y for x, y in results.items() if x not in _EXACT}),
    }
    return row, _pairs(number, entry, texts), data


def entry_of(row: Any) -> tuple[int, Relaxed]:
    """The number of a structure and what became of it, of a row of a database."""
    data, pairs = row.data, row.key_value_pairs
    atoms = Atoms(row.numbers, row.positions, cell=row.cell, pbc=row.pbc)
    for name, array in data["arrays"].items():
        atoms.set_array(name, np.array(array))
    atoms.set_constraint(row.constraints)
    atoms.info = dict(data["info"])
    results = {x: row[x] for x in _EXACT if x in row} | dict(data["results"])
    if "calculator" in row:
        atoms.calc = SinglePointCalculator(atoms)
        found = {"energy": math.nan, "free_energy": math.nan} | results
        atoms.calc.results |= {name: found[name] for name in data["order"] if name in found}
    entry = Relaxed(
        atoms,
        results.get("energy", math.nan),
        pairs["largest_force"],
        pairs["steps"],
        pairs["evaluations"],
        status_of(pairs),
        data["source"],
        data["message"],
        pairs.get("initial_energy", math.nan),
        pairs.get("displacement", math.nan),
        pairs.get("seconds", math.nan),
        pairs.get("initial_volume"),
    )
    return pairs[NUMBER], entry


def status_of(pairs: Mapping[str, Any]) -> Status:
    """That of a row, by its key-value pairs."""
    return Status[pairs["status"].upper()]


def _pairs(number: int, entry: Relaxed, texts: Mapping[str, str]) -> dict[str, Any]:
    """Key-value pairs; a database has no NaN, and no text that is a number."""
    numbers = {
        NUMBER: number,
        "steps": entry.steps,
        "evaluations": entry.evaluations,
        "largest_force": entry.fmax,
        "initial_energy": entry.initial_energy,
        "displacement": entry.displacement,
        "seconds": entry.seconds,
        "initial_volume": math.nan if entry.initial_volume is None else entry.initial_volume,
    }
    pairs: dict[str, Any] = {x: y for x, y in numbers.items() if not math.isnan(y)}
    return pairs | {"status": str(entry.status)} | {x: y for x, y in texts.items() if _is_pair(y)}


def _is_pair(text: str) -> bool:
    try:
        check({"text": text})
    except ValueError:
        return False
    return bool(text)


def _constraint(constraint: Any) -> Any:
    """As ASE stores it; None for one that ASE cannot store."""
    try:
        stored = constraint.todict()
        encode(stored)
    except Exception:  # constraints have errors of their own
        return None
    return stored


def _storable(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Those that ASE can store; a warning names the others."""
    stored = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "US":
            value = value.tolist()
        try:
            object_to_bytes(value)
        except Exception:  # objects have errors of their own
            warnings.warn(f"no database of ASE holds {name!r} of a structure", stacklevel=2)
            continue
        stored[str(name)] = value
    return stored


def _as_column(value: Any) -> Any:
    return np.asarray(value, float) if np.ndim(value) else float(value)
