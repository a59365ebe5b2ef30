"""Trees in two parts for jitted functions: arrays, and the static rest."""

import dataclasses
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
        of_values = (tuple(leaves), structure)
        self._key = (of_values, _kinds(leaves), _of_nodes(structure))
        self._hash = hash(of_values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Static) and self._key == other._key)


def partition(tree: Any) -> tuple[Static, Any]:
    """The fixed part of a tree, and its arrays; `eqx.combine(arrays, fixed.tree)` joins them."""
    arrays, others = eqx.partition(tree, _is_array)
    return Static(others), arrays


def _kinds(value: Any) -> Any:
    """What tells equal values of other programs apart: 12 and 12.0, 1 and True, 0.0 and -0.0."""
    match value:
        case bool() | int() | float() | complex():
            return type(value), repr(value)
        case np.generic():
            return type(value), value.tobytes()
        case tuple() | list():
            return type(value), *map(_kinds, value)
        case dict():
            return type(value), *((_kinds(key), _kinds(x)) for key, x in value.items())
        case set() | frozenset():
            return type(value), frozenset((x, _kinds(x)) for x in value)
        case object() if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return type(value), *(_kinds(getattr(value, f.name, None)) for f in fields)
    return type(value)


def _of_nodes(structure: Any) -> Any:
    """`_kinds` of what the nodes of a tree hold beside their children, such as static fields."""
    node = structure.node_data()
    return node and _kinds(node[1]), *map(_of_nodes, structure.children())


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)
