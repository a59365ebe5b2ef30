"""The indices of a tree's leaves. What leaves of one index have in common is computed once.

Programs are then short, and quick to compile, for trees of many leaves; every sum has the order,
and so the bits, of `SystemIndex.sum` of its leaf alone.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from basinax.numerics.rounding import combine_components
from basinax.systems.index import AnyIndex

APART = 4096
"""Leaves with more components than this stand by themselves: joining and cutting large arrays takes
longer than a kernel more."""


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

    def apart(self, rows: Sequence[Array]) -> "Indices":
        """The same indices, with a number of its own for each dtype among the leaves of one, and
        for each large leaf."""
        keys = [
            (k, jnp.result_type(x), place if math.prod(x.shape[1:]) > APART else -1)
            for place, (k, x) in enumerate(zip(self.numbers, rows, strict=True))
        ]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        distinct = tuple(self.distinct[k] for k, *_ in numbers)
        return Indices(distinct, tuple(numbers[key] for key in keys))

    def places(self) -> list[list[int]]:
        """For each distinct index, the places of its leaves."""
        counts = range(len(self.distinct))
        return [[k for k, number in enumerate(self.numbers) if number == n] for n in counts]

    def sums(self, rows: Sequence[Float[Array, "_rows *_components"]]) -> list[Array]:
        """The sum of each leaf over the rows and components of each system: `sum` of its index."""
        parted, found = self.apart(rows), {}
        for index, places in zip(parted.distinct, parted.places(), strict=True):
            if len(places) == 1:
                found[places[0]] = index.sum(rows[places[0]])
                continue
            columns = combine_components(jnp.add, [rows[k] for k in places], -0.0)
            sums = index.add(jnp.stack(columns, 1))
            found.update((k, sums[:, column]) for column, k in enumerate(places))
        return [found[k] for k in range(len(self))]

    def max(self, rows: Sequence[Shaped[Array, "_rows *_components"]]) -> Shaped[Array, "systems"]:
        """The largest entry of each system in all leaves, which are integers."""
        pairs = zip(self.distinct, self.join(rows), strict=True)
        return functools.reduce(jnp.maximum, [index.max(x) for index, x in pairs])

    def join(self, rows: Sequence[Shaped[Array, "_rows *_components"]]) -> list[Array]:
        """For each distinct index one array: the components of its leaves, of one dtype."""
        joined = []
        for places in self.places():
            parts = [rows[k] for k in places]
            several = len(parts) > 1
            joined.append(jnp.concatenate([_flat(x) for x in parts], 1) if several else parts[0])
        return joined

    def cut(self, joined: Sequence[Array], like: Sequence[Array]) -> list[Array]:
        """The leaves that `join` has put side by side, with the components of `like`."""
        found = {}
        for x, places in zip(joined, self.places(), strict=True):
            x, begin = _flat(x), 0
            for k in places:
                components = jnp.shape(like[k])[1:]
                end = begin + math.prod(components)
                found[k], begin = x[:, begin:end].reshape(x.shape[0], *components), end
        return [found[k] for k in range(len(self))]


def _flat(x: Shaped[Array, "rows *components"]) -> Shaped[Array, "rows entries"]:
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))
