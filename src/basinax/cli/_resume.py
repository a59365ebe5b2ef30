"""The command `basinax resume`, which repeats the command of the record."""

import os
import tempfile
from pathlib import Path
from typing import Any

import typer

from basinax._text.tables import RECORD, write_config
from basinax.atoms._runs.folder import RunFolder
from basinax.atoms._runs.kept import Kept, kept_in
from basinax.cli._console import fail, reported


def run(name: str, options: list[str], commands: Any) -> None:
    """Args: options: further options of `basinax relax`, which is among the commands."""
    kept: Kept = kept_in(name)
    if isinstance(kept, RunFolder):
        kept = RunFolder(kept.path.absolute())
        name = kept.name
    with reported():
        kept.check_begun()
        settings = kept.read_record()
        record = settings[RECORD]
        # File names in the text of a potential are relative to that folder.
        if os.path.isdir(record["folder"]):
            os.chdir(record["folder"])
    with tempfile.TemporaryDirectory(prefix="basinax-") as folder:
        config = kept.record if isinstance(kept, RunFolder) else Path(folder) / "record.json"
        if not isinstance(kept, RunFolder):
            write_config(settings, config)
        arguments = ["relax", "--config", str(config), "--run", name]
        arguments += ["--shard", record["shard"], *options]
        try:
            code = commands.main(arguments, prog_name="basinax", standalone_mode=False)
        except typer.BadParameter as error:  # of a record, it needs no text about usage
            fail(error.format_message())
    raise typer.Exit(code or 0)
