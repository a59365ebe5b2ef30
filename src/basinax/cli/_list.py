"""The command `basinax list`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from basinax._text.specs import optimizers_by_name
from basinax.atoms._text import CELLS, POTENTIALS
from basinax.cli._console import check_printed, out, print_line
from basinax.cli._options import Kind


def run(kind: Kind) -> None:
    match kind:
        case Kind.POTENTIALS:
            lines = _lines(POTENTIALS)
        case Kind.OPTIMIZERS:
            lines = _lines(optimizers_by_name())
        case Kind.CELLS:
            lines = _lines(CELLS)
    for line in lines:
        print_line(out, line)
    check_printed("the list")


def _lines(known: Mapping[str, Callable[..., Any] | str]) -> list[str]:
    """One line each: the name, and options with their defaults, or a form."""
    return [f"{name}  {_options(maker)}".rstrip() for name, maker in sorted(known.items())]


def _options(maker: Callable[..., Any] | str) -> str:
    if isinstance(maker, str):
        return maker
    parameters = inspect.signature(maker).parameters.values()
    return ", ".join(map(_option, parameters))


def _option(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return "ELEMENT, ..."
    if parameter.default is inspect.Parameter.empty:
        return f"{parameter.name}="
    default = parameter.default
    if isinstance(default, bool) or default is None:
        default = str(default).lower()
    if not isinstance(default, str | int | float):
        default = type(default).__name__.lower()
    return f"{parameter.name}={default}"
