"""The contents of outputs, and their formats.

A format is refused before the run, or there is one warning of what it does not keep.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ase import Atoms
from ase.io.formats import UnknownFileTypeError

from basinax.cli.console import fail, print_warning
from basinax.results.record import Relaxed
from basinax.results.result import AtomsRelaxation
from basinax.results.table import Columns
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
        form = form_of(path)
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


def form_of(path: Path) -> Form:
    """The format of a file to be written; exits with an error if there is none."""
    try:
        form = form_to_write(path)
    except UnknownFileTypeError:
        fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
    if not form.can_write(path):
        fail(f"{path}: {form.title} is never packed: choose a name without {path.suffix}")
    return form


class Found(NamedTuple):
    """Structures to write, and the table."""

    atoms: list[Atoms]
    sources: list[str]
    """The name of each structure."""
    numbers: list[int]
    """The number in the input of what each structure is or belongs to."""
    columns: Columns
    plot: Callable[[], Any] | None = None
    """Draws a picture and returns its axes of matplotlib, if there is one."""


def found_structures(
    numbers: list[int], result: AtomsRelaxation, info: Sequence[str] = ()
) -> Found:
    """The structures, with source, number, status and steps in their `info`.

    Those that could not be read are in the table alone.
    """
    columns, read = result.to_dict(info), read_of(numbers, result)
    for number, entry in read.items():
        entry.atoms.info |= named_in_info(number, entry)
    written = AtomsRelaxation(list(read.values()))
    return Found(written.atoms, written.sources, list(read), columns)


def read_of(numbers: list[int], result: AtomsRelaxation) -> dict[int, Relaxed]:
    """The structures or paths that could be read, by number; others have no atoms."""
    return {k: entry for k, entry in zip(numbers, result, strict=True) if entry.n_atoms}


def named_in_info(number: int, entry: Relaxed) -> dict[str, Any]:
    return {
        "relax_status": str(entry.status),
        "relax_steps": entry.steps,
        "relax_source": entry.source,
        "relax_number": number,
    }


def have_stress(structures: Sequence[Atoms]) -> list[bool]:
    return [a.calc is not None and "stress" in a.calc.results for a in structures]
