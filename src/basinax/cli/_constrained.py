"""Constraints that options ask for, beside those that structures bring."""

from typing import Any

from ase import Atoms
from ase.constraints import FixAtoms, FixSymmetry

from basinax.cli._choice import chosen
from basinax.cli._console import fail, print_warning, reported
from basinax.cli._options import Given
from basinax.cli._unused import some_of


def constrain(atoms: list[Atoms], sources: list[str], given: Given) -> None:
    """Adds the constraints of --fix-atoms and --symmetrize to the structures."""
    if given.fix_atoms is not None:
        _fix(atoms, sources, given.fix_atoms)
    if given.symmetrize:
        _symmetrize(atoms, sources)


def _fix(atoms: list[Atoms], sources: list[str], text: str) -> None:
    n_fixed = 0
    for a, source in zip(atoms, sources, strict=True):
        x, y, z = a.positions.T
        values: dict[str, Any] = {"x": x, "y": y, "z": z, "tag": a.get_tags()}
        try:
            numbers = chosen(text, values, len(a))
        except ValueError as error:
            fail(f"--fix-atoms {text}: {source}: {error}")
        n_fixed += len(numbers)
        if numbers:
            a.set_constraint([*a.constraints, FixAtoms(numbers)])
    if not n_fixed:
        fail(f"--fix-atoms {text} holds of no atom of any structure")


def _symmetrize(atoms: list[Atoms], sources: list[str]) -> None:
    others = []
    for a, source in zip(atoms, sources, strict=True):
        if not a.pbc.all():
            others.append(source)
            continue
        with reported():
            a.set_constraint([*a.constraints, FixSymmetry(a)])
    if others:
        print_warning(
            f"--symmetrize leaves {some_of(others)} as they are: not periodic in three directions"
        )
