"""Values of `info`, arrays and results as data of ASE's databases, which come back as they were.

The databases hold None, truth values, numbers and texts of Python, lists, tables with texts as
keys, and arrays of numbers. A value of another kind is a table of its kind and content.
"""

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ase.db.core import object_to_bytes
from ase.spacegroup import Spacegroup

KIND = "__kind__"
"""The key of the kind in such a table."""

_PLAIN = (bool, int, float, complex, str)


def stored(value: Any) -> Any:
    """The value in the databases' terms; raises TypeError if it has no such form."""
    kind = type(value)
    if value is None or kind in _PLAIN:
        return value
    if kind is list:
        return [stored(x) for x in value]
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {key: stored(x) for key, x in value.items()}
        return _tagged("table", [[stored(key), stored(x)] for key, x in value.items()])
    if kind is np.ndarray:
        is_plain = value.dtype.kind in "biufc" and value.dtype.isnative
        return value if is_plain else _tagged("array", _parts_of(value))
    if isinstance(value, np.generic):
        return _tagged("scalar", _parts_of(np.asarray(value)))
    if kind is tuple:
        return _tagged("tuple", [stored(x) for x in value])
    if isinstance(value, Spacegroup):
        return _tagged("space group", [value.no, value.setting])
    if isinstance(value, datetime.datetime):
        return _tagged("time", value.isoformat())
    if getattr(value, "ase_objtype", None):
        object_to_bytes(value)  # which fails if ASE cannot store the object
        return value
    raise TypeError(f"{kind.__name__} has no form in a database")


def restored(value: Any) -> Any:
    """The value that was stored."""
    if isinstance(value, list):
        return [restored(x) for x in value]
    if not isinstance(value, Mapping):
        return value
    if KIND in value:
        return _MAKERS[value[KIND]](value["content"])
    return {key: restored(x) for key, x in value.items()}


def parted(values: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """The values that can be stored, and the names of the others."""
    kept, others = {}, []
    for name, value in values.items():
        try:
            object_to_bytes([stored(name), stored(value)])
        except Exception:  # objects may raise errors of any class
            others.append(str(name))
        else:
            kept[name] = value
    return kept, others


def _tagged(kind: str, content: Any) -> dict[str, Any]:
    return {KIND: kind, "content": content}


def _parts_of(array: np.ndarray) -> list[Any]:
    """Shape, type and content: objects, texts and single numbers as a list, all else as bytes."""
    name = array.dtype.str
    if array.dtype.kind in "OU" or (not array.ndim and type(array.item()) in _PLAIN):
        return [list(array.shape), name, [stored(x) for x in array.ravel().tolist()]]
    if np.dtype(name) != array.dtype:
        raise TypeError(f"arrays of {array.dtype} have no form in a database")
    return [list(array.shape), name, np.frombuffer(array.tobytes(), np.uint8)]


def _array(parts: Any) -> np.ndarray:
    shape, name, content = parts
    if isinstance(content, np.ndarray):
        return np.frombuffer(content.tobytes(), name).reshape(shape)
    array = np.empty(math.prod(shape), name)
    for k, value in enumerate(restored(content)):
        array[k] = value
    return array.reshape(shape)


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "table": lambda pairs: {restored(key): restored(x) for key, x in pairs},
    "array": _array,
    "scalar": lambda parts: _array(parts)[()],
    "tuple": lambda items: tuple(map(restored, items)),
    "space group": lambda content: Spacegroup(*content),
    "time": datetime.datetime.fromisoformat,
}
