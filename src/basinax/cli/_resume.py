"""The command `basinax resume`: the command of the record is given again."""

import os
from pathlib import Path
from typing import Any

from basinax.atoms._runs.folder import RunFolder
from basinax.cli._config import RECORD
from basinax.cli._console import fail, reported


def run(folder: Path, options: list[str], commands: Any) -> None:
    """Args: options: further ones of `basinax relax`, which is among the commands."""
    kept = RunFolder(folder.absolute())
    with reported():
        kept.check_begun()
        record = kept.read_record().get(RECORD, {})
    # Names of files in the text of a potential begin there.
    begun_in = record.get("folder")
    if begun_in and os.path.isdir(begun_in):
        os.chdir(begun_in)
    if "shard" not in record:
        fail(f"{kept.record} is no record of a run that can go on")
    arguments = ["relax", "--config", str(kept.record), "--run", str(kept.path)]
    arguments += ["--shard", record["shard"], *options]
    commands.main(arguments, prog_name="basinax")
