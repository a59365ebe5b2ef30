"""The indices of a tree's leaves. What leaves of one index have in common is computed once.

Programs are then short, and quick to compile, for trees of many leaves; every sum has the order,
and so the bits, of `SystemIndex.sum` of its leaf alone.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from basinax.numerics.rounding import combine_components
from basinax.systems.index import FEW_ENTRIES, AnyIndex, WholeIndex


class Indices(eqx.Module):
    """A sequence of indices, which knows under `jit` which of them are the same."""

    distinct: tuple[AnyIndex, ...]
    numbers: tuple[int, ...] = eqx.field(static=True)
    """For each leaf, the number of its index in `distinct`."""

    @classmethod
    def of(cls, indices: Sequence[AnyIndex]) -> "Indices":
        distinct = {id(index): index for index in indices}
        number_of = {key: number for number, key in enumerate(distinct)}
        return cls(tuple(distinct.values()), tuple(number_of[id(index)] for index in indices))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, k: int) -> AnyIndex:
        return self.distinct[self.numbers[k]]

    def __iter__(self) -> Iterator[AnyIndex]:
        return iter([self.distinct[number] for number in self.numbers])

    def replaced(self, indices: Sequence[AnyIndex]) -> "Indices":
        """The same leaves with other indices, given for each leaf."""
        return Indices(tuple(indices[places[0]] for _, places in self.groups()), self.numbers)

    def groups(self) -> list[tuple[AnyIndex, list[int]]]:
        """Each index, with the places of its leaves."""
        places: list[list[int]] = [[] for _ in self.distinct]
        for place, number in enumerate(self.numbers):
            places[number].append(place)
        return list(zip(self.distinct, places, strict=True))

    def sums(self, rows: Sequence[Float[Array, "_rows *_components"]]) -> list[Array]:
        """The sum of each leaf over the rows and components of each system, as `sum` of its index.

        Leaves of one index have one dtype.
        """
        found: dict[int, Array] = {}
        for index, places in self.groups():
            if len(places) == 1:
                found[places[0]] = index.sum(rows[places[0]])
                continue
            columns = combine_components(jnp.add, [rows[place] for place in places], -0.0)
            sums = index.add(jnp.stack(columns, 1))
            found.update((place, sums[:, k]) for k, place in enumerate(places))
        return [found[place] for place in range(len(self))]

    def max(
        self,
        rows: Sequence[Shaped[Array, "_rows *_components"]],
        term: Callable[[Array], Array] = lambda x: x,
    ) -> Shaped[Array, "systems"]:
        """The largest `term` of an entry of each system in all leaves; terms are integers."""
        pairs = zip(self.distinct, self.join(rows), strict=True)
        return functools.reduce(jnp.maximum, [index.max(term(x)) for index, x in pairs])

    def join(self, rows: Sequence[Shaped[Array, "_rows *_components"]]) -> list[Array]:
        """One array for each index: the components of its leaves side by side."""
        joined = []
        for _, places in self.groups():
            parts = [rows[place] for place in places]
            if len(parts) > 1:
                flat = [x.reshape(x.shape[0], math.prod(x.shape[1:])) for x in parts]
                parts = [jnp.concatenate(flat, axis=1)]
            joined.append(parts[0])
        return joined

    def cut(self, joined: Sequence[Array], like: Sequence[Array]) -> list[Array]:
        """The leaves that `join` has put side by side, in the shapes of `like`."""
        found: dict[int, Array] = {}
        for x, (_, places) in zip(joined, self.groups(), strict=True):
            x, begin = x.reshape(x.shape[0], math.prod(x.shape[1:])), 0
            for place in places:
                shape = like[place].shape
                end = begin + math.prod(shape[1:])
                found[place], begin = x[:, begin:end].reshape(shape), end
        return [found[place] for place in range(len(self))]

    def entrywise(
        self, function: Callable[[Array, AnyIndex], Array], rows: Sequence[Array]
    ) -> list[Array]:
        """`function(x, index)` of an elementwise function, once for all leaves of an index.

        For rare cases: it copies the leaves. XLA on CPU runs a program of fewer than a thousand
        operations in place, but hands a larger one to another thread. The body of a loop counts
        once, so small arrays of global mode run in a loop; the results are the same.
        """

        def of(x, index):
            if isinstance(index, WholeIndex) and 1 < x.size <= FEW_ENTRIES:
                one = functools.partial(function, index=index)
                return jax.lax.map(one, x.reshape(-1)).reshape(x.shape)
            return function(x, index)

        is_here = jnp.all(self.distinct[0].sizes >= 0)

        def apart(x, index):
            # XLA would compute `function` again in each part that is cut from its result. The
            # `cond`, always true, makes it store the result.
            return jax.lax.cond(is_here, functools.partial(of, index=index), lambda x: x, x)

        pairs = zip(self.join(rows), self.distinct, strict=True)
        if len(rows) == len(self.distinct):
            return self.cut([of(x, index) for x, index in pairs], rows)
        return self.cut([apart(x, index) for x, index in pairs], rows)
