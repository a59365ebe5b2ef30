"""Least squares of each system: residuals, their Jacobian J, and the normal matrix JᵀJ.

A system's entries form a vector, leaf by leaf, padded with zeros to the length of the largest.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from basinax.numerics.settings import require_function
from basinax.systems.index import SystemIndex
from basinax.systems.map_systems import Alone, room_of, rows_of
from basinax.systems.prefix import resolve
from basinax.systems.types import Prefix, Tree


def sum_of_squares(residuals: Callable[..., Any]) -> Callable[..., tuple[Any, Tree, Any]]:
    """A model of many least-squares problems from the residuals of one, for `LevenbergMarquardt`.

    Its energy is half the sum of squared residuals. Each system has the bits of a run alone, as
    with `each_alone`.

    Args:
        residuals: a function of one system, called like the function of `each_alone`. It returns an
            array that leads with the rows of the data; rows outside the data mask are ignored.
            Without data, it returns any array.

    Returns:
        A function of `params`, `index_prefix`, `data` and `data_prefix`, like the result of
        `each_alone`. It returns energies, the gradient and the normal matrices JᵀJ of shape
        `[n_systems, n, n]`, so `relax` needs `has_extras=True`. A system's entries come first, leaf
        by leaf; zeros follow. n is the next power of two of the largest system's number of entries.
    """
    require_function(residuals, "residuals")

    def evaluate(
        params: Tree, index_prefix: Prefix, data: Any = None, data_prefix: Prefix = None
    ) -> tuple[Float[Array, "systems"], Tree, Float[Array, "systems n n"]]:
        batch = Alone(params, index_prefix, data, data_prefix)
        width = room_of(int(entry_counts(params, index_prefix).max(initial=0)))

        def of_one(params, is_row, *of_data):
            return _squares(residuals, width, params, is_row, *of_data)

        (energies, normal), gradient = batch.map(of_one)
        return energies, gradient, normal

    return evaluate


def _squares(
    residuals: Callable[..., Any],
    width: int,
    params: Tree,
    is_row: PyTree[Bool[Array, "_room"]],
    *of_data: Any,
) -> tuple[tuple[Float[Array, ""], Float[Array, "n n"]], Tree]:
    """Energy and normal matrix of one system, and the gradient.

    `columns` is [entries, residuals]: row k is the derivative by entry k.
    """
    masks = jax.tree.map(_over_entries, jax.tree.broadcast(is_row, params), params)
    is_entry, (x, tree_of) = ravel_pytree(masks)[0], ravel_pytree(params)

    def flat(x):
        found = residuals(tree_of(x), is_row, *of_data)
        return _own(found, of_data).reshape(-1)

    r, push = jax.linearize(flat, x)
    # Forward mode gives one derivative per entry, so NaN from foreign rows can be masked out.
    columns = jax.vmap(push)(jnp.eye(x.size, dtype=x.dtype))
    columns = jnp.where(is_entry[:, None], columns, 0)
    gradient = columns @ r
    packed = columns[jnp.argsort(~is_entry, stable=True)]
    normal = packed @ packed.T
    n = min(width, x.size)
    normal = jnp.zeros((width, width), x.dtype).at[:n, :n].set(normal[:n, :n])
    return (0.5 * (r @ r), normal), tree_of(gradient.astype(x.dtype))


def _over_entries(mask: Bool[Array, "_rows"], leaf: Float[Array, "_rows ..."]):
    """The mask of rows, broadcast to their entries."""
    return jnp.broadcast_to(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf.shape)


def _own(found: Any, of_data: tuple[Any, ...]) -> Float[Array, "..."]:
    """The residuals, with 0 for rows of data that belong to no system."""
    found = jnp.asarray(found)
    if not of_data:
        return found
    masks = jax.tree.leaves(of_data[1])
    room = masks[0].shape[0]
    if len(masks) > 1 or found.shape[:1] != (room,):
        raise ValueError(
            f"residuals must lead with the {room} rows of the data, which have one index, got shape"
            f" {found.shape}"
        )
    return jnp.where(_over_entries(masks[0], found), found, 0)


def entry_counts(params: Tree, index_prefix: Prefix) -> np.ndarray:
    """[systems]: the number of entries of each system in all leaves.

    Raises:
        TypeError: the index is traced.
    """
    counts = np.zeros(1, int)
    for leaf, index in zip(jax.tree.leaves(params), resolve(index_prefix, params), strict=True):
        counts = counts + sizes_of(index) * math.prod(jnp.shape(leaf)[1:])
    return counts


def sizes_of(index: Any) -> np.ndarray:
    """The number of rows of each system, on the host."""
    if not isinstance(index, SystemIndex):
        return np.array([index.n_rows])
    if isinstance(index.sizes, Tracer):
        raise TypeError("the sizes of systems must be known before tracing: call init outside jit")
    return np.asarray(index.sizes, int)


def entries_of(params: Tree, index_prefix: Prefix, width: int) -> np.ndarray:
    """[systems, width]: the positions of each system's entries in a vector of all leaves.

    The length of that vector pads each row.
    """
    leaves = [jnp.atleast_1d(leaf) for leaf in jax.tree.leaves(params)]
    total = sum(leaf.size for leaf in leaves)
    parts, begin = [], 0
    for leaf, index in zip(leaves, resolve(index_prefix, params), strict=True):
        sizes, n_components = sizes_of(index), math.prod(leaf.shape[1:])
        room = int(sizes.max(initial=0))
        if isinstance(index, SystemIndex):
            rows = rows_of(index, np.arange(len(sizes)), room)
        else:
            rows = np.arange(room)[None]
        at = begin + rows[:, :, None] * n_components + np.arange(n_components)
        at = np.where(rows[:, :, None] < leaf.shape[0], at, total)
        parts.append(at.reshape(len(sizes), math.prod(at.shape[1:])))
        begin += leaf.size
    every = np.sort(
        np.concatenate([np.full((len(parts[0]), width), total), *parts], axis=1), axis=1
    )
    return every[:, :width].astype(np.int32)
