"""The tables of a report as texts: counts by status, the slowest, the unconverged."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from basinax.minimize.status import Status
from basinax.results.report.structures import Structures

SHOWN = 50
"""The number of rows that a table shows at a time."""

LISTED = 10
"""The largest number of listed values of a setting."""


class StatusLine(NamedTuple):
    """The structures of one status."""

    status: str
    meaning: str
    structures: int
    percent: float
    steps: str
    """The median number of steps."""
    evaluations: str
    """The median number of evaluations."""


class Table(NamedTuple):
    """Texts in rows, and what a browser needs to search and sort them."""

    titles: list[str]
    kinds: list[str]
    """The kind of each column: number, text or reason."""
    rows: list[list[str]]
    at: dict[str, int]
    """The places of `status` and `formula`, whose values a browser offers, if they are known."""
    choices: dict[str, list[str]]
    """These values."""
    n_more: int
    """The number of structures that are not in the table."""

    @property
    def first(self) -> list[list[str]]:
        """The rows that are shown at first."""
        return self.rows[:SHOWN]


class Span(NamedTuple):
    """A run from its start to its end, or to its interruption."""

    started: str
    structures: int
    """The number of structures that ended in it."""
    last: str
    """When the last of them ended; empty if none did."""
    end: str
    """How it ended, such as interrupted."""


def counts_of(structures: Structures) -> list[StatusLine]:
    """One line per status that occurs, in the order of `Status`, unknown ones last."""
    statuses = np.array(structures.texts["status"], object)
    known = [str(status) for status in Status]
    others = sorted(set(statuses.tolist()) - set(known))
    lines = []
    for name in [str(Status.CONVERGED), *known, *others]:
        of = statuses == name
        if not of.any() or name in (line.status for line in lines):
            continue
        medians = [_median(structures.values[key][of]) for key in ("steps", "evaluations")]
        percent = percent_of(of)
        lines.append(StatusLine(name or "?", meaning_of(name), int(of.sum()), percent, *medians))
    return lines


def percent_of(which: np.ndarray) -> float:
    """The share of True, which four digits show as 100 only where it is all."""
    percent = 100 * float(which.mean())
    return min(percent, 99.99) if percent < 100 else percent


def meaning_of(status: str) -> str:
    """One sentence about a status; empty for a status unknown to this version."""
    return Status(status).meaning if status in list(Status) else ""


def table_of(structures: Structures, which: Sequence[int]) -> Table:
    """The table of some structures, by their places."""
    values, is_whole = structures.values, bool(structures.converged.all())
    # Texts come first, so that the reason of a failure is seen without scrolling.
    headings = sorted(structures.columns, key=lambda name: name in values)
    names = [x for x in ("number", *headings) if _has(structures, x, not is_whole)]
    rows = []
    for k in which:
        texts = {name: column[k] for name, column in structures.texts.items()}
        texts["message"] = texts["message"] or _reason_of(texts["status"])
        texts["number"] = str(structures.numbers[k])
        rows.append([texts[n] if n in texts else number_text(float(values[n][k])) for n in names])
    kinds = ["number" if name in values else _KINDS.get(name, "text") for name in names]
    named = {name: column.title for name, column in structures.columns.items()} | _TITLES
    at = {name: names.index(name) for name in ("status", "formula") if name in names}
    choices = {name: sorted({row[k] for row in rows}) for name, k in at.items()}
    n_more = len(structures) - len(rows)
    return Table([named[name] for name in names], kinds, rows, at, choices, n_more)


def _reason_of(status: str) -> str:
    return "" if status == str(Status.CONVERGED) else meaning_of(status)


_KINDS = {"number": "number", "message": "reason"}
_TITLES = {"number": "number", "message": "reason"}


def _has(structures: Structures, name: str, with_reason: bool) -> bool:
    """Whether a column has anything to show."""
    if name == "message":
        return with_reason
    if name in structures.values:
        return not np.isnan(structures.values[name]).all()
    if name == "source":  # show the number instead if structures come from no file
        sources = zip(structures.texts[name], structures.numbers, strict=True)
        return any(source not in ("", str(number)) for source, number in sources)
    return name == "number" or any(structures.texts[name])


def number_text(value: float) -> str:
    """Six digits, or a dash for an unknown value."""
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def _median(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return f"{np.median(finite):g}" if len(finite) else "–"


# --- settings


def sections_of(
    settings: Mapping[str, Any], title: str = "settings"
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Names and texts by sections; a table among the settings is a section of its own."""
    plain = [(name, text_of(x)) for name, x in settings.items() if not isinstance(x, Mapping)]
    sections = [(title, plain)] if plain else []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            sections += sections_of(value, name)
    return sections


def text_of(value: Any) -> str:
    """The text of one setting."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(x)}" for name, x in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        more = [f"... and {len(value) - LISTED} more"] if len(value) > LISTED else []
        return "\n".join([*map(text_of, value[:LISTED]), *more]) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None or value == "" else str(value)


def seconds_text(seconds: float) -> str:
    """A time as text, such as 1 h 02 min, 3 min 05 s, or 4.2 s."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {rest:02d} s"
