"""The columns of a report: numbers of structures, NaN for missing values."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ase.formula import Formula
from jaxtyping import Float

from basinax.minimize.status import Status
from basinax.results.table import Column, fields_of

Row = Mapping[str, Any]

Values = Float[np.ndarray, "structures"]


@dataclasses.dataclass(frozen=True)
class Structures:
    """The rows of a report, as columns."""

    noun: str
    """What a row is: a structure or a path."""
    columns: dict[str, Column]
    """The columns of tables, by heading."""
    numbers: list[int]
    """Numbers of the structures in the input."""
    texts: dict[str, list[str]]
    values: dict[str, Values]
    """Values by name, NaN if unknown."""

    def __len__(self) -> int:
        return len(self.numbers)

    def known(self, name: str) -> Values:
        """Values by name, NaN if there is no such column."""
        return self.values.get(name, np.full(len(self), np.nan))

    def has(self, name: str) -> bool:
        """Whether any structure has a finite value."""
        return bool(np.isfinite(self.known(name)).any())

    @property
    def converged(self) -> np.ndarray:
        return np.array([s == str(Status.CONVERGED) for s in self.texts["status"]], bool)

    @property
    def energies_per_atom(self) -> Values:
        return self._per_atom(self.known("energy_eV"))

    @property
    def compositions(self) -> list[str]:
        """The formulas, reduced to the smallest whole numbers."""
        of = {formula: _reduced(formula) for formula in set(self.texts["formula"])}
        return [of[formula] for formula in self.texts["formula"]]

    @property
    def energy_changes(self) -> Values:
        """Energy changes in eV per atom."""
        with np.errstate(invalid="ignore"):  # of infinite energies
            changes = self.known("energy_eV") - self.known("initial_energy_eV")
        return self._per_atom(changes)

    @property
    def volume_changes(self) -> Values:
        """Volume changes in percent of the first volume."""
        first = self.known("initial_volume_A3")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return 100 * (self.known("volume_A3") / first - 1)

    def _per_atom(self, energies: Values) -> Values:
        with np.errstate(divide="ignore", invalid="ignore"):
            return energies / self.values["atoms"]


def _reduced(formula: str) -> str:
    try:
        return str(Formula(formula).reduce()[0])
    except ValueError:  # the text of a row may be no formula
        return formula


def structures_of(rows: Iterable[Row], kind: Any) -> Structures:
    """The columns of the rows, which are read once, in order.

    Args:
        kind: the class of records that have these columns; others hold numbers, or texts.
    """
    columns = {column.heading: column for column in fields_of(kind).values()}
    rows = list(rows)
    further = dict.fromkeys(x for row in rows for x in row if x not in (*columns, "number"))
    for name in further:
        kinds = {type(row[name]) for row in rows if row.get(name) is not None}
        of_numbers = bool(kinds) and kinds <= {int, float}
        columns[name] = Column(name, "", "", False, len(columns), float if of_numbers else str)
    numbers: list[int] = []
    texts = {name: list[str]() for name, x in columns.items() if x.type in (str, Status)}
    values = {name: list[float]() for name in columns if name not in texts}
    for k, row in enumerate(rows):
        numbers.append(int(row.get("number", k)))
        for name, column in texts.items():
            text = row.get(name)
            column.append("" if text is None else str(text))
        for name, column in values.items():
            value = row.get(name)
            column.append(math.nan if value is None else float(value))
    arrays = {name: np.array(column, float) for name, column in values.items()}
    return Structures(kind.noun, columns, numbers, texts, arrays)
