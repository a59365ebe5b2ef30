"""The decision which systems a clip scales, and the factors."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from basinax.numerics import xla
from basinax.numerics.exponents import (
    choice,
    choose,
    infinity_bits,
    magnitude_bits,
    normal_bits,
    scale_exactly,
    signed_bits,
    split,
    toward_zero,
)
from basinax.numerics.rounding import BLOCK, common, rounded, wide_dtype
from basinax.numerics.settings import Allowed, require, require_real
from basinax.systems.index import AnyIndex, WholeIndex, of_small, one_by_one, where_any
from basinax.systems.indices import Indices
from basinax.systems.norms import Norms, extremes, plain_norms, quotient, scaled_norms
from basinax.systems.prefix import per_system

CHECKED_ENTRIES = 1024
"""Systems of one block of rows get the nearest factor if the norm of the result then keeps to the
limit, other systems a safe factor. Blocks of more entries than this always get the safe factor."""


def limits_of(value: Any, name: str, like: Float[Array, "systems"]) -> Float[Array, "systems"]:
    """A limit as one value per system, in the dtype of `like`; never rounded up.

    Raises:
        ValueError: `value` is a negative number, or neither one number nor one per system.
    """
    require_limit(value, name)
    if not isinstance(value, jax.Array):
        wide = np.asarray(
            value, None if np.issubdtype(np.asarray(value).dtype, np.floating) else float
        )
        with np.errstate(over="ignore", under="ignore"):
            value = wide.astype(like.dtype)
        value = np.where(value > wide, np.nextafter(value, np.zeros_like(value)), value)
    return per_system(narrowed(jnp.asarray(value), like.dtype), name, like)


def require_limit(value: Any, name: str) -> None:
    """Raise ValueError if `value` is a negative number of Python or NumPy, or NaN.

    Raise TypeError if `value` is neither a number nor an array of numbers. inf means no limit.
    docs/clipping.md describes a negative limit in an array.
    """
    require_real(value, name, ", inf for no limit")
    if isinstance(value, numbers.Real):
        for allowed in (A_NUMBER, NOT_NEGATIVE):
            require(value, name, allowed)


A_NUMBER = Allowed("be a number, inf for no limit", lambda x: x == x)
NOT_NEGATIVE = Allowed("not be negative", lambda x: x >= 0)


def narrowed(value: Array, dtype) -> Array:
    """A limit in another dtype, rounded towards zero."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value.astype(dtype)
    result = value.astype(dtype)
    if result.dtype == value.dtype:
        return result
    is_more = result.astype(value.dtype) > value
    return jnp.where(is_more, toward_zero(result), result)


@dataclasses.dataclass(frozen=True)
class Clip:
    """Clipping of a list of leaves by the systems of their indices."""

    ord: float = 2.0
    nan_safe: bool = False
    rescales: bool = False
    keeps_nan: bool = False
    """Leave a system unchanged if its norm cannot be compared with its limit."""
    quick: bool = False
    """The option of `plain_norms`."""

    @functools.partial(xla.jitted, static_argnums=0)
    def __call__(
        self,
        leaves: Sequence[Any],
        indices: Indices,
        limits: Float[Array, "systems"],
    ) -> tuple[list[Array], Float[Array, "systems"], Bool[Array, "systems"]]:
        """The clipped leaves, the norms before clipping, and the mask of clipped systems."""
        shapes = [jnp.shape(x) for x in leaves]
        leaves = [jnp.atleast_1d(x) for x in leaves]
        if self.nan_safe:
            leaves = [jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)) for x in leaves]
        indices = indices.apart(leaves)
        rows = indices.join(leaves)
        plain, is_unsafe = plain_norms(leaves, indices, self.ord, self.quick)
        together = self._judged(plain, limits)
        # In global mode zeros count as extreme: an exact test would cost more.
        is_whole = all(isinstance(index, WholeIndex) for index in indices)
        if not is_whole:
            is_unsafe = extremes(common(leaves), indices, is_unsafe)
        is_extreme = is_unsafe | together.needs_exponents()
        # Compute the factors before the `cond`: inside a branch, XLA would recompute them per
        # entry. A NaN factor marks a system for the careful path, so that all work per system is
        # one dependency chain: XLA on CPU runs a chain in place, but hands independent small
        # kernels to another thread.
        factors = self._factors(together, limits, leaves, indices, rows)
        factors = jnp.where(is_extreme, jnp.nan, factors)

        def take_apart():
            is_extreme = jnp.isnan(factors)
            found = scaled_norms(common(leaves), indices, self.ord, plain, is_extreme)
            judged = self._judged(found, limits)
            mantissas, exponents = _quotient(judged)
            mantissas = judged.factors(rounded(mantissas * self._safety(leaves, indices)))
            scaling = Scaling(
                judged.is_scaled,
                jnp.where(is_extreme, mantissas, factors),
                jnp.where(is_extreme & judged.is_divided, exponents, 0),
            )
            return _scaled(rows, indices.distinct, scaling), found.values, judged.is_clipped

        def keep_together():
            scaled = _scaled(rows, indices.distinct, Scaling(factors != 1, factors))
            return scaled, plain.values, together.is_clipped

        scaled, norm, is_clipped = where_any(jnp.isnan(factors), take_apart, keep_together)
        clipped = zip(indices.cut(scaled, leaves), shapes, strict=True)
        return [x.reshape(shape) for x, shape in clipped], norm, is_clipped

    def _judged(self, found: Norms, limits) -> "Decision":
        """The decision on each system, made from bits so that subnormal numbers count."""
        infinity = infinity_bits(limits.dtype)
        # Bits order like magnitudes; comparisons of floats would flush subnormals to zero.
        norm, limit = magnitude_bits(found.values), magnitude_bits(limits)
        is_invalid = (limit > infinity) | ((signed_bits(limits) < 0) & (limit > 0))
        is_poisoned = ~jnp.isfinite(found.mantissas)
        stays = norm == 0
        if self.keeps_nan:
            stays = stays | (norm > infinity) | ((norm == infinity) & (limit == infinity))
        is_over = ~is_poisoned & ~is_invalid & (norm > limit)
        is_clipped = ~stays & (is_over | is_poisoned | is_invalid)
        dividend, divisor, exponents = limits, found.mantissas, found.exponents
        # Rescaling divides by the larger of norm and limit; clipping multiplies by limit / norm.
        if self.rescales:
            is_scaled = ~stays
            to_zero = is_poisoned | is_invalid | ((limit == infinity) & ~is_over)
            dividend = jnp.ones_like(limits)
            divisor = jnp.where(is_over, divisor, limits)
            exponents = jnp.where(is_over, exponents, 0)
        else:
            is_scaled = is_clipped
            to_zero = is_poisoned | is_invalid | (limit == 0)
        is_divided = is_scaled & ~to_zero
        dividend, divisor = (jnp.where(is_divided, x, 1) for x in (dividend, divisor))
        exponents = jnp.where(is_divided, exponents, 0)
        return Decision(is_clipped, is_scaled, is_divided, dividend, divisor, exponents)

    def _factors(
        self, judged: "Decision", limits, leaves, indices, rows
    ) -> Float[Array, "systems"]:
        """The factors of systems that are not extreme.

        The nearest factor is used if the norm of the result, computed here, keeps to the limit, and
        a safe factor otherwise. Only small systems are tried, for which the extra norm is cheap.
        """
        nearest = judged.factors(rounded(quotient(judged.dividend, judged.divisor)))
        safe = jnp.where(
            judged.is_divided, rounded(nearest * self._safety(leaves, indices)), nearest
        )
        if not _may_be_small(leaves, indices):
            return safe
        is_block = [index.sizes <= BLOCK for index in indices.distinct]
        is_small = judged.is_divided & functools.reduce(jnp.logical_and, is_block)
        targets = jnp.ones_like(limits) if self.rescales else limits

        def fits(systems) -> Bool[Array, "some"]:
            pairs = zip(rows, indices.distinct, strict=True)
            firsts = [index.first_blocks(x, systems) for x, index in pairs]
            blocks = [x for x, _ in firsts]
            of_blocks = Indices(tuple(index for _, index in firsts), indices.numbers)
            # The test only selects a factor, so no derivative passes through it.
            is_scaled, factors, most = jax.lax.stop_gradient(
                [values[systems] for values in (judged.is_scaled, nearest, targets)]
            )
            scaling = Scaling(is_scaled, factors)
            blocks = jax.lax.stop_gradient(blocks)
            # The products of `_scaled`, for a norm: rounded only to the dtype of the leaf.
            pairs = zip(blocks, of_blocks.distinct, strict=True)
            results = [narrow(_product(x, index, scaling), x.dtype) for x, index in pairs]
            after, is_unsafe = plain_norms(of_blocks.cut(results, leaves), of_blocks, self.ord)
            return (after.values <= most) & ~is_unsafe

        return jnp.where(is_small & of_small(fits, is_small, indices[0]), nearest, safe)

    def _safety(self, leaves, indices) -> Float[Array, "systems"]:
        """The factor (below 1) that keeps rounding from lifting a norm above its limit.

        A sum of positive terms with n additions each errs by at most n half ulps. Two such sums are
        involved, and a square root halves the error. A few more ulps cover squares or powers, roots
        and the scaling. Leaves without rows in a system do not count.
        """
        n = _additions(leaves, indices, self.quick)
        ulps = {1.0: n + 4, 2.0: n // 2 + 6}.get(self.ord, n + 8)
        dtype = np.result_type(*[wide_dtype(x) for x in leaves])
        return 1 - ulps.astype(dtype) * float(jnp.finfo(dtype).eps)


class Decision(NamedTuple):
    """The decision on each system."""

    is_clipped: Bool[Array, "systems"]
    is_scaled: Bool[Array, "systems"]
    is_divided: Bool[Array, "systems"]
    """Scaled by a quotient; systems that are scaled but not divided become 0."""
    dividend: Float[Array, "systems"]
    divisor: Float[Array, "systems"]
    """The factor is dividend / (divisor · 2^exponents), or 1 for systems that are not divided."""
    exponents: Int[Array, "systems"]

    def factors(self, quotients: Float[Array, "systems"]) -> Float[Array, "systems"]:
        """The quotients of divided systems; 0 or 1 for the others."""
        others = jnp.where(self.is_scaled, jnp.zeros_like(quotients), jnp.ones_like(quotients))
        return jnp.where(self.is_divided, quotients, others)

    def needs_exponents(self) -> Bool[Array, "systems"]:
        """Whether a number is near the ends of the range, or an entry may become subnormal."""
        info = jnp.finfo(self.dividend.dtype)
        top, bottom = (magnitude_bits(x) for x in (self.dividend, self.divisor))
        # Above the second bound, entries below the normal numbers are too small to matter.
        near, far = ((1 + powers) << info.nmant for powers in (40, 41 + info.nmant))
        is_small = (top < near) | (bottom < far)
        power = (top >> info.nmant) - (bottom >> info.nmant)
        return is_small | (power <= info.minexp) | (self.exponents != 0)


class Scaling(NamedTuple):
    """The multiplier of each system: factors · 2^exponents."""

    is_scaled: Bool[Array, "systems"]
    factors: Float[Array, "systems"]
    exponents: Int[Array, "systems"] | None = None
    """None if all exponents are 0."""


def _scaled(rows, indices, scaling: Scaling) -> list[Array]:
    """The rows times their systems' factors.

    Systems that are not scaled are selected: a product by one would flush subnormals to zero.
    """

    def scale(x, index):
        result = narrow(rounded(_product(x, index, scaling)), x.dtype)
        if isinstance(index, WholeIndex):
            # XLA tests the one flag before the loop, not per entry.
            return jnp.where(index.spread(scaling.is_scaled, False, x), result, x)
        mask = index.spread(choice(scaling.is_scaled, x.dtype), 0, x)
        return choose(mask, result, x)

    run = scale if scaling.exponents is None else functools.partial(one_by_one, scale)
    return [run(x, index) for x, index in zip(rows, indices, strict=True)]


def _product(rows, index: AnyIndex, scaling: Scaling):
    x = rows.astype(scaling.factors.dtype)
    factor = index.spread(scaling.factors, 1.0, x)
    if scaling.exponents is None:
        return x * factor
    exponents = index.spread(scaling.exponents, 0, x)
    y = rounded(scale_exactly(x, exponents) * factor)
    is_lost = (exponents != 0) & (magnitude_bits(y) < normal_bits(y.dtype))
    return jnp.where(is_lost, jnp.zeros_like(y), y)


def narrow(y, dtype):
    """y in a dtype of lower precision, rounded towards zero so that y keeps to a limit."""
    result = y.astype(dtype)
    if result.dtype == y.dtype:
        return result
    is_more = jnp.abs(result.astype(y.dtype)) > jnp.abs(y)
    return jnp.where(is_more, toward_zero(result), result)


def _quotient(judged: Decision):
    """The factors as numbers near one and powers of two."""
    dividend, divisor = judged.dividend, judged.divisor
    top, top_exponent = split(dividend)
    bottom, bottom_exponent = split(divisor)
    factors = rounded(top / bottom)
    # The slope is one, with the derivative of the quotient, which bit operations lack.
    slope = rounded(quotient(dividend, jax.lax.stop_gradient(dividend)))
    slope = slope * rounded(quotient(jax.lax.stop_gradient(divisor), divisor))
    factors = jnp.where(jnp.isfinite(slope) & (slope == 1), factors * slope, factors)
    return factors, top_exponent - bottom_exponent - judged.exponents


def _may_be_small(leaves, indices) -> bool:
    """Whether a system can have at most one block of rows in every leaf, and few entries."""
    if all(isinstance(index, WholeIndex) and index.n_rows > BLOCK for index in indices):
        return False
    return sum(BLOCK * components_of(x) for x in leaves) <= CHECKED_ENTRIES


def _additions(leaves, indices, quick: bool) -> Int[Array, "systems"]:
    """The largest number of additions of one entry of each system."""
    parts, present = [], []
    for index, places in zip(indices.distinct, indices.places(), strict=True):
        widths = [components_of(leaves[place]) for place in places]
        within = max(w if w <= BLOCK else math.ceil(math.log2(w)) for w in widths)
        part = 3 * index.depths() + within
        if quick and isinstance(index, WholeIndex):
            part = jnp.maximum(part, index.quick_additions(leaves[places[0]]))
        has_rows = index.sizes > 0
        parts.append(jnp.where(has_rows, part, 0))
        present.append(jnp.where(has_rows, len(places), 0))
    return functools.reduce(jnp.maximum, parts) + functools.reduce(jnp.add, present)


def components_of(leaf) -> int:
    return math.prod(jnp.shape(leaf)[1:])
