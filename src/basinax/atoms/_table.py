"""Tables as columns: aligned text, HTML, and files by their ending."""

import csv
import html
import io
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from basinax._text.files import replacing

Columns = dict[str, list[Any]]


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


def volumes(atoms: Sequence[Atoms]) -> list[float | None]:
    """The volumes in Å³; None without three periodic directions."""
    return [volume_of(a) for a in atoms]


def volume_of(atoms: Atoms) -> float | None:
    """The volume in Å³; None without three periodic directions."""
    return float(atoms.cell.volume) if atoms.pbc.all() else None


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


def csv_of(columns: Columns, line_end: str = "\n") -> str:
    """CSV, with enough digits to distinguish all floats."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=line_end)
    writer.writerow(columns)
    for values in zip(*columns.values(), strict=True):
        writer.writerow([repr(x) if isinstance(x, float) else x for x in values])
    return text.getvalue()


def _write_csv(path: Path, columns: Columns) -> None:
    path.write_text(csv_of(columns, "\r\n"), encoding="utf-8", newline="")


def _write_json(path: Path, columns: Columns) -> None:
    rows = [_finite(row) for row in rows_of(columns)]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_jsonl(path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows_of(columns):
            file.write(json.dumps(_finite(row), ensure_ascii=False) + "\n")


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow  # pyright: ignore[reportMissingImports]
    from pyarrow import parquet  # pyright: ignore[reportMissingImports]

    parquet.write_table(pyarrow.table(columns), path)


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


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
