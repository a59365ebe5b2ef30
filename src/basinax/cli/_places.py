"""The places of outputs: checked before a run, and filled after it, each separately."""

import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from basinax._text.files import check_creatable, ending_of, key_of, replacing, resolved, stamp_of
from basinax.atoms import Trajectories
from basinax.atoms._trajectory import NotWhole, check_folder
from basinax.cli._console import fail, print_error, print_warning, text_of, with_sources
from basinax.cli._named import in_the_way

SHORT = 200
"""Bytes of a name that leave room for endings appended by writers."""

STREAMS = ("standard input", "standard output", "standard error")


def check_places(
    places: Sequence[tuple[Path, str]],
    trajectories: Trajectories | None,
    n_structures: int,
    inputs: list[Path],
    *,
    may_replace: bool,
) -> None:
    """Check before any work that no output is an input or another output, that all can be written,
    and that existing files may be replaced.

    Args:
        places: files to be written, each with its word in messages.
        inputs: files that are read.
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
        replaced = [path for path, _ in places if os.path.lexists(path)]
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
