"""The commands `basinax verify` and `basinax probe`: the promise, checked on a sample."""

import numpy as np
import typer

from basinax.atoms import AtomsRelaxation, Probe, probe as probed_by
from basinax.cli.console import (
    BITS_DIFFER,
    INTERRUPTED,
    check_printed,
    err,
    out,
    print_line,
    reported,
)
from basinax.cli.inputs import print_unused
from basinax.cli.options import OutputStyle, Probed, RelaxOptions, Sample
from basinax.cli.setup import Setup, read_model, read_works
from basinax.cli.watch import session


def verify(given: RelaxOptions, sample: Sample, manner: OutputStyle) -> None:
    with session(manner, given.dtype) as watch:
        setup = Setup.read(given)
        inputs, works = read_works(given, setup)
        chosen = np.random.default_rng(sample.seed).permutation(len(works))[: sample.sample]
        differing = 0
        watch.begin("listing")
        with reported(inputs.sources):
            batched = setup.relax(works, progress=watch.show, should_stop=watch.is_stopped)
        watch.hide()
        watch.begin("running alone")
        for i in sorted(chosen.tolist()):
            with reported([inputs.sources[i]]):
                alone = setup.relax([works[i]], should_stop=watch.is_stopped)
            if watch.is_stopped():
                err.print("Interrupted: not all of the sample was compared.")
                raise typer.Exit(INTERRUPTED)
            wrong = differences(batched, i, alone)
            differing += bool(wrong)
            if wrong or not manner.quiet:
                verdict = f"differs in {', '.join(wrong)}" if wrong else "same bits"
                steps = f"{alone.steps[0]} steps, {alone.status[0]}"
                formula = inputs.atoms[i].get_chemical_formula()
                print_line(out, f"{inputs.sources[i]}  {formula}  {steps}: {verdict}")
    agreeing = len(chosen) - differing
    if differing or not manner.quiet:
        out.print(f"{agreeing} of {len(chosen)} structures have the same bits alone and in a batch")
    if differing:
        raise typer.Exit(BITS_DIFFER)
    check_printed("the verdict")


def differences(batched: AtomsRelaxation, at: int, alone: AtomsRelaxation) -> list[str]:
    """Names of results that differ between a structure of the batch and the same one alone."""
    ours, theirs = batched.atoms[at], alone.atoms[0]
    pairs = {
        "positions": (ours.positions, theirs.positions),
        "cell": (ours.cell.array, theirs.cell.array),
        "forces": tuple(x.get_forces(apply_constraint=False) for x in (ours, theirs)),
        "energy": (batched.energies[at], alone.energies[0]),
        "steps": (batched.steps[at], alone.steps[0]),
        "status": (batched[at].status.code, alone[0].status.code),
    }
    return [name for name, (x, y) in pairs.items() if not np.array_equal(x, y, equal_nan=True)]


def probe(probed: Probed, sample: Sample, manner: OutputStyle) -> None:
    with session(manner, probed.dtype) as watch:
        potential, inputs = read_model(probed)
        atoms, sources = inputs.atoms, inputs.sources
        order = np.random.default_rng(sample.seed).permutation(len(atoms))
        chosen = sorted(order[: sample.sample].tolist())
        print_unused(atoms, sources, potential)
        watch.begin("running")
        with reported([sources[k] for k in chosen]):
            some = [atoms[k] for k in chosen]
            found = probed_by(potential, some, tolerance=probed.tolerance, seed=sample.seed)
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
