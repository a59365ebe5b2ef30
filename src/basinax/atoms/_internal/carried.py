"""L-BFGS whose pairs are kept in curved coordinates and carried to where the system stands.

With q(x) the coordinates, B = ∂q/∂x, K their diagonal stiffness and ε a weak spring on every entry
of x, M = BᵀKB + ε is the model of the Hessian. The gradient g becomes γ = K B M⁻¹ g and ε M⁻¹ g,
with Bᵀγ + ε M⁻¹ g = g. Changes of q, of x and of both parts of the gradient are kept. At every step
all pairs become s = M⁻¹(BᵀK Δq + ε Δx) and y = BᵀΔγ + Δ(ε M⁻¹ g) of the present point, and L-BFGS
goes on from M⁻¹/α: J. Nocedal, Math. Comput. 35, 773 (1980). Coordinates that bonds couple turn as
atoms move; so do the pairs here, and what was learned of a bond stays true.

Nothing here knows of atoms. A system without coordinates has the steps of plain L-BFGS.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from basinax.atoms._internal.sparse import DENSE, Jacobian, factorised

Vector = Float[np.ndarray, "dofs"]

WEAK = (0.03, 0.3, 3.0, 30.0)
"""ε, in eV/Å²: the first, and those that it may become. It holds what no coordinate covers."""

MISFIT, GAIN = 0.6, 0.3
"""Where pairs are off the model by more than the first, ε becomes the next larger or smaller, if
they are off by less then, by the second: few models have torsions as soft as molecules have."""

FITTED = 1000
"""With so many degrees of freedom, at most, ε may change: two factors more a step."""

ALPHA, PLAIN_STEP = 70.0, 0.2
"""Without coordinates: the model's stiffness (eV/Å²) before the first pair, and the longest row of
a step (Å), as ASE's `LBFGS` has them."""

COSINE = 0.1
"""A pair is used where the cosine between s and y, in the metric of the model, is at least this."""

BAND = 3.0
"""α is changed where the last pair says that it is wrong by more than this factor."""

LEAST_TRUST, MOST_TRUST = 0.05, 0.6
"""Between which the largest change of a coordinate in one step (Å or rad) is limited."""

LEAST_REACH = 0.2
"""Down to which part of its longest a row of a step is limited after bad predictions that no change
of a coordinate explains: what no coordinate covers has no trust of its own."""

NOISE = 1e-4
"""Predicted changes of the energy (eV) below which a bad prediction is not held against a step."""

TARGETS = (0.5, 1.0, 1.0)
"""Parts of the change of q that the solves of a curved step aim at."""

BENT, BENT_BESIDES = 2.0, 0.02
"""A step that is longer by more than this factor, and this part of the longest, where it is curved
than where it is straight has missed its target, and is made straight."""

PATIENCE = 20
"""After so many steps without an energy below all others, the system goes on without coordinates: a
model that does not fit it may lead it in circles."""


class Coordinates(Protocol):
    """Curved coordinates of one system, in NumPy arrays of double precision."""

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Jacobian]:
        """The coordinates, and their derivatives."""
        ...

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        """Positive force constants."""
        ...

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        """A change of coordinates, by the shorter way round of those that are periodic."""
        ...

    def reach(self, step: Vector) -> float:
        """The longest row of a step, as a part of the longest that is allowed."""
        ...


class Metric:
    """M = BᵀKB + ε, factorised. Raises LinAlgError where numbers are not finite."""

    def __init__(self, jacobian: Jacobian, stiffness: np.ndarray, weak: float):
        self.weak = weak
        self.factor = factorised(jacobian, stiffness, weak) if len(stiffness) else None

    def solve(self, columns: np.ndarray) -> np.ndarray:
        if self.factor is None:
            return columns / self.weak
        return self.factor.solve(columns)


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
    """Of which changes are kept: q, x, γ and ε M⁻¹ g."""


class Made(NamedTuple):
    """A step, and what was expected of it."""

    start: Found
    energy: float
    predicted: float
    size: float
    """The largest change of a coordinate, linearly."""
    reach: float
    """The longest row, as a part of the longest that is allowed, before it was bent."""


class Pairs(NamedTuple):
    """Pairs that are used at the present point, one a row, the newest last."""

    s: Float[np.ndarray, "pairs dofs"]
    y: Float[np.ndarray, "pairs dofs"]
    sy: Float[np.ndarray, "pairs"]
    softness: Float[np.ndarray, "pairs"]
    """s·Ms/s·y."""
    stiffness: Float[np.ndarray, "pairs"]
    """y·M⁻¹y/s·y."""


@dataclasses.dataclass
class Walk:
    """The steps of one system, from its first point on."""

    renewed: Callable[[Vector, Coordinates | None], Coordinates]
    """The coordinates for a system that stands somewhere; those before where they are the same."""
    plain: Coordinates
    """None, for a system that its coordinates do not help."""
    memory: int = 40
    trust: float = 0.3
    """The largest change of a coordinate in the next step (Å or rad)."""

    def __post_init__(self) -> None:
        self._coordinates: Coordinates | None = None
        self._alpha, self._weak, self._is_plain = 1.0, WEAK[0], False
        self._changes: deque[tuple[np.ndarray, ...]] = deque(maxlen=self.memory)
        self._points: deque[tuple[Vector, Vector]] = deque(maxlen=self.memory)
        """Positions and gradients before the present ones: pairs are made anew of them where
        coordinates are new."""
        self._made: Made | None = None
        self._reach = 1.0
        """The longest row of the next step, as a part of the longest that is allowed."""
        self._lowest, self._n_since = np.inf, 0
        """The lowest energy, and how many steps ago it was found."""

    def step(self, x: Vector, energy: float, gradient: Vector) -> Vector:
        """The step from here. Finite numbers always; 0 where the gradient has others."""
        if not np.isfinite(gradient).all():
            return np.zeros_like(x)
        try:
            with np.errstate(all="ignore"):
                step = self._step(x, energy, gradient)
            if np.isfinite(step).all():
                return step
        except np.linalg.LinAlgError:
            pass
        # Atoms on one another, or numbers beyond all range: nothing of it is kept.
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
                self._alpha = 1.0  # it was the part of another model
            self._is_plain = not len(here.q)
        elif self._made is not None:
            self._changes.append(change(coordinates, self._made.start, here))
        self._points.append((x, gradient))
        here, pairs = self._fitted(coordinates, here)
        if pairs is not None:
            self._rescale(pairs, is_plain=self._is_plain or self._weak == WEAK[-1])
        step = self._descent(here, pairs)
        if not step @ gradient < 0:
            self._changes.clear()
            step = -here.model_step / self._alpha
        return self._limited(coordinates, here, energy, step)

    def _judge(self, energy: float) -> None:
        """Trust the model more or less by what came of the last step, which is kept as it is."""
        if self._n_since < PATIENCE:  # for good
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
        """The pairs between all points that are kept, in new coordinates."""
        self._changes.clear()
        before = [found(coordinates, *point, self._weak) for point in self._points]
        points = [*before, here]
        self._changes.extend(change(coordinates, *pair) for pair in itertools.pairwise(points))

    def _fitted(self, coordinates: Coordinates, here: Found) -> tuple[Found, Pairs | None]:
        """The pairs, and the point with the ε that fits them."""
        pairs = self._carried(here)
        if pairs is None or not len(here.q) or len(here.x) > FITTED:
            return here, pairs
        self._weak = fitting(here, pairs)
        if self._weak == here.metric.weak:
            return here, pairs
        here = found(coordinates, here.x, here.gradient, self._weak)
        return here, self._carried(here)

    def _carried(self, here: Found) -> Pairs | None:
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
        s, y, sy, sms, yiy = (each[usable] for each in (s, y, sy, sms, yiy))
        return Pairs(s, y, sy, sms / sy, yiy / sy)

    def _rescale(self, pairs: Pairs, *, is_plain: bool) -> None:
        """α by the newest pair: kept while it lies between the bounds that this one gives.

        Args:
            is_plain: there is no model, or hardly one beside the largest ε: α follows, as in plain
                L-BFGS.
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

    def _descent(self, here: Found, pairs: Pairs | None) -> Vector:
        """−H⁻¹ g by the two loops of L-BFGS."""
        if pairs is None:
            return -here.model_step / self._alpha
        v, parts = here.gradient.copy(), np.zeros(len(pairs.sy))
        for k in reversed(range(len(parts))):
            parts[k] = (pairs.s[k] @ v) / pairs.sy[k]
            v -= parts[k] * pairs.y[k]
        z = here.metric.solve(v) / self._alpha
        for k in range(len(parts)):
            z += pairs.s[k] * (parts[k] - (pairs.y[k] @ z) / pairs.sy[k])
        return -z

    def _limited(
        self, coordinates: Coordinates, here: Found, energy: float, step: Vector
    ) -> Vector:
        """The step within its limits, along the coordinates; says what is expected of it."""
        size = float(np.abs(here.jacobian.along(step)).max(initial=0.0))
        part = min(1.0, self.trust / size if size > self.trust else 1.0)
        reach, longest = part * coordinates.reach(step), self._reach if len(here.q) else 1.0
        part = part * longest / reach if reach > longest else part
        # H is that of the whole step, so that g·d + ½ d·Hd of a part of it is known.
        predicted = float(here.gradient @ step) * (part - 0.5 * part**2)
        step = part * step
        straight = coordinates.reach(step)
        self._made = Made(here, energy, predicted, part * size, straight)
        if not len(here.q):
            return step
        bent = curved(coordinates, here, step)
        return bent if coordinates.reach(bent) <= BENT * straight + BENT_BESIDES else step


def found(coordinates: Coordinates, x: Vector, gradient: Vector, weak: float) -> Found:
    """A point in these coordinates."""
    q, jacobian = coordinates.at(x)
    stiffness = coordinates.stiffness(x)
    metric = Metric(jacobian, stiffness, weak if len(q) else ALPHA)
    model_step = metric.solve(gradient)
    parts = q, x, stiffness * jacobian.along(model_step), metric.weak * model_step
    return Found(x, gradient, q, jacobian, stiffness, metric, model_step, parts)


def fitting(here: Found, pairs: Pairs) -> float:
    """ε: that of the point, or ten times as large or small, if pairs fit the model better then."""
    weak, best = here.metric.weak, misfit(pairs.softness, pairs.stiffness)
    if best < MISFIT:
        return weak
    chosen, best = weak, best - GAIN
    place = WEAK.index(weak)
    for other in WEAK[max(place - 1, 0) : place + 2]:
        if other == weak:
            continue
        metric = Metric(here.jacobian, here.stiffness, other)
        softness = pairs.softness + (other - weak) * (pairs.s * pairs.s).sum(1) / pairs.sy
        stiffness = (pairs.y * metric.solve(pairs.y.T).T).sum(1) / pairs.sy
        off = misfit(softness, stiffness)
        if off < best:
            chosen, best = other, off
    return chosen


def misfit(softness: np.ndarray, stiffness: np.ndarray) -> float:
    """How far pairs are from being those of one multiple of the model: 0 where they are."""
    return float(np.log(softness.mean() * stiffness.mean()))


def change(coordinates: Coordinates, before: Found, after: Found) -> tuple[np.ndarray, ...]:
    """Of what is kept, from point to point."""
    q, *others = (b - a for a, b in zip(before.parts, after.parts, strict=True))
    return coordinates.wrapped(q), *others


def curved(coordinates: Coordinates, here: Found, step: Vector) -> Vector:
    """A step to where the coordinates have changed as much as they would along a straight one."""
    moved, x, weak = here.jacobian.along(step), here.x, here.metric.weak
    for target in TARGETS:
        q, jacobian, metric = here.q, here.jacobian, here.metric
        if x is not here.x:
            q, jacobian = coordinates.at(x)
            if len(x) <= DENSE:  # the first model serves large systems, whose factors are dear
                metric = Metric(jacobian, here.stiffness, weak)
        missing = coordinates.wrapped(here.q + target * moved - q)
        force = jacobian.back(here.stiffness * missing)
        x = x + metric.solve(force + weak * (here.x + target * step - x))
    return x - here.x
