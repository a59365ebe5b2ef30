"""A database of a PostgreSQL server that keeps a run, which several processes may work on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from basinax._text.tables import Table
from basinax.atoms._runs.results import Results
from basinax.atoms._runs.stores import BEGINNING, ServerDatabase

ENTRY = "basinax"
"""The entry of the database's metadata that has the record of the run."""


class RunDatabase:
    """A database whose metadata say how to do a run again, and whose rows are its results."""

    def __init__(self, address: str):
        self.store = ServerDatabase(address)
        self.results = Results(self.store)
        self.name = self.store.name
        self.page, self.files = Path("report.html"), list[Path]()

    @property
    def record(self) -> str:
        return f"the record in {self.name}"

    def is_begun(self) -> bool:
        """Whether a run has been begun in it.

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
        """Raises OSError unless a run has been begun in it."""
        if not self.is_begun():
            raise FileNotFoundError(f"{self.name} is no database of a run: it is empty")

    def read_record(self) -> Table:
        """Raises OSError where there is none."""
        with self.store.reported(), self.store.opened() as database:
            return database.metadata[ENTRY]

    def write_record(self, table: Table) -> None:
        """In place of the one before."""

        def write(database) -> None:
            database.metadata = database.metadata | {ENTRY: table}

        self.results.with_database(write)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """The database may be worked on; what this process has claimed is its own until then."""
        try:
            yield
        finally:
            self.store.close()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process changes the record within."""
        with self.store.reported(), self.store.locked(BEGINNING):
            yield
