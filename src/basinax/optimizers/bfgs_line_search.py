"""BFGS with a dense inverse Hessian of each system and a line search.

Rules, names and defaults are those of ASE's `BFGSLineSearch`: a step teaches curvature only if the
slope along it has fallen.
"""

import equinox as eqx
import jax.numpy as jnp

from basinax.numerics.settings import FixedCount, Positive
from basinax.optimizers.line_search.more_thuente import MoreThuente
from basinax.optimizers.line_search.walk import AbstractLineSearch, Search, lengthened
from basinax.optimizers.quasi_newton.inverse_hessian import (
    AbstractDense,
    Places,
    fitted,
    renewed,
    unit_matrix,
)
from basinax.systems import rescale


class BFGSLineSearch(AbstractLineSearch, AbstractDense):
    """Quasi-Newton steps along searched lines. `update` needs `params` and `energies`.

    Trials are evaluations and no steps. Every system takes as much memory as the largest.
    """

    alpha: Positive = 10.0
    """The first Hessian (eV/Å²) is this times the unit matrix. ASE's default."""
    search: Search = MoreThuente()
    """The line search, which holds the limit on the step."""
    max_rows: FixedCount | None = eqx.field(static=True, default=None)
    """The most rows of a system in any leaf. Needed only where `init` is traced; if the index is
    traced too, further rows stand still."""

    def nothing(self, parameters, index_prefix):
        first = self.first_scale(parameters, index_prefix)
        return unit_matrix(parameters, index_prefix, first, self.max_rows)

    def forget(self, memory, parameters, index_prefix):
        return renewed(memory, parameters, self.first_scale(parameters, index_prefix))

    def choose(self, memory, stage):
        places, prefix = Places(memory, stage.gradient), stage.prefix
        units = rescale.units(stage.gradient, prefix)
        scaled = rescale.scaled_by_powers(
            [(stage.gradient, units), (stage.last_gradient, units)], prefix
        )
        gradient, last_gradient = (places.gather(tree) for tree in scaled)
        s, y, last = (places.gather(x) for x in (stage.s, stage.y, stage.last_direction))
        slope, last_slope = places.dot(gradient, last), places.dot(last_gradient, last)
        has_fallen = jnp.abs(slope) < jnp.abs(last_slope)
        learns = stage.is_new & has_fallen & ~stage.is_poor
        memory = fitted(memory, places, s, y, learns)
        direction = places.scatter(-places.apply(memory.matrix, gradient, stage.is_accepted))
        return lengthened(rescale.scaled_by_power(direction, -units, prefix), prefix), memory
