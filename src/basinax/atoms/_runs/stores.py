"""The ASE database that stores the results of a run: an SQLite file."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.db

from basinax._text.files import replacing


class SQLiteFile:
    """An SQLite file; committed rows survive the end of the process or machine."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)

    def exists(self) -> bool:
        """Whether the database holds tables of ASE."""
        return self.path.exists()

    def opened(self) -> contextlib.AbstractContextManager[Any]:
        """A context with the database, for reading."""
        return _connected(self.path)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A context that stores everything written inside, or nothing; makes missing tables."""
        if not self.exists():
            # ASE makes tables one by one, and a process killed in between would leave a damaged
            # file. So make the tables in another file and rename that file.
            with replacing(self.path) as partial:
                _connected(partial).count()
        with self.opened() as database:
            yield database

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """A context that turns errors of the database into OSError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.name} cannot be used: {error}") from error
        except (sqlite3.Error, KeyError, ValueError) as error:
            raise OSError(f"{self.name} is damaged: {error}") from error


def _connected(path: Path) -> Any:
    # SQLite locks the file itself; ASE's lock file would outlive a killed process.
    return ase.db.connect(path, type="db", use_lock_file=False, serial=True)
