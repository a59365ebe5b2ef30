"""Trees in two parts for jitted functions: arrays, and the static rest."""

from typing import Any

import equinox as eqx
import jax
import numpy as np


class Static:
    """All parts of a tree except arrays; jitted functions are compiled for each value.

    `eqx.filter_jit` computes this part at each call, which takes as long as half a turn.
    """

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._key = (tuple(leaves), structure)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Static) and self._key == other._key)


def partition(tree: Any) -> tuple[Static, Any]:
    """The fixed part of a tree, and its arrays; `eqx.combine(arrays, fixed.tree)` joins them."""
    arrays, others = eqx.partition(tree, _is_array)
    return Static(others), arrays


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)
