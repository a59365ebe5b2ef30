"""Changes since a run began that would change bits of its results."""

from typing import Any

from basinax._text.tables import RECORD, Table

DECIDING = ("inputs", "versions", "device", "precision", "flags", "shard")
"""Parts of a record that determine bits, or the set of structures."""

FREE = ("workers", "devices", "skin")
"""Settings that change no bit."""


def changes(before: Table, now: Table) -> list[str]:
    """One sentence for each setting, input or version that differs.

    Args:
        before, now: tables of settings by name, and of how the run was made.
    """
    pairs = {
        name: (before.get(name), now.get(name))
        for name in sorted({*before, *now} - {RECORD, *FREE})
    }
    for part in DECIDING:
        pairs |= _flat(part, before[RECORD].get(part), now[RECORD].get(part))
    return [_sentence(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]


def _flat(name: str, before: Any, now: Any) -> dict[str, tuple[Any, Any]]:
    """The entries of a table, or of files, by readable names."""
    before, now = _by_name(name, before), _by_name(name, now)
    return {key: (before.get(key), now.get(key)) for key in [*before, *(now.keys() - before)]}


def _by_name(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {entry["file"]: f"SHA-256 {entry['sha256'][:12]}" for entry in value}
    if isinstance(value, dict):
        return {f"version of {key}": x for key, x in value.items()}
    return {name: value}


def _sentence(name: str, before: Any, now: Any) -> str:
    if now is None:
        return f"{name} was {before!r}, and is not given now"
    if before is None:
        return f"{name} is {now!r}, and was not given"
    return f"{name} was {before!r}, and is {now!r} now"
