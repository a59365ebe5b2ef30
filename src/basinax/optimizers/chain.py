"""Transforms one after another; the state keeps the index prefix once."""

import functools
from typing import Any

import jax.numpy as jnp

from basinax.optimizers.optax_bridge import OptaxTransform, Transformation
from basinax.optimizers.protocol import (
    ACCUMULATOR,
    AbstractState,
    AbstractTransform,
    check_parameters,
    check_state,
    is_accumulator,
    is_optax,
    states_field,
    updated,
    with_prefix,
)
from basinax.systems.prefix import owned
from basinax.systems.types import Prefix


def chain(*transforms: Transformation) -> "Chain":
    """Feed the updates of each transform to the next.

    A limit before an optimizer limits the gradient, a limit after it the step. Transformations of
    optax are accepted; `init` refuses one that mixes systems, except in global mode.

    Raises:
        TypeError: an argument is neither a transform nor an optax transformation.
    """
    return Chain(tuple(_adopted(transform, at) for at, transform in enumerate(transforms)))


def _adopted(transform, at: int) -> AbstractTransform:
    if is_optax(transform):
        return OptaxTransform(transform)
    if isinstance(transform, AbstractTransform):
        return transform
    if is_accumulator(transform):
        kind = type(transform).__name__
        raise TypeError(f"argument {at} of chain is optax's {kind}: {ACCUMULATOR}")
    raise TypeError(
        f"argument {at} of chain is {transform!r}: expected a basinax transform or an optax"
        f" transformation{_hint_of(transform)}"
    )


def _hint_of(transform) -> str:
    if isinstance(transform, type):
        return " (an instance, not the class)"
    return ": write chain(*transforms)" if isinstance(transform, list | tuple) else ""


class Chain(AbstractTransform):
    """Transforms one after another, made by `chain`."""

    transforms: tuple[AbstractTransform, ...]

    def init(self, parameters, index_prefix: Prefix = None) -> "ChainState":
        check_parameters(parameters, index_prefix)
        states = [transform.init(parameters, index_prefix) for transform in self.transforms]
        return ChainState(owned(index_prefix), tuple(with_prefix(state, None) for state in states))

    def update(self, updates, state: "ChainState", params=None, **extra):
        check_state(state, ChainState, self)
        states = []
        for transform, inner in self.with_states(state):
            updates, inner = updated(transform, updates, inner, params, **extra)
            states.append(with_prefix(inner, None))
        return updates, ChainState(state.index_prefix, tuple(states))

    def is_accepted(self, state: "ChainState"):
        """The systems at a point of the path for all transforms."""
        parts = [transform.is_accepted(inner) for transform, inner in self.with_states(state)]
        return functools.reduce(jnp.logical_and, parts, AbstractTransform.is_accepted(self, state))

    def has_failed(self, state: "ChainState"):
        """The systems for which any transform has failed."""
        parts = [transform.has_failed(inner) for transform, inner in self.with_states(state)]
        return functools.reduce(jnp.logical_or, parts, AbstractTransform.has_failed(self, state))

    def with_states(self, state: "ChainState") -> list[tuple[AbstractTransform, Any]]:
        """Each transform with its own state.

        Raises ValueError if the state is that of another number of transforms.
        """
        n, n_states = len(self.transforms), len(state.states)
        if n != n_states:
            raise ValueError(f"Chain has {n} transforms, and its state is one of {n_states}")
        inner = (with_prefix(inner, state.index_prefix) for inner in state.states)
        return list(zip(self.transforms, inner, strict=True))


class ChainState(AbstractState):
    """The states of the transforms, in their order."""

    index_prefix: Prefix
    states: tuple[Any, ...] = states_field()
