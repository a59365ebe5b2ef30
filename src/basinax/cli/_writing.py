"""Writing the results of a command: structures, a table, and the record of the run."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from ase import Atoms

from basinax._text.files import key_of
from basinax._text.tables import Table, json_of
from basinax.atoms import Trajectories
from basinax.atoms._table import Columns, csv_of, writer_of
from basinax.cli._console import err, fail, out, reported
from basinax.cli._contents import Plan, plans_of
from basinax.cli._inputs import STDIN_NAME, Inputs
from basinax.cli._named import STDIN
from basinax.cli._options import STDOUT, Outputs, Written
from basinax.cli._places import Saver, check_places
from basinax.cli._stream import Stream


@dataclasses.dataclass(frozen=True)
class Writing:
    """The outputs of a command, checked before a run to be writable."""

    outputs: Written
    plans: list[Plan]
    saver: Saver

    @classmethod
    def prepared(
        cls,
        outputs: Written,
        inputs: Inputs,
        read: list[Path],
        moving: Sequence[bool],
        trajectories: Trajectories | None = None,
    ) -> "Writing":
        """The outputs; exits with an error if one cannot be written.

        Args:
            read: all files that the run reads.
            moving: whether each structure's cell moves or its stress is computed.
        """
        _check_stdout(outputs)
        files = files_of(outputs, inputs)
        places = [*((path, "output") for path in files), *outputs.files()]
        # A record given as config file has been read already and may be replaced.
        read = [path for path in read if key_of(path) != key_of(outputs.record)]
        check_places(places, trajectories, len(inputs.atoms), read, may_replace=outputs.overwrite)
        if outputs.table not in (None, STDOUT):
            with reported():
                writer_of(outputs.table)
        plans = plans_of(files, inputs.atoms, inputs.sources, moving)
        return cls(outputs, plans, Saver(path for path, _ in places))

    def write(self, atoms: Sequence[Atoms], columns: Columns) -> None:
        """Write structures and the table, each separately."""
        for plan in self.plans:
            self.saver.save(plan.path, functools.partial(plan.write, structures=atoms))
        table = self.outputs.table
        if table is not None and table != STDOUT:
            self.saver.save(table, lambda path: writer_of(path)(path, columns))

    def write_record(self, record: Table) -> None:
        """Write the record beside the structures, if these are at their place."""
        if self.has_structures:
            write = functools.partial(Path.write_text, data=json_of(record), encoding="utf-8")
            self.saver.save(self.outputs.record, write, is_named=False)

    @property
    def has_structures(self) -> bool:
        """Whether a file of structures has been written."""
        return any(plan.path in self.saver.saved for plan in self.plans)

    @property
    def written_record(self) -> Path | None:
        return self.outputs.record if self.has_structures else None

    @property
    def stream(self) -> Stream:
        """The stream of the summary: standard error if a table or a log is printed."""
        return err if STDOUT in (self.outputs.table, getattr(self.outputs, "log", None)) else out

    def print_table(self, columns: Columns) -> None:
        """Print the table with `--table -`."""
        if self.outputs.table == STDOUT:
            out.write(csv_of(columns))


def files_of(outputs: Written, inputs: Inputs) -> dict[Path, list[int]]:
    """The files of structures, and the numbers of the structures in each."""
    if outputs.output_dir is None:
        return {outputs.structures: list(range(len(inputs.atoms)))}
    if outputs.output is not None:
        fail("--output and --output-dir both say where structures go: remove one")
    names, files = _names_apart(inputs.files), dict[Path, list[int]]()
    for number, path in enumerate(inputs.paths):
        files.setdefault(outputs.output_dir / names[path], []).append(number)
    return files


def _names_apart(paths: list[Path]) -> dict[Path, Path]:
    """The names of the paths; equal names keep the folders in which they differ."""
    names = {path: Path(STDIN_NAME if path == STDIN else path.name) for path in paths}
    if len(set(names.values())) == len(paths):
        return names
    places = {path: Path(os.path.abspath(path)) for path in paths if path != STDIN}
    above = os.path.commonpath([place.parent for place in places.values()])
    return {
        path: places[path].relative_to(above) if path in places else name
        for path, name in names.items()
    }


def _check_stdout(outputs: Written) -> None:
    """Exit if more than one output is to be printed."""
    printed = {"--json": outputs.json, "--table -": outputs.table == STDOUT}
    printed["--log -"] = isinstance(outputs, Outputs) and outputs.log == STDOUT
    asked = [name for name, is_asked in printed.items() if is_asked]
    if len(asked) > 1:
        fail(f"{' and '.join(asked)} go to standard output alike: choose one of them")
