"""Tables of plain values in JSON and TOML files; imports quickly."""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from basinax.config.files import replacing
from basinax.config.reading import text_of

Table = dict[str, Any]

RECORD = "record"
"""The table of a record about the run itself; it holds no settings and is skipped."""

SETTINGS = "run.toml"
"""The file with settings and record in the folder of a run."""

ENDINGS = (".json", ".toml")

DEEPEST = 100
"""The most levels of nested tables and lists: each takes several of Python's 1000 nested calls."""

TOO_DEEP = f"tables and lists stand more than {DEEPEST} deep in one another"


def read_config(path: str | Path) -> Table:
    """The config in a JSON or TOML file, by its ending.

    Raises:
        ValueError: the ending is another, or the content is not in the format of the ending.
        OSError: the file cannot be read.
    """
    path = Path(path)
    ending = _ending_of(path)
    return table_of(text_of(path), str(path), ending)


def table_of(text: str, name: str, ending: str = ".json") -> Table:
    """The table of a text.

    Args:
        name: the name of the text in errors.
        ending: the ending of its format.

    Raises:
        ValueError: the text is no table.
    """
    try:
        is_json = ending == ".json"
        table = json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{name}: {TOO_DEEP}") from None
    except ValueError as error:  # TOML and JSON both raise subclasses of ValueError
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{name}: expected a table with a name, got {type(table).__name__}")
    return table


def _once(pairs: list[tuple[str, Any]]) -> Table:
    """The table of these pairs; raises ValueError if a name is given twice, as TOML does."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(x for x in names if names.count(x) > 1)!r} is given twice")
    return table


def write_config(config: Mapping[str, Any], path: str | Path) -> None:
    """Write a config to a JSON or TOML file, by its ending, completely or not at all.

    JSON lacks inf and NaN, which become strings that `from_config` reads.

    Raises:
        ValueError: the ending is another.
        OSError: the file cannot be written.
    """
    path = Path(path)
    text = json_of(config) if _ending_of(path) == ".json" else toml_of(config)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _ending_of(path: Path) -> str:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"{path}: a config file must end in .json or .toml")
    return ending


def require_known(names: Collection[str], known: Collection[str], where: str) -> None:
    """Raise ValueError for the first unknown name, with the nearest known one."""
    for name in names:
        if name not in known:
            all_ = f"{hint(name, known)}: {', '.join(known)}" if known else ", nor any other"
            raise ValueError(f"{where} has no option {name!r}{all_}")


def choose(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    """`known[name]`; an error that lists the known names if there is none."""
    if not isinstance(name, str) or name not in known:
        nearest = hint(str(name), known)
        raise ValueError(f"unknown {kind} {name!r}{nearest}: {', '.join(sorted(known))}")
    return known[name]


def hint(name: str, known: Collection[str]) -> str:
    """The nearest known name, as text before a list of all."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f", did you mean {close[0]!r}? Known are" if close else "; known are"


# --- text


def json_of(table: Mapping[str, Any]) -> str:
    """JSON; inf and NaN, which JSON lacks, become strings."""
    return json.dumps(strict(table), indent=2) + "\n"


def strict(value: Any) -> Any:
    """The value with strings for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {key: strict(x) for key, x in value.items()}
    return [strict(x) for x in value] if isinstance(value, list) else value


def toml_of(table: Mapping[str, Any], sections: Collection[str] = (), above: str = "") -> str:
    """The table as TOML.

    Args:
        sections: names of tables with a heading of their own, and so their inner tables.
        above: the heading above the table.

    Raises:
        ValueError: a value is None, which TOML lacks.
    """
    below = {key: x for key, x in table.items() if key in sections}
    plain = {key: x for key, x in table.items() if key not in below}
    text = "".join(f"{_toml_key(key)} = {_toml_value(x, '')}\n" for key, x in plain.items())
    for key, inner in below.items():
        heading = f"{above}{_toml_key(key)}"
        further = [name for name, x in inner.items() if isinstance(x, Mapping)]
        text += f"\n[{heading}]\n{toml_of(inner, further, heading + '.')}"
    return text


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)


def _toml_text(text: str) -> str:
    """The text in quotes; of all control characters, JSON leaves DEL alone as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_value(value: Any, indent: str) -> str:
    if isinstance(value, Mapping):
        items = [f"{_toml_key(k)} = {_toml_value(x, indent)}" for k, x in value.items()]
        return "{ " + ", ".join(items) + " }" if items else "{}"
    if isinstance(value, list) and any(isinstance(x, Mapping) for x in value):
        inner = indent + "  "
        return "[\n" + "".join(f"{inner}{_toml_value(x, inner)},\n" for x in value) + indent + "]"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(x, indent) for x in value) + "]"
    if value is None:
        raise ValueError("TOML has no null: write this config to a .json file")
    if isinstance(value, str):
        return _toml_text(value)
    return json.dumps(value) if isinstance(value, bool) else repr(value)
