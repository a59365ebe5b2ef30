"""The command `basinax evaluate`."""

from pathlib import Path

import numpy as np
import typer

from basinax.atoms import AtomsEvaluation, evaluate
from basinax.atoms._table import writer_of
from basinax.cli._console import (
    INTERRUPTED,
    NOT_EVALUATED,
    NOT_SAVED,
    err,
    out,
    print_line,
    reported,
)
from basinax.cli._contents import Plan, plan_of
from basinax.cli._inputs import files_read
from basinax.cli._options import Manner, Model, PointOutputs
from basinax.cli._output import print_first
from basinax.cli._places import Saver, check_places
from basinax.cli._potential import read_model
from basinax.cli._session import session


def run(model: Model, outputs: PointOutputs, manner: Manner) -> None:
    with session(manner, model.dtype) as watch:
        potential, atoms, sources = read_model(model)
        inputs = files_read(model.files, model.potential, "")
        check_places(outputs.output, outputs.table, None, len(atoms), inputs)
        with reported():
            writer_of(outputs.table or Path())
        plan = plan_of(outputs.output, atoms, sources, [outputs.stress] * len(atoms))
        saver = Saver(outputs.output, outputs.table)
        watch.begin("running")
        with reported(sources):
            found = evaluate(atoms, potential, stress=outputs.stress, dtype=model.dtype.value)
        if watch.is_stopped():
            err.print("Interrupted: nothing was written.")
            raise typer.Exit(INTERRUPTED)
        watch.begin("writing")
        _save(found, sources, plan, outputs, saver)
    if not manner.quiet:
        _print_summary(found, sources, saver)
    if saver.has_lost:
        raise typer.Exit(NOT_SAVED)
    if any(found.messages):
        raise typer.Exit(NOT_EVALUATED)


def _save(
    found: AtomsEvaluation, sources: list[str], plan: Plan, outputs: PointOutputs, saver: Saver
) -> None:
    for number, (atoms, source) in enumerate(zip(found.atoms, sources, strict=True)):
        atoms.info |= {"relax_source": source, "relax_number": number}
    saver.save(outputs.output, lambda path: plan.write(path, found.atoms))
    if outputs.table is not None:
        columns = {"source": sources} | found.to_dict()
        saver.save(outputs.table, lambda path: writer_of(path)(path, columns))


def _print_summary(found: AtomsEvaluation, sources: list[str], saver: Saver) -> None:
    forces = [np.linalg.norm(f, axis=1).max() for f in found.forces]
    failed = [k for k, message in enumerate(found.messages) if message]
    known = np.isfinite(forces)
    largest = f", largest force {np.array(forces)[known].max():.3g} eV/Å" if known.any() else ""
    print_line(out, f"{len(found) - len(failed)} of {len(found)} structures evaluated{largest}")
    print_first(failed, lambda k: f"{sources[k]} ({found.atoms[k].symbols}): {found.messages[k]}")
    if saver.saved:
        print_line(out, f"Written: {', '.join(map(str, saver.saved))}")
