"""The place of a run, by its name."""

from basinax.atoms._runs.database import RunDatabase
from basinax.atoms._runs.folder import RunFolder
from basinax.atoms._runs.stores import SERVERS

Kept = RunFolder | RunDatabase


def kept_in(name: str) -> Kept:
    """The run of a folder, or of a database by its server address."""
    return RunDatabase(name) if name.startswith(SERVERS) else RunFolder(name)
