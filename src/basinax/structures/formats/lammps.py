"""LAMMPS data files: elements from masses and comments, never from the numbers of types."""

import re
from collections.abc import Callable

import numpy as np
from ase import Atoms
from ase.data import atomic_masses, atomic_numbers

Say = Callable[[str], None]
Read = Callable[[str], list[Atoms]]

HEAD = rb"(?m)^[ \t]*\S+[ \t]+\S+[ \t]+(xlo[ \t]+xhi|\S+[ \t]+avec)\b"
"""A line that every data file has."""

UNLIKE = 0.6
"""The largest deviation from an element's mass, in u: many files have whole numbers."""

DEUTERIUM = 2.014


def structures_of_data(text: str, read: Read, say: Say) -> list[Atoms]:
    """The structure of a data file, with elements by the masses or labels of its types.

    Raises:
        ValueError: the file does not say its elements, or has lengths in other units than Å.
    """
    units = re.search(r"\bunits\s*=\s*(\w+)", text.partition("\n")[0])
    if units and units[1] not in ("metal", "real"):
        raise ValueError(f"its units are {units[1]}: expected metal or real")
    masses = _rows(text, "Masses")
    labels = [label for _, label, _ in _rows(text, "Atom Type Labels")]
    first = re.search(r"^[ \t]*Atoms\b.*\n\s*(.*)", text, re.MULTILINE)
    if first and {*first[1].split()} & {*labels}:
        raise ValueError("its atoms have labels in place of types, which ASE does not read")
    if not (masses or (labels and all(label in atomic_numbers for label in labels))):
        raise ValueError(
            "it does not say which elements its types of atoms are: add a section Masses"
        )
    (image,) = read(text)
    types = image.arrays["type"]
    kinds = re.search(r"^\s*(\d+)\s+atom\s+types", text, re.MULTILINE)
    if kinds and (types > int(kinds[1])).any():
        raise ValueError(
            f"an atom has type {types.max()} of {kinds[1]}: write the style behind Atoms, as in"
            " Atoms # charge"
        )
    for kind, mass, comment in masses:
        of_kind = types == int(kind)
        if of_kind.any():
            image.numbers[of_kind] = _number(kind, float(mass), comment)
    return [image]


def _rows(text: str, section: str) -> list[tuple[str, str, str]]:
    """The type, value and comment in each line of a section."""
    pattern = rf"^[ \t]*{section}\b.*\n((?:[ \t]*(?:[\d#].*)?(?:\n|$))*)"
    found = re.search(pattern, text, re.MULTILINE)
    parts = [line.partition("#") for line in (found[1].splitlines() if found else [])]
    rows = [(*before.split(), comment.strip()) for before, _, comment in parts]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def _number(kind: str, mass: float, comment: str) -> int:
    """The element of a type: of its comment if that has the mass, or else of its mass."""
    named = re.match(r"([A-Z][a-z]?)(?![a-z])", comment)
    number = atomic_numbers.get(named[1], 0) if named else 0
    if not number or abs(atomic_masses[number] - mass) > UNLIKE:
        number = int(np.argmin(np.abs(atomic_masses[1:] - mass))) + 1
    if abs(atomic_masses[number] - mass) > UNLIKE and abs(mass - DEUTERIUM) > 0.1:
        raise ValueError(f"its type {kind} has mass {mass:g}, which no element has")
    return number
