"""BFGS with a dense inverse Hessian of each system and a line search.

Rules, names and defaults are those of ASE's `BFGSLineSearch`: a step teaches curvature only if the
slope along it has fallen.
"""

import equinox as eqx
import jax.numpy as jnp

from basinax._bits.rounding import rounded
from basinax._settings import FixedCount, Positive
from basinax._systems import ranges, segment
from basinax._systems.prefix import per_system
from basinax.transforms._protocol import Prefix
from basinax.transforms.curvature.inverse_hessian import (
    AbstractDense,
    Places,
    fitted,
    renewed,
    unit_matrix,
)
from basinax.transforms.searches.more_thuente import MoreThuente
from basinax.transforms.searches.walk import (
    Search,
    WalkState,
    check_search,
    lengthened,
    start_walk,
    walk,
)


class BFGSLineSearch(AbstractDense):
    """Quasi-Newton steps along searched lines. `update` needs `params` and `energies`.

    Trials are evaluations and no steps. Every system takes as much memory as the largest.
    """

    alpha: Positive = 10.0
    """The first Hessian (eV/Å²) is this times the unit matrix. ASE's default."""
    search: Search = MoreThuente()
    """How far along a line to go; it holds the limit on the step."""
    max_rows: FixedCount | None = eqx.field(static=True, default=None)
    """The most rows of a system in any leaf. Needed only where `init` is traced; if the index is
    too, rows beyond it stand still."""

    def __check_init__(self):
        check_search(self.search)

    def init(self, parameters, index_prefix: Prefix = None) -> WalkState:
        return start_walk(self.search, _Dense(self), parameters, index_prefix)

    def update(self, updates, state: WalkState, params=None, *, energies=None, **extra):
        return walk(self.search, _Dense(self), updates, state, params, energies, "BFGSLineSearch")

    def is_accepted(self, state: WalkState):
        return state.is_accepted

    def has_failed(self, state: WalkState):
        return state.has_failed


class _Dense(eqx.Module):
    """Directions of a dense inverse Hessian."""

    settings: BFGSLineSearch

    def init(self, parameters, index_prefix):
        first = self._first(parameters, index_prefix)
        return unit_matrix(parameters, index_prefix, first, self.settings.max_rows)

    def forget(self, memory, parameters, index_prefix):
        return renewed(memory, parameters, self._first(parameters, index_prefix))

    def choose(self, memory, stage):
        places, prefix = Places(memory, stage.gradient), stage.prefix
        units = ranges.units(stage.gradient, prefix)
        gradient, last_gradient = (
            places.gather(ranges.in_units(tree, units, prefix))
            for tree in (stage.gradient, stage.last_gradient)
        )
        s, y, last = (places.gather(x) for x in (stage.s, stage.y, stage.last_direction))
        slope, last_slope = places.dot(gradient, last), places.dot(last_gradient, last)
        has_fallen = jnp.abs(slope) < jnp.abs(last_slope)
        learns = stage.is_new & has_fallen & ~stage.is_poor
        memory = fitted(memory, places, s, y, learns)
        direction = places.scatter(-places.apply(memory.matrix, gradient))
        return lengthened(ranges.in_units(direction, -units, prefix), prefix), memory

    def steepest(self, gradient, index_prefix):
        return segment.scale(gradient, -self._first(gradient, index_prefix), index_prefix)

    def first_trial(self, slope, last_slope, last_trial):
        return jnp.ones_like(slope)

    def _first(self, tree, prefix):
        alpha = per_system(self.settings.alpha, "alpha", segment.blank(tree, prefix))
        return rounded(1 / alpha)
