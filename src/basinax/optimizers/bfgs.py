"""BFGS with a dense Hessian of each system.

Rules, names and defaults are those of ASE's `BFGS`: steps along all eigenvectors of the Hessian,
downhill also where its eigenvalue is negative, and a limit on the longest row. Kept is the inverse
Hessian, whose sign is needed only after a step along which the gradient has not risen.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.rounding import rounded
from basinax.numerics.settings import FixedCount, Limit, Positive
from basinax.optimizers.protocol import (
    AbstractState,
    check_state,
    kept_field,
    needed,
    rows_field,
    systems_field,
)
from basinax.optimizers.quasi_newton.inverse_hessian import (
    AbstractDense,
    InverseHessian,
    Places,
    fitted,
    newton_step,
    unit_matrix,
)
from basinax.systems import rescale, segment
from basinax.systems.prefix import each_system, owned, per_system
from basinax.systems.types import Prefix


class BFGS(AbstractDense):
    """Quasi-Newton steps for systems of up to some hundreds of entries. `update` needs `params`.

    Every system takes as much memory as the largest: the square of its number of entries.
    """

    maxstep: Limit = 0.2
    """The longest row of a step (Angstrom); rows are scaled together. ASE's default."""
    alpha: Positive = 70.0
    """The first Hessian (eV/Å²) is this times the unit matrix. ASE's default."""
    max_rows: FixedCount | None = eqx.field(static=True, default=None)
    """The most rows of a system in any leaf. Needed only where `init` is traced; if the index is
    traced too, further rows stand still."""

    def init(self, parameters, index_prefix: Prefix = None) -> "BFGSState":
        blank = segment.blank(parameters, index_prefix)
        alpha = per_system(self.alpha, "alpha", blank)
        hessian = unit_matrix(parameters, index_prefix, rounded(1 / alpha), self.max_rows)
        return BFGSState(
            owned(index_prefix),
            params=jax.tree.map(jnp.zeros_like, parameters),
            gradient=jax.tree.map(jnp.zeros_like, parameters),
            has_last=jnp.zeros_like(blank, bool),
            hessians=(hessian,),
        )

    def update(self, updates, state: "BFGSState", params=None, *, is_running=None, **extra):
        check_state(state, BFGSState, self)
        prefix, gradient = state.index_prefix, updates
        params = needed(params, "BFGS")
        hessian = state.hessians[0]
        places = Places(hessian, gradient)
        s = places.gather(segment.map_leaves(jnp.subtract, params, state.params))
        y = places.gather(segment.map_leaves(jnp.subtract, gradient, state.gradient))
        # As in ASE, a step below 1e-7 updates nothing.
        is_step = state.has_last & (jnp.max(jnp.abs(s), axis=1, initial=0) >= 1e-7)
        everyone = jnp.ones_like(state.has_last)
        needing = everyone if is_running is None else is_running
        hessian = fitted(hessian, places, s, y, is_step & needing)
        units = rescale.units(gradient, prefix)
        g = rescale.scaled_by_power(gradient, units, prefix)
        step, hessian = newton_step(hessian, places, places.gather(g), needing)
        own = each_system(self, segment.blank(gradient, prefix))
        downhill = lambda: segment.scale(g, -rounded(1 / own.alpha), prefix)  # noqa: E731
        step, factor = rescale.limited(places.scatter(step), units, own.maxstep, prefix, downhill)
        step = segment.scale(step, factor, prefix)
        return step, BFGSState(prefix, params, gradient, everyone, (hessian,))


class BFGSState(AbstractState):
    """Where the last step of BFGS began, and the inverse Hessian of each system."""

    index_prefix: Prefix
    params: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """At the last step."""
    gradient: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """At the last step."""
    has_last: Bool[Array, "systems"] = systems_field()
    hessians: tuple[InverseHessian] = kept_field()
