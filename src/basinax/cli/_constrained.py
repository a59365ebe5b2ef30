"""Constraints from options, in addition to those of the structures."""

from typing import Any

from ase import Atoms
from ase.constraints import FixAtoms, FixSymmetry

from basinax._settings import said
from basinax.atoms._charges import some_of
from basinax.atoms._intake import intake
from basinax.cli._choice import chosen
from basinax.cli._console import fail, print_warning, reported, with_sources
from basinax.cli._options import Given


def constrain(atoms: list[Atoms], sources: list[str], given: Given) -> None:
    """Add the constraints of --fix-atoms and --symmetrize to the structures."""
    n_fixed, not_symmetrized = 0, []
    for a, source in zip(atoms, sources, strict=True):
        with reported():
            n_fixed += constrain_one(a, source, given)
        if given.symmetrize and not a.pbc.all():
            not_symmetrized.append(source)
    if given.fix_atoms is not None and not n_fixed:
        fail(f"--fix-atoms {given.fix_atoms} holds of no atom of any structure")
    if not_symmetrized:
        print_warning(
            f"--symmetrize leaves {some_of(not_symmetrized)} as they are: not periodic in three"
            " directions"
        )


def constrain_one(atoms: Atoms, source: str, given: Given) -> int:
    """Add these constraints to one structure; return the number of fixed atoms.

    Raises:
        ValueError: they do not fit the structure.
    """
    n_fixed = 0
    if given.fix_atoms is not None:
        n_fixed = _fix(atoms, source, given.fix_atoms)
    if given.symmetrize and atoms.pbc.all():
        try:
            intake([atoms])  # spglib ends the process where a cell is not finite
            kept = FixSymmetry(atoms)
        except Exception as error:  # spglib raises errors of its own
            text = with_sources(said(error), [source])
            raise ValueError(f"--symmetrize finds no symmetry of {source}: {text}") from error
        atoms.set_constraint([*atoms.constraints, kept])
    return n_fixed


def _fix(atoms: Atoms, source: str, text: str) -> int:
    x, y, z = atoms.positions.T
    values: dict[str, Any] = {"x": x, "y": y, "z": z, "tag": atoms.get_tags()}
    try:
        numbers = chosen(text, values, len(atoms))
    except ValueError as error:
        raise ValueError(f"--fix-atoms {text}: {source}: {error}") from None
    if numbers:
        atoms.set_constraint([*atoms.constraints, FixAtoms(numbers)])
    return len(numbers)
