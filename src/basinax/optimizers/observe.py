"""The norms before the limits of a chain in a step, returned beside the step and not stored."""

import dataclasses
from typing import Any

from basinax.optimizers.chain import Chain
from basinax.optimizers.limits.protocol import AbstractLimit
from basinax.optimizers.protocol import AbstractTransform, updated, with_prefix
from basinax.systems.types import Tree


def observe(
    transform: AbstractTransform,
    updates: Tree,
    state: Any,
    params: Tree | None = None,
    **extra: Any,
) -> tuple[Tree, Any, Any]:
    """`transform.update`, and the reports of its limits: norms before clipping and masks.

    Returns:
        The updates and the state of `update`, and the observation: for a limit the result of its
        method `limit`, for a chain a tuple with one entry per transform, and None for others.
    """
    if isinstance(transform, AbstractLimit):
        seen = transform.limit(updates, state.index_prefix)
        return seen.tree, state, seen
    if not isinstance(transform, Chain):
        updates, state = updated(transform, updates, state, params, **extra)
        return updates, state, None
    states, observations = [], []
    for part, inner in transform.with_states(state):
        updates, inner, seen = observe(part, updates, inner, params, **extra)
        states.append(with_prefix(inner, None))
        observations.append(seen)
    return updates, dataclasses.replace(state, states=tuple(states)), tuple(observations)
