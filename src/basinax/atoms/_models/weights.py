"""Weights of models, in the requested precision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def in_precision(weights: Any, dtype: np.dtype) -> Any:
    """A tree whose arrays of floats have this dtype, float32 or float64."""
    with jax.enable_x64(dtype == np.float64):
        return jax.tree.map(lambda leaf: _converted(leaf, dtype), weights)


def _converted(leaf: Any, dtype: np.dtype) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(np.asarray(leaf), dtype)
    return leaf
