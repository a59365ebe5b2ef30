"""The command `basinax probe`."""

import numpy as np
import typer
from rich.table import Table

from basinax import Finding
from basinax.atoms import Probe, probe
from basinax.cli._console import BITS_DIFFER, check_printed, out, print_line, reported
from basinax.cli._options import Manner, Probed, Sample
from basinax.cli._potential import read_model
from basinax.cli._session import session


def run(probed: Probed, sample: Sample, manner: Manner) -> None:
    with session(manner, probed.dtype) as watch:
        potential, inputs = read_model(probed)
        atoms, sources = inputs.atoms, inputs.sources
        order = np.random.default_rng(sample.seed).permutation(len(atoms))
        chosen = sorted(order[: sample.sample].tolist())
        watch.begin("running")
        with reported([sources[k] for k in chosen]):
            some = [atoms[k] for k in chosen]
            found = probe(potential, some, tolerance=probed.tolerance, seed=sample.seed)
        watch.hide()
    if not manner.quiet or not found.is_kept:
        _print(found, len(chosen))
    if not found.is_kept:
        raise typer.Exit(BITS_DIFFER)
    check_printed("the verdict")


def _print(found: Probe, n_structures: int) -> None:
    table = Table("compared", box=None, pad_edge=False)
    for title in ("differ", "of", "largest", "allowed"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for finding in found.findings:
        table.add_row(*_row(finding))
    out.print(table)
    speed = f"{found.evaluations_per_second:.3g} evaluations a second together"
    print_line(out, f"{n_structures} structures, {speed}; one alone {found.seconds_alone:.3g} s")


def _row(finding: Finding) -> tuple[str, ...]:
    counts = str(finding.n_wrong), str(finding.n_compared)
    verdict = "as it should" if finding.is_kept else "differs"
    allowed = f"{finding.allowed:.1g}" if finding.allowed else "no bit"
    return finding.name, *counts, f"{finding.largest:.1e}", allowed, verdict
