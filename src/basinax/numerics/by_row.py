"""Whether a function of trees of rows does the same with each row alone: two programs, compared.

The function is traced for many rows and for one row without the axis of rows, and each result is
written as an expression of the leaves, without that axis. Rows are separate if both expressions are
the same. Nothing is compiled or run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core

from basinax.numerics.interpret import CALLS, count_scanned

ROWS = 10_007
"""The number of rows of the first program: a prime, which no other axis has as its length."""

_IDENTITIES = {"copy", "optimization_barrier", "stop_gradient"}
_ON_FLAT = {"broadcast_in_dim", "concatenate", "reshape", "slice", "split", "squeeze"}
"""Operations with axes that may be done with rows and components in one axis."""
_AXES = {"axes", "axis", "broadcast_dimensions", "dimension", "dimensions", "permutation"}
_LENGTHS = {"new_sizes", "shape", "sizes", "start_indices", "limit_indices"}
_IGNORED = {"accuracy", "out_sharding", "sharding", "weak_type"}

Shape = tuple[int, ...]


class Expressions:
    """The numbers of expressions; equal expressions have one number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of(self, function: Callable[..., Any], tree: Any, names: Sequence[Any]) -> list[int]:
        """The expressions of a function's results.

        Args:
            tree: the function's argument, of shapes, with `ROWS` rows or of one row.
            names: what the leaves are called, in their order.
        """
        closed = jax.make_jaxpr(function)(tree)
        return self._closed(closed, [self._number("leaf", name) for name in names])

    def _number(self, *key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _closed(self, closed: Any, inputs: Sequence[int]) -> list[int]:
        jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        values = {x: self._constant(c) for x, c in zip(jaxpr.constvars, consts, strict=True)}
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom):
            return self._constant(atom.val) if isinstance(atom, jax_core.Literal) else values[atom]

        for eqn in jaxpr.eqns:
            outputs = self._operation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _constant(self, x: Any) -> int:
        array = np.asarray(x)
        if array.size and (array == array.flat[0]).all():
            array = array.flat[0]
        return self._number("constant", array.dtype, np.shape(array), array.tobytes())

    def _operation(self, eqn: Any, inputs: list[int]) -> list[int]:
        name, params = eqn.primitive.name, eqn.params
        if name in CALLS:
            return self._closed(params.get("jaxpr") or params["call_jaxpr"], inputs)
        match name:
            case "cond":
                parts = [self._closed(branch, inputs[1:]) for branch in params["branches"]]
                return [self._number(name, inputs[0], *each) for each in zip(*parts, strict=True)]
            case "scan":
                n_consts, n_carried = count_scanned(eqn)
                turn = [*inputs[:n_consts], *self._places(len(inputs) - n_consts)]
                how = params["length"], params["reverse"], n_carried
                key = (name, *how, *inputs, *self._closed(params["jaxpr"], turn))
                return [self._number(*key, k) for k in range(len(eqn.outvars))]
            case "while":
                n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
                places = self._places(len(inputs) - n_cond - n_body)
                goes_on = self._closed(params["cond_jaxpr"], [*inputs[:n_cond], *places])
                body = inputs[n_cond : n_cond + n_body]
                turn = self._closed(params["body_jaxpr"], [*body, *places])
                key = (name, *inputs, *goes_on, *turn)
                return [self._number(*key, k) for k in range(len(eqn.outvars))]
        if name in _IDENTITIES or _keeps(eqn):
            return inputs
        key = (name, *map(_row, eqn.outvars), *inputs, *_parameters(eqn))
        return [self._number(*key, k) for k in range(len(eqn.outvars))]

    def _places(self, n: int) -> list[int]:
        return [self._number("place", k) for k in range(n)]


def _keeps(eqn: Any) -> bool:
    """Whether an operation changes nothing but the shape of one value, or repeats one number."""
    if len(eqn.invars) != 1:
        return False
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    match eqn.primitive.name:
        case "broadcast_in_dim":
            axes, ndim = eqn.params["broadcast_dimensions"], len(after.shape)
            is_at_end = axes == tuple(range(ndim - len(before.shape), ndim))
            is_same = is_at_end and _row(eqn.invars[0]) == _row(eqn.outvars[0])
            is_number_of_row = before.shape == after.shape[:1] == (ROWS,) and axes == (0,)
            return before.shape == () or is_same or is_number_of_row
        case "reshape":
            return _row(eqn.invars[0]) == _row(eqn.outvars[0])
        case "convert_element_type":
            return before.dtype == after.dtype
    return False


def _row(atom: Any) -> tuple[Any, Shape]:
    """Dtype and shape without the axis of rows."""
    return getattr(atom.aval, "dtype", None), _one_row(getattr(atom.aval, "shape", ()))


def _one_row(lengths: Shape) -> Shape:
    if lengths and lengths[0] == ROWS:
        return lengths[1:]
    return tuple(n // ROWS if n % ROWS == 0 else n for n in lengths)


def _parameters(eqn: Any) -> list[Any]:
    """The parameters of an operation as they are for one row."""
    named = {name: x for name, x in eqn.params.items() if name not in _IGNORED and x is not None}
    is_made = eqn.primitive.name in ("broadcast_in_dim", "iota") or not eqn.invars
    shape = (eqn.outvars if is_made else eqn.invars)[0].aval.shape
    is_flat = bool(shape) and shape[0] != ROWS and shape[0] % ROWS == 0
    found: list[Any] = []
    if is_flat and any(x.aval.shape[:1] == () or x.aval.shape[0] % ROWS for x in eqn.outvars):
        found.append("entries of some rows")
    for name, x in sorted(named.items()):
        if name in _AXES or name == "dimension_numbers":
            is_whole = is_flat and eqn.primitive.name not in _ON_FLAT
            x = "rows in one axis" if is_whole else _from_the_end(eqn, name, x, len(shape))
        elif name in _LENGTHS and eqn.primitive.name in (*_ON_FLAT, "iota"):
            x = _lengths(name, x, shape)
        found.append((name, x if isinstance(x, tuple | int | str) else repr(x)))
    return found


def _from_the_end(eqn: Any, name: str, axes: Any, ndim: int) -> Any:
    """Axes counted from the last one, which the axis of rows does not change."""
    if name == "dimension_numbers":
        if eqn.primitive.name != "dot_general":
            return repr(axes)
        counts = [atom.aval.ndim for atom in eqn.invars]
        return repr([[[k - n for k in x] for x, n in zip(y, counts, strict=True)] for y in axes])
    if isinstance(axes, int):
        return axes - ndim
    found = tuple(k - ndim for k in axes)
    has_rows = name in ("broadcast_dimensions", "permutation") and found[:1] == (-ndim,)
    is_first = eqn.invars[0].aval.shape[:1] == (ROWS,) == eqn.outvars[0].aval.shape[:1]
    return found[1:] if has_rows and is_first else found


def _lengths(name: str, lengths: Shape, shape: Shape) -> Any:
    if name == "start_indices" and shape[:1] == (ROWS,):
        return lengths[1:] if lengths[0] == 0 else lengths
    return _one_row(lengths)
