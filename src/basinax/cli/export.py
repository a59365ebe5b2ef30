"""Commands about the folder of a run: `basinax export`, `report`, `resume` and `merge`."""

import contextlib
import os
from pathlib import Path
from typing import Any

import typer

from basinax.cli.console import check_printed, err, fail, out, print_line, reported
from basinax.cli.contents import found_structures, have_stress, plans_of
from basinax.cli.inputs import home_of, note_place
from basinax.cli.named import GIVEN
from basinax.cli.options import STDOUT
from basinax.cli.outputs import Saver, check_places, print_saved
from basinax.cli.values import Shard, shard_of
from basinax.config.files import key_of
from basinax.config.tables import RECORD, Table
from basinax.minimize.status import Status
from basinax.numerics.settings import count_of
from basinax.results.report.page import check_report
from basinax.results.table import csv_of, writer_of
from basinax.runs.changes import OUTPUTS, changes, joined
from basinax.runs.folder import RunFolder, is_of_paths
from basinax.runs.results import Brief, counts_of


def run(
    name: str,
    output: Path | None,
    table: Path | None,
    statuses: list[str],
    info: list[str],
    *,
    may_replace: bool,
) -> None:
    is_printed = table == STDOUT
    table = None if is_printed else table
    places = [(path, name) for path, name in ((output, "output"), (table, "table")) if path]
    if not (places or is_printed):
        fail("nothing to write: add --output FILE for structures, or --table FILE")
    with reported():
        kept = RunFolder.begun(name)
        if table is not None:
            writer_of(table)
        record = kept.read_record()
        _check_info(info, record)
        numbers, result = kept.results.gathered(statuses_named(statuses))
        if is_of_paths(record):
            from basinax.cli.neb import found_paths  # which imports what computes

            found = found_paths(numbers, result)
        else:
            found = found_structures(numbers, result, info)
    if not numbers:
        fail(f"{kept.name} has no {'structure that ended so' if statuses else 'results'}")
    if output is not None and not found.atoms:
        fail(f"{kept.name} has no structure to write: none of these could be read")
    check_places(places, None, len(numbers), kept.files, may_replace=may_replace)
    saver = Saver(path for path, _ in places)
    if output is not None:
        files = {output: list(range(len(found.atoms)))}
        (plan,) = plans_of(files, found.atoms, found.sources, have_stress(found.atoms))
        saver.save(output, lambda path: plan.write(path, found.atoms))
    if table is not None:
        saver.save(table, lambda path: writer_of(path)(path, found.columns))
    if is_printed:
        out.write(csv_of(found.columns))
        check_printed("the table")
    print_saved(saver, err if is_printed else out)


def _check_info(info: list[str], record: Table) -> None:
    """Raise ValueError if columns of `info` are asked for that a run of paths lacks."""
    if info and is_of_paths(record):
        raise ValueError("--info is for tables of structures, and this is a run of paths")


def statuses_named(names: list[str]) -> list[Status]:
    """The statuses; raises ValueError for an unknown name."""
    known = {str(status): status for status in Status if status is not Status.RUNNING}
    for name in names:
        if name not in known:
            raise ValueError(f"--status {name}: expected one of {', '.join(known)}")
    return [known[name] for name in names]


def report(name: str, output: Path | None, info: list[str], *, may_replace: bool) -> None:
    with reported():
        kept = RunFolder.begun(name)
        place = output or kept.page
        check_report(place)
        record, briefs = kept.read_record(), kept.results.briefs()
        _check_info(info, record)
        columns = kept.columns_of_info(info, briefs)
    may_replace = may_replace or (output is None and not place.is_symlink())
    check_places([(place, "output")], None, 0, kept.files, may_replace=may_replace)
    saver = Saver([place])
    saver.save(place, lambda path: kept.write_report(path, record, briefs, kept.name, columns))
    print_saved(saver)


def resume(name: str, options: list[str], commands: Any) -> None:
    """Repeat the command of the record.

    Args:
        options: further options of the command of the run, which is among these.
    """
    with reported():
        kept = RunFolder.begun(RunFolder(name).path.absolute())
        settings = kept.read_record()
        record = settings[RECORD]
        os.chdir(home_of(kept.path, settings))  # a potential may name files, too
    arguments = [record["command"], "--config", str(kept.record), "--run", kept.name]
    arguments += ["--shard", record["shard"], *options]
    given = GIVEN.set(name)
    try:
        code = commands.main(arguments, prog_name="basinax", standalone_mode=False)
    except typer.BadParameter as error:  # of a record, it needs no text about usage
        fail(error.format_message())
    finally:
        GIVEN.reset(given)
    raise typer.Exit(code or 0)


def merge(folders: list[Path], place: Path, *, force: bool) -> None:
    with reported(), contextlib.ExitStack() as stack:
        parts, whole = [RunFolder.begun(folder) for folder in folders], RunFolder(place)
        if whole.is_begun():
            fail(f"{place} holds a run: name a new folder")
        paths: dict[Any, Path] = {}
        for path in folders:
            if (first := paths.setdefault(key_of(path), path)) is not path:
                fail(f"{first} and {path} are one folder: name each folder once")
        for kept in (*parts, whole):
            stack.enter_context(kept.taken())
        record = _record_of(parts, force=force)
        of: dict[int, Path] = {}
        briefs: list[Brief] = []
        for part in parts:
            for brief in part.results.briefs():
                if (first := of.setdefault(brief.number, part.path)) is not part.path:
                    fail(f"structure {brief.number} stands in {first} and in {part.path}")
                briefs.append(brief)
        for part in parts:
            whole.results.copy(part.results)
        record[RECORD]["results"] = counts_of(briefs)
        note_place(place, record[RECORD])
        whole.write_record(record)  # last: what has failed before is no run
    n_structures, n_folders = count_of(len(of), "structure"), count_of(len(parts), "folder")
    print_line(out, f"{place}: {n_structures} of {n_folders}")


def _record_of(parts: list[RunFolder], *, force: bool) -> Table:
    """The joint record, from the first; exits if the records differ.

    It names no outputs, since those of the first part hold that part alone.
    """
    from basinax.cli.record import accept  # which imports what computes

    records = [part.read_record() for part in parts]
    end, (record, *others) = _end_of([each[RECORD] for each in records]), records
    shard = str(Shard(1, 1))
    record[RECORD]["shard"] = shard
    for part, other in zip(parts[1:], others, strict=True):
        other[RECORD]["shard"] = shard
        both = other | {RECORD: joined(record[RECORD], other[RECORD])}
        changed = changes(record, both)
        refusal = (
            f"{parts[0].path} and {part.path} are not parts of one run; --force puts them together"
            " all the same"
        )
        accept(changed, refusal, force=force)
        record[RECORD].setdefault("forced", []).extend(changed)
        record[RECORD] = joined(other[RECORD], record[RECORD])
    record[RECORD].pop("ended", None)
    record[RECORD] |= end | {"merged": [str(part.path) for part in parts]}
    return {name: value for name, value in record.items() if name not in OUTPUTS}


def _end_of(records: list[Table]) -> Table:
    """The end of a run in parts, unless one has not ended or is missing."""
    ends = [record["ended"] for record in records if "ended" in record]
    shards = [record["shard"] for record in records]
    n_parts = shard_of(shards[0]).of
    is_whole = set(shards) == {str(Shard(k + 1, n_parts)) for k in range(n_parts)}
    return {"ended": max(ends)} if is_whole and len(ends) == len(records) else {}
