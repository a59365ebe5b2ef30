"""The command `basinax relax --run FOLDER`: results are stored as they arrive."""

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import partial

import typer
from ase.calculators.calculator import BaseCalculator
from rich.table import Table as Grid

from basinax._jax.cores import n_cores
from basinax._loop.status import Status
from basinax._text.tables import RECORD, Table
from basinax.atoms import ASECalculator, TorchSimModel
from basinax.atoms._relax import Progress
from basinax.atoms._relax_stream import by_memory
from basinax.atoms._result import Relaxed
from basinax.atoms._runs.changes import changes, changes_of_making, joined
from basinax.atoms._runs.claims import Alone, Claims, Shared
from basinax.atoms._runs.database import RunDatabase
from basinax.atoms._runs.kept import Kept, kept_in
from basinax.atoms._runs.on_ray import relaxed_on_ray
from basinax.atoms._runs.results import Brief
from basinax.atoms._runs.rows import POINTS
from basinax.atoms._windows import Take, by_number, relaxed_windows
from basinax.atoms.potentials import AbstractPotential
from basinax.cli._config import settings_of
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
from basinax.cli._inputs import digest_of, file_and_images, files_in
from basinax.cli._lazily import count
from basinax.cli._named import STDIN
from basinax.cli._options import Given, Keeping, Manner, Outputs
from basinax.cli._record import Making, accept, named, now, recorded
from basinax.cli._session import session
from basinax.cli._setup import Setup
from basinax.cli._summary import print_first
from basinax.cli._tally import Tally
from basinax.cli._values import Shard
from basinax.cli._watch import Watch
from basinax.cli._works import Work, Works, relax_works

BLOCK, BLOCKS = 512, 1000
"""Structures of a block that one of several machines takes at a time, and about the largest number
of blocks: a server has room for some thousand locks."""

EACH = 32
"""Structures of a block per core, if evaluations dominate the time."""


def run(given: Given, outputs: Outputs, keeping: Keeping, manner: Manner) -> None:
    assert keeping.run is not None
    _check(given, outputs, keeping)
    limit = math.inf if keeping.time_limit is None else keeping.time_limit
    kept, deadline = kept_in(keeping.run), time.monotonic() + limit
    with session(manner, given.dtype) as watch, contextlib.ExitStack() as stack:
        with reported():
            before = kept.read_record() if kept.is_begun() else None
            record = _record_of(given, keeping, watch, before)
            if before is not None and not keeping.force:
                _accept(kept, changes(before, record), force=False)  # before foreign code runs
        setup = Setup.read(given)
        n_structures = _n_of(keeping.shard, count(given.files))
        with reported():
            stack.enter_context(kept.taken())
            done = kept.results.briefs()
            with kept.alone():
                before = kept.read_record() if kept.is_begun() else None
                making = _making(record, setup, before)
                made = {} if keeping.ray is not None else making()
                record[RECORD] |= made | {"block": _block(setup, n_structures)}
                record = _begun(kept, before, record, keeping)
        tally = Tally(n_structures, Counter(b.status for b in done), len(done), watch)

        def is_over() -> bool:
            return watch.is_stopped() or time.monotonic() >= deadline

        claims = _claims(kept, done, record, tally)

        def is_left(number: int) -> bool:
            return keeping.shard.has(number) and claims.has(number)

        works = Works(given, setup, is_left, is_over, is_strict=keeping.strict)
        take = by_memory(lambda work: work.atoms, given.devices)
        if isinstance(claims, Shared):
            take = by_number(record[RECORD]["block"])
        admit = _Admission(kept, keeping.force)
        begin = _windows(setup, tally, is_over, take, keeping.ray, making, admit)
        here = None if keeping.ray is not None else lambda: admit(making())
        _work_off(kept, works, tally, claims, is_over, begin, here)
        if works.n_items is not None:
            tally.n_structures = _n_of(keeping.shard, works.n_items)
        watch.begin("writing")
        with reported(), kept.alone():
            record = kept.read_record()
            record[RECORD] |= {"results": tally.results(), "ended": now()}
            kept.write_record(record)
    if not manner.quiet:
        _print(kept, tally)
    _leave(kept, tally, is_out_of_time=is_over() and not watch.is_stopped())


def _n_of(shard: Shard, n_items: int | None) -> int | None:
    """The number of structures in a part of the input."""
    return None if n_items is None else sum(map(shard.has, range(n_items)))


def _claims(kept: Kept, done: list[Brief], record: Table, tally: Tally) -> Claims:
    if not isinstance(kept, RunDatabase):
        return Alone(done)
    size, add = record[RECORD]["block"], tally.add_others
    return Shared(kept.store, kept.results, done, size, add)


def _block(setup: Setup, n_structures: int | None) -> int:
    """The number of structures that one of several machines takes at a time."""
    is_hosted = not isinstance(setup.settings["potential"], AbstractPotential)
    return max(EACH * n_cores() if is_hosted else BLOCK, (n_structures or 0) // BLOCKS)


def _check(given: Given, outputs: Outputs, keeping: Keeping) -> None:
    """Exit if options contradict a folder that stores the run."""
    for field in dataclasses.fields(outputs):
        if field.name != "overwrite" and getattr(outputs, field.name) != field.default:
            option = f"--{field.name.replace('_', '-')}"
            writes = "basinax report FOLDER" if option == "--report" else "basinax export FOLDER"
            fail(f"{option} does not go with --run: run {writes} afterwards")
    if keeping.ray is not None and given.devices is not None:
        fail("--devices does not go with --ray, which has a worker for each GPU or machine")
    if STDIN in given.files:
        fail("standard input cannot be read again, as a run that goes on does: name a file")


def _begun(kept: Kept, before: Table | None, record: Table, keeping: Keeping) -> Table:
    """The record of the run, which is written; that of a run that goes on keeps its beginning.

    Args:
        before: the record of a run that goes on.
    """
    if before is not None:
        changed = changes(before, record)
        _accept(kept, changed, force=keeping.force)
        old, new = before[RECORD], record[RECORD]
        new["forced"] = old.get("forced", []) + changed
        new["resumed"] = [*old.get("resumed", []), new["started"]]
        new |= {name: new[name] or old[name] for name in ("device", "processor", "threads")}
        new |= {name: old[name] for name in ("block", "started")}
        new |= {"merged": old["merged"]} if "merged" in old else {}
    kept.write_record(record)
    return record


def _accept(kept: Kept, changed: list[str], *, force: bool) -> None:
    refusal = (
        f"{kept.name} would not end in the same bits: do as it was done before, choose another"
        " folder, or go on with --force"
    )
    accept(changed, refusal, force=force)


def _record_of(given: Given, keeping: Keeping, watch: Watch, before: Table | None) -> Table:
    """The record of a run that starts now, made without running any foreign code.

    Args:
        before: the record of a run that goes on.
    """
    settings = settings_of((given,))
    paths = {path: file_and_images(path)[0] for path in files_in(given.files)}
    inputs = [named(x.absolute()) | {"sha256": digest_of(file)} for x, file in paths.items()]
    making = Making(settings, before)()
    if keeping.ray is not None:  # workers make the results
        making |= dict.fromkeys(("device", "processor", "threads"), "")
    table = recorded("relax", settings, inputs, watch, {}, making=making)
    del table[RECORD]["ended"]
    table[RECORD]["shard"] = str(keeping.shard)
    return table


def _making(record: Table, setup: Setup, before: Table | None) -> Making:
    """What describes the process that makes the results of a run."""
    settings = {name: x for name, x in record.items() if name != RECORD}
    potential = setup.settings["potential"]
    is_threaded = isinstance(potential, TorchSimModel) or (
        isinstance(potential, ASECalculator) and isinstance(potential.calculator, BaseCalculator)
    )
    return Making(settings, before, is_threaded=is_threaded)


class _Admission:
    """Lets results into a run that were made as its record says, and others if forced.

    What only results show, as a module that is loaded late or the device of a machine of a cluster,
    is added to the record before these results are kept.
    """

    def __init__(self, kept: Kept, force: bool):
        self._kept, self._force = kept, force
        self._seen = list[Table]()

    def __call__(self, made: Table) -> None:
        if made in self._seen:
            return
        with reported(), self._kept.alone():
            record = self._kept.read_record()
            old = record[RECORD]
            new, forced = joined(old, made), old.get("forced", [])
            changed = [x for x in changes_of_making(old, new) if x not in forced]
            _accept(self._kept, changed, force=self._force)
            new |= {"forced": forced + changed}
            if any(old.get(name, []) != value for name, value in new.items()):
                record[RECORD] |= new
                self._kept.write_record(record)
        self._seen.append(made)


def _work_off(
    kept: Kept,
    works: Works,
    tally: Tally,
    claims: Claims,
    should_stop: Callable[[], bool],
    begin: Callable[[Iterator[Work]], Generator[list[tuple[Work, Relaxed]]]],
    admit: Callable[[], None] | None,
) -> None:
    """Relax the remaining structures and store each as it ends; exit if it cannot be stored.

    Args:
        begin: relaxes structures in windows.
        admit: called before results are kept; exits if they do not fit the record.
    """

    def keep(ended: list[tuple[int, Relaxed]]) -> None:
        ended += works.take_refused()
        try:
            if ended:
                if admit is not None:
                    admit()
                kept.results.add(ended)
                claims.add(number for number, _ in ended)
        except OSError as error:
            print_error(f"{error}; {tally.n_done} structures are kept in it: {_how_to_go_on(kept)}")
            raise typer.Exit(NOT_SAVED) from None
        tally.add(entry.status for _, entry in ended)
        tally.show(Progress(0, 0, 0, "running"))

    is_left = True
    while is_left:
        with reported(), contextlib.closing(begin(iter(works))) as windows:
            for ended in windows:
                keep([(work.number, entry) for work, entry in ended])
        keep([])
        with reported():
            is_left = claims.wait(should_stop)


def _windows(
    setup: Setup,
    tally: Tally,
    should_stop: Callable[[], bool],
    take: Take,
    ray: str | None,
    making: Making,
    admit: Callable[[Table], None],
) -> Callable[[Iterator[Work]], Generator[list[tuple[Work, Relaxed]]]]:
    """A function that relaxes structures in windows.

    Args:
        take: takes the structures of a window.
        ray: the address of a cluster that relaxes them, or None.
        making, admit: for the workers of a cluster, see `relaxed_on_ray`.
    """
    relax_window = partial(relax_works, setup, history=POINTS)
    if ray is not None:
        return lambda works: relaxed_on_ray(works, relax_window, should_stop, ray, making, admit)
    relax_here = partial(relax_window, progress=tally.show)
    return lambda works: relaxed_windows(works, relax_here, should_stop, take)


def _print(kept: Kept, tally: Tally) -> None:
    grid = Grid("status", box=None, pad_edge=False)
    grid.add_column("structures", justify="right")
    for name, n in tally.results().items():
        grid.add_row(name, str(n))
    out.print(grid)
    if tally.n_done > tally.counts[Status.CONVERGED]:
        failed = [b for b in kept.results.briefs() if b.status != Status.CONVERGED]
        print_first(out, range(len(failed)), lambda k: _reason(failed[k]))
    n_now = tally.n_done - tally.n_before
    more = f", {n_now} of them now" if tally.n_before else ""
    of_all = "" if tally.n_structures is None else f" of {tally.n_structures}"
    print_line(out, f"{kept.name}: {tally.n_done}{of_all} structures{more}")


def _reason(brief: Brief) -> str:
    """The reason why a structure has not converged, as text after its name."""
    source = brief.pairs.get("source", str(brief.number))
    return f"{source}: {brief.pairs.get('message') or brief.status.meaning}"


def _leave(kept: Kept, tally: Tally, *, is_out_of_time: bool) -> None:
    """End the command with its exit status."""
    if not tally.is_done:
        why = "The time is over" if is_out_of_time else "Interrupted"
        print_line(err, f"{why}: {_how_to_go_on(kept)}")
        raise typer.Exit(OUT_OF_TIME if is_out_of_time else INTERRUPTED)
    if not tally.counts[Status.CONVERGED]:
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)


def _how_to_go_on(kept: Kept) -> str:
    return f"basinax resume {kept.name} goes on"
