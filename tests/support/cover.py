"""The cells of a product of tables: few that are tested every day, and the others.

    @pytest.mark.parametrize(*cover("case, layout, dtype", KINDS, LAYOUTS, DTYPES))

runs as many cells as it takes for each value of a table to meet each value of each other one. With
`strength=1` each value is met in one cell at least, which is enough where tables do not depend on
each other. The cells left have the mark `exhaustive`: `pytest -m exhaustive` runs them.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

Table = Mapping[str, Any] | Iterable[Any]


_ROW = type(pytest.param())


def cover(names: str, *tables: Table, strength: int = 2) -> tuple[str, list[Any]]:
    """Names and cells, for `pytest.mark.parametrize`.

    Args:
        names: of the arguments, one a table.
        tables: values, or names and values.
        strength: the number of tables whose values meet in every combination.
    """
    columns = [list(_named(table)) for table in tables]
    chosen = set(chosen_cells([len(column) for column in columns], strength))
    cells = []
    for cell in itertools.product(*(range(len(column)) for column in columns)):
        entries = [column[at] for column, at in zip(columns, cell, strict=True)]
        marks = () if cell in chosen else (pytest.mark.exhaustive,)
        values = [value for _, value in entries]
        cells.append(pytest.param(*values, id="-".join(name for name, _ in entries), marks=marks))
    return names, cells


def every_day(cases: Iterable[Any], is_chosen) -> list[Any]:
    """All cases of one table, of which those that are not chosen have the mark `exhaustive`."""
    return [
        pytest.param(value, id=name, marks=() if is_chosen(value) else (pytest.mark.exhaustive,))
        for name, value in _named(cases)
    ]


def named_daily(cases: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """All cases of a table, of which those of these names run every day."""
    chosen = set(names)
    if unknown := chosen - set(cases):
        raise ValueError(f"no case has the name {', '.join(sorted(unknown))}")
    return [
        pytest.param(value, id=name, marks=() if name in chosen else (pytest.mark.exhaustive,))
        for name, value in cases.items()
    ]


def one_in(count: int, cases: Iterable[Any], first: int = 0) -> list[Any]:
    """One in so many cases every day, from the first; those that have a mark keep it.

    Properties of what all optimizers share take turns: each shows in some optimizers, and each
    optimizer shows some of them.
    """
    rows, turn = [], itertools.cycle(range(count))
    for case in cases:
        row = case if isinstance(case, _ROW) else pytest.param(case, id=str(case))
        is_chosen = not row.marks and next(turn) == first
        rows.append(row if is_chosen or row.marks else exhaustive(*row.values, id=row.id))
    return rows


def exhaustive(*values: Any, id: str | None = None) -> Any:
    """One row of a table that is not tested every day."""
    return pytest.param(*values, marks=pytest.mark.exhaustive, id=id)


def chosen_cells(lengths: list[int], strength: int) -> list[tuple[int, ...]]:
    """Cells in which all combinations of so many columns' rows are met, each next one the best.

    Of equally good ones it is the one whose rows were chosen least often, so that rows take turns.
    """
    cells = list(itertools.product(*map(range, lengths)))
    groups = list(itertools.combinations(range(len(lengths)), min(strength, len(lengths))))
    met_by = {cell: {(g, *(cell[c] for c in g)) for g in groups} for cell in cells}
    left, chosen, uses = set().union(*met_by.values()), [], Counter()
    while left:
        best = max(
            cells, key=lambda x: (len(met_by[x] & left), -sum(uses[e] for e in enumerate(x)))
        )
        chosen.append(best)
        left -= met_by[best]
        uses.update(enumerate(best))
    return chosen


def _named(table: Table) -> Iterable[tuple[str, Any]]:
    if isinstance(table, Mapping):
        return table.items()
    return [(getattr(value, "__name__", str(value)), value) for value in table]
