"""Cubic splines over a grid of equal steps that begins at 0: made on the host, read on the device.

They are the not-a-knot splines of scipy's `InterpolatedUnivariateSpline`, and beyond the grid go
on as the polynomial at its end.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from basinax.neighbors.lists import filled_up, gather
from basinax.numerics.rounding import rounded

TERMS = 4
"""Coefficients of a cubic polynomial."""


def coefficients(
    values: Float[np.ndarray, "*splines points"], first: int = 0
) -> Float[np.ndarray, "*splines intervals 4"]:
    """The polynomials between the points, c₀ + c₁t + c₂t² + c₃t³ with t in steps from the left.

    Args:
        first: the point at which the spline begins; before it, its first polynomial goes on.
    """
    # Import here: SciPy's import takes a quarter of a second, which other users need not pay.
    from scipy.interpolate import CubicSpline

    points = np.arange(first, values.shape[-1])
    spline = CubicSpline(points, values[..., first:], axis=-1, bc_type="not-a-knot")
    # Axes: from [power, highest first; interval; splines] to [splines; interval; power from 0].
    found = np.moveaxis(spline.c[::-1], (0, 1), (-1, -2))
    for _ in range(first):
        found = np.concatenate([_one_step_back(found[..., :1, :]), found], axis=-2)
    return found


def _one_step_back(c: np.ndarray) -> np.ndarray:
    """The polynomial in a variable that is larger by one."""
    c0, c1, c2, c3 = np.moveaxis(c, -1, 0)
    return np.stack([c0 - c1 + c2 - c3, c1 - 2 * c2 + 3 * c3, c2 - 3 * c3, c3], -1)


class Splines(NamedTuple):
    """Splines over one grid, for lookups. `Splines.of` makes one."""

    flat: Float[Array, "entries"]
    """Spline by spline, interval by interval, power by power."""
    n_intervals: int
    per_step: Float[Array, ""]
    """One over the step."""

    @classmethod
    def of(
        cls, table: Float[Array, "*splines intervals 4"], step: Float[Array, ""], dtype: np.dtype
    ) -> "Splines":
        per_step = rounded(1.0 / step.astype(dtype))
        return cls(filled_up(table.astype(dtype).ravel()), table.shape[-2], per_step)

    def value(
        self, which: Int32[Array, "*rows"] | int, x: Float[Array, "rows"]
    ) -> Float[Array, "rows"]:
        """The values at x of the splines with these numbers."""
        c0, c1, c2, c3, t = self._polynomials(which, x)
        return c0 + rounded(t * (c1 + rounded(t * (c2 + rounded(t * c3)))))

    def slope(
        self, which: Int32[Array, "*rows"] | int, x: Float[Array, "rows"]
    ) -> Float[Array, "rows"]:
        """The derivatives of the splines at x, rounded."""
        _, c1, c2, c3, t = self._polynomials(which, x)
        slope = c1 + rounded(t * (2.0 * c2 + rounded(t * (3.0 * c3))))
        return rounded(slope * self.per_step)

    def _polynomials(self, which, x):
        """The coefficients, and the position of x in its interval."""
        steps = rounded(x * self.per_step)
        # NaN goes to the first interval, and reaches the result through t.
        within = jnp.where(steps > 0, jnp.minimum(steps, float(self.n_intervals - 1)), 0.0)
        interval = within.astype(jnp.int32)
        at = (which * self.n_intervals + interval) * TERMS
        t = steps - interval.astype(x.dtype)
        return (*(gather(self.flat, at + power) for power in range(TERMS)), t)
