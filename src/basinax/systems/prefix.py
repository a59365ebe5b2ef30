"""Index prefixes: the index of each leaf of a tree, and settings with one value per system."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, PyTree, Shaped

from basinax.numerics.settings import dtype_of, kind_of, numbers_of, require_real
from basinax.systems.index import SystemIndex, WholeIndex
from basinax.systems.indices import Indices


def resolve(index_prefix: PyTree[SystemIndex] | None, tree: PyTree) -> Indices:
    """The index of each leaf of `tree`. With `index_prefix=None` the tree is one system.

    Raises:
        TypeError: a leaf of the prefix is no `SystemIndex`.
        ValueError: the prefix does not fit the tree, a leaf has another number of rows than its
            index, or two indices have different numbers of systems.
    """
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(tree)
    if index_prefix is None:
        return Indices.of([WholeIndex((*jnp.shape(leaf), 1)[0]) for _, leaf in paths_and_leaves])
    indices = _broadcast(index_prefix, tree)
    for (path, leaf), index in zip(paths_and_leaves, indices, strict=True):
        shape = jnp.shape(leaf)
        if not shape or shape[0] != index.n_rows:
            raise ValueError(
                f"leaf {_name(path)} has shape {shape}, but its SystemIndex has {index.n_rows} rows"
                " (the leading axis of a leaf goes over rows)"
            )
        if index.n_systems != indices[0].n_systems:
            raise ValueError(
                f"the index of leaf {_name(path)} has {index.n_systems} systems, that of the"
                f" first leaf {indices[0].n_systems}: all must have the same systems"
            )
    return Indices.of(indices)


def n_systems(index_prefix: PyTree[SystemIndex] | None) -> int:
    """The number of systems of a prefix, 1 in global mode.

    Raises:
        TypeError: a leaf of the prefix is no `SystemIndex`.
        ValueError: the prefix holds no `SystemIndex`.
    """
    if index_prefix is None:
        return 1
    indices = _indices_of(index_prefix)
    if not indices:
        raise ValueError("index_prefix holds no SystemIndex; pass None for global mode")
    return indices[0].n_systems


def _indices_of(index_prefix: PyTree) -> list[SystemIndex]:
    leaves = jax.tree.leaves(index_prefix, is_leaf=is_index)
    wrong = [x for x in leaves if not is_index(x)]
    if wrong:
        raise TypeError(
            f"leaves of index_prefix must be SystemIndex, got {kind_of(wrong[0])}: make one"
            " with SystemIndex.from_sizes or SystemIndex.from_ids"
        )
    return leaves


def owned(tree: PyTree) -> PyTree:
    """A prefix or numbers in arrays of their own: a donated state leaves the caller's alone."""

    def copied(x):
        is_concrete = isinstance(x, jax.Array) and not isinstance(x, Tracer)
        return jax.device_put(x, may_alias=False) if is_concrete else x

    return jax.tree.map(copied, tree)


def per_system(value: Any, name: str, like: Shaped[Array, "systems"]) -> Shaped[Array, "systems"]:
    """A setting as one value per system, in the dtype of `like`.

    Raises:
        TypeError: the value is no real number.
        ValueError: the value is neither one number nor an array of one number per system.
    """
    require_real(value, name)
    value = jnp.asarray(value)
    if value.shape not in ((), like.shape):
        raise ValueError(
            f"{name} must be a number or have one entry for each of the {like.shape[0]} systems,"
            f" got shape {value.shape}"
        )
    # Not `broadcast_to`: under `shard_map` the result is of the type of `like`.
    return value.astype(like.dtype) if value.shape else jnp.full_like(like, value)


def each_system(settings: Any, like: Shaped[Array, "systems"]) -> Any:
    """The numbers of a dataclass by name, each with one value per system.

    Whole numbers become 32-bit integers, others the dtype of `like`. Raises like `per_system`.
    """
    counts = jnp.zeros_like(like, jnp.int32)
    return SimpleNamespace(
        **{
            name: per_system(value, name, counts if is_whole else like)
            for name, (value, is_whole) in numbers_of(settings).items()
        }
    )


def _broadcast(index_prefix, tree):
    _indices_of(index_prefix)
    try:
        nested = jax.tree.broadcast(index_prefix, tree, is_leaf=is_index)
    except ValueError as error:
        raise ValueError(
            "index_prefix must be a tree prefix of the parameters: one SystemIndex for all, or one"
            f" for each of their branches.\n  index_prefix: {_outline(index_prefix)}\n"
            f"  parameters: {_outline(tree)}"
        ) from error
    return jax.tree.leaves(nested, is_leaf=is_index)


def _outline(tree) -> str:
    return str(jax.tree.structure(tree, is_leaf=is_index)).removeprefix("PyTreeDef")


def is_index(x) -> bool:
    return isinstance(x, SystemIndex)


def check_leaves(tree: PyTree) -> None:
    """Check that every leaf is an array, or a scalar, of real floating-point numbers.

    Raises:
        TypeError: a leaf is not; the message names the leaf and a remedy.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_index):
        dtype = None if is_index(leaf) else dtype_of(leaf)
        if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
            continue
        got, advice = type(leaf).__name__, "take it out of the tree"
        if dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating):
            got, advice = str(dtype), "give its real and imaginary part as two leaves"
        elif dtype is not None and any(jnp.issubdtype(dtype, x) for x in (jnp.integer, jnp.bool_)):
            got, advice = str(dtype), f"convert it with .astype(float), or {advice}"
        raise TypeError(f"leaf {_name(path)} must hold floating-point numbers, got {got}: {advice}")


def _name(path) -> str:
    return jax.tree_util.keystr(path) or "(the only one)"
