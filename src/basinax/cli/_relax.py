"""The command `basinax relax`."""

import dataclasses

import typer

from basinax._loop.status import Status
from basinax.atoms import Trajectories
from basinax.atoms._table import writer_of
from basinax.cli._console import INTERRUPTED, NOT_SAVED, NOTHING_CONVERGED, err, out, reported
from basinax.cli._contents import Plan, plan_of
from basinax.cli._inputs import files_read
from basinax.cli._options import Given, Manner, Outputs
from basinax.cli._output import print_summary, write_structures, write_table
from basinax.cli._places import Saver, check_places
from basinax.cli._session import session
from basinax.cli._task import Task


def run(given: Given, outputs: Outputs, manner: Manner) -> None:
    with session(manner, given.dtype) as watch:
        task, saver, plan = _prepared(given, outputs)
        watch.begin("listing")
        with saver.watching(task.sources):
            result = task.run(progress=watch.show, should_stop=watch.is_stopped)
        result = dataclasses.replace(result, sources=task.sources)
        watch.begin("writing")
        saver.save(outputs.output, lambda path: write_structures(path, plan, result))
        if outputs.table is not None:
            saver.save(outputs.table, lambda path: write_table(path, result))
    if not manner.quiet:
        folders = [outputs.trajectory] if outputs.trajectory else []
        print_summary(task, result, saver.saved + folders)
        if out.fault:
            saver.lose(f"the summary cannot be printed: {out.fault}")
    if watch.is_stopped():
        n_running = int((result.status == Status.RUNNING).sum())
        where = ": still running structures were written where they stood"
        is_written = n_running and outputs.output in saver.saved
        err.print(f"Interrupted{where if is_written else ''}.")
    if saver.has_lost:
        raise typer.Exit(NOT_SAVED)
    if watch.is_stopped():
        raise typer.Exit(INTERRUPTED)
    if not result.converged.any():
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)


def _prepared(given: Given, outputs: Outputs) -> tuple[Task, Saver, Plan]:
    """The task, and how its outputs are written, which is known to be possible."""
    task = Task.read(given)
    trajectories = None
    if outputs.trajectory is not None:
        form = outputs.trajectory_format.value
        trajectories = Trajectories(outputs.trajectory, outputs.trajectory_interval, form)
        task.settings["trajectory"] = trajectories
    inputs = files_read(given.files, given.potential, given.optimizer)
    check_places(outputs.output, outputs.table, trajectories, len(task.atoms), inputs)
    if outputs.table is not None:
        with reported():
            writer_of(outputs.table)
    cells = zip(task.own["cell"], task.atoms, strict=True)
    moving = [cell is not None and bool(a.pbc.any()) for cell, a in cells]
    plan = plan_of(outputs.output, task.atoms, task.sources, moving)
    return task, Saver(outputs.output, outputs.table), plan
