"""The command `basinax list`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from basinax._text.specs import optimizers_by_name
from basinax.atoms._text import CELLS, POTENTIALS
from basinax.cli._console import check_printed, out, print_line
from basinax.cli._options import Kind


def run(kind: Kind) -> None:
    tables: dict[Kind, Mapping[str, Any]] = {
        Kind.POTENTIALS: POTENTIALS,
        Kind.OPTIMIZERS: optimizers_by_name(),
        Kind.CELLS: CELLS,
    }
    # One line each: the name, and options with their defaults, or a form.
    for name, maker in sorted(tables[kind].items()):
        print_line(out, f"{name}  {_options(maker)}".rstrip())
    check_printed("the list")


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
