"""Losses of an output's format: refused before the run, or listed in one warning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ase import Atoms
from ase.io.formats import UnknownFileTypeError

from basinax._text.files import ending_of
from basinax.atoms._charges import some_of
from basinax.atoms._formats.formats import Form, form_to_write
from basinax.atoms._formats.trial import Trial, tried
from basinax.cli._console import fail, print_warning


class Plan(NamedTuple):
    """The way in which structures are written to a file."""

    path: Path
    numbers: list[int]
    """Numbers of the structures in the file."""
    form: Form
    trial: Trial

    def write(self, path: Path, structures: Sequence[Atoms]) -> None:
        """Args: structures: all structures of the run."""
        self.form.write(path, (self.trial.written(structures[k]) for k in self.numbers))


def plans_of(
    files: Mapping[Path, list[int]],
    atoms: Sequence[Atoms],
    sources: list[str],
    moving: Sequence[bool],
) -> list[Plan]:
    """The plan of each file, made before the run; warns of the losses of each format.

    Args:
        files: the numbers of the structures in each file.
        moving: whether each structure's cell moves or its stress is computed.
    """
    plans, losing = [], dict[str, list[str]]()
    for path, numbers in files.items():
        of: list[list[Any]] = [[x[k] for k in numbers] for x in (atoms, sources, moving)]
        form, trial = _tried(path, *of)
        plans.append(Plan(path, numbers, form, trial))
        if not form.can_read:
            losing.setdefault(
                f"ASE cannot read {form.title}: nothing shows what it keeps of results", []
            ).append(str(path))
        elif trial.lost:
            words = trial.in_words(of[1])
            losing.setdefault(f"{form.title} does not keep {words}", []).append(str(path))
    for text, paths in losing.items():
        print_warning(f"{some_of(paths)}: {text}")
    return plans


def _tried(
    path: Path, atoms: list[Atoms], sources: list[str], moving: list[bool]
) -> tuple[Form, Trial]:
    try:
        form = form_to_write(path)
    except UnknownFileTypeError:
        fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
    if not form.can_write:
        fail(f"{path}: ASE cannot write {form.title}: try --output with .extxyz")
    # Use a short name: some writers create locks with longer names beside the file.
    trial = tried(form, f"trial{ending_of(path)}", atoms, moving)
    if trial.fault is not None:
        which = "" if trial.fault.number is None else f"{sources[trial.fault.number]}: "
        fail(f"{path}: {which}{trial.fault.text}: try .extxyz")
    return form, trial
