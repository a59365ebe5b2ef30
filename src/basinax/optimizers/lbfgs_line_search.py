"""L-BFGS with a line search, for cheap and exact energies.

Liu and Nocedal, Math. Program. 45, 503 (1989), with the rules and defaults of ASE's
`LBFGSLineSearch`.
"""

import equinox as eqx
import jax.numpy as jnp

from basinax.numerics.settings import FixedCount, Positive
from basinax.optimizers.line_search.more_thuente import MoreThuente
from basinax.optimizers.line_search.walk import AbstractLineSearch, Search, lengthened
from basinax.optimizers.quasi_newton.history import descent, no_history, remember
from basinax.systems import rescale, segment


class LBFGSLineSearch(AbstractLineSearch):
    """Limited-memory BFGS along searched lines. `update` needs `params` and `energies`.

    Trials are evaluations, not steps. The search accounts for a later limit that shortens trials.
    """

    memory: FixedCount = eqx.field(static=True, default=100)
    """The number of pairs. ASE's default."""
    alpha: Positive = 70.0
    """The first Hessian (eV/Å²) is this number times the unit matrix."""
    search: Search = MoreThuente()
    """The line search, which holds the limit on the step."""

    def nothing(self, parameters, index_prefix):
        return no_history(parameters, index_prefix, self.memory)

    def choose(self, memory, stage):
        prefix = stage.prefix
        units, pair_units = rescale.units(stage.gradient, prefix), rescale.units(stage.y, prefix)
        gradient, s, y = rescale.scaled_by_powers(
            [(stage.gradient, units), (stage.s, pair_units), (stage.y, pair_units)], prefix
        )
        is_kept = stage.is_new & jnp.isfinite(segment.longest_row(y, prefix))
        accepted = stage.is_accepted
        memory = remember(memory, s, y, is_kept, gradient, prefix, units, pair_units, accepted)
        first = self.first_scale(gradient, prefix)
        direction = descent(memory, gradient, first, prefix, accepted)
        return lengthened(rescale.scaled_by_power(direction, -units, prefix), prefix), memory
