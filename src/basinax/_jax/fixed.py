"""Trees in two parts, as jitted functions take them: arrays, and the static rest."""

from typing import Any

import equinox as eqx
import jax


class Fixed:
    """Everything that is not an array in a tree: jitted functions are compiled for it.

    `eqx.filter_jit` looks for it again at each call, which takes as long as half a turn.
    """

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._key = (tuple(leaves), structure)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fixed) and self._key == other._key)


def split(tree: Any) -> tuple[Fixed, Any]:
    """The fixed part of a tree, and its arrays; `eqx.combine(arrays, fixed.tree)` joins them."""
    arrays, others = eqx.partition(tree, eqx.is_array)
    return Fixed(others), arrays
