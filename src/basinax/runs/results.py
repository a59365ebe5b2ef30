"""The results of a run in an ASE database: one row per structure that has ended."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from ase.data import chemical_symbols
from ase.db.core import T2000, YEAR
from ase.symbols import Symbols

from basinax.minimize.status import Status
from basinax.numerics.settings import one_line
from basinax.results.record import Relaxed
from basinax.results.report.curves import Curve
from basinax.results.result import AtomsRelaxation
from basinax.runs.rows import (
    COLUMNS,
    NUMBER,
    check_number,
    checked_pairs,
    curve_of,
    entry_of,
    info_of,
    pairs_of,
    row_of,
    source_of,
    status_of,
)
from basinax.runs.stores import SQLiteFile

T = TypeVar("T")

PERIODIC = 7
"""ASE's number for three periodic directions, one bit for each."""


class Brief(NamedTuple):
    """A row without its values per atom, which saves a millisecond per row."""

    number: int
    status: Status
    n_atoms: int
    elements: bytes
    """The numbers of the chemical elements, as stored."""
    volume: float | None
    """The volume in Å³; None without three periodic directions."""
    stored: float
    """When the row was added, in seconds since 1970."""
    pairs: dict[str, Any]
    """The key-value pairs of the row."""
    kind: type[Relaxed]
    """The class of records in the rows."""

    @property
    def source(self) -> str:
        return self.pairs["source"]

    @property
    def reason(self) -> str:
        """The reason why the structure has not converged."""
        return self.pairs.get("message", self.status.meaning)

    @property
    def formula(self) -> str:
        """The chemical formula; raises ValueError if the row is damaged."""
        numbers = np.frombuffer(self.elements, "<i4")
        if not np.isin(numbers, range(len(chemical_symbols))).all():
            raise ValueError(f"structure {self.number}: its atoms have the numbers {numbers}")
        return Symbols(numbers).get_chemical_formula()

    def as_row(self) -> dict[str, Any]:
        """A row of a report, with the names of `AtomsRelaxation.to_dict`."""
        named = pairs_of(self.kind).values()
        return {x.heading: self.pairs[x.key] for x in named if x.key in self.pairs} | {
            "number": self.number,
            "formula": self.formula,
            "atoms": self.n_atoms,
            "volume_A3": self.volume,
        }


def counts_of(briefs: Iterable[Brief]) -> dict[str, int]:
    """The number of structures by name of status."""
    counts = Counter(brief.status for brief in briefs)
    return {str(status): counts[status] for status in Status if counts[status]}


class Results:
    """The rows of a run. Each call that adds rows adds all of them or none.

    Methods raise OSError if the database is damaged, is of another kind, or has no space left.
    """

    def __init__(self, store: SQLiteFile, kind: type[Relaxed] = Relaxed):
        """Args: kind: the class of the records."""
        self._store, self.name, self._kind = store, store.name, kind

    def exist(self) -> bool:
        """Whether any results have been stored."""
        return self._store.exists()

    def add(self, entries: Sequence[tuple[int, Relaxed]]) -> None:
        """Add structures that have ended, by their numbers in the input.

        Raises:
            Busy: another program holds the database; nothing was added.
        """

        def add(database: Any) -> None:
            for each in entries:
                database.write(row_of(*each))

        self.with_database(add)

    def copy(self, other: "Results") -> None:
        """Add all rows of other results."""
        if not other.briefs():  # which also checks the rows
            return

        def copy(database: Any) -> None:
            with other._store.reported(), other._store.opened() as source:
                for row in source.select():
                    database.write(row)

        self.with_database(copy)

    def briefs(self) -> list[Brief]:
        """All rows in the order of addition."""
        columns = "natoms", "numbers", "volume", "pbc", "ctime"
        found = list(self._selected(self._brief, *columns))
        if any("source" not in brief.pairs for brief in found):
            read = self._selected(lambda pairs, data: (pairs[NUMBER], source_of(data)), "data")
            sources = dict(read)
            for brief in found:
                brief.pairs["source"] = sources[brief.number]
        seen = set[int]()
        with self._store.reported():
            for brief in found:
                if brief.number in seen:
                    raise ValueError(f"structure {brief.number} stands in it twice")
                seen.add(brief.number)
        return found

    def curves(self) -> dict[int, Curve]:
        """The convergence curves that are stored, by structure number."""

        def curve(pairs: dict[str, Any], data: Any) -> tuple[int, Curve | None]:
            return pairs[NUMBER], curve_of(data)

        found = self._selected(curve, "data")
        return {number: curve for number, curve in found if curve is not None}

    def infos(self) -> dict[int, dict[Any, Any]]:
        """The `info` of structures, by structure number."""
        found = self._selected(lambda pairs, data: (pairs[NUMBER], info_of(data)), "data")
        return dict(found)

    def entries(self) -> list[tuple[int, Relaxed]]:
        """Numbers and structures, in the order of the input."""
        self.briefs()  # which checks every row
        make = functools.partial(entry_of, kind=self._kind)
        return sorted(self._selected(make, *COLUMNS), key=lambda entry: entry[0])

    def gathered(self, statuses: Sequence[Status] = ()) -> tuple[list[int], AtomsRelaxation]:
        """The numbers and the result, as from `relax`, of structures with these statuses, or of
        all. A structure that could not be read has no atoms."""
        found = [each for each in self.entries() if not statuses or each[1].status in statuses]
        return [number for number, _ in found], AtomsRelaxation([entry for _, entry in found])

    def with_database(self, work: Callable[[Any], T]) -> T:
        """Run a function of the database in one transaction, and return its result."""
        # ASE takes the volume of each cell that is written, which may be unusable.
        quiet = np.errstate(invalid="ignore")
        with quiet, self._store.reported(), self._store.transaction() as database:
            return work(database)

    def _selected(self, make: Callable[..., T], *columns: str) -> Iterator[T]:
        """The results of a function of each row's key-value pairs and some columns."""
        query = f"SELECT {', '.join(columns)}, key_value_pairs FROM systems ORDER BY id"
        with self._store.reported():
            if not self._store.exists():
                return
            with self._store.opened() as database, database.managed_connection() as connection:
                cursor = connection.cursor()
                cursor.execute(query)
                for *values, pairs in iter(cursor.fetchone, None):
                    checked = checked_pairs(json.loads(pairs), self._kind)
                    yield _of_structure(checked[NUMBER], make, checked, *values)

    def _brief(
        self,
        pairs: dict[str, Any],
        n_atoms: Any,
        elements: Any,
        volume: Any,
        pbc: Any,
        added: Any,
    ) -> Brief:
        check_number("number of atoms", n_atoms, int)
        if volume is not None:
            check_number("volume", volume, float)
        check_number("time", added, float)
        volume = volume if pbc == PERIODIC else None
        place = pairs[NUMBER], status_of(pairs), n_atoms, elements, volume
        return Brief(*place, T2000 + YEAR * added, pairs, self._kind)


def _of_structure(number: int, make: Callable[..., T], *values: Any) -> T:
    """What is made of a structure's values, with its number in errors."""
    try:
        return make(*values)
    except Exception as error:  # values of a damaged row may be anything
        raise ValueError(f"structure {number}: {one_line(error)}") from error
