"""The options of a run as one table: read from a config file, printed, and stored in records.

Keys are names of options with underscores, as in the library. A table that a run has printed, or
the record beside its output, reproduces the run when used as config file.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from basinax.config.files import name_of
from basinax.config.tables import (
    ENDINGS,
    RECORD,
    Table,
    read_config,
    require_known,
    strict,
    table_of,
    toml_of,
)

_NO_SETTINGS = ("config", "print_config", "help")


class Command(TyperCommand):
    """A command whose errors about values name the config file of the value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = getattr(error.param, "name", None)
            source = name and ctx.get_parameter_source(name)
            if source and source.name == "DEFAULT_MAP":
                reason = error.message or f"{name} is empty"
                error.message = f"{ctx.params['config']}: {reason}"
            raise


def apply_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Use the options in a config file as defaults, which the command line overrides."""
    if path is None or ctx.resilient_parsing:
        return path
    from basinax.cli.console import reported

    parameters = {p.name: p for p in ctx.command.params if p.name not in _NO_SETTINGS}
    with reported():
        table = settings_in(path, parameters)
        ctx.default_map = {
            name: _as_typed(value, parameters[name], f"{path}: {name}")
            for name, value in table.items()
        }
    return path


def settings_in(path: str | Path, known: Any) -> Table:
    """The settings of a config file, or of a record.

    Raises:
        ValueError: a name is unknown, or the file is neither JSON nor TOML.
        OSError: the file cannot be read.
    """
    table = {name: x for name, x in read_config(path).items() if name != RECORD and x is not None}
    require_known(table, known, str(path))
    return table


def _as_typed(value: Any, parameter: Any, name: str) -> Any:
    """The value in the form of a shell's arguments, so that both are parsed in one way."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value
    if parameter.nargs == -1:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(x, str) for x in values):
            raise ValueError(f"{name} must be a list of names, got {value!r}")
        return values
    if isinstance(value, Mapping):
        return json.dumps(strict(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        shown = json.dumps(value, default=str)
        raise ValueError(f"{name} must be a number or a text, got {shown}")
    return str(value)


def settings_of(groups: Sequence[Any]) -> Table:
    """The given options of a command by name, as plain values.

    Config files of the optimizer and the potential are replaced by their contents.

    Raises:
        ValueError, OSError: such a file cannot be read.
    """
    fields = [(group, field.name) for group in groups for field in dataclasses.fields(group)]
    values = {name: _plain(getattr(group, name)) for group, name in fields}
    table = {name: x for name, x in values.items() if x is not None and name not in _NO_SETTINGS}
    optimizer, potential = table.get("optimizer", ""), table.get("potential", "")
    if optimizer.startswith("{"):
        table["optimizer"] = table_of(optimizer, "the optimizer")
    elif optimizer.endswith(ENDINGS):
        table["optimizer"] = read_config(optimizer)
    if is_config(potential):
        table |= potential_in(potential) | ({"workers": w} if (w := table.get("workers")) else {})
    return table


def _plain(value: Any) -> Any:
    """A value for TOML and JSON; file names become text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return name_of(value)
    if isinstance(value, str):  # which may name a file, too
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [_plain(x) for x in value]
    return value if value is None or isinstance(value, int | float) else str(value)


def is_config(potential: str) -> bool:
    """Whether the text of a potential names a config file."""
    return potential.endswith(ENDINGS) and ":" not in potential


def potential_in(path: str) -> Table:
    """The potential in a config file, and its workers if given.

    Raises:
        ValueError: the file has other entries, or no potential.
        OSError: the file cannot be read.
    """
    table = settings_in(path, ("potential", "workers"))
    if not isinstance(table.get("potential"), str):
        raise ValueError(f'{path}: expected a potential, such as potential = "emt"')
    return table


def print_settings(groups: Sequence[Any]) -> None:
    """Print the settings of a run as TOML, which `--config` reads."""
    from basinax.cli.console import check_printed, out, reported

    with reported():
        text = toml_of(settings_of(groups))
    out.write(text)
    check_printed("the settings")
