"""Missing files among those that options name, found before any slow import."""

import os
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

from basinax.cli.config import is_config
from basinax.cli.options import ModelOptions, PathOptions, RelaxOptions, Written
from basinax.config.reading import found
from basinax.config.tables import ENDINGS, SETTINGS

STDIN = Path("-")
"""The name of standard input."""

GIVEN: ContextVar[str | None] = ContextVar("given", default=None)
"""The folder by the name that `resume` was given, which goes to another working folder."""

SHOWN = 10
"""The largest number of unreadable files in a message."""

WRITTEN = ("directory", "label", "log", "logfile", "trajectory", "txt")
"""Options of ASE's calculators that name what they write."""

_ENDS = {
    "eam": (",format=",),
    "nequix": (",shapes=", ",dtype="),
    "tersoff": (",elements=",),
    "stillinger-weber": (",elements=",),
}
"""Behind the file of a potential, by the potential's name."""


def faults_of(given: ModelOptions, outputs: Written | None = None) -> list[str]:
    """An error for each missing file, and for outputs that are in the way."""
    return [*_missing_files(given), *([] if outputs is None else _in_the_way(outputs, given))]


def _missing_files(given: ModelOptions) -> list[str]:
    """An error for each missing file.

    If other files visibly hold no structures, leave all to the reader, which names them together.
    """
    faults = [fault for name in _of_options(given) if (fault := _fault_of(name))]
    if not (faults or given.skip_unreadable):
        try:
            faults = [fault for path in given.files if (fault := _missing(path))]
        except OSError:
            return []
    return in_few(faults, len(given.files))


def _in_the_way(outputs: Written, given: ModelOptions) -> list[str]:
    """An error if outputs exist and must not be replaced; inputs among them are checked later."""
    if outputs.overwrite:
        return []
    paths = [*filter(None, [outputs.output]), *(path for path, _ in outputs.files())]
    if not (there := [path for path in paths if path.is_file()]):
        return []
    inputs = [] if given.config is None else [given.config]
    for path in given.files:
        with suppress(OSError):
            inputs.append(_plain_file(path))
    has_input = any(path.samefile(x) for path in there for x in inputs)
    return [] if has_input else [in_the_way(there)]


def is_run(folder: str | Path) -> bool:
    """Whether a folder holds a run, which goes on."""
    return os.path.isfile(os.path.join(folder, SETTINGS))


def in_the_way(paths: list[Path]) -> str:
    """An error about existing outputs."""
    more = f" and {len(paths) - 1} more exist" if len(paths) > 1 else " exists"
    return f"{paths[0]}{more}: add --overwrite, or choose another place"


def _fault_of(name: str) -> str | None:
    try:
        found(name)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return None


def _missing(path: Path) -> str | None:
    """The fault of a missing file, or None.

    Raises:
        OSError: the file exists and holds no structures.
    """
    try:
        if path == STDIN or path.is_dir():
            return None
        size = _plain_file(path).stat().st_size
    except FileNotFoundError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not size:
        raise OSError("the file is empty")
    return None


def in_few(faults: list[str], n_files: int) -> list[str]:
    """The first of many faults, and the number of the others."""
    if len(faults) <= SHOWN:
        return faults
    return [*faults[:SHOWN], f"{len(faults) - SHOWN} more of {n_files} cannot be read"]


def _plain_file(path: Path) -> Path:
    """The file of `FILE` or `FILE@START:STOP`.

    Raises:
        OSError: the file does not exist, or is no plain file.
    """
    try:
        return found(path)
    except FileNotFoundError:
        name, at, _ = os.fspath(path).rpartition("@")
        if not at:
            raise
        return found(name)


def _of_options(given: ModelOptions) -> list[str]:
    """Files named in the texts of the optimizer and the potential."""
    optimizer = (given.optimizer or "") if isinstance(given, RelaxOptions | PathOptions) else ""
    names = [optimizer] if optimizer.endswith(ENDINGS) else []
    if is_config(given.potential):
        names.append(given.potential)
    return names + _files_of_kind(given.potential)


def kind_of(potential: str) -> str:
    """The name of a potential in its text."""
    return potential.partition(":")[0].strip().lower()


def _files_of_kind(potential: str) -> list[str]:
    """The files that a potential of this kind reads itself, which may be missing."""
    kind, rest = kind_of(potential), potential.partition(":")[2]
    if kind == "python":
        return [rest.rpartition(":")[0] or rest]
    if (ends := _ENDS.get(kind)) is None:
        return []
    name = rest
    for end in ends:
        name = name.rpartition(end)[0] or name
    # Names of elements, whose parameters are built in, contain neither character.
    return [name] if {"/", "."} & set(name) else []


def named_in(potential: str) -> list[str]:
    """The files and folders that the text of a potential names, and that exist.

    Those of a calculator are values of its options. Where it writes is none of them: options such
    as ASE's `directory`, and the current folder with those above it.
    """
    if kind_of(potential) != "ase":
        return [name for name in _files_of_kind(potential) if os.path.exists(_expanded(name))]
    options = potential.partition(":")[2].split(",")[1:]
    pairs = [part.partition("=") for part in options]
    values = [x.strip() for key, _, x in pairs if key.strip().lower() not in WRITTEN]
    here = Path.cwd()
    return [
        name
        for name in dict.fromkeys(values)
        if name and os.path.exists(_expanded(name)) and not here.is_relative_to(_resolved(name))
    ]


def _expanded(name: str) -> str:
    return os.path.expanduser(name)


def _resolved(name: str) -> str:
    return os.path.realpath(_expanded(name))
