"""Formats of outputs: refused before the run, or with one warning of what they do not keep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ase import Atoms
from ase.io.formats import UnknownFileTypeError

from basinax.cli.console import fail, print_warning
from basinax.structures.charges import some_of
from basinax.structures.formats.formats import Form, form_to_write
from basinax.structures.formats.held import in_words, losses, refusal


class Plan(NamedTuple):
    """The way in which structures are written to a file."""

    path: Path
    numbers: list[int]
    """Numbers of the structures in the file."""
    form: Form

    def write(self, path: Path, structures: Sequence[Atoms]) -> None:
        """Args: structures: all structures of the run."""
        self.form.write(path, (structures[k] for k in self.numbers))


def plans_of(
    files: Mapping[Path, list[int]],
    atoms: Sequence[Atoms],
    sources: list[str],
    have_stress: Sequence[bool],
) -> list[Plan]:
    """The plan of each file, made before the run; warns of the losses of each format.

    Args:
        files: the numbers of the structures in each file.
        have_stress: whether each structure's cell moves or its stress is computed.
    """
    plans, losing = [], dict[str, list[str]]()
    for path, numbers in files.items():
        try:
            form = form_to_write(path)
        except UnknownFileTypeError:
            fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
        images, names = [atoms[k] for k in numbers], [sources[k] for k in numbers]
        if reason := refusal(form.name, images, names):
            fail(f"{path}: {reason}")
        plans.append(Plan(path, numbers, form))
        if lost := losses(form.name, images, [have_stress[k] for k in numbers]):
            text = f"{form.title} does not keep {in_words(lost, names)}"
            losing.setdefault(text, []).append(str(path))
    for text, paths in losing.items():
        print_warning(f"{some_of(paths)}: {text}")
    return plans
