"""Steps from point to point along searched lines, each system at its own trial.

An `update` reads one evaluation of every system. After a trial, the search of a system decides
whether the walk continues from the trial, or which trial comes next; no system waits for another. A
failed search is repeated once along the gradient. If the second search fails too, the system
returns to the origin of the search and has failed.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.elementary import quotient
from basinax.numerics.exponents import split
from basinax.numerics.rounding import rounded
from basinax.optimizers.line_search.armijo import Armijo
from basinax.optimizers.line_search.more_thuente import MoreThuente
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_state,
    has_part,
    kept_field,
    needed,
    needed_energies,
    rows_field,
    systems_field,
    where_systems,
    with_prefix,
)
from basinax.systems import rescale, segment
from basinax.systems.index import where_any
from basinax.systems.prefix import owned, per_system
from basinax.systems.types import PerSystem, Prefix, Tree

Search = MoreThuente | Armijo

SEARCHES: dict[str, type[Search]] = {"more-thuente": MoreThuente, "armijo": Armijo}
"""Line searches by their names in configs and texts."""


def has_search(optimizer: Any) -> bool:
    """Whether an optimizer, or a part of it, searches along lines."""
    return has_part(optimizer, Search)


class Stage(eqx.Module):
    """The points of a finished search, from which a rule chooses the next direction."""

    prefix: Prefix
    gradient: Tree
    s: Tree
    """The step from the last point of the walk."""
    y: Tree
    """The change of the gradient over `s`."""
    last_direction: Tree
    last_gradient: Tree
    is_accepted: Bool[Array, "systems"]
    """Whether the evaluation is a point of the walk."""
    is_new: Bool[Array, "systems"]
    """Whether a last point and a step from it exist, to learn from."""
    is_poor: Bool[Array, "systems"]
    """The step ended at the longest length that the search allows."""
    is_shortened: Bool[Array, "systems"]
    """The last direction was the chosen direction, shortened."""


class WalkState(AbstractState):
    """The state of each system's walk and search."""

    index_prefix: Prefix
    origin: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """The parameters at the origin of the search."""
    gradient: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    """The gradient at the origin."""
    direction: PyTree[Float[Array, "_rows *_components"]] = rows_field()
    energy: PerSystem = systems_field()
    """The energy at the origin."""
    slope: PerSystem = systems_field()
    """The slope of the energy along the direction, at the origin."""
    trial: PerSystem = systems_field()
    """The proposed step length."""
    search: Any = systems_field()
    is_shortened: Bool[Array, "systems"] = systems_field()
    """The direction is the chosen direction, shortened."""
    is_searching: Bool[Array, "systems"] = systems_field()
    """Whether the next evaluation is a trial."""
    is_repeated: Bool[Array, "systems"] = systems_field()
    """The search follows the gradient, because another direction was unusable or failed."""
    is_accepted: Bool[Array, "systems"] = systems_field()
    """Whether the last evaluation is a point of the walk."""
    is_given_up: Bool[Array, "systems"] = systems_field()
    """Whether the next evaluation is the origin again, after both searches failed."""
    has_failed: Bool[Array, "systems"] = systems_field()
    """Whether the last evaluation was such an origin."""
    memories: tuple[Any] = kept_field()


class AbstractLineSearch(AbstractTransform):
    """An optimizer that chooses directions, along which a search finds a step length.

    A new one defines its numbers, a memory (a state without a prefix of its own) and `choose`.
    """

    alpha: eqx.AbstractVar[Any]
    """The first Hessian is this number times the unit matrix."""
    search: eqx.AbstractVar[Search]

    def __check_init__(self):
        if not isinstance(self.search, Search):
            raise TypeError(f"search must be MoreThuente(...) or Armijo(...), got {self.search!r}")

    @abc.abstractmethod
    def nothing(self, parameters: Tree, index_prefix: Prefix) -> Any:
        """The memory before the first step."""

    @abc.abstractmethod
    def choose(self, memory: Any, stage: Stage) -> tuple[Tree, Any]:
        """The next direction, and the memory with the last step added.

        The memory of systems outside `stage.is_accepted` stays as it is.
        """

    def forget(self, memory: Any, parameters: Tree, index_prefix: Prefix) -> Any:
        """Reset the memory to its value before the first step."""
        return self.nothing(parameters, index_prefix)

    def first_trial(
        self, slope: PerSystem, last_slope: PerSystem, last_trial: PerSystem
    ) -> PerSystem:
        """The step length to try first; the last values are 0 before the first search."""
        return jnp.ones_like(slope)

    def first_scale(self, tree: Tree, index_prefix: Prefix) -> PerSystem:
        """The inverse of the first Hessian."""
        alpha = per_system(self.alpha, "alpha", segment.blank(tree, index_prefix))
        return rounded(1 / alpha)

    def init(self, parameters, index_prefix: Prefix = None) -> WalkState:
        blank = segment.blank(parameters, index_prefix)

        def zeros():
            return jax.tree.map(jnp.zeros_like, parameters)

        def no():
            return jnp.zeros_like(blank, bool)

        return WalkState(
            owned(index_prefix),
            origin=zeros(),
            gradient=zeros(),
            direction=zeros(),
            energy=jnp.zeros_like(blank),
            slope=jnp.zeros_like(blank),
            trial=jnp.zeros_like(blank),
            # Copies: donation requires that no array appears twice in a state.
            search=jax.tree.map(jnp.array, self.search.begin(blank, blank, blank, blank)[1]),
            is_shortened=no(),
            is_searching=no(),
            is_repeated=no(),
            is_accepted=no(),
            is_given_up=no(),
            has_failed=no(),
            memories=(self.nothing(parameters, index_prefix),),
        )

    def update(
        self, updates, state: WalkState, params=None, *, energies=None, is_running=None, **extra
    ):
        check_state(state, WalkState, self)
        prefix, gradient, who = state.index_prefix, updates, type(self).__name__
        params = needed(params, who)
        energy = needed_energies(energies, who, state.energy)

        at = _step_length(state, params)
        slope = segment.dot(gradient, state.direction, prefix)
        verdict, followed = self.search.step(state.search, at, energy, slope)
        has_trial = state.trial > 0  # false if the search could not begin
        is_accepted = ~state.is_searching | (verdict.is_accepted & has_trial)
        has_failed = state.is_searching & (verdict.has_failed | ~has_trial)
        if is_running is not None:
            is_accepted, has_failed = is_accepted & is_running, has_failed & is_running
        is_repeated = has_failed & ~state.is_repeated
        is_given_up = has_failed & state.is_repeated

        # The origin of the next search: the accepted point, or the old origin.
        base = segment.where(is_accepted, params, state.origin, prefix)
        base_gradient = segment.where(is_accepted, gradient, state.gradient, prefix)
        base_energy = jnp.where(is_accepted, energy, state.energy)
        stage = _stage(state, gradient, params, is_accepted, verdict.is_poor)
        new = _begun(self, state, stage, params, base_gradient, base_energy, is_repeated)

        begins = is_accepted | is_repeated
        direction = segment.where(begins, new.direction, state.direction, prefix)
        trial = jnp.where(begins, new.trial, jnp.where(is_given_up, 0, verdict.trial))
        values = [(is_accepted, True), (trial, 0.0)]  # padding stays where it is
        step = segment.map_rows(_towards, prefix, values, params, base, direction)
        return step, WalkState(
            prefix,
            origin=base,
            gradient=base_gradient,
            direction=direction,
            energy=base_energy,
            slope=jnp.where(begins, new.slope, state.slope),
            trial=trial,
            search=jax.tree.map(lambda x, y: jnp.where(begins, x, y), new.search, followed),
            is_shortened=jnp.where(begins, new.is_shortened, state.is_shortened),
            is_searching=~is_given_up,
            is_repeated=jnp.where(is_accepted, new.is_forgotten, is_repeated | state.is_repeated),
            is_accepted=is_accepted,
            is_given_up=is_given_up,
            has_failed=state.is_given_up,
            memories=(with_prefix(new.memory, None),),
        )

    def is_accepted(self, state: WalkState):
        return state.is_accepted

    def has_failed(self, state: WalkState):
        return state.has_failed


def _stage(state: WalkState, gradient: Tree, params: Tree, is_accepted, is_poor) -> Stage:
    return Stage(
        state.index_prefix,
        gradient,
        s=segment.map_leaves(jnp.subtract, params, state.origin),
        y=segment.map_leaves(jnp.subtract, gradient, state.gradient),
        last_direction=state.direction,
        last_gradient=state.gradient,
        is_accepted=is_accepted,
        is_new=state.is_searching & is_accepted,
        is_poor=is_poor,
        is_shortened=state.is_shortened,
    )


class _Beginning(NamedTuple):
    """How the next search of each system begins, where it does."""

    direction: Tree
    slope: PerSystem
    trial: PerSystem
    search: Any
    is_shortened: Bool[Array, "systems"]
    is_forgotten: Bool[Array, "systems"]
    memory: Any


def _begun(
    walker: AbstractLineSearch,
    state: WalkState,
    stage: Stage,
    params: Tree,
    gradient: Tree,
    energy: PerSystem,
    is_repeated: Bool[Array, "systems"],
) -> _Beginning:
    """Args: gradient, energy: at the origin of the next search."""
    search, prefix = walker.search, stage.prefix
    direction, exponents, memory, is_forgotten = _directed(
        walker, state, stage, params, gradient, is_repeated
    )
    direction, longest, is_shortened = _shortened(search, direction, exponents, prefix)
    slope = segment.dot(gradient, direction, prefix)
    first = walker.first_trial(slope, state.slope, jnp.where(is_repeated, 0, state.trial))
    first = jnp.where(is_shortened, 1, first)
    last_energy = jnp.where(state.is_searching & ~is_forgotten, state.energy, energy)
    trial, begun, is_impossible = search.begin(energy, slope, longest, first, last_energy)
    trial = jnp.where(is_impossible, 0, trial)
    return _Beginning(direction, slope, trial, begun, is_shortened, is_forgotten, memory)


def _directed(
    walker: AbstractLineSearch,
    state: WalkState,
    stage: Stage,
    params: Tree,
    gradient: Tree,
    is_repeated: Bool[Array, "systems"],
) -> tuple[Tree, Any, Any, Bool[Array, "systems"]]:
    """The next direction in units of 2^exponents, the exponents, the memory, and restarts.

    A direction that does not lead downhill is replaced by the steepest descent, and the memory is
    reset.

    Args:
        gradient: the gradient at the origin of the next search.
    """
    prefix, memory = stage.prefix, with_prefix(state.memories[0], stage.prefix)
    direction, learned = walker.choose(memory, stage)
    units = rescale.units(gradient, prefix)
    gradient = rescale.scaled_by_power(gradient, units, prefix)
    first = walker.first_scale(gradient, prefix)
    steepest = segment.scale(gradient, -first, prefix)
    length, exponents = segment.longest_row_in_units(direction, prefix)
    direction = rescale.scaled_by_power(direction, exponents, prefix)
    is_downhill = segment.dot(gradient, direction, prefix) < 0
    is_forgotten = is_repeated | (stage.is_accepted & ~(is_downhill & jnp.isfinite(length)))
    direction = segment.where(is_forgotten, steepest, direction, prefix)
    exponents = jnp.where(is_forgotten, units, exponents)
    learned = with_prefix(learned, prefix)

    def fresh():
        found = with_prefix(walker.forget(learned, params, prefix), prefix)
        return where_systems(is_forgotten, found, learned)

    memory = where_any(is_forgotten, fresh, lambda: learned)
    return direction, exponents, memory, is_forgotten


def _shortened(search: Search, direction: Tree, exponents, prefix: Prefix):
    """The direction in units of 1, its longest row, and whether it has been shortened.

    A direction is shortened if the shortest step along it exceeds the limit of the search, or if
    its square is out of range. A step of 1 is then about the longest allowed.

    Args:
        exponents: the direction is in units of 2^exponents.
    """
    length, units = segment.longest_row_in_units(direction, prefix)
    longest = segment.saturated(length, exponents + units)
    maxstep = per_system(search.maxstep, "maxstep", longest)
    # Keep the square of the direction in range.
    reach = jnp.minimum(maxstep, 2.0 ** (jnp.finfo(longest.dtype).maxexp // 4))
    is_long = rounded(search.shortest(longest) * longest) > maxstep
    is_long = (is_long | (exponents + units > 0)) & (longest > 0) & (reach > 0)
    surplus = split(longest)[1] - split(reach)[1] + 1
    down = jnp.where(is_long, surplus, 0)
    direction = rescale.scaled_by_power(direction, down - exponents, prefix)
    return direction, segment.saturated(longest, -down), is_long


def _step_length(state: WalkState, params) -> PerSystem:
    """The step length at which `params` stand: the trial, unless a limit shortened the step."""
    moved = segment.map_leaves(jnp.subtract, params, state.origin)
    length = segment.dot(moved, state.direction, state.index_prefix)
    square = segment.dot(state.direction, state.direction, state.index_prefix)
    is_known = (square > 0) & jnp.isfinite(square) & jnp.isfinite(length)
    at = rounded(length / jnp.where(is_known, square, 1))
    is_elsewhere = jnp.abs(at - state.trial) > rounded(0.01 * jnp.abs(state.trial))
    return jnp.where(is_known & is_elsewhere, at, state.trial)


def _towards(is_accepted, trial, params, base, direction):
    """The step from a point of the walk to a trial, or from one trial to another."""
    ahead = rounded(trial.astype(direction.dtype) * direction)
    return jnp.where(is_accepted, ahead, (base + ahead) - params)


def lengthened(direction: Tree, index_prefix: Prefix) -> Tree:
    """The direction, lengthened if a step of 1 along it is too short to be searched.

    The shortest is ASE's: 1e-5 (Angstrom) times the root of a third of the number of entries.
    """
    ones = jax.tree.map(jnp.ones_like, direction)
    n_entries = segment.sum(ones, index_prefix)
    thirds = quotient(n_entries, jnp.full_like(n_entries, 3))
    shortest = rounded(jnp.sqrt(rounded(1e-10 * thirds)))
    length = segment.norm(direction, index_prefix)
    is_short = (length > 0) & (length <= shortest)
    factor = jnp.where(is_short, rounded(shortest / jnp.where(is_short, length, 1)), 1)
    return segment.scale(direction, factor, index_prefix)
