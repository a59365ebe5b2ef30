"""Nonlinear conjugate gradients: little memory, and a line search in every step.

Polak and Ribière, ESAIM Math. Model. Numer. Anal. 3, 35 (1969), with the rule of Gilbert and
Nocedal, SIAM J. Optim. 2, 21 (1992): a negative factor is 0, which is a restart.
"""

import jax.numpy as jnp

from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Positive
from basinax.optimizers.line_search.more_thuente import MoreThuente
from basinax.optimizers.line_search.walk import AbstractLineSearch, Search
from basinax.optimizers.protocol import AbstractState
from basinax.systems import rescale, segment
from basinax.systems.types import Prefix


class ConjugateGradient(AbstractLineSearch):
    """Conjugate gradients along searched lines. `update` needs `params` and `energies`.

    Trials are evaluations and no steps. Restarts are per system: where the factor is negative, and
    where the direction would lead uphill.
    """

    alpha: Positive = 70.0
    """The first trial is the gradient divided by this (eV/Å²); ASE's first Hessian."""
    search: Search = MoreThuente(c1=1e-4, c2=0.1, stpmax=1e10, max_trials=20)
    """The line search, which holds the limit on the step. Conjugacy needs a tight search: its
    constants are those of Nocedal and Wright, section 5.2. Its longest step is out of reach, since
    a search that ends there loses conjugacy: the minimum along a soft direction is far away in
    units of the gradient divided by `alpha`. It ends after 20 trials, so where the energy falls on
    and on a step moves a row by 4 Å at most."""

    def nothing(self, parameters, index_prefix):
        return NoMemory(None)

    def choose(self, memory, stage):
        gradient, prefix = stage.gradient, stage.prefix
        both = (gradient, stage.last_gradient)
        units = rescale.products(*both, prefix, has_one_unit=True).a_exponents
        now, last, y = rescale.scaled_by_powers([(x, units) for x in (*both, stage.y)], prefix)
        before = segment.dot(last, last, prefix)
        # β = max(0, g·y / g₀·g₀), and d = -g/α + β d₀
        has_before = stage.is_new & ~stage.is_shortened & (before > 0)
        factor = rounded(segment.dot(now, y, prefix) / jnp.where(has_before, before, 1))
        factor = jnp.where(has_before & (factor > 0) & jnp.isfinite(factor), factor, 0)
        values = [(self.first_scale(gradient, prefix), 0.0), (factor, 0.0)]
        direction = segment.map_rows(_turned, prefix, values, gradient, stage.last_direction)
        return direction, memory

    def first_trial(self, slope, last_slope, last_trial):
        # Aim at the first-order change of the last step, however soft the direction.
        trial = rounded(last_trial * rounded(last_slope / jnp.where(slope < 0, slope, -1)))
        return jnp.where((trial > 1e-3) & jnp.isfinite(trial), trial, 1)


def _turned(first, factor, gradient, direction):
    first, factor = first.astype(gradient.dtype), factor.astype(gradient.dtype)
    return rounded(factor * direction) - rounded(first * gradient)


class NoMemory(AbstractState):
    """No memory of its own: the walk holds what the next direction needs."""

    index_prefix: Prefix
