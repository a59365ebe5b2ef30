"""Optax transformations in a chain of per-system transforms.

A transformation that treats every entry separately runs row by row, so each row has a state of its
own (counters included), and systems can be frozen and reset; products are rounded. A trial finds a
transformation that mixes rows, which is refused. Leaves with the same index run together, in a tree
with None in place of the others, so that masks and labels see the paths of the whole tree.
"""

import functools
import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from basinax._bits.rewriting import RefusedOperation, with_rounded_products
from basinax._jax.switches import usual_promotion
from basinax._systems.prefix import is_index, owned
from basinax._systems.types import Prefix
from basinax.transforms._protocol import (
    AbstractState,
    AbstractTransform,
    check_parameters,
    rows_field,
)

if TYPE_CHECKING:
    import optax

    Transformation = AbstractTransform | optax.GradientTransformation
else:
    Transformation = Any

PROBED = 3
"""The number of rows in a trial of a transformation."""

MOST_BYTES = 1 << 28
"""The largest size in bytes of a trial's state."""


class OptaxTransform(AbstractTransform):
    """An optax transformation as a basinax transform; `chain` makes it if needed.

    In global mode it runs the transformation itself.
    """

    transformation: "optax.GradientTransformation" = eqx.field(static=True)
    """The given transformation, unwrapped: a new wrapper would need a new program."""

    def init(self, parameters, index_prefix: Prefix = None) -> "OptaxState":
        """The state: one optax state per row.

        Raises:
            ValueError: the transformation mixes rows, and so systems, or needs leaves of several
                indices at once.
        """
        check_parameters(parameters, index_prefix)
        if index_prefix is None:
            with usual_promotion():
                return OptaxState(None, self.transformation.init(parameters))
        numbers = _numbers(parameters, index_prefix)
        shapes = tuple((x.shape[1:], jnp.dtype(x.dtype)) for x in jax.tree.leaves(parameters))
        structure = jax.tree.structure(parameters)
        if problem := _probe(self.transformation, shapes, structure, numbers):
            raise ValueError(problem)
        n_parts = len(jax.tree.leaves(index_prefix, is_leaf=is_index))
        with usual_promotion():
            inner = _begun(self.transformation, _parts(parameters, numbers, n_parts))
        return OptaxState(owned(index_prefix), inner)

    def update(self, updates, state: "OptaxState", params=None, **extra):
        transformation, prefix = self.transformation, state.index_prefix
        with usual_promotion():
            if prefix is None:
                update = _update_of(transformation)
                updates, inner = update(updates, state.inner, params, **extra)
            else:
                numbers = _numbers(updates, prefix)
                updates, inner = _stepped(transformation, updates, state.inner, params, numbers)
        return updates, OptaxState(prefix, inner)


class OptaxState(AbstractState):
    """The states of an optax transformation, one for each row."""

    index_prefix: Prefix
    inner: PyTree = rows_field()
    """One state per leaf of the prefix, None for a leaf without parameters; all lead with rows."""

    def rows_prefix(self, index_prefix: Prefix) -> Prefix:
        return jax.tree.leaves(index_prefix, is_leaf=is_index)


def _update_of(transformation: "optax.GradientTransformation") -> Any:
    import optax

    return optax.with_extra_args_support(transformation).update


def _numbers(tree: PyTree, index_prefix: Prefix) -> tuple[int, ...]:
    """The number of the prefix's leaf to which each leaf of `tree` belongs."""
    indices, structure = jax.tree.flatten(index_prefix, is_leaf=is_index)
    numbers = structure.unflatten(range(len(indices)))
    return tuple(jax.tree.leaves(jax.tree.broadcast(numbers, tree)))


def _parts(tree: PyTree, numbers: tuple[int, ...], n_parts: int) -> list[PyTree]:
    """For each leaf of the prefix, `tree` with None in place of leaves of other numbers."""
    leaves, structure = jax.tree.flatten(tree)
    return [
        structure.unflatten([x if at == k else None for x, at in zip(leaves, numbers, strict=True)])
        for k in range(n_parts)
    ]


def _begun(transformation, parts):
    """A state for each row of each part; None for a part without leaves."""
    init = with_rounded_products(jax.vmap(transformation.init))
    return [init(part) if jax.tree.leaves(part) else None for part in parts]


def _stepped(transformation, updates, inner, params, numbers):
    """The updates of all rows, and the states after them."""
    update = jax.vmap(_update_of(transformation), in_axes=(0, 0, None if params is None else 0))
    update = with_rounded_products(update)
    n_parts = len(inner)
    of_params = [None] * n_parts if params is None else _parts(params, numbers, n_parts)
    parts = zip(_parts(updates, numbers, n_parts), inner, of_params, strict=True)
    leaves, states = {}, []
    for k, (part, state, of_part) in enumerate(parts):
        places = [place for place, number in enumerate(numbers) if number == k]
        if places:
            part, state = update(part, state, of_part)
            leaves.update(zip(places, jax.tree.leaves(part), strict=True))
        states.append(state)
    updates = jax.tree.structure(updates).unflatten([leaves[k] for k in range(len(numbers))])
    return updates, states


@functools.lru_cache(maxsize=128)
def _probe(transformation, shapes, structure, numbers) -> str | None:
    """The reason why the transformation cannot run row by row, or None."""
    n_bytes = _state_bytes(transformation, shapes, structure)
    if n_bytes > MOST_BYTES:
        return (
            f"optax transformation {_names(transformation)} has a state of {n_bytes} bytes for"
            f" {PROBED} rows, expected at most {MOST_BYTES}: lower the setting that sizes it"
        )
    reason = _difference(transformation, shapes, structure, numbers)
    if reason is None:
        return None
    together = (0,) * len(numbers)
    if numbers != together and not _difference(transformation, shapes, structure, together):
        return _message_of_parts(transformation, reason)
    return _message(transformation, reason)


def _state_bytes(transformation, shapes, structure) -> int:
    """The size of a state; 0 if only the probe can show the transformation's fault."""
    rows = [jax.ShapeDtypeStruct((PROBED, *shape), dtype) for shape, dtype in shapes]
    try:
        with usual_promotion():
            state = jax.eval_shape(transformation.init, structure.unflatten(rows))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state))
    except Exception:
        return 0


def _difference(transformation, shapes, structure, numbers) -> str | None:
    """The difference between running the transformation row by row and as a whole, or None.

    Three rows are tried, with the other rows small, large, huge and NaN in turn; both ways must
    give the same updates at each step.
    """
    try:
        with jax.ensure_compile_time_eval(), usual_promotion():
            trees = _probing_trees(shapes, structure)
            params = trees[1]
            whole = transformation.init(params)
            by_row = _begun(transformation, _parts(params, numbers, max(numbers, default=0) + 1))
            for tree in trees:
                expected, whole = transformation.update(tree, whole, params)
                got, by_row = _stepped(transformation, tree, by_row, params, numbers)
                pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True)
                if not all(_close(x, y) for x, y in pairs):
                    return "mixes systems"
        # The trials had plain numbers for values that depend on no argument; trace without.
        step = functools.partial(_stepped, transformation, numbers=numbers)
        with usual_promotion():
            jax.eval_shape(step, params, by_row, params)
    except RefusedOperation as error:
        return f"has an operation whose bits may depend on the batch ({error})"
    except Exception as error:
        return f"cannot be run row by row ({type(error).__name__}: {error})"
    return None


def _probing_trees(shapes, structure) -> list[PyTree]:
    draw = np.random.default_rng(0)
    trees = []
    for size in (1e-3, 1.0, 1e6, None, np.nan):
        leaves = []
        for shape, dtype in shapes:
            largest = float(jnp.finfo(dtype).max) ** 0.5 / 1e3
            leaf = draw.normal(size=(PROBED, *shape))
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


def _message_of_parts(transformation, reason: str) -> str:
    name = _names(transformation)
    cause = reason.removeprefix("mixes systems").removeprefix("cannot be run row by row ")
    return (
        f"optax transformation {name} acts otherwise, or not at all, on the leaves of one"
        f" SystemIndex with None in place of the others{cause and ' '}{cause}: index_prefix has"
        " several, whose leaves it is run on in turn. Let its masks and labels depend on the paths"
        " of leaves alone, or run it in global mode (index_prefix=None)."
    )


def _names(transformation) -> str:
    """The functions that made the transformation and its parts, from qualified names."""
    names: list[str] = []
    pending: list[Any] = [transformation.update]
    while pending:
        item = pending.pop(0)
        if isinstance(item, tuple | list):
            pending.extend(item)
        elif callable(item) and hasattr(item, "__qualname__"):
            names.append(item.__qualname__.split(".")[0])
            pending.extend(cell.cell_contents for cell in getattr(item, "__closure__", None) or ())
    import optax

    helpers = ("with_extra_args_support", "init_empty_state", "identity")
    names = [name for name in dict.fromkeys(names) if name not in helpers]
    makers = [name for name in names if hasattr(optax, name)]
    if len(makers) < 2:
        return "".join(makers) or repr(transformation)
    return f"{makers[0]} ({', '.join(makers[1:])})"
