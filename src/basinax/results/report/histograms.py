"""Readable histograms: whole numbers in bins of whole numbers, and no outlier that squeezes all
other values into one bin."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

BINS = 40

FAR = 10.0
"""Values beyond this many widths of the central 98 % are left out."""


LARGEST = 1e100
"""Larger values are outliers in any plot, and would overflow."""


class Histogram(NamedTuple):
    """The number of values in each bin."""

    edges: Float[np.ndarray, "bins+1"]
    counts: Float[np.ndarray, "bins"]
    n_outside: int
    """The number of finite values too far out to be drawn."""


def histogram(values: Float[np.ndarray, "values"]) -> Histogram | None:
    """The histogram of the finite values; None if there are none to draw."""
    finite = values[np.isfinite(values)]
    drawn = finite[np.abs(finite) < LARGEST]
    if not len(drawn):
        return None
    low, high = _limits(drawn)
    is_whole = bool((drawn == np.round(drawn)).all()) and high - low < 2**52
    edges = _whole_edges(low, high) if is_whole else _edges(low, high)
    counts, _ = np.histogram(drawn, edges)
    return Histogram(edges, counts.astype(float), len(finite) - int(counts.sum()))


def _limits(drawn: np.ndarray) -> tuple[float, float]:
    first, last = np.percentile(drawn, [1.0, 99.0])
    far = FAR * (last - first) if last > first else np.inf
    near = drawn[(drawn >= first - far) & (drawn <= last + far)]
    return float(near.min()), float(near.max())


def _edges(low: float, high: float) -> np.ndarray:
    """The edges of bins; one bin if all values are equal."""
    width = max(abs(low), abs(high), 1.0) * 1e-6
    if high - low < width:
        return np.array([low - width, high + width])
    return np.linspace(low, high, BINS + 1)


def _whole_edges(low: float, high: float) -> np.ndarray:
    width = max(1, int(np.ceil((high - low + 1) / BINS)))
    count = int((high - low) // width) + 1
    return low - 0.5 + width * np.arange(count + 1)
