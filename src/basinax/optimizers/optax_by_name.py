"""Optax transformations that store their name and arguments, so that configs can hold them.

Optax itself returns a pair of closures without either.
"""

import difflib
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from basinax.optimizers.optax_bridge import OptaxTransform
from basinax.optimizers.protocol import AbstractTransform, is_optax
from basinax.systems.types import Prefix


def optax_transform(name: str, /, **arguments: Any) -> "OptaxByName":
    """The optax transformation of a name, such as `optax_transform("adam", learning_rate=0.01)`.

    The result can replace the transformation itself anywhere, and can be written to a config.

    Args:
        name: the name of a function that makes a transformation, in `optax` or with the name of its
            module, such as `contrib.prodigy`.
        arguments: the function's arguments: numbers, strings, booleans, None, and lists of these.

    Raises:
        ValueError, TypeError: the function or an argument is unknown (the message lists known
            ones), is missing, has another type, such as a function, or is refused by the function.
    """
    if not isinstance(name, str):
        raise TypeError(f"the function must be named by a text, such as 'adam', got {name!r}")
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
    """An optax transformation with the name and arguments of a config; see `optax_transform`."""

    function: str = eqx.field(static=True)
    _arguments: str = eqx.field(static=True)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return json.loads(self._arguments)

    def init(self, parameters, index_prefix: Prefix = None):
        return _made(self.function, self._arguments).init(parameters, index_prefix)

    def update(self, updates, state, params=None, **extra):
        return _made(self.function, self._arguments).update(updates, state, params, **extra)


@functools.lru_cache(maxsize=256)
def _made(name: str, arguments: str) -> OptaxTransform:
    """The transformation, cached by arguments, because programs compare identities."""
    function = _found(name)
    given, parameters = json.loads(arguments), inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(set(given) - set(parameters))
    if unknown and not takes_any:
        raise ValueError(
            f"optax.{name} has no argument {unknown[0]!r}; it has {', '.join(parameters)}"
        )
    try:
        made = function(**given)
    except TypeError as error:
        raise TypeError(f"optax.{name}: {error}") from error
    except Exception as error:  # a text may stand in place of a function or a tree
        raise ValueError(f"optax.{name}: {type(error).__name__}: {error}") from error
    if not is_optax(made):
        raise ValueError(f"optax.{name} makes a {type(made).__name__}, no transformation")
    return OptaxTransform(made)


def _found(name: str) -> Callable[..., Any]:
    makers = _makers()
    if name in makers:
        return makers[name]
    close = difflib.get_close_matches(name, makers, 1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise ValueError(
        f"optax has no transformation {name!r}{hint} Known: {', '.join(known_names())}"
    )


@functools.cache
def known_names() -> list[str]:
    """The functions of `optax` itself that make transformations; its modules have more."""
    return sorted(name for name in _makers() if "." not in name)


@functools.cache
def _makers() -> dict[str, Callable[..., Any]]:
    """The functions that a config may call, by name; a config reaches no others."""
    import optax
    import optax.contrib
    import optax.transforms

    modules = {"": optax, "contrib.": optax.contrib, "transforms.": optax.transforms}
    return {
        prefix + name: item
        for prefix, module in modules.items()
        for name, item in vars(module).items()
        if not name.startswith("_") and _is_maker(prefix + name, item)
    }


_NOT_ANNOTATED = ("contrib.dog", "contrib.dowg", "monitor", "scale_by_factored_rms")
"""Functions that make transformations without an annotation of the result."""


def _is_maker(name: str, item: Any) -> bool:
    """Whether an item is a function of optax, possibly with arguments set, for transformations."""
    function = item.func if isinstance(item, functools.partial) else item
    if not (inspect.isfunction(function) and function.__module__.startswith("optax.")):
        return False
    from optax import GradientTransformation, GradientTransformationExtraArgs

    returned = inspect.signature(function).return_annotation
    made = (GradientTransformation, GradientTransformationExtraArgs)
    is_annotated = inspect.isclass(returned) and issubclass(returned, made)
    return is_annotated or name.removeprefix("transforms.") in _NOT_ANNOTATED


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, jax.Array) or hasattr(value, "tolist") else value
