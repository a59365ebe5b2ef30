"""The table of operations whose last bits may depend on the program: found where, why, remedy.

`order.py` walks through a traced function and looks up each operation here. The rules are those of
docs/design.md, section 2. What XLA does to which operations was tried on CPUs (docs/notebook.md).
"""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend import core as jax_core

from basinax.numerics.interpret import CALLS, CONTROL, ELEMENTARY, EXACT, REDUCTIONS, ROUNDED


class Fact(NamedTuple):
    """What a value is until it is rounded."""

    kind: str
    """product, square (beside product), quotient, root, power, factor or summand (a product or sum
    with a constant); chosen (a product that a mask of its own entries selects); mask (of such a
    selection), settled (such a mask of a square and 0); or spread (for a system alone, one number
    in many places; repeated while nothing was computed with it there)."""
    at: Any
    """The operation that made it."""


class Value(NamedTuple):
    """What is known of a value. A mask has the facts of the numbers that it compares."""

    facts: frozenset[Fact] = frozenset()
    is_constant: bool = False
    is_exact: bool = False
    """Whether each entry is 0, inf or a power of two, with a sign: a product by it is exact."""
    is_zero: bool = False
    """Whether it is a constant 0, which merges with no other constant."""
    is_infinite: bool = False
    """Whether it is a constant infinity: no number is beyond it."""
    is_known: bool = False
    """Whether it follows from constants and numbers of rows alone."""

    def of(self, *kinds: str) -> frozenset[Fact]:
        return frozenset(fact for fact in self.facts if fact.kind in kinds)


class Rule(NamedTuple):
    """A row of the table."""

    name: str
    at: frozenset[str]
    """The primitives at which the rule applies, by name."""
    broken: Callable[[Any, list[Value]], bool | frozenset[Fact]]
    """From an equation and its inputs: whether it breaks the rule, or the facts that do."""
    why: str
    remedy: str
    in_batches: bool = True
    """Whether bits may depend on the batch. If not, only jitted runs differ from runs op by op."""


def size(atom: Any) -> int:
    return math.prod(atom.aval.shape)


def is_inexact(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


# fmt: off
KINDS = (
    "product", "square", "chosen", "quotient", "root", "power", "factor", "summand", "mask",
    "settled",
)
# fmt: on


def _met(kinds: tuple[str, ...], inputs: list[Value]) -> frozenset[Fact]:
    return frozenset[Fact]().union(*(x.of(*kinds) for x in inputs))


def _unrounded(_, inputs: list[Value]) -> frozenset[Fact]:
    """The products that a compiler may merge with a sum.

    It moves a constant into the branches of a selection, and joins selections by one mask.
    """
    found = _met(("product",), inputs)
    for k, x in enumerate(inputs):
        others = inputs[:k] + inputs[k + 1 :] or [x]
        if any(y.is_constant or _masks(x) & _masks(y) for y in others):
            found |= x.of("chosen")
    return found


def _masks(x: Value) -> set[Any]:
    return {fact.at for fact in x.of("mask")}


def _terms(eqn: Any) -> int:
    """The number of products that a matrix product adds for each entry."""
    (summed, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in summed)


def _is_long(eqn, _) -> bool:
    """Whether it combines more than two numbers, by other than max, min, and, or."""
    inner = {e.primitive.name for j in jax_core.jaxprs_in_params(eqn.params) for e in j.eqns}
    if inner and inner <= EXACT | {"max", "min"}:
        return False
    if "window_dimensions" in eqn.params:
        return math.prod(eqn.params["window_dimensions"]) > 1
    if "axis" in eqn.params:
        return eqn.invars[0].aval.shape[eqn.params["axis"]] > 1
    return size(eqn.invars[0]) > size(eqn.outvars[0])


def _is_ragged(eqn, _) -> bool:
    shape = eqn.outvars[0].aval.shape
    return eqn.primitive.name not in _ON_FLAT_ROWS or len(shape) != 1 or shape[0] % 8 != 0


def _is_one_number(eqn, inputs) -> bool:
    """Whether a quotient has one computed divisor for many numbers."""
    is_spread = size(eqn.invars[1]) == 1 or bool(inputs[1].of("spread"))
    return is_spread and size(eqn.outvars[0]) > 1 and not inputs[1].is_constant


def _simplified(eqn, inputs) -> frozenset[Fact]:
    """The quotients, roots and powers that the simplifier of XLA takes apart."""
    match eqn.primitive.name:
        case "div":
            inner = frozenset() if inputs[1].is_exact else inputs[0].of("quotient")
            return inner | inputs[1].of("quotient", "root", "power")
        case "log":
            return inputs[0].of("power")
        case _:
            powers = [x.of("power") for x in inputs]
            roots = frozenset.intersection(*(x.of("root") for x in inputs))
            both = frozenset[Fact]().union(*powers) if len(powers) == 2 and all(powers) else roots
            return roots | both


def _has_two_constants(eqn, inputs) -> bool | frozenset[Fact]:
    kind = "summand" if eqn.primitive.name in ("add", "sub") else "factor"
    is_neutral = [x.is_exact if kind == "factor" else x.is_zero for x in inputs]
    merged = [x.is_constant and not y for x, y in zip(inputs, is_neutral, strict=True)]
    return sum(merged) == 1 and _met((kind,), inputs)


_ON_FLAT_ROWS = {"exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic"}

# fmt: off
_SUMS = frozenset({
    "add", "sub", "add_any", "cumsum", "psum", "reduce_sum", "reduce_window_sum", "scatter-add",
    "scatter_add", "scatter-sub", "scatter_sub",
})
_SCATTERS = frozenset({"scatter-mul", "scatter_mul", *(x for x in _SUMS if "scatter" in x)})
_LONG = frozenset({
    "cumlogsumexp", "cumprod", "cumsum", "psum", "reduce", "reduce_prod", "reduce_sum",
    "reduce_window", "reduce_window_sum", "select_and_gather_add", "select_and_scatter_add",
})
_LIBRARY = frozenset({
    "approx_top_k", "cholesky", "cholesky_update", "conv_general_dilated", "eig", "eigh", "fft",
    "hessenberg", "householder_product", "lu", "polynomial", "qr", "ragged_dot_general", "schur",
    "svd", "symmetric_product", "triangular_solve", "tridiagonal", "tridiagonal_solve",
})
_REPLACED = {"atan2", "clamp", "div", "max", "min", "one_minus_square", "polynomial", "pow"}
_FUNCTIONS = (ELEMENTARY.keys() - _REPLACED) | {
    "bessel_i0e", "bessel_i1e", "digamma", "erf_inv", "igamma", "igamma_grad_a", "igammac",
    "lgamma", "polygamma", "random_gamma", "regularized_incomplete_beta", "zeta",
}
_MOVES_BESIDES = frozenset({
    "after_all", "axis_index", "clz", "conj", "create_token", "debug_callback", "debug_print",
    "empty2", "imag", "name", "pmax", "pmin", "ppermute", "real", "reduce_precision",
    "reduce_window_max", "reduce_window_min", "reduce_xor", "scatter-max", "scatter-min",
    "scatter_max", "scatter_min", "sharding_constraint",
})
# fmt: on

RULES = (
    Rule(
        "product in a sum",
        _SUMS,
        _unrounded,
        "a compiler may round the product and the sum once instead of twice",
        "write rounded(a * b) + c, or mark an exact product by exact(...)",
    ),
    Rule(
        "sum over an axis",
        _LONG,
        _is_long,
        "XLA chooses the order of the sum by the shape",
        "use segment.sum, segment.dot or segment.norm over rows",
    ),
    Rule(
        "matrix product",
        frozenset({"dot_general"}),
        lambda eqn, _: _terms(eqn) > 1,
        "XLA chooses the order of its sums by the shape",
        "write it out with rounded products, or run each system alone by each_alone",
    ),
    Rule(
        "scatter that adds",
        _SCATTERS,
        lambda eqn, _: not eqn.params["unique_indices"] and size(eqn.invars[1]) > _width(eqn),
        "the device and the shape decide the order in which numbers come to one place",
        "use segment.sum for sums per system, or promise unique_indices",
    ),
    Rule(
        "sort that is not stable",
        frozenset({"sort"}),
        lambda eqn, _: not eqn.params["is_stable"] and len(eqn.invars) > 1,
        "entries with equal keys come in any order",
        "sort with is_stable=True",
    ),
    Rule(
        "library function",
        _LIBRARY,
        lambda *_: True,
        "its algorithm, and so the order of its sums, depends on the shape",
        "run each system alone by each_alone",
    ),
    Rule(
        "elementary function",
        frozenset(_FUNCTIONS),
        _is_ragged,
        "XLA has several codes for it, and the place in an array decides between them",
        "call exp, log or tanh on flat arrays with a multiple of 8 entries; make others from these",
    ),
    Rule(
        "division by one number",
        frozenset({"div"}),
        _is_one_number,
        "XLA multiplies by the reciprocal where the divisor is one number, as for a system alone",
        "multiply by rounded(1 / divisor), or divide by numbers that are computed before they are"
        " repeated for rows or columns",
    ),
    Rule(
        "complex product",
        frozenset({"mul", "div", "integer_pow", "square", "pow"}),
        lambda eqn, _: jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.complexfloating),
        "it is a sum of products that a compiler may round once instead of twice",
        "multiply real and imaginary parts with rounded products",
    ),
    Rule(
        "quotient, root or power that is taken apart",
        frozenset({"div", "mul", "square", "integer_pow", "log"}),
        _simplified,
        "XLA rewrites a/sqrt(b), (a/b)/c, a/(b/c), sqrt(a)*sqrt(a), exp(a)*exp(b) and log(exp(a))",
        "round the inner quotient, root or power",
        in_batches=False,
    ),
    Rule(
        "two constants",
        frozenset({"mul", "div", "add", "sub"}),
        _has_two_constants,
        "XLA merges the constants of (x*c1)*c2 and (x + c1) + c2",
        "write x*(c1*c2) or x + (c1 + c2), or round the inner operation",
        in_batches=False,
    ),
    Rule(
        "constant exponent",
        frozenset({"pow", "atan2"}),
        lambda _, inputs: inputs[1].is_constant,
        "XLA turns it into products, roots or another function",
        "write products and roots, such as x * x and jnp.sqrt(x)",
        in_batches=False,
    ),
)

RULES_AT: dict[str, list[Rule]] = {}
for _rule in RULES:
    for _name in _rule.at:
        RULES_AT.setdefault(_name, []).append(_rule)

KNOWN = EXACT | ROUNDED | ELEMENTARY.keys() | REDUCTIONS.keys() | CONTROL.keys() | _MOVES_BESIDES
KNOWN |= RULES_AT.keys() | {*CALLS}

UNKNOWN = Rule(
    "unknown operation",
    frozenset(),
    lambda eqn, _: eqn.primitive.name not in KNOWN,
    "this check does not know it",
    "write it with other operations, or run each system alone by each_alone",
)
"""The rule of every operation that has no row and is not known."""


def _width(eqn: Any) -> int:
    """The number of entries of an index into a scatter's array."""
    return eqn.invars[1].aval.shape[-1]


# --- what is known of a result

_COMPARISONS = {"ge", "gt", "le", "lt"}
# fmt: off
MOVES = {
    "and", "bitcast_convert_type", "broadcast_in_dim", "concatenate", "copy", "device_put",
    "dynamic_slice", "dynamic_update_slice", "exact", "gather", "name", "neg", "not", "or", "pad",
    "reduce_and", "reduce_or", "reduce_precision", "reshape", "rev", "scatter",
    "sharding_constraint", "slice", "split", "squeeze", "stack", "stop_gradient", "tile",
    "transpose", "unstack",
}
# fmt: on
"""Operations through which a product is still a product, and a mask the same mask."""


def outcomes(eqn: Any, inputs: list[Value], at: Any, *, is_marked: bool) -> list[Value]:
    """The values that an operation makes.

    Args:
        at: names the operation in facts.
        is_marked: the operation is marked as exact.
    """
    name = eqn.primitive.name
    if name == "optimization_barrier":
        return inputs
    numbers = [x for x, atom in zip(inputs, eqn.invars, strict=True) if is_inexact(atom)]
    results = [is_inexact(atom) for atom in eqn.outvars]
    is_constant = bool(inputs) and all(x.is_constant for x in inputs)
    is_known = all(x.is_known for x in inputs)
    is_exact = bool(numbers) and all(x.is_exact for x in numbers)
    moved = inputs if name == "convert_element_type" else numbers if name in MOVES else []
    is_zero = bool(moved) and all(x.is_zero for x in moved)
    is_infinite = bool(moved) and all(x.is_infinite for x in moved)
    kept, made = [], []
    if name == "select_n":
        kept, is_exact = inputs[1:], all(x.is_exact for x in inputs[1:])
    elif name == "convert_element_type":
        kept = numbers if all(results) else []
        is_exact = inputs[0].is_exact or _is_mask(eqn.invars[0])
    elif name in MOVES or _is_of_one(eqn):
        kept = inputs
    elif name in ("abs", "max", "min", "clamp"):
        kept = _passed(name, inputs)
    elif name == "sign":
        is_exact = True
    elif is_marked:
        kept, is_exact = numbers, False
    elif any(results):
        made, kept = _computed(eqn, inputs)
        is_exact = is_exact and bool(kept)
    elif _is_mask(eqn.outvars[0]):
        kept = [Value(x.facts - x.of("mask")) for x in inputs if name in _COMPARISONS]
        # Equal comparisons of equal numbers are one mask.
        made, at = ["mask"], (name, *map(str, eqn.invars))
        if any(x.of("square") for x in kept) and any(x.is_zero for x in inputs):
            made += ["settled"]
    facts = _met(KINDS, kept) | {Fact(kind, at) for kind in made}
    if name == "select_n":
        facts = _selected(eqn, inputs, facts)
    facts |= {Fact(kind, at) for kind in _spread(eqn, inputs)}
    value = Value(facts, is_constant, is_exact, is_zero, is_infinite, is_known)
    return [value] * len(eqn.outvars)


def _is_of_one(eqn: Any) -> bool:
    """Whether a maximum, product or order is one of single numbers, which XLA takes out."""
    name, shape = eqn.primitive.name, eqn.invars[0].aval.shape if eqn.invars else ()
    if name in ("reduce_max", "reduce_min", "reduce_prod"):
        return math.prod(shape[axis] for axis in eqn.params["axes"]) == 1
    if name in ("cummax", "cummin", "cumprod"):
        return shape[eqn.params["axis"]] == 1
    if name == "top_k":
        return shape[eqn.params.get("axis", -1)] == 1
    return name == "sort" and shape[eqn.params["dimension"]] == 1


def of_argument(atom: Any, at: Any = None) -> Value:
    """What is known of an argument; `at` names it in facts, if not the atom itself."""
    return Value(frozenset({Fact("mask", atom if at is None else at)} if _is_mask(atom) else ()))


def _is_mask(atom: Any) -> bool:
    return jnp.issubdtype(getattr(atom.aval, "dtype", float), jnp.bool_)


def _spread(eqn: Any, inputs: list[Value]) -> list[str]:
    """Whether a result is, for a system alone, one number in many places.

    XLA computes with a number before it spreads it, unless nothing is computed behind.
    """
    name, n = eqn.primitive.name, size(eqn.outvars[0])
    sizes = [size(atom) for atom in eqn.invars]
    if name in ("broadcast_in_dim", "gather", "tile"):
        is_constant, is_wider = inputs[0].is_constant, sizes[0] < n
        if is_wider and (sizes[0] == 1 or (not is_constant and _is_mask(eqn.invars[0]))):
            return ["spread"]
        if is_wider and not is_constant and not inputs[0].of("spread") and name != "gather":
            return ["spread" if name == "tile" else "repeated"]
        return _strongest(inputs[:1])
    are_spread = [bool(x.of(*_SPREAD)) for x in inputs]
    if name in MOVES or _is_mask(eqn.outvars[0]):
        known = [x.is_constant or x.is_exact or y for x, y in zip(inputs, are_spread, strict=True)]
        return _strongest(inputs) if all(known) else []
    # Operations by entry may take fewer numbers than they make, as rows and one column.
    few = [at < n and (at == 1 or not x.is_constant) for at, x in zip(sizes, inputs, strict=True)]
    is_one = any(are_spread) and all(map(operator.or_, few, are_spread))
    return ["spread"] if name in _BY_ENTRY and is_one else []


_SPREAD = ("spread", "repeated")
"""Kinds of facts, the stronger one first."""


def _strongest(inputs: list[Value]) -> list[str]:
    """The stronger of these kinds that any input has; none if none has any."""
    return [kind for kind in _SPREAD if any(x.of(kind) for x in inputs)][:1]


def joined_facts(x: Value, y: Value) -> frozenset[Fact]:
    """What a value may be that is one or the other; it is one number only if both are."""
    facts = x.facts | y.facts
    are_both = all(value.of(*_SPREAD) for value in (x, y))
    return facts if are_both else frozenset(fact for fact in facts if fact.kind not in _SPREAD)


_BY_ENTRY = {*ROUNDED, *ELEMENTARY, *("abs", "clamp", "div", "max", "min", "select_n", "sign")}
"""Operations whose every result is of one entry of each input."""


def _selected(eqn: Any, inputs: list[Value], facts: frozenset[Fact]) -> frozenset[Fact]:
    """The facts of a selection: without what the mask has compared, which no compiler merges."""
    mask, *cases = inputs
    if mask.of("settled"):
        return facts
    facts -= mask.facts
    is_own = size(eqn.invars[0]) == size(eqn.outvars[0]) and not mask.of("spread")
    is_own &= not mask.is_known  # a compiler takes out a selection whose mask it knows
    if is_own and not all(x.of("product") for x in cases):
        facts = frozenset(x._replace(kind="chosen") if x.kind == "product" else x for x in facts)
    return facts | mask.of("mask")


def _passed(name: str, inputs: list[Value]) -> list[Value]:
    """The numbers that may pass unchanged: the absolute value of a square, the larger of equals.

    Of two products, both may be the same one.
    """
    if name == "abs":
        squares = {fact.at for fact in inputs[0].of("square")}
        return [Value(frozenset(x for x in inputs[0].facts if x.at in squares))]
    finite = [x for x in inputs if not x.is_infinite]
    is_one = len(finite) == 1 or all(x.of("product") for x in finite)
    return finite if is_one else []


def _computed(eqn: Any, inputs: list[Value]) -> tuple[list[str], list[Value]]:
    """The facts that an arithmetic operation makes, and the inputs whose facts it keeps."""
    is_constant = [x.is_constant and not x.is_zero for x in inputs]
    has_constant = any(is_constant) and not all(is_constant)
    match eqn.primitive.name:
        case "mul" | "dot_general" if any(x.is_exact for x in inputs):
            return [], inputs
        case "div" if inputs[1].is_exact:
            return [], inputs[:1]
        case "div" if is_constant[1]:
            return ["product", "quotient", "factor"], []
        case "div" if _is_one_number(eqn, inputs):
            return ["product", "quotient"], []
        case "mul" if eqn.invars[0] is eqn.invars[1]:
            return ["product", "square"], []
        case "mul":
            return ["product", "factor"] if has_constant else ["product"], []
        case "dot_general" if _terms(eqn) < 2:
            return ["product"], []
        case "integer_pow" if eqn.params["y"] < 0:
            return ["quotient"], []
        case "integer_pow" | "square" if not inputs[0].is_exact:
            is_even = eqn.params.get("y", 2) % 2 == 0
            return ["product", "square"] if is_even else ["product"], []
        case "add" | "sub" if has_constant:
            return ["summand"], []
        case "div":
            return ["quotient"], []
        case "sqrt" | "rsqrt":
            return ["root"], []
        case "pow" if is_constant[1]:
            return ["product", "power"], []
        case "exp" | "exp2" | "pow":
            return ["power"], []
    return [], []
