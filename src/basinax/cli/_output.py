"""Outputs and their formats: what can be written, and how."""

import csv
from pathlib import Path

import numpy as np
from rich.table import Table

from basinax._loop.status import Status
from basinax.atoms import AtomsRelaxation
from basinax.cli._console import out, print_line
from basinax.cli._contents import Plan
from basinax.cli._task import Task

SHOWN = 10
"""Structures that did not converge and are named in the summary."""


def write_structures(path: Path, plan: Plan, result: AtomsRelaxation) -> None:
    for atoms, status, steps in zip(result.atoms, result.status, result.steps, strict=True):
        atoms.info["relax_status"] = Status(status).name.lower()
        atoms.info["relax_steps"] = int(steps)
    plan.write(path, result.atoms)


def write_table(path: Path, task: Task, result: AtomsRelaxation) -> None:
    columns = ["source", "formula", "atoms", "status", "steps", "evaluations"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "energy_eV", "fmax_eV_per_A", "message"])
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
                    result.messages[k],
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
        reason = result.messages[k] or Status(result.status[k]).meaning
        print_line(out, f"{task.sources[k]} ({formula}): {reason}")
    if len(failed) > SHOWN:
        print_line(out, f"... and {len(failed) - SHOWN} more")
    if paths:
        print_line(out, f"Written: {', '.join(map(str, paths))}")
