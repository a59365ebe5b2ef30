"""Optax transformations in a chain of per-system transforms.

A transformation that treats every entry by itself is run row by row, so that each row has a state
of its own (its count among it) and systems can be frozen and reset; its products are rounded. One
that mixes rows is found by trying it, and refused.
"""

import contextlib
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from basinax._optimizer import AbstractState, AbstractTransform, Prefix, rows_field
from basinax._rewriting import with_rounded_products
from basinax._systems import is_index


class OptaxTransform(AbstractTransform):
    """An optax transformation as a basinax transform; `chain` makes it where it is needed.

    In global mode it is the transformation itself.
    """

    transformation: optax.GradientTransformation = eqx.field(static=True)
    """As it was given: what wraps it would be another one each time, and so another program."""

    def init(self, parameters, index_prefix: Prefix = None) -> "OptaxState":
        """The state: one of optax for each row.

        Raises:
            ValueError: the transformation mixes rows, so systems would see one another.
        """
        if index_prefix is None:
            with _optax_promotion():
                return OptaxState(None, self.transformation.init(parameters))
        _refuse_mixing(self.transformation, parameters)
        groups = _groups(parameters, index_prefix)
        with _optax_promotion():
            inner = [jax.vmap(self.transformation.init)(group) for group in groups]
        return OptaxState(index_prefix, inner)

    def update(self, updates, state: "OptaxState", params=None, **extra):
        prefix = state.index_prefix
        update = optax.with_extra_args_support(self.transformation).update
        if prefix is None:
            with _optax_promotion():
                updates, inner = update(updates, state.inner, params, **extra)
            return updates, OptaxState(None, inner)
        update = jax.vmap(update, in_axes=(0, 0, None if params is None else 0))
        update = with_rounded_products(update)
        params_groups = [None] * len(state.inner) if params is None else _groups(params, prefix)
        groups = zip(_groups(updates, prefix), state.inner, params_groups, strict=True)
        with _optax_promotion():
            results = [update(*group) for group in groups]
        leaves = [leaf for stepped, _ in results for leaf in jax.tree.leaves(stepped)]
        return jax.tree.unflatten(jax.tree.structure(updates), leaves), OptaxState(
            prefix, [inner for _, inner in results]
        )


class OptaxState(AbstractState):
    """The states of an optax transformation, one for each row."""

    index_prefix: Prefix
    inner: PyTree = rows_field()
    """One state for each leaf of the prefix; all its leaves lead with rows."""

    def rows_prefix(self, index_prefix: Prefix) -> Prefix:
        return jax.tree.leaves(index_prefix, is_leaf=is_index)


def is_optax(transform: Any) -> bool:
    return isinstance(transform, optax.GradientTransformation)


@contextlib.contextmanager
def _optax_promotion():
    """Optax counts on the usual promotion of dtypes and ranks, whatever the caller has set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _groups(tree: PyTree, index_prefix: Prefix) -> list[PyTree]:
    """The branch of `tree` under each leaf of the prefix: its rows are numbered alike."""
    branches = []
    jax.tree.map(lambda _, branch: branches.append(branch), index_prefix, tree, is_leaf=is_index)
    return branches


def _refuse_mixing(transformation, parameters) -> None:
    shapes = [(x.shape[1:], jnp.dtype(x.dtype)) for x in jax.tree.leaves(parameters)]
    problem = _probe(transformation, tuple(shapes), jax.tree.structure(parameters))
    if problem:
        raise ValueError(problem)


@functools.lru_cache(maxsize=128)
def _probe(transformation, shapes, structure) -> str | None:
    """What is wrong with running the transformation row by row; None if nothing is.

    Three rows, of which the others are small, large, huge and NaN in turn: run row by row and run
    as a whole must give the same updates, three times in a row.
    """
    update = with_rounded_products(jax.vmap(transformation.update))
    try:
        with jax.ensure_compile_time_eval(), _optax_promotion():
            trees = _probing_trees(shapes, structure)
            params = trees[1]
            whole, by_row = transformation.init(params), jax.vmap(transformation.init)(params)
            for tree in trees:
                expected, whole = transformation.update(tree, whole, params)
                got, by_row = update(tree, by_row, params)
                pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)
                if not all(_close(x, y) for x, y in pairs):
                    return _message(transformation, "mixes systems")
        # Above, what depends on no argument is a number; in a program that is traced it is none.
        with _optax_promotion():
            jax.eval_shape(update, params, by_row, params)
    except Exception as error:
        reason = f"cannot be run row by row ({type(error).__name__}: {error})"
        return _message(transformation, reason)
    return None


def _probing_trees(shapes, structure) -> list[PyTree]:
    draw = np.random.default_rng(0)
    trees = []
    for size in (1e-3, 1.0, 1e6, None, np.nan):
        leaves = []
        for shape, dtype in shapes:
            largest = float(jnp.finfo(dtype).max) ** 0.5 / 1e3
            leaf = draw.normal(size=(3, *shape))
            leaf[1:] *= largest if size is None else size
            leaves.append(jnp.asarray(leaf, dtype))
        trees.append(structure.unflatten(leaves))
    return trees


def _close(x, y) -> bool:
    tolerance = 64 * float(jnp.finfo(x.dtype).eps)
    return np.allclose(x, y, rtol=tolerance, atol=0, equal_nan=True)


def _message(transformation, reason: str) -> str:
    name = _names(transformation)
    return (
        f"optax transformation {name} {reason}: in a batch, what one system does would change"
        " another. Use a transform of basinax, which acts on each system alone (ClipByGlobalNorm"
        " for clip_by_global_norm, MaxStepSize to limit steps, FIRE to optimize), or run it in"
        " global mode (index_prefix=None)."
    )


def _names(transformation) -> str:
    """The functions that made it and its parts, from the qualified names of what they return."""
    names: list[str] = []
    pending: list[Any] = [transformation.update]
    while pending:
        item = pending.pop(0)
        if isinstance(item, tuple | list):
            pending.extend(item)
        elif callable(item) and hasattr(item, "__qualname__"):
            names.append(item.__qualname__.split(".")[0])
            pending.extend(cell.cell_contents for cell in getattr(item, "__closure__", None) or ())
    makers = [name for name in dict.fromkeys(names) if hasattr(optax, name)]
    makers = [
        name
        for name in makers
        if name not in ("with_extra_args_support", "init_empty_state", "identity")
    ]
    if len(makers) < 2:
        return "".join(makers) or repr(transformation)
    return f"{makers[0]} ({', '.join(makers[1:])})"
