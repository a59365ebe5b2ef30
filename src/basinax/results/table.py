"""Tables as columns: aligned text, HTML, and files by their ending."""

import abc
import csv
import dataclasses
import enum
import functools
import html
import io
import itertools
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms

from basinax.config.files import replacing
from basinax.config.tables import hint
from basinax.structures.read import cells_of

Columns = dict[str, list[Any]]
_numbers = itertools.count()


class Column(NamedTuple):
    """How a field of a record is shown and stored."""

    heading: str
    """The name in tables, with the unit in ASCII, such as `fmax_eV_per_A`."""
    unit: str
    """The unit, such as eV/Å; empty for counts and texts."""
    key: str
    """The key of the field in rows of databases; empty if rows have it elsewhere."""
    is_brief: bool
    """Whether summaries show the field."""
    number: int
    """The order of columns is that of their definitions."""
    type: Any = None
    """The type of values: `int`, `float` (NaN where there is none), `str` or an enumeration."""

    @property
    def title(self) -> str:
        """The name for people, such as fmax (eV/Å)."""
        suffix = self.unit.replace("/", "_per_").replace("Å", "A").replace("³", "3")
        name = self.heading.removesuffix(f"_{suffix}")
        text = name.replace("_", " ")
        return text if name == self.heading else f"{text} ({self.unit})"


def column(
    heading: str, unit: str = "", *, key: str = "", is_brief: bool = False, **options: Any
) -> Any:
    """A field of a record that is a column of its tables; see `Column`."""
    shown = Column(heading, unit, key, is_brief, next(_numbers))
    return dataclasses.field(metadata={"column": shown}, **options)


class _Derived(property):
    column: Column


def derived(heading: str, unit: str = "", *, is_brief: bool = False) -> Any:
    """A decorator for a property of a record that is a column of its tables; see `Column`."""
    shown = Column(heading, unit, "", is_brief, next(_numbers))

    def of(function: Callable[[Any], Any]) -> Any:
        made = _Derived(function)
        made.column = shown._replace(type=function.__annotations__["return"])
        return made

    return of


@functools.cache
def fields_of(kind: type) -> dict[str, Column]:
    """The columns of a class of records, by the names of its fields and properties."""
    found = {
        field.name: field.metadata["column"]._replace(type=field.type)
        for field in dataclasses.fields(kind)
        if "column" in field.metadata
    }
    for each in reversed(kind.__mro__):
        found |= {name: x.column for name, x in vars(each).items() if isinstance(x, _Derived)}
    return dict(sorted(found.items(), key=lambda item: item[1].number))


class AbstractTable(abc.ABC):
    """What has a table."""

    __slots__ = ()

    @abc.abstractmethod
    def to_dict(self) -> Columns:
        """The table as columns."""

    def to_pandas(self) -> Any:
        """`to_dict` as a `pandas.DataFrame`. Raises ImportError without pandas."""
        return frame_of(self.to_dict())

    def write_table(self, path: str | os.PathLike[str]) -> None:
        """Write `to_dict` to a file, see `AtomsRelaxation.write_table`."""
        write_rows(path, self.to_dict())


def named(atoms: Sequence[Atoms]) -> Columns:
    """The formulas of structures, and their numbers of atoms."""
    return {
        "formula": [a.get_chemical_formula() for a in atoms],
        "atoms": [len(a) for a in atoms],
    }


def energies_of(atoms: Sequence[Atoms], energies: np.ndarray) -> Columns:
    """Energies in eV, of structures and per atom."""
    values = energies.tolist()
    per_atom = [energy / len(a) for energy, a in zip(values, atoms, strict=True)]
    return {"energy_eV": values, "energy_eV_per_atom": per_atom}


def volumes(atoms: Sequence[Atoms]) -> list[float]:
    """The volumes in Å³; NaN without three periodic directions."""
    cells, pbc = cells_of(atoms)
    return volume_of(cells, pbc).tolist()


def volume_of(cell: np.ndarray, pbc: np.ndarray) -> Any:
    """The volume in Å³, or those of several cells; NaN without three periodic directions."""
    with np.errstate(invalid="ignore"):  # a cell may be unusable
        return np.where(pbc.all(axis=-1), np.abs(np.linalg.det(cell)), np.nan)[()]


def columns_of(records: Sequence[Any], kind: type) -> Columns:
    """The table of records of a class."""
    return {
        each.heading: [_plain(getattr(record, name)) for record in records]
        for name, each in fields_of(kind).items()
    }


def brief_of(records: Sequence[Any], kind: type) -> Columns:
    """The part of the table that summaries show, without texts that are all empty."""
    columns, shown = columns_of(records, kind), [x for x in fields_of(kind).values() if x.is_brief]
    found = {each.heading: columns[each.heading] for each in shown}
    return {heading: values for heading, values in found.items() if any(x != "" for x in values)}


def further_columns(
    names: str | Sequence[str], of_each: Sequence[Mapping[Any, Any]], headings: Collection[str]
) -> Columns:
    """Columns of values by name that only some structures may have, such as those of `info`.

    Args:
        of_each: the values of each structure. A column holds numbers, switches or texts; a
            structure without the name has NaN, None or "".
        headings: those of the table, which no name may be.

    Raises:
        ValueError: a name is a heading, or no structure has it.
    """
    found: Columns = {}
    for name in [names] if isinstance(names, str) else names:
        if name in headings:
            raise ValueError(f"info {name!r} is already a column of the table: rename it in atoms")
        if of_each and not any(name in values for values in of_each):
            known = sorted({str(key) for values in of_each for key in values})
            raise ValueError(
                f"no structure has {name!r} in its info{hint(name, known)}: {', '.join(known)}"
            )
        has = [_bare(values[name]) if name in values else None for values in of_each]
        kinds = {type(x) for x in has} - {type(None)}
        if kinds <= {int, float}:
            found[name] = [math.nan if x is None else x for x in has]
        else:
            found[name] = has if kinds == {bool} else ["" if x is None else str(x) for x in has]
    return found


def _bare(value: Any) -> Any:
    """A number or a text of Python; the text of what is neither, and of too large an integer."""
    value = _of_python(value)
    is_plain = isinstance(value, bool | float | str)
    return value if is_plain or (isinstance(value, int) and abs(value) < 2**63) else str(value)


def _of_python(value: Any) -> Any:
    """The value with numbers and lists of Python in place of NumPy's, whose texts name types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _of_python(x) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_of_python, value))
    return value


def frame_of(columns: Columns) -> Any:
    """The table as a `pandas.DataFrame`; raises ImportError without pandas."""
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("to_pandas needs pandas: run pip install pandas") from error
    return pandas.DataFrame(columns)


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    """The table as one mapping per row."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def text_of(columns: Columns) -> str:
    """Aligned text: numbers to the right, six digits of a float."""
    cells = [[name, *map(_shown, values)] for name, values in columns.items()]
    widths = [max(map(len, column)) for column in cells]
    are_numbers = [all(_is_number(x) for x in values) for values in columns.values()]
    lines = []
    for row in zip(*cells, strict=True):
        aligned = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, are_numbers, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def more_than(shown: int, n: int) -> list[str]:
    """What is said of rows after those that are shown, if there are any."""
    return [f"... and {n - shown} more"] if n > shown else []


def html_of(columns: Columns) -> str:
    """The table as HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_shown(x))}</td>" for x in values) + "</tr>"
        for values in zip(*columns.values(), strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def write_rows(path: str | os.PathLike[str], columns: Columns) -> None:
    """Write a table in the format of the ending; a complete file replaces an old one."""
    write = writer_of(path)
    with replacing(path) as partial:
        write(partial, columns)


def writer_of(path: str | os.PathLike[str]) -> Callable[[Path, Columns], None]:
    """The writer of tables for a file's ending; CSV for a name without one.

    Raises:
        ValueError: no writer has this ending.
        ImportError: the writer needs a missing package.
    """
    ending = Path(path).suffix.lower()
    if ending not in _WRITERS:
        known = ", ".join(filter(None, _WRITERS))
        raise ValueError(f"{path}: a table is a file in {known}, not in {ending}")
    if ending == ".parquet":
        try:
            import pyarrow  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from error
    return _WRITERS[ending]


TEXT: Any = {"encoding": "utf-8", "errors": "backslashreplace"}
"""How texts are written; names of files may hold halves of characters, which UTF-8 lacks."""


def csv_of(columns: Columns, line_end: str = "\n") -> str:
    """CSV, with enough digits to distinguish all floats."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(columns)
    for values in zip(*columns.values(), strict=True):
        writer.writerow([repr(x) if isinstance(x, float) else x for x in values])
    return text.getvalue()


def _write_csv(path: Path, columns: Columns) -> None:
    path.write_text(csv_of(columns, "\r\n"), **TEXT, newline="")


def _write_json(path: Path, columns: Columns) -> None:
    rows = [_finite(row) for row in rows_of(columns)]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", **TEXT)


def _write_jsonl(path: Path, columns: Columns) -> None:
    with path.open("w", **TEXT) as file:
        for row in rows_of(columns):
            file.write(json.dumps(_finite(row), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    typed = {name: _of_one_type(values) for name, values in columns.items()}
    parquet.write_table(pyarrow.table(typed), path)


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values, with integers beside floats as floats, and texts that UTF-8 has."""
    if any(isinstance(x, float) for x in values):
        return [float(x) if type(x) is int else x for x in values]
    return [x.encode(**TEXT).decode(TEXT["encoding"]) if isinstance(x, str) else x for x in values]


_WRITERS: dict[str, Callable[[Path, Columns], None]] = {
    ".csv": _write_csv,
    "": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """The row with null for NaN and infinity, which JSON lacks."""
    return {
        name: None if isinstance(x, float) and not math.isfinite(x) else x
        for name, x in row.items()
    }


def _plain(value: Any) -> Any:
    """The value with a text in place of a status, and a number of Python in place of NumPy's."""
    return str(value) if isinstance(value, enum.Enum) else _of_python(value)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
