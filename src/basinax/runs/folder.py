"""A folder that stores a run: its settings and its results."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from basinax.config.files import PARTIAL, check_sole, replacing
from basinax.config.tables import RECORD, SETTINGS, Table, read_config, toml_of
from basinax.results.record import Relaxed
from basinax.results.report.page import write_report
from basinax.results.table import Columns, columns_of, fields_of, further_columns, rows_of
from basinax.runs.record import checked, spans_of
from basinax.runs.results import Brief, Results
from basinax.runs.stores import SQLiteFile

STDIN = "stdin.extxyz"
RESULTS = "results.db"
LOCK = "lock"
BESIDE = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite puts beside a database."""

_SERVER = re.compile(r"postgres(ql)?:/", re.IGNORECASE)


def limit_of(record: Table) -> float | None:
    """The `fmax` of a run in eV/Å; None if it is not one number."""
    fmax = record.get("fmax")
    return float(fmax) if isinstance(fmax, int | float) else None


def is_of_paths(record: Table) -> bool:
    """Whether a run is of paths, not of structures."""
    return record[RECORD]["command"] == "neb"


class RunFolder:
    """A folder with `run.toml`, from which the run can be repeated, and `results.db`."""

    def __init__(self, path: str | os.PathLike[str]):
        """Raises ValueError for the address of a server, which may hold a password."""
        self.path, self.name = Path(path), os.fspath(path)
        if _SERVER.match(self.name):
            raise ValueError(
                "a run is kept in a folder, not on a database server: machines share one by --ray,"
                " or by --shard and basinax merge"
            )
        self.page = self.path / "report.html"
        self.stdin = self.path / STDIN
        """A copy of standard input, for a run that goes on."""
        self.results = Results(SQLiteFile(self.path / RESULTS))

    @property
    def record(self) -> Path:
        return self.path / SETTINGS

    def stdin_content(self) -> bytes | None:
        """The copy of standard input; None without one."""
        return self.stdin.read_bytes() if self.stdin.is_file() else None

    @property
    def files(self) -> list[Path]:
        """The files of the run."""
        return [self.record, self.path / RESULTS]

    def is_begun(self) -> bool:
        """Whether the folder holds a run.

        Raises:
            OSError: the folder holds something else.
        """
        if self.record.is_file():
            return True
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file: name a folder for the run")
        names = sorted(os.listdir(self.path)) if self.path.exists() else []
        others = [x for x in names if x not in (LOCK, STDIN) and not x.startswith(PARTIAL)]
        if others:
            raise FileExistsError(
                f"{self.path} is no folder of a run: it has no {SETTINGS}, but {others[0]}"
            )
        return False

    @classmethod
    def begun(cls, path: str | os.PathLike[str]) -> Self:
        """The folder of a run that has begun; raises OSError if there is none."""
        kept = cls(path)
        if not kept.path.exists():
            raise FileNotFoundError(f"{kept.path} is no folder of a run: there is no such folder")
        if not kept.is_begun():
            raise FileNotFoundError(f"{kept.path} is no folder of a run: it is empty")
        return kept

    def read_record(self) -> Table:
        """The record; raises OSError or ValueError if there is none or it is damaged."""
        return checked(read_config(self.record), str(self.record))

    def write_record(self, table: Table) -> None:
        """Replace the record in one step, after the new one is complete and on disk."""
        with replacing(self.record) as partial, partial.open("w", encoding="utf-8") as file:
            file.write(toml_of(table, (RECORD,)))
            file.flush()
            os.fsync(file.fileno())

    def paths(self) -> dict[int, Any]:
        """The paths of a run of paths by number, but those that could not be read."""
        from basinax.neb.result import MinimumEnergyPath  # importing it takes time

        entries = self.results.entries()
        return {number: MinimumEnergyPath(entry) for number, entry in entries if entry.n_atoms}

    def rows(self, record: Table, briefs: Sequence[Brief]) -> tuple[type, list[dict[str, Any]]]:
        """The class of records whose columns a report has, and its rows."""
        if not is_of_paths(record):
            return Relaxed, [brief.as_row() for brief in briefs]
        from basinax.neb.result import MinimumEnergyPath

        paths = self.paths()
        read = rows_of(columns_of(list(paths.values()), MinimumEnergyPath))
        rows = dict(zip(paths, read, strict=True))
        for brief in briefs:
            unread = {"source": brief.source, "status": brief.status, "message": brief.reason}
            rows[brief.number] = rows.get(brief.number, unread) | {"number": brief.number}
        return MinimumEnergyPath, [rows[brief.number] for brief in briefs]

    def write_report(
        self,
        path: Path,
        record: Table,
        briefs: Sequence[Brief],
        title: str,
        info: Columns | None = None,
    ) -> None:
        """Write the page about the run, see `basinax.results.report.page.write_report`.

        Args:
            info: further columns, from `columns_of_info`.
        """
        kind, rows = self.rows(record, briefs)
        for k, row in enumerate(rows):
            row |= {name: values[k] for name, values in (info or {}).items()}
        write_report(
            path,
            rows,
            kind,
            curves=self.results.curves(),
            limit=limit_of(record),
            runs=spans_of(record[RECORD], [brief.stored for brief in briefs]),
            settings=record,
            title=title,
        )

    def columns_of_info(self, names: Sequence[str], briefs: Sequence[Brief]) -> Columns:
        """Columns by names in the `info` of structures.

        Raises:
            ValueError: no structure has a name, or the table has a column of this name.
        """
        if not names:  # reading `info` takes long
            return {}
        infos = self.results.infos()
        headings = ["number", *(column.heading for column in fields_of(Relaxed).values())]
        return further_columns(names, [infos[brief.number] for brief in briefs], headings)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Lock the folder for this process, and make the folder if needed.

        The operating system releases the lock when the process ends, for any reason.

        Raises:
            OSError: another process holds the lock, the folder cannot be made, or a file in it is a
            link to another one.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise type(error)(f"{self.path} cannot be made: {error.strerror}") from error
        for name in (LOCK, SETTINGS, RESULTS, *(RESULTS + ending for ending in BESIDE)):
            check_sole(self.path / name)
        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise BlockingIOError(
                f"{self.path} is in use: another run works on it, and must end first"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def remove(self) -> None:
        """Remove the folder, in one step for all who look for it."""
        gone = self.path.with_name(f"{PARTIAL}{secrets.token_hex(8)}")
        with suppress(FileNotFoundError):  # another program may have removed it
            self.path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
