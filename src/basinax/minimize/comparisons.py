"""Comparisons of values that must agree, and a table of the outcomes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Finding(NamedTuple):
    """The outcome of one comparison, of `verify` or of `basinax.atoms.probe`."""

    name: str
    n_wrong: int
    n_compared: int
    largest: float
    """The largest difference: for bits in the unit of the numbers (eV, eV/Å, eV/Å³ for atoms), for
    derivatives relative to the largest component, for energies in eV per atom."""
    allowed: float
    """0 for comparisons of bits."""

    @property
    def is_kept(self) -> bool:
        """Whether no value differs by more than allowed."""
        return self.n_wrong == 0


def finding_of(name: str, differences: Sequence[float], allowed: float = 0.0) -> Finding:
    """The outcome, from the difference of each compared value; NaN counts as infinite."""
    array = np.nan_to_num(differences, nan=np.inf, posinf=np.inf)
    wrong = array > allowed
    return Finding(name, int(wrong.sum()), len(array), float(array.max(initial=0.0)), allowed)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference; 0 if all bits agree, inf if only one of two values is a number."""
    if np.array_equal(x, y, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max())
    return np.inf if np.isnan(largest) else max(largest, float(np.finfo(float).tiny))


def table_of(findings: Sequence[Finding]) -> str:
    """One line per comparison: how many of how many differ, by how much, and the limit."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [f"{'compared':{width}}  differ    of  largest  allowed  verdict"]
    for x in findings:
        allowed = f"{x.allowed:.1g}" if x.allowed else "no bit"
        verdict = "as it should" if x.is_kept else "differs"
        counts = f"{x.n_wrong:6}  {x.n_compared:4}  {x.largest:.1e}"
        lines.append(f"{x.name:{width}}  {counts}  {allowed:>7}  {verdict}")
    return "\n".join(lines)
