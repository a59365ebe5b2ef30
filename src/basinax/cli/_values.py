"""Values from texts of options, alike on a command line, in a config file and in `info`."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import typer


class OfInfo(NamedTuple):
    """A value in the `info` of each structure."""

    key: str
    default: str | None = None
    """The value of structures without the key."""

    def __str__(self) -> str:
        return f"info:{self.key}" + ("" if self.default is None else _DEFAULT + self.default)


_DEFAULT = ",default="


def or_of_info(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A reader of options that accepts `info:KEY[,default=VALUE]` besides values."""

    def value_of(text: Any) -> Any:
        if not (isinstance(text, str) and text.startswith("info:")):
            return read(text)
        key, has_default, default = text.removeprefix("info:").partition(_DEFAULT)
        if has_default:
            read(default)
        return OfInfo(key, default if has_default else None)

    return value_of


def _not_negative(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def value_of(text: str) -> Any:
        if not (value := read(text)) >= 0:
            raise typer.BadParameter("must not be negative")
        return value

    return or_of_info(value_of)


not_negative, count_of = _not_negative(float), _not_negative(int)


@or_of_info
def pressure_of(text: str) -> float:
    """A pressure in eV/Å³, from a number with an optional unit, GPa or kbar."""
    for unit, times in _IN_GPA.items():
        if text.endswith(unit):
            from ase.units import GPa

            return float(text.removesuffix(unit)) * times * GPa
    return float(text)


_IN_GPA = {"GPa": 1.0, "kbar": 0.1}


def pressure_as_given(text: str) -> Any:
    """The text unchanged if it has a unit, so that configs and records keep the unit."""
    value = pressure_of(text)
    return text if text.endswith(tuple(_IN_GPA)) and isinstance(value, float) else value


class Shard(NamedTuple):
    """A part of the structures of an input."""

    number: int
    """The number of the part, from 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, structure: int) -> bool:
        """Whether the part includes the structure of this number, from 0."""
        return structure % self.of == self.number - 1


def shard_of(text: str) -> Shard:
    """The shard of `K/N`."""
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise typer.BadParameter(f"expected K/N with K from 1 to N, such as 2/8, got {text!r}")
    return Shard(int(number), int(of))


def seconds_of(text: str) -> float:
    """A time such as 3h30m, 45m or 90s, in seconds."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if not text or parts is None:
        raise typer.BadParameter(f"expected a time such as 3h30m, 45m or 90s, got {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds
