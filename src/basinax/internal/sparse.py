"""Derivatives of coordinates, each of which depends on few degrees of freedom.

The list of coordinates fixes the pattern of entries. Sums run over coordinates in list order on one
core, so the bits are those of the structure alone, on any processor.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from basinax.internal.factors import TILE, Factors, Profile


class Pattern:
    """The degrees of freedom on which the coordinates depend.

    Args:
        groups: for each group of coordinates, the degrees of freedom of each coordinate.
        n_dofs: the number of degrees of freedom.
    """

    def __init__(self, groups: Sequence[Int[np.ndarray, "q entries"]], n_dofs: int):
        self.groups, self.n_dofs = groups, n_dofs
        widths = np.concatenate([np.full(len(g), g.shape[1]) for g in groups])
        self.shape = len(widths), n_dofs
        self.begins = np.concatenate([[0], np.cumsum(widths)])
        self.rows = np.repeat(np.arange(len(widths)), widths)
        self.columns = np.concatenate([g.ravel() for g in groups])

    @functools.cached_property
    def profile(self) -> Profile:
        """The positions of products of two entries of a coordinate in the matrix BᵀKB."""
        first, second, begin = [], [], 0
        for group in self.groups:
            n, width = group.shape
            entries = np.arange(begin, begin + n * width).reshape(n, width)
            first.append(np.repeat(entries, width, axis=1).ravel())
            second.append(np.tile(entries, (1, width)).ravel())
            begin += n * width
        one, other = np.concatenate(first), np.concatenate(second)
        order = np.arange(self.n_dofs)
        if self.n_dofs > TILE:
            order = _near_the_diagonal(self.columns[one], self.columns[other], self.n_dofs)
        return Profile(self.columns, one, other, order)


class Jacobian:
    """∂q/∂x.

    Args:
        pattern: the positions of the entries.
        entries: the entries of each group of coordinates; entries at one position add up.
    """

    def __init__(self, pattern: Pattern, entries: Sequence[Float[np.ndarray, "q entries"]]):
        self.pattern = pattern
        self.entries = np.concatenate([e.ravel() for e in entries])

    def along(self, step: Float[np.ndarray, "dofs"]) -> Float[np.ndarray, "q"]:
        """B s."""
        pattern = self.pattern
        return np.bincount(pattern.rows, self.entries * step[pattern.columns], pattern.shape[0])

    def back(self, force: Float[np.ndarray, "q"]) -> Float[np.ndarray, "dofs"]:
        """Bᵀ f."""
        pattern = self.pattern
        return np.bincount(pattern.columns, self.entries * force[pattern.rows], pattern.shape[1])

    def all_back(self, forces: Float[np.ndarray, "rows q"]) -> Float[np.ndarray, "rows dofs"]:
        """Bᵀ times each row."""
        return (self.matrix.T @ forces.T).T

    @functools.cached_property
    def matrix(self) -> csr_array:
        pattern = self.pattern
        return csr_array((self.entries, pattern.columns, pattern.begins), shape=pattern.shape)


class HessianModel:
    """BᵀKB."""

    def __init__(self, jacobian: Jacobian, stiffness: Float[np.ndarray, "q"]):
        pattern, entries = jacobian.pattern, jacobian.entries
        self._profile = pattern.profile
        self._matrix = self._profile.matrix(stiffness.take(pattern.rows) * entries, entries)

    def factorised(self, weak: float) -> Factors:
        """BᵀKB + ε, factorised. Raises LinAlgError for numbers that are not finite."""
        matrix = self._matrix.copy()
        matrix[self._profile.diagonal] += weak
        return Factors(self._profile, matrix)


def _near_the_diagonal(
    rows: Int[np.ndarray, "products"], columns: Int[np.ndarray, "products"], n: int
) -> Int[np.ndarray, "dofs"]:
    """An order of the n degrees of freedom that moves entries towards the diagonal.

    Each part is walked from its far end, neighbour by neighbour; ties keep the order of numbers.
    Those that couple to more than half of all, as the cell does, come last.
    """
    coupled = np.zeros((n, n), bool)
    coupled[rows, columns] = True
    counts = np.count_nonzero(coupled, axis=1)
    is_hub, is_alone = counts > n / 2, counts <= 1
    own = np.flatnonzero(~is_hub & ~is_alone)
    orders, inner = [np.flatnonzero(is_alone)], csr_array(coupled[np.ix_(own, own)])
    left = np.ones(len(own), bool)
    while left.any():
        far = breadth_first_order(inner, int(left.argmax()), return_predecessors=False)[-1]
        part = breadth_first_order(inner, far, return_predecessors=False)
        left[part] = False
        orders.append(own[part])
    return np.concatenate([*orders, np.flatnonzero(is_hub)])
