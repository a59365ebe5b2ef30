"""What a line search says of a trial."""

import equinox as eqx
from jaxtyping import Array, Bool, Float

PerSystem = Float[Array, "systems"]


class Verdict(eqx.Module):
    """What a search says of a trial."""

    is_accepted: Bool[Array, "systems"]
    has_failed: Bool[Array, "systems"]
    is_poor: Bool[Array, "systems"]
    """The search ended at its longest step: not a point to learn curvature from."""
    trial: PerSystem
    """The next step length, where neither accepted nor failed."""
