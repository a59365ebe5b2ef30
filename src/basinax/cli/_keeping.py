"""The command `basinax relax --run FOLDER`: results are kept as they come."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import typer
from rich.table import Table as Grid

from basinax._loop.status import Status
from basinax._text.tables import Table
from basinax.atoms._relax import Progress
from basinax.atoms._relax_stream import by_memory
from basinax.atoms._result import Relaxed
from basinax.atoms._runs.changes import changes
from basinax.atoms._runs.folder import RunFolder
from basinax.atoms._runs.on_ray import relaxed_on_ray
from basinax.atoms._runs.results import Brief
from basinax.atoms._windows import relaxed_windows
from basinax.cli._config import RECORD, settings_of
from basinax.cli._console import (
    INTERRUPTED,
    NOT_SAVED,
    NOTHING_CONVERGED,
    OUT_OF_TIME,
    err,
    fail,
    out,
    print_error,
    print_line,
    reported,
)
from basinax.cli._inputs import digest_of, files_read
from basinax.cli._lazily import count
from basinax.cli._named import STDIN
from basinax.cli._options import Given, Keeping, Manner, Outputs
from basinax.cli._record import accept, named, now, recorded
from basinax.cli._session import session
from basinax.cli._setup import Setup
from basinax.cli._summary import print_first
from basinax.cli._tally import Tally
from basinax.cli._watch import Watch
from basinax.cli._works import Works, relax_works


def run(given: Given, outputs: Outputs, keeping: Keeping, manner: Manner) -> None:
    assert keeping.run is not None
    _check(given, outputs)
    limit = math.inf if keeping.time_limit is None else keeping.time_limit
    folder, deadline = RunFolder(keeping.run), time.monotonic() + limit
    with session(manner, given.dtype) as watch, contextlib.ExitStack() as stack:
        setup = Setup.read(given)
        with reported():
            folder.is_begun()
            stack.enter_context(folder.taken())
            done = folder.results.briefs()
            record = _begun(folder, given, keeping, watch)
        n_structures = sum(map(keeping.shard.has, range(count(given.files))))
        tally = Tally(n_structures, Counter(b.status for b in done), len(done), watch)
        numbers = {brief.number for brief in done}

        def is_over() -> bool:
            return watch.is_stopped() or time.monotonic() >= deadline

        def is_left(number: int) -> bool:
            return keeping.shard.has(number) and number not in numbers

        works = Works(given, setup, is_left, is_over, is_strict=keeping.strict)
        _work_off(folder, works, setup, tally, is_over, keeping.ray)
        watch.begin("writing")
        record[RECORD] |= {"results": tally.results(), "ended": now()}
        with reported():
            folder.write_record(record, (RECORD,))
    if not manner.quiet:
        _print(folder, tally)
    _leave(folder, tally, is_out_of_time=is_over() and not watch.is_stopped())


def _check(given: Given, outputs: Outputs) -> None:
    """Leaves where options do not go with a folder that keeps the run."""
    for field in dataclasses.fields(outputs):
        if field.name != "overwrite" and getattr(outputs, field.name) != field.default:
            option = f"--{field.name.replace('_', '-')}"
            writes = "basinax report FOLDER" if option == "--report" else "basinax export FOLDER"
            fail(f"{option} does not go with --run: run {writes} afterwards")
    if STDIN in given.files:
        fail("standard input cannot be read again, as a run that goes on does: name a file")


def _begun(folder: RunFolder, given: Given, keeping: Keeping, watch: Watch) -> Table:
    """The record of the run, which is written if it is a new one.

    Raises:
        OSError: the folder is no place for a run.
        ValueError: its record is damaged.
    """
    record = _record_of(given, keeping, watch)
    if not folder.is_begun():
        folder.write_record(record, (RECORD,))
        return record
    before = folder.read_record()
    if RECORD not in before:
        raise ValueError(f"{folder.record} is no record of a run: it has no [{RECORD}]")
    changed = changes(before, record, RECORD)
    refusal = (
        f"{folder.path} would not end in the same bits: do as it was done before, choose another"
        " folder, or go on with --force"
    )
    accept(changed, refusal, force=keeping.force)
    kept = {name: before[RECORD].get(name, []) for name in ("forced", "resumed")}
    kept["forced"] += changed
    kept["resumed"] += [record[RECORD]["started"]]
    record[RECORD] |= kept | {"started": before[RECORD]["started"]}
    folder.write_record(record, (RECORD,))
    return record


def _record_of(given: Given, keeping: Keeping, watch: Watch) -> Table:
    """The record of a run that begins now."""
    # Settings of config files stand in the record itself.
    given = dataclasses.replace(given, config=None)
    files = [path for path in files_read(given) if path.is_file()]
    inputs = [named(path.absolute()) | {"sha256": digest_of(path)} for path in files]
    table = recorded("relax", settings_of((given,)), inputs, watch, {}).as_table()
    del table[RECORD]["ended"]
    table[RECORD]["shard"] = str(keeping.shard)
    return table


def _work_off(
    folder: RunFolder,
    works: Works,
    setup: Setup,
    tally: Tally,
    should_stop: Callable[[], bool],
    ray: str | None,
) -> None:
    """Relaxes what is left, and keeps it as it ends; leaves where it cannot be kept.

    Args:
        ray: the address of a cluster that relaxes it, or None.
    """

    def keep(ended: list[tuple[int, Relaxed]]) -> None:
        ended += works.take_refused()
        try:
            if ended:
                folder.results.add(ended)
        except OSError as error:
            print_error(
                f"{error}; {tally.n_done} structures are kept in it: {_how_to_go_on(folder)}"
            )
            raise typer.Exit(NOT_SAVED) from None
        tally.add(entry.status for _, entry in ended)
        tally.show(Progress(0, 0, 0, "running"))

    with reported():
        if ray is None:
            relax_window = partial(relax_works, setup, progress=tally.show)
            take = by_memory(lambda work: work.atoms)
            windows = relaxed_windows(iter(works), relax_window, should_stop, take)
        else:
            relax_window = partial(relax_works, setup)
            windows = relaxed_on_ray(iter(works), relax_window, should_stop, ray)
        with contextlib.closing(windows):
            for ended in windows:
                keep([(work.number, entry) for work, entry in ended])
    keep([])


def _print(folder: RunFolder, tally: Tally) -> None:
    grid = Grid("status", box=None, pad_edge=False)
    grid.add_column("structures", justify="right")
    for name, n in tally.results().items():
        grid.add_row(name, str(n))
    out.print(grid)
    if tally.n_done > tally.counts[Status.CONVERGED]:
        failed = [b for b in folder.results.briefs() if b.status != Status.CONVERGED]
        print_first(out, range(len(failed)), lambda k: _reason(failed[k]))
    n_now = tally.n_done - tally.n_before
    more = f", {n_now} of them now" if tally.n_before else ""
    print_line(out, f"{folder.path}: {tally.n_done} of {tally.n_structures} structures{more}")


def _reason(brief: Brief) -> str:
    """Why a structure has not converged, behind its name."""
    source = brief.pairs.get("source", str(brief.number))
    return f"{source}: {brief.pairs.get('message') or brief.status.meaning}"


def _leave(folder: RunFolder, tally: Tally, *, is_out_of_time: bool) -> None:
    """Ends the command by its exit status."""
    if not tally.is_done:
        why = "The time is over" if is_out_of_time else "Interrupted"
        print_line(err, f"{why}: {_how_to_go_on(folder)}")
        raise typer.Exit(OUT_OF_TIME if is_out_of_time else INTERRUPTED)
    if not tally.counts[Status.CONVERGED]:
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)


def _how_to_go_on(folder: RunFolder) -> str:
    return f"basinax resume {folder.path} goes on"
