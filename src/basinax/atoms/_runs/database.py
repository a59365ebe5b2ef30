"""A database of a PostgreSQL server that stores a run, shared by several processes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from basinax._text.tables import Table
from basinax.atoms._runs.record import checked
from basinax.atoms._runs.results import Results
from basinax.atoms._runs.stores import BEGINNING, ServerDatabase

ENTRY = "basinax"
"""The key of the run's record in the metadata of the database."""


class RunDatabase:
    """A database with the record of a run as metadata and the results as rows."""

    def __init__(self, address: str):
        self.store = ServerDatabase(address)
        self.results = Results(self.store)
        self.name = self.store.name
        self.page, self.files = Path("report.html"), list[Path]()

    @property
    def record(self) -> str:
        return f"the record in {self.name}"

    def is_begun(self) -> bool:
        """Whether the database holds a run.

        Raises:
            OSError: the database holds something else, or cannot be reached.
        """
        with self.store.reported():
            if not self.store.exists():
                return False
            with self.store.opened() as database:
                if ENTRY in database.metadata:
                    return True
                if not database.count():
                    return False
        raise FileExistsError(f"{self.name} is no database of a run: it has rows, and no record")

    def check_begun(self) -> None:
        """Raise OSError unless the database holds a run."""
        if not self.is_begun():
            raise FileNotFoundError(f"{self.name} is no database of a run: it is empty")

    def read_record(self) -> Table:
        """The record; raises OSError or ValueError if there is none or it is damaged."""
        with self.store.reported(), self.store.opened() as database:
            table = database.metadata[ENTRY]
        return checked(table, self.record)

    def write_record(self, table: Table) -> None:
        """Replace the record."""

        def write(database) -> None:
            database.metadata = database.metadata | {ENTRY: table}

        self.results.with_database(write)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Use the database; claims of this process last until the end of the context."""
        try:
            yield
        finally:
            self.store.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process changes the record inside this context."""
        with self.store.reported(), self.store.locked(BEGINNING):
            yield
