"""Backtracking to a sufficient decrease, for many systems at once.

Nocedal and Wright, Numerical Optimization, section 3.5, with the rules, names and defaults of
ASE's `LineSearchArmijo`: quadratic interpolation, at least a tenth of the last trial. It looks at
energies only, and at the slope where it begins, and may leave a step that is too short.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from basinax._rounding import rounded
from basinax._search import PerSystem, Verdict
from basinax._settings import (
    Limit,
    NotNegative,
    Part,
    PositiveCount,
    check_order,
    check_settings,
)
from basinax._systems import per_system


class Armijo(eqx.Module):
    """A step length that lowers the energy enough. Each field is a number, or one a system."""

    maxstep: Limit = 0.2
    """The longest row of the first trial (Angstrom); ASE steps by 1 where that is within a half."""
    c1: Part = 0.1
    """The energy falls by at least this part of what the slope promises."""
    a_max: Limit = 2.0
    """A first guess beyond this is replaced with 1."""
    a_min: NotNegative = 1e-10
    """At a shorter step the search has failed."""
    max_trials: PositiveCount = 50
    """After so many trials the search has failed. ASE goes on."""

    def __check_init__(self):
        check_settings(self)
        check_order(self, "a_min", "a_max")

    def begin(
        self, energy: PerSystem, slope: PerSystem, longest: PerSystem, first: PerSystem, last=None
    ) -> tuple[PerSystem, "ArmijoState", Bool[Array, "systems"]]:
        """The first trial of a search, its state, and whether it cannot begin.

        Args:
            energy: at the origin.
            slope: derivative of the energy by the step length; must be negative.
            longest: how far the step of length 1 moves any row.
            first: the step length to try first, where the last energy suggests none.
            last: the energy where the last search began; NaN where there was none.
        """
        value = lambda name: per_system(getattr(self, name), name, energy)  # noqa: E731
        guess = first if last is None else rounded(rounded(2 * (energy - last)) / slope)
        is_fitting = (guess <= value("a_max")) & (guess >= value("a_min"))
        guess = jnp.where(is_fitting, guess, first)
        distance = rounded(guess * longest)
        shortened = rounded(guess * rounded(value("maxstep") / distance))
        guess = jnp.where(distance >= value("maxstep"), shortened, guess)
        guess = jnp.where(jnp.abs(guess - 1) <= 0.5, 1, guess)
        state = ArmijoState(energy, slope, jnp.zeros(energy.shape, jnp.int32))
        return guess, state, ~((slope < 0) & jnp.isfinite(slope))

    def step(
        self, state: "ArmijoState", trial: PerSystem, energy: PerSystem, slope: PerSystem
    ) -> tuple[Verdict, "ArmijoState"]:
        """What becomes of a trial, given the energy there."""
        value = lambda name: per_system(getattr(self, name), name, energy)  # noqa: E731
        promised = rounded(rounded(value("c1") * trial) * state.slope)
        is_low = energy <= state.energy + promised
        is_short = trial < value("a_min")
        # The minimiser of the parabola through both energies and the first slope
        chord = rounded((energy - state.energy) / trial)
        bend = rounded(2 * (chord - state.slope))
        minimum = rounded(-rounded(state.slope * trial) / bend)
        tenth = rounded(trial / 10)
        proposal = jnp.where(minimum > tenth, minimum, tenth)  # a tenth where energy is not finite
        n_trials = state.n_trials + 1
        is_over = n_trials >= per_system(self.max_trials, "max_trials", n_trials)
        is_accepted = is_low & ~is_short & jnp.isfinite(slope)
        verdict = Verdict(
            is_accepted, ~is_accepted & (is_over | is_short), jnp.zeros_like(is_low), proposal
        )
        return verdict, ArmijoState(state.energy, state.slope, n_trials)


class ArmijoState(eqx.Module):
    """Where each search stands; every leaf has one entry a system."""

    energy: PerSystem
    """At the origin."""
    slope: PerSystem
    """At the origin."""
    n_trials: Int32[Array, "systems"]
