"""ASE databases that store the results of runs: an SQLite file, or a PostgreSQL server.

Both have transactions that store everything or nothing, and report problems as OSError.
"""

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ase.db

from basinax._settings import said
from basinax._text.files import replacing
from basinax.atoms._runs.rows import Pack, as_bytes, packed

SERVERS = ("postgresql://", "postgres://")
"""The first characters of server addresses."""

LOCKS = 0x62617369
"""The class of this package's locks on a server."""

WRITING, BEGINNING, BLOCKS = 0, 1, 2
"""Lock numbers: one process writes, one begins or ends a run, and from `BLOCKS` on, one process
owns each block of the input."""

SOON = ("tcp_keepalives_idle = 30", "tcp_keepalives_interval = 10", "tcp_keepalives_count = 3")
"""Settings by which the server drops the locks of an unreachable machine within a minute."""


class SQLiteFile:
    """An SQLite file; committed rows survive the end of the process or machine."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)
        self.pack: Pack = as_bytes

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


class ServerDatabase:
    """A database of a PostgreSQL server, with locks that end with the process that holds them."""

    def __init__(self, address: str):
        self.address, self.name = address, _without_password(address)
        self.pack: Pack = packed
        self._locks: Any = None

    def exists(self) -> bool:
        return self._asked("SELECT to_regclass('systems') IS NOT NULL")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        database: Any = ase.db.connect(self.address)
        database.__enter__()
        try:
            yield database
        except BaseException:
            database.connection.close()  # which rolls the transaction back
            raise
        database.__exit__(None, None, None)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        # ASE takes the last row's number for the new row, so concurrent writers must wait.
        with self.locked(WRITING), self.opened() as database:
            yield database

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        psycopg2 = _imported()
        try:
            yield
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            raise OSError(f"{self.name} cannot be used: {said(error)}") from error
        except (psycopg2.Error, KeyError, ValueError, AssertionError) as error:
            raise OSError(f"{self.name} is damaged: {said(error)}") from error

    @contextlib.contextmanager
    def locked(self, lock: int) -> Iterator[None]:
        """A context that at most one process enters at a time, per lock."""
        self._asked(f"SELECT pg_advisory_lock({LOCKS}, {lock})")
        try:
            yield
        finally:
            self._asked(f"SELECT pg_advisory_unlock({LOCKS}, {lock})")

    def claimed(self, block: int) -> bool:
        """Claim a block; return whether this process owns the block now, until the process ends."""
        with self.reported():
            return self._asked(f"SELECT pg_try_advisory_lock({LOCKS}, {BLOCKS + block})")

    def close(self) -> None:
        """End all claims."""
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def _asked(self, query: str) -> Any:
        """The value that a query returns."""
        if self._locks is None:
            self._locks = _imported().connect(self.address)
            self._locks.autocommit = True
            with self._locks.cursor() as cursor:
                for setting in SOON:
                    cursor.execute(f"SET {setting}")
        with self._locks.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]


Store = SQLiteFile | ServerDatabase


def _without_password(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    name, _, place = parts.netloc.rpartition("@")
    user = name.partition(":")[0]
    query = [pair for pair in parts.query.split("&") if not pair.startswith("password=")]
    return parts._replace(
        netloc=f"{user}@{place}" if user else place, query="&".join(query)
    ).geturl()


def _imported() -> Any:
    try:
        import ase_db_backends.postgresql  # noqa: F401  # pyright: ignore[reportMissingImports]
        import psycopg2  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        text = "--run postgresql://... needs a package: pip install 'basinax[postgresql]'"
        raise ImportError(text) from error
    return psycopg2
