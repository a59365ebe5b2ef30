"""What formats hold of structures and results, and what is said of the rest before a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db.core import bytes_to_object, object_to_bytes
from ase.io.formats import ioformats
from ase.io.jsonio import decode, encode

from basinax.structures.formats.extxyz import NOTHING, entry_of, is_column

_GEOMETRY = "several others partial cell turned digits images"
_RESULTS = "energy energies forces stress"
_ARRAYS = "tags masses momenta charges moments vectors"
_CONSTRAINTS = (
    "FixAtoms FixCartesian FixScaled FixedPlane FixedLine FixCom FixSymmetry"
    " FixBondLengths FixInternals Hookean"
)

HOLDS = {
    name: frozenset(words.split())
    for name, words in {
        "extxyz": f"{_GEOMETRY} {_RESULTS} {_ARRAYS} FixAtoms FixCartesian info arrays",
        "traj": f"{_GEOMETRY} {_RESULTS} {_ARRAYS} {_CONSTRAINTS} info",
        "json": f"{_GEOMETRY} {_RESULTS} {_ARRAYS} {_CONSTRAINTS} info",
        "db": f"{_GEOMETRY} energy forces stress tags masses momenta charges moments"
        f" {_CONSTRAINTS} info",
        "aims": "cell turned digits images FixAtoms FixCartesian charges moments",
        "cif": "several others cell digits",
        "dlp4": "cell turned digits images",
        "gaussian-in": "cell turned digits images",
        "gen": "cell turned digits images",
        "gromacs": "cell turned images",
        "lammps-data": "closed cell digits images",
        "mol": "",
        "proteindatabank": "several cell images",
        "res": "closed cell digits",
        "sdf": "",
        "turbomole": "digits FixAtoms",
        "vasp": "closed cell turned digits images momenta FixAtoms FixScaled",
        "vasp-xdatcar": "closed several others cell turned digits images",
        "xsd": "cell turned digits images",
        "xsf": "several cell turned digits images forces",
    }.items()
}
"""What the formats of outputs hold, by ASE's name: constraints by their classes, and

- `several` structures, also of `others` atoms; `closed` formats want three lattice vectors
- cells, `partial` if directions are not periodic, and `turned` from the axes
- `digits` of positions to 0.00001 Å, and `images` of atoms outside the cell
- magnetic `moments` along one axis, or as `vectors`
"""

ARRAYS = {
    "tags": ("tags", "tags"),
    "masses": ("masses", "masses"),
    "momenta": ("momenta", "momenta"),
    "initial_charges": ("charges", "charges"),
    "initial_magmoms": ("moments", "magnetic moments"),
}
"""Arrays that have a meaning in ASE: the word of the table, and the name in messages."""

MOST_ATOMS = {"mol": 999, "sdf": 999}

WIDE = (-9999, 99999)

PLACES = {"proteindatabank": (-999, 9999), "gromacs": WIDE, "mol": WIDE, "sdf": WIDE}
"""The least and the largest coordinates (Å) in columns of a fixed width."""

RESULTS = {"energy": "energy", "energies": "energies of atoms", "forces": "forces"}

GEOMETRY: dict[str, tuple[str, Callable[[Atoms], Any]]] = {
    "cell": ("cell", lambda atoms: atoms.cell.rank),
    "partial": (
        "cells that are not periodic in all directions",
        lambda atoms: atoms.cell.rank and not atoms.pbc.all(),
    ),
    "turned": (
        "orientation of the cell",
        lambda atoms: np.triu(atoms.cell, 1).any() or (np.diag(atoms.cell) < 0).any(),
    ),
    "images": ("periodic images of atoms", lambda atoms: atoms.cell.rank == 3),
    "digits": ("digits of positions", len),
}
"""Names of losses in messages, and whether a structure has them."""

NAMED = 12
"""The largest number of losses in a message."""


def refusal(form: str, structures: Sequence[Atoms], sources: Sequence[str]) -> str | None:
    """The reason why no file of these structures can be made."""
    first, several, title = structures[0], len(structures) > 1, ioformats[form].description
    if form not in HOLDS:
        return f"results are not written as {title}: try .extxyz, which `ase convert` converts"
    holds = HOLDS[form]
    if several and "several" not in holds:
        return f"{title} holds one structure, not {len(structures)}: try .extxyz"
    for atoms, source in zip(structures, sources, strict=True):
        rank, has_cells = atoms.cell.rank, "cell" in holds
        if len(atoms) > (n := MOST_ATOMS.get(form, len(atoms))):
            return f"{source}: {title} holds {n} atoms, not {len(atoms)}: try .extxyz"
        least, most = PLACES.get(form, (-np.inf, np.inf))
        if (atoms.positions < least).any() or (atoms.positions > most).any():
            return f"{source}: {title} holds coordinates from {least} to {most} Å: try .extxyz"
        if several and "others" not in holds and not np.array_equal(atoms.numbers, first.numbers):
            return f"{source}: {title} holds the same atoms in all structures: try .extxyz"
        is_open = rank in (1, 2) or ("closed" in holds and rank == 0)
        if has_cells and "partial" not in holds and is_open:
            return f"{source}: {title} wants three lattice vectors: try .extxyz"
        if has_cells and "turned" not in holds and np.linalg.det(atoms.cell) < 0:
            return f"{source}: {title} has no left-handed cells: try .extxyz"
    return None


def losses(form: str, structures: Iterable[Atoms], have_stress: Iterable[bool]) -> dict[str, int]:
    """The names of what a file lacks, each with the number of the first structure that has it.

    Args:
        structures: the structures before the run.
        have_stress: whether each will have a stress.
    """
    holds, lost = HOLDS[form], dict[str, int]()
    for number, (atoms, has_stress) in enumerate(zip(structures, have_stress, strict=True)):
        names = [name for word, name in RESULTS.items() if word not in holds]
        names += ["stress"] if has_stress and "stress" not in holds else []
        names += ["status", "steps"] if "info" not in holds else []
        for word, (name, has) in GEOMETRY.items():
            is_there = has(atoms) or (word == "turned" and has_stress)  # a cell may turn in the run
            if word not in holds and is_there and ("cell" in holds or word in ("cell", "digits")):
                names.append(name)
        for name in (*names, *_kept(form, atoms).lost):
            lost.setdefault(name, number)
    return lost


def prepared(form: str, atoms: Atoms) -> tuple[Atoms, list[str]]:
    """A copy with the constraints, arrays and info that a file keeps, and names of the rest.

    Info and arrays that a format may use for entries of its own stay.
    """
    kept, copy = _kept(form, atoms), atoms.copy()
    copy.calc, copy.constraints = atoms.calc, kept.constraints
    originals = atoms.info
    copy.info = {k: copy.info[k] if x is originals[k] else x for k, x in kept.info.items()}
    for name in kept.dropped:
        del copy.arrays[name]
    if kept.dropped and isinstance(atoms.calc, SinglePointCalculator):
        # ASE gives results to a structure with the calculator's own charges and moments alone.
        copy.calc = SinglePointCalculator(copy)
        copy.calc.results = atoms.calc.results
    return copy, kept.lost


class _Kept(NamedTuple):
    """What a file keeps of a structure."""

    constraints: list[Any]
    dropped: list[str]
    """Arrays that it does not keep."""
    info: dict[str, Any]
    lost: list[str]
    """Names of the rest."""


def _kept(form: str, atoms: Atoms) -> _Kept:
    holds, dropped, info, lost = HOLDS[form], list[str](), dict[str, Any](), list[str]()
    constraints = [x for x in atoms.constraints if type(x).__name__ in holds]
    if len(constraints) < len(atoms.constraints):
        lost.append("constraints")
    for name, array in atoms.arrays.items():
        if name in ("numbers", "positions"):
            continue
        word, said = ARRAYS.get(name, ("arrays", f"array {name!r}"))
        word = "vectors" if word == "moments" and array.ndim > 1 else word
        if word not in holds or (form == "extxyz" and not is_column(name, array)):
            lost.append(said)
            if name in ARRAYS or form == "extxyz":
                dropped.append(name)
    for name, value in atoms.info.items():
        entry = entry_of(name, value) if form == "extxyz" else _in_json(form, name, value)
        if entry is not NOTHING:
            info[name] = entry
        if entry is NOTHING or "info" not in holds:
            lost.append(f"info {name!r}")
    return _Kept(constraints, dropped, info, lost)


def in_words(lost: Mapping[str, int], structures: Sequence[str]) -> str:
    """The losses as text; each entry of info or array with the first structure that has it.

    Args:
        structures: the names of all structures.
    """
    named = [
        f"{name[:80]} (of {structures[number]})"
        if len(structures) > 1 and name.startswith(("info ", "array "))
        else name[:80]
        for name, number in lost.items()
    ]
    n_more = len(named) - NAMED
    return ", ".join(named[:NAMED]) + (f" and {n_more} more" if n_more > 0 else "")


def _in_json(form: str, name: Any, value: Any) -> Any:
    """The value, or NOTHING if ASE's JSON, or its binary form in databases, has nothing like it."""
    try:
        if form == "db":
            bytes_to_object(object_to_bytes(value))
        else:
            decode(encode(value))
    except Exception:  # any value may fail
        return NOTHING
    return value if isinstance(name, str) else NOTHING
