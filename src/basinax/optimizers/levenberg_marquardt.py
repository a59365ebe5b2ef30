"""Levenberg and Marquardt's method for least squares, for each system by itself.

The damping follows the gain ratio, after H. B. Nielsen (1999), as in K. Madsen, H. B. Nielsen and
O. Tingleff, "Methods for Non-Linear Least Squares Problems", 2nd edition, IMM, Technical University
of Denmark (2004), algorithm 3.16. It is scaled by the largest diagonal of JᵀJ so far, after J. J.
Moré, Lecture Notes in Mathematics 630, 105 (1978), so units of parameters do not matter.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int32, PyTree

from basinax.numerics.memory import require_memory
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import Positive
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    layout_field,
    needed,
    needed_energies,
    rows_field,
    systems_field,
)
from basinax.systems import segment
from basinax.systems.folds import take
from basinax.systems.map_systems import one_after_another, room_of
from basinax.systems.prefix import owned, per_system
from basinax.systems.squares import entries_of, entry_counts
from basinax.systems.types import Prefix, Tree

NOISE = 0.75
"""Energies with a relative difference of the spacing of floats to this power count as equal: a
residual is a difference, and data may be a thousand times as large."""


class LevenbergMarquardt(AbstractTransform):
    """Damped Gauss-Newton steps for the least-squares problem of each system.

    The optimizer needs normal matrices: give `relax` a function of `sum_of_squares`, and
    `has_extras=True`.
    A step that does not lower the energy is a trial: an evaluation, and no step of the result.
    Steps are solved for one system after another by Cholesky factors, each in the shape that its
    own number of entries decides.

    >>> import jax.numpy as jnp
    >>> from basinax import LevenbergMarquardt, SystemIndex, relax, sum_of_squares
    >>> def residuals(x, is_row, points, is_point):
    ...     t, y = points
    ...     return x[0, 0] * jnp.exp(-x[0, 1] * t) - y
    >>> curves, points = SystemIndex.from_sizes([1, 1]), SystemIndex.from_sizes([3, 4])
    >>> t = jnp.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0])
    >>> fit, data = sum_of_squares(residuals), (t, 2.0 * jnp.exp(-0.5 * t))
    >>> result = relax(
    ...     lambda x: fit(x, curves, data, points), jnp.ones((2, 2)), LevenbergMarquardt(),
    ...     index_prefix=curves, has_extras=True, fmax=1e-4,
    ... )
    >>> result.params.round(2).tolist()
    [[2.0, 0.5], [2.0, 0.5]]
    """

    tau: Positive = 1e-3
    """The first damping, in parts of the diagonal of JᵀJ. Madsen, Nielsen and Tingleff's default
    for a start that may be far; 1e-6 for one that is near."""

    def init(self, parameters, index_prefix: Prefix = None) -> "LevenbergMarquardtState":
        """Needs sizes that are known: not to be called with a traced index.

        Raises ValueError if the matrices need more memory than the machine has.
        """
        blank = segment.blank(parameters, index_prefix)
        counts = np.broadcast_to(entry_counts(parameters, index_prefix), blank.shape)
        width = room_of(int(counts.max(initial=0)))
        n_bytes = 2.0 * width**2 * blank.size * blank.dtype.itemsize
        require_memory(
            n_bytes, f"two normal matrices of {width} entries for each of {blank.size} systems"
        )
        vector = jnp.zeros_like(blank, shape=(*blank.shape, width))
        no = jnp.zeros_like(blank, bool)
        return LevenbergMarquardtState(
            owned(index_prefix),
            rooms=tuple(sorted({room_of(n) for n in counts.tolist()})),
            entries=jnp.asarray(entries_of(parameters, index_prefix, width)),
            n_entries=jnp.asarray(counts, jnp.int32),
            origin=jax.tree.map(jnp.zeros_like, parameters),
            energy=jnp.zeros_like(blank),
            gradient=vector,
            normal=jnp.zeros_like(blank, shape=(*blank.shape, width, width)),
            scale=jnp.zeros_like(vector),
            damping=jnp.ones_like(blank),
            growth=jnp.full_like(blank, 2),
            expected=jnp.zeros_like(blank),
            is_trial=no,
            is_accepted=jnp.zeros_like(no),
        )

    def update(
        self,
        updates,
        state: "LevenbergMarquardtState",
        params=None,
        *,
        energies=None,
        extras=None,
        is_running=None,
        **extra,
    ):
        check_state(state, LevenbergMarquardtState, self)
        prefix, params = state.index_prefix, needed(params, "LevenbergMarquardt")
        energy = needed_energies(energies, "LevenbergMarquardt", state.energy)
        here = _matrices(extras, state), _gathered(updates, state)
        is_accepted, damping, growth = self._judged(energy, here[1], state)

        # After a rejected trial, continue from the last accepted point: normal [systems, n, n],
        # gradient, diagonal, scale [systems, n].
        normal = jnp.where(is_accepted[:, None, None], here[0], state.normal)
        gradient = jnp.where(is_accepted[:, None], here[1], state.gradient)
        diagonal = jnp.maximum(jnp.diagonal(here[0], axis1=1, axis2=2), state.scale)
        scale = jnp.where(is_accepted[:, None], diagonal, state.scale)
        origin = segment.where(is_accepted, params, state.origin, prefix)
        is_asked = damping > 0 if is_running is None else is_running & (damping > 0)
        step, expected = _steps(state, is_asked, normal, gradient, scale, damping)
        # A step that is not finite is not taken; the damping grows.
        is_step = jnp.isfinite(_gathered(origin, state) + step).all(axis=1)
        step = jnp.where(is_step[:, None], step, 0)
        expected = jnp.where(is_step, expected, jnp.inf)

        def towards(is_accepted, params, origin, step):
            return jnp.where(is_accepted, step, (origin + step) - params)

        step = _scattered(step, params, state)
        # Padding stays where it is.
        step = segment.map_rows(towards, prefix, [(is_accepted, True)], params, origin, step)
        return step, dataclasses.replace(
            state,
            origin=origin,
            energy=jnp.where(is_accepted, energy, state.energy),
            gradient=gradient,
            normal=normal,
            scale=scale,
            damping=damping,
            growth=growth,
            expected=expected,
            is_trial=jnp.ones_like(is_accepted),
            is_accepted=is_accepted,
        )

    def is_accepted(self, state: "LevenbergMarquardtState"):
        return state.is_accepted

    def _judged(self, energy, gradient, state: "LevenbergMarquardtState"):
        """Which points are taken, and the damping from there on with its growth."""
        gain = state.energy - energy
        noise = rounded(float(jnp.finfo(energy.dtype).eps) ** NOISE * state.energy)
        # If rounding hides the gain, compare gradients instead.
        is_hidden = state.expected <= noise
        is_smaller = _size(gradient, state) < _size(state.gradient, state)
        at_least_even = (gain > noise) | ((gain >= -noise) & is_smaller)
        has_gained = jnp.where(is_hidden, at_least_even, gain > 0)
        ratio = rounded(gain / jnp.where(is_hidden, 1, state.expected))
        away = 2 * jnp.where(is_hidden, 1, ratio) - 1
        factor = jnp.maximum(1 / 3, 1 - rounded(rounded(away * away) * away))
        bounds = _bounds(energy.dtype)
        first = per_system(self.tau, "tau", energy)
        damping = rounded(state.damping * jnp.where(has_gained, factor, state.growth))
        damping = jnp.where(state.is_trial, damping, first)
        growth = jnp.where(has_gained, 2, jnp.minimum(2 * state.growth, bounds[1]))
        is_accepted = ~state.is_trial | has_gained
        return is_accepted, jnp.clip(damping, *bounds), jnp.where(state.is_trial, growth, 2)


class LevenbergMarquardtState(AbstractState):
    """Where the last step of each system began, the results there, and the damping."""

    index_prefix: Prefix
    entries: Int32[Array, "systems n"] = layout_field()
    """Where each system's entries stand among those of all leaves."""
    n_entries: Int32[Array, "systems"] = layout_field()
    origin: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    energy: Float[Array, "systems"] = systems_field()
    gradient: Float[Array, "systems n"] = systems_field()
    normal: Float[Array, "systems n n"] = systems_field()
    scale: Float[Array, "systems n"] = systems_field()
    """The largest diagonal of JᵀJ so far."""
    damping: Float[Array, "systems"] = systems_field()
    growth: Float[Array, "systems"] = systems_field()
    """By which the damping grows where a trial fails."""
    expected: Float[Array, "systems"] = systems_field()
    """How far the step lowers the energy of the linear model."""
    is_trial: Bool[Array, "systems"] = systems_field()
    """Whether the next evaluation is where a step has led."""
    is_accepted: Bool[Array, "systems"] = systems_field()
    """Whether the last evaluation is a point of the path."""
    rooms: tuple[int, ...] = eqx.field(static=True, default=())
    """For how many entries systems have room: their shapes."""


def _bounds(dtype: Any) -> tuple[float, float]:
    """Bounds of the damping. The least holds no step back where JᵀJ has become far smaller than its
    largest diagonal; a matrix without Cholesky factors gives no step, and more damping."""
    info = jnp.finfo(dtype)
    return float(info.eps) ** 2, float(info.max) ** 0.5


def _size(gradient: Float[Array, "systems n"], state: LevenbergMarquardtState):
    """The largest entry of the gradient, in units in which the diagonal of JᵀJ is 1."""
    units = rounded(jnp.sqrt(jnp.where(state.scale > 0, state.scale, 1)))
    return jnp.max(jnp.abs(gradient) / units, axis=1, initial=0)


def _matrices(extras: Any, state: LevenbergMarquardtState) -> Float[Array, "systems n n"]:
    if getattr(extras, "shape", None) != state.normal.shape:
        raise TypeError(
            "LevenbergMarquardt needs the normal matrices JᵀJ of each system: give relax a function"
            f" of sum_of_squares(residuals), and has_extras=True; expected extras of shape"
            f" {state.normal.shape}, got {getattr(extras, 'shape', extras)}"
        )
    return extras.astype(state.normal.dtype)


def _gathered(tree: Tree, state: LevenbergMarquardtState) -> Float[Array, "systems n"]:
    flat = [leaf.reshape(-1).astype(state.energy.dtype) for leaf in jax.tree.leaves(tree)]
    return take(jnp.concatenate(flat), state.entries, 0)


def _scattered(vectors: Float[Array, "systems n"], like: Tree, state) -> Tree:
    blank, tree_of = ravel_pytree(jax.tree.map(jnp.zeros_like, like))
    return tree_of(blank.at[state.entries].set(vectors.astype(blank.dtype), mode="drop"))


def _steps(state: LevenbergMarquardtState, is_asked, normal, gradient, scale, damping):
    """The step of each system, and how far it lowers the energy of the linear model."""
    steps, expected = jnp.zeros_like(gradient), jnp.zeros_like(damping)
    begin = 0
    for room in state.rooms:
        own = is_asked & (state.n_entries > begin) & (state.n_entries <= room)
        begin = room
        arguments = normal[:, :room, :room], gradient[:, :room], scale[:, :room], damping
        part, expected = one_after_another(
            _step_of_one, own, arguments, (steps[:, :room], expected)
        )
        steps = steps.at[:, :room].set(part)
    return steps, expected


def _step_of_one(normal, gradient, scale, damping):
    """The solution h of (A + μD) h = -g, in units in which D is 1."""
    units = jnp.sqrt(jnp.where(scale > 0, scale, 1))
    a = normal / units[None, :] / units[:, None]
    factor = jax.lax.linalg.cholesky(
        a + damping * jnp.eye(len(units), dtype=a.dtype), symmetrize_input=False
    )
    g = gradient / units
    h = -jax.scipy.linalg.cho_solve((factor, True), g)
    expected = 0.5 * (h @ (damping * h - g))
    return h / units, expected
