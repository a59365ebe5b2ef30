"""The commands, as typer takes them; each imports what it runs once its options are read."""

from typing import Annotated

import typer

import basinax
from basinax.cli._config import Command
from basinax.cli._named import check_free, check_named
from basinax.cli._options import (
    Given,
    Kind,
    Manner,
    Model,
    Outputs,
    PointOutputs,
    Probed,
    Sample,
)
from basinax.cli._takes import takes

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Relax many structures in one batch, each with the bits it has alone.",
)


@app.command(cls=Command, short_help="Relax the structures of files.")
@takes(Given, Outputs, Manner)
def relax(given: Given, outputs: Outputs, manner: Manner) -> None:
    """Relax the structures of files and write them, with their energies and forces.

    Exit status: 0, 1 if nothing converged, 2 for bad input, 3 if something could not be written
    (all else is), 130 if interrupted (what has been reached by then is written).
    """
    check_named(given)
    check_free(outputs, given)
    from basinax.cli._relax import run

    run(given, outputs, manner)


@app.command(cls=Command, short_help="Find energies, forces and stresses without relaxing.")
@takes(Model, PointOutputs, Manner)
def evaluate(model: Model, outputs: PointOutputs, manner: Manner) -> None:
    """Find energies, forces and, with --stress, stresses of structures where they are.

    Exit status: 0, 1 if a structure could not be evaluated, 2 for bad input, 3 if something could
    not be written, 130 if interrupted.
    """
    check_named(model)
    check_free(outputs, model)
    from basinax.cli._evaluate import run

    run(model, outputs, manner)


@app.command("list", short_help="Show potentials, optimizers or cells, with their options.")
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to show.")],
) -> None:
    """Show what there is, one a line, with options and their defaults."""
    from basinax.cli._list import run

    run(kind)


@app.command(cls=Command, short_help="Check that structures have the same bits alone.")
@takes(Given, Sample, Manner, unused=Outputs)
def verify(given: Given, sample: Sample, manner: Manner) -> None:
    """Relax all in a batch and a sample alone, and compare positions, energies and steps bitwise.

    Exit status: 0 if every one of the sample agrees, 1 if one does not, 2 for bad input, 130 if
    interrupted.
    """
    check_named(given)
    from basinax.cli._verify import run

    run(given, sample, manner)


@app.command(cls=Command, short_help="Check what a potential or model promises.")
@takes(Probed, Sample, Manner)
def probe(probed: Probed, sample: Sample, manner: Manner) -> None:
    """Evaluate a sample alone, together, in other orders, beside NaN and again, and compare bits;
    compare forces and stress with differences of the energy, and the energy with that of moved,
    turned and renumbered structures.

    Exit status: 0 if all agrees, 1 if something does not, 2 for bad input, 130 if interrupted.
    """
    check_named(probed)
    from basinax.cli._probe import run

    run(probed, sample, manner)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from basinax.cli._console import check_printed, out

        out.print(basinax.__version__)
        check_printed("the version")
        raise typer.Exit
