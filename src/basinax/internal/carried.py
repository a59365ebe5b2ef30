"""L-BFGS with pairs that are stored in curved coordinates and carried to the current point.

Let q(x) be the coordinates, B = ∂q/∂x, K their diagonal stiffness and ε a weak spring on every
entry of x. M = BᵀKB + ε models the Hessian. The gradient g splits into γ = K B M⁻¹ g and ε M⁻¹ g,
with Bᵀγ + ε M⁻¹ g = g. The history stores changes of q, of x and of both parts of the gradient. At
every step all pairs become s = M⁻¹(BᵀK Δq + ε Δx) and y = BᵀΔγ + Δ(ε M⁻¹ g) of the current point,
and L-BFGS starts from M⁻¹/α: J. Nocedal, Math. Comput. 35, 773 (1980). Coordinates turn as atoms
move, and so do the pairs, so curvature that was learned of a bond stays with the bond.

This file uses no property of atoms. A system without coordinates takes the steps of plain L-BFGS.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from basinax.internal.arithmetic import dot
from basinax.internal.sparse import HessianModel, Jacobian

Vector = Float[np.ndarray, "dofs"]

WEAK = (0.03, 0.3, 3.0, 30.0)
"""Values of ε in eV/Å², the first at the start. ε holds directions that no coordinate covers."""

MISFIT, GAIN = 1.8221188003905089, 1.3498588075760032
"""ε moves one value up or down if pairs miss the model by more than the factor `MISFIT`, and miss
it less, by the factor `GAIN`, with the new value: few models have torsions as soft as those of
molecules. They are the exponentials of 0.6 and 0.3."""

MARGIN = 1e-6
"""How far above the smallest misfit a lower bound must be, which covers rounding."""

FITTED = 1000
"""The most degrees of freedom with which ε may change: trials cost two factorisations per step."""

ALPHA, PLAIN_STEP = 70.0, 0.2
"""Without coordinates: the model's stiffness (eV/Å²) before the first pair, and the longest row of
a step (Å), both as in ASE's `LBFGS`."""

COSINE = 0.1
"""A pair is used if the cosine between s and y, in the metric of the model, is at least this."""

BAND = 3.0
"""α changes if the last pair contradicts it by more than this factor."""

LEAST_TRUST, MOST_TRUST = 0.05, 0.6
"""Bounds of the limit on a coordinate's change in one step (Å or rad)."""

LEAST_REACH = 0.2
"""The smallest limit on rows of a step, relative to the longest allowed. The limit shrinks after
bad predictions that no change of a coordinate explains: the trust covers coordinates alone."""

NOISE = 1e-4
"""Predicted energy changes (eV) below which a bad prediction does not count."""

TARGETS = (0.5, 1.0, 1.0)
"""The targets of the solves for a curved step, as parts of the change of q."""

REMODELLED = 300
"""The most degrees of freedom with which each of these solves has a model of its own."""

BENT, BENT_BESIDES = 2.0, 0.02
"""A curved step is replaced by the straight one if it is longer by more than this factor, plus this
part of the longest step: the solves have then missed their target."""

PATIENCE = 20
"""After this many steps without a new lowest energy the system continues without coordinates: a bad
model may lead it in circles."""


class Coordinates(Protocol):
    """Curved coordinates of one system, in NumPy arrays of double precision."""

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Jacobian]:
        """The coordinates and their derivatives."""
        ...

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        """Positive force constants."""
        ...

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        """A change of coordinates; periodic coordinates take the shorter way round."""
        ...

    def reach(self, step: Vector) -> float:
        """The longest row of a step, relative to the longest allowed."""
        ...


class Metric:
    """M = BᵀKB + ε, factorised. Raises LinAlgError for numbers that are not finite.

    Args:
        model: BᵀKB; None without coordinates.
    """

    def __init__(self, model: HessianModel | None, weak: float):
        self.model, self.weak = model, weak
        self.factors = None if model is None else model.factorised(weak)

    def solve(self, columns: np.ndarray) -> np.ndarray:
        if self.factors is None:
            return columns / self.weak
        return self.factors.solve(columns)


class Found(NamedTuple):
    """A point, and its gradient in coordinates."""

    x: Vector
    gradient: Vector
    q: np.ndarray
    jacobian: Jacobian
    stiffness: np.ndarray
    metric: Metric
    model_step: Vector
    """M⁻¹ g."""
    parts: tuple[np.ndarray, ...]
    """The values whose changes are stored: q, x, γ and ε M⁻¹ g."""

    def under(self, metric: Metric) -> "Found":
        """The point in another metric."""
        model_step = metric.solve(self.gradient)
        gamma = self.stiffness * self.jacobian.along(model_step)
        parts = self.q, self.x, gamma, metric.weak * model_step
        return self._replace(metric=metric, model_step=model_step, parts=parts)


class Made(NamedTuple):
    """A step, with its prediction."""

    start: Found
    energy: float
    predicted: float
    size: float
    """The largest change of a coordinate, to first order."""
    reach: float
    """The longest row before bending, relative to the longest allowed."""


class StepPairs(NamedTuple):
    """The pairs in use at the current point, one per row, the newest last."""

    s: Float[np.ndarray, "pairs dofs"]
    y: Float[np.ndarray, "pairs dofs"]
    sy: Float[np.ndarray, "pairs"]
    softness: Float[np.ndarray, "pairs"]
    """s·Ms/s·y."""
    stiffness: Float[np.ndarray, "pairs"]
    """y·M⁻¹y/s·y."""
    spread: Float[np.ndarray, "pairs"]
    """|M⁻¹y|²/y·M⁻¹y."""


@dataclasses.dataclass
class Walk:
    """The steps of one system from its first point on."""

    renewed: Callable[[Vector, Coordinates | None], Coordinates]
    """Makes the coordinates at a point; returns the previous ones if they are the same."""
    plain: Coordinates
    """The empty coordinates, for a system whose coordinates do not help."""
    memory: int = 40
    trust: float = 0.3
    """The largest change of a coordinate in the next step (Å or rad)."""

    def __post_init__(self) -> None:
        self._coordinates: Coordinates | None = None
        self._alpha, self._weak, self._is_plain = 1.0, WEAK[0], False
        self._changes: deque[tuple[np.ndarray, ...]] = deque(maxlen=self.memory)
        self._points: deque[tuple[Vector, Vector]] = deque(maxlen=self.memory)
        """Earlier positions and gradients, from which new coordinates get new pairs."""
        self._made: Made | None = None
        self._reach = 1.0
        """The limit on rows of the next step, relative to the longest allowed."""
        self._lowest, self._n_since = np.inf, 0
        """The lowest energy, and the number of steps since."""

    def step(self, x: Vector, energy: float, gradient: Vector) -> Vector:
        """The next step. Always finite; 0 if the gradient is not finite."""
        if not np.isfinite(gradient).all():
            return np.zeros_like(x)
        try:
            with np.errstate(all="ignore"):
                step = self._step(x, energy, gradient)
            if np.isfinite(step).all():
                return step
        except np.linalg.LinAlgError:
            pass
        # Atoms coincide, or numbers overflowed: start anew without history.
        self.__post_init__()
        return -gradient * min(1 / ALPHA, PLAIN_STEP / max(float(np.abs(gradient).max()), 1e-300))

    def _step(self, x: Vector, energy: float, gradient: Vector) -> Vector:
        self._judge(energy)
        is_given_up = self._n_since >= PATIENCE
        coordinates = self.plain if is_given_up else self.renewed(x, self._coordinates)
        is_new, self._coordinates = coordinates is not self._coordinates, coordinates
        here = found(coordinates, x, gradient, self._weak)
        if is_new:
            self._renew(coordinates, here)
            if len(here.q) == 0 or self._is_plain:
                self._alpha = 1.0  # the old value scaled another model
            self._is_plain = not len(here.q)
        elif self._made is not None:
            self._changes.append(change(coordinates, self._made.start, here))
        self._points.append((x, gradient))
        here, pairs = self._fitted(here)
        if pairs is not None:
            self._rescale(pairs, is_plain=self._is_plain or self._weak == WEAK[-1])
        step = self._descent(here, pairs)
        if not dot(step, gradient) < 0:
            self._changes.clear()
            step = -here.model_step / self._alpha
        return self._limited(coordinates, here, energy, step)

    def _judge(self, energy: float) -> None:
        """Adapt the trust to the outcome of the last step. The step itself is never undone."""
        if self._n_since < PATIENCE:  # a system that gave up never returns to coordinates
            self._n_since = 0 if energy < self._lowest else self._n_since + 1
            self._lowest = min(self._lowest, energy)
        made = self._made
        if made is None:
            return
        change = energy - made.energy
        ratio = change / made.predicted if made.predicted < 0 else (1.0 if change <= 0 else -1.0)
        if ratio < 0.25 and abs(made.predicted) > NOISE:
            if made.size < 0.5 * self.trust:
                self._reach = max(LEAST_REACH, 0.5 * min(self._reach, made.reach))
            self.trust = max(LEAST_TRUST, 0.5 * min(self.trust, made.size))
        elif ratio > 0.75:
            if made.size > 0.8 * self.trust:
                self.trust = min(2 * self.trust, MOST_TRUST)
            if made.reach > 0.8 * self._reach:
                self._reach = min(2 * self._reach, 1.0)

    def _renew(self, coordinates: Coordinates, here: Found) -> None:
        """Compute the pairs between all stored points in new coordinates."""
        self._changes.clear()
        before = [found(coordinates, *point, self._weak) for point in self._points]
        points = [*before, here]
        self._changes.extend(change(coordinates, *pair) for pair in itertools.pairwise(points))

    def _fitted(self, here: Found) -> tuple[Found, StepPairs | None]:
        """The pairs, and the point with the ε that fits them best."""
        pairs = self._carried(here)
        if pairs is None or not len(here.q) or len(here.x) > FITTED:
            return here, pairs
        metric = fitting(here, pairs)
        self._weak = metric.weak
        if metric is here.metric:
            return here, pairs
        here = here.under(metric)
        return here, self._carried(here)

    def _carried(self, here: Found) -> StepPairs | None:
        # Axes: q, gamma [pairs, coordinates]; x, weak, metric_s, y, s [pairs, dofs]; sy, sms, yiy
        # [pairs]. One solve serves all pairs: M s = metric_s and M (inverse_y) = y.
        if not self._changes:
            return None
        q, x, gamma, weak = (np.stack(each) for each in zip(*self._changes, strict=True))
        back = here.jacobian.all_back(np.concatenate([q * here.stiffness, gamma]))
        metric_s, y = back[: len(q)] + here.metric.weak * x, back[len(q) :] + weak
        solved = here.metric.solve(np.concatenate([metric_s, y]).T).T
        s, inverse_y = solved[: len(q)], solved[len(q) :]
        sy, sms, yiy = ((a * b).sum(1) for a, b in ((s, y), (s, metric_s), (y, inverse_y)))
        usable = (sy > 1e-14) & (sy >= COSINE * np.sqrt(sms * yiy))
        if not usable.any():
            return None
        spread = (inverse_y * inverse_y).sum(1) / yiy
        s, y, sy, sms, yiy, spread = (each[usable] for each in (s, y, sy, sms, yiy, spread))
        return StepPairs(s, y, sy, sms / sy, yiy / sy, spread)

    def _rescale(self, pairs: StepPairs, *, is_plain: bool) -> None:
        """Adapt α to the newest pair: keep α while it lies within the pair's bounds.

        Args:
            is_plain: there is no model, or ε outweighs it; α follows the pair, as in plain L-BFGS.
        """
        softest, stiffest = 1 / float(pairs.softness[-1]), float(pairs.stiffness[-1])
        middle = float(np.sqrt(softest * stiffest))
        alpha, is_raised = self._alpha, self._alpha > BAND
        if is_plain:
            self._alpha = stiffest
        elif (
            softest > BAND * alpha
            or stiffest < alpha / BAND
            or (is_raised and middle < alpha / BAND)
        ):
            self._alpha = middle

    def _descent(self, here: Found, pairs: StepPairs | None) -> Vector:
        """−H⁻¹ g by the two-loop recursion of L-BFGS."""
        if pairs is None:
            return -here.model_step / self._alpha
        v, parts = here.gradient.copy(), np.zeros(len(pairs.sy))
        for k in reversed(range(len(parts))):
            parts[k] = dot(pairs.s[k], v) / pairs.sy[k]
            v -= parts[k] * pairs.y[k]
        z = here.metric.solve(v) / self._alpha
        for k in range(len(parts)):
            z += pairs.s[k] * (parts[k] - dot(pairs.y[k], z) / pairs.sy[k])
        return -z

    def _limited(
        self, coordinates: Coordinates, here: Found, energy: float, step: Vector
    ) -> Vector:
        """The step within its limits, along the coordinates; stores its prediction."""
        size = float(np.abs(here.jacobian.along(step)).max(initial=0.0))
        part = min(1.0, self.trust / size if size > self.trust else 1.0)
        reach, longest = part * coordinates.reach(step), self._reach if len(here.q) else 1.0
        part = part * longest / reach if reach > longest else part
        # The full step solves H step = -g, which gives g·d + ½ d·Hd of a part d.
        predicted = dot(here.gradient, step) * (part - 0.5 * part**2)
        step = part * step
        straight = coordinates.reach(step)
        self._made = Made(here, energy, predicted, part * size, straight)
        if not len(here.q):
            return step
        bent = curved(coordinates, here, step)
        return bent if coordinates.reach(bent) <= BENT * straight + BENT_BESIDES else step


def found(coordinates: Coordinates, x: Vector, gradient: Vector, weak: float) -> Found:
    """The point in these coordinates."""
    q, jacobian = coordinates.at(x)
    stiffness = coordinates.stiffness(x)
    model = HessianModel(jacobian, stiffness) if len(q) else None
    metric = Metric(model, weak if len(q) else ALPHA)
    return Found(x, gradient, q, jacobian, stiffness, metric, x, ()).under(metric)


def fitting(here: Found, pairs: StepPairs) -> Metric:
    """The metric, or the one with a neighbouring ε with which the pairs fit the model better."""
    weak, best = here.metric.weak, misfit(pairs.softness, pairs.stiffness)
    if best < MISFIT:
        return here.metric
    chosen, best = here.metric, best / GAIN
    place = WEAK.index(weak)
    for other in WEAK[max(place - 1, 0) : place + 2]:
        if other == weak:
            continue
        softness = pairs.softness + (other - weak) * (pairs.s * pairs.s).sum(1) / pairs.sy
        # y·(M + δ)⁻¹y over y·M⁻¹y is a mean of 1/(1 + δ/λ) over M's eigenvalues λ. It is convex in
        # 1/λ, so by Jensen's inequality the mean is at least its value at the mean of 1/λ.
        least = pairs.stiffness / (1 + (other - weak) * pairs.spread)
        if misfit(softness, least) > best * (1 + MARGIN):
            continue
        metric = Metric(here.metric.model, other)
        stiffness = (pairs.y * metric.solve(pairs.y.T).T).sum(1) / pairs.sy
        off = misfit(softness, stiffness)
        if off < best:
            chosen, best = metric, off
    return chosen


def misfit(softness: np.ndarray, stiffness: np.ndarray) -> float:
    """The factor by which the pairs miss one multiple of the model; 1 if they fit exactly."""
    return float(softness.mean() * stiffness.mean())


def change(coordinates: Coordinates, before: Found, after: Found) -> tuple[np.ndarray, ...]:
    """The changes of `parts` from point to point."""
    q, *others = (b - a for a, b in zip(before.parts, after.parts, strict=True))
    return coordinates.wrapped(q), *others


def curved(coordinates: Coordinates, here: Found, step: Vector) -> Vector:
    """A step that changes the coordinates as much as the straight step does to first order."""
    moved, x, weak = here.jacobian.along(step), here.x, here.metric.weak
    for target in TARGETS:
        q, jacobian, metric = here.q, here.jacobian, here.metric
        if x is not here.x:
            q, jacobian = coordinates.at(x)
            if len(x) <= REMODELLED:  # factors are expensive for larger systems
                metric = Metric(HessianModel(jacobian, here.stiffness), weak)
        missing = coordinates.wrapped(here.q + target * moved - q)
        force = jacobian.back(here.stiffness * missing)
        x = x + metric.solve(force + weak * (here.x + target * step - x))
    return x - here.x
