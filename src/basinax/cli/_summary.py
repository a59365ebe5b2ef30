"""The summary of a run, for people or for programs."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from basinax._loop.status import Status
from basinax._text.files import name_of
from basinax._text.tables import strict
from basinax.atoms import AtomsRelaxation
from basinax.cli._console import out, print_line
from basinax.cli._inputs import Inputs
from basinax.cli._stream import Stream

SHOWN = 10
"""The largest number of unconverged structures in the summary."""


def print_first(stream: Stream, numbers: Sequence[int], line_of: Callable[[int], str]) -> None:
    """Print the lines of the first structures, and the number of the others."""
    for number in numbers[:SHOWN]:
        print_line(stream, line_of(number))
    if len(numbers) > SHOWN:
        print_line(stream, f"... and {len(numbers) - SHOWN} more")


def print_summary(stream: Stream, result: AtomsRelaxation, paths: list[Path]) -> None:
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
    stream.print(table)

    def line_of(k: int) -> str:
        formula = result.atoms[k].get_chemical_formula()
        return f"{result.sources[k]} ({formula}): {_reason(result, k)}"

    print_first(stream, np.flatnonzero(~result.converged).tolist(), line_of)
    print_written(stream, paths)


def print_written(stream: Stream, paths: list[Path]) -> None:
    if paths:
        print_line(stream, f"Written: {', '.join(map(str, paths))}")


def _reason(result: AtomsRelaxation, k: int) -> str:
    """The reason why a structure has not converged."""
    return result.messages[k] or Status(result.status[k]).meaning


def summary_of(result: AtomsRelaxation, inputs: Inputs) -> dict[str, Any]:
    """The summary of a run for programs."""
    failed = np.flatnonzero(~result.converged).tolist()
    return {
        "structures": len(result),
        "counts": result.counts,
        "steps": {"median": float(np.median(result.steps)), "most": int(result.steps.max())},
        "evaluations": int(result.evaluations.sum()),
        "largest_fmax_eV_per_A": max(filter(math.isfinite, result.fmax.tolist()), default=None),
        "seconds": max(filter(math.isfinite, result.seconds.tolist()), default=None),
        "not_converged": [
            {
                "source": result.sources[k],
                "number": k,
                "status": str(Status(result.status[k])),
                "reason": _reason(result, k),
            }
            for k in failed
        ],
        "skipped": inputs.skipped,
    }


def print_json(summary: dict[str, Any], paths: Sequence[Path], record: Path | None) -> None:
    """Args: record: the path of the record; None without a record."""
    written = {"written": list(map(name_of, paths)), "record": record and name_of(record)}
    out.write(json.dumps(strict(summary | written), indent=1) + "\n")
