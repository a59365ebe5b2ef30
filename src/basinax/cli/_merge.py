"""The command `basinax merge`: folders of runs over parts of one input become one."""

import contextlib
from pathlib import Path

from basinax._text.tables import RECORD, Table
from basinax.atoms._runs.changes import changes, joined
from basinax.atoms._runs.folder import RunFolder
from basinax.cli._console import fail, out, print_line, reported
from basinax.cli._record import accept
from basinax.cli._values import Shard


def run(folders: list[Path], place: Path, *, force: bool) -> None:
    with reported(), contextlib.ExitStack() as stack:
        parts, whole = [RunFolder(folder) for folder in folders], RunFolder(place)
        for part in parts:
            part.check_begun()
        if whole.is_begun():
            fail(f"{place} holds a run: name a new folder")
        for kept in (*parts, whole):
            stack.enter_context(kept.taken())
        record = _record_of(parts, force=force)
        whole.write_record(record)
        of: dict[int, Path] = {}
        for part in parts:
            numbers = [brief.number for brief in part.results.briefs()]
            for number in numbers:
                if number in of:
                    fail(f"structure {number} stands in {of[number]} and in {part.path}")
            of |= dict.fromkeys(numbers, part.path)
            whole.results.copy(part.results)
    print_line(out, f"{place}: {len(of)} structures of {len(parts)} folders")


def _record_of(parts: list[RunFolder], *, force: bool) -> Table:
    """The joint record, from the first; exits if the records differ."""
    record, *others = [part.read_record() for part in parts]
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
    record[RECORD]["merged"] = [str(part.path) for part in parts]
    return record
