"""A potential that evaluates all waiting structures in one batch, with lists that last."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ase import Atoms

from basinax.engine.groups import PotentialWithSkin
from basinax.models.evaluators.protocol import (
    AbstractEvaluator,
    AbstractSession,
    Answer,
    Evaluated,
    EvaluationError,
    Request,
)
from basinax.models.evaluators.waiting import WaitingSession
from basinax.numerics.rounding import BLOCK
from basinax.numerics.static import partition
from basinax.potentials.points import parts_of, properties_of, shape_of, table_of
from basinax.structures.batch import Batch, bare, put, row_starts, rows_of_sizes
from basinax.structures.read import intake
from basinax.systems.index import index_of_sizes

WORN = 0.5
"""Batches are made anew once fewer than this part of their structures ask."""


@dataclasses.dataclass(frozen=True)
class Batched(AbstractEvaluator):
    """A potential of this package, asked by the host: no stress, for fixed cells."""

    listed: PotentialWithSkin
    dtype: Any

    @property
    def uses(self) -> frozenset[str]:
        return self.listed.potential.uses

    def on(self, devices: Sequence[Any]) -> AbstractEvaluator:
        raise TypeError("images are evaluated on JAX's default device: leave devices= out")

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        self.listed.check(list(atoms), self.dtype)

    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        return WaitingSession(_Evaluator(self, bare(atoms)), _all)


def _all(waiting: list[Request]) -> list[Request]:
    taken, waiting[:] = waiting[:], []
    return taken


class _Evaluator:
    """The batches of the structures that have asked lately."""

    def __init__(self, how: Batched, atoms: Sequence[Atoms]):
        self._how, self._atoms = how, atoms
        self._batches: list[_Listed] = []

    def __call__(self, requests: list[Request]) -> list[Answer]:
        asked = {request.number: request for request in requests}
        if not self._have_places(asked) or len(asked) < WORN * self._n_places:
            self._batches = self._made(sorted(asked))
        try:
            return [answer for batch in self._batches for answer in batch.answers(asked)]
        except Exception:
            self._batches = []  # they are too large, or half renewed
            raise

    @property
    def _n_places(self) -> int:
        return sum(len(batch.numbers) for batch in self._batches)

    def _have_places(self, asked: dict[int, Request]) -> bool:
        """Whether each has a place in a batch, perhaps that of one which asks no more."""
        new = sorted(asked.keys() - {k for batch in self._batches for k in batch.numbers})
        for batch in self._batches:
            new = batch.take(new, self._atoms, asked) if new else new
        return not new

    def _made(self, numbers: list[int]) -> "list[_Listed]":
        parts = parts_of([self._atoms[k] for k in numbers])
        shape = shape_of(parts)
        made, begin = [], 0
        for part in parts:
            made.append(_Listed(self._how, numbers[begin : begin + len(part)], part, shape))
            begin += len(part)
        return made


class _Listed:
    """One batch and its lists."""

    def __init__(
        self, how: Batched, numbers: list[int], atoms: list[Atoms], shape: tuple[int, int]
    ):
        self.numbers = {number: k for k, number in enumerate(numbers)}
        """The places of structures in the batch."""
        potential, self._skin = how.listed
        self._how = partition(potential)
        # Lists of the structures as they came, which `check` has passed, can always be made.
        self._batch = Batch.from_atoms(atoms, how.dtype, *shape)
        self._sizes = np.array(self._batch.index.sizes)
        self._starts = row_starts(self._sizes)
        self._positions = np.array(self._batch.positions)
        program = self._how[0], "batched"
        self._table = table_of(potential, self._batch, self._skin, program)
        self._lists = self._table.lists()
        self._is_new = np.zeros(self._batch.n_systems, bool)

    def take(self, new: list[int], atoms: Sequence[Atoms], asked: dict[int, Request]) -> list[int]:
        """Give structures the places of those of like size that ask no more; return the others.

        Args:
            new: their numbers.
        """
        free, taken, left = defaultdict[int, list[int]](list), dict[int, int](), list[int]()
        for old, k in self.numbers.items():
            if old not in asked:
                free[rows_of_sizes([self._sizes[k]])].append(old)
        for number in new:
            places = free[rows_of_sizes([len(atoms[number])])]
            if places:
                taken[number] = self.numbers.pop(places.pop())
            else:
                left.append(number)
        if taken:
            self._put({k: atoms[number] for number, k in taken.items()})
            self.numbers |= taken
        return left

    def _put(self, placed: dict[int, Atoms]) -> None:
        """Put structures into these places."""
        draft = jax.tree.map(np.array, dataclasses.replace(self._batch, index=None))
        structures = intake(bare(list(placed.values())))
        places = np.array(list(placed))
        put(draft, places, self._starts[places], structures)
        for k, structure in zip(placed, structures, strict=True):
            self._sizes[k], self._is_new[k] = len(structure), True
            self._positions[self._starts[k] :][: structure.n_blocks * BLOCK] = 0.0
        index = index_of_sizes(self._sizes, align=BLOCK, n_rows=self._batch.n_rows)
        self._batch = jax.device_put(dataclasses.replace(draft, index=index))

    def answers(self, asked: dict[int, Request]) -> list[Answer]:
        """The answers to those requests that are of this batch."""
        own = {number: k for number, k in self.numbers.items() if number in asked}
        if not own:
            return []
        for number, k in own.items():
            self._positions[self._rows(k)] = asked[number].positions
        here = dataclasses.replace(self._batch, positions=self._positions.copy())
        failed = self._list(here, np.array(list(own.values())))
        fixed, arrays = self._how
        found = jax.device_get(properties_of(fixed, False, arrays, here, self._lists))
        return [(number, self._answer(found, k, bool(failed[k]))) for number, k in own.items()]

    def _rows(self, k: int) -> slice:
        return slice(self._starts[k], self._starts[k] + self._sizes[k])

    def _list(self, here: Batch, members: np.ndarray) -> np.ndarray:
        """Renew the lists of these places where atoms have moved too far; the mask of failures."""
        is_stale, self._is_new = self._is_new, np.zeros(here.n_systems, bool)
        failed = np.zeros(here.n_systems, bool)
        if self._skin < np.inf:
            with np.errstate(over="ignore", invalid="ignore"):
                ways = np.asarray(here.positions, np.float64) - self._table.positions
                squares = (ways * ways).sum(axis=1)
            for k in members:
                # Not a number is too far, and the least part of the skin is left to rounding.
                is_near = squares[self._rows(k)] <= (0.499 * self._skin) ** 2
                is_stale[k] |= not is_near.all()
        if is_stale.any():
            failed = self._table.rebuild(here, is_stale)
            self._lists = self._table.lists()
        return failed

    def _answer(self, found: Any, k: int, has_failed: bool) -> Evaluated | EvaluationError:
        if has_failed:
            return EvaluationError("its neighbours cannot be listed: atoms are too far away")
        rows = self._rows(k)
        forces = np.asarray(found.forces[rows], np.float64)
        energies = np.asarray(found.atom_energies[rows], np.float64)
        return Evaluated(float(found.energies[k]), forces, None, {"energies": energies})
