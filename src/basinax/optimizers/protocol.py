"""The protocol of transforms: `init` makes a state, `update` turns a gradient into a step.

A transform is an equinox dataclass whose numbers are leaves. Its state carries the index prefix;
every other array leads with rows or with systems, so freezing or resetting a system is one `where`.
"""

import abc
import dataclasses
import functools
import sys
from collections.abc import Iterator
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from basinax.numerics.rounding import rounded
from basinax.numerics.settings import check_settings
from basinax.systems import segment
from basinax.systems.folds import take
from basinax.systems.prefix import is_index, n_systems
from basinax.systems.types import Prefix, Tree

if TYPE_CHECKING:  # importing optax takes 0.2 s, which only its users should pay
    import optax

_LEADS_WITH = "leads_with"
_IS_KEPT = "is_kept"


def rows_field() -> Any:
    """A field of a state: a tree like the parameters."""
    return eqx.field(metadata={_LEADS_WITH: "rows"})


def first_rows_field() -> Any:
    """A field of a state: a tree of arrays with one entry per row of the parameters' first leaf."""
    return eqx.field(metadata={_LEADS_WITH: "first rows"})


def systems_field() -> Any:
    """A field of a state: a tree of arrays with one entry per system."""
    return eqx.field(metadata={_LEADS_WITH: "systems"})


def layout_field() -> Any:
    """A field of a state: a tree of arrays that lead with systems, which `init` makes of the prefix
    alone, such as the numbers of rows, and no `update` changes."""
    return eqx.field(metadata={_LEADS_WITH: "layout"})


def slots_field() -> Any:
    """A field of a state: a tree like the parameters with an axis of slots before the rows."""
    return eqx.field(metadata={_LEADS_WITH: "slots"})


def states_field() -> Any:
    """A field of a state: a state, or a tuple of states, whose own `index_prefix` is None."""
    return eqx.field(metadata={_LEADS_WITH: "states"})


def kept_field() -> Any:
    """A `states_field` of states that `update` leaves unchanged where `is_running` is false.

    For large states: selecting between two of them takes longer than updating one.
    """
    return eqx.field(metadata={_LEADS_WITH: "states", _IS_KEPT: True})


def leads_with(field: dataclasses.Field) -> str | None:
    """The first axis of a declared field, such as "rows" or "systems"; None if undeclared."""
    return field.metadata.get(_LEADS_WITH)


SHORT = 60
"""The largest number of characters of a field in the text of a state."""


class AbstractState(eqx.Module):
    """The memory of a transform for its next step, and the index prefix.

    Every field but `index_prefix`, and static ones, is declared with `rows_field`, `slots_field`,
    `systems_field`, `layout_field`, `states_field` or `kept_field`.
    """

    index_prefix: eqx.AbstractVar[Prefix]

    def __repr__(self) -> str:
        """One line: the systems, and the fields with their shapes or classes."""
        prefix = [] if self.index_prefix is None else [repr(self.index_prefix)]
        names = [f.name for f in dataclasses.fields(self) if f.name != "index_prefix"]
        fields = [f"{name}={_in_short(getattr(self, name))}" for name in names]
        return f"{type(self).__name__}({', '.join([*prefix, *fields])})"

    def rows_prefix(self, index_prefix: Prefix) -> Prefix:
        """The prefix of the fields that lead with rows, from the prefix of the parameters."""
        return index_prefix


def _in_short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_short, value))})"
    text = "" if isinstance(value, eqx.Module) else eqx.tree_pformat(value, width=SHORT)
    return text if 0 < len(text) <= SHORT else type(value).__name__


class AbstractTransform(eqx.Module):
    """A transform of updates: a limit, or an optimizer that turns the gradient into a step."""

    def __check_init__(self):
        check_settings(self)

    def __repr__(self) -> str:
        """The class with every setting, defaults included."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        shown = {n: eqx.tree_pformat(x) if eqx.is_array(x) else x for n, x in settings.items()}
        return f"{type(self).__name__}({', '.join(f'{n}={x!s}' for n, x in shown.items())})"

    @abc.abstractmethod
    def init(self, parameters: Tree, index_prefix: Prefix = None) -> Any:
        """The state before the first step.

        Args:
            parameters: the tree to optimise; the leading axis of each leaf goes over rows.
            index_prefix: a `SystemIndex`, or a tree prefix of `parameters` with such leaves. With
                None (global mode) all of `parameters` is one system. The state holds a copy, so
                `jit(..., donate_argnums=...)` of a state leaves the index as it is.
        """

    @abc.abstractmethod
    def update(
        self, updates: Tree, state: Any, params: Tree | None = None, **extra: Any
    ) -> tuple[Tree, Any]:
        """The next updates and state; unknown extra keyword arguments are ignored.

        Args:
            params: the point at which `updates` was evaluated; some optimizers need it.
            extra: `energies` of the systems at `params`, shape `[n_systems]`, for transforms that
                read them; `extras`, further results of the evaluation per system; `is_running`, the
                mask of systems whose step will be made, to save work on the others.
        """

    def to_optax(self, index_prefix: Prefix = None) -> "optax.GradientTransformationExtraArgs":
        """This transform with an index of its own, for `optax.chain`, flax and the like.

        optax calls `init` with parameters alone, so the index that separates systems is given here.

        Args:
            index_prefix: as for `init`. With None, all parameters are one system.
        """
        import optax

        return optax.GradientTransformationExtraArgs(
            lambda params: self.init(params, index_prefix), self.update
        )

    def is_accepted(self, state: Any) -> Bool[Array, "systems"]:
        """Whether `params` of the `update` that made this state is a point of the path.

        False at a trial of a line search, at which a system is not judged and no step is counted.
        """
        return jnp.ones((n_systems(state.index_prefix),), bool)

    def has_failed(self, state: Any) -> Bool[Array, "systems"]:
        """Whether the optimizer cannot continue, as after a failed line search."""
        return jnp.zeros((n_systems(state.index_prefix),), bool)


class AbstractAround(AbstractTransform):
    """A transform around an optimizer, with the state of the optimizer."""

    optimizer: AbstractTransform

    def init(self, parameters, index_prefix=None):
        return self.optimizer.init(parameters, index_prefix)

    def is_accepted(self, state):
        return self.optimizer.is_accepted(state)

    def has_failed(self, state):
        return self.optimizer.has_failed(state)


def check_parameters(parameters: Tree, index_prefix: Prefix) -> None:
    """Check, before the first step, that the parameters can be optimised.

    Raises:
        TypeError: a leaf does not hold floating-point numbers; the message names it.
        ValueError: the prefix does not fit the parameters.
    """
    segment.blank(parameters, index_prefix)


def check_transform(optimizer: Any) -> None:
    """Raise TypeError, with the types to pass, if `optimizer` is no transform."""
    if isinstance(optimizer, AbstractTransform):
        return
    got = f"got {type(optimizer).__name__}"
    if isinstance(optimizer, type):
        got = f"got the class {optimizer.__name__}: make one with {optimizer.__name__}()"
    elif is_optax(optimizer):
        got = "got an optax transformation: put it into a chain(...)"
    elif is_accumulator(optimizer):
        got = f"got optax's {type(optimizer).__name__}: {ACCUMULATOR}"
    elif callable(optimizer) and (name := getattr(optimizer, "__name__", "")):
        got = f"got the function {name}: pass what it makes, one of optax within a chain(...)"
    raise TypeError(f"optimizer must be a transform such as FIRE() or a chain(...), {got}")


def has_part(optimizer: Any, kind: type | UnionType) -> bool:
    """Whether an optimizer, or a part of it, is of a class."""
    parts = jax.tree.leaves(optimizer, is_leaf=lambda x: isinstance(x, kind))
    return any(isinstance(part, kind) for part in parts)


def updated(
    transform: AbstractTransform, updates: Tree, state: Any, params: Tree | None, **extra: Any
) -> tuple[Tree, Any]:
    """What `transform.update` returns.

    Raises:
        TypeError: it is no pair, or its state is of another class than the one that it got.
        ValueError: its updates have another structure or other shapes than those that it got.
    """
    found, name = transform.update(updates, state, params, **extra), type(transform).__name__
    if not (isinstance(found, tuple) and len(found) == 2):
        got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
        raise TypeError(f"{name}.update must return the pair (updates, state), got {got}")
    if type(found[1]) is not type(state):
        got = f"a {type(found[1]).__name__} where it got a {type(state).__name__}"
        raise TypeError(
            f"{name}.update must return a state like the one that it got, returned {got}"
        )
    segment.check_alike(updates, found[0], f"updates that {name} gets and returns")
    return found


def is_optax(transform: Any) -> bool:
    """Whether a transform is one of optax, which then has been imported."""
    kind = getattr(sys.modules.get("optax"), "GradientTransformation", None)
    return kind is not None and isinstance(transform, kind)


def is_accumulator(transform: Any) -> bool:
    """Whether this is a class of optax, such as `MultiSteps`, that is no transformation itself."""
    return callable(getattr(transform, "gradient_transformation", None))


ACCUMULATOR = "put .gradient_transformation() of it into a chain(...)"


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """`params + updates`, with each update rounded before it is added.

    Raises ValueError if the trees differ in structure or shapes.
    """

    def add(x, step):
        return x + rounded(jnp.asarray(step).astype(jnp.result_type(x)))

    return segment.map_leaves(add, params, updates)


def with_prefix(state: Any, index_prefix: Prefix) -> Any:
    """The state with another index prefix, None for a state inside another state.

    Raises TypeError if an optimizer's `init` has made something else than a state.
    """
    if not isinstance(state, AbstractState):
        got = type(state).__name__
        raise TypeError(f"init of an optimizer must return an AbstractState, got a {got}")
    return dataclasses.replace(state, index_prefix=index_prefix)


def where_systems(mask: Bool[Array, "systems"], on_true: Any, on_false: Any) -> Any:
    """A state with the systems of `mask` from `on_true` and the others from `on_false`.

    Raises:
        ValueError: `mask` does not have one entry per system (one in global mode).
    """
    segment.check_mask(mask, n_systems(on_false.index_prefix))
    return select_state(mask, on_true, on_false, on_false.index_prefix)


def stepped(moves: Bool[Array, "systems"], after: Any, before: Any) -> Any:
    """The state after an `update` for the systems that move, and before it for the others.

    A `kept_field` is always the one after the update; it differs only after the end of a run.
    """
    return select_state(moves, after, before, before.index_prefix, is_step=True)


def reset(
    transform: AbstractTransform, state: Any, params: Tree, mask: Bool[Array, "systems"]
) -> Any:
    """The state with the systems of `mask` reset to before their first step.

    Args:
        params: the parameters, with the new start of the masked systems.
        mask: the systems to reset, shape `[n_systems]` (`[1]` in global mode).
    """
    return where_systems(jnp.asarray(mask), transform.init(params, state.index_prefix), state)


def select_systems(mask: Bool[Array, "systems"], on_true: Any, on_false: Any) -> Any:
    """Trees of arrays that lead with systems: those of `mask` from `on_true`."""

    def select(x, y):
        is_same = x is y  # passed on, such as the rows of a Hessian
        return y if is_same else jnp.where(mask.reshape((-1,) + (1,) * (y.ndim - 1)), x, y)

    return jax.tree.map(select, on_true, on_false)


def select_state(
    mask: Bool[Array, "systems"],
    on_true: Any,
    on_false: Any,
    prefix: Prefix,
    *,
    is_step: bool = False,
) -> Any:
    """`where_systems` for states inside another with this prefix, or for None."""
    if prefix is None:
        return jax.tree.map(lambda x, y: jnp.where(mask[0], x, y), on_true, on_false)
    if on_false is None:
        return None
    if type(on_true) is not type(on_false):
        got = f"a {type(on_true).__name__} and a {type(on_false).__name__}"
        raise TypeError(f"systems can be taken from two states of one optimizer, got {got}")

    def rows(x, y, prefix):
        return segment.where(mask, x, y, prefix)

    def field_of(field: Any, y: Any) -> Any:
        x = getattr(on_true, field.name)
        match leads_with(field):
            case "rows":
                return rows(x, y, on_false.rows_prefix(prefix))
            case "first rows":
                return rows(x, y, jax.tree.leaves(prefix, is_leaf=is_index)[0])
            case "slots":
                select = functools.partial(rows, prefix=on_false.rows_prefix(prefix))
                return jax.vmap(select)(x, y)
            case "systems" | "layout":
                return select_systems(mask, x, y)
            case "states" if is_step and field.metadata.get(_IS_KEPT):
                return x
            case "states" if isinstance(y, tuple):
                if len(x) != len(y):
                    raise ValueError(f"a chain of {len(x)} transforms has no state of {len(y)}")
                pairs = zip(x, y, strict=True)
                return tuple(select_state(mask, *p, prefix, is_step=is_step) for p in pairs)
            case "states":
                return select_state(mask, x, y, prefix, is_step=is_step)
        raise TypeError(
            f"field {field.name} of {type(on_false).__name__} must be declared with"
            " rows_field, slots_field, systems_field, layout_field, states_field or kept_field"
        )

    selected = {field.name: field_of(field, y) for field, y in _arrays_of(on_false)}
    return dataclasses.replace(on_false, **selected)


def _arrays_of(state: Any) -> Iterator[tuple[Any, Any]]:
    """The fields of a state that hold arrays, but for the prefix, with their values."""
    for field in dataclasses.fields(state):
        value, is_static = getattr(state, field.name), bool(field.metadata.get("static"))
        if field.name != "index_prefix" and not is_static and jax.tree.leaves(value):
            yield field, value


class Places(NamedTuple):
    """Where each system, and each row, stood before it came to its place."""

    systems: Int32[Array, "systems"]
    """The number of each system before."""
    rows: Any
    """For each leaf of the prefix, the number of each row before; the number of rows for none."""


def placed_systems(places: Places, state: Any, fresh: Any) -> Any:
    """`fresh`, a state in another prefix, with the values that its systems have in `state`."""

    def of_rows(tree):
        rows = jax.tree.broadcast(state.rows_prefix(places.rows), tree)
        return jax.tree.map(lambda y, at: take(y, at, 0), tree, rows)

    def field_of(field: Any, y: Any) -> Any:
        x = getattr(fresh, field.name)
        match leads_with(field):
            case "rows":
                return of_rows(y)
            case "first rows":
                rows = jax.tree.leaves(places.rows)[0]
                return jax.tree.map(lambda y: take(y, rows, 0), y)
            case "slots":
                return jax.vmap(of_rows)(y)
            case "systems":
                return jax.tree.map(lambda y: take(y, places.systems, 0), y)
            case "states" if isinstance(y, tuple):
                return tuple(placed_systems(places, *pair) for pair in zip(y, x, strict=True))
            case "states":
                return placed_systems(places, y, x)
        return x  # of the layout, or not declared, which `select_state` refuses

    placed = {field.name: field_of(field, y) for field, y in _arrays_of(state)}
    return dataclasses.replace(fresh, **placed)


def check_state(state: Any, kind: type, who: Any) -> None:
    """Raise TypeError unless a state is of the class that this transform's `init` makes."""
    if not isinstance(state, kind):
        name, got = type(who).__name__, type(state).__name__
        raise TypeError(f"{name} needs the {kind.__name__} that its init makes, got a {got}")


def needed(params: Tree | None, who: str) -> Tree:
    """The params, for a transform that needs them.

    Raises TypeError if they are None.
    """
    if params is None:
        raise TypeError(f"{who} looks at where it is: call update(updates, state, params)")
    return params


def needed_energies(energies: Any, who: str, like: Array) -> Array:
    """The energies, in the dtype of `like`, for a transform that cannot do without.

    Raises TypeError where there are none, ValueError where they are not one a system, as `like`.
    """
    if energies is None:
        raise TypeError(f"{who} needs energies: call update(..., energies=energies)")
    energies = jnp.asarray(energies)
    if energies.shape != like.shape:
        raise ValueError(f"energies must be one a system, {like.shape}: got {energies.shape}")
    return energies.astype(like.dtype)
