"""Values from texts of options, alike on a command line, in a config file and in `info`.

Atoms are selected by numbers, or by a condition on positions, which may contain only the
comparisons, joins and operations listed here.
"""

import ast
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping
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


def _read(read: Callable[[str], Any], text: Any, expected: str) -> Any:
    try:
        return read(text)
    except ValueError:
        raise typer.BadParameter(f"expected {expected}, got {text!r}") from None


def _not_negative(read: Callable[[str], Any], expected: str) -> Callable[[Any], Any]:
    def value_of(text: str) -> Any:
        if not (value := _read(read, text, expected)) >= 0:
            raise typer.BadParameter("must be 0 or more")
        return value

    return or_of_info(value_of)


not_negative, count_of = _not_negative(float, "a number"), _not_negative(int, "a whole number")


@or_of_info
def pressure_of(text: str) -> float:
    """A pressure in eV/Å³, from a number with an optional unit, GPa or kbar."""
    for unit, times in _IN_GPA.items():
        if text.endswith(unit):
            from ase.units import GPa

            return _read(float, text.removesuffix(unit), _PRESSURE) * times * GPa
    return _read(float, text, _PRESSURE)


_PRESSURE = "a number, in eV/Å³ or with GPa or kbar behind it"
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


def time_as_given(text: str) -> str:
    """The text unchanged, if it is a time, so that configs and records keep it."""
    seconds_of(text)
    return text


def seconds_of(text: str) -> float:
    """A time such as 3h30m, 45m or 90s, in seconds."""
    parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text)
    if not text or parts is None:
        raise typer.BadParameter(f"expected a time such as 3h30m, 45m or 90s, got {text!r}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")

NAMES = ("x", "y", "z", "tag")
"""The names in conditions: Cartesian coordinates in Å, and ASE's tag, of each atom."""

Functions = dict[type, Callable[[Any, Any], Any]]

_COMPARISONS: Functions = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_OPERATIONS: Functions = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_JOINS: Functions = {ast.And: operator.and_, ast.Or: operator.or_}

_EXPECTED = f"expected numbers such as 0-3,7, or a condition on {', '.join(NAMES)} such as z < 2.5"

LONGEST = 200
"""The largest number of characters of a condition."""


def choice_of(text: str) -> str:
    """The text, if it selects atoms.

    Raises:
        typer.BadParameter: the text is no selection.
    """
    text = str(text).strip()
    try:
        if NUMBERS.fullmatch(text) is None:
            _is_met(_condition(text), dict.fromkeys(NAMES, 0.0))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = "" if isinstance(error, SyntaxError | RecursionError) else f" ({error})"
        raise typer.BadParameter(f"{_EXPECTED}, got {text[:LONGEST]!r}{reason}") from None
    except ZeroDivisionError:  # these atoms are placeholders
        pass
    return text


def chosen(text: str, values: Mapping[str, Any], n_atoms: int) -> list[int]:
    """The numbers of the atoms that a text selects.

    Args:
        values: arrays by `NAMES`, one entry per atom.

    Raises:
        ValueError: an atom does not exist, or a range is empty.
    """
    if NUMBERS.fullmatch(text) is None:
        met = _is_met(_condition(text), values) & (values["x"] == values["x"])
        return [k for k in range(n_atoms) if met[k]]
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        first, last = int(first), int(last or first)
        if first > last:
            raise ValueError(f"{part} is no range: the first number is larger")
        if last >= n_atoms:
            raise ValueError(f"there is no atom {last} among {n_atoms}, which count from 0")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _condition(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    return ast.parse(text, mode="eval").body


def _is_met(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """The mask of atoms for which a condition holds.

    Raises:
        ValueError: the node is no condition.
    """
    match node:
        case ast.Compare(left, operations, others):
            sides = [_number(side, values) for side in (left, *others)]
            results = [
                _function(_COMPARISONS, operation)(a, b)
                for operation, (a, b) in zip(operations, itertools.pairwise(sides), strict=True)
            ]
            return functools.reduce(operator.and_, results)
        case ast.BoolOp(join, parts):
            return functools.reduce(_JOINS[type(join)], [_is_met(part, values) for part in parts])
        case ast.UnaryOp(ast.Not(), part):
            return _is_met(part, values) ^ True
    raise ValueError(f"{ast.unparse(node)} is no comparison")


def _number(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(name) if name in values:
            return values[name]
        case ast.Constant(value) if type(value) in (int, float):
            return value
        case ast.UnaryOp(ast.USub(), part):
            return -_number(part, values)
        case ast.BinOp(left, operation, right):
            function = _function(_OPERATIONS, operation)
            return function(_number(left, values), _number(right, values))
    raise ValueError(f"{ast.unparse(node)} is no number, and none of {', '.join(NAMES)}")


def _function(known: Functions, operation: ast.AST) -> Callable[[Any, Any], Any]:
    if type(operation) not in known:
        raise ValueError(f"{type(operation).__name__} is not understood")
    return known[type(operation)]
