"""Sums in the documented order, in NumPy, for exact comparison.

The components of each row in index order; then blocks of eight consecutive rows from the system's
own first, each added by halves (4, 2, 1); then blocks of eight of those sums, until one is left.
XLA on CPU reads and writes subnormal numbers as zeros of their sign, and so does this.
"""

import numpy as np


def flushed(x: np.ndarray) -> np.ndarray:
    """Subnormal numbers become zero."""
    is_tiny = np.abs(x) < np.finfo(x.dtype).tiny
    return np.where(is_tiny, np.copysign(np.zeros_like(x), x), x)


def add(x, y):
    with np.errstate(all="ignore"):
        return flushed(flushed(x) + flushed(y))


def times(x, y):
    """The product; of the largest number, which stands for what does not fit, inf."""
    with np.errstate(all="ignore"):
        result = flushed(flushed(x) * flushed(y))
    return np.where(result == np.finfo(result.dtype).max, np.asarray(np.inf, result.dtype), result)


def tree_sum(rows: np.ndarray) -> np.ndarray:
    """The sum over the rows and components of one system."""
    if len(rows) == 0:
        return np.zeros((), rows.dtype)
    sums = np.array([_components(row) for row in rows])
    while len(sums) > 1:
        sums = np.array([_halves(block) for block in _blocks(sums)])
    return sums[0]


def _blocks(rows):
    return [rows[start : start + 8] for start in range(0, len(rows), 8)]


def _halves(x):
    width = 1 << max(len(x) - 1, 0).bit_length()
    width = max(width, 8)
    absent = np.full((width - len(x), *x.shape[1:]), -0.0, x.dtype)
    x = np.concatenate([x, absent])
    while len(x) > 1:
        x = add(x[: len(x) // 2], x[len(x) // 2 :])
    return x[0]


def _components(x):
    x = x.reshape(-1)
    if x.size > 8:
        return _halves(x)
    total = x[0] if x.size else np.asarray(-0.0, x.dtype)
    for entry in x[1:]:
        total = add(total, entry)
    return total
