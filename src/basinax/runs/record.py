"""The fields of a run's record, checked once, when the record is read."""

import bisect
import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from basinax.config.tables import RECORD, Table, hint
from basinax.numerics.settings import shown
from basinax.results.report.tables import Span

FORMAT = 2
"""The version of the format of records; it changes if another basinax would misread one."""


class Field(NamedTuple):
    """The type of a field."""

    is_right: Callable[[Any], bool]
    expected: str
    """The type in words."""
    is_optional: bool = False
    """Whether only some records have the field."""


def checked(table: Any, where: str) -> Table:
    """The settings and the record of a run, if each field is there and of its type.

    Args:
        where: the name of the record in errors.

    Raises:
        ValueError: there is no record, it is of another format, or a field is missing, unknown or
            of another type.
    """
    record = table.get(RECORD) if isinstance(table, dict) else None
    if not isinstance(record, dict):
        raise ValueError(f"{where} is no record of a run: it has no table [{RECORD}]")
    if (found := record.get("format")) != FORMAT or isinstance(found, bool):
        other = "of an early basinax" if found is None else f"of format {shown(found)}"
        raise ValueError(
            f"{where} is a record {other}, and this basinax reads format {FORMAT}: begin a new run"
        )
    _check(record, FIELDS, f"{where}: {RECORD}.")
    for name in record:
        if name not in FIELDS:
            nearest = hint(name, FIELDS)
            raise ValueError(f"{where} has an unknown {RECORD}.{name}{nearest}: {_NAMES}")
    _check(table, _SETTINGS, f"{where}: ")
    return table


def _check(table: Table, fields: Mapping[str, Field], where: str) -> None:
    """Raise ValueError for the first field that is missing or of another type."""
    for name, field in fields.items():
        if name in table and not field.is_right(table[name]):
            raise ValueError(f"{where}{name} must be {field.expected}, got {shown(table[name])}")
        if name not in table and not field.is_optional:
            raise ValueError(f"{where}{name} is missing: expected {field.expected}")


# --- types


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_shard(value: Any) -> bool:
    parts = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value) if _is_text(value) else None
    return parts is not None and 1 <= int(parts[1]) <= int(parts[2])


def _list_of(is_item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_item, value))


def _table_of(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(is_value, value.values()))


def _entries_of(*names: str) -> Field:
    is_table = _table_of(_is_text)

    def is_entry(value: Any) -> bool:
        return is_table(value) and value.keys() == set(names)

    return Field(_list_of(is_entry), f"a list of tables with {', '.join(names)}")


_TEXT, _TEXTS = Field(_is_text, "a text"), Field(_list_of(_is_text), "a list of texts")
_TABLE, _TIME = Field(_table_of(_is_text), "a table of texts"), Field(_is_time, "a time")
_COUNTS = Field(_table_of(_is_count), "a table of numbers")
_LATER = {"is_optional": True}

FIELDS: dict[str, Field] = {
    "format": Field(lambda value: value == FORMAT, str(FORMAT)),
    "command": _TEXT,
    "folder": _TEXT,
    "place": _TEXT._replace(**_LATER),
    "inputs": _entries_of("file", "sha256"),
    "named": _entries_of("name", "file", "sha256"),
    "modules": _entries_of("module", "file", "sha256"),
    "skipped": _TEXTS,
    "versions": _TABLE,
    "switches": _TABLE,
    "device": _TEXT,
    "processor": _TEXT,
    "threads": _TEXT,
    "precision": _TEXT,
    "cores": Field(_is_size, "a number"),
    "cache": _TEXT,
    "started": _TIME,
    "results": _COUNTS,
    "shard": Field(_is_shard, "K/N with K from 1 to N"),
    "ended": _TIME._replace(**_LATER),
    "resumed": Field(_list_of(_is_time), "a list of times", **_LATER),
    "forced": _TEXTS._replace(**_LATER),
    "merged": _TEXTS._replace(**_LATER),
    "temporary": _TEXT._replace(**_LATER),
}
"""The fields of the table of a record; `changes.py` has those that decide numbers."""

_NAMES = ", ".join(FIELDS)

_SETTINGS = {
    "files": Field(lambda value: _list_of(_is_text)(value) and bool(value), "a list of names"),
    "potential": _TEXT,
}
"""Settings that every run has; all settings are checked as options of the command."""


# --- runs


def spans_of(record: Table, times: Iterable[float]) -> list[Span]:
    """The run of a record and those that went on with it.

    Args:
        times: when structures ended, in seconds since 1970.
    """
    starts, times = _starts_of(record), list(times)
    of: list[list[float]] = [[] for _ in starts]
    for span, time in zip(_spans_at(starts, times), times, strict=True):
        of[span].append(time)
    ends = ["interrupted"] * (len(starts) - 1) + ["ended" if "ended" in record else "not ended"]
    return [
        Span(start.replace("T", " "), len(each), _text_of(max(each)) if each else "", end)
        for start, each, end in zip(starts, of, ends, strict=True)
    ]


def _starts_of(record: Table) -> list[str]:
    return [record["started"], *record.get("resumed", [])]


def _spans_at(starts: list[str], times: Sequence[float]) -> list[int]:
    """The number of the span that went on at each time."""
    begun = [datetime.datetime.fromisoformat(text).timestamp() for text in starts]
    return [max(bisect.bisect_right(begun, time) - 1, 0) for time in times]


def _text_of(time: float) -> str:
    return datetime.datetime.fromtimestamp(time).astimezone().isoformat(" ", "seconds")
