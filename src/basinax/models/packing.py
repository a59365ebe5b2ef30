"""Objects as bytes, for processes that cannot import the classes of a script or notebook."""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import cloudpickle
import equinox as eqx
import jax


def packed(value: Any) -> bytes:
    """The bytes from which `pickle.loads` makes the value in another process.

    What cannot be imported there is sent as it is: functions and classes of scripts, notebooks, and
    modules of `cloudpickle.register_pickle_by_value`.

    Raises:
        Exception: of any kind, by a part of the value that cannot be sent.
    """
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Sends classes of Equinox with the names of their fields, and `jax.custom_vjp` in its parts.

    cloudpickle makes an empty class and fills it later, but Equinox tells JAX of the fields when a
    class is made: trees would have no entries of the filled class, and no error would say so.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, jax.custom_vjp):
            return _empty, (type(obj),), vars(obj)
        found = super().reducer_override(obj)
        if not isinstance(obj, type(eqx.Module)) or found is NotImplemented:
            return found
        make, how, *state = found
        return _with_fields, (_static_by_name(obj), make, *how), *state


def _empty(kind: type) -> Any:
    return object.__new__(kind)


def _static_by_name(kind: Any) -> dict[str, bool]:
    """Whether each field that a class defines itself is static."""
    of_bases = [getattr(base, "__dataclass_fields__", {}) for base in kind.__mro__[1:]]
    return {
        field.name: bool(field.metadata.get("static"))
        for field in dataclasses.fields(kind)
        if all(of_base.get(field.name) is not field for of_base in of_bases)
    }


def _with_fields(
    is_static: dict[str, bool],
    make: Callable[..., type],
    kind: type,
    name: str,
    bases: tuple[type, ...],
    namespace: dict[str, Any],
    *how: Any,
) -> type:
    """A class with these fields, made as cloudpickle makes an empty one."""
    fields = {x: eqx.field(static=static, kw_only=True) for x, static in is_static.items()}
    fields["__annotations__"] = dict.fromkeys(is_static, Any)
    return make(kind, name, bases, namespace | fields, *how)
