"""The command `basinax probe`."""

import numpy as np
import typer

from basinax.atoms import Probe, probe
from basinax.cli._console import BITS_DIFFER, check_printed, out, print_line, reported
from basinax.cli._options import Manner, Probed, Sample
from basinax.cli._potential import read_model
from basinax.cli._session import session
from basinax.cli._unused import warn_of_unused


def run(probed: Probed, sample: Sample, manner: Manner) -> None:
    with session(manner, probed.dtype) as watch:
        potential, inputs = read_model(probed)
        atoms, sources = inputs.atoms, inputs.sources
        order = np.random.default_rng(sample.seed).permutation(len(atoms))
        chosen = sorted(order[: sample.sample].tolist())
        warn_of_unused(atoms, sources, potential)
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
    out.print(str(found))
    speed = f"{found.evaluations_per_second:.3g} evaluations a second together"
    print_line(out, f"{n_structures} structures, {speed}; one alone {found.seconds_alone:.3g} s")
