"""The command `basinax resume`, which repeats the command of the record."""

import os
from typing import Any

from basinax._text.tables import RECORD
from basinax.atoms._runs.folder import RunFolder
from basinax.cli._console import fail, reported


def run(name: str, options: list[str], commands: Any) -> None:
    """Args: options: further options of `basinax relax`, which is among the commands."""
    with reported():
        kept = RunFolder(RunFolder(name).path.absolute())
        kept.check_begun()
        settings = kept.read_record()
    record = settings.get(RECORD, {})
    # File names in the text of a potential are relative to that folder.
    begun_in = record.get("folder")
    if begun_in and os.path.isdir(begun_in):
        os.chdir(begun_in)
    if "shard" not in record:
        fail(f"{kept.record} is no record of a run that can go on")
    arguments = ["relax", "--config", str(kept.record), "--run", kept.name]
    arguments += ["--shard", record["shard"], *options]
    commands.main(arguments, prog_name="basinax")
