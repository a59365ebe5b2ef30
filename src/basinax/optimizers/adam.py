"""Adam: steps of the size of the rate, whatever the size of the gradient, entry by entry.

Kingma and Ba, ICLR 2015, arXiv:1412.6980, with the names and defaults of `optax.adam`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from basinax.numerics.elementary import square_root
from basinax.numerics.rounding import rounded, wide_dtype
from basinax.numerics.settings import Decay, Positive
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    rows_field,
    systems_field,
)
from basinax.systems import segment
from basinax.systems.prefix import each_system, owned
from basinax.systems.types import Prefix


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
        zeros = lambda x: jnp.zeros_like(x, wide_dtype(x))  # noqa: E731
        return AdamState(
            owned(index_prefix),
            mean=jax.tree.map(zeros, parameters),
            root=jax.tree.map(zeros, parameters),
            b1_power=jnp.ones_like(blank),
            b2_power=jnp.ones_like(blank),
        )

    def update(self, updates, state: "AdamState", params=None, **extra):
        check_state(state, AdamState, self)
        prefix, like = state.index_prefix, state.b1_power
        own = each_system(self, like)
        b1_power, b2_power = rounded(state.b1_power * own.b1), rounded(state.b2_power * own.b2)
        # m/(1 - b₁ᵗ) and √v/√(1 - b₂ᵗ) remove the bias towards the zeros at the start
        scales = [rounded(1 / (1 - b1_power)), square_root(rounded(1 / (1 - b2_power)))]
        values = [(x, 0.0) for x in (own.b1, own.b2, *scales, own.learning_rate)]
        values = [*values, (own.eps, 1.0)]
        step, mean, root = segment.map_rows(_move, prefix, values, updates, state.mean, state.root)
        return step, AdamState(prefix, mean, root, b1_power, b2_power)


def _move(b1, b2, mean_scale, root_scale, rate, eps, gradient, mean, root):
    narrow = gradient.dtype
    b1, b2, mean_scale, root_scale, rate, eps, gradient = (
        x.astype(mean.dtype) for x in (b1, b2, mean_scale, root_scale, rate, eps, gradient)
    )
    # Choose a unit in which no square is out of range; clamp the largest entries.
    info = jnp.finfo(gradient.dtype)
    most, far = 2.0 ** (info.maxexp - 4), 5 * info.maxexp // 8
    gradient = jnp.where(jnp.abs(gradient) < jnp.inf, jnp.clip(gradient, -most, most), gradient)
    size = jnp.maximum(root, jnp.abs(gradient))
    inverse = jnp.where(size > 2.0 ** (info.maxexp // 2 - 4), 2.0**-far, 1.0)
    inverse = jnp.where(size < 2.0 ** (info.minexp // 3), 2.0**far, inverse).astype(gradient.dtype)
    gradient, mean, root, eps = (inverse * x for x in (gradient, mean, root, eps))

    mean = rounded(b1 * mean) + rounded((1 - b1) * gradient)
    square = rounded(b2 * rounded(root * root)) + rounded((1 - b2) * rounded(gradient * gradient))
    root = square_root(square)
    divisor = rounded(root_scale * root) + eps
    has_divisor = divisor != 0
    part = rounded(rounded(mean_scale * mean) / jnp.where(has_divisor, divisor, 1))
    step = -rounded(rate * jnp.where(has_divisor, part, 0))
    return step.astype(narrow), mean / inverse, root / inverse


class AdamState(AbstractState):
    """The means of the gradient and its square, and the powers of b₁ and b₂ that correct them.

    Of the mean of squares the root is kept: the square of a large gradient would be no number.
    """

    index_prefix: Prefix
    mean: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    root: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    b1_power: Float[Array, "systems"] = systems_field()
    """b₁ to the number of steps, as products: `pow` has other bits in the tail of an array."""
    b2_power: Float[Array, "systems"] = systems_field()
