"""Steepest descent with a fixed rate, or with the rate of Barzilai and Borwein.

Barzilai and Borwein, IMA J. Numer. Anal. 8, 141 (1988): the rate that fits the last step best.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.exponents import scale_exactly
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Positive
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    needed,
    rows_field,
    systems_field,
)
from basinax.systems import rescale, segment
from basinax.systems.prefix import owned, per_system
from basinax.systems.types import Prefix


class GradientDescent(AbstractTransform):
    """The step is the negative gradient times a learning rate; the gradient of a plain descent."""

    learning_rate: Positive = 0.01
    """Step per gradient (Å²/eV for atoms): a number, or one a system. TorchSim's default."""
    barzilai_borwein: bool = eqx.field(static=True, default=False)
    """Take the rate from the last step s and the change y of the gradient over it: s·s/s·y, and
    `learning_rate` at first and where s·y is not positive. Steps may be long: put a limit behind
    it. `update` then needs `params`."""

    def init(
        self, parameters, index_prefix: Prefix = None
    ) -> "GradientDescentState | BarzilaiBorweinState":
        blank = segment.blank(parameters, index_prefix)
        if not self.barzilai_borwein:
            return GradientDescentState(owned(index_prefix))
        return BarzilaiBorweinState(
            owned(index_prefix),
            params=jax.tree.map(jnp.zeros_like, parameters),
            gradient=jax.tree.map(jnp.zeros_like, parameters),
            has_last=jnp.zeros_like(blank, bool),
        )

    def update(self, updates, state, params=None, **extra):
        kind = BarzilaiBorweinState if self.barzilai_borwein else GradientDescentState
        check_state(state, kind, self)
        prefix = state.index_prefix
        if params is not None:
            segment.check_alike(params, updates)
        rates = per_system(self.learning_rate, "learning_rate", segment.blank(updates, prefix))
        if self.barzilai_borwein:
            rates = _fitted(rates, updates, state, needed(params, "GradientDescent"))
            has_last = jnp.ones_like(state.has_last)
            state = BarzilaiBorweinState(prefix, params, updates, has_last)
        return segment.map_rows(_descend, prefix, [(rates, 0.0)], updates), state


def _fitted(rates, gradient, state: "BarzilaiBorweinState", params):
    s = segment.map_leaves(jnp.subtract, params, state.params)
    y = segment.map_leaves(jnp.subtract, gradient, state.gradient)
    products = rescale.products(s, y, state.index_prefix, has_one_unit=False)
    ss, sy = products.aa, products.ab
    has_curvature = state.has_last & (sy > 0) & jnp.isfinite(sy) & jnp.isfinite(ss)
    rate = rounded(ss / jnp.where(has_curvature, sy, 1))
    fitted = scale_exactly(rate, products.a_exponents - products.b_exponents)
    return jnp.where(has_curvature & jnp.isfinite(fitted), fitted, rates)


def _descend(rate, gradient):
    return -rounded(gradient * rate.astype(gradient.dtype))


class GradientDescentState(AbstractState):
    """Nothing but the index prefix: a fixed rate needs no memory."""

    index_prefix: Prefix


class BarzilaiBorweinState(AbstractState):
    """Where the last step began, and the gradient there, from which the next rate follows."""

    index_prefix: Prefix
    params: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """At the last step."""
    gradient: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """At the last step."""
    has_last: Bool[Array, "systems"] = systems_field()
