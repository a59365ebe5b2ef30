"""Curves of convergence: quantiles by evaluation, and the curves of some selectable structures.

Of all curves together, only the values at the drawn evaluations are stored.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from basinax.results.history import History

QUANTILES = (5.0, 25.0, 50.0, 75.0, 95.0)
"""The quantiles in percent."""

DRAWN = 150
"""The number of points of a line, which suffices for the width of a plot."""

POINTS = 150_000
"""The number of points of all selectable structures together; each has its share, up to `DRAWN`."""

SMALLEST = 1e-6
"""The smallest drawn value, in eV per atom or eV/Å, since axes are logarithmic."""


class Curve(NamedTuple):
    """One structure at all or some of its evaluations."""

    energies: Float[np.ndarray, "points"]
    """Energies in eV."""
    fmax: Float[np.ndarray, "points"]
    """The largest forces in eV/Å."""
    evaluations: Int[np.ndarray, "points"]
    """The number of evaluations up to each point, including its own."""


class Drawn(NamedTuple):
    """Lines of a plot, one entry per point."""

    evaluations: Float[np.ndarray, "points"]
    heights: Float[np.ndarray, "... points"]
    """Energy above the lowest of a structure, in eV per atom."""
    fmax: Float[np.ndarray, "... points"]


class Convergence(NamedTuple):
    """Drawings of curves."""

    quantiles: Drawn
    """One line for each of `QUANTILES`; ended structures keep their last values."""
    picked: dict[int, Drawn]
    """The curves of structures by number."""
    n_curves: int


def convergence_of(
    curves: Mapping[int, Curve | History], sizes: Mapping[int, float], wanted: Sequence[int]
) -> Convergence | None:
    """The drawings; None if no curve has a point.

    Args:
        sizes: the number of atoms of each structure, by number.
        wanted: the numbers of the selectable structures.
    """
    counted = {k: curve.evaluations for k, curve in curves.items() if len(curve.energies)}
    ends = {k: (int(counts[0]), int(counts[-1])) for k, counts in counted.items()}
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
    most = min(DRAWN, POINTS // max(len(wanted), 1))
    picked = {
        number: _thinned(_lines(curves[number], sizes.get(number, 1.0)), most)
        for number in wanted
        if number in ends
    }
    return Convergence(quantiles, picked, len(ends))


def _lines(curve: Curve | History, size: float) -> Drawn:
    energies, fmax = np.asarray(curve.energies, float), np.asarray(curve.fmax, float)
    is_finite = np.isfinite(energies)
    lowest = energies[is_finite].min() if is_finite.any() else np.nan
    return Drawn(
        np.asarray(curve.evaluations, float),
        _above_smallest((energies - lowest) / max(size, 1.0)),
        _above_smallest(fmax),
    )


def _above_smallest(values: np.ndarray) -> np.ndarray:
    """Values bounded below by `SMALLEST`; NaN if not finite."""
    return np.where(np.isfinite(values), np.maximum(values, SMALLEST), np.nan).astype(np.float32)


def _quantiles(values: np.ndarray) -> np.ndarray:
    """One line per quantile of the finite values at each point; NaN without any."""
    with warnings.catch_warnings(action="ignore"):  # NumPy warns at points without finite values
        return np.nanpercentile(values.astype(float), QUANTILES, axis=0)


def _thinned(lines: Drawn, most: int) -> Drawn:
    kept = _spread(0, len(lines.evaluations) - 1, most)
    return Drawn(*(values[kept] for values in lines))


def _spread(first: int, last: int, most: int = DRAWN) -> np.ndarray:
    """Whole numbers from the first to the last, evenly spaced, at most so many."""
    return np.unique(np.linspace(first, last, min(last - first + 1, most)).round().astype(int))
