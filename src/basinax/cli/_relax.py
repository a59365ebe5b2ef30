"""The command `basinax relax`."""

import typer

from basinax.atoms import Trajectories
from basinax.cli._console import (
    INTERRUPTED,
    NOT_SAVED,
    NOTHING_CONVERGED,
    err,
    out,
)
from basinax.cli._contents import plan_of
from basinax.cli._inputs import files_read
from basinax.cli._options import Given, Manner, Outputs
from basinax.cli._output import print_summary, write_structures, write_table
from basinax.cli._places import Saver, check_places
from basinax.cli._task import Task, keep_programs
from basinax.cli._watch import Interrupt, progress_bar


def run(given: Given, outputs: Outputs, manner: Manner) -> None:
    keep_programs(manner)
    task = Task.read(given)
    output, table, folder = outputs.output, outputs.table, outputs.trajectory
    trajectories = None
    if folder is not None:
        form = outputs.trajectory_format.value
        trajectories = Trajectories(folder, outputs.trajectory_interval, form)
        task.settings["trajectory"] = trajectories
    inputs = files_read(given.files, given.potential, given.optimizer)
    check_places(output, table, trajectories, len(task.atoms), inputs)
    plan = plan_of(output, task)
    saver = Saver(output, table)
    with Interrupt() as interrupt:
        with saver.watching(task.sources), progress_bar(manner.quiet) as show:
            result = task.run(progress=show, should_stop=interrupt)
        saver.save(output, lambda path: write_structures(path, plan, result))
        if table is not None:
            saver.save(table, lambda path: write_table(path, task, result))
    if not manner.quiet:
        print_summary(task, result, [*saver.saved, *([folder] if folder else [])])
        if out.fault:
            saver.lose(f"the summary cannot be printed: {out.fault}")
    if interrupt():
        err.print("Interrupted: structures still running were written where they stood.")
    if saver.has_lost:
        raise typer.Exit(NOT_SAVED)
    if interrupt():
        raise typer.Exit(INTERRUPTED)
    if not result.converged.any():
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)
