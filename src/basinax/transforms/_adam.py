"""Adam: steps of the size of the rate, whatever the size of the gradient, entry by entry.

Kingma and Ba, ICLR 2015, arXiv:1412.6980, with the names and defaults of `optax.adam`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from basinax import _segment as segment
from basinax._optimizer import (
    AbstractState,
    AbstractTransform,
    Prefix,
    rows_field,
    systems_field,
)
from basinax._rounding import rounded
from basinax._settings import Decay, Positive
from basinax._systems import per_system


class Adam(AbstractTransform):
    """Adaptive moments. Each field is a number, or one a system; each counts its own steps."""

    learning_rate: Positive = 0.01
    """The size of a step per entry (Angstrom), as long as gradients keep their sign."""
    b1: Decay = 0.9
    """Decay of the mean of gradients."""
    b2: Decay = 0.999
    """Decay of the mean of their squares."""
    eps: Positive = 1e-8
    """Added to the root of the mean square."""

    def init(self, parameters, index_prefix: Prefix = None) -> "AdamState":
        blank = segment.blank(parameters, index_prefix)
        return AdamState(
            index_prefix,
            mean=jax.tree.map(jnp.zeros_like, parameters),
            square=jax.tree.map(jnp.zeros_like, parameters),
            b1_power=jnp.ones_like(blank),
            b2_power=jnp.ones_like(blank),
        )

    def update(self, updates, state: "AdamState", params=None, **extra):
        prefix, like = state.index_prefix, state.b1_power
        rate, b1, b2, eps = (
            per_system(getattr(self, name), name, like)
            for name in ("learning_rate", "b1", "b2", "eps")
        )
        b1_power, b2_power = rounded(state.b1_power * b1), rounded(state.b2_power * b2)
        # m/(1 - b₁ᵗ) and v/(1 - b₂ᵗ): without the bias towards the zeros at the start
        scales = [rounded(1 / (1 - b1_power)), rounded(1 / (1 - b2_power))]
        values = [(x, 0.0) for x in (b1, b2, *scales, rate)] + [(eps, 1.0)]
        step, mean, square = segment.map_rows(
            _move, prefix, values, updates, state.mean, state.square
        )
        return step, AdamState(prefix, mean, square, b1_power, b2_power)


def _move(b1, b2, mean_scale, square_scale, rate, eps, gradient, mean, square):
    b1, b2, mean_scale, square_scale, rate, eps = (
        x.astype(gradient.dtype) for x in (b1, b2, mean_scale, square_scale, rate, eps)
    )
    mean = rounded(b1 * mean) + rounded((1 - b1) * gradient)
    square = rounded(b2 * square) + rounded((1 - b2) * rounded(gradient * gradient))
    root = rounded(jnp.sqrt(rounded(square_scale * square))) + eps
    step = -rounded(rate * rounded(rounded(mean_scale * mean) / root))
    return step, mean, square


class AdamState(AbstractState):
    """The means of the gradient and its square, and the powers of b₁ and b₂ that correct them."""

    index_prefix: Prefix
    mean: PyTree[Float[Array, "rows *components"]] = rows_field()
    square: PyTree[Float[Array, "rows *components"]] = rows_field()
    b1_power: Float[Array, "systems"] = systems_field()
    """b₁ to the number of steps, as products: `pow` has other bits in the tail of an array."""
    b2_power: Float[Array, "systems"] = systems_field()
