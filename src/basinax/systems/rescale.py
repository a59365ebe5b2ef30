"""Numbers per system in units of powers of two, for trees whose squares would be out of range.

In single precision, squares of numbers below 1e-19 underflow and those of numbers above 1e19
overflow. Systems whose squares are in range have the unit 1 and keep their bits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from basinax.numerics.exponents import scale_exactly
from basinax.numerics.rounding import rounded
from basinax.systems.index import where_any
from basinax.systems.segment import (
    dot,
    dots,
    in_units,
    is_finite,
    longest_row_in_units,
    map_rows,
    saturated,
    units_of,
    where,
)
from basinax.systems.types import Exponents, PerSystem, Prefix, Tree


class Products(NamedTuple):
    """Inner products of two trees per system, in units of powers of two."""

    aa: PerSystem
    """In units of 4^a_exponents."""
    ab: PerSystem
    """In units of 2^(a_exponents + b_exponents)."""
    bb: PerSystem
    """In units of 4^b_exponents."""
    a_exponents: Exponents
    """0 if no square is out of range."""
    b_exponents: Exponents


def products(a: Tree, b: Tree, index_prefix: Prefix, *, has_one_unit: bool) -> Products:
    """a·a, a·b and b·b of each system, in units in which squares neither over- nor underflow.

    Squares in a safe range keep the bits of `dot`.

    Args:
        has_one_unit: use the larger unit for both trees; the smaller tree may then underflow to 0.
    """

    def again(*exponents):
        x, y = _scaled(a, exponents[0], index_prefix), _scaled(b, exponents[-1], index_prefix)
        return dots([(x, x), (x, y), (y, y)], index_prefix)

    plain = dots([(a, a), (a, b), (b, b)], index_prefix)
    aa, _, bb = plain
    groups = [([a, b], jnp.maximum(aa, bb))] if has_one_unit else [([a], aa), ([b], bb)]
    (aa, ab, bb), exponents = in_units(groups, index_prefix, plain, again)
    return Products(aa, ab, bb, exponents[0], exponents[-1])


def units(tree: Tree, index_prefix: Prefix = None) -> Exponents:
    """Exponents of powers of two; in these units no square of a system's rows is out of range.

    0 if the squares are in range already, and if no unit helps: all entries are 0, or one is not
    finite.
    """
    return units_of([tree], index_prefix, dot(tree, tree, index_prefix))


def scaled_by_power(tree: Tree, exponents: Exponents, index_prefix: Prefix = None) -> Tree:
    """Each system's rows times 2^-exponents; subnormal results may be 0."""
    return scaled_by_powers([(tree, exponents)], index_prefix)[0]


def scaled_by_powers(
    pairs: Sequence[tuple[Tree, Exponents]], index_prefix: Prefix = None
) -> list[Tree]:
    """`scaled_by_power` of each tree with its exponents, which nearly always are all 0."""
    is_scaled = functools.reduce(jnp.logical_or, [exponents != 0 for _, exponents in pairs])
    return where_any(
        is_scaled,
        lambda: [_scaled(*pair, index_prefix) for pair in pairs],
        lambda: [tree for tree, _ in pairs],
    )


def _scaled(tree, exponents, index_prefix):
    return map_rows(_divided, index_prefix, [(exponents, 0)], tree)


def _divided(exponents, x):
    return scale_exactly(x, -exponents)


def limited(
    tree: Tree,
    exponents: Exponents,
    limits: PerSystem,
    index_prefix: Prefix,
    otherwise: Callable[[], Tree],
) -> tuple[Tree, PerSystem]:
    """A tree in units of 2^exponents, converted to units of 1, and a factor that limits rows.

    The factor brings a system's longest row down to the limit; it is 1 if all rows are shorter.

    Args:
        otherwise: makes a tree for systems with an entry that is not finite.
    """

    is_sound = is_finite(tree, index_prefix)
    tree = where_any(
        ~is_sound, lambda: where(~is_sound, otherwise(), tree, index_prefix), lambda: tree
    )
    lengths, units = longest_row_in_units(tree, index_prefix)
    is_long = saturated(lengths, exponents + units) >= limits
    tree = scaled_by_power(tree, jnp.where(is_long, units, -exponents), index_prefix)
    return tree, jnp.where(is_long, rounded(limits / jnp.where(is_long, lengths, 1)), 1)
