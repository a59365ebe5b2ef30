"""The results of a run, in a database of ASE: one row a structure, of those that have ended."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ase.db

from basinax._loop.status import Status
from basinax._text.files import replacing
from basinax.atoms._result import AtomsRelaxation, Relaxed, gathered
from basinax.atoms._runs.rows import NUMBER, entry_of, row_of, status_of

T = TypeVar("T")


class Brief(NamedTuple):
    """A row, but for what is found of each atom: a thousandth of a second each is saved."""

    number: int
    status: Status
    n_atoms: int
    energy: float | None
    """In eV."""
    volume: float | None
    """In Å³."""
    pairs: dict[str, Any]
    """Its key-value pairs."""

    def as_row(self) -> dict[str, Any]:
        """A row of a report, with the names that `AtomsRelaxation.to_dict` has."""
        names = {
            "source": "source",
            "message": "message",
            "steps": "steps",
            "evaluations": "evaluations",
            "initial_energy": "initial_energy_eV",
            "largest_force": "fmax_eV_per_A",
            "seconds": "ended",
            "initial_volume": "initial_volume_A3",
        }
        return {name: self.pairs[pair] for pair, name in names.items() if pair in self.pairs} | {
            "number": self.number,
            "status": str(self.status),
            "atoms": self.n_atoms,
            "energy_eV": self.energy,
            "volume_A3": self.volume,
        }


class Results:
    """Rows are added some at a time: all of them are kept then, or none.

    SQLite keeps what was added, whatever becomes of the process or the machine.

    Methods raise OSError where the database is damaged, is none of this kind, or has no room.
    """

    def __init__(self, path: Path):
        self.path = path

    def add(self, entries: Iterable[tuple[int, Relaxed]]) -> None:
        """Adds structures that have ended, by their numbers in the input."""
        rows = [row_of(*each) for each in entries]

        def add(database: Any) -> None:
            for row, pairs, data in rows:
                database.write(row, key_value_pairs=pairs, data=data)

        self._with_database(add)

    def copy(self, other: "Results") -> None:
        """Adds all rows of other results."""

        def copy(database: Any) -> None:
            for row in other._rows():
                database.write(row)

        self._with_database(copy)

    def briefs(self) -> list[Brief]:
        """All rows, in the order in which they were added."""

        def find(database: Any) -> list[Brief]:
            with database.managed_connection() as connection:
                cursor = connection.cursor()
                cursor.execute(
                    "SELECT natoms, energy, volume, key_value_pairs FROM systems ORDER BY id"
                )
                return [_brief(*row) for row in cursor]

        return self._with_database(find) if self.path.exists() else []

    def entries(self) -> Iterator[tuple[int, Relaxed]]:
        """Structures by their numbers, in the order of the input."""
        return map(entry_of, self._rows())

    def gathered(self, statuses: Sequence[Status] = ()) -> tuple[list[int], AtomsRelaxation]:
        """Structures that were read and ended so, or all of these, as the result of `relax`, and
        their numbers."""
        found = [
            (number, entry)
            for number, entry in self.entries()
            if len(entry.atoms) and (not statuses or entry.status in statuses)
        ]
        return [number for number, _ in found], gathered([entry for _, entry in found])

    def _rows(self) -> Iterator[Any]:
        """In the order of the input."""
        if not self.path.exists():
            return
        try:
            yield from self._connected(self.path).select(sort=NUMBER)
        except (sqlite3.Error, KeyError) as error:
            raise OSError(f"{self.path} is damaged: {error}") from error

    def _with_database(self, work: Callable[[Any], T]) -> T:
        """What a function of the database returns; one transaction."""
        try:
            if not self.path.exists():
                self._make()
            database = self._connected(self.path)
            with database:
                return work(database)
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path} cannot be used: {error}") from error
        except (sqlite3.Error, KeyError, ValueError) as error:
            raise OSError(f"{self.path} is damaged: {error}") from error

    def _make(self) -> None:
        """An empty database, whose tables are all there as soon as one is."""
        with replacing(self.path) as partial:
            self._connected(partial).count()

    def _connected(self, path: Path) -> Any:
        # SQLite locks the file itself; a lock of ASE's would outlive a process that is killed.
        return ase.db.connect(path, type="db", use_lock_file=False, serial=True)


def _brief(n_atoms: int, energy: float | None, volume: float | None, text: str) -> Brief:
    pairs = json.loads(text)
    return Brief(pairs[NUMBER], status_of(pairs), n_atoms, energy, volume, pairs)
