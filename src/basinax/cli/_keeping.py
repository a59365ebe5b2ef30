"""The command `basinax relax --run FOLDER`: results are stored as they arrive."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import typer
from ase.calculators.calculator import BaseCalculator
from rich.table import Table as Grid

from basinax._loop.status import Status
from basinax._text.tables import RECORD, Table
from basinax.atoms import ASECalculator, TorchSimModel
from basinax.atoms._relax import Progress
from basinax.atoms._runs.changes import changes, changes_of_making, joined
from basinax.atoms._runs.folder import RunFolder
from basinax.atoms._runs.on_ray import relaxed_on_ray
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
    print_warning,
    reported,
)
from basinax.cli._inputs import digest_of, file_and_images, files_in
from basinax.cli._lazily import count
from basinax.cli._named import STDIN
from basinax.cli._options import Given, Keeping, Manner, Outputs
from basinax.cli._record import Making, accept, named, now, recorded
from basinax.cli._session import session
from basinax.cli._setup import Setup
from basinax.cli._storing import Ended, Storing
from basinax.cli._summary import print_first
from basinax.cli._tally import Tally
from basinax.cli._values import Shard
from basinax.cli._watch import Watch
from basinax.cli._works import Work, Works, relax_window, relax_works


def run(given: Given, outputs: Outputs, keeping: Keeping, manner: Manner) -> None:
    assert keeping.run is not None
    _check(given, outputs, keeping)
    limit = math.inf if keeping.time_limit is None else keeping.time_limit
    deadline = time.monotonic() + limit
    with reported():
        kept = RunFolder(keeping.run)
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
            before = kept.read_record() if kept.is_begun() else None
            making = _making(record, setup, before)
            if keeping.ray is None:
                record[RECORD] |= making()
            _begin(kept, before, record, keeping)
        tally = Tally.begun(n_structures, done, watch)

        def is_over() -> bool:
            return watch.is_stopped() or time.monotonic() >= deadline

        numbers = {brief.number for brief in done}

        def is_left(number: int) -> bool:
            return keeping.shard.has(number) and number not in numbers

        works = Works(given, setup, is_left, is_over, is_strict=keeping.strict)
        admit = _Admission(kept, keeping.force)
        begin = _relaxed(setup, tally, is_over, keeping.ray, making, admit)
        here = None if keeping.ray is not None else lambda: admit(making())
        _work_off(kept, works, tally, is_over, begin, here)
        if works.n_items is not None:
            tally.n_structures = _n_of(keeping.shard, works.n_items)
            _check_numbers(numbers, keeping.shard, works.n_items, kept)
        watch.begin("writing")
        with reported():
            record = kept.read_record()
            record[RECORD] |= {"results": tally.results(), "ended": now()}
            kept.write_record(record)
    if not manner.quiet:
        _print(kept, tally)
    _leave(kept, tally, is_out_of_time=is_over() and not watch.is_stopped())


def _n_of(shard: Shard, n_items: int | None) -> int | None:
    """The number of structures in a part of the input."""
    return None if n_items is None else sum(map(shard.has, range(n_items)))


def _check_numbers(numbers: set[int], shard: Shard, n_items: int, kept: RunFolder) -> None:
    """Exit if the database holds a structure that the input lacks."""
    if strange := sorted(k for k in numbers if k >= n_items or not shard.has(k)):
        which = f"part {shard} of the {n_items} structures of the input"
        fail(f"{kept.results.name} holds structure {strange[0]}, which is not in {which}")


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


def _begin(kept: RunFolder, before: Table | None, record: Table, keeping: Keeping) -> None:
    """Write the record of the run; exits if the run was begun otherwise, unless forced.

    Args:
        before: the record of a run that goes on, which keeps its beginning.
    """
    if before is not None:
        changed = changes(before, record)
        _accept(kept, changed, force=keeping.force)
        old, new = before[RECORD], record[RECORD]
        new["forced"] = old.get("forced", []) + changed
        new["resumed"] = [*old.get("resumed", []), new["started"]]
        new |= {name: new[name] or old[name] for name in ("device", "processor", "threads")}
        new["started"] = old["started"]
        new |= {"merged": old["merged"]} if "merged" in old else {}
    kept.write_record(record)


def _accept(kept: RunFolder, changed: list[str], *, force: bool) -> None:
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

    def __init__(self, kept: RunFolder, force: bool):
        self._kept, self._force = kept, force
        self._seen = list[Table]()

    def __call__(self, made: Table) -> None:
        if made in self._seen:
            return
        with reported():
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
    kept: RunFolder,
    works: Works,
    tally: Tally,
    should_stop: Callable[[], bool],
    begin: Callable[[Iterator[Work]], Iterator[Ended]],
    admit: Callable[[], None] | None,
) -> None:
    """Relax the remaining structures and store each as it ends; exit if it cannot be stored.

    Args:
        begin: relaxes structures.
        admit: called before results are kept; exits if they do not fit the record.
    """

    def on_stored(some: Ended) -> None:
        tally.add(some)
        tally.show(Progress(0, 0, 0, "running"))

    storing = Storing(kept.results, on_stored, tally.show, should_stop)

    @contextlib.contextmanager
    def kept_or_left() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            print_error(f"{error}; {tally.n_done} structures are kept in it: {_how_to_go_on(kept)}")
            raise typer.Exit(NOT_SAVED) from None

    ends: Any = begin(iter(works))
    with reported(), contextlib.closing(ends):
        for ended in ends:
            with kept_or_left():
                if ended and admit is not None:
                    admit()
                storing.add(ended)
    with kept_or_left():
        storing.finish()
    if storing.waiting:
        n, name = len(storing.waiting), kept.results.name
        print_warning(f"{n} structures that have ended are not in {name}, and will begin again")


def _relaxed(
    setup: Setup,
    tally: Tally,
    should_stop: Callable[[], bool],
    ray: str | None,
    making: Making,
    admit: Callable[[Table], None],
) -> Callable[[Iterator[Work]], Iterator[Ended]]:
    """A function that relaxes structures.

    Args:
        ray: the address of a cluster that relaxes them, or None.
        making, admit: for the workers of a cluster, see `relaxed_on_ray`.
    """
    if ray is not None:
        there = partial(relax_window, setup)
        return lambda works: relaxed_on_ray(works, there, should_stop, ray, making, admit)
    how = {"progress": tally.show, "should_stop": should_stop}
    return lambda works: relax_works(setup, works, **how)


def _print(kept: RunFolder, tally: Tally) -> None:
    grid = Grid("status", box=None, pad_edge=False)
    grid.add_column("structures", justify="right")
    for name, n in tally.results().items():
        grid.add_row(name, str(n))
    out.print(grid)
    print_first(out, range(len(tally.reasons)), tally.reasons.__getitem__)
    n_now = tally.n_done - tally.n_before
    more = f", {n_now} of them now" if tally.n_before else ""
    of_all = "" if tally.n_structures is None else f" of {tally.n_structures}"
    print_line(out, f"{kept.name}: {tally.n_done}{of_all} structures{more}")


def _leave(kept: RunFolder, tally: Tally, *, is_out_of_time: bool) -> None:
    """End the command with its exit status."""
    if not tally.is_done:
        why = "The time is over" if is_out_of_time else "Interrupted"
        print_line(err, f"{why}: {_how_to_go_on(kept)}")
        raise typer.Exit(OUT_OF_TIME if is_out_of_time else INTERRUPTED)
    if not tally.counts[Status.CONVERGED]:
        err.print("Nothing converged.")
        raise typer.Exit(NOTHING_CONVERGED)


def _how_to_go_on(kept: RunFolder) -> str:
    return f"basinax resume {kept.name} goes on"
