"""The summary of a run, for people and for programs."""

import math
from typing import Any

import numpy as np
from rich.table import Table as Grid

from basinax.cli.console import TerminalStream, print_line
from basinax.cli.outputs import print_first
from basinax.cli.works import RELAXATION
from basinax.minimize.status import Status
from basinax.numerics.settings import largest_of
from basinax.runs.results import Brief, counts_of


def print_summary(stream: TerminalStream, briefs: list[Brief], noun: str) -> None:
    if not briefs:
        print_line(stream, f"no {noun} have ended yet")
        return
    table = Grid("status", box=None, pad_edge=False)
    for title in (noun, "steps, median", "steps, most", "largest fmax (eV/Å)"):
        table.add_column(title, justify="right")
    for status in Status:
        if of := [brief for brief in briefs if brief.status == status]:
            steps = [brief.pairs["steps"] for brief in of]
            fmax = largest_of(brief.pairs.get("largest_force", math.nan) for brief in of)
            median = f"{np.median(steps):g}"
            table.add_row(str(status), str(len(of)), median, str(max(steps)), f"{fmax:.3g}")
    stream.print(table)
    print_reasons(stream, [brief for brief in briefs if brief.status != Status.CONVERGED], noun)


def print_reasons(stream: TerminalStream, failed: list[Brief], noun: str) -> None:
    """Print the reasons of the first of these, a line each."""

    def line_of(k: int) -> str:
        # A path is kept as one structure of all its images, whose formula says little.
        has_formula = noun == RELAXATION.noun and failed[k].n_atoms
        formula = f" ({failed[k].formula})" if has_formula else ""
        return f"{failed[k].source}{formula}: {failed[k].reason}"

    print_first(stream, range(len(failed)), line_of)


def summary_of(briefs: list[Brief], skipped: list[str], n_all: int | None) -> dict[str, Any]:
    """The summary of a run for programs.

    Args:
        n_all: the number of structures of the input; None if it is not known yet.
    """
    of = {
        name: [brief.pairs[name] for brief in briefs if name in brief.pairs]
        for name in ("steps", "evaluations", "largest_force", "seconds")
    }
    return {
        "structures": len(briefs),
        "left": None if n_all is None else n_all - len(briefs),
        "counts": counts_of(briefs),
        "steps": {
            "median": float(np.median(of["steps"] or [0])),
            "most": max(of["steps"], default=0),
        },
        "evaluations": sum(of["evaluations"]),
        "largest_fmax_eV_per_A": largest_of(of["largest_force"], None),
        "seconds": largest_of(of["seconds"], None),
        "not_converged": [
            {
                "source": brief.source,
                "number": brief.number,
                "status": str(brief.status),
                "reason": brief.reason,
            }
            for brief in briefs
            if brief.status != Status.CONVERGED
        ],
        "skipped": skipped,
    }
