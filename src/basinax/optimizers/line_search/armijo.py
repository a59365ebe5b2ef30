"""Backtracking to a sufficient decrease, for many systems at once.

Nocedal and Wright, Numerical Optimization, section 3.5, with the rules, names and defaults of ASE's
`LineSearchArmijo`: quadratic interpolation, at least a tenth of the last trial. The search reads
energies, and the slope at its origin, and may accept a step that is too short.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from basinax.numerics.elementary import quotient
from basinax.numerics.rounding import rounded
from basinax.numerics.settings import (
    Limit,
    NotNegative,
    Part,
    PositiveCount,
    check_order,
    check_settings,
)
from basinax.optimizers.line_search.verdict import Verdict, is_no_higher
from basinax.systems.prefix import each_system, per_system
from basinax.systems.types import PerSystem


class Armijo(eqx.Module):
    """A step length that lowers the energy enough. A setting is one number, or one per system."""

    maxstep: Limit = 0.2
    """The longest row of the first trial (Angstrom). ASE tries length 1 if within 1/2 of it."""
    c1: Part = 0.1
    """The required decrease of the energy, relative to the slope times the step."""
    a_max: Limit = 2.0
    """A larger first guess is replaced by 1."""
    a_min: NotNegative = 1e-10
    """The search ends at a shorter step."""
    max_trials: PositiveCount = 50
    """After this many trials the search ends at the lowest trial, or fails if none is lower than
    the origin. ASE's search has no such limit."""

    def __check_init__(self):
        check_settings(self)
        check_order(self, "a_min", "a_max")

    def shortest(self, like: PerSystem) -> PerSystem:
        """The shortest step length."""
        return per_system(self.a_min, "a_min", like)

    def begin(
        self, energy: PerSystem, slope: PerSystem, longest: PerSystem, first: PerSystem, last=None
    ) -> tuple[PerSystem, "ArmijoState", Bool[Array, "systems"]]:
        """The first trial of a search, its state, and whether it cannot begin.

        Args:
            energy: the energy at the origin.
            slope: derivative of the energy by the step length; must be negative.
            longest: the longest row of the step of length 1.
            first: the step length to try first, unless the last energy suggests another.
            last: the energy at the origin of the last search; the current one in the first search.
        """
        own = each_system(self, energy)
        is_downhill = (slope < 0) & jnp.isfinite(slope)
        guess = first
        # Expect the decrease of the last search: the minimum of the parabola with this slope.
        if last is not None:
            guess = rounded(rounded(2 * (energy - last)) / jnp.where(is_downhill, slope, -1))
        is_fitting = (guess <= own.a_max) & (guess >= own.a_min) & (guess > 0)
        guess = jnp.where(is_fitting, guess, first)
        distance = rounded(guess * longest)
        is_far = distance >= own.maxstep
        shortened = rounded(guess * rounded(own.maxstep / jnp.where(is_far, distance, 1)))
        guess = jnp.where(is_far, shortened, guess)
        # Like ASE, prefer 1 to any length within a half of 1.
        guess = jnp.where(jnp.abs(guess - 1) <= 0.5, 1, guess)
        state = ArmijoState(
            energy,
            slope,
            best=jnp.zeros_like(energy),
            best_energy=energy,
            is_back=jnp.zeros_like(energy, bool),
            n_trials=jnp.zeros_like(energy, jnp.int32),
        )
        return guess, state, ~is_downhill

    def step(
        self, state: "ArmijoState", trial: PerSystem, energy: PerSystem, slope: PerSystem
    ) -> tuple[Verdict, "ArmijoState"]:
        """Judge a trial by its energy."""
        own = each_system(self, energy)
        promised = rounded(rounded(own.c1 * trial) * state.slope)
        is_finite = jnp.isfinite(energy) & jnp.isfinite(slope)
        is_low = is_finite & (energy <= state.energy + promised)
        is_short = trial < own.a_min
        n_trials = state.n_trials + 1
        ends = is_short | (n_trials >= own.max_trials)

        # Unlike ASE, a search that ends returns to its lowest trial.
        is_lower = is_finite & (energy < state.best_energy)
        best = jnp.where(is_lower, trial, state.best)
        best_energy = jnp.where(is_lower, energy, state.best_energy)
        is_gain = best_energy < state.energy
        is_kept = is_finite & (state.is_back & is_no_higher(energy, state.energy))
        is_accepted = (is_low & ~is_short) | (ends & is_lower) | is_kept
        goes_back = ends & ~is_accepted & is_gain & ~state.is_back
        has_failed = (ends | state.is_back) & ~is_accepted & ~goes_back

        proposal = jnp.where(goes_back, best, self._shorter(state, trial, energy))
        followed = ArmijoState(state.energy, state.slope, best, best_energy, goes_back, n_trials)
        return Verdict(is_accepted, has_failed, jnp.zeros_like(is_low), proposal), followed

    def _shorter(self, state: "ArmijoState", trial: PerSystem, energy: PerSystem) -> PerSystem:
        """The minimum of the parabola through both energies and the first slope, or a tenth."""
        chord = rounded((energy - state.energy) / jnp.where(trial > 0, trial, 1))
        bend = rounded(2 * (chord - state.slope))
        is_bent = bend > 0  # false if the energy is not finite
        minimum = rounded(-rounded(state.slope * trial) / jnp.where(is_bent, bend, 1))
        tenth = quotient(trial, jnp.full_like(trial, 10))
        return jnp.where(is_bent & (minimum > tenth), minimum, tenth)


class ArmijoState(eqx.Module):
    """The state of each search; every leaf has one entry per system."""

    energy: PerSystem
    """The energy at the origin."""
    slope: PerSystem
    """The slope at the origin."""
    best: PerSystem
    """The trial of lowest energy; 0 if none is lower than the origin."""
    best_energy: PerSystem
    is_back: Bool[Array, "systems"]
    """The next trial repeats the best one, and the search ends there."""
    n_trials: Int32[Array, "systems"]
