"""Limits: transforms that shorten updates, need no memory, and can say what they saw."""

import abc
from typing import Any

from basinax._systems.types import Prefix, Tree
from basinax.transforms._protocol import (
    AbstractState,
    AbstractTransform,
    check_parameters,
)


class LimitState(AbstractState):
    """Nothing but the index prefix: limits need no memory."""

    index_prefix: Prefix


class AbstractLimit(AbstractTransform):
    """A transform that limits the gradient before an optimizer in a chain, the step after it."""

    def init(self, parameters, index_prefix: Prefix = None) -> LimitState:
        check_parameters(parameters, index_prefix)
        return LimitState(index_prefix)

    @abc.abstractmethod
    def limit(self, updates: Tree, index_prefix: Prefix = None) -> Any:
        """The limited updates and what was seen of them, for a person to read.

        Returns:
            A named tuple whose `tree` is the limited updates.
        """

    def update(self, updates, state, params=None, **extra):
        return self.limit(updates, state.index_prefix).tree, state
