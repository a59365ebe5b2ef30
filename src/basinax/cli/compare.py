"""Commands that set the folders of runs beside each other: `basinax compare` and `plot`."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from basinax.cli.console import check_printed, fail, out, print_line, reported
from basinax.cli.contents import read_of
from basinax.cli.options import STDOUT, PathOutputs
from basinax.cli.outputs import Saver, check_places, print_saved
from basinax.config.tables import RECORD, Table
from basinax.results.figure import drawn
from basinax.results.report.curves import Convergence, convergence_of
from basinax.results.result import AtomsRelaxation
from basinax.results.table import writer_of
from basinax.runs.folder import RunFolder, is_of_paths, limit_of


def compare(first: str, other: str, table: Path | None, *, may_replace: bool) -> None:
    if table == STDOUT:
        fail("--table - does not go with a comparison, which is printed there: name a file")
    with reported():
        both = [RunFolder.begun(name) for name in (first, other)]
        if table is not None:
            writer_of(table)
        read = [list(read_of(*kept.results.gathered()).values()) for kept in both]
        records = [kept.read_record() for kept in both]
        changed, commands = _changed(*records), {record[RECORD]["command"] for record in records}
        if len(commands) > 1:
            fail("a run of relax and one of neb do not compare")
        result_of: Any = AtomsRelaxation
        if commands == {"neb"}:
            from basinax.cli.neb import paths_of as result_of  # which imports what computes
        ours, theirs = map(result_of, read)
        found = ours.compare(theirs)
    saver = _saver(table, both, may_replace=may_replace)
    for name, kept in zip(("first", "other"), both, strict=True):
        print_line(out, f"{name}: {kept.name}")
    for line in [*changed, *repr(found).splitlines()]:
        print_line(out, line)
    check_printed("the comparison")
    if table is not None:
        saver.save(table, lambda path: writer_of(path)(path, found.to_dict()))
    print_saved(saver)


def _changed(ours: Table, theirs: Table) -> list[str]:
    """The settings in which two runs differ, one a line, without those of outputs."""
    left_out = {RECORD, *(field.name for field in dataclasses.fields(PathOutputs))}
    names = [name for name in (ours | theirs) if name not in left_out]
    return [
        f"{name}: {_shown(ours.get(name))} in the first, {_shown(theirs.get(name))} in the other"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def plot(
    folders: list[str], output: Path | None, structures: list[int], *, may_replace: bool
) -> None:
    with reported():
        runs = [RunFolder.begun(name) for name in dict.fromkeys(folders)]
        place = output or runs[0].path / "plot.png"
        try:
            from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("a plot needs matplotlib: pip install matplotlib") from error
        figure = Figure(figsize=(7, 6), layout="constrained")
        known = figure.canvas.get_supported_filetypes()
        if place.suffix.lstrip(".").lower() not in known:
            fail(f"{place}: a plot is a file in .{', .'.join(known)}, not in {place.suffix}")
        groups = {kept.name: _curves_of(kept, structures) for kept in runs}
        limits = {limit_of(kept.read_record()) for kept in runs}
    may_replace = may_replace or (output is None and not place.is_symlink())
    saver = _saver(place, runs, may_replace=may_replace)
    drawn(groups, limits.pop() if len(limits) == 1 else None, figure.subplots(2, 1, sharex=True))
    kind = place.suffix.lstrip(".").lower()
    saver.save(place, lambda path: figure.savefig(path, format=kind, dpi=150))
    print_saved(saver)


def _curves_of(kept: RunFolder, structures: list[int]) -> Convergence:
    """The curves of a run, or those of some structures by number."""
    curves = kept.results.curves()
    if missing := [number for number in structures if number not in curves]:
        fail(f"{kept.name} has no curve of structure {missing[0]}")
    chosen = {number: curves[number] for number in structures or curves}
    sizes = {brief.number: float(brief.n_atoms) for brief in kept.results.briefs()}
    paths = kept.paths() if is_of_paths(kept.read_record()) else {}
    sizes |= {number: float(path.n_atoms) for number, path in paths.items()}
    found = convergence_of(chosen, sizes, list(chosen))
    if found is None:
        fail(f"{kept.name} has no curves")
    if not all(np.isfinite(x).any() for x in (found.quantiles.heights, found.quantiles.fmax)):
        fail(f"{kept.name} has no finite curve: energies or forces became NaN or infinite")
    return found


def _saver(place: Path | None, runs: list[RunFolder], *, may_replace: bool) -> Saver:
    """The saver of the output, which can be written and is no part of a run."""
    places = [] if place is None else [(place, "output")]
    files = [file for kept in runs for file in kept.files]
    check_places(places, None, 0, files, may_replace=may_replace)
    return Saver(path for path, _ in places)
