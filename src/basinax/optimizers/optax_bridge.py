"""Optax transformations in a chain of per-system transforms.

A transformation that treats every entry separately runs row by row, so each row has a state of its
own (counters included), and systems can be frozen and reset; products are rounded. A transformation
whose program mixes rows is refused. Leaves with the same index run together, in a tree
with None in place of the others, so that masks and labels see the paths of the whole tree.
"""

import functools
import inspect
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from basinax.numerics.by_row import ROWS, Expressions
from basinax.numerics.interpret import RefusedOperation, with_rounded_products
from basinax.numerics.switches import usual_promotion
from basinax.optimizers.protocol import (
    AbstractState,
    AbstractTransform,
    check_parameters,
    check_state,
    rows_field,
)
from basinax.systems import segment
from basinax.systems.index import AnyIndex
from basinax.systems.prefix import is_index, owned
from basinax.systems.types import Prefix

if TYPE_CHECKING:
    import optax

    Transformation = AbstractTransform | optax.GradientTransformation
else:
    Transformation = Any


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
        if problem := _problem(self.transformation, shapes, structure, numbers):
            raise ValueError(problem)
        n_parts = len(jax.tree.leaves(index_prefix, is_leaf=is_index))
        with usual_promotion():
            inner = _begun(self.transformation, _parts(parameters, numbers, n_parts))
        return OptaxState(owned(index_prefix), inner)

    def update(self, updates, state: "OptaxState", params=None, **extra):
        check_state(state, OptaxState, self)
        transformation, prefix = self.transformation, state.index_prefix
        if params is not None:
            segment.check_alike(params, updates)
        extra = _known_of(transformation, extra)
        with usual_promotion():
            if prefix is None:
                update = _update_of(transformation)
                if "value" in extra:
                    extra["value"] = jnp.reshape(extra["value"], ())
                updates, inner = update(updates, state.inner, params, **extra)
            else:
                numbers = _numbers(updates, prefix)
                indices = jax.tree.leaves(prefix, is_leaf=is_index)
                given = [_of_rows(extra, index) for index in indices]
                args = updates, state.inner, params, given
                updates, inner = _stepped(transformation, *args, numbers=numbers)
                # Padding never moves, whatever a transformation makes of it.
                updates = segment.without_padding(updates, prefix)
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


def _known_of(transformation: "optax.GradientTransformation", extra: dict[str, Any]) -> Any:
    """The extra arguments that a transformation takes; optax's name of the energy is `value`."""
    if extra.get("energies") is not None:
        extra = {"value": extra["energies"], **extra}
    taken = inspect.signature(_update_of(transformation)).parameters
    takes_all = any(x.kind == inspect.Parameter.VAR_KEYWORD for x in taken.values())
    return {name: x for name, x in extra.items() if takes_all or name in taken}


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


def _of_rows(extra: dict[str, Any], index: AnyIndex) -> dict[str, Any]:
    """Extra arguments, with a value for each row in place of those for each system.

    Raises:
        ValueError: an array does not lead with systems.
    """

    def of_rows(path: Any, x: Any) -> Any:
        if not np.ndim(x):
            return x
        if np.shape(x)[0] != index.n_systems:
            raise ValueError(
                f"extra argument {path[0].key}{jax.tree_util.keystr(path[1:])} must be one value,"
                f" or lead with the {index.n_systems} systems; got shape {np.shape(x)}"
            )
        x = jnp.asarray(x)
        return index.spread(x, 0, jnp.zeros((index.n_rows, *x.shape[1:]), x.dtype))

    return jax.tree_util.tree_map_with_path(of_rows, extra)


def _stepped(transformation, updates, inner, params, given=None, *, numbers):
    """The updates of all rows, and the states after them.

    Args:
        given: for each part, what `_of_rows` returns.
    """
    update, n_parts = _update_of(transformation), len(inner)
    of_params = [None] * n_parts if params is None else _parts(params, numbers, n_parts)
    given = given or [{}] * n_parts
    parts = zip(_parts(updates, numbers, n_parts), inner, of_params, given, strict=True)
    leaves, states = {}, []
    for k, (part, state, of_part, extra) in enumerate(parts):
        each, of_all = eqx.partition(extra, lambda x: np.ndim(x) > 0)

        def of_row(updates, state, params, each, of_all=of_all):
            return update(updates, state, params, **eqx.combine(each, of_all))

        places = [place for place, number in enumerate(numbers) if number == k]
        if places:
            axes = (0, 0, None if params is None else 0, 0)
            of_rows = with_rounded_products(jax.vmap(of_row, in_axes=axes))
            part, state = of_rows(part, state, of_part, each)
            leaves.update(zip(places, jax.tree.leaves(part), strict=True))
        states.append(state)
    updates = jax.tree.structure(updates).unflatten([leaves[k] for k in range(len(numbers))])
    return updates, states


@functools.lru_cache(maxsize=128)
def _problem(transformation, shapes, structure, numbers) -> str | None:
    """The reason why the transformation cannot run row by row, or None."""
    reason = _difference(transformation, shapes, structure, numbers)
    if reason is None:
        return None
    together = (0,) * len(numbers)
    if numbers != together and not _difference(transformation, shapes, structure, together):
        return _message_of_parts(transformation, reason)
    return _message(transformation, reason)


def _difference(transformation, shapes, structure, numbers) -> str | None:
    """The difference between running the transformation row by row and as a whole, or None.

    Both are written as expressions of the leaves, which must be the same; see `by_row.py`.
    """

    def of_shape(*rows: int) -> PyTree:
        leaves = [jax.ShapeDtypeStruct((*rows, *shape), dtype) for shape, dtype in shapes]
        return structure.unflatten(leaves)

    n_parts, expressions = max(numbers, default=0) + 1, Expressions()

    def expressed(tree: PyTree, at: list[int]) -> list[list[int]]:
        """The expressions of each step's updates."""
        names = [(step, place) for step in range(n_steps + 1) for place in at]
        stepped = functools.partial(_steps, transformation)
        found = expressions.of(stepped, [tree] * (n_steps + 1), names)
        return [found[k * len(at) : (k + 1) * len(at)] for k in range(n_steps)]

    try:
        with usual_promotion():
            n_steps = _n_steps(transformation, of_shape(ROWS))
            whole = expressed(of_shape(ROWS), list(range(len(numbers))))
            for k, part in enumerate(_parts(of_shape(), numbers, n_parts)):
                at = [place for place, number in enumerate(numbers) if number == k]
                if at and expressed(part, at) != [[step[place] for place in at] for step in whole]:
                    return "mixes systems"
            # What the rules of rewriting refuse.
            parts = _parts(of_shape(1), numbers, n_parts)
            begun = jax.eval_shape(functools.partial(_begun, transformation), parts)
            step = functools.partial(_stepped, transformation, numbers=numbers)
            given = [_known_of(transformation, {"energies": jnp.zeros(1)})] * n_parts
            jax.eval_shape(step, of_shape(1), begun, of_shape(1), given)
    except RefusedOperation as error:
        return f"has an operation whose bits may depend on the batch ({error})"
    except jax.errors.TracerArrayConversionError:
        return "cannot be run row by row (a number of it is traced, as a rate under jit or vmap)"
    except Exception as error:
        return f"cannot be run row by row ({type(error).__name__}: {error})"
    return None


def _n_steps(transformation, tree: PyTree) -> int:
    """The number of steps after which all that a step has put into the state can have reached an
    update: it may go through each part of the state in turn, and not be used before the last."""
    structure = jax.tree.structure(tree)
    state = jax.eval_shape(transformation.init, tree)
    parts = jax.tree.leaves(state, is_leaf=lambda part: jax.tree.structure(part) == structure)
    return len(parts) + 1


def _steps(transformation, trees: list[PyTree]) -> list[PyTree]:
    """The updates of some steps, from the parameters and the gradients of each step."""
    params, *gradients = trees
    state, updates = transformation.init(params), []
    update = _update_of(transformation)
    extra = _known_of(transformation, {"energies": jnp.zeros(())})
    for gradient in gradients:
        step, state = update(gradient, state, params, **extra)
        updates.append(step)
    return updates


def _message(transformation, reason: str) -> str:
    name = _names(transformation)
    harm = ": in a batch, what one system does would change another"
    return (
        f"optax transformation {name} {reason}{'' if reason.startswith('cannot be run') else harm}."
        " Use a transform of basinax, which acts on each system alone (ClipByGlobalNorm"
        " for clip_by_global_norm, MaxStepSize to limit steps, FIRE to optimize), or run it in"
        " global mode (index_prefix=None). If it mixes nothing, but its masks or labels look at"
        " the shapes of leaves, give them as trees."
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
    import optax.contrib

    helpers = ("with_extra_args_support", "init_empty_state", "identity")
    names = [name for name in dict.fromkeys(names) if name not in helpers]
    makers = [name for name in names if hasattr(optax, name) or hasattr(optax.contrib, name)]
    if len(makers) < 2:
        return "".join(makers) or repr(transformation)
    return f"{makers[0]} ({', '.join(makers[1:])})"
