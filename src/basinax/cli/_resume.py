"""The command `basinax resume`, which repeats the command of the record."""

import os
from typing import Any

import typer

from basinax._text.tables import RECORD
from basinax.atoms._runs.folder import RunFolder
from basinax.cli._console import fail, reported


def run(name: str, options: list[str], commands: Any) -> None:
    """Args: options: further options of `basinax relax`, which is among the commands."""
    with reported():
        kept = RunFolder(RunFolder(name).path.absolute())
        kept.check_begun()
        settings = kept.read_record()
        record = settings[RECORD]
        # File names in the text of a potential are relative to that folder.
        if os.path.isdir(record["folder"]):
            os.chdir(record["folder"])
    arguments = ["relax", "--config", str(kept.record), "--run", kept.name]
    arguments += ["--shard", record["shard"], *options]
    try:
        code = commands.main(arguments, prog_name="basinax", standalone_mode=False)
    except typer.BadParameter as error:  # of a record, it needs no text about usage
        fail(error.format_message())
    raise typer.Exit(code or 0)
