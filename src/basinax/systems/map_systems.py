"""Functions of one system, called for each system of a batch as if it were alone.

A loop whose count is known only at run time evaluates one system after another, each in a shape
that depends only on its own rows. So the compiled body does not depend on the number of systems.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from basinax.numerics import xla
from basinax.numerics.rounding import exact
from basinax.numerics.settings import require_function
from basinax.systems.folds import take
from basinax.systems.index import AnyIndex, SystemIndex
from basinax.systems.prefix import is_index, n_systems, resolve
from basinax.systems.types import Prefix, Tree

_ALONE = "each system is computed in a shape that its own rows decide"


def each_alone(energy: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A model of many systems from the energy of one, with the bits of each system alone.

    Systems are evaluated one after another, each in arrays whose shape depends only on its own
    rows: the next power of two. The function may be anything, such as a network or a library's; it
    needs neither rounded products nor ordered sums.

    >>> import jax.numpy as jnp
    >>> from basinax import FIRE, SystemIndex, each_alone, relax
    >>> def energy(x, is_row):
    ...     return jnp.where(is_row[:, None], (x - 1.0) ** 2, 0.0).sum()
    >>> index, model = SystemIndex.from_sizes([3, 1, 6]), each_alone(energy)
    >>> result = relax(lambda x: model(x, index), jnp.zeros((10, 2)), FIRE(), index_prefix=index)
    >>> result.converged.tolist()
    [True, True, True]

    Args:
        energy: a function of one system's parameters, padded with rows of zeros, and of the mask of
            its own rows: bools in a tree like the index prefix. With data, the data and their mask
            follow. It returns a number, which must not depend on rows outside the masks;
            derivatives by such rows must not be NaN.

    Returns:
        A function of `params` and `index_prefix`, and optionally of `data`, a tree of arrays that
        lead with rows, and `data_prefix`, their index prefix. The function returns energies and
        their gradient, for `relax`; NaN for a system with NaN in its parameters. Forward-mode
        derivatives work. Shapes follow from the sizes of systems, so an index must not be traced.
    """
    require_function(energy, "energy")

    def of_one(*arguments: Any) -> Any:
        found = energy(*arguments)
        if isinstance(found, tuple | list | dict) or jnp.shape(found) != ():
            said = jax.tree.map(jnp.shape, found)
            raise TypeError(f"energy must return one number, got shape {said}")
        return found

    def evaluate(
        params: Tree, index_prefix: Prefix, data: Any = None, data_prefix: Prefix = None
    ) -> tuple[Float[Array, "systems"], Tree]:
        batch = Alone(params, index_prefix, data, data_prefix)
        return batch.map(jax.value_and_grad(of_one))

    return evaluate


def room_of(n: int) -> int:
    """The padded number of rows of a system of `n` rows: the next power of two, at least one."""
    return 1 << max(n - 1, 0).bit_length()


def one_after_another(
    function: Callable[..., Any], is_asked: Bool[Array, "systems"], arguments: Any, otherwise: Any
) -> Any:
    """`function` of each system of a mask, one after another; `otherwise` for other systems.

    Args:
        function: from the arguments of one system to a tree like `otherwise` of one system.
        is_asked: the mask. It must depend on numbers that are unknown at compile time: XLA may
            compile a loop of known count into another program.
        arguments: trees of arrays that lead with systems.
        otherwise: a tree of arrays that lead with systems.
    """
    n = is_asked.shape[0]
    n_places = max(n, 2)  # XLA would drop an axis of length one

    def with_room(x):
        return jnp.pad(x, ((0, n_places - n), *[(0, 0)] * (x.ndim - 1)))

    arguments, found = jax.tree.map(with_room, (arguments, otherwise))
    order = jnp.nonzero(with_room(is_asked), size=n_places, fill_value=0)[0].astype(jnp.int32)

    def turn(k, found):
        at = order[k]
        take = lambda x: lax.dynamic_index_in_dim(x, at, keepdims=False)  # noqa: E731
        said = function(*jax.tree.map(take, arguments))

        def put(x, y):
            return lax.dynamic_update_index_in_dim(x, jnp.asarray(y).astype(x.dtype), at, 0)

        return jax.tree.map(put, found, said)

    found = lax.fori_loop(0, jnp.sum(is_asked, dtype=jnp.int32), turn, found)
    is_number = lambda x: jnp.issubdtype(x.dtype, jnp.inexact)  # noqa: E731
    found = jax.tree.map(lambda x: exact(x, _ALONE) if is_number(x) else x, found)
    return jax.tree.map(lambda x: x[:n], found)


_looped = xla.jitted(one_after_another, static_argnums=0)
"""In a program of its own outside of `jit`, where JAX would compile the loop by itself."""


class _Group(NamedTuple):
    """Systems of one shape."""

    systems: np.ndarray
    rows: dict[int, np.ndarray]
    """[systems, room]: each system's rows, padded with the number of all rows; keys are ids of
    indices."""


class Alone:
    """A batch of systems, for functions that are called for one system at a time."""

    def __init__(self, params: Tree, index_prefix: Prefix, data: Any, data_prefix: Prefix):
        """The arguments of a call to the function that `each_alone` returns.

        Raises:
            TypeError: the index is None or traced.
            ValueError: an index does not fit its tree, or two indices have different systems.
        """
        if index_prefix is None:
            raise TypeError(
                "index_prefix must be a SystemIndex, or a tree of them: for one system of n rows,"
                " SystemIndex.from_sizes([n])"
            )
        trees, prefixes = [params], [index_prefix]
        if data is not None:
            data_prefix = index_prefix if data_prefix is None else data_prefix
            trees, prefixes = [params, data], [index_prefix, data_prefix]
        self._trees = [jax.tree.map(jnp.asarray, tree) for tree in trees]
        self._prefixes = prefixes
        self._indices = [resolve(*pair) for pair in zip(prefixes, self._trees, strict=True)]
        indices = jax.tree.leaves(prefixes, is_leaf=is_index)
        counts = [n_systems(prefix) for prefix in prefixes]
        if len(set(counts)) > 1:
            raise ValueError(
                f"the parameters have {counts[0]} systems, the data {counts[1]}: each system needs"
                " its own data, if only of 0 rows"
            )
        self._groups = _grouped({id(index): index for index in indices}, counts[0])

    def map(self, function: Callable[..., tuple[Any, Tree]]) -> tuple[Any, Tree]:
        """`function` of every system: per-system results, and a tree like the parameters.

        Args:
            function: a function of one system's parameters and mask of own rows, then of data and
                their mask if given. It returns a tree of arrays and a tree like its parameters. A
                system with NaN in its parameters is not evaluated and gives NaN.
        """
        found = [self._of_group(function, group) for group in self._groups]
        order = np.argsort(np.concatenate([group.systems for group in self._groups]))
        of_systems = jax.tree.map(
            lambda *parts: jnp.concatenate(parts)[order], *[part for part, _ in found]
        )
        leaves = [jax.tree.leaves(tree) for _, tree in found]
        parts = zip(self._indices[0], *leaves, strict=True)
        rows = [self._rows(index, of_groups) for index, *of_groups in parts]
        return of_systems, jax.tree.structure(self._trees[0]).unflatten(rows)

    def _of_group(self, function: Callable[..., tuple[Any, Tree]], group: _Group) -> Any:
        def taken(leaf, index):
            return take(leaf, group.rows[id(index)], np.zeros((), leaf.dtype)[()])

        def own(index):
            return jnp.asarray(group.rows[id(index)] < index.n_rows)

        # Axes of the arguments: [systems, room, components]. Rows beyond a system's own hold zeros.
        arguments = []
        for tree, prefix, indices in zip(self._trees, self._prefixes, self._indices, strict=True):
            leaves, structure = jax.tree.flatten(tree)
            parts = [taken(*pair) for pair in zip(leaves, indices, strict=True)]
            arguments += [structure.unflatten(parts), jax.tree.map(own, prefix, is_leaf=is_index)]
        is_asked = jnp.ones(len(group.systems), bool)
        for x in jax.tree.leaves(arguments[0]):
            is_asked = is_asked & ~jnp.isnan(x).any(axis=tuple(range(1, x.ndim)))
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arguments)
        said = jax.eval_shape(function, *one)
        nothing = jax.tree.map(
            lambda x: jnp.full((len(group.systems), *x.shape), jnp.nan, x.dtype), said
        )
        return _looped(function, is_asked, arguments, nothing)

    def _rows(self, index: AnyIndex, of_groups: Sequence[Array]) -> Array:
        """An array like a leaf of the parameters, from the arrays of the groups."""
        # Invert the gathers: `back` lists the position of each row in the concatenated groups.
        flat = jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in of_groups])
        back, begin = np.full(index.n_rows, flat.shape[0]), 0
        for group in self._groups:
            rows = group.rows[id(index)]
            places = begin + np.arange(rows.size).reshape(rows.shape)
            is_own = rows < index.n_rows
            back[rows[is_own]] = places[is_own]
            begin += rows.size
        return take(flat, back, 0)


def _grouped(indices: dict[int, SystemIndex], n_systems: int) -> list[_Group]:
    """Group the systems whose padded sizes agree in each index."""
    if any(isinstance(index.sizes, Tracer) for index in indices.values()):
        raise TypeError(
            "the shapes of systems must be known before tracing: make the SystemIndex outside of"
            " jit, and do not pass it through"
        )
    sizes = [np.asarray(index.sizes).tolist() for index in indices.values()]
    members: dict[tuple[int, ...], list[int]] = {}
    for system, of_one in enumerate(zip(*sizes, strict=True)):
        members.setdefault(tuple(map(room_of, of_one)), []).append(system)
    members = members if n_systems else {(1,) * len(indices): []}
    return [
        _Group(
            np.array(systems, int),
            {
                key: rows_of(index, np.array(systems, int), room)
                for (key, index), room in zip(indices.items(), rooms, strict=True)
            },
        )
        for rooms, systems in sorted(members.items())
    ]


def rows_of(index: SystemIndex, systems: np.ndarray, room: int) -> np.ndarray:
    """[systems, room]: the rows of each system in order, padded with the number of all rows."""
    sizes = np.asarray(index.sizes, int)
    order = np.append(np.argsort(np.asarray(index.ids), kind="stable"), index.n_rows)
    starts, slots = np.cumsum(sizes) - sizes, np.arange(room)
    at = np.where(slots < sizes[systems, None], starts[systems, None] + slots, index.n_rows)
    return order[at].astype(np.int32)
