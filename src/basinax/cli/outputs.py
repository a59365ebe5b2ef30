"""The outputs of a command: checked before a run, and filled after it, each separately."""

import dataclasses
import functools
import json
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer
from ase import Atoms

from basinax.cli.console import (
    NOT_SAVED,
    TerminalStream,
    err,
    fail,
    out,
    print_error,
    print_line,
    print_warning,
    reported,
    text_of,
    with_sources,
)
from basinax.cli.contents import Plan, form_of
from basinax.cli.inputs import STDIN_NAME
from basinax.cli.named import STDIN, in_the_way
from basinax.cli.options import STDOUT, Outputs, Written
from basinax.config.files import (
    check_creatable,
    ending_of,
    key_of,
    name_of,
    replacing,
    resolved,
    stamp_of,
)
from basinax.config.tables import Table, json_of, strict
from basinax.results.table import Columns, csv_of, writer_of
from basinax.results.trajectory import NotWhole, Trajectories, check_folder

SHORT = 200
"""Bytes of a name that leave room for endings appended by writers."""

STREAMS = ("standard input", "standard output", "standard error")

SHOWN = 10
"""The largest number of unconverged structures in a summary."""


@dataclasses.dataclass(frozen=True)
class Writing:
    """The outputs of a command, checked before a run to be writable."""

    outputs: Written
    names: dict[Path, Path]
    """The file of structures for each file of the input."""
    saver: "Saver"

    @classmethod
    def prepared(
        cls,
        outputs: Written,
        files: Sequence[Path],
        read: list[Path],
        trajectories: Trajectories | None = None,
        n_structures: int = 0,
        *,
        may_replace: bool,
        own: Written | None = None,
    ) -> "Writing":
        """The outputs; exits with an error if one cannot be written.

        Args:
            files: the files of structures.
            read: all files that the run reads.
            own: outputs of the run so far, which may be replaced in any case.
        """
        _check_stdout(outputs)
        files = list(dict.fromkeys(files))
        names, places = _places_of(outputs, files)
        known = [] if own is None else [path for path, _ in _places_of(own, files)[1]]
        # A record given as config file has been read already and may be replaced.
        record = None if outputs.record is None else key_of(outputs.record)
        read = [path for path in read if key_of(path) != record]
        check_places(places, trajectories, n_structures, read, own=known, may_replace=may_replace)
        for path in names.values():
            form_of(path)
        if outputs.table not in (None, STDOUT):
            with reported():
                writer_of(outputs.table)
        return cls(outputs, names, Saver(path for path, _ in places))

    def files_of(self, paths: Sequence[Path]) -> dict[Path, list[int]]:
        """The files of structures, and the numbers of the structures in each.

        Args:
            paths: the file of the input that each structure is from.
        """
        files: dict[Path, list[int]] = {}
        if self.names:
            for number, path in enumerate(paths):
                files.setdefault(self.names[path], []).append(number)
        return files

    def write(self, plans: list[Plan], atoms: Sequence[Atoms], columns: Columns) -> None:
        """Write structures and the table, each separately."""
        for plan in plans:
            self.saver.save(plan.path, functools.partial(plan.write, structures=atoms))
        table = self.outputs.table
        if table is not None and table != STDOUT:
            self.saver.save(table, lambda path: writer_of(path)(path, columns))

    def write_record(self, record: Table) -> None:
        """Write the record beside the structures, if these are at their place."""
        if (place := self.written_record) is not None:
            write = functools.partial(Path.write_text, data=json_of(record), encoding="utf-8")
            self.saver.save(place, write, is_named=False)

    @property
    def written_record(self) -> Path | None:
        """The place of the record, if a file of structures has been written."""
        has_structures = any(path in self.saver.saved for path in self.names.values())
        return self.outputs.record if has_structures else None

    @property
    def stream(self) -> TerminalStream:
        """The stream of the summary: standard error if a table or a log is printed."""
        return err if STDOUT in (self.outputs.table, getattr(self.outputs, "log", None)) else out

    def print_table(self, columns: Columns) -> None:
        """Print the table with `--table -`."""
        if self.outputs.table == STDOUT:
            out.write(csv_of(columns))

    def print_json(self, summary: dict[str, Any], more: Sequence[Path] = ()) -> None:
        """Print a summary, and what was written, for programs."""
        paths, record = [*self.saver.saved, *more], self.written_record
        written = {"written": [*map(name_of, paths)], "record": record and name_of(record)}
        out.write(json.dumps(strict(summary | written), indent=1) + "\n")


def print_first(
    stream: TerminalStream, numbers: Sequence[int], line_of: Callable[[int], str]
) -> None:
    """Print the lines of the first structures, and the number of the others."""
    for number in numbers[:SHOWN]:
        print_line(stream, line_of(number))
    if len(numbers) > SHOWN:
        print_line(stream, f"... and {len(numbers) - SHOWN} more")


def print_written(stream: TerminalStream, paths: Sequence[Path]) -> None:
    if paths:
        print_line(stream, f"Written: {', '.join(map(str, paths))}")


def print_saved(saver: "Saver", stream: TerminalStream = out) -> None:
    """Print what was written; exit if an output is missing."""
    print_written(stream, saver.saved)
    if saver.has_lost:
        raise typer.Exit(NOT_SAVED)


def _places_of(
    outputs: Written, files: list[Path]
) -> tuple[dict[Path, Path], list[tuple[Path, str]]]:
    """The names of `_names_of`, and all files to be written, each with its word in messages."""
    names = _names_of(outputs, files)
    return names, [*((path, "output") for path in dict.fromkeys(names.values())), *outputs.files()]


def _names_of(outputs: Written, files: list[Path]) -> dict[Path, Path]:
    """The file of structures for each file of the input; none if no place for them is given."""
    if outputs.output_dir is None:
        return {} if outputs.output is None else dict.fromkeys(files, outputs.output)
    if outputs.output is not None:
        fail("--output and --output-dir both say where structures go: remove one")
    return {path: outputs.output_dir / name for path, name in _names_apart(files).items()}


def _names_apart(paths: list[Path]) -> dict[Path, Path]:
    """The names of the paths; equal names keep the folders in which they differ."""
    names = {path: Path(STDIN_NAME if path == STDIN else path.name) for path in paths}
    if len(set(names.values())) == len(paths):
        return names
    places = {path: Path(os.path.abspath(path)) for path in paths if path != STDIN}
    above = os.path.commonpath([place.parent for place in places.values()])
    names |= {path: place.relative_to(above) for path, place in places.items()}
    if len(set(names.values())) < len(paths):
        if STDIN not in paths:
            fail("--output-dir: a file is named in two ways: name it once")
        fail(f"--output-dir keeps standard input as {STDIN_NAME}: rename the file of that name")
    return names


def _check_stdout(outputs: Written) -> None:
    """Exit if more than one output is to be printed."""
    printed = {"--json": outputs.json, "--table -": outputs.table == STDOUT}
    printed["--log -"] = isinstance(outputs, Outputs) and outputs.log == STDOUT
    asked = [name for name, is_asked in printed.items() if is_asked]
    if len(asked) > 1:
        fail(f"{' and '.join(asked)} go to standard output alike: choose one of them")


def check_places(
    places: Sequence[tuple[Path, str]],
    trajectories: Trajectories | None,
    n_structures: int,
    inputs: list[Path],
    *,
    own: Sequence[Path] = (),
    may_replace: bool,
) -> None:
    """Check before any work that no output is an input or another output, that all can be written,
    and that existing files may be replaced.

    Args:
        places: files to be written, each with its word in messages.
        inputs: files that are read.
        own: files that may be replaced in any case.
    """
    taken: dict[Any, str] = {key_of(path): "an input" for path in inputs} | _files_of_streams()

    def claim(path: Path, name: str, others: str) -> None:
        key = key_of(path)
        if key in taken:
            fail(f"{path} is {taken[key]}: choose another {name}")
        taken[key] = others

    def check_outside(path: Path, name: str) -> None:
        """Check folders too: an input may be a folder, and an output may become one."""
        for above in resolved(path).parents:
            if (key := key_of(above)) in taken:
                fail(f"{path} lies in {above.name}, which is {taken[key]}: choose another {name}")

    try:
        for path, name in places:
            check_outside(path, name)
            claim(path, name, f"the {name}, too")
            check_creatable(path)
        # A link without a target would make a file at a place that nobody has named.
        known = {key_of(path) for path in own}
        replaced = [
            path for path, _ in places if os.path.lexists(path) and key_of(path) not in known
        ]
        if trajectories is not None:
            folder, name = Path(trajectories.folder), "folder for trajectories"
            check_outside(folder, name)
            for path in (folder, *trajectories.paths(n_structures)):
                claim(path, name, "a trajectory, too")
            replaced += check_folder(trajectories, n_structures)
    except OSError as error:
        fail(text_of(error))
    if replaced and not may_replace:
        fail(in_the_way(replaced))


def _files_of_streams() -> dict[Any, str]:
    """The streams that a shell has redirected to files."""
    found = {}
    for number, name in enumerate(STREAMS):
        with suppress(OSError):
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                found[status.st_dev, status.st_ino] = f"the file of {name}"
    return found


class Saver:
    """Writes outputs, each separately, so that a failure costs no other output."""

    def __init__(self, paths: Iterable[Path]):
        """Make folders, and remember the files before the run to notice foreign changes later."""
        paths = list(paths)
        for path in paths:
            _make_folder(path)
        self._stamps = {path: stamp_of(path) for path in paths}
        self.saved: list[Path] = []
        self.has_lost = False
        """Whether a requested output is missing at its place."""

    def save(self, path: Path, write: Callable[[Path], Any], *, is_named: bool = True) -> None:
        """Put a file in place; if that fails, print why, and where the file is instead.

        Args:
            is_named: whether to list the file among the saved ones.
        """
        try:
            with replacing(path) as partial:
                write(partial)
                is_new = stamp_of(path) != self._stamps[path]
        except Exception as error:  # every writer of ASE raises errors of its own
            reason = (error.strerror if isinstance(error, OSError) else None) or text_of(error)
            reason = reason.removeprefix(f"{path} ")
            self.lose(f"{path} cannot be written: {reason}{_elsewhere(path, write)}")
            return
        if is_named:
            self.saved.append(path)
        if is_new:
            print_warning(f"{path} took the place of what another program wrote during this run")

    def lose(self, text: str) -> None:
        print_error(text)
        self.has_lost = True

    @contextmanager
    def watching(self, sources: list[str]) -> Iterator[None]:
        """A context that counts incomplete trajectories, by their warnings, as losses."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", NotWhole)
            others = warnings.showwarning

            def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
                if issubclass(category, NotWhole):
                    self.lose(with_sources(str(message), sources))
                else:
                    others(message, category, *rest, **more)

            warnings.showwarning = show
            yield


def _make_folder(path: Path) -> None:
    try:
        resolved(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")


def _elsewhere(path: Path, write: Callable[[Path], Any]) -> str:
    """Write the file to a temporary folder; return the end of a message with its place."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="basinax-"))
    except OSError:
        return ""
    # Writers put files with longer names beside the file.
    is_short = len(os.fsencode(path.name)) < SHORT
    there = folder / (path.name if is_short else f"output{ending_of(path)}")
    try:
        write(there)
    except Exception:  # every writer of ASE raises errors of its own
        shutil.rmtree(folder, ignore_errors=True)
        return ""
    return f"; it is in {there} instead"
