"""Values of each system's rows, combined in blocks of eight by halves."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, Shaped

from basinax.numerics import xla
from basinax.numerics.rounding import BLOCK, combine_components, combine_halves


def larger(a: Array, b: Array) -> Array:
    """The larger number, or NaN; unlike `jnp.maximum`, which may flush subnormals to zero."""
    if jnp.issubdtype(a.dtype, jnp.integer):
        return jnp.maximum(a, b)
    return jnp.where((a >= b) | (a != a), a, b)


def least(dtype) -> float | int:
    """The least value of that dtype."""
    return -math.inf if jnp.issubdtype(dtype, jnp.floating) else int(jnp.iinfo(dtype).min)


def take(values, indices, absent, mode="fill"):
    values = jnp.asarray(values)
    if absent == 0 and np.signbit(absent):
        # JAX keeps programs of gathers by the number that fills, where -0.0 equals 0.0.
        return -take(-values, indices, 0.0, mode)
    if values.shape[0] == 0:
        return jnp.full(indices.shape + values.shape[1:], absent, values.dtype)
    # No index is negative; without the wrapping of negative indices a gather takes half the time.
    return values.at[indices].get(mode=mode, fill_value=absent, wrap_negative_indices=False)


def fold_blocks(combine, values, sizes, absent):
    """Combine every eight values by halves; values past the size of a block are `absent`."""
    rest = values.shape[1:]
    blocks = values.reshape(sizes.size, BLOCK, *rest)
    sizes = sizes.reshape(-1, 1, *[1] * len(rest))
    at = jnp.arange(BLOCK, dtype=jnp.int32).reshape(1, -1, *[1] * len(rest))
    blocks = jnp.where(at < sizes, blocks, jnp.asarray(absent, values.dtype))
    return combine_halves(combine, blocks)


def fold_groups(combine, values, groups, absent):
    """Combine the values of each group by halves."""
    return combine_halves(combine, take(values, groups, absent))


def finished(sums: Float[Array, "systems *rest"], sizes: Int32[Array, "systems"]):
    """The sums, stored, with 0.0 in place of -0.0 for a system without rows."""
    signs = jnp.where(sizes > 0, 1, -1).astype(sums.dtype)
    signs = signs.reshape(-1, *[1] * (sums.ndim - 1))
    return xla.materialise(sums, jnp.broadcast_to(signs, sums.shape))


def stored(values: Shaped[Array, "systems"], sizes: Int32[Array, "systems"]):
    """The same values, stored (see `xla.materialise`)."""
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return values
    return xla.materialise(values, jnp.where(sizes >= 0, 1, 2).astype(values.dtype))


def max_components(
    rows: Shaped[Array, "rows *components"], larger: Callable
) -> Shaped[Array, "rows"]:
    return combine_components(larger, [rows], least(rows.dtype))[0]
