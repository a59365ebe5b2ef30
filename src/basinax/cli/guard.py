"""Files that are refused before ASE opens them.

It would wait for pipes, read devices without an end, and add tables to foreign databases.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from ase.io.bundletrajectory import BundleTrajectory

from basinax.config.reading import found


class Unreadable(Exception):
    """A file without readable structures; the text is the reason."""


def check_file(path: Path) -> None:
    """Check that ASE can open a file.

    Raises:
        Unreadable: it holds no structures.
        OSError: the file does not exist, or is no plain file.
    """
    if path.is_dir():
        if not BundleTrajectory.is_bundle(str(path)):
            raise Unreadable("it is a folder in which no file can be seen")
        return
    found(path)
    if not path.stat().st_size:
        raise Unreadable("the file is empty")
    if path.suffix.lower() == ".db":
        _check_database(path)


def _check_database(path: Path) -> None:
    where = f"{path.absolute().as_uri()}?mode=ro"
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'systems'"
    try:
        with closing(sqlite3.connect(where, uri=True)) as database:
            has_structures = database.execute(query).fetchone()
    except sqlite3.Error as error:
        raise Unreadable(f"it is no database of ASE: {error}") from error
    if not has_structures:
        raise Unreadable("it is no database of ASE: it has no table of systems")
