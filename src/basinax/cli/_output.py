"""The file of structures and the summary."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from basinax._loop.status import Status
from basinax.atoms import AtomsRelaxation
from basinax.atoms._table import writer_of
from basinax.cli._console import out, print_line
from basinax.cli._contents import Plan
from basinax.cli._task import Task

SHOWN = 10
"""Structures that did not converge and are named in the summary."""


def write_structures(path: Path, plan: Plan, result: AtomsRelaxation) -> None:
    for number, entry in enumerate(result):
        entry.atoms.info |= {
            "relax_status": str(entry.status),
            "relax_steps": entry.steps,
            "relax_source": entry.source,
            "relax_number": number,
        }
    plan.write(path, result.atoms)


def write_table(path: Path, result: AtomsRelaxation) -> None:
    writer_of(path)(path, result.to_dict())


def print_first(numbers: Sequence[int], line_of: Callable[[int], str]) -> None:
    """The lines of some structures, and how many more there are."""
    for number in numbers[:SHOWN]:
        print_line(out, line_of(number))
    if len(numbers) > SHOWN:
        print_line(out, f"... and {len(numbers) - SHOWN} more")


def print_summary(task: Task, result: AtomsRelaxation, paths: list[Path]) -> None:
    table = Table("status", box=None, pad_edge=False)
    for title in ("structures", "steps, median", "steps, most", "largest fmax (eV/Å)"):
        table.add_column(title, justify="right")
    for status in Status:
        of = result.status == status
        if of.any():
            steps, fmax = result.steps[of], result.fmax[of]
            table.add_row(
                str(status),
                str(of.sum()),
                f"{np.median(steps):g}",
                str(steps.max()),
                f"{fmax.max():.3g}",
            )
    out.print(table)

    def line_of(k: int) -> str:
        formula = task.atoms[k].get_chemical_formula()
        reason = result.messages[k] or Status(result.status[k]).meaning
        return f"{task.sources[k]} ({formula}): {reason}"

    print_first(np.flatnonzero(~result.converged).tolist(), line_of)
    if paths:
        print_line(out, f"Written: {', '.join(map(str, paths))}")
