"""Potentials whose atoms have energies of their own, functions of the vectors to all neighbours.

With g[k, i] the derivative of atom i's energy by the vector to its k-th neighbour, the force on i
is the left fold over k of g[k, i] minus the derivative of the same pair at the neighbour: a gather,
not a scatter (docs/design.md, section 2). Pairs within the cutoff are packed first, so that loops
over two or three atoms skip the list's skin and padding.
"""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, PyTree, Shaped

from basinax.neighbors.lists import Neighbors, gather
from basinax.numerics import xla
from basinax.numerics.interpret import with_ordered_sums
from basinax.numerics.rounding import rounded
from basinax.numerics.static import Static, partition
from basinax.potentials.folds.fold import VOIGT, Rows, dot
from basinax.potentials.protocol import (
    AbstractPotential,
    Properties,
    nan_if_not_finite,
    reach_of,
    stress_of,
)
from basinax.structures.batch import Batch

Entries = Float[Array, "entries rows"]


class Surroundings(eqx.Module):
    """The neighbours of every row within the cutoff, in canonical order, without gaps.

    Every row has as many entries as the fullest row. Its unused entries come last, with zero
    vectors and distances of 1; they must add zeros to folds.
    """

    n: Int32[Array, ""]
    """The number of entries of the fullest row; further ones in the arrays are unused."""

    vectors: tuple[Entries, Entries, Entries]
    """The vectors to the neighbours, in Å."""

    distances: Entries
    """The distances in Å."""

    counts: Int32[Array, "rows"]
    """The number of entries of each row."""

    own_kinds: Int32[Array, "rows"]
    """The index of each row's species in the potential."""

    kinds: Int32[Array, "entries rows"] | None
    """The index of each neighbour's species, 0 for unused entries; None for a single species."""

    def is_there(self, entry: Int32[Array, ""]) -> Bool[Array, "rows"]:
        """The mask of rows with this entry."""
        return entry < self.counts

    def only_there(self, entry: Int32[Array, ""], terms: Sequence[Rows]) -> tuple[Rows, ...]:
        """The terms of an entry, +0.0 for rows without the entry.

        Terms are selected, because a product with 0 would keep a NaN: two atoms at one position
        have no direction to each other.
        """
        is_there = self.is_there(entry)
        return tuple(jnp.where(is_there, term, 0.0) for term in terms)

    def zeros(self, n: int) -> tuple[Entries, ...]:
        """n arrays of +0.0 over entries and rows."""
        return tuple(jnp.zeros_like(self.distances) for _ in range(n))

    def kinds_at(self, entry: Int32[Array, ""]) -> Int32[Array, "rows"] | None:
        """The species of the neighbours in an entry, as indices; None for a single one."""
        return None if self.kinds is None else at(self.kinds, entry)


class AbstractManyBodyPotential(AbstractPotential):
    """A potential of atoms with energies of their own. A subclass defines `reach` and `atoms`."""

    lists: ClassVar[type] = Neighbors
    values_of_pair: ClassVar[int] = 32

    @property
    def cutoff(self) -> float:
        return float(np.max(np.asarray(reach_of(self))))

    @abc.abstractmethod
    def reach(self) -> Float[Array, "species species"]:
        """The cutoff of each pair of species in Å, symmetric; one entry for a single species."""

    @abc.abstractmethod
    def atoms(self, near: Surroundings) -> tuple[Rows, tuple[Entries, Entries, Entries]]:
        """Each row's own energy in eV, and its derivatives by the vectors to neighbours in eV/Å.

        Derivatives of unused entries are ignored. Products must be rounded, and sums over
        neighbours must be left folds over entries that begin with +0.0. An unused entry must add
        +0.0 by selection, with `near.only_there`.
        """

    def __call__(self, batch: Batch, neighbors: Neighbors, *, stress: bool = False) -> Properties:
        if neighbors.reverse is None:
            raise ValueError(
                f"{type(self).__name__} needs lists with the other end of each pair: make the table"
                " with NeighborTable(batch, cutoff, skin, reverse=True)"
            )
        pairs = _Pairs.of(batch, neighbors, reach_of(self), self.kinds(batch.numbers))
        energies, gradients = self.atoms(pairs.near)
        energies = jnp.where(batch.index.has_system(), energies, 0.0)
        energies = nan_if_not_finite(batch.positions) + energies
        forces, virials = pairs.forces(gradients, stress=stress)
        virials = [batch.index.sum(v) for v in virials]
        return Properties(
            energies=batch.index.sum(energies),
            forces=jnp.stack(forces, 1),
            atom_energies=energies,
            stress=stress_of(virials, batch.cells) if stress else None,
        )


class _Pairs(eqx.Module):
    """The entries of all rows, and the position of each pair among the neighbour's entries."""

    near: Surroundings
    back: Int32[Array, "entries rows"]
    """The pair seen from the neighbour, as an index into raveled `[entries, rows]`, or -1."""

    @classmethod
    def of(cls, batch: Batch, neighbors: Neighbors, reach: Any, kinds: Any) -> "_Pairs":
        vectors = _vectors(batch, neighbors)
        kinds_of_images = neighbors.of_images(kinds) if reach.shape[0] > 1 else None
        cutoffs2 = rounded(reach * reach).astype(batch.positions.dtype)

        def is_inside(images):
            r2 = dot(*2 * (vectors(images),))
            if kinds_of_images is None:
                return r2 <= cutoffs2[0, 0]
            pair = kinds * reach.shape[0] + gather(kinds_of_images, images)
            return r2 <= gather(cutoffs2.ravel(), pair)

        place, counts = _places(jax.vmap(is_inside)(neighbors.slots))
        return cls._packed(neighbors, vectors, place, counts, kinds, kinds_of_images)

    @classmethod
    def _packed(cls, neighbors, to_images, place, counts, kinds, kinds_of_images) -> "_Pairs":
        # place [slots, rows]: the entry that each slot becomes, -1 outside the cutoff. Entry k
        # packs the k-th pair inside; pairs keep their order, and with it the bits of left folds.
        shape, reverse = place.shape, neighbors.reverse.ravel()
        rows = jnp.arange(shape[1], dtype=jnp.int32)
        numbers = jnp.arange(shape[0], dtype=jnp.int32)[:, None]
        zeros = jnp.zeros(shape, neighbors.positions.dtype)
        nobody = jnp.full(shape, -1, jnp.int32)

        def pack(entry, filled):
            vectors, distances, back, their = filled
            is_there = entry < counts
            number = jnp.max(jnp.where(place == entry, numbers, 0), 0) * shape[1] + rows
            images, opposite = gather(neighbors.slots.ravel(), number), gather(reverse, number)
            d = to_images(images)
            r = rounded(jnp.sqrt(dot(d, d)))
            vectors = put_all(vectors, entry, [jnp.where(is_there, c, 0.0) for c in d])
            distances = put(distances, entry, jnp.where(is_there, r, 1.0))
            # The other end's entry in raveled [entries, rows]; -1 if its list lacks the pair.
            there = gather(place.ravel(), opposite)
            opposite = jnp.where(there >= 0, there * shape[1] + opposite % shape[1], -1)
            back = put(back, entry, jnp.where(is_there, opposite, -1))
            if their is not None:
                kinds_there = jnp.where(is_there, gather(kinds_of_images, images), 0)
                their = put(their, entry, kinds_there)
            return vectors, distances, back, their

        n = jnp.max(counts)
        their = None if kinds_of_images is None else jnp.zeros_like(nobody)
        start = ((zeros,) * 3, jnp.ones_like(zeros), nobody, their)
        vectors, distances, back, their = lax.fori_loop(0, n, pack, start)
        return cls(Surroundings(n, vectors, distances, counts, kinds, their), back)

    def forces(
        self, gradients: tuple[Entries, Entries, Entries], *, stress: bool
    ) -> tuple[tuple[Rows, ...], list[Rows]]:
        """The forces on all rows in eV/Å, and with `stress` their virials in eV."""
        near = self.near
        flat = [g.ravel() for g in gradients]

        def add_entry(entry, sums):
            # F_i = Σ_k g[k, i] − g[rev[k, i], j], with gathers only: scatters add in any order.
            is_there, back = near.is_there(entry), at(self.back, entry)
            g = [jnp.where(is_there, at(a, entry), 0.0) for a in gradients]
            has_back, back = back >= 0, jnp.maximum(back, 0)
            terms = [
                a - jnp.where(has_back, gather(b, back), 0.0) for a, b in zip(g, flat, strict=True)
            ]
            if stress:
                d = [at(a, entry) for a in near.vectors]
                # The mean of both orders; exact for energies that rotations do not change.
                terms += [(rounded(g[a] * d[b]) + rounded(g[b] * d[a])) * 0.5 for a, b in VOIGT]
            return tuple(s + t for s, t in zip(sums, terms, strict=True))

        starts = (jnp.zeros_like(near.distances[0]),) * (9 if stress else 3)
        sums = lax.fori_loop(0, near.n, add_entry, starts)
        return sums[:3], list(sums[3:])


def _vectors(
    batch: Batch, neighbors: Neighbors
) -> Callable[[Int32[Array, "rows"]], tuple[Rows, ...]]:
    """A function from the images in slots to the vectors from their rows to them, in Å."""
    there = neighbors.images(batch.positions, batch.cells)
    pairs = list(zip(there, batch.positions.T, strict=True))
    return lambda images: tuple(gather(a, images) - b for a, b in pairs)


def _places(
    inside: Bool[Array, "slots rows"],
) -> tuple[Int32[Array, "slots rows"], Int32[Array, "rows"]]:
    """The entry of its row that each slot becomes, or -1, and each row's number of entries."""
    # A prefix sum over slots by doubling; integers, so the order does not matter.
    counts, step = inside.astype(jnp.int32), 1
    while step < len(inside):
        counts = counts + jnp.pad(counts[:-step], ((step, 0), (0, 0)))
        step *= 2
    return jnp.where(inside, counts - 1, -1), counts[-1]


def at(array: Shaped[Array, "entries rows"], entry: Int32[Array, ""]) -> Shaped[Array, "rows"]:
    """One entry of all rows."""
    return lax.dynamic_index_in_dim(array, entry, keepdims=False)


def put(
    array: Shaped[Array, "entries rows"], entry: Int32[Array, ""], rows: Shaped[Array, "rows"]
) -> Shaped[Array, "entries rows"]:
    """The array with one entry of all rows replaced."""
    return lax.dynamic_update_index_in_dim(array, rows, entry, 0)


def put_all(arrays: Sequence[Entries], entry: Int32[Array, ""], rows: Sequence[Rows]) -> Any:
    """`put` for each of several arrays."""
    return tuple(put(a, entry, b) for a, b in zip(arrays, rows, strict=True))


def chosen(
    arrays: Sequence[Entries], entry: Int32[Array, ""], kinds: Int32[Array, "rows"] | None
) -> Rows:
    """One entry of each row, from the array of the row's kind, or from the only array."""
    rows = at(arrays[0], entry)
    for kind, array in enumerate(arrays[1:], 1):
        rows = jnp.where(kinds == kind, at(array, entry), rows)
    return rows


def over_others(
    near: Surroundings, entry: Int32[Array, ""], term: Callable[[Any], tuple[Rows, ...]], count: int
) -> tuple[Rows, ...]:
    """The sums of `count` terms over all other entries of a row.

    Unused entries of a row add +0.0, whatever the term.

    Sums over pairs of neighbours should use this function, which adds each pair once from either
    end. The sums are rows that a loop keeps in place, whereas XLA copies arrays over entries that a
    loop both reads and writes.
    """

    def add(number, sums):
        other = jnp.where(number >= entry, number + 1, number)
        terms = near.only_there(other, term(other))
        return tuple(s + t for s, t in zip(sums, terms, strict=True))

    starts = (jnp.zeros_like(near.distances[0]),) * count
    return lax.fori_loop(0, near.n - 1, add, starts)


def looked_up(
    tables: PyTree[Float[Array, "species _seconds _thirds"]], near: Surroundings
) -> Callable[..., PyTree[Float[Array, "*rows"]]]:
    """A function from the kinds of one or two neighbours to the parameters for them and each row.

    Tables are over the species of an atom and of two neighbours. An axis on which a table does not
    depend has length one, so that loops gather no more than needed.
    """

    def prepare(table):
        if table.shape[1:] != (1, 1):
            return table
        return table[0, 0, 0] if table.size == 1 else gather(table.ravel(), near.own_kinds)

    prepared = jax.tree.map(prepare, tables)

    def look_up(second, third=None):
        def entry(table):
            if table.ndim < 3:
                return table
            number = near.own_kinds
            for kinds, size in ((second, table.shape[1]), (third, table.shape[2])):
                number = number if size == 1 else number * size + kinds
            return gather(table.ravel(), number)

        return jax.tree.map(entry, prepared)

    return look_up


class Neighborhood(NamedTuple):
    """The neighbours of one atom. Unused entries, at the end, have vectors and distances of 1."""

    vectors: Float[Array, "entries 3"]
    """The vectors to the neighbours, in Å."""

    distances: Float[Array, "entries"]
    """The distances in Å."""

    is_there: Bool[Array, "entries"]
    """The mask of entries that are neighbours."""

    kind: Int32[Array, ""]
    """The index of the atom's species in the potential; 0 if the potential has none."""

    kinds: Int32[Array, "entries"]
    """The index of each neighbour's species."""


class AbstractAtomEnergyPotential(AbstractManyBodyPotential):
    """A potential defined by the energy of a single atom. A subclass defines `energy`.

    Forces and stresses are derivatives of the energy. Every product is rounded and every sum
    ordered, so a system has the bits of a run alone. An operation without reproducible bits, such
    as `erf` or a loop, raises TypeError with its name (docs/conventions.md). A run op by op may
    differ from a jitted one in last bits, since a compiler joins divisions by one number.
    """

    @abc.abstractmethod
    def energy(self, near: Neighborhood) -> Float[Array, ""]:
        """The energy in eV of one atom, from its neighbours.

        The energy must not jump when a neighbour comes within `reach`, and unused entries must add
        0: `jnp.sum(terms, where=near.is_there)`.
        """

    def check(self, atoms: Sequence[Atoms]) -> None:
        """As for all potentials, and that unused entries add nothing.

        Raises:
            ValueError: an atom's energy depends on their number.
        """
        super().check(atoms)
        few, more = np.asarray(_with_unused_entries(*partition(self)), np.float64)
        if not np.isclose(few, more, rtol=1e-5, atol=1e-6, equal_nan=True):
            raise ValueError(
                f"{type(self).__name__}.energy: unused entries must add 0, but an atom with one"
                f" neighbour has {few:.6g} eV with {SPARE} of them and {more:.6g} eV with"
                f" {SPARE + 1}; sum with where=near.is_there"
            )

    def atoms(self, near: Surroundings):
        # Axes: [entries, rows]. The function is mapped over rows and sees [entries].
        n_entries = near.distances.shape[0]
        entries = jnp.arange(n_entries + SPARE, dtype=jnp.int32)[:, None]
        is_there = entries < near.counts[None]

        def padded(array):
            return jnp.pad(array, ((0, SPARE), (0, 0)))

        kinds = jnp.zeros_like(is_there, jnp.int32) if near.kinds is None else padded(near.kinds)
        x, y, z = (jnp.where(is_there, padded(a), 1.0) for a in near.vectors)

        both = jax.vmap(
            jax.value_and_grad(self._of_entries, argnums=(0, 1, 2)),
            in_axes=(1, 1, 1, 1, 0, 1),
            out_axes=(0, 1),
        )
        energies, gradients = with_ordered_sums(both)(x, y, z, is_there, near.own_kinds, kinds)
        return energies, tuple(g[:n_entries] for g in gradients)

    def _of_entries(self, x, y, z, is_there, kind, kinds):
        d2 = x * x + y * y + z * z
        distances = jnp.where(is_there, jnp.sqrt(d2), 1.0)
        return self.energy(Neighborhood(jnp.stack([x, y, z], 1), distances, is_there, kind, kinds))


@functools.partial(xla.jitted, is_kept=True, options=xla.ONCE, static_argnums=0)
def _with_unused_entries(fixed: Static, arrays) -> Float[Array, "2"]:
    """The energy of an atom with one neighbour and `SPARE` unused entries, and with one more."""
    potential: AbstractAtomEnergyPotential = eqx.combine(arrays, fixed.tree)
    near = jnp.minimum(jnp.max(reach_of(potential)) / 2, 2.0)

    def energy(n_unused: int):
        is_there = jnp.arange(1 + n_unused) < 1
        kinds = jnp.zeros(len(is_there), jnp.int32)
        x = jnp.where(is_there, near, 1.0)
        others = jnp.where(is_there, 0.0, 1.0)
        of_entries = with_ordered_sums(potential._of_entries)
        return of_entries(x, others, others, is_there, kinds[0], kinds)

    return jnp.stack([energy(SPARE), energy(SPARE + 1)])


SPARE = 3
"""At least this many entries are unused. A function that gives NaN for unused entries (a product
with a mask may, if two atoms are at one position) then does so in any batch."""
