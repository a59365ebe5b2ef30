"""Derivatives of coordinates, each of which depends on few degrees of freedom.

The list of coordinates fixes the pattern of entries. Sums run over coordinates in list order on one
core, so the bits are those of the structure alone.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csc_array, csr_array
from scipy.sparse.linalg import splu

from basinax.atoms._internal.dense import Cholesky

DENSE = 300
"""Up to this many degrees of freedom, the model of the Hessian is a dense matrix. With 900, a
sparse factorisation takes 2 ms and a dense one 26 ms for a molecule, 47 and 30 ms for a metal."""


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
    def places(self) -> Int[np.ndarray, "products"]:
        """The positions of products of two entries of a coordinate in the flattened matrix BᵀKB."""
        of_groups = [self.n_dofs * g[:, :, None] + g[:, None, :] for g in self.groups]
        return np.concatenate([places.ravel() for places in of_groups])


class Jacobian:
    """∂q/∂x.

    Args:
        pattern: the positions of the entries.
        entries: the entries of each group of coordinates; entries at one position add up.
    """

    def __init__(self, pattern: Pattern, entries: Sequence[Float[np.ndarray, "q entries"]]):
        self.pattern, self.entries = pattern, entries
        self._flat = np.concatenate([e.ravel() for e in entries])

    def along(self, step: Float[np.ndarray, "dofs"]) -> Float[np.ndarray, "q"]:
        """B s."""
        pattern = self.pattern
        return np.bincount(pattern.rows, self._flat * step[pattern.columns], pattern.shape[0])

    def back(self, force: Float[np.ndarray, "q"]) -> Float[np.ndarray, "dofs"]:
        """Bᵀ f."""
        pattern = self.pattern
        return np.bincount(pattern.columns, self._flat * force[pattern.rows], pattern.shape[1])

    def all_back(self, forces: Float[np.ndarray, "rows q"]) -> Float[np.ndarray, "rows dofs"]:
        """Bᵀ times each row."""
        return (self.matrix.T @ forces.T).T

    @functools.cached_property
    def matrix(self) -> csr_array:
        pattern = self.pattern
        return csr_array((self._flat, pattern.columns, pattern.begins), shape=pattern.shape)

    def products(self, stiffness: Float[np.ndarray, "q"]) -> Float[np.ndarray, "products"]:
        """The terms of BᵀKB, before terms at one position are added."""
        ends = np.cumsum([len(e) for e in self.entries])
        springs = zip(np.split(stiffness, ends[:-1]), self.entries, strict=True)
        of_groups = [(k[:, None] * e)[:, :, None] * e[:, None, :] for k, e in springs]
        return np.concatenate([products.ravel() for products in of_groups])


class Sparse:
    """L U of a sparse positive definite matrix. Raises LinAlgError for matrices without factors.

    Up to 1000 atoms, factors cost less than conjugate gradients, which take some 70 iterations for
    a metal and 700 for a molecule, and a step solves for all pairs.
    """

    def __init__(self, matrix: csc_array):
        if not np.isfinite(matrix.data).all():
            raise np.linalg.LinAlgError("not finite")
        options = {"SymmetricMode": True}
        try:
            self._factors = splu(
                matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options
            )
        except RuntimeError as error:
            raise np.linalg.LinAlgError(str(error)) from error

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """The solutions for one column or several, in turn, so that BLAS starts no threads."""
        if columns.ndim == 1:
            return self._factors.solve(columns)
        return np.stack([self._factors.solve(column) for column in columns.T], 1)


def factorised(
    jacobian: Jacobian, stiffness: Float[np.ndarray, "q"], weak: float
) -> Cholesky | Sparse:
    """BᵀKB + ε, factorised. Raises LinAlgError for numbers that are not finite."""
    pattern, products = jacobian.pattern, jacobian.products(stiffness)
    n = pattern.n_dofs
    if n <= DENSE:
        matrix = np.bincount(pattern.places, products, n * n)
        matrix[:: n + 1] += weak
        return Cholesky(matrix.reshape(n, n))
    own = np.arange(n)
    rows, columns = np.divmod(pattern.places, n)
    ends = np.concatenate([rows, own]), np.concatenate([columns, own])
    values = np.concatenate([products, np.full(n, weak)])
    return Sparse(coo_array((values, ends), shape=(n, n)).tocsc())
