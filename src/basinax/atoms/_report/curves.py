"""How structures converged: quantiles by evaluation, and the curves of some that can be picked.

Nothing is kept of all curves at once but their values at the evaluations that are drawn.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

QUANTILES = (5.0, 25.0, 50.0, 75.0, 95.0)
"""In percent."""

DRAWN = 150
"""Points of a line: the width of a plot shows no more."""

PICKED = 300
"""Structures that can be picked."""

SMALLEST = 1e-6
"""Smaller values are drawn there, since axes are logarithmic: eV per atom, or eV/Å."""


class Curve(NamedTuple):
    """One structure at each of its evaluations, or at some of them."""

    energies: Float[np.ndarray, "points"]
    """In eV."""
    fmax: Float[np.ndarray, "points"]
    """In eV/Å."""
    evaluations: Int[np.ndarray, "points"] | None = None
    """How many there had been at each point, that of the point among them; 1, 2, 3, ... if None."""


class Drawn(NamedTuple):
    """Lines of a plot: a point an entry."""

    evaluations: Float[np.ndarray, "points"]
    heights: Float[np.ndarray, "... points"]
    """Energy above the lowest of a structure, in eV per atom."""
    fmax: Float[np.ndarray, "... points"]


class Convergence(NamedTuple):
    """Drawings of curves."""

    quantiles: Drawn
    """One line for each of `QUANTILES`; who has ended stays at its last values."""
    picked: dict[int, Drawn]
    """The curves of structures by their numbers."""
    n_curves: int


def convergence_of(
    curves: Mapping[int, Curve], sizes: Mapping[int, float], wanted: Sequence[int]
) -> Convergence | None:
    """The drawings; None where no curve has a point.

    Args:
        sizes: how many atoms structures have, by their numbers.
        wanted: the numbers of structures that can be picked.
    """
    ends = {number: _ends(curve) for number, curve in curves.items() if len(curve.energies)}
    if not ends:
        return None
    grid = _spread(min(first for first, _ in ends.values()), max(last for _, last in ends.values()))
    heights = np.empty((len(ends), len(grid)), np.float32)
    fmax = np.empty_like(heights)
    for k, number in enumerate(ends):
        lines = _lines(curves[number], sizes.get(number, 1.0))
        at = np.searchsorted(lines.evaluations, grid, side="right") - 1
        heights[k], fmax[k] = lines.heights[at], lines.fmax[at]
        heights[k, at < 0] = fmax[k, at < 0] = np.nan
    quantiles = Drawn(grid.astype(float), _quantiles(heights), _quantiles(fmax))
    picked = {
        number: _thinned(_lines(curves[number], sizes.get(number, 1.0)))
        for number in wanted
        if number in ends
    }
    return Convergence(quantiles, picked, len(ends))


def _ends(curve: Curve) -> tuple[int, int]:
    """The first and the last evaluation of a curve."""
    if curve.evaluations is None:
        return 1, len(curve.energies)
    return int(curve.evaluations[0]), int(curve.evaluations[-1])


def _lines(curve: Curve, size: float) -> Drawn:
    energies, fmax = np.asarray(curve.energies, float), np.asarray(curve.fmax, float)
    evaluations = curve.evaluations
    if evaluations is None:
        evaluations = np.arange(1, len(energies) + 1)
    is_finite = np.isfinite(energies)
    lowest = energies[is_finite].min() if is_finite.any() else np.nan
    return Drawn(
        np.asarray(evaluations, float),
        _above_smallest((energies - lowest) / max(size, 1.0)),
        _above_smallest(fmax),
    )


def _above_smallest(values: np.ndarray) -> np.ndarray:
    """NaN where not finite."""
    return np.where(np.isfinite(values), np.maximum(values, SMALLEST), np.nan).astype(np.float32)


def _quantiles(values: np.ndarray) -> np.ndarray:
    """One line a quantile, of the finite values at each point; NaN without any."""
    with warnings.catch_warnings(action="ignore"):  # NumPy warns at points without finite values
        return np.nanpercentile(values.astype(float), QUANTILES, axis=0)


def _thinned(lines: Drawn) -> Drawn:
    kept = _spread(0, len(lines.evaluations) - 1)
    return Drawn(*(values[kept] for values in lines))


def _spread(first: int, last: int) -> np.ndarray:
    """Whole numbers from the first to the last, evenly, no more than are drawn."""
    return np.unique(np.linspace(first, last, min(last - first + 1, DRAWN)).round().astype(int))
