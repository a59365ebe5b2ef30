"""The command `basinax relax`."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from basinax._loop.status import Status
from basinax.atoms import AtomsRelaxation, Trajectories
from basinax.atoms._report.page import check_report
from basinax.cli._config import settings_of
from basinax.cli._console import INTERRUPTED, NOT_SAVED, NOTHING_CONVERGED, err, out, reported
from basinax.cli._inputs import files_read
from basinax.cli._options import STDOUT, Given, Manner, Outputs
from basinax.cli._record import described, recorded
from basinax.cli._session import session
from basinax.cli._summary import print_json, print_summary, summary_of
from basinax.cli._task import Task
from basinax.cli._watch import Watch
from basinax.cli._writing import Writing

NAMED = 3
"""The largest number of files in the title of a report."""


def run(given: Given, outputs: Outputs, manner: Manner) -> None:
    with session(manner, given.dtype) as watch:
        task = Task.read(given)
        with reported():
            settings = settings_of((given, outputs, manner))
        kept = _kept(outputs)
        writing = _prepared(task, given, outputs, kept.get("trajectory"))
        watch.begin("listing")
        with writing.saver.watching(task.sources):
            result = task.run(watch.show, watch.is_stopped, **kept)
        pairs = zip(result, task.sources, strict=True)
        named = [dataclasses.replace(entry, source=source) for entry, source in pairs]
        result = dataclasses.replace(result, entries=named)
        watch.begin("writing")
        name_in_info(result, range(len(result)))
        columns = result.to_dict()
        writing.write(result.atoms, columns)
        inputs, skipped = described(task.inputs), task.inputs.skipped
        record = recorded("relax", settings, inputs, watch, result.counts, skipped)
        writing.write_record(record)
        if outputs.report is not None:
            title = f"Relaxation of {_named(task.inputs.files)}"
            write = functools.partial(result.report, settings=record, title=title)
            writing.saver.save(outputs.report, write)
    writing.print_table(columns)
    _print(result, task, outputs, manner, writing)
    _leave(result, watch, writing)


def _kept(outputs: Outputs) -> dict[str, Any]:
    """The arguments of `relax` for trajectories, logs and histories."""
    kept: dict[str, Any] = {} if outputs.log is None else {"log": outputs.log}
    if outputs.trajectory is not None:
        form = outputs.trajectory_format.value
        kept["trajectory"] = Trajectories(outputs.trajectory, outputs.trajectory_interval, form)
    if outputs.report is not None:
        with reported():
            check_report(outputs.report)
        kept["history"] = True
    return kept


def _prepared(
    task: Task, given: Given, outputs: Outputs, trajectories: Trajectories | None
) -> Writing:
    """The outputs, checked to be writable."""
    each = zip(task.own, task.atoms, strict=True)
    moving = [own["cell"] is not None and bool(a.pbc.any()) for own, a in each]
    return Writing.prepared(outputs, task.inputs, files_read(given), moving, trajectories)


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths)) if len(paths) <= NAMED else f"{len(paths)} files"


def name_in_info(result: AtomsRelaxation, numbers: Iterable[int]) -> None:
    """Write source, number, status and steps of each structure into its `info`.

    Args:
        numbers: the numbers of the structures in the input.
    """
    for number, entry in zip(numbers, result, strict=True):
        entry.atoms.info |= {
            "relax_status": str(entry.status),
            "relax_steps": entry.steps,
            "relax_source": entry.source,
            "relax_number": number,
        }


def _print(
    result: AtomsRelaxation, task: Task, outputs: Outputs, manner: Manner, writing: Writing
) -> None:
    """Print the summary, as JSON with --json, or nothing with --quiet."""
    stream, saved = writing.stream, list(writing.saver.saved)
    saved += [x for x in (outputs.log, outputs.trajectory) if x not in (None, STDOUT)]
    if outputs.json:
        print_json(summary_of(result, task.inputs), saved, writing.written_record)
    elif not manner.quiet:
        print_summary(stream, result, saved)
    if fault := stream.fault or out.fault:
        writing.saver.lose(f"the summary cannot be printed: {fault}")


def _leave(result: AtomsRelaxation, watch: Watch, writing: Writing) -> None:
    """End the command with its exit status."""
    if watch.is_stopped():
        n_running = int((result.status == Status.RUNNING).sum())
        where = ": still running structures were written where they stood"
        err.print(f"Interrupted{where if n_running and writing.has_structures else ''}.")
    if writing.saver.has_lost:
        raise typer.Exit(NOT_SAVED)
    if watch.is_stopped():
        raise typer.Exit(INTERRUPTED)
    if not result.converged.any():
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)
