"""Transforms as configs of plain values, and back; to and from JSON and TOML.

A config is a dict with `version`, `name` and the transform's fields by name. Arrays are lists;
chains, and the line searches of optimizers, are nested. Later versions read earlier configs.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

import basinax.optimizers as own
from basinax.config.tables import DEEPEST, TOO_DEEP, choose, require_known
from basinax.numerics.settings import is_same_class
from basinax.optimizers.chain import Chain, chain
from basinax.optimizers.line_search.walk import SEARCHES, Search
from basinax.optimizers.optax_bridge import OptaxTransform
from basinax.optimizers.optax_by_name import OptaxByName, optax_transform
from basinax.optimizers.protocol import AbstractTransform, is_optax

VERSION = 1
"""The version of the format; it changes if an older basinax would misread a config."""

Config = dict[str, Any]
TransformClass = TypeVar("TransformClass", bound=type[AbstractTransform])

_RESERVED = ("name", "version")
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_config(transform: AbstractTransform) -> Config:
    """The config of a transform, of plain Python values.

    Raises:
        TypeError: a transform is not registered, is a raw optax transformation (use
            `optax_transform` instead), or has a field that is no plain value.
    """
    return {"version": VERSION, **_encoded_transform(transform)}


def from_config(config: Mapping[str, Any]) -> AbstractTransform:
    """The transform of a config.

    Raises:
        ValueError: a name or an option is unknown (the message lists known ones), an option is
            missing or refused, a later basinax wrote the config, or tables and lists are nested
            deeper than `DEEPEST`.
        TypeError: the config, or a part of it, is no mapping.
    """
    _require_mapping(config)
    _require_shallow(config)
    version = config.get("version", VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise ValueError(
            f"the config has version {version!r}; this basinax reads versions 1 to {VERSION}"
        )
    return _decoded_transform({key: x for key, x in config.items() if key != "version"})


def register(name: str) -> Callable[[TransformClass], TransformClass]:
    """A decorator that names a user's transform in configs; its fields are the options.

    Executed again, as in a notebook, it replaces the class of the same name.

    Raises:
        ValueError: the name is taken, or a field is called `name` or `version`.
        TypeError: the decorated object is no class of transforms.
    """

    def registered(cls: TransformClass) -> TransformClass:
        if not (isinstance(cls, type) and issubclass(cls, AbstractTransform)):
            raise TypeError(f"expected a subclass of AbstractTransform, got {cls!r}")
        if name in SEARCHES or not is_same_class(cls, _known().get(name, cls)):
            raise ValueError(f"the name {name!r} is taken; taken are {', '.join(sorted(_known()))}")
        clash = [x.name for x in dataclasses.fields(cls) if x.name in _RESERVED]
        if clash:
            raise ValueError(f"{cls.__name__} has a field {clash[0]!r}, which configs keep")
        _CLASSES[name] = cls
        return cls

    return registered


def transforms_by_name() -> Mapping[str, type[AbstractTransform]]:
    """The classes by their names in configs, registered ones included."""
    return _CLASSES


def _known() -> dict[str, type[AbstractTransform]]:
    return {"chain": Chain, "optax": OptaxByName, **_CLASSES}


def _encoded_transform(transform: Any) -> Config:
    if is_optax(transform) or isinstance(transform, OptaxTransform):
        raise TypeError(
            "a transformation of optax lacks its name and arguments: make it with"
            ' basinax.optax_transform, such as optax_transform("adam", learning_rate=0.01)'
        )
    if isinstance(transform, OptaxByName):
        return {"name": "optax", "function": transform.function, "arguments": transform.arguments}
    if isinstance(transform, Chain):
        return {
            "name": "chain",
            "transforms": [_encoded_transform(x) for x in transform.transforms],
        }
    return _encoded_fields(transform, _CLASSES)


def _encoded_fields(part: Any, classes: Mapping[str, type]) -> Config:
    """The config of a transform or a search: its name and fields."""
    names = [name for name, cls in classes.items() if type(part) is cls]
    if not names:
        is_own = type(part).__module__.startswith("basinax.")
        hint = "" if is_own else ": decorate it with basinax.register(name)"
        raise TypeError(f"{type(part).__name__} has no name in configs{hint}")
    config: Config = {"name": names[0]}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.init and not (value is None and field.default is None):
            config[field.name] = _encoded(value, f"{type(part).__name__}.{field.name}")
    return config


def _encoded(value: Any, where: str) -> Any:
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, AbstractTransform) or is_optax(value):
        return _encoded_transform(value)
    if isinstance(value, Search):
        return _encoded_fields(value, SEARCHES)
    if isinstance(value, list | tuple):
        return [_encoded(x, where) for x in value]
    raise TypeError(f"{where} is a {type(value).__name__}, which a config cannot hold")


def _require_mapping(config: Any) -> None:
    if not isinstance(config, Mapping):
        raise TypeError(f"a config must be a mapping with a name, got {type(config).__name__}")


def _require_shallow(config: Mapping[str, Any]) -> None:
    level: list[Any] = [config]
    for _ in range(DEEPEST):
        inner = (x.values() if isinstance(x, Mapping) else x for x in level)
        parts = {
            id(x): x for items in inner for x in items if isinstance(x, Mapping | list | tuple)
        }
        level = list(parts.values())
    if level:
        raise ValueError(f"in the config {TOO_DEEP}")


def _decoded_transform(config: Any) -> AbstractTransform:
    _require_mapping(config)
    options = dict(config)
    name = options.pop("name", None)
    if name == "chain":
        _require_options("chain", options, {"transforms": True})
        if not isinstance(options["transforms"], list | tuple):
            raise TypeError(
                f"the transforms of a chain must be a list, got {options['transforms']!r}"
            )
        return chain(*[_decoded_transform(x) for x in options["transforms"]])
    if name == "optax":
        _require_options("optax", options, {"function": True, "arguments": False})
        arguments = options.get("arguments", {})
        if not isinstance(arguments, Mapping):
            raise TypeError(f"the arguments of optax must be a mapping by name, got {arguments!r}")
        arguments = {key: _plain(x, key) for key, x in arguments.items()}
        return optax_transform(options["function"], **arguments)
    return _made(choose("transform", name, _known()), name, options)


def _made(cls: type, name: str, options: Config) -> Any:
    fields = [field for field in dataclasses.fields(cls) if field.init]
    _require_options(name, options, {field.name: _is_required(field) for field in fields})
    decoded = {key: _decoded(value, key) for key, value in options.items()}
    for field in fields:  # a static field cannot hold an array
        if field.metadata.get("static") and isinstance(decoded.get(field.name), np.ndarray):
            decoded[field.name] = _tuples(decoded[field.name].tolist())
    return cls(**decoded)


def _tuples(value: Any) -> Any:
    """Lists, also in one another, as tuples, which have a hash."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _require_options(name: str, options: Config, known: Mapping[str, bool]) -> None:
    require_known(options, known, repr(name))
    missing = [key for key, is_required in known.items() if is_required and key not in options]
    if missing:
        raise ValueError(
            f"{name!r} needs the option {missing[0]!r}; it has the options {', '.join(known)}"
        )


def _decoded(value: Any, option: str = "") -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, Mapping):
        name: Any = value.get("name")
        if option != "search" and name not in list(SEARCHES):
            return _decoded_transform(value)
        options = {key: x for key, x in value.items() if key != "name"}
        return _made(choose("search", name, SEARCHES), name, options)
    if isinstance(value, list | tuple):
        items = [_decoded(x) for x in value]
        if any(isinstance(x, AbstractTransform | str) or x is None for x in items):
            return tuple(items)
        return np.asarray(items)
    return value


def _plain(value: Any, argument: str) -> Any:
    """An argument of optax as plain values; nothing is called or looked up by name."""
    if isinstance(value, list | tuple):
        return [_plain(x, argument) for x in value]
    if isinstance(value, Mapping):
        raise TypeError(
            f"the argument {argument!r} of optax must be a number, text, boolean, null or a list of"
            " them, got a table"
        )
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _name_of(cls: type) -> str:
    """ClipByGlobalNorm is clip-by-global-norm, FIRE is fire, LBFGSLineSearch lbfgs-line-search."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?=LineSearch)", "-", cls.__name__).lower()


_CLASSES: dict[str, type[AbstractTransform]] = {
    _name_of(cls): cls
    for cls in vars(own).values()
    if isinstance(cls, type) and issubclass(cls, AbstractTransform)
}
