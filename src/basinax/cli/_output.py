"""Outputs and their formats: what can be written, and how."""

import csv
import tempfile
import warnings
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase.io.formats import UnknownFileTypeError, filetype, ioformats
from rich.table import Table

from basinax import Status
from basinax.atoms import AtomsRelaxation
from basinax.atoms._trajectory import without_found
from basinax.cli._console import fail, out, print_line, text_of
from basinax.cli._task import Task

SHOWN = 10
"""Structures that did not converge and are named in the summary."""


def check_format(path: Path, structures: list[Any]) -> str:
    """The name of the format, of which one structure of each kind is written for trial."""
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
    return name


def write_structures(path: Path, form: str, result: AtomsRelaxation) -> None:
    for atoms, status, steps in zip(result.atoms, result.status, result.steps, strict=True):
        atoms.info["relax_status"] = Status(status).name.lower()
        atoms.info["relax_steps"] = int(steps)
    written = map(without_found, result.atoms) if form == "extxyz" else result.atoms
    ase.io.write(path, list(written), format=form)


def write_table(path: Path, task: Task, result: AtomsRelaxation) -> None:
    columns = ["source", "formula", "atoms", "status", "steps", "evaluations"]
    with path.open("w", newline="", encoding="utf-8") as file:
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
        print_line(out, f"{task.sources[k]} ({formula}): {Status(result.status[k]).meaning}")
    if len(failed) > SHOWN:
        print_line(out, f"... and {len(failed) - SHOWN} more")
    if paths:
        print_line(out, f"Written: {', '.join(map(str, paths))}")
