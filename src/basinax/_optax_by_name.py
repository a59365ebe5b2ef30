"""Optax transformations that remember their name and arguments, so that they can be written down.

What optax returns is a pair of closures, which tells neither.
"""

import difflib
import functools
import inspect
import json
from typing import Any

import equinox as eqx
import jax
import optax

from basinax._optax import OptaxTransform, is_optax
from basinax._optimizer import AbstractTransform, Prefix


def optax_transform(name: str, /, **arguments: Any) -> "OptaxByName":
    """The optax transformation of that name, such as `optax_transform("adam", learning_rate=0.01)`.

    It may stand where the transformation itself may, and has a config as well.

    Args:
        name: of a function in `optax`, or in a module of it, such as `contrib.prodigy`.
        arguments: for that function: numbers, strings, booleans, None, and lists of them.

    Raises:
        ValueError: there is no such function, or it knows no such argument; lists the known ones.
        TypeError: an argument is something else, such as a function, or one is missing.
    """
    try:
        text = json.dumps({key: _plain(value) for key, value in arguments.items()}, sort_keys=True)
    except TypeError as error:
        raise TypeError(
            f"arguments of optax.{name} must be numbers, strings, booleans, None or lists, to be"
            f" written to a config: {error}. Pass optax.{name}(...) itself where none is needed"
        ) from None
    _made(name, text)
    return OptaxByName(name, text)


class OptaxByName(AbstractTransform):
    """What `optax_transform` returns."""

    function: str = eqx.field(static=True)
    _arguments: str = eqx.field(static=True)

    @property
    def arguments(self) -> dict[str, Any]:
        return json.loads(self._arguments)

    def init(self, parameters, index_prefix: Prefix = None):
        return _made(self.function, self._arguments).init(parameters, index_prefix)

    def update(self, updates, state, params=None, **extra):
        return _made(self.function, self._arguments).update(updates, state, params, **extra)


@functools.lru_cache(maxsize=256)
def _made(name: str, arguments: str) -> OptaxTransform:
    """Made once for the same arguments: a transformation is told from another by identity."""
    function = _found(name)
    given, parameters = json.loads(arguments), inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(set(given) - set(parameters))
    if unknown and not takes_any:
        raise ValueError(
            f"optax.{name} has no argument {unknown[0]!r}; it has {', '.join(parameters)}"
        )
    made = function(**given)
    if not is_optax(made):
        raise ValueError(f"optax.{name} makes a {type(made).__name__}, no transformation")
    return OptaxTransform(made)


def _found(name: str) -> Any:
    found: Any = optax
    for part in name.split("."):
        found = None if part.startswith("_") else getattr(found, part, None)
    if callable(found) and not inspect.isclass(found):
        return found
    known = known_names()
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ValueError(f"optax has no transformation {name!r}{hint} Known: {', '.join(known)}")


@functools.cache
def known_names() -> list[str]:
    """The functions of optax that say that they return a transformation."""
    names = []
    for name, item in vars(optax).items():
        if inspect.isfunction(item) and not name.startswith("_"):
            returns = str(inspect.signature(item).return_annotation)
            if "GradientTransformation" in returns:
                names.append(name)
    return sorted(names)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, jax.Array) or hasattr(value, "tolist") else value
