"""Types of arguments, with their shapes: trees of rows, values per system, prefixes."""

from collections.abc import Sequence

from jaxtyping import Array, Float, Int32, PyTree

from basinax.systems.index import SystemIndex

Tree = PyTree[Float[Array, "_rows *_components"]]
"""Parameters, gradients, updates: each leaf leads with rows."""
Leaves = Sequence[Float[Array, "_rows *_components"]]
PerSystem = Float[Array, "systems"]
Exponents = Int32[Array, "systems"]
"""Exponents of units that are powers of two, one per system."""
Prefix = PyTree[SystemIndex] | None
"""One index for all leaves, or one per branch; None makes all rows one system."""
