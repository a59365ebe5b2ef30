"""Losses of an output's format: refused before the run, or named in one warning."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ase import Atoms
from ase.io.formats import UnknownFileTypeError

from basinax._text.files import ending_of
from basinax.atoms._formats.formats import Form, form_to_write
from basinax.atoms._formats.trial import Trial, tried
from basinax.cli._console import fail, print_warning


class Plan(NamedTuple):
    """How structures go to a file."""

    form: Form
    trial: Trial

    def write(self, path: Path, structures: Sequence[Atoms]) -> None:
        self.form.write(path, map(self.trial.written, structures))


def plan_of(path: Path, atoms: Sequence[Atoms], sources: list[str], moving: Sequence[bool]) -> Plan:
    """The way to write results, found before the run; warns of what they lose there.

    Args:
        moving: whether the cell of each structure moves, or its stress is found.
    """
    try:
        form = form_to_write(path)
    except UnknownFileTypeError:
        fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
    if not form.can_write:
        fail(f"{path}: ASE cannot write {form.title}")
    # A short name: writers put locks beside a file, whose names are longer.
    trial = tried(form, f"trial{ending_of(path)}", list(atoms), list(moving))
    if trial.fault is not None:
        which = "" if trial.fault.number is None else f"{sources[trial.fault.number]}: "
        fail(f"{path}: {which}{trial.fault.text}: try .extxyz")
    if not form.can_read:
        print_warning(
            f"{path}: ASE cannot read {form.title}: nothing shows what it keeps of results"
        )
    elif trial.lost:
        print_warning(f"{path}: {form.title} does not keep {trial.in_words(sources)}")
    return Plan(form, trial)
