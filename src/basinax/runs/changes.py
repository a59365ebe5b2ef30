"""What decides the numbers of a run, and its changes since the run began.

A run goes on, and takes the results of other machines, where none of this has changed.
"""

from collections import Counter
from pathlib import PurePath
from typing import Any

from basinax.config.tables import RECORD, Table

OUTPUTS = ("output", "output_dir", "table", "json", "log", "report", "plot")
"""Settings that name what a run writes when it has ended, and its log."""

FREE = (
    *("files", "skip_unreadable", "workers", "devices", "skin"),
    *OUTPUTS,
    *("trajectory", "trajectory_interval", "trajectory_format"),
)
"""Settings that change no bit; the content of files and their order stand in the record."""

ALWAYS = (
    *("basinax", "python", "jax", "jaxlib", "numpy", "scipy"),
    *("equinox", "optax", "ase", "vesin"),
)
"""Versions that decide numbers of every run, and so may not be new either."""

SYSTEM = "system"
"""Among the versions that of the operating system, which decides no number."""

MAKING = ("versions", "modules", "switches", "device", "processor", "threads")
"""Parts of a record that tell of the process that makes results: versions of the packages whose
modules are loaded, modules that belong to none, switches of the environment, and the hardware. A
module may be new, since some are loaded late. An empty text is unknown yet, or decides nothing."""


def changes(before: Table, now: Table) -> list[str]:
    """One sentence for each setting, file, module, version or the like that differs.

    The folder in which a file lies is no difference.

    Args:
        before, now: tables of settings by name, and of how the run was made.
    """
    names = sorted({*before, *now} - {RECORD, *FREE})
    ours, theirs = ({name: _setting(name, table) for name in names} for table in (before, now))
    pairs = {name: (ours[name], theirs[name]) for name in names}
    old, new = before[RECORD], now[RECORD]
    pairs |= _of_files(old["inputs"], new["inputs"])
    pairs |= {k: x for k, x in _of_files(old["named"], new["named"]).items() if x[0] is not None}
    pairs["shard"] = old["shard"], new["shard"]
    return [_sentence(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]] + (
        changes_of_making(old, new)
    )


def changes_of_making(before: Table, now: Table) -> list[str]:
    """The sentences of `changes` about the process that makes results.

    Args:
        before, now: tables with the parts `MAKING`.
    """
    new = {name for name in now["versions"] if name in ALWAYS}
    versions = {*before["versions"], *new} - {SYSTEM}
    pairs: dict[str, tuple[Any, Any]] = {
        f"version of {name}": (before["versions"].get(name), now["versions"].get(name))
        for name in sorted(versions)
    }
    ours, theirs = _digests(before["modules"]), _digests(now["modules"])
    pairs |= {f"module {name}": (ours[name], theirs.get(name)) for name in ours}
    switches = {*before["switches"], *now["switches"]}
    pairs |= {x: (before["switches"].get(x), now["switches"].get(x)) for x in sorted(switches)}
    pairs |= {
        name: (before[name], now[name])
        for name in ("device", "processor", "threads")
        if before[name] and now[name]
    }
    return [_sentence(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


def continued(before: Table, now: Table) -> tuple[Table, list[str]]:
    """The record of a run that goes on, and what decides numbers and has changed since.

    Args:
        before: the record so far.
        now: the record as it would be; changes that were forced earlier are none.
    """
    old, new = before[RECORD], now[RECORD]
    forced = old.get("forced", [])
    changed = [text for text in changes(before, now) if text not in forced]
    parts: Table = {name: old[name] for name in ("started", "merged", "temporary") if name in old}
    parts |= {name: new[name] or old[name] for name in ("device", "processor", "threads")}
    if forced or changed:
        parts["forced"] = forced + changed
    return now | {RECORD: new | parts}, changed


def joined(before: Table, now: Table) -> Table:
    """A record with the packages, modules and files that only the other knows: either may have
    loaded them earlier, so that `changes(before, joined(before, now))` passes over them."""
    versions = {x: text for x, text in before["versions"].items() if x not in ALWAYS}
    parts: Table = {"versions": versions | now["versions"]}
    for part, key in (("modules", "module"), ("named", "name")):
        if part in now:
            known = {entry[key] for entry in now[part]}
            parts[part] = [x for x in before[part] if x[key] not in known] + now[part]
    return now | parts | {x: now[x] or before[x] for x in ("device", "processor", "threads")}


def _setting(name: str, table: Table) -> Any:
    """A setting, with files by their last names alone."""
    value = table.get(name)
    if name == "potential" and isinstance(value, str):
        for entry in sorted(table[RECORD]["named"], key=lambda entry: -len(entry["name"])):
            value = value.replace(entry["name"], PurePath(entry["name"]).name)
    return value


def _of_files(before: list[Table], now: list[Table]) -> dict[str, tuple[Any, Any]]:
    """Pairs of digests by the names of files, and of names by number if only the order differs."""
    ours, theirs = _by_name(before), _by_name(now)
    pairs = {
        (theirs.get(key) or ours[key])["file"]: (_digest(ours.get(key)), _digest(theirs.get(key)))
        for key in [*ours, *(key for key in theirs if key not in ours)]
    }
    if ours.keys() == theirs.keys():
        orders = zip(ours, theirs, strict=True)
        pairs |= {f"file {k}": (a[0], b[0]) for k, (a, b) in enumerate(orders) if a != b}
    return pairs


def _by_name(entries: list[Table]) -> dict[tuple[str, int], Table]:
    """Files by their last names; equal names are counted."""
    counts, files = Counter[str](), {}
    for entry in entries:
        name = PurePath(entry["file"]).name
        files[name, counts[name]] = entry
        counts[name] += 1
    return files


def _digests(modules: list[Table]) -> dict[str, Any]:
    return {entry["module"]: _digest(entry) for entry in modules}


def _digest(entry: Table | None) -> str | None:
    return None if entry is None else f"SHA-256 {entry['sha256'][:12]}"


def _sentence(name: str, before: Any, now: Any) -> str:
    if now is None:
        return f"{name} was {before!r}, and is not given now"
    if before is None:
        return f"{name} is {now!r}, and was not given"
    return f"{name} was {before!r}, and is {now!r} now"
