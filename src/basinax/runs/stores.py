"""The ASE database that stores the results of a run: an SQLite file."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.db

from basinax.config.files import replacing
from basinax.numerics.settings import one_line

PATIENCE = {"read": 20.0, "write": 1.0}
"""Seconds of waiting for another program that has locked the file."""

_IS_ASE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'systems'"


class Busy(OSError):
    """Another program has locked the database."""


class SQLiteFile:
    """An SQLite file; committed rows survive the end of the process or machine."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)

    def exists(self) -> bool:
        """Whether there is a file with content."""
        return self.path.exists() and self.path.stat().st_size > 0

    @contextlib.contextmanager
    def opened(self, why: str = "read") -> Iterator[Any]:
        """A context with the database."""
        with _connected(self.path) as database:
            database.connection.execute(f"PRAGMA busy_timeout = {int(1000 * PATIENCE[why])}")
            if not database.connection.execute(_IS_ASE).fetchone():
                raise ValueError("it has no table of systems")  # ASE would add its tables
            yield database

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """A context that stores everything written inside, or nothing; makes missing tables."""
        if not self.exists():
            # ASE makes tables one by one, and a process killed in between would leave a damaged
            # file. So make the tables in another file and rename that file.
            with replacing(self.path) as partial:
                _connected(partial).count()
        with self.opened("write") as database:
            # Lock out readers now: one that holds the file would make the commit fail.
            database.connection.execute("BEGIN EXCLUSIVE")
            yield database

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """A context that turns errors of the database into OSError, and locks into Busy."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise Busy(f"{self.name} is in use by {_users_of(self.path)}") from error
            raise OSError(f"{self.name} cannot be used: {error}") from error
        except (OSError, MemoryError):
            raise
        except Exception as error:  # ASE's errors about what it does not expect are of any class
            raise OSError(f"{self.name} is damaged: {one_line(error)}") from error


def _connected(path: Path) -> Any:
    # SQLite locks the file itself; ASE's lock file would outlive a killed process.
    return ase.db.connect(path, type="db", use_lock_file=False, serial=True)


def _users_of(path: Path) -> str:
    """The processes that lock a file, where Linux tells them."""
    found = dict[str, str]()
    with contextlib.suppress(OSError):
        inode = str(os.stat(path).st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            *_, process, file, _, _ = line.split()
            if file.rpartition(":")[2] == inode and "->" not in line:
                name = Path(f"/proc/{process}/comm").read_text().strip()
                found[process] = f"process {process} ({name})"
    return " and ".join(found.values()) or "another program"
