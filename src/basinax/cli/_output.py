"""Outputs: checked before a run, written after it."""

import csv
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase.io.formats import UnknownFileTypeError, filetype, ioformats
from rich.table import Table

from basinax import Status
from basinax.atoms import AtomsRelaxation
from basinax.atoms._trajectory import make_folder, without_found
from basinax.cli._console import fail, out, text_of
from basinax.cli._inputs import file_and_images
from basinax.cli._task import Task

SHOWN = 10
"""Structures that did not converge and are named in the summary."""


def check_writable(path: Path | None, inputs: list[Path]) -> None:
    """Before any work: an output that cannot be written would lose it."""
    if path is None:
        return
    if any(path.resolve() == file_and_images(other)[0].resolve() for other in inputs):
        fail(f"{path} is an input: choose another output")
    if path.is_dir():
        fail(f"{path} is a folder: expected a file to write")
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")


def check_folder(path: Path) -> None:
    try:
        make_folder(path)
    except OSError as error:
        fail(f"{path} cannot be written to: {error.strerror}")


def check_format(path: Path, structures: list[Any]) -> None:
    """Writes one structure of each kind, for trial."""
    try:
        name = filetype(path, read=False)
        known = ioformats[name]
    except (UnknownFileTypeError, KeyError):
        fail(f"{path}: ASE knows no format for {path.suffix or 'a name without an ending'}")
    if not known.can_write:
        fail(f"{path}: ASE cannot write {known.description}")
    if known.single and len(structures) > 1:
        count = len(structures)
        fail(f"{path}: {known.description} holds one structure, not {count}: try .extxyz")
    kinds = {(*sorted(atoms.arrays), *map(str, atoms.info)): atoms for atoms in structures}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        for atoms in kinds.values():
            written = without_found(atoms) if name == "extxyz" else atoms
            try:
                ase.io.write(Path(folder) / path.name, written, format=name)
            except Exception as error:  # every writer of ASE has errors of its own
                what = f"{atoms.symbols} as {known.description}: {text_of(error)}"
                fail(f"{path}: ASE cannot write {what}: try .extxyz")


def write_structures(path: Path, task: Task, result: AtomsRelaxation) -> None:
    for atoms, status, steps in zip(result.atoms, result.status, result.steps, strict=True):
        atoms.info["relax_status"] = Status(status).name.lower()
        atoms.info["relax_steps"] = int(steps)
    form = filetype(path, read=False)
    written = map(without_found, result.atoms) if form == "extxyz" else result.atoms
    with _replacing(path) as partial:
        ase.io.write(partial, list(written), format=form)


def write_table(path: Path, task: Task, result: AtomsRelaxation) -> None:
    columns = ["source", "formula", "atoms", "status", "steps", "evaluations"]
    with _replacing(path) as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "energy_eV", "fmax_eV_per_A"])
        for k, atoms in enumerate(result.atoms):
            writer.writerow(
                [
                    task.sources[k],
                    atoms.get_chemical_formula(),
                    len(atoms),
                    Status(result.status[k]).name.lower(),
                    result.steps[k],
                    result.evaluations[k],
                    repr(float(result.energies[k])),
                    repr(float(result.fmax[k])),
                ]
            )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, of its ending, that takes its place once it is whole."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or text_of(error)}")
    except Exception as error:  # every writer of ASE has errors of its own
        fail(f"{path} cannot be written: {text_of(error)}")
    finally:
        partial.unlink(missing_ok=True)


def print_summary(task: Task, result: AtomsRelaxation, paths: list[Path]) -> None:
    table = Table("status", box=None, pad_edge=False)
    for title in ("structures", "steps, median", "steps, most", "largest fmax (eV/Å)"):
        table.add_column(title, justify="right")
    for status in Status:
        of = result.status == status
        if of.any():
            steps, fmax = result.steps[of], result.fmax[of]
            table.add_row(
                status.name.lower(),
                str(of.sum()),
                f"{np.median(steps):g}",
                str(steps.max()),
                f"{fmax.max():.3g}",
            )
    out.print(table)
    failed = np.flatnonzero(~result.converged)
    for k in failed[:SHOWN]:
        formula = task.atoms[k].get_chemical_formula()
        out.print(f"{task.sources[k]} ({formula}): {Status(result.status[k]).meaning}")
    if len(failed) > SHOWN:
        out.print(f"... and {len(failed) - SHOWN} more")
    out.print(f"Written: {', '.join(map(str, paths))}")
