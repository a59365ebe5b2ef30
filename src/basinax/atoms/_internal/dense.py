"""Dense factorisation on one core, with bits that depend on the matrix alone.

OpenBLAS hands larger products to its threads, which keep spinning on cores that evaluations need: a
step of 12 ms took 200 ms beside two busy processes. Tiles keep every operation below the sizes at
which OpenBLAS starts threads.
"""

from typing import Any

import numpy as np
import scipy.linalg.lapack
from jaxtyping import Float

TILE = 60
"""OpenBLAS starts threads from 2¹⁸ multiplications of a matrix product on, from 9216 of a product
with a vector, and from 64 rows of a factorisation."""

_LAPACK: Any = scipy.linalg.lapack

Matrix = Float[np.ndarray, "rows columns"]


class Cholesky:
    """The factor L of a positive definite matrix L Lᵀ; reads the lower triangle only.

    Args:
        matrix: the matrix, which is overwritten.

    Raises:
        LinAlgError: the matrix is not positive definite, or not finite.
    """

    def __init__(self, matrix: Matrix):
        self._lower = lower = matrix
        self._tiles = _tiles(len(matrix))
        self._inverses = []
        """Inverses of the diagonal tiles of L."""
        for k, own in enumerate(self._tiles):
            for before in self._tiles[:k]:
                lower[own, own] -= lower[own, before] @ lower[own, before].copy().T
            factor, failed = _LAPACK.dpotrf(lower[own, own], lower=1, clean=1)
            if failed or not np.isfinite(factor).all():
                raise np.linalg.LinAlgError("not positive definite")
            lower[own, own] = factor
            inverse = _LAPACK.dtrtri(factor, lower=1)[0]
            self._inverses.append(inverse)
            for below in self._tiles[k + 1 :]:
                for before in self._tiles[:k]:
                    lower[below, own] -= lower[below, before] @ lower[own, before].T
                lower[below, own] = lower[below, own] @ inverse.T

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """The solution x of L Lᵀ x = b, for one b or several columns."""
        if columns.ndim == 2 and columns.shape[1] > TILE:
            parts = [self.solve(columns[:, part]) for part in _tiles(columns.shape[1])]
            return np.concatenate(parts, axis=1)
        x, lower = columns.copy(), self._lower
        for k, own in enumerate(self._tiles):
            for before in self._tiles[:k]:
                x[own] -= lower[own, before] @ x[before]
            x[own] = self._inverses[k] @ x[own]
        for k, own in reversed(list(enumerate(self._tiles))):
            for after in self._tiles[k + 1 :]:
                x[own] -= lower[after, own].T @ x[after]
            x[own] = self._inverses[k].T @ x[own]
        return x


def _tiles(size: int) -> list[slice]:
    return [slice(k, min(k + TILE, size)) for k in range(0, size, TILE)]
