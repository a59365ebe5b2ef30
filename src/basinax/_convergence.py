"""When a system is done: ASE's criterion, per system."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax import _segment as segment
from basinax._status import Status
from basinax._systems import SystemIndex


def largest_force(
    gradients: PyTree[Float[Array, "rows *components"]],
    index_prefix: PyTree[SystemIndex] | None = None,
) -> Float[Array, "systems"]:
    """The largest Euclidean norm of a row of the gradient, per system; +inf where not finite.

    A gradient whose square overflows counts as not finite. 0 for a system without rows.
    """
    return finite(segment.longest_row(gradients, index_prefix))


def finite(measured: Float[Array, "systems"]) -> Float[Array, "systems"]:
    """+inf for what is not finite, so that it cannot look converged."""
    return jnp.where(jnp.isfinite(measured), measured, jnp.inf)


def judge(
    energies: Float[Array, "systems"],
    largest: Float[Array, "systems"],
    steps: Int32[Array, "systems"],
    fmax: Float[Array, "systems"],
    max_steps: Int32[Array, "systems"],
    has_failed: Bool[Array, "systems"],
) -> Int32[Array, "systems"]:
    """The status of systems whose energy and gradient have just been evaluated.

    Converged is, as in ASE, a largest force below `fmax`; it comes before `has_failed`, the word of
    the optimizer, and that before `max_steps`.
    """
    is_finite = jnp.isfinite(energies) & jnp.isfinite(largest)
    status = jnp.where(steps >= max_steps, Status.MAX_STEPS, Status.RUNNING)
    status = jnp.where(has_failed, Status.LINE_SEARCH_FAILED, status)
    status = jnp.where(largest < fmax, Status.CONVERGED, status)
    return jnp.where(is_finite, status, Status.NOT_FINITE).astype(jnp.int32)
