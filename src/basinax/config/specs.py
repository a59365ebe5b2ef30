"""Optimizers from text such as `fire:dt=0.05,maxstep=0.1`, for the command line.

The grammar is `NAME[:WORD,KEY=VALUE,...]`; `basinax.atoms.potential_from` uses it for potentials.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, get_args

from basinax.config.config import from_config, transforms_by_name
from basinax.config.tables import ENDINGS, choose, read_config, require_known, table_of
from basinax.optimizers.limits.protocol import AbstractLimit
from basinax.optimizers.line_search.walk import SEARCHES
from basinax.optimizers.protocol import AbstractTransform


class Spec(NamedTuple):
    """A name, the words that follow it, and its options."""

    name: str
    words: list[str]
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """Read `NAME[:WORD,KEY=VALUE,...]`; values are numbers, true, false, none, or words.

    No part of a text is evaluated; names are looked up only in tables of known names.

    Raises:
        ValueError: an option is given twice, or a part is empty.
    """
    name, _, rest = text.partition(":")
    words, options = [], {}
    for part in rest.split(",") if rest else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or (equals and not value):
            raise ValueError(f"{text!r}: expected NAME:KEY=VALUE,..., got {part!r}")
        if not equals:
            words.append(key)
        elif key in options:
            raise ValueError(f"{text!r}: {key} is given twice")
        else:
            options[key] = _value(value)
    return Spec(name.strip(), words, options)


def optimizer_from(text: str) -> AbstractTransform:
    """The optimizer of a text: the name of a class (in any case) with fields, or a file.

    A text that ends in `.json` or `.toml` is a file, such as one of `write_config`, which may hold
    a chain with limits. A search is given by name, with its defaults: `search=armijo`.

    >>> optimizer_from("fire:dt=0.05,maxstep=0.1").maxstep
    0.1

    Raises:
        ValueError: the name or an option is unknown; the message lists the known ones.
        OSError: the file does not exist.
    """
    if text.endswith(ENDINGS):
        return from_config(read_config(text))
    if text.startswith("{"):
        return from_config(table_of(text, "the optimizer"))
    spec = parse(text)
    maker = choose_alike("optimizer", spec.name, optimizers_by_name())
    if spec.words:
        raise ValueError(f"optimizer {spec.name}: expected KEY=VALUE, got {spec.words[0]!r}")
    options = dict(spec.options)
    if isinstance(options.get("search"), str):
        options["search"] = choose_alike("search", options["search"], SEARCHES)()
    return make("optimizer", spec.name, maker, options)


def optimizers_by_name() -> dict[str, type[AbstractTransform]]:
    """The optimizers by their names in configs, such as `lbfgs-line-search`."""
    return {
        name: cls
        for name, cls in transforms_by_name().items()
        if not issubclass(cls, AbstractLimit)
    }


def make(kind: str, name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """`maker(**options)`; an error with the known options, or the option that is no number."""
    parameters = inspect.signature(maker).parameters.values()
    known = {p.name: p for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL}
    require_known(options, known, f"{kind} {name}")
    for option, value in options.items():
        if value is None and type(None) in get_args(known[option].annotation):
            continue
        for each in value.values() if isinstance(value, Mapping) else [value]:
            if not _may_be(each, known[option].default):
                text = repr(each) if isinstance(each, str) else str(each).lower()
                raise ValueError(f"{kind} {name}: {option} must be a number, got {text}")
    return maker(**options)


def _may_be(value: Any, default: Any) -> bool:
    """Whether a text may give an option this value, judged by the option's default."""
    if isinstance(value, bool):
        return isinstance(default, bool)
    return isinstance(default, bool | str) if isinstance(value, str) else value is not None


def choose_alike(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """`choose`, whatever the case and the hyphens of the name."""
    return choose(kind, alike(name, known), known)


def alike(name: str, known: Iterable[str]) -> str:
    """The known name that is this one but for case and hyphens; if there is none, this one."""

    def plain(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    return {plain(one): one for one in known}.get(plain(name), name)


_WORDS = {"true": True, "false": False, "none": None}


def _value(text: str) -> Any:
    if "_" in text:  # Python would read 1_0 as 10
        return text
    for read in (int, float, _WORDS.__getitem__):
        try:
            return read(text)
        except (ValueError, KeyError):
            continue
    return text
