"""The numbers that a setting may have: a field's type states them, a check applies them.

The value of a traced setting is unknown, so only its dtype is checked.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import reprlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

MOST = np.iinfo(np.int32).max
"""The largest count: counts are 32-bit integers."""


class Allowed(NamedTuple):
    """The numbers that a setting may have."""

    text: str
    """The end of a sentence that begins with "it must"."""
    test: Callable[[Any], Any]
    """A function that marks the allowed entries of an array; false for NaN."""
    is_whole: bool = False


def at_least(least: int) -> Allowed:
    """Integers from `least` on."""
    return Allowed(f"be at least {least}", lambda x: x >= least, is_whole=True)


Number = float | Float[Array, "..."]
WHOLE = Allowed("be an integer", lambda x: x == x, is_whole=True)
REAL = Allowed("be a real number", lambda x: np.full(np.shape(x), True))
FINITE = Allowed("be finite", np.isfinite)
POSITIVE = Allowed("be positive and finite", lambda x: (x > 0) & (x < math.inf))
SIZE = Allowed("be 0 or more and finite", lambda x: (x >= 0) & (x < math.inf))
Finite = Annotated[Number, FINITE]
Positive = Annotated[Number, POSITIVE]
Limit = Annotated[Number, Allowed("be positive, inf for no limit", lambda x: x > 0)]
NotNegative = Annotated[Number, Allowed("be 0 or more", lambda x: x >= 0)]
Growth = Annotated[Number, Allowed("be finite and 1 or more", lambda x: (x >= 1) & (x < math.inf))]
Shrinking = Annotated[Number, Allowed("be above 0 and at most 1", lambda x: (x > 0) & (x <= 1))]
Share = Annotated[Number, Allowed("be between 0 and 1", lambda x: (x >= 0) & (x <= 1))]
Decay = Annotated[Number, Allowed("be 0 or more and below 1", lambda x: (x >= 0) & (x < 1))]
PART = Allowed("be above 0 and below 1", lambda x: (x > 0) & (x < 1))
Part = Annotated[Number, PART]
Count = Annotated[int | Int[Array, "..."], at_least(0)]
PositiveCount = Annotated[int | Int[Array, "..."], at_least(1)]
FixedCount = Annotated[int, at_least(1)]
"""A count in a static field."""


def check_settings(module: Any) -> None:
    """Check that each field of a dataclass has a value that its type allows.

    The check covers fields whose type is a switch (`bool`) or carries `Allowed`; a static field
    holds one value. In other fields, a list or tuple of numbers becomes an array: in a tree of
    settings it would be several numbers, each for all systems. So does an array of pandas. Integers
    become floats where real numbers are allowed.

    Raises:
        TypeError, ValueError: a field has another value.
    """
    for field in dataclasses.fields(module):
        kinds = get_args(field.type) if type(None) in get_args(field.type) else (field.type,)
        value, name = getattr(module, field.name), f"{type(module).__name__}: {field.name}"
        if value is None and type(None) in kinds:
            continue
        allowed = next((x for kind in kinds for x in _annotations(kind)), None)
        is_static = bool(field.metadata.get("static"))
        if bool in kinds and (is_static or not hasattr(value, "dtype")):
            require_switch(value, name)
        elif is_static and (int in kinds or (allowed and allowed.is_whole)):
            require_whole(value, name, allowed)
        elif allowed:
            require(value, name, allowed)
        if is_static:
            continue
        if _is_list_of_numbers(value) or _is_other_array(value):
            value = np.asarray(value) if known(value) is not None else jnp.asarray(value)
        if allowed and not allowed.is_whole:
            value = _in_floats(value)
        object.__setattr__(module, field.name, value)


def _in_floats(value: Any) -> Any:
    """A number or array, integers as floats: another dtype would compile programs anew."""
    array = known(value)
    if array is None or array.dtype.kind not in "iu":
        return value
    return array.astype(float) if array.ndim else float(array)


def _is_list_of_numbers(value: Any) -> bool:
    def is_number(x: Any) -> bool:
        dtype = dtype_of(x)
        return dtype is not None and np.ndim(x) == 0 and jnp.issubdtype(dtype, jnp.number)

    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_number, value))


def _is_other_array(value: Any) -> bool:
    """Whether a value is an array of another library, such as a column of pandas."""
    is_ours = isinstance(value, jax.Array | np.ndarray | np.generic)
    return hasattr(value, "__array__") and not is_ours


def _annotations(kind: Any) -> list[Allowed]:
    is_annotated = get_origin(kind) is Annotated
    return [x for x in kind.__metadata__ if isinstance(x, Allowed)] if is_annotated else []


def numbers_of(module: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of a dataclass whose types limit their numbers, and whether each is whole.

    Static fields, and fields that are None, are left out.
    """
    found = {}
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        kinds = (field.type, *get_args(field.type))
        allowed = next((x for kind in kinds for x in _annotations(kind)), None)
        if allowed and value is not None and not field.metadata.get("static"):
            found[field.name] = value, allowed.is_whole
    return found


def check_order(module: Any, less: str, more: str) -> None:
    """Raise ValueError if the field `less` is larger than the field `more`, unless traced."""
    low, high = known(getattr(module, less)), known(getattr(module, more))
    if low is None or high is None:
        return
    try:
        wrong = np.any(low > high)
    except (TypeError, ValueError):  # not numbers, or shapes that do not fit the systems
        return
    if wrong:
        raise ValueError(
            f"{type(module).__name__}: {less} must not be larger than {more}, got"
            f" {shown(low.tolist())} and {shown(high.tolist())}"
        )


def require(value: Any, name: str, allowed: Allowed) -> None:
    """Check that a number, or each number of an array, is allowed.

    Raises:
        TypeError: the value is no real number, or no whole number where one is expected.
        ValueError: the value is not allowed; the message names the first wrong entry.
    """
    _require_kind(value, name, "an integer" if allowed.is_whole else "a real number")
    array = known(value)
    if array is None:
        return
    if allowed.is_whole and (array != np.floor(array)).any():
        got = _entry(value, array, array != np.floor(array))
        raise TypeError(f"{name} must be an integer, or an array of such, got {got}")
    is_counted = allowed.is_whole or array.dtype.kind in "iu"
    wrong = ~np.asarray(allowed.test(array))
    too_large = ~wrong & is_counted & (np.abs(array) > MOST)
    if wrong.any():
        raise ValueError(f"{name} must {allowed.text}, got {_entry(value, array, wrong)}")
    if too_large.any():
        hint = "" if allowed.is_whole else "; write a larger number as a float"
        got = _entry(value, array, too_large)
        raise ValueError(f"{name} must be an integer of at most {MOST}{hint}: got {got}")


def _entry(value: Any, array: np.ndarray, wrong: np.ndarray) -> str:
    if not array.ndim:
        return shown(value if isinstance(value, int | float) else array.item())
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return f"{array[at]} at entry {at[0] if len(at) == 1 else at}"


def require_whole(value: Any, name: str, allowed: Allowed | None = None) -> None:
    """Check that a value is one integer, not traced, and allowed.

    Raises:
        TypeError, ValueError: it is not.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    if allowed is not None:
        require(value, name, allowed)


def one_number(value: Any, name: str, allowed: Allowed = FINITE) -> float:
    """The value as a float, if it is one allowed real number and not traced.

    Raises:
        TypeError, ValueError: it is not.
    """
    require(value, name, allowed)
    array = known(value)
    if array is None or array.ndim:
        raise TypeError(f"{name} must be one number, got {shown(value)}")
    return float(array)


def require_switch(value: Any, name: str) -> None:
    """Raise TypeError unless the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")


def require_function(value: Any, name: str, hint: str = "") -> None:
    """Raise TypeError, which ends in the hint, unless the value can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {shown(value)}{hint}")


OPTIONS_OF_ASE = {
    "append_trajectory": "give trajectory= another folder",
    "force_consistent": "leave it out: forces are derivatives of the energy that is minimised",
    "logfile": "write log= of basinax.atoms.relax",
    "maxstep": 'give it to the optimizer: FIRE(maxstep=0.1), or "fire:maxstep=0.1"',
    "pressure": "give it to the cell, in eV/Å³: cell=Frechet(pressure=0.01)",
    "restart": "relax the last structures again, or use run folders of the command line",
    "scalar_pressure": "give it to the cell: cell=Frechet(pressure=0.01)",
    "steps": "write max_steps=",
}
"""Options of ASE's optimizers and filters, and what to write instead."""

Function = TypeVar("Function", bound=Callable[..., Any])


def knows_options_of_ase(function: Function) -> Function:
    """The function, with an error for options of ASE that says what to write instead."""
    own = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in own and name in OPTIONS_OF_ASE:
                text = f"{function.__name__} has no option {name}: {OPTIONS_OF_ASE[name]}"
                raise TypeError(text)
        return function(*args, **options)

    return cast(Function, call)


def require_real(value: Any, name: str, hint: str = "") -> None:
    """Raise TypeError unless the value is a real number or an array of real numbers."""
    _require_kind(value, name, f"a real number{hint}", may_be_bool=True)


def _require_kind(
    value: Any, name: str, kind: str, *, is_whole: bool = False, may_be_bool: bool = False
) -> None:
    dtype = dtype_of(value)
    kinds = [jnp.integer] + [jnp.floating] * (not is_whole) + [jnp.bool_] * may_be_bool
    if dtype is None or not any(jnp.issubdtype(dtype, each) for each in kinds):
        raise TypeError(f"{name} must be {kind}, or an array of such, got {shown(value)}")


def counts(value: Any, name: str) -> Any:
    """Counts of 0 or more as 32-bit integers; larger counts become the largest one.

    Raises:
        TypeError, ValueError: the value is no integer, or negative.
    """
    _require_kind(value, name, "an integer", is_whole=True)
    array = known(value)
    if array is None:
        traced = jnp.asarray(value)
        return traced if traced.dtype.itemsize < 4 else jnp.minimum(traced, MOST).astype(jnp.int32)
    wrong = array < 0
    if wrong.any():
        raise ValueError(f"{name} must be at least 0, got {_entry(value, array, wrong)}")
    return np.minimum(array.astype(np.uint64), MOST).astype(np.int32)


def known(value: Any) -> np.ndarray | None:
    """One or several numbers as a NumPy array; None if they are traced or on other hosts."""
    array = _array(value)
    if isinstance(array, jax.Array) and not isinstance(array, Tracer):
        return np.asarray(jax.device_get(array)) if array.is_fully_addressable else None
    return array if isinstance(array, np.ndarray) else None


def dtype_of(value: Any) -> Any:
    """The dtype of a number or of an array; None if the value is neither."""
    return getattr(_array(value), "dtype", None)


def _array(value: Any) -> Any:
    """The value if it has a dtype, or as a NumPy array; None if it is no number."""
    if isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        # Clamp integers beyond 64 bits, so that NumPy accepts them; they stay beyond all bounds.
        return np.asarray(max(-(2**62), min(value, 2**62)))
    if any(isinstance(x, Tracer) for x in jax.tree.leaves(value)):
        return jax.tree.leaves(value)[0]
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return None


def is_same_class(one: type, other: type) -> bool:
    """Whether two classes are one, which a notebook's cell may have made twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


_INSIDE = f"{Path(__file__).parents[1]}{os.sep}", contextlib.__file__
"""The files of this package and of its contexts."""


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the line that calls this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


_said: set[str] = set()
"""Warnings of `warn_once` that this process has given."""


def warn_once(text: str, category: type[Warning] = UserWarning) -> None:
    """`warn`, unless this process has given the same warning."""
    if text not in _said:
        _said.add(text)
        warn(text, category)


def shown(value: Any) -> str:
    """A value on one line of an error, cut if it is long."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        text = "a larger integer" if value > 0 else "a smaller integer"
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def kind_of(value: Any) -> str:
    """The name of the class of a value, for errors; "the class" and its own name of a class."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def one_line(error: BaseException) -> str:
    """The text of an error on one line, or the name of its class."""
    return " ".join(str(error).split()) or type(error).__name__


def largest_of(values: Iterable[float], default: Any = math.nan) -> Any:
    """The largest finite number; `default` if there is none."""
    return max(filter(math.isfinite, values), default=default)


def count_of(n: int, noun: str) -> str:
    """The number of things, such as 1 structure or 3 structures."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def first_of(numbers: Sequence[int | str]) -> str:
    """The first of these numbers, since all may be too many for an error."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
