"""The command `basinax relax`: results are kept in a folder as they come, and outputs are written
from it at the end."""

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from ase.calculators.calculator import BaseCalculator

from basinax.atoms import ASECalculator, TorchSimModel
from basinax.cli.config import settings_of
from basinax.cli.console import (
    BAD_INPUT,
    INTERRUPTED,
    NOT_SAVED,
    NOTHING_CONVERGED,
    OUT_OF_TIME,
    err,
    fail,
    out,
    print_line,
    reported,
)
from basinax.cli.contents import Plan, have_stress, plans_of
from basinax.cli.inputs import (
    content_of_stdin,
    digest_of,
    file_and_images,
    files_in,
    files_read,
    home_of,
    is_terminal,
    note_place,
)
from basinax.cli.named import GIVEN, STDIN
from basinax.cli.options import (
    STDOUT,
    Outputs,
    OutputStyle,
    PathOptions,
    PathOutputs,
    RelaxOptions,
    StoreOptions,
)
from basinax.cli.outputs import Writing, print_written
from basinax.cli.record import Making, accept, and_beside, named, now, recorded
from basinax.cli.storing import Storing, Tally, hint_to_resume, work_off
from basinax.cli.summary import print_reasons, print_summary, summary_of
from basinax.cli.values import seconds_of
from basinax.cli.watch import Watch, session
from basinax.cli.works import (
    RELAXATION,
    AbstractWorks,
    Job,
    Recorders,
    relax_window,
    trajectories_of,
)
from basinax.config.files import key_of
from basinax.config.tables import RECORD, Table
from basinax.minimize.status import Status
from basinax.results.report.page import check_report
from basinax.results.table import Columns
from basinax.runs.changes import continued, joined
from basinax.runs.folder import RunFolder
from basinax.runs.on_ray import relaxed_on_ray
from basinax.runs.results import Brief, counts_of
from basinax.runs.rows import POINTS

NAMED = 3
"""The largest number of files in the title of a report."""


def run(
    given: RelaxOptions | PathOptions,
    outputs: Outputs,
    keeping: StoreOptions,
    manner: OutputStyle,
    job: Job = RELAXATION,
) -> None:
    limit = math.inf if keeping.time_limit is None else seconds_of(keeping.time_limit)
    deadline = time.monotonic() + limit
    _check(given, outputs, keeping)
    with reported():
        kept = RunFolder(keeping.run or outputs.folder)
        kept.name = GIVEN.get() or kept.name
    wanted = outputs if keeping.run else outputs.with_default()
    with session(manner, given.dtype) as watch, contextlib.ExitStack() as stack:
        begun = _begun(kept, job.command, given, wanted, keeping, watch, stack)
        setup = job.setup(begun.given)
        begun.making.is_threaded = _is_threaded(setup.settings["potential"])
        is_sole = "temporary" in begun.record[RECORD]
        works = job.works(begun.given, setup, keeping, is_sole=is_sole)
        this = _Run(kept, job, wanted, works, _prepared(wanted, begun, works), watch)
        plans = works.plans(this.writing)
        done = this.keep(begun, stack)
        watch.hint = hint_to_resume(kept)
        has_steps = this.relax(setup, begun, done, keeping, deadline)
        watch.begin("writing")
        ended = this.finish(begun.settings | settings_of((outputs, manner)), plans)
    this.print(ended, manner, n_before=len(done), has_steps=has_steps)
    this.leave(ended)


class _Begun(NamedTuple):
    """The beginning of a run, before any foreign code has run."""

    given: RelaxOptions | PathOptions
    """The options, with the files that are read."""
    own: Outputs | None
    """The outputs that a run which goes on has named before; None for a new run."""
    settings: Table
    making: Making
    record: Table


class _Ended(NamedTuple):
    """The end of a run, or of a part of it."""

    briefs: list[Brief]
    """The structures that have ended, by number."""
    columns: Columns | None
    """The table; None if structures are left, so that nothing is written yet."""


class _Run(NamedTuple):
    """A run of a command."""

    kept: RunFolder
    job: Job
    outputs: Outputs
    works: AbstractWorks
    writing: Writing
    watch: Watch

    def keep(self, begun: _Begun, stack: contextlib.ExitStack) -> list[Brief]:
        """Write the record into the folder, a new one if need be; return what had ended before."""
        with reported():
            if begun.own is None:
                stack.enter_context(_made(self.kept, self.works))
            if STDIN in begun.given.files and self.kept.stdin_content() != content_of_stdin():
                self.kept.stdin.write_bytes(content_of_stdin())
            done = self.kept.results.briefs()
            self.kept.write_record(begun.record)
        return done

    def relax(
        self,
        setup: Any,
        begun: _Begun,
        done: list[Brief],
        keeping: StoreOptions,
        deadline: float,
    ) -> bool:
        """Relax what remains, and store each as it ends; return whether anything did remain."""
        works, job, watch = self.works, self.job, self.watch

        def is_over() -> bool:
            return watch.is_stopped() or time.monotonic() >= deadline

        tally = Tally(works, watch, done)
        admit = _admission(self.kept, force=keeping.force)
        with reported():
            recorder = Recorders(self.outputs, works, is_begun=begun.own is not None)
        sources = {brief.number: brief.source for brief in done}
        remaining = recorder.expecting(works.left(sources, is_over))
        how: dict[str, Any] = {"history": True if self.outputs.report else POINTS}
        if keeping.ray is not None:
            there = functools.partial(relax_window, job.relax, setup, **how)
            where = keeping.ray, begun.making, admit, job.window
            relaxed = relaxed_on_ray(remaining, there, is_over, *where)
        else:
            how |= {"progress": tally.show, "should_stop": is_over, "recorder": recorder.used}
            relaxed = job.relax(
                setup, remaining, is_strict=works.is_sole, at_once=works.at_once, **how
            )
        watch.begin("listing")

        def prepare() -> None:
            recorder.flush()  # what is stored is never done again, so its trajectory is whole
            admit(begun.making())

        with self.writing.saver.watching(works.sources), contextlib.closing(recorder), reported():
            storing = Storing(self.kept, tally, done, is_over)
            work_off(storing, relaxed, None if keeping.ray else prepare)
        return recorder.has_work

    def finish(self, settings: Table, plans: list[Plan]) -> _Ended:
        """Note the end in the record, and write the outputs of a run that is whole.

        Args:
            settings: all options.
            plans: how structures are written, if they were read before the run.
        """
        with reported():
            briefs = self._briefs()
            record = settings | {RECORD: self.kept.read_record()[RECORD]}
            if len(briefs) != self.works.n_structures:
                return _Ended(briefs, None)
            columns = self._export(plans, record, briefs)
        if self.works.is_sole and not self.writing.saver.has_lost:
            self.kept.remove()
        return _Ended(briefs, columns)

    def _briefs(self) -> list[Brief]:
        """All structures that have ended, by number, which the record counts."""
        kept, works = self.kept, self.works
        briefs = sorted(kept.results.briefs(), key=lambda brief: brief.number)
        works.check(briefs, kept.results.name)
        record = kept.read_record()
        record[RECORD]["results"] = counts_of(briefs)
        if len(briefs) == works.n_structures:
            record[RECORD]["ended"] = now()
        kept.write_record(record)
        return briefs

    def _export(self, plans: list[Plan], record: Table, briefs: list[Brief]) -> Columns:
        """Write the outputs; return the table."""
        works, writing, outputs, columns = self.works, self.writing, self.outputs, Columns()
        record[RECORD]["skipped"] = works.skipped
        record[RECORD]["inputs"] = works.inputs or record[RECORD]["inputs"]
        record[RECORD].pop("temporary", None)
        plot = outputs.plot if isinstance(outputs, PathOutputs) else None
        if writing.names or outputs.table is not None or plot is not None:
            found = self.job.found(*self.kept.results.gathered())
            columns = found.columns
            if not works.is_sole:
                files = writing.files_of([works.paths[number] for number in found.numbers])
                plans = plans_of(files, found.atoms, found.sources, have_stress(found.atoms))
            writing.write(plans, found.atoms, columns)
            if plot is not None and found.plot is not None:
                figure, form = found.plot().figure, plot.suffix[1:].lower()
                writing.saver.save(plot, functools.partial(figure.savefig, format=form))
            writing.write_record(record)
        if outputs.report is not None:
            title = f"{self.job.title} of {_titled(list(dict.fromkeys(works.paths)))}"
            how = {"record": record, "briefs": briefs, "title": title}
            writing.saver.save(outputs.report, functools.partial(self.kept.write_report, **how))
        return columns

    def print(self, ended: _Ended, manner: OutputStyle, n_before: int, *, has_steps: bool) -> None:
        """Print the summary, as JSON with --json; with --quiet, why structures have no result.

        Args:
            n_before: how many structures had ended before.
            has_steps: whether this session may have written a log and trajectories.
        """
        works, writing, outputs, noun = self.works, self.writing, self.outputs, self.job.noun
        briefs, stream = ended.briefs, writing.stream
        if ended.columns is not None:
            writing.print_table(ended.columns)
        more = [outputs.log, outputs.trajectory] if has_steps else []
        more = [path for path in more if path not in (None, STDOUT) and path.exists()]
        if outputs.json:
            writing.print_json(summary_of(briefs, works.skipped, works.n_structures), more)
        elif not manner.quiet:
            print_summary(stream, briefs, noun)
            print_written(stream, [*writing.saver.saved, *more])
            if not works.is_sole:
                n, n_all = len(briefs), works.n_structures
                now = f", {n - n_before} of them now" if n_before else ""
                of_all = "" if n_all is None else f" of {n_all}"
                print_line(stream, f"{self.kept.name}: {n}{of_all} {noun}{now}")
        else:
            lost = [brief for brief in briefs if brief.status == Status.EVALUATION_FAILED]
            print_reasons(err, lost, noun)
        if fault := stream.fault or out.fault:
            what = "table" if outputs.table == STDOUT and not stream.fault else "summary"
            writing.saver.lose(f"the {what} cannot be printed: {fault}")

    def leave(self, ended: _Ended) -> None:
        """End the command with its exit status."""
        kept, outputs, is_stopped = self.kept, self.outputs, self.watch.is_stopped()
        if ended.columns is None:
            why = "Interrupted" if is_stopped else "The time is over"
            print_line(err, f"{why}: {hint_to_resume(kept)}")
            raise typer.Exit(INTERRUPTED if is_stopped else OUT_OF_TIME)
        if self.writing.saver.has_lost:
            if kept.record.exists():
                hint = f"{kept.name} keeps the results: basinax resume {kept.name} writes them"
                if outputs.trajectory is not None or outputs.log is not None:
                    hint += ", but no steps to trajectories and logs"
                print_line(err, hint)
            raise typer.Exit(NOT_SAVED)
        if is_stopped:  # nothing is left for the same command to go on with
            err.print("Interrupted, but all structures had ended.")
        is_empty = not ended.briefs  # as a part of few structures may be
        if not (is_empty or any(brief.status == Status.CONVERGED for brief in ended.briefs)):
            err.print("Nothing converged.")
            raise typer.Exit(NOTHING_CONVERGED)


# --- the folder and its record


def _check(given: RelaxOptions | PathOptions, outputs: Outputs, keeping: StoreOptions) -> None:
    """Exit if options contradict each other."""
    if keeping.strict and given.skip_unreadable:
        fail("--strict ends the run where --skip-unreadable goes on: remove one of them")
    if keeping.ray is None:
        return
    if given.devices is not None:
        fail("--devices does not go with --ray, which has a worker for each GPU or machine")
    if outputs.log is not None or outputs.trajectory is not None:
        fail("--log and --trajectory do not go with --ray, whose workers are on other machines")


def _begun(
    kept: RunFolder,
    command: str,
    given: RelaxOptions | PathOptions,
    outputs: Outputs,
    keeping: StoreOptions,
    watch: Watch,
    stack: contextlib.ExitStack,
) -> _Begun:
    """Lock the folder of a run that goes on, and make the record; exits if the run has changed."""
    with reported():
        before = _taken_up(kept, given, stack)
        own = None if before is None else outputs.named_in(before, home_of(kept.path, before))
        settings = settings_of((given,))
        making = Making(settings, before)
        # A run that goes on does not read what it has written into a folder of its input.
        written = [] if own is None else own.written
        given = dataclasses.replace(given, files=files_in(given.files, written))
        record = _record_of(command, settings, given.files, outputs, keeping, watch, making, kept)
        if before is not None:
            record = _resumed(kept, before, record, force=keeping.force)
    return _Begun(given, own, settings, making, record)


def _taken_up(
    kept: RunFolder, given: RelaxOptions | PathOptions, stack: contextlib.ExitStack
) -> Table | None:
    """Lock the folder of a run that goes on; return its record, or None for a new run.

    The run's own copy stands for standard input, unless the command is given another one.
    """
    if not kept.is_begun():
        return None
    stack.enter_context(kept.taken())
    is_resumed = given.config is not None and key_of(given.config) == key_of(kept.record)
    may_be_given = STDIN in given.files and not (is_resumed or is_terminal())
    if kept.stdin.is_file() and not (may_be_given and content_of_stdin()):
        sys.stdin = stack.enter_context(kept.stdin.open(encoding="utf-8"))
    return kept.read_record()


@contextlib.contextmanager
def _made(kept: RunFolder, works: AbstractWorks) -> Iterator[None]:
    """A new folder, which goes again if the command ends with an error before any result."""
    with kept.taken():
        if kept.is_begun():
            fail(f"{kept.name} is in use: another run has begun in it meanwhile")
        try:
            yield
        except typer.Exit as end:
            if works.is_sole and end.exit_code == BAD_INPUT and not kept.results.exist():
                kept.remove()
            raise


def _record_of(
    command: str,
    settings: Table,
    files: list[Path],
    outputs: Outputs,
    keeping: StoreOptions,
    watch: Watch,
    making: Making,
    kept: RunFolder,
) -> Table:
    """The record of a run that starts now, made without running any foreign code."""
    asked = settings_of((outputs,))
    usual = {field.name: field.default for field in dataclasses.fields(outputs)}
    asked = {x: y for x, y in asked.items() if getattr(outputs, x) != usual[x]}
    asked.pop("overwrite", None)
    inputs = [
        entry
        for path in files
        for entry in and_beside(
            path, named(path.absolute()) | {"sha256": digest_of(file_and_images(path)[0])}
        )
    ]
    parts = making()
    if keeping.ray is not None:  # workers make the results
        parts |= dict.fromkeys(("device", "processor", "threads"), "")
    table = recorded(command, settings | asked, inputs, watch, {}, making=parts)
    del table[RECORD]["ended"]
    table[RECORD]["shard"] = str(keeping.shard)
    note_place(kept.path, table[RECORD])
    if keeping.run is None:
        table[RECORD]["temporary"] = "removed once its outputs are written"
    return table


def _resumed(kept: RunFolder, before: Table, now: Table, *, force: bool) -> Table:
    """The record of a run that goes on, with the time; a run that had ended just writes outputs."""
    spans = list(before[RECORD].get("resumed", []))
    if "ended" not in before[RECORD]:
        spans.append(now[RECORD]["started"])
    record = _continued(kept, before, now, force=force)
    record[RECORD]["resumed"] = spans
    return record


def _continued(kept: RunFolder, before: Table, now: Table, *, force: bool) -> Table:
    """The record of a run that goes on; exits if the run was begun otherwise, unless forced."""
    record, changed = continued(before, now)
    accept(
        changed,
        f"{kept.name} would not end in the same bits: do as it was done before, choose another"
        f" {'output or remove the ' if 'temporary' in before[RECORD] else ''}folder, or go on with"
        " --force",
        force=force,
    )
    return record


def _admission(kept: RunFolder, *, force: bool) -> Callable[[Table], None]:
    """A function that lets results into a run that were made as its record says.

    What only results show, as a module that is loaded late or the device of a machine of a cluster,
    is added to the record before these results are kept.
    """
    seen = list[Table]()

    def admit(made: Table) -> None:
        if made in seen:
            return
        with reported():
            before = kept.read_record()
            now = before | {RECORD: before[RECORD] | joined(before[RECORD], made)}
            record = _continued(kept, before, now, force=force)
            if record != before:
                kept.write_record(record)
        seen.append(made)

    return admit


def _is_threaded(potential: Any) -> bool:
    """Whether a calculator runs in this process."""
    return isinstance(potential, TorchSimModel) or (
        isinstance(potential, ASECalculator) and isinstance(potential.calculator, BaseCalculator)
    )


# --- outputs


def _prepared(outputs: Outputs, begun: _Begun, works: AbstractWorks) -> Writing:
    """The outputs, checked to be writable; those of a run that goes on may stand there."""
    given, own, trajectories = begun.given, begun.own, trajectories_of(outputs)
    if trajectories and own and own.trajectory:
        is_own = key_of(own.trajectory) == key_of(trajectories.folder)
        trajectories = None if is_own else trajectories
    if outputs.report is not None:
        with reported():
            check_report(outputs.report)
    files = works.paths or [
        path if path == STDIN else file_and_images(path)[0] for path in given.files
    ]
    return Writing.prepared(
        outputs,
        files,
        files_read(given),
        trajectories,
        works.n_items or 0,
        may_replace=outputs.overwrite,
        own=own,
    )


def _titled(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths)) if len(paths) <= NAMED else f"{len(paths)} files"
