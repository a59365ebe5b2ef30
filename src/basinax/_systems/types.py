"""Types of arguments, with their shapes: trees of rows, values per system, prefixes."""

from collections.abc import Sequence

from jaxtyping import Array, Float, Int32, PyTree

from basinax._systems.index import SystemIndex

Tree = PyTree[Float[Array, "_rows *_components"]]
"""Parameters, gradients, updates: each leaf leads with rows."""
Leaves = Sequence[Float[Array, "_rows *_components"]]
PerSystem = Float[Array, "systems"]
Exponents = Int32[Array, "systems"]
"""Units of powers of two, one a system."""
Prefix = PyTree[SystemIndex] | None
"""An index for all leaves, or one for each branch of them; None makes all rows one system."""
