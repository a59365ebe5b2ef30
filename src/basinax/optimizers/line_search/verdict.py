"""The decision of a line search on a trial."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from basinax.numerics.rounding import rounded
from basinax.systems.types import PerSystem


class Verdict(eqx.Module):
    """The decision of a line search on a trial."""

    is_accepted: Bool[Array, "systems"]
    has_failed: Bool[Array, "systems"]
    is_poor: Bool[Array, "systems"]
    """The search ended at its longest step, so no curvature is learned from this point."""
    trial: PerSystem
    """The next step length, if neither accepted nor failed."""


def is_no_higher(energy: PerSystem, origin: PerSystem) -> Bool[Array, "systems"]:
    """Whether an energy is no higher than the origin's, up to rounding."""
    noise = rounded(16 * jnp.finfo(energy.dtype).eps * jnp.abs(origin))
    return energy <= origin + noise
