"""L-BFGS with a line search: fewer surprises where energies are cheap and exact.

Liu and Nocedal, Math. Program. 45, 503 (1989), with the rules and defaults of ASE's
`LBFGSLineSearch`.
"""

import equinox as eqx
import jax.numpy as jnp

from basinax._bits.rounding import rounded
from basinax._settings import FixedCount, Positive
from basinax._systems import ranges, segment
from basinax._systems.prefix import per_system
from basinax.transforms._protocol import AbstractTransform, Prefix
from basinax.transforms.curvature.history import descent, no_history, remember
from basinax.transforms.searches.more_thuente import MoreThuente
from basinax.transforms.searches.walk import (
    Search,
    WalkState,
    check_search,
    lengthened,
    start_walk,
    walk,
)


class LBFGSLineSearch(AbstractTransform):
    """Limited-memory BFGS along searched lines. `update` needs `params` and `energies`.

    Trials are evaluations and no steps. A limit behind it shortens trials; the search notices.
    """

    memory: FixedCount = eqx.field(static=True, default=100)
    """How many pairs are kept. ASE's default."""
    alpha: Positive = 70.0
    """The first Hessian (eV/Å²) is this times the unit matrix."""
    search: Search = MoreThuente()
    """How far along a line to go; it holds the limit on the step."""

    def __check_init__(self):
        check_search(self.search)

    def init(self, parameters, index_prefix: Prefix = None) -> WalkState:
        return start_walk(self.search, _Recursion(self), parameters, index_prefix)

    def update(self, updates, state: WalkState, params=None, *, energies=None, **extra):
        directions = _Recursion(self)
        return walk(self.search, directions, updates, state, params, energies, "LBFGSLineSearch")

    def is_accepted(self, state: WalkState):
        return state.is_accepted

    def has_failed(self, state: WalkState):
        return state.has_failed


class _Recursion(eqx.Module):
    """Directions of the two-loop recursion."""

    settings: LBFGSLineSearch

    def init(self, parameters, index_prefix):
        return no_history(parameters, index_prefix, self.settings.memory)

    def forget(self, memory, parameters, index_prefix):
        return self.init(parameters, index_prefix)

    def choose(self, memory, stage):
        prefix = stage.prefix
        units, pair_units = ranges.units(stage.gradient, prefix), ranges.units(stage.y, prefix)
        gradient, s, y = (
            ranges.in_units(x, exponents, prefix)
            for x, exponents in (
                (stage.gradient, units),
                (stage.s, pair_units),
                (stage.y, pair_units),
            )
        )
        is_kept = stage.is_new & jnp.isfinite(segment.longest_row(y, prefix))
        memory = remember(memory, s, y, is_kept, gradient, prefix, units, pair_units)
        direction = descent(memory, gradient, self._first(gradient, prefix), prefix)
        return lengthened(ranges.in_units(direction, -units, prefix), prefix), memory

    def steepest(self, gradient, index_prefix):
        first = self._first(gradient, index_prefix)
        return segment.scale(gradient, -first, index_prefix)

    def first_trial(self, slope, last_slope, last_trial):
        return jnp.ones_like(slope)

    def _first(self, gradient, prefix):
        alpha = per_system(self.settings.alpha, "alpha", segment.blank(gradient, prefix))
        return rounded(1 / alpha)
