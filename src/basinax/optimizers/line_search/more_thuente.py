"""The line search of Moré and Thuente, for many systems at once.

ACM Trans. Math. Softw. 20, 286 (1994), with the rules, names and defaults of ASE's `LineSearch`: no
auxiliary function, steps limited by `maxstep`, and success for a search that rounding ends, unless
the energy rose. Every search reads its own energies only.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from basinax.numerics.elementary import clamp, square_root
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


class MoreThuente(eqx.Module):
    """A step length by the strong Wolfe conditions. A setting is one number, or one per system."""

    maxstep: Limit = 0.2
    """The largest move of a row from one trial to the next (Angstrom)."""
    c1: Part = 0.23
    """Sufficient decrease: the required part of the slope times the step."""
    c2: Part = 0.46
    """Curvature: the slope falls to at most this part of the first slope."""
    stpmax: Limit = 50.0
    """The longest step length."""
    stpmin: NotNegative = 1e-8
    """The shortest step length."""
    xtol: NotNegative = 1e-14
    """The search ends when the bracket is this small, relative to its upper end."""
    max_trials: PositiveCount = 100
    """After this many trials the search ends at the lowest trial, or fails if none is lower than
    the origin. ASE's search has no such limit."""

    def __check_init__(self):
        check_settings(self)
        check_order(self, "c1", "c2")
        check_order(self, "stpmin", "stpmax")

    def shortest(self, like: PerSystem) -> PerSystem:
        """The shortest step length."""
        return per_system(self.stpmin, "stpmin", like)

    def begin(
        self, energy: PerSystem, slope: PerSystem, longest: PerSystem, first: PerSystem, last=None
    ) -> tuple[PerSystem, "MoreThuenteState", Bool[Array, "systems"]]:
        """The first trial of a search, its state, and whether it cannot begin.

        Args:
            energy: the energy at the origin.
            slope: derivative of the energy by the step length; must be negative.
            longest: the longest row of the step of length 1.
            first: the step length to try first, or the nearest one in range.
            last: unused here.
        """
        zero = jnp.zeros_like(energy)
        own = each_system(self, energy)
        first = clamp(own.stpmin, first, own.stpmax)
        width = own.stpmax - own.stpmin
        state = MoreThuenteState(
            is_bracketed=jnp.zeros_like(energy, bool),
            is_last=jnp.zeros_like(energy, bool),
            is_back=jnp.zeros_like(energy, bool),
            n_trials=jnp.zeros_like(energy, jnp.int32),
            energy=energy,
            slope=slope,
            longest=longest,
            best=LinePoint(zero, energy, slope),
            other=LinePoint(zero, energy, slope),
            lower=zero,
            upper=rounded(5 * first),
            width=width,
            last_width=2 * width,
        )
        return self._limited(state, zero, first), state, ~(slope < 0)

    def step(
        self, state: "MoreThuenteState", trial: PerSystem, energy: PerSystem, slope: PerSystem
    ) -> tuple[Verdict, "MoreThuenteState"]:
        """Judge a trial by its energy and slope."""
        sample = LinePoint(trial, energy, slope)
        # Back towards the best from an energy that is not finite or too large to interpolate.
        is_finite = jnp.isfinite(energy) & jnp.isfinite(slope)
        followed, proposal = self._followed(state, sample)
        back = state.best.at + rounded(0.25 * (trial - state.best.at))
        proposal = jnp.where(is_finite & jnp.isfinite(proposal), proposal, back)
        followed = _where(is_finite, followed, state)
        best, n_trials = followed.best, state.n_trials + 1

        is_good, is_ended = self._judged(state, sample)
        # Unlike ASE, a search that ends at its origin, or higher beyond rounding, fails, unless an
        # earlier trial was lower: the search then returns to the lowest trial.
        is_settled = (is_ended | state.is_back) & is_no_higher(energy, state.energy)
        is_accepted = is_finite & (state.is_last | is_good | is_settled) & (trial > 0)
        ends = (is_finite & is_ended) | state.is_back
        ends |= n_trials >= per_system(self.max_trials, "max_trials", n_trials)
        is_gain = best.energy < state.energy
        is_accepted |= ends & is_finite & is_gain & (best.at == trial)
        goes_back = ends & ~is_accepted & is_gain & ~state.is_back
        has_failed = ends & ~is_accepted & ~goes_back
        followed = dataclasses.replace(followed, n_trials=n_trials, is_back=goes_back)
        proposal = jnp.where(goes_back, best.at, proposal)
        return Verdict(is_accepted, has_failed, state.is_last, proposal), followed

    def _judged(self, state: "MoreThuenteState", new: "LinePoint"):
        """Whether the trial meets the conditions, and whether the search must end."""
        own = each_system(self, new.at)
        promised = rounded(own.c1 * state.slope)
        is_low = new.energy <= state.energy + rounded(new.at * promised)
        is_flat = jnp.abs(new.slope) <= rounded(own.c2 * -state.slope)
        is_tight = state.upper - state.lower <= rounded(own.xtol * state.upper)
        is_outside = (new.at <= state.lower) | (new.at >= state.upper)
        is_ended = state.is_bracketed & (is_outside | is_tight)
        is_ended |= (new.at == own.stpmax) & is_low & (new.slope <= promised)
        is_ended |= (new.at == own.stpmin) & (~is_low | (new.slope >= promised))
        return is_low & is_flat, is_ended

    def _followed(self, state: "MoreThuenteState", new: "LinePoint"):
        """The state after the trial, and the next trial."""
        own = each_system(self, new.at)
        shortest, farthest, xtol = own.stpmin, own.stpmax, own.xtol
        proposal, is_bracketed = _interpolated(state, new)
        best, other = _interval(state, new)
        proposal = self._limited(state, new.at, proposal)

        # Bisect an interval that is wider than 0.66 of its width two trials ago, as in the paper.
        span = jnp.abs(other.at - best.at)
        is_wide = is_bracketed & (span >= rounded(0.66 * state.last_width))
        middle = best.at + rounded(0.5 * (other.at - best.at))
        proposal = jnp.where(is_wide, middle, proposal)
        # Without a bracket, allow the next trial 1.1 to 4 times as far ahead.
        ahead = proposal - best.at
        ends = jnp.minimum(best.at, other.at), jnp.maximum(best.at, other.at)
        lower = jnp.where(is_bracketed, ends[0], proposal + rounded(1.1 * ahead))
        upper = jnp.where(is_bracketed, ends[1], proposal + rounded(4.0 * ahead))
        proposal = jnp.minimum(jnp.maximum(proposal, shortest), farthest)
        is_last = (best.at == proposal) & (proposal == farthest) & (lower > farthest)
        is_stuck = (is_bracketed & (proposal < lower)) | (proposal >= upper)
        is_stuck |= is_bracketed & (upper - lower < rounded(xtol * upper))
        followed = dataclasses.replace(
            state,
            is_bracketed=is_bracketed,
            is_last=is_last,
            best=best,
            other=other,
            lower=lower,
            upper=upper,
            width=jnp.where(is_bracketed, span, state.width),
            last_width=jnp.where(is_bracketed, state.width, state.last_width),
        )
        return followed, jnp.where(is_stuck, best.at, proposal)

    def _limited(self, state, last: PerSystem, proposal: PerSystem) -> PerSystem:
        """`proposal`, no farther from the last trial than `maxstep` allows."""
        maxstep = per_system(self.maxstep, "maxstep", last)
        change = proposal - last
        distance = rounded(jnp.abs(change) * state.longest)
        is_far = distance >= maxstep
        shortened = rounded(change * rounded(maxstep / jnp.where(is_far, distance, 1)))
        return last + jnp.where(is_far, shortened, change)


class LinePoint(eqx.Module):
    """Energy and slope at a step length."""

    at: PerSystem
    energy: PerSystem
    slope: PerSystem


class MoreThuenteState(eqx.Module):
    """The state of each search; every leaf has one entry per system."""

    is_bracketed: Bool[Array, "systems"]
    is_last: Bool[Array, "systems"]
    """The next trial is accepted in any case."""
    is_back: Bool[Array, "systems"]
    """The next trial repeats the best one, and the search ends there."""
    n_trials: Int32[Array, "systems"]
    energy: PerSystem
    """The energy at the origin."""
    slope: PerSystem
    """The slope at the origin."""
    longest: PerSystem
    best: LinePoint
    """The end of the interval with the lower energy."""
    other: LinePoint
    lower: PerSystem
    upper: PerSystem
    width: PerSystem
    last_width: PerSystem


def _where(mask, on_true, on_false):
    return jax.tree.map(lambda x, y: jnp.where(mask, x, y), on_true, on_false)


def _interval(state: MoreThuenteState, new: LinePoint) -> tuple[LinePoint, LinePoint]:
    """The interval that contains a minimiser, after a trial."""
    is_higher = new.energy > state.best.energy
    is_opposite = _opposite(state.best, new)
    other = _where(is_opposite, state.best, state.other)
    return _where(is_higher, state.best, new), _where(is_higher, new, other)


def _interpolated(
    state: MoreThuenteState, new: LinePoint
) -> tuple[PerSystem, Bool[Array, "systems"]]:
    """The next step length by the paper's four cases, and whether a minimiser is bracketed."""
    best, is_ahead = state.best, new.at > state.best.at
    is_higher = new.energy > best.energy
    is_opposite = ~is_higher & _opposite(best, new)
    is_flatter = ~is_higher & ~is_opposite & (jnp.abs(new.slope) < jnp.abs(best.slope))
    is_bracketed = state.is_bracketed | is_higher | is_opposite
    secant = new.at + rounded(_quotient(new.slope, new.slope - best.slope) * (best.at - new.at))

    # Case 1, a higher energy: the cubic step, or half way from it to the quadratic step.
    cubic, _ = _cubic(best, new, new.at < best.at)
    chord = _quotient(best.energy - new.energy, new.at - best.at)
    ratio = rounded(0.5 * _quotient(best.slope, chord + best.slope))
    quadratic = best.at + rounded(ratio * (new.at - best.at))
    is_nearer = jnp.abs(cubic - best.at) < jnp.abs(quadratic - best.at)
    higher = jnp.where(is_nearer, cubic, cubic + rounded(0.5 * (quadratic - cubic)))

    # Case 2, a lower energy and a slope of opposite sign: the farther of cubic and secant steps.
    cubic, is_beyond = _cubic(new, best, is_ahead)
    is_farther = jnp.abs(cubic - new.at) > jnp.abs(secant - new.at)
    opposite = jnp.where(is_farther, cubic, secant)

    # Case 3, a lower energy and a smaller slope of the same sign: the cubic step if it leads on.
    bound = jnp.where(is_ahead, state.upper, state.lower)
    cubic = jnp.where(is_beyond, cubic, bound)
    is_farther = jnp.abs(cubic - new.at) > jnp.abs(secant - new.at)
    is_nearer = jnp.abs(cubic - new.at) < jnp.abs(secant - new.at)
    inside = jnp.where(is_nearer, cubic, secant)
    most = new.at + rounded(0.66 * (state.other.at - new.at))
    inside = jnp.where(is_ahead, jnp.minimum(most, inside), jnp.maximum(most, inside))
    outside = jnp.where(is_farther, cubic, secant)
    outside = jnp.maximum(jnp.minimum(outside, state.upper), state.lower)
    flatter = jnp.where(state.is_bracketed, inside, outside)

    # Case 4, a lower energy and a slope of the same sign that is no smaller.
    cubic, _ = _cubic(new, state.other, new.at > state.other.at)
    steeper = jnp.where(state.is_bracketed, cubic, bound)

    lower = jnp.where(is_opposite, opposite, jnp.where(is_flatter, flatter, steeper))
    return jnp.where(is_higher, higher, lower), is_bracketed


def _opposite(best: LinePoint, new: LinePoint):
    """Whether the slopes have opposite signs."""
    return rounded(new.slope * jnp.sign(best.slope)) < 0


def _cubic(a: LinePoint, b: LinePoint, is_mirrored) -> tuple[PerSystem, Bool[Array, "systems"]]:
    """The minimiser of the cubic through two samples, seen from a, and whether it lies beyond b."""
    chord = _quotient(rounded(3.0 * (a.energy - b.energy)), b.at - a.at)
    theta = chord + (a.slope + b.slope)
    size = jnp.maximum(jnp.maximum(jnp.abs(theta), jnp.abs(a.slope)), jnp.abs(b.slope))
    part = _quotient(theta, size)
    slopes = rounded(_quotient(a.slope, size) * _quotient(b.slope, size))
    square = rounded(part * part) - slopes
    root = square_root(jnp.maximum(square, jnp.zeros_like(square)))
    gamma = rounded(size * root)
    gamma = jnp.where(is_mirrored, -gamma, gamma)
    p = (gamma - a.slope) + theta
    q = ((gamma - a.slope) + gamma) + b.slope
    r = _quotient(p, q)
    return a.at + rounded(r * (b.at - a.at)), (r < 0) & (gamma != 0)


def _quotient(a: PerSystem, b: PerSystem) -> PerSystem:
    """a/b, or 0 for b = 0."""
    is_zero = b == 0
    return jnp.where(is_zero, 0, rounded(a / jnp.where(is_zero, 1, b)))
