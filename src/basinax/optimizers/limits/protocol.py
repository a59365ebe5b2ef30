"""Limits: transforms that shorten updates, need no memory, and can report norms and masks."""

import abc
import traceback
from typing import Any

from basinax.numerics.settings import warn
from basinax.optimizers.protocol import AbstractState, AbstractTransform, check_parameters
from basinax.systems.prefix import owned
from basinax.systems.types import Prefix, Tree


class LimitState(AbstractState):
    """Nothing but the index prefix: limits need no memory."""

    index_prefix: Prefix


class AbstractLimit(AbstractTransform):
    """A transform that limits the gradient before an optimizer in a chain, the step after it."""

    def init(self, parameters, index_prefix: Prefix = None) -> LimitState:
        check_parameters(parameters, index_prefix)
        if index_prefix is None and _is_called_by_optax():
            name = type(self).__name__
            warn(
                f"{name} in optax.chain limits all parameters as one system: put"
                f" {name}(...).to_optax(index) there, or .to_optax() where that is meant"
            )
        return LimitState(owned(index_prefix))

    @abc.abstractmethod
    def limit(self, updates: Tree, index_prefix: Prefix = None) -> Any:
        """The limited updates, with norms and masks for a person to read.

        Returns:
            A named tuple whose `tree` is the limited updates.
        """

    def update(self, updates, state, params=None, **extra):
        found = self.limit(updates, state.index_prefix)
        if not hasattr(found, "tree"):
            name = type(self).__name__
            raise TypeError(f"{name}.limit must return a named tuple with the limited `tree`")
        return found.tree, state


def _is_called_by_optax() -> bool:
    """Whether the calling method was called by optax, which passes no index; equinox aside."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(None))
    names = (name for name in names if not name.startswith("equinox"))
    callers = (name for name in names if name != __name__)
    return next(callers, "").startswith("optax")
