"""L-BFGS: quasi-Newton steps from the last pairs of a step and a change of the gradient.

Liu and Nocedal, Math. Program. 45, 503 (1989), with the limit on the step of ASE's `LBFGS`. The
defaults need the fewest evaluations in benchmarks/lj38.py; `LBFGS.ase()` reproduces ASE's steps.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.elementary import quotient, square_root
from basinax.numerics.exponents import scale_exactly
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Finite, FixedCount, Limit, Number, Positive
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    kept_field,
    needed,
    rows_field,
    systems_field,
)
from basinax.optimizers.quasi_newton.history import (
    PairHistory,
    descent,
    newest_scale,
    no_history,
    remember,
)
from basinax.systems import rescale, segment
from basinax.systems.prefix import each_system, owned, per_system
from basinax.systems.types import Prefix

FEWEST_PAIRS = 10
"""A system keeps at most as many pairs as it has entries, but not fewer than ten: more pairs do not
help, except in systems of three entries."""


class LBFGS(AbstractTransform):
    """Limited-memory BFGS without a line search. Each setting is one number, or one per system.

    `update` needs `params`. It reads gradients alone, so it suits models whose forces are no
    derivative of their energy.
    """

    maxstep: Limit = 0.2
    """The longest row of a step (Angstrom); rows of a system scale together. ASE's default."""
    memory: FixedCount = eqx.field(static=True, default=100)
    """The largest number of pairs: memory for twice as many copies of the parameters, and for two
    square matrices per system. 20 pairs need a seventh more evaluations of LJ38."""
    damping: Positive = 1.0
    """A factor of every step."""
    alpha: Positive = 70.0
    """The first Hessian (eV/Å²) is this number times the unit matrix. ASE's default."""
    is_scaled: bool = eqx.field(static=True, default=True)
    """The first Hessian follows the newest pair, as soon as there is one: y·y/s·y replaces `alpha`,
    or |y|/|s| where that pair is not kept. And rows of cells that `relax` moves count as strains
    times the root of the number of atoms, unless the cell has a `cell_factor`."""
    curvature: Finite = 1e-8
    """A pair is kept if the cosine of the angle between s and y is larger."""
    is_bounded: bool = eqx.field(static=True, default=True)
    """Limit a system's pairs to its number of entries, or to ten if it has fewer."""

    @classmethod
    def ase(cls, maxstep: Number = 0.2, alpha: Number = 70.0) -> "LBFGS":
        """ASE's settings: keep the last hundred pairs and the first Hessian."""
        return cls(maxstep, alpha=alpha, is_scaled=False, curvature=-2.0, is_bounded=False)

    def init(self, parameters, index_prefix: Prefix = None) -> "LBFGSState":
        blank = segment.blank(parameters, index_prefix)
        fewest = FEWEST_PAIRS if self.is_bounded else None
        return LBFGSState(
            owned(index_prefix),
            params=jax.tree.map(jnp.zeros_like, parameters),
            gradient=jax.tree.map(jnp.zeros_like, parameters),
            has_last=jnp.zeros_like(blank, bool),
            histories=(no_history(parameters, index_prefix, self.memory, fewest),),
        )

    def update(self, updates, state: "LBFGSState", params=None, *, is_running=None, **extra):
        check_state(state, LBFGSState, self)
        prefix, gradient = state.index_prefix, updates
        params = needed(params, "LBFGS")
        s = segment.map_leaves(jnp.subtract, params, state.params)
        y = segment.map_leaves(jnp.subtract, gradient, state.gradient)
        has_curvature, ratio, pair_units = self._judged(s, y, prefix)
        # H does not depend on the units of the pairs, and -H g is linear in those of the gradient.
        units = rescale.units(gradient, prefix)
        g, s, y = rescale.scaled_by_powers(
            [(gradient, units), (s, pair_units), (y, pair_units)], prefix
        )
        running = jnp.ones_like(state.has_last) if is_running is None else is_running
        history = remember(
            state.histories[0],
            s,
            y,
            state.has_last & has_curvature & running,
            g,
            prefix,
            units,
            pair_units,
            running,
        )

        own = each_system(self, segment.blank(gradient, prefix))
        steepest = rounded(1 / own.alpha)
        first = steepest
        if self.is_scaled:
            # Steps of g/alpha would crawl where forces are small and the curvature is negative.
            has_ratio = state.has_last & ~has_curvature & (ratio > 0) & jnp.isfinite(ratio)
            first = jnp.where(has_ratio, ratio, newest_scale(history, steepest))
        step = descent(history, g, first, prefix, running)
        downhill = lambda: segment.scale(g, -steepest, prefix)  # noqa: E731
        step, factor = rescale.limited(step, units, own.maxstep, prefix, downhill)
        step = segment.scale(step, rounded(factor * own.damping), prefix)
        has_last = jnp.ones_like(state.has_last)
        return step, LBFGSState(prefix, params, gradient, has_last, (history,))

    def _judged(self, s, y, prefix):
        """Whether to keep each pair, |s|/|y| or 0 if y is 0, and the units of the pair."""
        products = rescale.products(s, y, prefix, has_one_unit=False)
        of_s, of_y = square_root(products.aa), square_root(products.bb)
        lengths = rounded(of_s * of_y)
        curvature = per_system(self.curvature, "curvature", lengths)
        is_curved = products.ab > rounded(curvature * lengths)
        ratio = jnp.where(of_y > 0, quotient(of_s, jnp.where(of_y > 0, of_y, 1)), 0)
        ratio = scale_exactly(ratio, products.a_exponents - products.b_exponents)
        return is_curved & jnp.isfinite(lengths), ratio, products.b_exponents


class LBFGSState(AbstractState):
    """The point before the last step of L-BFGS, and the pairs of steps and gradient changes."""

    index_prefix: Prefix
    params: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """The parameters before the last step."""
    gradient: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """The gradient before the last step."""
    has_last: Bool[Array, "systems"] = systems_field()
    histories: tuple[PairHistory] = kept_field()
