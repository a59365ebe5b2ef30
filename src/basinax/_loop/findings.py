"""Comparisons of values that must be the same, and their outcomes as a table of text."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Finding(NamedTuple):
    """The outcome of one comparison, of `verify` or of `basinax.atoms.probe`."""

    name: str
    n_wrong: int
    n_compared: int
    largest: float
    """The largest difference: of bits in the units of the numbers (eV, eV/Å, eV/Å³ for atoms); of
    derivatives as a part of the largest component; of energies in eV an atom."""
    allowed: float
    """0 where bits are compared."""

    @property
    def is_kept(self) -> bool:
        return self.n_wrong == 0


def finding_of(name: str, differences: Sequence[float], allowed: float = 0.0) -> Finding:
    """The outcome, given the difference of each that is compared."""
    array = np.array(differences)
    wrong = ~(array <= allowed)
    return Finding(name, int(wrong.sum()), len(array), float(array.max(initial=0.0)), allowed)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference: 0 where all bits are the same, inf where only one is a number."""
    if np.array_equal(x, y, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max())
    return np.inf if np.isnan(largest) else max(largest, float(np.finfo(float).tiny))


def table_of(findings: Sequence[Finding]) -> str:
    """A line for each comparison: its name, how many differ of how many, and how far."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [f"{'compared':{width}}  differ    of  largest"]
    for name, n_wrong, n_compared, largest, _ in findings:
        lines.append(f"{name:{width}}  {n_wrong:6}  {n_compared:4}  {largest:.1e}")
    return "\n".join(lines)
