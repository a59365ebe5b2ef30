"""Streams structures through batches of one shape: whoever has ended makes room for who waits.

When the host looks, who stands beside whom and when a list is rebuilt is chosen for speed alone:
no bit of a result depends on it.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from basinax._optimizer import AbstractTransform
from basinax._relax import Run, advance, final_point, restart, start
from basinax._rounding import BLOCK
from basinax._status import Status
from basinax._systems import SystemIndex
from basinax.atoms._batch import Batch, row_starts
from basinax.atoms._constraints import Layout, constrained, write
from basinax.atoms._neighbors import Neighbors, NeighborTable, moved_too_far
from basinax.atoms.potentials import AbstractPotential

TURNS = 8
"""Turns of the loop between two looks of the host at what has ended or waits."""

WORTH_REFILLING = 8
"""Places are filled once one in so many is free."""


class Outcome(NamedTuple):
    """What became of one structure."""

    positions: np.ndarray
    forces: np.ndarray
    energy: float
    fmax: float
    steps: int
    evaluations: int
    status: int


class Settings(eqx.Module):
    """What may differ between structures; leaves are numbers or one a structure."""

    optimizer: AbstractTransform
    fmax: Any
    max_steps: Any

    def of(self, members: np.ndarray, n_structures: int) -> "Settings":
        """The settings of these structures, one a place."""

        def choose(x):
            x = np.asarray(x) if isinstance(x, bool | int | float) else x
            return np.asarray(x)[members] if np.shape(x) == (n_structures,) else x

        return jax.tree.map(choose, self)


class Queue:
    """Structures that wait, by how many blocks of rows they need; shared by threads."""

    def __init__(self, members: np.ndarray, blocks: np.ndarray):
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[int]] = {}
        for member in members.tolist():
            self._waiting.setdefault(int(blocks[member]), deque()).append(member)

    def fill(self, n_rows: int, n_systems: int) -> list[int]:
        """Structures for a new batch, alike in size as far as they go."""
        taken: list[int] = []
        with self._lock:
            for blocks, waiting in self._waiting.items():
                while waiting and len(taken) < n_systems and blocks * BLOCK <= n_rows:
                    taken.append(waiting.popleft())
                    n_rows -= blocks * BLOCK
        return taken

    def replace(self, blocks: int) -> int | None:
        """A structure that fits where one of as many blocks stood."""
        with self._lock:
            waiting = self._waiting.get(blocks)
            return waiting.popleft() if waiting else None


class Work(NamedTuple):
    """What the batches of a group share; they run one program."""

    atoms: list[Atoms]
    potential: AbstractPotential
    settings: Settings
    dtype: Any
    skin: float
    keep_best: bool
    shape: tuple[int, int]
    """Rows and systems of a batch."""
    layout: Layout
    """Of its constraints."""
    queue: Queue
    monitor: "Monitor"

    def drain(self) -> None:
        """Relax until nothing waits."""
        while members := self.queue.fill(*self.shape):
            _Stream(self, members).run()


class Monitor:
    """Gathers outcomes, adds up how far the batches are, and tells the caller one at a time."""

    def __init__(self, n_structures: int, progress: Any, should_stop: Callable[[], bool]):
        self.outcomes: list[Outcome | None] = [None] * n_structures
        self.should_stop, self._progress = should_stop, progress
        self._in_batches: dict[Any, tuple[int, int]] = {}
        self._ended = (0, 0)
        self._lock = threading.Lock()

    def end(self, member: int, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes[member] = outcome
            converged = outcome.status == Status.CONVERGED
            failed = not converged and outcome.status != Status.RUNNING
            self._ended = (self._ended[0] + converged, self._ended[1] + failed)

    def report(self, stream: Any, status: np.ndarray) -> None:
        """Args: status: of the structures that stand in the stream's batch."""
        if self._progress is None:
            return
        with self._lock:
            n_converged = int((status == Status.CONVERGED).sum())
            n_failed = int((status != Status.RUNNING).sum()) - n_converged
            self._in_batches[stream] = n_converged, n_failed
            counts = zip(self._ended, *self._in_batches.values(), strict=True)
            self._progress(*(sum(count) for count in counts))


class _Stream:
    """One batch, whose places are taken by one structure after another."""

    def __init__(self, work: Work, members: list[int]):
        self.work = work
        structures = [work.atoms[i] for i in members]
        self.batch = Batch.from_atoms(structures, work.dtype, *work.shape, work.layout)
        # A place without a structure has the number of the first one, and no rows.
        self.members = np.array(members + [members[0]] * (work.shape[1] - len(members)))
        self.occupied = np.arange(work.shape[1]) < len(members)
        self.starts = row_starts(self.batch.index.sizes)
        potential = work.potential
        self.table = NeighborTable(
            self.batch, potential.cutoff, work.skin, reverse=potential.needs_reverse
        )

    def run(self) -> None:
        work, neighbors = self.work, self.table.to_device()
        settings = work.settings.of(self.members, len(work.atoms))
        run = start(
            settings.optimizer, self.batch.positions, self.batch.index, keep_best=work.keep_best
        )
        while True:
            skin = np.asarray(work.skin)
            run = _advance(work.potential, self.batch, neighbors, skin, run, settings)
            status, is_pending, has_moved = jax.device_get(
                (run.status, run.is_pending, run.has_moved)
            )
            work.monitor.report(self, status[self.occupied])
            if work.monitor.should_stop():
                self._harvest(run, self.occupied)
                return
            has_ended = self.occupied & (status != Status.RUNNING)
            needs_list = self.occupied & ~has_ended & is_pending & ~has_moved
            if has_ended.sum() * WORTH_REFILLING >= self.occupied.sum():
                self._harvest(run, has_ended)
                is_new = self._place(run)
                if not self.occupied.any():
                    return
                if is_new.any():
                    settings = work.settings.of(self.members, len(work.atoms))
                    run = _restart(run, self.batch, settings, is_new)
                    needs_list |= is_new
            if needs_list.any():
                batch = eqx.tree_at(lambda b: b.positions, self.batch, run.params)
                failed = self.table.rebuild(batch, needs_list)
                neighbors = self.table.to_device()
                status = jnp.where(failed, Status.NOT_FINITE, run.status).astype(jnp.int32)
                run = eqx.tree_at(lambda r: r.status, run, status)

    def _harvest(self, run: Run, which: np.ndarray) -> None:
        """Hands over what became of these places' structures, and frees the places."""
        point = final_point(run)
        positions, gradients, energies, fmax, steps, evaluations, status = jax.device_get(
            (
                point.params,
                point.gradients,
                point.energies,
                point.fmax,
                run.steps,
                run.evaluations,
                run.status,
            )
        )
        for k in np.flatnonzero(which):
            rows = slice(self.starts[k], self.starts[k] + len(self.work.atoms[self.members[k]]))
            outcome = Outcome(
                positions=positions[rows].astype(np.float64),
                forces=-gradients[rows].astype(np.float64),
                energy=float(energies[k]),
                fmax=float(fmax[k]),
                steps=int(steps[k]),
                evaluations=int(evaluations[k]),
                status=int(status[k]),
            )
            self.work.monitor.end(self.members[k], outcome)
        self.occupied = self.occupied & ~which
        self.work.monitor.report(self, status[self.occupied])

    def _place(self, run: Run) -> np.ndarray:
        """Puts who waits and needs as many rows into free places; says which places."""
        batch, is_new = self.batch, np.zeros_like(self.occupied)
        sizes, positions = np.array(batch.index.sizes), np.array(run.params)
        numbers, cells, pbc = np.array(batch.numbers), np.array(batch.cells), np.array(batch.pbc)
        constraints = jax.tree.map(np.array, batch.constraints)
        for k in np.flatnonzero(~self.occupied):
            blocks = -(-int(sizes[k]) // BLOCK)
            member = self.work.queue.replace(blocks)
            if member is None:
                continue
            atoms, is_new[k] = self.work.atoms[member], True
            rows = slice(self.starts[k], self.starts[k] + blocks * BLOCK)
            positions[rows], numbers[rows] = 0.0, 0
            write(constraints, k, rows, atoms)
            rows = slice(rows.start, rows.start + len(atoms))
            positions[rows], numbers[rows] = atoms.positions, atoms.numbers
            self.members[k], sizes[k], cells[k], pbc[k] = member, len(atoms), atoms.cell, atoms.pbc
        if is_new.any():
            self.occupied = self.occupied | is_new
            self.batch = Batch(
                positions=jnp.asarray(positions),
                numbers=jnp.asarray(numbers),
                cells=jnp.asarray(cells),
                pbc=jnp.asarray(pbc),
                index=SystemIndex.from_sizes(sizes, align=BLOCK, n_rows=batch.n_rows),
                constraints=jax.tree.map(jnp.asarray, constraints),
            )
        return is_new


@eqx.filter_jit
def _advance(potential, batch, neighbors: Neighbors, skin, run: Run, settings: Settings) -> Run:
    def evaluate(positions):
        properties = potential(eqx.tree_at(lambda b: b.positions, batch, positions), neighbors)
        is_stale = moved_too_far(positions, neighbors, batch.index, skin)
        return properties.energies, -properties.forces, ~is_stale

    optimizer, measure = constrained(settings.optimizer, batch.constraints)
    return advance(evaluate, run, optimizer, settings.fmax, settings.max_steps, TURNS, measure)


@eqx.filter_jit
def _restart(run: Run, batch: Batch, settings: Settings, mask) -> Run:
    return restart(run, settings.optimizer, batch.positions, batch.index, mask)
