"""Whether a function's bits are its own: a walk through the traced program, which compiles nothing.

Of each value the walk knows whether it is a product that no selection has rounded yet, through
reshapes, calls, branches and loops. `order_rules.py` has the table of what is found.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from basinax._bits.order_rules import (
    RULES_AT,
    UNKNOWN,
    Rule,
    Value,
    is_inexact,
    of_argument,
    outcomes,
)
from basinax._bits.rewriting import CALLS, count_scanned
from basinax._bits.rounding import EXACT


class OrderFinding(NamedTuple):
    """An operation whose last bits may depend on the program."""

    rule: str
    """The name of the rule that it breaks."""
    operation: str
    """JAX's name of the operation."""
    source: str
    """File and line: where the function calls the operation."""
    why: str
    remedy: str
    in_batches: bool
    """Whether bits may depend on the batch. If not, only jitted runs differ from runs op by op."""

    def __str__(self) -> str:
        return f"{self.source}: {self.rule} ({self.operation}): {self.why}. Remedy: {self.remedy}."


class OrderCheck(NamedTuple):
    """The findings of `check_order`, in the order of the program; empty for a clean function."""

    findings: tuple[OrderFinding, ...]

    @property
    def in_batches(self) -> tuple[OrderFinding, ...]:
        """The findings by which bits may depend on the batch."""
        return tuple(x for x in self.findings if x.in_batches)

    def __str__(self) -> str:
        if not self.findings:
            return "no rounding and no order is left to the compiler"
        n_others = len(self.findings) - len(self.in_batches)
        end = f"{len(self.findings)} findings, of which {n_others} change no bit between batches"
        return "\n".join([*map(str, self.findings), end])

    __repr__ = __str__


def check_order(function: Callable[..., Any], *arguments: Any) -> OrderCheck:
    """Find the operations of a function whose last bits may depend on the batch.

    These are products that meet a sum before they are rounded, sums in an order that XLA chooses,
    and functions with several codes. The function is traced, not compiled or run, so its shapes
    count and its values do not. Integers and masks are exact and never found. What is not found has
    the same bits in every program; what is found may have them.

    >>> import jax.numpy as jnp
    >>> from basinax import check_order, rounded
    >>> x = jnp.ones((4, 3))
    >>> check_order(lambda x: rounded(x * x) - 1.0, x)
    no rounding and no order is left to the compiler
    >>> [finding.rule for finding in check_order(lambda x: jnp.sum(x * x - 1.0), x).findings]
    ['product in a sum', 'sum over an axis']

    Args:
        arguments: trees of arrays, or of `jax.ShapeDtypeStruct`, that the function takes. Anything
            else in them is passed as it is.

    Raises:
        Exception: whatever the function raises while it is traced.
    """
    closed = eqx.filter_make_jaxpr(function)(*arguments)[0]
    return check_program(closed)


def check_program(closed: Any) -> OrderCheck:
    """`check_order` of a traced function, a closed jaxpr."""
    walk = _Walk()
    walk.closed(closed, [of_argument(atom) for atom in closed.jaxpr.invars])
    return OrderCheck(tuple(dict.fromkeys(walk.findings)))


class _Walk:
    def __init__(self) -> None:
        self.findings: list[OrderFinding] = []
        self.caller: Any = None
        """The call of one of JAX's own functions in which the walk is: its program has no line of
        the caller, or that of another call."""
        self.is_marked = False
        self.known: dict[Any, tuple[Any, list[Value]]] = {}
        self.constants: dict[int, Value] = {}

    def closed(self, closed: Any, inputs: list[Value]) -> list[Value]:
        """The values of the results; each program is walked through once for the same inputs."""
        jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
        key = (id(jaxpr), id(self.caller), self.is_marked, *inputs)
        if key not in self.known:
            # The program is kept, since another could have its id.
            self.known[key] = closed, self.jaxpr(jaxpr, [self.constant(x) for x in consts], inputs)
        return self.known[key][1]

    def constant(self, x: Any) -> Value:
        if id(x) not in self.constants:
            self.constants[id(x)] = _constant(x)
        return self.constants[id(x)]

    def jaxpr(self, jaxpr: Any, consts: list[Value], inputs: list[Value]) -> list[Value]:
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def read(atom):
            return self.constant(atom.val) if isinstance(atom, jax_core.Literal) else values[atom]

        marked = {eqn.invars[0] for eqn in jaxpr.eqns if _is_mark(eqn)}
        for eqn in jaxpr.eqns:
            with self.inside(is_marked=self.is_marked or not marked.isdisjoint(eqn.outvars)):
                outputs = self.equation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, inputs: list[Value]) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        if name in CALLS:
            inner = params.get("jaxpr") or params["call_jaxpr"]
            with self.inside(caller=self.caller_of(eqn, inner)):
                return self.closed(inner, inputs)
        match name:
            case "scan":
                n_consts, n_carried = count_scanned(eqn)
                rows = [x._replace(is_constant=False) for x in inputs[n_consts + n_carried :]]
                consts, carry = inputs[:n_consts], inputs[n_consts : n_consts + n_carried]
                turn = functools.partial(self.closed, params["jaxpr"])
                return _settled(lambda carry: turn([*consts, *carry, *rows]), carry)
            case "while":
                n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
                body, carry = inputs[n_cond : n_cond + n_body], inputs[n_cond + n_body :]
                turn = functools.partial(self.closed, params["body_jaxpr"])
                carry = _settled(lambda carry: turn([*body, *carry]), carry)
                self.closed(params["cond_jaxpr"], [*inputs[:n_cond], *carry])
                return carry
            case "cond":
                branches = [self.closed(branch, inputs[1:]) for branch in params["branches"]]
                return functools.reduce(_joined, branches)
            case "custom_linear_solve":
                n = params["const_lengths"]
                first = n.matvec + n.vecmat
                solve = [*inputs[first : first + n.solve], *inputs[sum(n) :]]
                return self.closed(params["jaxprs"].solve, solve)
        if any(map(is_inexact, (*eqn.invars, *eqn.outvars))) and not self.is_marked:
            self.find(eqn, inputs)
        at = id(eqn), id(self.caller)
        return outcomes(eqn, inputs, at, is_marked=self.is_marked)

    def find(self, eqn: Any, inputs: list[Value]) -> None:
        for rule in RULES_AT.get(eqn.primitive.name, [UNKNOWN]):
            if rule.broken(eqn, inputs):
                self.findings.append(self.finding(rule, eqn))

    def finding(self, rule: Rule, eqn: Any) -> OrderFinding:
        source = source_of(eqn if self.caller is None else self.caller)
        name = eqn.primitive.name
        return OrderFinding(rule.name, name, source, rule.why, rule.remedy, rule.in_batches)

    def caller_of(self, eqn: Any, inner: Any) -> Any:
        """The caller inside a call: the call itself if it is of a function of JAX."""
        told = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
        file = getattr(told, "func_filename", None)
        if eqn.primitive.name not in ("jit", "pjit") or file is None:
            return self.caller
        return (self.caller or eqn) if file.startswith(_JAX) else None

    @contextlib.contextmanager
    def inside(self, **state: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in state}
        self.__dict__.update(state)
        try:
            yield
        finally:
            self.__dict__.update(before)


def _settled(turn: Callable, carry: list[Value]) -> list[Value]:
    """The results of a loop's turns, with what its carry may be in any of them."""
    while True:
        outputs = turn(carry)
        later = _joined(carry, outputs[: len(carry)])
        if later == carry:
            return [*carry, *outputs[len(carry) :]]
        carry = later


def _joined(xs: list[Value], ys: list[Value]) -> list[Value]:
    return [
        Value(x.facts | y.facts, *(a and b for a, b in zip(x[1:], y[1:], strict=True)))
        for x, y in zip(xs, ys, strict=True)
    ]


def _is_mark(eqn: Any) -> bool:
    return eqn.primitive is EXACT


def _constant(x: Any) -> Value:
    dtype = getattr(x, "dtype", None) or np.result_type(x)
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)):
        return Value(is_constant=True)
    numbers = np.asarray(x, np.float64)
    is_exact = np.isin(np.abs(np.frexp(numbers)[0]), (0.0, 0.5, np.inf)).all()
    return Value(is_constant=True, is_exact=bool(is_exact), is_zero=not numbers.any())


_JAX = os.path.dirname(str(jax.__file__))
_PASSED = (_JAX, os.path.dirname(str(eqx.__file__)), __file__, contextlib.__file__)


def source_of(eqn: Any) -> str:
    """File and line of the innermost call outside of JAX, equinox and this file."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        if not frame.file_name.startswith(_PASSED):
            return f"{frame.file_name}:{frame.line_num}"
    return "the function itself"
