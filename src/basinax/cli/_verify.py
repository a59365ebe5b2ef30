"""The command `basinax verify`."""

import numpy as np
import typer

from basinax._loop.status import Status
from basinax.atoms import AtomsRelaxation
from basinax.cli._console import BITS_DIFFER, INTERRUPTED, check_printed, err, out, print_line
from basinax.cli._options import Given, Manner, Sample
from basinax.cli._session import session
from basinax.cli._task import Task


def run(given: Given, sample: Sample, manner: Manner) -> None:
    with session(manner, given.dtype) as watch:
        task = Task.read(given)
        chosen = np.random.default_rng(sample.seed).permutation(len(task.atoms))[: sample.sample]
        differing = 0
        watch.begin("listing")
        batched = task.run(progress=watch.show, should_stop=watch.is_stopped)
        watch.hide()
        watch.begin("running alone")
        for i in sorted(chosen.tolist()):
            alone = task.alone(i).run(should_stop=watch.is_stopped)
            if watch.is_stopped():
                err.print("Interrupted: not all of the sample was compared.")
                raise typer.Exit(INTERRUPTED)
            wrong = differences(batched, i, alone)
            differing += bool(wrong)
            if wrong or not manner.quiet:
                verdict = f"differs in {', '.join(wrong)}" if wrong else "same bits"
                steps = f"{alone.steps[0]} steps, {Status(alone.status[0]).name.lower()}"
                text = f"{task.sources[i]}  {task.atoms[i].symbols}  {steps}: {verdict}"
                print_line(out, text)
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
        "status": (batched.status[at], alone.status[0]),
    }
    return [name for name, (x, y) in pairs.items() if not np.array_equal(x, y, equal_nan=True)]
