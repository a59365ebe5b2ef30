"""The commands for typer; each imports its module after its options have been read."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import basinax
from basinax.cli.config import Command, print_settings
from basinax.cli.named import faults_of, is_run
from basinax.cli.options import (
    Devices,
    Force,
    Kind,
    ModelOptions,
    Outputs,
    OutputStyle,
    Overwrite,
    PathOptions,
    PathOutputs,
    PointOutputs,
    Probed,
    Quiet,
    RelaxOptions,
    Sample,
    StoreOptions,
    Verbose,
    Written,
)

Info = Annotated[
    list[str] | None,
    typer.Option(help="A name in the info of structures, for a further column; may stand often."),
]
KEPT = "The folder of the run (--run)."


def takes(
    *groups: Any, unused: Sequence[Any] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that makes a command of a function of these classes, in their order.

    If the options include `print_config`, the command can print them instead.

    Args:
        unused: classes whose options are accepted, hidden, and ignored.
    """

    def command_of(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            given = [
                group(**{field.name: values[field.name] for field in dataclasses.fields(group)})
                for group in groups
            ]
            if values["print_config"]:
                print_settings(given)
            else:
                function(*given)

        parameters = [p for group in groups for p in inspect.signature(group).parameters.values()]
        for group in unused:
            parameters += map(_hidden, inspect.signature(group).parameters.values())
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        return command

    return command_of


def _hidden(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, option = parameter.annotation.__origin__, copy.copy(parameter.annotation.__metadata__[0])
    option.hidden, option.help = True, "Not used."
    return parameter.replace(annotation=Annotated[kind, option])


app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Relax many structures in one batch, each with the bits it has alone.",
)


def _check(given: ModelOptions, outputs: Written | None = None) -> None:
    """Exit with an error for each missing file, and for outputs that are in the way.

    Errors of other options follow after an import, so that the next try does not fail by them.
    """
    if faults := faults_of(given, outputs):
        from basinax.cli.console import fail, print_error

        for fault in faults:
            print_error(fault)
        from basinax.cli.setup import wrong_settings

        fail(*wrong_settings(given))


def _check_run(given: ModelOptions, outputs: Outputs, keeping: StoreOptions) -> None:
    """`_check` for a run, whose outputs may stand there if it goes on."""
    wanted = outputs if keeping.run else outputs.with_default()
    _check(given, None if is_run(keeping.run or outputs.folder) else wanted)


@app.command(cls=Command, short_help="Relax the structures of files.")
@takes(RelaxOptions, Outputs, StoreOptions, OutputStyle)
def relax(
    given: RelaxOptions, outputs: Outputs, keeping: StoreOptions, manner: OutputStyle
) -> None:
    """Relax the structures of files and write them, with their energies and forces.

    Exit status: 0, 1 if nothing converged, 2 for bad input, 3 if something could not be written
    (the other outputs are), 4 if --time-limit ended it, 130 if interrupted. After these two the run
    goes on by the same command, or by basinax resume FOLDER, to the same bits; outputs are written
    at its end.
    """
    _check_run(given, outputs, keeping)
    from basinax.cli.run import run

    run(given, outputs, keeping, manner)


@app.command(cls=Command, short_help="Find minimum-energy paths between structures.")
@takes(PathOptions, PathOutputs, StoreOptions, OutputStyle)
def neb(
    given: PathOptions, outputs: PathOutputs, keeping: StoreOptions, manner: OutputStyle
) -> None:
    """Find minimum-energy paths by nudged elastic bands, and write their images.

    Exit status: as of relax, and so does an interrupted run go on.
    """
    _check_run(given, outputs, keeping)
    from basinax.cli.neb import run

    run(given, outputs, keeping, manner)


@app.command(short_help="Go on with a run that was interrupted.")
def resume(
    folder: Annotated[str, typer.Argument(help=KEPT)],
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="As of relax: such as 3h30m, 45m or 90s.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="As of relax: a Ray cluster.")
    ] = None,
    devices: Devices = None,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a run that was interrupted: structures that are done stay as they are, the others
    begin from their input, and all ends in the bits of a run that was never interrupted.

    Exit status: as of relax.
    """
    from basinax.cli.export import resume as run

    named = {"--force": force, "--quiet": quiet, "--verbose": verbose}
    options = [name for name, is_given in named.items() if is_given]
    options += ["--time-limit", time_limit] if time_limit else []
    options += ["--ray", ray] if ray else []
    options += ["--devices", str(devices)] if devices else []
    run(folder, options, typer.main.get_command(app))


@app.command(short_help="Write the structures and the table of a run.")
def export(
    folder: Annotated[str, typer.Argument(help=KEPT)],
    output: Annotated[
        Path | None,
        typer.Option(help="Structures with what was found; the ending decides the format."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="One row a structure: .csv, .json, .jsonl or .parquet; - is CSV on standard"
            " output."
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only structures that ended so, such as converged; may stand often."),
    ] = None,
    info: Info = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the structures and the table of a run so far, in the order of its input.

    Structures that could not be read stand in the table alone, with the reason; such paths nowhere.

    Exit status: 0, 2 for bad input, 3 if something could not be written.
    """
    from basinax.cli.export import run

    run(folder, output, table, status or [], info or [], may_replace=overwrite)


@app.command(short_help="Write a page about a run.")
def report(
    folder: Annotated[str, typer.Argument(help=KEPT)],
    output: Annotated[
        Path | None, typer.Option(help="The page; FOLDER/report.html if it is not given.")
    ] = None,
    info: Info = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a page of HTML about a run so far: counts, distributions, failures, throughput,
    settings. It needs no network.

    Exit status: 0, 2 for bad input, 3 if something could not be written.
    """
    from basinax.cli.export import report as run

    run(folder, output, info or [], may_replace=overwrite)


@app.command(short_help="Compare two runs of the same structures.")
def compare(
    first: Annotated[str, typer.Argument(help=KEPT)],
    other: Annotated[str, typer.Argument(help="The folder of the other run.")],
    table: Annotated[
        Path | None,
        typer.Option(help="One row a structure: .csv, .json, .jsonl or .parquet."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare two runs of the same structures or paths, which are matched by their files: settings
    that differ, energies or barriers, steps, evaluations, and the distance between the structures.

    Exit status: 0, 2 for bad input, 3 if something could not be written.
    """
    from basinax.cli.compare import compare as run

    run(first, other, table, may_replace=overwrite)


@app.command(short_help="Draw the convergence of runs.")
def plot(
    folders: Annotated[list[str], typer.Argument(help="The folders of runs (--run).")],
    output: Annotated[
        Path | None,
        typer.Option(help="A .png, .pdf or .svg; plot.png in the first folder if not given."),
    ] = None,
    structure: Annotated[
        list[int] | None,
        typer.Option(help="Only this structure, by its number from 0; may stand often."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw fmax and energy by evaluation, each run in a color of its own: a line a structure, or
    of more than 50 the median and the spread. Needs matplotlib.

    Exit status: 0, 2 for bad input, 3 if something could not be written.
    """
    from basinax.cli.compare import plot as run

    run(folders, output, structure or [], may_replace=overwrite)


@app.command(short_help="Put the folders of several runs together.")
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs of one input (--shard).")],
    run: Annotated[Path, typer.Option(help="The folder for all of their results.")],
    force: Force = False,
) -> None:
    """Put the results of runs over parts of one input into one folder, which may be resumed.

    Exit status: 0, 2 for bad input, 3 if something could not be written.
    """
    from basinax.cli.export import merge as run_merge

    run_merge(folders, run, force=force)


@app.command(cls=Command, short_help="Find energies, forces and stresses without relaxing.")
@takes(ModelOptions, PointOutputs, OutputStyle)
def evaluate(model: ModelOptions, outputs: PointOutputs, manner: OutputStyle) -> None:
    """Find energies, forces and, with --stress, stresses of structures where they are.

    Exit status: 0, 1 if a structure could not be evaluated, 2 for bad input, 3 if something could
    not be written, 130 if interrupted.
    """
    _check(model, outputs.with_default())
    from basinax.cli.evaluate import run

    run(model, outputs, manner)


@app.command("list", short_help="Show potentials, optimizers or cells, with their options.")
def list_(
    kind: Annotated[Kind, typer.Argument(help="The subject.")],
) -> None:
    """Show potentials, optimizers or cells, one a line, with options and their defaults."""
    _show(kind)


@app.command(cls=Command, short_help="Check that structures have the same bits alone.")
@takes(RelaxOptions, Sample, OutputStyle, unused=[Outputs, StoreOptions])
def verify(given: RelaxOptions, sample: Sample, manner: OutputStyle) -> None:
    """Relax all in a batch and a sample alone, and compare positions, energies and steps bitwise.

    Exit status: 0 if every one of the sample agrees, 1 if one does not, 2 for bad input, 130 if
    interrupted.
    """
    _check(given)
    from basinax.cli.check import verify as run

    run(given, sample, manner)


@app.command(cls=Command, short_help="Check what a potential or model promises.")
@takes(Probed, Sample, OutputStyle)
def probe(probed: Probed, sample: Sample, manner: OutputStyle) -> None:
    """Evaluate a sample alone, together, in other orders, beside NaN and again, and compare bits;
    compare forces and stress with differences of the energy, and the energy with that of moved,
    turned and renumbered structures.

    Exit status: 0 if all agrees, 1 if something does not, 2 for bad input, 130 if interrupted.
    """
    _check(probed)
    from basinax.cli.check import probe as run

    run(probed, sample, manner)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from basinax.cli.console import check_printed, out

        out.print(basinax.__version__)
        check_printed("the version")
        raise typer.Exit


def _show(kind: Kind) -> None:
    """Print one line for each: the name, and options with their defaults, or a form."""
    import basinax.internal.optimizer  # noqa: F401, which names its optimizer
    from basinax.cli.console import check_printed, out, print_line
    from basinax.config.specs import optimizers_by_name
    from basinax.engine.text import CELLS, POTENTIALS

    tables: dict[Kind, Mapping[str, Any]] = {
        Kind.POTENTIALS: POTENTIALS,
        Kind.OPTIMIZERS: optimizers_by_name(),
        Kind.CELLS: CELLS,
    }
    for name, maker in sorted(tables[kind].items()):
        print_line(out, f"{name}  {_options(maker)}".rstrip())
    check_printed("the list")


def _options(maker: Callable[..., Any] | str) -> str:
    if isinstance(maker, str):
        return maker
    parameters = inspect.signature(maker).parameters.values()
    return ", ".join(map(_option, parameters))


def _option(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return "ELEMENT, ..."
    if parameter.default is inspect.Parameter.empty:
        return f"{parameter.name}="
    default = parameter.default
    if isinstance(default, bool) or default is None:
        default = str(default).lower()
    if not isinstance(default, str | int | float):
        default = type(default).__name__.lower()
    return f"{parameter.name}={default}"
