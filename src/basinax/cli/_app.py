"""The commands `basinax relax` and `basinax verify`."""

import io
import sys
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import basinax
from basinax import Status
from basinax.atoms import AtomsRelaxation, Trajectories
from basinax.cli._console import (
    BITS_DIFFER,
    INTERRUPTED,
    NOT_SAVED,
    NOTHING_CONVERGED,
    err,
    out,
    print_error,
    print_line,
    print_warning,
)
from basinax.cli._contents import plan_of
from basinax.cli._inputs import files_read
from basinax.cli._options import (
    Cell,
    Dtype,
    EnergyChange,
    Files,
    Fmax,
    MaxDisplacement,
    MaxSteps,
    Optimizer,
    Potential,
    Precision,
    Pressure,
    RMSForce,
    Skin,
    StressTolerance,
    TrajectoryFormat,
)
from basinax.cli._output import (
    print_summary,
    write_structures,
    write_table,
)
from basinax.cli._places import Saver, check_places
from basinax.cli._stream import occupy
from basinax.cli._task import Task
from basinax.cli._watch import Interrupt, progress_bar

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Relax many structures in one batch, each with the bits it has alone.",
)


@app.command(short_help="Relax the structures of files.")
def relax(
    files: Files,
    potential: Potential,
    optimizer: Optimizer = "fire",
    cell: Cell = None,
    pressure: Pressure = None,
    fmax: Fmax = 0.05,
    stress_tolerance: StressTolerance = None,
    rms_force: RMSForce = None,
    energy_change: EnergyChange = None,
    max_displacement: MaxDisplacement = None,
    max_steps: MaxSteps = 500,
    output: Annotated[
        Path, typer.Option(help="Relaxed structures; the ending decides the format.")
    ] = Path("relaxed.extxyz"),
    table: Annotated[
        Path | None, typer.Option(help="A CSV file with one line a structure.")
    ] = None,
    trajectory: Annotated[
        Path | None,
        typer.Option(help="A folder for trajectories, one file a structure, that ASE reads."),
    ] = None,
    trajectory_interval: Annotated[
        int,
        typer.Option(help="Steps between two frames of a trajectory.", metavar="NUMBER", min=1),
    ] = 10,
    trajectory_format: Annotated[
        TrajectoryFormat, typer.Option(help="ASE's own, or extended XYZ.")
    ] = TrajectoryFormat.TRAJ,
    dtype: Precision = Dtype.FLOAT64,
    skin: Skin = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")] = False,
) -> None:
    """Relax the structures of files and write them, with their energies and forces.

    Exit status: 0, 1 if nothing converged, 2 for bad input, 3 if something could not be written
    (all else is), 130 if interrupted (what has been reached by then is written).
    """
    task = Task.read(
        files,
        {"potential": potential, "optimizer": optimizer, "dtype": dtype, "skin": skin},
        {"cell": cell, "pressure": pressure, "fmax": fmax, "max_steps": max_steps},
        (stress_tolerance, rms_force, energy_change, max_displacement),
    )
    trajectories = None
    if trajectory is not None:
        trajectories = Trajectories(trajectory, trajectory_interval, trajectory_format.value)
        task.settings["trajectory"] = trajectories
    inputs = files_read(files, potential, optimizer)
    check_places(output, table, trajectories, len(task.atoms), inputs)
    plan = plan_of(output, task)
    saver = Saver(output, table)
    with Interrupt() as interrupt:
        with saver.watching(task.sources), progress_bar(quiet) as show:
            result = task.run(progress=show, should_stop=interrupt)
        saver.save(output, lambda path: write_structures(path, plan, result))
        if table is not None:
            saver.save(table, lambda path: write_table(path, task, result))
    if not quiet:
        print_summary(task, result, [*saver.saved, *([trajectory] if trajectory else [])])
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


@app.command(short_help="Check that structures have the same bits alone.")
def verify(
    files: Files,
    potential: Potential,
    optimizer: Optimizer = "fire",
    cell: Cell = None,
    pressure: Pressure = None,
    fmax: Fmax = 0.05,
    stress_tolerance: StressTolerance = None,
    rms_force: RMSForce = None,
    energy_change: EnergyChange = None,
    max_displacement: MaxDisplacement = None,
    max_steps: MaxSteps = 500,
    output: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    table: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    trajectory: Annotated[Path | None, typer.Option(help="Not used.", hidden=True)] = None,
    trajectory_interval: Annotated[int, typer.Option(help="Not used.", hidden=True)] = 10,
    trajectory_format: Annotated[str, typer.Option(help="Not used.", hidden=True)] = "traj",
    dtype: Precision = Dtype.FLOAT64,
    skin: Skin = None,
    sample: Annotated[int, typer.Option(help="How many structures to run alone.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Which ones.", min=0)] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print differences only.")] = False,
) -> None:
    """Relax all in a batch and a sample alone, and compare positions, energies and steps bitwise.

    Exit status: 0 if every one of the sample agrees, 1 if one does not, 2 for bad input, 130 if
    interrupted.
    """
    task = Task.read(
        files,
        {"potential": potential, "optimizer": optimizer, "dtype": dtype, "skin": skin},
        {"cell": cell, "pressure": pressure, "fmax": fmax, "max_steps": max_steps},
        (stress_tolerance, rms_force, energy_change, max_displacement),
    )
    chosen = np.random.default_rng(seed).permutation(len(task.atoms))[:sample]
    differing = 0
    with Interrupt() as interrupt:
        with progress_bar(quiet) as show:
            batched = task.run(progress=show, should_stop=interrupt)
        for i in sorted(chosen.tolist()):
            alone = task.alone(i).run(should_stop=interrupt)
            if interrupt():
                raise typer.Exit(INTERRUPTED)
            wrong = differences(batched, i, alone)
            differing += bool(wrong)
            if wrong or not quiet:
                verdict = f"differs in {', '.join(wrong)}" if wrong else "same bits"
                steps = f"{alone.steps[0]} steps, {Status(alone.status[0]).name.lower()}"
                text = f"{task.sources[i]}  {task.atoms[i].symbols}  {steps}: {verdict}"
                print_line(out, text)
    agreeing = len(chosen) - differing
    if differing or not quiet:
        out.print(f"{agreeing} of {len(chosen)} structures have the same bits alone and in a batch")
    if differing:
        raise typer.Exit(BITS_DIFFER)
    _check_printed("the verdict")


def differences(batched: AtomsRelaxation, at: int, alone: AtomsRelaxation) -> list[str]:
    """In what a structure of the batch differs from the one that was run alone."""
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


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(basinax.__version__)
        _check_printed("the version")
        raise typer.Exit


def _check_printed(what: str) -> None:
    if out.fault:
        print_error(f"{what} cannot be printed: {out.fault}")
        raise typer.Exit(NOT_SAVED)


def main() -> None:
    """The command `basinax`."""
    occupy()
    # A terminal that has no Å must not cost the summary of a run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.showwarning = print_warning
    app()
