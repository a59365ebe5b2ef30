"""Numbers for neighbours, shifts and entries of lists, found without sorting where that pays."""

import math

import numpy as np


def reversed_pairs(rows: np.ndarray, neighbors: np.ndarray, n_shifts: int) -> np.ndarray:
    """Where each pair stands seen from its other end; a pair that is not there, where it stands.

    The list can lack one end of a pair only where the two differ in whether rounding puts them
    within its radius, which reaches beyond the cutoff.
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
    """Each shift as an entry of a table of shifts in lexicographic order, and that table.

    Args:
        symmetric: have the opposite of each shift in the table, too.
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
"""Up to this number, the table holds every shift within the bounds of those that occur."""


def rank(sorted_numbers: np.ndarray) -> np.ndarray:
    """The how many-th of its equals each of the sorted numbers is, from 0."""
    counts = np.bincount(sorted_numbers)
    firsts = (np.cumsum(counts) - counts).astype(np.int32)
    return np.arange(len(sorted_numbers), dtype=np.int32) - np.repeat(firsts, counts)


_DENSE = 1 << 23
"""Up to this bound, finding distinct numbers in a table of all is faster than sorting them."""


def distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of numbers from 0, ascending, and which of them each number is."""
    bound = int(numbers.max(initial=0)) + 1
    if bound > _DENSE:
        return np.unique(numbers, return_inverse=True)
    table = np.zeros(bound, np.int32)
    table[numbers] = 1
    occurring = np.flatnonzero(table)
    table[occurring] = np.arange(len(occurring))
    return occurring, table.take(numbers)
