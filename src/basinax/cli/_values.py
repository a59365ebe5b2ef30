"""Values that texts of options say, the same on a command line, in a config file and in `info`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import typer


class OfInfo(NamedTuple):
    """A value that stands in the `info` of each structure."""

    key: str
    default: str | None = None
    """Of structures without one."""

    def __str__(self) -> str:
        return f"info:{self.key}" + ("" if self.default is None else _DEFAULT + self.default)


_DEFAULT = ",default="


def or_of_info(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A reader of options that may say `info:KEY[,default=VALUE]` instead of a value."""

    def value_of(text: Any) -> Any:
        if not (isinstance(text, str) and text.startswith("info:")):
            return read(text)
        key, has_default, default = text.removeprefix("info:").partition(_DEFAULT)
        if has_default:
            read(default)
        return OfInfo(key, default if has_default else None)

    return value_of


@or_of_info
def not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise typer.BadParameter("must not be negative")
    return value


@or_of_info
def count_of(text: str) -> int:
    value = int(text)
    if value < 0:
        raise typer.BadParameter("must not be negative")
    return value


@or_of_info
def pressure_of(text: str) -> float:
    """A pressure in eV/Å³, from a number, in GPa or kbar if that stands behind it."""
    for unit, times in {"GPa": 1.0, "kbar": 0.1}.items():
        if text.endswith(unit):
            from ase.units import GPa

            return float(text.removesuffix(unit)) * times * GPa
    return float(text)
