"""Files of the Protein Data Bank: cells, elements, places and charges, where ASE reads others."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ase import Atoms
from ase.data import atomic_numbers

from basinax.structures.formats.names import element_of

Say = Callable[[str], None]

Read = Callable[[str], list[Atoms]]
"""ASE's reader of a text."""

IDENTITY = re.compile(r"MTRIX1.{4}\s+1\.0+\s+0\.0+\s+0\.0+\s+0\.0+")

CHARGE = re.compile(r"(\d)([-+])|([-+])(\d)")


class _Model(NamedTuple):
    """The lines of a model."""

    cell: str | None
    atoms: list[str]


def structures_of_pdb(text: str, read: Read, say: Say) -> list[Atoms]:
    """The models of a file, with elements, cells and formal charges as the format means them.

    Raises:
        ValueError: an atom has several places, or no element that is clear, or symmetry adds atoms.
    """
    lines = text.splitlines()
    models = list(_models(lines))
    turns = [line for line in lines if line.startswith("MTRIX1") and line[59:60] != "1"]
    if not all(map(IDENTITY.match, turns)):
        raise ValueError("it has atoms that only its MTRIX records add: add them")
    named = [line for _, atoms in models for line in atoms if not _element_in(line)]
    is_aligned = not any(re.match(r"[A-Z]\d* ", line[12:16]) for line in named)
    if named:
        say(
            f"{len(named)} of its atoms have no element in columns 77 and 78:"
            " elements are taken from names"
        )
    images = []
    for cell, atoms in models:
        _check_places(atoms)
        whole = [_with_element(line, is_aligned=is_aligned) for line in atoms]
        (image,) = read("\n".join([*([cell] if cell else []), *whole, "END", ""]))
        charges = [_charge_in(line) for line in atoms]
        if any(charges):
            image.set_initial_charges(charges)
        images.append(image)
    return images


def _models(lines: list[str]) -> Iterator[_Model]:
    """The models; a cell holds for all that follow."""
    cell, atoms = None, []
    for line in lines:
        if line.startswith("CRYST1"):
            cell = line if _is_crystal(line) else None
            if cell and line[55:66].replace(" ", "") not in ("", "P1"):
                raise ValueError(
                    f"it has atoms that only symmetry adds ({line[55:66].strip()}), which ASE does"
                    " not read: add them, or remove CRYST1 for a molecule"
                )
        elif line.startswith(("ATOM", "HETATM")):
            atoms.append(line)
        elif line.startswith("END") and atoms:
            yield _Model(cell, atoms)
            atoms = []
    if atoms:
        yield _Model(cell, atoms)


def _is_crystal(line: str) -> bool:
    """Whether the cell is more than the unit cube, which stands for none."""
    lengths = line[6:33].split()
    return not all(re.fullmatch(r"[01](\.0*)?|\.0+", x) for x in lengths)


def _check_places(atoms: list[str]) -> None:
    of_atoms: dict[tuple[str, str], str] = {}
    of_residues: dict[str, str] = {}
    for line in atoms:
        here = line[16:17]
        mark = of_atoms.setdefault((line[12:16], line[17:27]), here)
        if here.strip() and mark == here:  # residues of two kinds may share a place, too
            mark = of_residues.setdefault(line[21:27], here)
        if mark != here:
            raise ValueError(
                f"atom {line[12:16].strip()} of residue {line[17:20].strip()}"
                f" {line[22:27].strip()} stands at alternate places {mark.strip() or 'blank'} and"
                f" {here.strip() or 'blank'}: keep one"
            )


def _element_in(line: str) -> str:
    """The element in its columns; empty if they hold none."""
    symbol = line[76:78].strip().capitalize()
    symbol = "H" if symbol == "D" else symbol
    return symbol if symbol in atomic_numbers else ""


def _with_element(line: str, *, is_aligned: bool) -> str:
    """The line with its element, and without what may stand behind."""
    name, residue = line[12:16], line[17:21]
    is_at_left = name[:1].isalpha()
    # Names of four characters begin there in any case, and so do all of some programs.
    is_clear = (is_aligned and len(name.strip()) < 4) or not is_at_left
    symbol = _element_in(line) or element_of(name, residue, is_at_left if is_clear else None)
    if symbol is None:
        raise ValueError(
            f"the element of atom {name.strip()} of residue {residue.strip()} is not clear: write"
            " it in columns 77 and 78"
        )
    return f"{line[:76]:76}{symbol:>2}"


def _charge_in(line: str) -> int:
    """The formal charge in e; 0 if its columns hold none."""
    found = CHARGE.fullmatch(line[78:80].strip()) if _element_in(line) else None
    return int(f"{found[2] or found[3]}{found[1] or found[4]}") if found else 0
