"""L D Lᵀ of a positive definite matrix in tiles, with bits that the matrix alone decides.

LAPACK and SuperLU call BLAS, whose bits depend on the kind of processor and on its threads: these
also spin on cores that evaluations need. In `arithmetic`, a sum has one order everywhere. Every row
of tiles begins with its first tile that is not 0, so an order of rows with entries near the
diagonal saves work and memory.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array

from basinax.internal.arithmetic import product

TILE = 60
"""The size of a tile, a multiple of `LEAF`."""

LEAF = 4
"""The size of blocks that Python's numbers invert, which NumPy needs more calls for."""

_UNIT = np.eye(LEAF)

Matrix = Float[np.ndarray, "rows columns"]


class Profile:
    """The places of the entries of a matrix BᵀKB in its rows of tiles, one row behind another.

    Args:
        columns: the column of each entry of B.
        first, second: the numbers of the two entries of B in each product.
        order: the order of the matrix's rows and columns in its tiles.
    """

    def __init__(
        self,
        columns: Int[np.ndarray, "entries"],
        first: Int[np.ndarray, "products"],
        second: Int[np.ndarray, "products"],
        order: Int[np.ndarray, "size"],
    ):
        self.size, self.order, self._n_entries = len(order), order, len(columns)
        self.rank = np.argsort(order)
        rank = self.rank[columns]
        rows, columns = rank.take(first), rank.take(second)
        last = -(-self.size // LEAF) * LEAF
        """The size with ones on the diagonal that fill up the last tile."""
        self.begins = np.arange(0, last, TILE)
        ends = np.minimum(self.begins + TILE, last)
        every = np.arange(last)
        tiles = every // TILE
        is_some = np.eye(len(ends), dtype=bool)
        is_some[tiles.take(rows), tiles.take(columns)] = True
        self.firsts = is_some.argmax(1)
        """The first tile of each row of tiles."""
        self.heights, self.widths = ends - self.begins, ends - TILE * self.firsts
        self.offsets = np.concatenate([[0], np.cumsum(self.heights * self.widths)])
        starts = self.offsets[:-1] - TILE * self.firsts
        starts = starts.take(tiles) + every % TILE * self.widths.take(tiles)
        """The place of each row's entry in column 0, if its tiles reached there."""
        self.diagonal = starts + every
        # A tile above the diagonal is that below, transposed.
        kept = np.flatnonzero(columns < ends.take(tiles).take(rows))
        places = starts.take(rows.take(kept)) + columns.take(kept)
        # NumPy sorts short integers faster.
        short = np.uint16 if self.offsets[-1] < 2**16 else np.int64
        kept = kept.take(np.argsort(places.astype(short), kind="stable"))
        self._first, self._second = first.take(kept), second.take(kept)
        counts = np.bincount(places, minlength=self.offsets[-1])
        self._begins = np.concatenate([[0], np.cumsum(counts)])

    def matrix(
        self, left: Float[np.ndarray, "entries"], right: Float[np.ndarray, "entries"]
    ) -> Float[np.ndarray, "places"]:
        """The matrix of products of an entry on the left with one on the right.

        Products at one position are added in their order.
        """
        parts = left.take(self._first), self._second, self._begins
        made = csr_array(parts, shape=(len(self._begins) - 1, self._n_entries)) @ right
        made[self.diagonal[self.size :]] = 1.0
        return made


class Factors:
    """The factors of a matrix in a profile.

    Args:
        flat: the entries in the places of the profile, which are overwritten.

    Raises:
        LinAlgError: the matrix is not positive definite, or not finite.
    """

    def __init__(self, profile: Profile, flat: Float[np.ndarray, "places"]):
        if not np.isfinite(flat).all():
            raise np.linalg.LinAlgError("not finite")
        self._profile = profile
        self._inverses: list[Matrix] = []
        """Inverses of the tiles D."""
        self._lower: list[Matrix] = []
        """The tiles of each row of L before the diagonal."""
        for k in range(len(profile.begins)):
            row = flat[profile.offsets[k] : profile.offsets[k + 1]]
            self._add(k, row.reshape(profile.heights[k], profile.widths[k]))

    def _add(self, k: int, row: Matrix) -> None:
        """Factorise row k of tiles, which follow each other along the columns.

        With the row's tiles R_j = L_kj D_j, what a tile lacks is the sum of R_i L_jiᵀ over i < j.
        """
        first, n_before = int(self._profile.firsts[k]), row.shape[1] - len(row)
        lower = np.empty((len(row), n_before))
        for j in range(first, k):
            own = slice(TILE * (j - first), TILE * (j - first + 1))
            begin = max(first, int(self._profile.firsts[j]))
            if begin < j:
                left = row[:, TILE * (begin - first) : own.start]
                row[:, own] -= _product_of_rows(left, self._lower[j][:, -left.shape[1] :])
            lower[:, own] = product(row[:, own], self._inverses[j])
        own = row[:, n_before:]
        if n_before:
            own = own - _product_of_rows(row[:, :n_before], lower)
        self._lower.append(lower)
        self._inverses.append(inverse(own))

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """The solution x of L D Lᵀ x = b, for one b or several columns."""
        profile, n_more = self._profile, len(self._profile.diagonal) - self._profile.size
        x = columns.reshape(profile.size, -1).take(profile.order, 0)
        if n_more:
            x = np.concatenate([x, np.zeros((n_more, x.shape[1]))])
        rows = []
        for begin, own, lower in zip(profile.begins, self._inverses, self._lower, strict=True):
            before = slice(begin - lower.shape[1], begin)
            rows.append((slice(begin, begin + len(own)), own, before, lower))
        for own, _, before, lower in rows[1:]:
            x[own] -= product(lower, x[before])
        for own, inverted, *_ in rows:
            x[own] = product(inverted, x[own])
        for own, _, before, lower in rows[:0:-1]:
            x[before] -= product(lower.T, x[own])
        return x.take(profile.rank, 0).reshape(columns.shape)


def _product_of_rows(a: Matrix, b: Matrix) -> Matrix:
    """a bᵀ."""
    return np.einsum("ik,jk->ij", a, b)


def inverse(matrix: Matrix) -> Matrix:
    """The inverse of a symmetric positive definite matrix whose size is a multiple of `LEAF`.

    Blocks of rows are swept in turn: J. H. Goodnight, Am. Stat. 33, 149 (1979).

    Raises:
        LinAlgError: the matrix is not positive definite.
    """
    swept = matrix.copy()
    for k in range(0, len(swept), LEAF):
        own = slice(k, k + LEAF)
        rows = swept[own].copy()
        block = np.array(_inverse_of_four(rows[:, own].tolist()))
        rows[:, own], swept[own], swept[:, own] = _UNIT, 0.0, 0.0
        swept -= np.einsum("ki,kj->ij", rows, np.einsum("ij,jk->ik", block, rows))
    return np.negative(swept, out=swept)


def _inverse_of_four(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """The inverse of a block, whose upper triangle is read, by L D Lᵀ; M is the inverse of L."""
    (a, b, c, d), (_, e, f, g), (_, _, h, i), (_, _, _, j) = rows
    if not a > 0:
        raise np.linalg.LinAlgError("not positive definite")
    p = 1 / a
    l10, l20, l30 = b * p, c * p, d * p
    e, f, g, h, i, j = e - l10 * b, f - l10 * c, g - l10 * d, h - l20 * c, i - l20 * d, j - l30 * d
    if not e > 0:
        raise np.linalg.LinAlgError("not positive definite")
    q = 1 / e
    l21, l31 = f * q, g * q
    h, i, j = h - l21 * f, i - l21 * g, j - l31 * g
    r = 1 / h if h > 0 else np.nan
    l32 = i * r
    j -= l32 * i
    if not (h > 0 and j > 0):
        raise np.linalg.LinAlgError("not positive definite")
    s = 1 / j
    m31, m20 = l21 * l32 - l31, l10 * l21 - l20
    m30 = l10 * l31 - l30 - l32 * m20
    s30, s31, s32, r20, r21 = s * m30, s * m31, s * l32, r * m20, r * l21
    ab, ac, bc = s30 * m31 - r20 * l21 - q * l10, r20 - s30 * l32, -r21 - s31 * l32
    aa, bb = p + q * l10 * l10 + r20 * m20 + s30 * m30, q + r21 * l21 + s31 * m31
    return (
        (aa, ab, ac, s30),
        (ab, bb, bc, s31),
        (ac, bc, r + s32 * l32, -s32),
        (s30, s31, -s32, s),
    )
