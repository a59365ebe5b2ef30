"""Whether a function's bits are its own: a walk through the traced program, which compiles nothing.

Of each value the walk knows whether it is a product that no selection has rounded yet, through
reshapes, calls, branches and loops. `order_rules.py` has the table of what is found.
"""

import contextlib
import contextvars
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core as jax_core

from basinax.numerics.interpret import CALLS, count_scanned
from basinax.numerics.order_rules import (
    RULES_AT,
    UNKNOWN,
    Fact,
    Rule,
    Value,
    is_inexact,
    joined_facts,
    of_argument,
    outcomes,
)
from basinax.numerics.rounding import EXACT
from basinax.numerics.settings import count_of
from basinax.numerics.static import Static, partition


class OrderFinding(NamedTuple):
    """An operation whose last bits may depend on the program."""

    rule: str
    """The name of the rule that it breaks."""
    operation: str
    """JAX's name of the operation."""
    source: str
    """File and line: where the function calls the operation, or makes the product that meets it."""
    origin: str
    """File and line of the operation itself, which may be in basinax."""
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
        found = count_of(len(self.findings), "finding")
        end = f"{found}, of which {n_others} change no bit between batches"
        return "\n".join([*map(str, self.findings), end])

    __repr__ = __str__


class OrderWarning(UserWarning):
    """A function's bits may depend on the batch; see `check_order`."""


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
    # Of the operations that one call makes in basinax, the first stands for all.
    findings = {finding._replace(origin=""): finding for finding in reversed(walk.findings)}
    return OrderCheck(tuple(reversed(findings.values())))


_SHOWN = 5
"""The largest number of findings in a warning."""

_gathered = contextvars.ContextVar[list[OrderFinding] | None]("gathered", default=None)


@contextlib.contextmanager
def gathered() -> Iterator[list[OrderFinding]]:
    """The list to which `checked` adds findings meanwhile, in place of warnings and errors."""
    findings: list[OrderFinding] = []
    token = _gathered.set(findings)
    try:
        yield findings
    finally:
        _gathered.reset(token)


def checked(function: Callable[..., Any], *arguments: Any, is_strict: bool = False) -> Any:
    """`function(*arguments)`, with a warning of what a user's code in it leaves to the compiler.

    To be called while a program is traced: `function` is traced once, for the check and the result.

    Raises:
        ValueError: with `is_strict`, in place of the warning.
    """
    with gathered():  # one warning for all that is inside
        closed, shapes, static = eqx.filter_make_jaxpr(function)(*arguments)
    _tell([x for x in check_program(closed).in_batches if not x.source.startswith(_OWN)], is_strict)
    results = jax_core.jaxpr_as_fun(closed)(*jax.tree.leaves(eqx.filter(arguments, eqx.is_array)))
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(shapes), results), static)


def checked_once(owner: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, `checked` once for what of `owner` is of classes of users.

    Its arrays do not count, its other values do, such as switches and functions.
    """
    parts = _users_parts(owner)
    if not parts or parts in _known:
        return function(*arguments)
    with gathered() as found:
        results = checked(function, *arguments)
    _known[parts] = found
    _tell(found)
    return results


def known_findings(owner: Any) -> list[OrderFinding]:
    """What `checked_once` has found for `owner`."""
    return _known.get(_users_parts(owner), [])


_known: dict[frozenset[Static], list[OrderFinding]] = {}


def _users_parts(x: Any) -> frozenset[Static]:
    """The modules in a tree whose classes are not of basinax, without their arrays."""
    if _is_module(x) and not type(x).__module__.startswith("basinax."):
        return frozenset({partition(x)[0]})
    parts = x if isinstance(x, tuple | list) else vars(x).values() if _is_module(x) else ()
    return frozenset[Static]().union(*map(_users_parts, parts))


def _is_module(x: Any) -> bool:
    return isinstance(x, eqx.Module)


def _tell(found: list[OrderFinding], is_strict: bool = False) -> None:
    if (gathering := _gathered.get()) is not None:
        gathering += found
    elif found and is_strict:
        raise ValueError(_message(found))
    elif found:
        file, _, line = found[0].source.rpartition(":")
        is_known = line.isdigit()
        warnings.warn_explicit(
            _message(found), OrderWarning, file if is_known else line, int(line) if is_known else 1
        )


def _message(found: list[OrderFinding]) -> str:
    lines = ["bits of a system may depend on the batch (see check_order):", *map(str, found)]
    more = len(found) - _SHOWN
    return "\n".join(lines[: _SHOWN + 1] + [f"and {more} more"] * (more > 0))


class _Walk:
    def __init__(self) -> None:
        self.findings: list[OrderFinding] = []
        self.caller: Any = None
        """The call of a jitted function of JAX or basinax in which the walk is: its program has no
        line of the caller, or that of another call."""
        self.is_marked = False
        self.known: dict[Any, tuple[Any, list[Value]]] = {}
        self.constants: dict[int, Value] = {}
        self.calls: dict[Any, Any] = {}
        """The operations, or calls of JAX's functions, by the names that facts have for them."""

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
                rows = [
                    x._replace(is_constant=False, is_known=False)
                    for x in inputs[n_consts + n_carried :]
                ]
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
        self.calls[at] = eqn if self.caller is None else self.caller
        return outcomes(eqn, inputs, at, is_marked=self.is_marked)

    def find(self, eqn: Any, inputs: list[Value]) -> None:
        for rule in RULES_AT.get(eqn.primitive.name, [UNKNOWN]):
            if facts := rule.broken(eqn, inputs):
                facts = facts if isinstance(facts, frozenset) else frozenset[Fact]()
                self.findings.append(self.finding(rule, eqn, facts))

    def finding(self, rule: Rule, eqn: Any, facts: frozenset[Fact]) -> OrderFinding:
        called = eqn if self.caller is None else self.caller
        makers = [self.calls[fact.at] for fact in facts if fact.at in self.calls]
        made = sorted(_line(maker, _NOT_USERS) for maker in makers)
        origin = _line(eqn, _PASSED)
        lines = [_line(called, _NOT_USERS), *made, origin, _line(called, _PASSED)]
        source = next(filter(None, lines), "the function")
        told = rule.why, rule.remedy, rule.in_batches
        return OrderFinding(rule.name, eqn.primitive.name, source, origin, *told)

    def caller_of(self, eqn: Any, inner: Any) -> Any:
        """The caller inside a call: the call itself if it is of a function of JAX or basinax."""
        told = getattr(getattr(inner, "jaxpr", inner), "debug_info", None)
        file = getattr(told, "func_filename", None)
        if eqn.primitive.name not in ("jit", "pjit") or file is None:
            return self.caller
        return (self.caller or eqn) if file.startswith((_JAX, _OWN)) else None

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
    """What is known of values that are one or the other."""
    return [
        Value(joined_facts(x, y), *(a and b for a, b in zip(x[1:], y[1:], strict=True)))
        for x, y in zip(xs, ys, strict=True)
    ]


def _is_mark(eqn: Any) -> bool:
    return eqn.primitive is EXACT


def _constant(x: Any) -> Value:
    if isinstance(x, Tracer):  # of a program around the one that is checked
        return of_argument(x, id(x))
    dtype = getattr(x, "dtype", None) or np.result_type(x)
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)):
        return Value(is_constant=True, is_known=True)
    numbers = np.asarray(x, np.float64)
    is_exact = np.isin(np.abs(np.frexp(numbers)[0]), (0.0, 0.5, np.inf)).all()
    is_infinite = numbers.size > 0 and np.isinf(numbers).all()
    return Value(frozenset(), True, bool(is_exact), not numbers.any(), bool(is_infinite), True)


_JAX = os.path.dirname(str(jax.__file__))
_OWN = str(Path(__file__).parents[1])
_NOT_USERS = (_JAX, _OWN, os.path.dirname(str(eqx.__file__)), contextlib.__file__)
_PASSED = (_JAX, os.path.dirname(str(eqx.__file__)), __file__, contextlib.__file__)


def _line(eqn: Any, passed: tuple[str, ...]) -> str:
    """File and line of the innermost call outside of these files, within the check; or nothing."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        if not frame.file_name.startswith(passed):
            return f"{frame.file_name}:{frame.line_num}"
        if frame.file_name == __file__:
            break
    return ""
