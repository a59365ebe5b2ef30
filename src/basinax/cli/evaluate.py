"""The command `basinax evaluate`."""

from typing import Any

import typer

from basinax.atoms import AtomsEvaluation, evaluate
from basinax.cli.config import settings_of
from basinax.cli.console import (
    INTERRUPTED,
    NOT_EVALUATED,
    NOT_SAVED,
    TerminalStream,
    check_printed,
    err,
    print_line,
    reported,
)
from basinax.cli.contents import plans_of
from basinax.cli.inputs import Inputs, files_read, print_unused
from basinax.cli.options import ModelOptions, OutputStyle, PointOutputs
from basinax.cli.outputs import Writing, print_first, print_written
from basinax.cli.record import described, recorded
from basinax.cli.setup import read_model
from basinax.cli.watch import session
from basinax.numerics.settings import largest_of


def run(model: ModelOptions, outputs: PointOutputs, manner: OutputStyle) -> None:
    with session(manner, model.dtype) as watch:
        potential, inputs = read_model(model)
        with reported():
            settings = settings_of((model, outputs, manner))
        outputs = outputs.with_default()
        writing = Writing.prepared(
            outputs, inputs.paths, files_read(model), may_replace=outputs.overwrite
        )
        moving = [outputs.stress] * len(inputs.atoms)
        plans = plans_of(writing.files_of(inputs.paths), inputs.atoms, inputs.sources, moving)
        print_unused(inputs.atoms, inputs.sources, potential)
        watch.begin("running")
        with reported(inputs.sources):
            found = evaluate(
                inputs.atoms, potential, stress=outputs.stress, dtype=model.dtype.value
            )
        if watch.is_stopped():
            err.print("Interrupted: nothing was written.")
            raise typer.Exit(INTERRUPTED)
        watch.begin("writing")
        columns = {"source": inputs.sources} | found.to_dict()
        for number, (atoms, source) in enumerate(zip(found.atoms, inputs.sources, strict=True)):
            atoms.info |= {"relax_source": source, "relax_number": number}
        writing.write(plans, found.atoms, columns)
        counts = _counts(found)
        record = recorded("evaluate", settings, described(inputs), watch, counts, inputs.skipped)
        writing.write_record(record)
    writing.print_table(columns)
    if outputs.json:
        writing.print_json(_summary_of(found, inputs))
    elif not manner.quiet:
        _print_summary(writing.stream, found, inputs)
        print_written(writing.stream, writing.saver.saved)
    check_printed("the results")
    if writing.saver.has_lost:
        raise typer.Exit(NOT_SAVED)
    if any(found.messages):
        raise typer.Exit(NOT_EVALUATED)


def _counts(found: AtomsEvaluation) -> dict[str, int]:
    n_failed = sum(map(bool, found.messages))
    return {"evaluated": len(found) - n_failed, "failed": n_failed}


def _largest_force(found: AtomsEvaluation) -> float | None:
    """The largest finite force in eV/Å, under the constraints, or None."""
    return largest_of(found.fmax.tolist(), None)


def _summary_of(found: AtomsEvaluation, inputs: Inputs) -> dict[str, Any]:
    return {
        "structures": len(found),
        "counts": _counts(found),
        "largest_fmax_eV_per_A": _largest_force(found),
        "failed": [
            {"source": inputs.sources[k], "number": k, "reason": message}
            for k, message in enumerate(found.messages)
            if message
        ],
        "skipped": inputs.skipped,
    }


def _print_summary(stream: TerminalStream, found: AtomsEvaluation, inputs: Inputs) -> None:
    failed = [k for k, message in enumerate(found.messages) if message]
    largest = _largest_force(found)
    force = "" if largest is None else f", largest force {largest:.3g} eV/Å"
    print_line(stream, f"{len(found) - len(failed)} of {len(found)} structures evaluated{force}")

    def line_of(k: int) -> str:
        formula = found.atoms[k].get_chemical_formula()
        return f"{inputs.sources[k]} ({formula}): {found.messages[k]}"

    print_first(stream, failed, line_of)
