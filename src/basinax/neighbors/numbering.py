"""Numbers for neighbours, shifts and entries of lists, without sorting if that is faster."""

import math

import numpy as np


def reversed_pairs(rows: np.ndarray, neighbors: np.ndarray, n_shifts: int) -> np.ndarray:
    """The position of each pair seen from its other end, or its own if that end is missing.

    An end can be missing only if rounding puts one of two equal distances outside the list's
    radius, which lies beyond the cutoff.
    """
    width = int(neighbors.max(initial=0)) + n_shifts
    # The table of shifts is symmetric: the opposite of shift k is shift k from the end.
    opposite = n_shifts - 1 - neighbors % n_shifts
    keys, keys_back = (
        rows * width + neighbors,
        neighbors // n_shifts * width + rows * n_shifts + opposite,
    )
    at = np.minimum(np.searchsorted(keys, keys_back), max(len(keys) - 1, 0))
    return np.where(keys[at] == keys_back, at, np.arange(len(keys)))


def coded(shifts: np.ndarray, *, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each shift as an index into a table of shifts in lexicographic order, and the table.

    Args:
        symmetric: include the opposite of each shift.
    """
    if not len(shifts):
        return np.zeros(0, np.int64), np.zeros((1, 3), np.int64)
    columns = [np.ascontiguousarray(column, np.int32) for column in shifts.T]
    low = [int(column.min()) for column in columns]
    high = [int(column.max()) for column in columns]
    if symmetric:
        high = [max(most, -least) for least, most in zip(low, high, strict=True)]
        low = [-most for most in high]
    width = [most - least + 1 for least, most in zip(low, high, strict=True)]
    n_shifts = math.prod(width)
    if n_shifts > _DENSE_SHIFTS:
        known = np.concatenate([shifts, -shifts]) if symmetric else shifts
        every, code = np.unique(known, axis=0, return_inverse=True)
        return code.reshape(-1)[: len(shifts)], every
    # ((x − x₀) n_y + y − y₀) n_z + z − z₀, in place: temporary arrays cost more than sums.
    code = columns[0] - low[0]
    for column, least, wide in zip(columns[1:], low[1:], width[1:], strict=True):
        code *= wide
        code += column
        code -= least
    return code, np.stack(np.unravel_index(np.arange(n_shifts), width), 1) + low


_DENSE_SHIFTS = 4096
"""Up to this number of shifts, the table holds all shifts within the bounds of the given ones."""


def rank(sorted_numbers: np.ndarray) -> np.ndarray:
    """For each of the sorted numbers, the count of equal numbers before it."""
    counts = np.bincount(sorted_numbers)
    firsts = (np.cumsum(counts) - counts).astype(np.int32)
    return np.arange(len(sorted_numbers), dtype=np.int32) - np.repeat(firsts, counts)


_DENSE = 1 << 23
"""Up to this bound, a table of all numbers finds distinct ones faster than a sort."""


def distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values among non-negative numbers, ascending, and each number's index."""
    bound = int(numbers.max(initial=0)) + 1
    if bound > _DENSE:
        return np.unique(numbers, return_inverse=True)
    table = np.zeros(bound, np.int32)
    table[numbers] = 1
    occurring = np.flatnonzero(table)
    table[occurring] = np.arange(len(occurring))
    return occurring, table.take(numbers)
