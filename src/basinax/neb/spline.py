"""Cubic splines through the images of paths, for the string method.

Makri, Ortner and Kermode, J. Chem. Phys. 150, 094109 (2019), as in `ase.mep.NEB`.

Axes: [atoms, images, paths, 3]. All sums go atom by atom and image by image, so no bit of a path
depends on the room for other paths.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from basinax.numerics.rounding import add_components, rounded
from basinax.optimizers.protocol import AbstractAround, needed, updated
from basinax.systems.index import SystemIndex

Points = Float[Array, "atoms images paths 3"]
Knots = Float[Array, "images paths"]


class Grid(eqx.Module):
    """Where the rows of paths lie in a grid of atoms, images and paths."""

    rows: Int32[Array, "atoms images paths"]
    """The row of each entry; the number of rows where there is none."""
    n_images: Int32[Array, "paths"]

    @classmethod
    def of(
        cls,
        starts: Int32[Array, "images paths"],
        n_images: Int32[Array, "paths"],
        n_atoms: Int32[Array, "paths"],
        most_atoms: int,
        n_rows: int,
    ) -> "Grid":
        """Args: starts: the first row of each image."""
        atoms = jnp.arange(most_atoms, dtype=jnp.int32)[:, None, None]
        images = jnp.arange(starts.shape[0], dtype=jnp.int32)[:, None]
        is_there = (atoms < n_atoms[None, None]) & (images < n_images[None])[None]
        return cls(jnp.where(is_there, starts[None] + atoms, n_rows), n_images)

    def points(self, rows: Float[Array, "rows 3"]) -> Points:
        """The rows in the grid; 0 where there is none."""
        return rows.at[self.rows].get(mode="fill", fill_value=0.0)

    def put(self, points: Points, rows: Float[Array, "rows 3"]) -> Float[Array, "rows 3"]:
        """The rows with those of the grid replaced."""
        return rows.at[self.rows].set(points, mode="drop")

    def number(self) -> Int32[Array, "images 1"]:
        return jnp.arange(self.rows.shape[1], dtype=jnp.int32)[:, None]

    def is_last(self) -> Bool[Array, "images paths"]:
        return self.number() == self.n_images[None] - 1


def slopes(grid: Grid, points: Points) -> tuple[Knots, Points]:
    """Where each image lies on its path, from 0 to 1, and the derivative of the spline there.

    The ends of the spline are "not-a-knot", as those of `scipy.interpolate.CubicSpline`.
    """
    number, n, is_last = grid.number(), grid.n_images[None], grid.is_last()
    ways = jnp.roll(points, -1, 1) - points
    # lengths, [images, paths]: of the way to the next image; 1 where there is none.
    has_next = number < n - 1
    squares = jnp.where(has_next, _added(_squares(ways)), 1.0)
    lengths = rounded(jnp.sqrt(squares))
    ends = _cumulated(jnp.where(has_next, lengths, 0.0))
    total = ends[-1:]
    knots = jnp.concatenate([jnp.zeros_like(total), ends[:-1]]) / total
    h = jnp.where(has_next, rounded(lengths / total), 1.0)
    over = rounded(ways * (1 / h)[None, :, :, None])  # the slopes of straight lines
    before, over_before = jnp.roll(h, 1, 0), jnp.roll(over, 1, 1)

    # The equations of the slopes m: lower · m[k-1] + diagonal · m[k] + upper · m[k+1] = right.
    is_first, is_short, one = number == 0, n == 3, jnp.ones_like(h)
    h_next, over_next = jnp.roll(h, -1, 0), jnp.roll(over, -1, 1)
    h_ago, over_ago = jnp.roll(h, 2, 0), jnp.roll(over, 2, 1)
    d_first, d_last = h + h_next, h_ago + before
    lower = _chosen(is_first, 0 * one, is_last, jnp.where(is_short, one, d_last), h)
    upper = _chosen(is_first, jnp.where(is_short, one, d_first), is_last, 0 * one, before)
    diagonal = _chosen(
        is_first,
        jnp.where(is_short, one, h_next),
        is_last,
        jnp.where(is_short, one, h_ago),
        2 * (before + h),
    )
    of_first = _mixed(
        rounded((h + 2 * d_first) * h_next) / d_first, over, rounded(h * h) / d_first, over_next
    )
    of_last = _mixed(
        rounded(before * before) / d_last,
        over_ago,
        rounded((2 * d_last + before) * h_ago) / d_last,
        over_before,
    )
    inside = _mixed(3 * h, over_before, 3 * before, over)
    short = _spread(jnp.broadcast_to(is_short, h.shape))
    right = _chosen(
        _spread(is_first),
        jnp.where(short, 2 * over, of_first),
        _spread(is_last),
        jnp.where(short, 2 * over_before, of_last),
        inside,
    )
    return knots, _solved(lower, diagonal, upper, right, number < n)


def equidistant(grid: Grid, points: Points) -> Points:
    """The points of the spline at equal distances along it; the ends stay."""
    knots, m = slopes(grid, points)
    number, n = grid.number(), grid.n_images[None]
    wanted = number.astype(knots.dtype) / jnp.maximum(n - 1, 1).astype(knots.dtype)
    is_inner = (number > 0) & (number < n - 1)
    # at: the image before each wanted place, [images, paths].
    behind = (knots[None] <= wanted[:, None]) & is_inner[None]
    at = jnp.where(behind, 1, 0).sum(1, dtype=jnp.int32)

    def taken(x, at):
        at = jnp.broadcast_to(_spread(at) if x.ndim == 4 else at, x.shape)
        return jnp.take_along_axis(x, at, 1 if x.ndim == 4 else 0)

    after = jnp.minimum(at + 1, points.shape[1] - 1)
    start, z = taken(points, at), wanted - taken(knots, at)
    h = jnp.where(is_inner, taken(knots, after) - taken(knots, at), 1.0)
    over = _spread(1 / h)
    line = rounded((taken(points, after) - start) * over)
    here, there = taken(m, at), taken(m, after)
    bend = rounded((here + there - 2 * line) * over)
    cubic = rounded(bend * over)
    square = rounded((line - here) * over) - bend
    z = _spread(z)
    found = square + rounded(z * cubic)
    found = here + rounded(z * found)
    found = start + rounded(z * found)
    return jnp.where(_spread(is_inner), found, points)


def _squares(x: Points) -> Float[Array, "atoms images paths"]:
    return add_components(rounded(x * x).reshape(-1, 3)).reshape(x.shape[:-1])


def _added(x: Float[Array, "atoms images paths"]) -> Float[Array, "images paths"]:
    """The sum over atoms, from the first on."""
    return jax.lax.fori_loop(1, x.shape[0], lambda k, total: total + x[k], x[0])


def _cumulated(x: Knots) -> Knots:
    def add(total, own):
        total = total + own
        return total, total

    return jax.lax.scan(add, jnp.zeros_like(x[0]), x)[1]


def _spread(x: Array) -> Array:
    """Values of images and paths, for points."""
    return x[None, :, :, None]


def _chosen(is_first: Any, first: Any, is_last: Any, last: Any, others: Any) -> Any:
    return jnp.where(is_first, first, jnp.where(is_last, last, others))


def _mixed(a: Knots, x: Points, b: Knots, y: Points) -> Points:
    return rounded(_spread(a) * x) + rounded(_spread(b) * y)


def _solved(
    lower: Knots,
    diagonal: Knots,
    upper: Knots,
    right: Points,
    is_there: Bool[Array, "images paths"],
) -> Points:
    """The solution of tridiagonal equations, one set per path; 0 where there are none."""
    diagonal = jnp.where(is_there, diagonal, 1.0)
    lower, upper = (jnp.where(is_there, x, 0.0) for x in (lower, upper))
    right = jnp.moveaxis(jnp.where(_spread(is_there), right, 0.0), 1, 0)

    def eliminated(before, own):
        (up, r), (low, main, high, value) = before, own
        pivot = main - rounded(low * up)
        up = rounded(high / pivot)
        r = rounded((value - rounded(low[None, :, None] * r)) / pivot[None, :, None])
        return (up, r), (up, r)

    start = jnp.zeros_like(upper[0]), jnp.zeros_like(right[0])
    _, (up, r) = jax.lax.scan(eliminated, start, (lower, diagonal, upper, right))

    def substituted(after, own):
        up, r = own
        found = r - rounded(up[None, :, None] * after)
        return found, found

    found = jax.lax.scan(substituted, jnp.zeros_like(right[0]), (up, r), reverse=True)[1]
    return jnp.moveaxis(found, 0, 1)


class Equidistant(AbstractAround):
    """An optimizer of paths after whose steps the images lie at equal distances."""

    n_atoms: Any
    """The number of atoms of an image, one per path."""
    most_images: int = eqx.field(static=True)
    most_atoms: int = eqx.field(static=True)

    def update(self, updates, state, params=None, **extra):
        params = needed(params, "Equidistant")
        step, state = updated(self.optimizer, updates, state, params, **extra)
        grid = self._grid(state.index_prefix)
        moved = grid.points(params + rounded(step))
        return grid.put(equidistant(grid, moved), params) - params, state

    def _grid(self, index: SystemIndex) -> Grid:
        n_rows, places = index.n_rows, jnp.arange(index.n_rows, dtype=jnp.int32)
        first = jnp.full(index.n_systems, n_rows, jnp.int32)
        first = first.at[index.ids].min(places, mode="drop")
        n_atoms = jnp.asarray(self.n_atoms).astype(jnp.int32)
        images = jnp.arange(self.most_images, dtype=jnp.int32)[:, None]
        starts = first[None] + images * n_atoms[None]
        n_images = index.sizes // n_atoms
        return Grid.of(starts, n_images, n_atoms, self.most_atoms, n_rows)
