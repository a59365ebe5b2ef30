"""The command `basinax export`: files from the results of a stored run."""

from pathlib import Path

import typer

from basinax._loop.status import Status
from basinax.atoms._runs.folder import RunFolder
from basinax.atoms._table import writer_of
from basinax.cli._console import NOT_SAVED, fail, out, reported
from basinax.cli._contents import plans_of
from basinax.cli._places import Saver, check_places
from basinax.cli._relax import name_in_info
from basinax.cli._summary import print_written


def run(
    name: str,
    output: Path | None,
    table: Path | None,
    statuses: list[str],
    *,
    may_replace: bool,
) -> None:
    places = [(path, name) for path, name in ((output, "output"), (table, "table")) if path]
    if not places:
        fail("nothing to write: add --output FILE for structures, or --table FILE")
    with reported():
        kept = RunFolder(name)
        kept.check_begun()
        if table is not None:
            writer_of(table)
        numbers, result = kept.results.gathered(statuses_named(statuses))
    if not numbers:
        fail(f"{kept.name} has no {'structure that ended so' if statuses else 'results'}")
    check_places(places, None, len(numbers), kept.files, may_replace=may_replace)
    name_in_info(result, numbers)
    saver = Saver(path for path, _ in places)
    if output is not None:
        have_stress = [a.calc is not None and "stress" in a.calc.results for a in result.atoms]
        files = {output: list(range(len(result)))}
        (plan,) = plans_of(files, result.atoms, result.sources, have_stress)
        saver.save(output, lambda path: plan.write(path, result.atoms))
    if table is not None:
        saver.save(table, lambda path: writer_of(path)(path, result.to_dict()))
    print_written(out, saver.saved)
    if saver.has_lost:
        raise typer.Exit(NOT_SAVED)


def statuses_named(names: list[str]) -> list[Status]:
    """The statuses; raises ValueError for an unknown name."""
    known = {str(status): status for status in Status if status is not Status.RUNNING}
    for name in names:
        if name not in known:
            raise ValueError(f"--status {name}: expected one of {', '.join(known)}")
    return [known[name] for name in names]
