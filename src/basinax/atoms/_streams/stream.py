"""Streams structures through batches of one shape: whoever has ended makes room for who waits.

When the host looks, who stands beside whom and when a list is rebuilt is chosen for speed alone:
no bit of a result depends on it.
"""

import contextlib
import dataclasses
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from basinax._bits.rounding import BLOCK
from basinax._loop.criteria import AbstractCriterion
from basinax._loop.run import (
    Evaluation,
    Point,
    Run,
    advance,
    final_point,
    restart,
    select_points,
    start,
    stopped,
)
from basinax._loop.status import Status
from basinax._systems.index import index_of_sizes
from basinax.atoms._batch import Batch, row_starts
from basinax.atoms._cells.kinds import AbstractCell, Kind, is_open
from basinax.atoms._cells.moves import CellMoves, cell_moves, with_cells
from basinax.atoms._constraints.applied import Layout, constrained, write
from basinax.atoms._matrices import VOIGT
from basinax.atoms._neighbors.narrowing import (
    Reach,
    chosen,
    next_skins,
)
from basinax.atoms._neighbors.rooms import (
    Room,
    Rooms,
    largest,
)
from basinax.atoms._neighbors.table import (
    Neighbors,
    NeighborTable,
    moved_too_far,
)
from basinax.atoms._snapshot import Snapshot
from basinax.atoms._trajectory import Frame, Recorder
from basinax.atoms.potentials import AbstractPotential
from basinax.transforms._protocol import AbstractTransform

TURNS = 12
"""Turns of the loop between two looks of the host at what has ended or waits."""

PERIODS, PERIOD = 8, 3
"""Where pairs are dear: so many periods of so many turns, each with the pairs that are near then.
What has ended has none, so the host may look less often."""

FRAMES = 3
"""Frames of a system between two looks: turns are fewer where more would fall due."""

WORTH_REFILLING = 8
"""Places are filled once one in so many is free."""

WORTH_PACKING = 0.75
"""Rows of what still runs are put together once they are no more than this part of those that
stand together."""


class Outcome(NamedTuple):
    """What became of one structure."""

    end: Snapshot
    atoms: Atoms
    """The structure there."""
    fmax: float
    steps: int
    evaluations: int
    status: int


class Ended(NamedTuple):
    """Structures that have left their places in a batch."""

    found: dict[str, np.ndarray]
    """What `_result` says of all places."""
    last: dict[str, np.ndarray] | None
    """The same of where paths ended; None if nobody records them."""
    members: dict[int, int]
    """Which structure stood in each of their places."""


class Settings(eqx.Module):
    """What may differ between structures; leaves are numbers or one a structure."""

    optimizer: AbstractTransform
    criterion: AbstractCriterion
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
        """Structures for a new batch: of every size as large a part of those that wait.

        So a place that becomes free finds one of its size for as long as anything waits.
        """
        taken: list[int] = []
        with self._lock:
            waiting = sorted(self._waiting.items(), reverse=True)
            rows = sum(blocks * BLOCK * len(members) for blocks, members in waiting)
            part = min(1.0, n_rows / max(rows, 1))
            shares = {blocks: int(part * len(members)) for blocks, members in waiting}
            # First the shares, then what still fits, large ones first.
            for blocks, members in [*waiting, *waiting]:
                while (
                    members
                    and shares[blocks] > 0
                    and len(taken) < n_systems
                    and blocks * BLOCK <= n_rows
                ):
                    taken.append(members.popleft())
                    shares[blocks] -= 1
                    n_rows -= blocks * BLOCK
                shares[blocks] = len(members)
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
    n_filled: int
    """So many of its rows are filled at the beginning, at most: others have batches beside it."""
    most_rows: int
    """Of any of its structures."""
    layout: Layout
    """Of its constraints."""
    most_elements: int | None
    """In any of its structures; None if that is of no account."""
    cells: list[AbstractCell | None]
    """How the cell of each structure moves."""
    kind: Kind | None
    """Of the cells that move; None where none does."""
    queue: Queue
    monitor: "Monitor"
    recorder: Recorder | None
    begun: "deque[Stream]"
    """Batches that have lists and wait for a thread."""

    def first_members(self, n_batches: int) -> list[list[int]]:
        """Structures for the first batches, at most so many."""
        fills = [self._fill() for _ in range(n_batches)]
        return [members for members in fills if members]

    def _fill(self) -> list[int]:
        n_rows, n_systems = self.shape
        return self.queue.fill(min(self.n_filled, n_rows), n_systems)

    def begin(self, streams: "list[Stream]") -> None:
        """Gives the first batches room for the lists of any of them, and so one program."""
        tables = [stream.table for stream in streams]
        room = self._room(largest([table.needs for table in tables]), tables[0].is_lean)
        for table in tables:
            table.fit(room)
        self.begun.extend(streams)

    def _room(self, needs: Room, is_lean: bool) -> Room:
        """That of a batch's table, by what else the program of the group depends on."""
        how, _ = _split((self.potential, self.settings))
        is_recorded = self.recorder is not None
        program = how, self.shape, self.dtype, self.kind, self.layout, self.keep_best, is_recorded
        return _ROOMS.of(program, needs, self.shape[0], is_lean=is_lean)

    def drain(self) -> None:
        """Relax until nothing waits, or the run is stopped."""
        while not self.monitor.is_stopped() and (stream := self._next()):
            stream.run()

    def _next(self) -> "Stream | None":
        with contextlib.suppress(IndexError):
            return self.begun.popleft()
        members = self._fill()
        if not members:
            return None
        stream = Stream(self, members)
        stream.table.fit(self._room(stream.table.needs, stream.table.is_lean))
        return stream


_ROOMS = Rooms()
"""Of all runs of the process, as their programs are."""


class Monitor:
    """Gathers outcomes, adds up how far the batches are, and tells the caller one at a time."""

    def __init__(self, n_structures: int, progress: Any, should_stop: Callable[[], bool]):
        self.outcomes: list[Outcome | None] = [None] * n_structures
        self._should_stop, self._progress = should_stop, progress
        self._is_stopped = False
        self._in_batches: dict[Any, tuple[int, int]] = {}
        self._ended = (0, 0)
        self._lock = threading.Lock()

    def stop(self) -> None:
        """End the run at the next look."""
        self._is_stopped = True

    def is_stopped(self) -> bool:
        self._is_stopped = self._is_stopped or bool(self._should_stop())
        return self._is_stopped

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


class Stream:
    """One batch, whose places are taken by one structure after another."""

    def __init__(self, work: Work, members: list[int]):
        self.work = work
        structures = [work.atoms[i] for i in members]
        self.batch = Batch.from_atoms(
            structures, work.dtype, *work.shape, work.layout, work.most_rows
        )
        # A place without a structure has the number of the first one, and no rows.
        self.members = np.array(members + [members[0]] * (work.shape[1] - len(members)))
        self.occupied = np.arange(work.shape[1]) < len(members)
        self.starts = row_starts(self.batch.index.sizes)
        self.recorded = np.full(work.shape[1], -1)
        """The last step of each place's structure that the recorder has."""
        self.ended: Ended | None = None
        """What has left its places and is not handed over yet."""
        # The batches of a group share a program, whoever stands in them.
        self.has_open = work.kind == "frechet" and any(map(is_open, work.cells))
        self.moves = self._moves()
        potential = work.potential
        self.table = NeighborTable(
            self.batch,
            potential.cutoff,
            work.skin,
            follows_cells=work.kind is not None,
            reverse=potential.needs_reverse,
            most_elements=work.most_elements,
            is_fitted=False,
        )

    def run(self) -> None:
        work, is_running = self.work, self.occupied
        neighbors, n_packed = self.table.lists(is_running), self._n_rows(is_running)
        settings = work.settings.of(self.members, len(work.atoms))
        how, dtype = _split((work.potential, settings)), self.batch.positions.dtype
        run = _start(how[0], work.keep_best, how[1], self.batch, self.moves)
        size = dtype.itemsize
        reach = Reach(jnp.asarray(work.potential.cutoff, dtype), jnp.asarray(work.skin, dtype))
        skins = np.full(len(self.occupied), np.inf, dtype)
        while True:
            here = (self.batch, self.moves, neighbors, reach, run, skins)
            due = None
            if work.recorder is None:
                run, skins, is_stale = _advance[size](*how, *here)
            else:
                interval = np.asarray(work.recorder.interval, np.int32)
                (run, due), skins, is_stale = _recorded[size](*how, *here, interval)
            self._hand_over()  # while the device works
            status, is_stale, due = jax.device_get((run.status, is_stale, due))
            if due is not None:
                self._record(due)
            work.monitor.report(self, status[self.occupied])
            if work.monitor.is_stopped():
                self._take_out(run, self.occupied)
                self._hand_over()
                return
            is_running = self.occupied & (status == Status.RUNNING)
            has_ended = self.occupied & ~is_running
            needs_list = is_running & is_stale
            if has_ended.sum() * WORTH_REFILLING >= self.occupied.sum():
                self._take_out(run, has_ended)
                is_new = self._place()
                if not self.occupied.any():
                    self._hand_over()
                    return
                if is_new.any():
                    settings = work.settings.of(self.members, len(work.atoms))
                    how = _split((work.potential, settings))
                    run = _restart(*how, self.batch, self.moves, run, is_new)
                    skins = np.where(is_new, np.inf, skins)
                    needs_list |= is_new
                    is_running |= is_new
            if needs_list.any():
                failed = self.table.rebuild(self._here(run), needs_list)
                if failed.any():
                    status = np.where(failed, Status.NOT_FINITE, run.status).astype(np.int32)
                    run = eqx.tree_at(lambda r: r.status, run, status)
            n_rows = self._n_rows(is_running)
            if needs_list.any() or n_rows <= WORTH_PACKING * n_packed:
                neighbors, n_packed = self.table.lists(is_running), n_rows

    def _here(self, run: Run) -> Batch:
        """The batch where the run stands."""
        if self.moves is None:
            return _moved(self.batch, None, run.params)
        # Found by a program that the end of the run needs in any case.
        found = _result(dataclasses.replace(run, best=None), self.batch, self.moves)
        return dataclasses.replace(self.batch, positions=found["positions"], cells=found["cells"])

    def _n_rows(self, which: np.ndarray) -> int:
        """How many rows the structures in these places have."""
        return int(np.asarray(self.batch.index.sizes)[which].sum())

    def _moves(self) -> CellMoves | None:
        """How the cells of the structures in this batch move."""
        work = self.work
        if work.kind is None:
            return None
        members = self.members.tolist()
        atoms, cells = [work.atoms[i] for i in members], [work.cells[i] for i in members]
        cells = [c if held else None for c, held in zip(cells, self.occupied, strict=True)]
        dtype, has_open = self.batch.positions.dtype, self.has_open
        return cell_moves(work.kind, atoms, cells, work.shape[1], dtype, has_open=has_open)

    def _take_out(self, run: Run, which: np.ndarray) -> None:
        """Frees the places of structures that have ended, or must end here."""
        found = last = jax.device_get(_result(run, self.batch, self.moves))
        if self.work.recorder is None:
            last = None
        elif self.work.keep_best:
            path = dataclasses.replace(run, best=None)
            last = jax.device_get(_result(path, self.batch, self.moves))
        members = {k: int(self.members[k]) for k in np.flatnonzero(which).tolist()}
        self.ended = Ended(found, last, members)
        self.occupied = self.occupied & ~which

    def _hand_over(self) -> None:
        """Says what became of the structures that were taken out."""
        if self.ended is None:
            return
        (found, last, members), self.ended = self.ended, None
        for k, member in members.items():
            end = self._snapshot(found, k, member)
            outcome = Outcome(
                end=end,
                atoms=end.of(self.work.atoms[member]),
                fmax=float(found["fmax"][k]),
                steps=int(found["steps"][k]),
                evaluations=int(found["evaluations"][k]),
                status=int(found["status"][k]),
            )
            self.work.monitor.end(member, outcome)
        if last is not None:
            self._record_ends(last, members)
        stays = self.occupied.copy()
        stays[list(members)] = False
        self.work.monitor.report(self, found["status"][stays])

    def _snapshot(self, found: dict[str, np.ndarray], k: int, member: int) -> Snapshot:
        rows = slice(self.starts[k], self.starts[k] + len(self.work.atoms[member]))
        is_free = self.moves is not None and bool(found["is_free"][k])
        return Snapshot(
            positions=found["positions"][rows].astype(np.float64),
            cell=found["cells"][k].astype(np.float64),
            forces=found["forces"][rows].astype(np.float64),
            stress=found["stress"][k].astype(np.float64) if is_free else None,
            energy=float(found["energies"][k]),
            energies=found["of_atoms"][rows].astype(np.float64) if "of_atoms" in found else None,
        )

    def _record(self, due: dict[str, np.ndarray]) -> None:
        """Hands over the frames that fell due."""
        for found in [{name: x[k] for name, x in due.items()} for k in range(FRAMES)]:
            steps = np.where(self.occupied, found["steps"], -1)
            places = np.flatnonzero(steps >= 0).tolist()
            self._add_frames(found, {k: int(self.members[k]) for k in places})
            self.recorded = np.maximum(self.recorded, steps)

    def _record_ends(self, last: dict[str, np.ndarray], members: dict[int, int]) -> None:
        """Last frames, except those handed over before and of structures that did not end."""
        has_ended = (last["status"] != Status.RUNNING) & last["is_known"]
        is_new = has_ended & (self.recorded < last["steps"])
        ends = {k: member for k, member in members.items() if is_new[k]}
        self._add_frames(last, ends, are_last=True)
        self.recorded[list(members)] = -1

    def _add_frames(
        self, found: dict[str, np.ndarray], members: dict[int, int], *, are_last: bool = False
    ) -> None:
        """Hands over frames of structures in these places, which the recorder's thread makes."""
        if not members:
            return

        def frame(k: int, member: int) -> Frame:
            # Energies of atoms are as long as a coordinate, and wanted at the end alone.
            snapshot = self._snapshot(found, k, member)._replace(energies=None)
            return Frame(member, int(found["steps"][k]), snapshot, are_last)

        cast(Recorder, self.work.recorder).add(frame(k, m) for k, m in members.items())

    def _place(self) -> np.ndarray:
        """Puts who waits and needs as many rows into free places; says which places."""
        batch, is_new = self.batch, np.zeros_like(self.occupied)
        sizes, positions = np.array(batch.index.sizes), np.array(batch.positions)
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
            self.members[k], sizes[k] = member, len(atoms)
            cells[k], pbc[k] = atoms.cell.array, atoms.pbc
        if is_new.any():
            self.occupied = self.occupied | is_new
            index = index_of_sizes(
                sizes, align=BLOCK, n_rows=batch.n_rows, most_rows=self.work.most_rows
            )
            arrays: dict[str, Any] = {
                "positions": positions,
                "numbers": numbers,
                "cells": cells,
                "pbc": pbc,
            }
            self.batch = Batch(**arrays, index=index, constraints=constraints)
            self.moves = self._moves()
        return is_new


def _beginning(batch: Batch, moves: CellMoves | None) -> tuple[Any, Any]:
    """Parameters and their prefix."""
    if moves is None:
        return batch.positions, batch.index
    return moves.start(batch.positions), moves.prefix(batch.index)


class _Fixed:
    """What is not an array in a tree: jitted functions are compiled for it.

    `eqx.filter_jit` looks for it again at each call, which takes as long as half a turn.
    """

    def __init__(self, tree: Any):
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree)
        self._key = (tuple(leaves), structure)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Fixed) and self._key == other._key)


How = tuple[AbstractPotential, Settings]


def _split(how: How) -> tuple[_Fixed, Any]:
    """What is not an array, and what is."""
    arrays, others = eqx.partition(how, eqx.is_array)
    return _Fixed(others), arrays


def _by_precision(function: Callable) -> dict[int, Callable]:
    """The function jitted for runs with floats of so many bytes.

    Of CPUs each batch has one core: XLA would still give a loop that reads a large table of images
    to two, which takes longer than the loop. And their vectors hold eight numbers where they can,
    as blocks do, so that no rows are left over; XLA takes half as many of double precision.
    """
    return {
        size: jax.jit(
            function,
            static_argnums=0,
            compiler_options={
                "xla_disable_hlo_passes": "cpu-parallel-task-assigner",
                "xla_cpu_prefer_vector_width": 8 * size * BLOCK,
            },
        )
        for size in (4, 8)
    }


class Course(NamedTuple):
    """How a batch goes on between two looks of the host."""

    how: How
    batch: Batch
    moves: CellMoves | None
    neighbors: Neighbors
    reach: Reach

    def here(self, run: Run) -> Batch:
        return _moved(self.batch, self.moves, run.params)

    def turned(self, go: Callable, carry: Any, run_of: Callable, skins, n_turns=None) -> tuple:
        """What is carried after some turns.

        Args:
            go: lets what is carried go on by a function for so many turns, those two first.
            run_of: the run in what is carried.
            skins: of each system, in Å, see `chosen`.
            n_turns: the most turns.

        Returns:
            What is carried, skins to go on with, and which systems need a new list.
        """
        reach = self.reach
        chooses = self.how[0].has_dear_pairs and self.neighbors.columns is not None
        most = PERIODS * PERIOD if chooses else TURNS
        n_turns = most if n_turns is None else jnp.minimum(n_turns, most)
        if not chooses:
            carry = go(self._stepper(self.neighbors, reach.skin), n_turns, carry)
            return carry, skins, self._is_stale(self.here(run_of(carry)))

        def period(state):
            carry, skins, _, n_done = state
            run = run_of(carry)
            is_running = run.status == Status.RUNNING.value
            near, skins = chosen(self.neighbors, self.here(run), reach, skins, is_running)
            n_now = jnp.minimum(PERIOD, n_turns - n_done)
            carry = go(self._stepper(near, skins), n_now, carry)
            there = self.here(run_of(carry))
            skins = next_skins(near, there, reach, skins)
            return carry, skins, self._is_stale(there), n_done + n_now

        def goes_on(state):
            carry, _, is_stale, n_done = state
            can_move = (run_of(carry).status == Status.RUNNING.value) & ~is_stale
            return (n_done < n_turns) & jnp.any(can_move)

        state = (carry, jnp.asarray(skins, reach.skin.dtype), jnp.zeros(len(skins), bool))
        return jax.lax.while_loop(goes_on, period, (*state, jnp.int32(0)))[:3]

    def _is_stale(self, here: Batch) -> Any:
        """Which systems need a new list."""
        lists, skin, moves = self.neighbors, self.reach.skin, self.moves
        is_stale = moved_too_far(here.positions, lists, here.index, skin, here.cells)
        # A lost cell waits for no list: its next turn ends it, whenever the host looks.
        return is_stale if moves is None else is_stale & ~moves.is_lost(here, self.reach.cutoff)

    def _stepper(self, neighbors: Neighbors, skin) -> Callable:
        """A function that lets a run go on for so many turns with these lists."""
        (potential, settings), batch, moves = self.how, self.batch, self.moves

        def evaluate(params):
            here = _moved(batch, moves, params)
            properties = potential(here, neighbors, stress=moves is not None)
            is_stale = moved_too_far(here.positions, neighbors, batch.index, skin, here.cells)
            if moves is None:
                energies, gradient = properties.energies, -properties.forces
                return Evaluation(energies, gradient, ~is_stale, None, properties.atom_energies)
            is_lost = moves.is_lost(here, self.reach.cutoff)
            enthalpies, gradient, observed = moves.of_properties(params, properties, here, is_lost)
            # A lost cell waits for no list: it ends.
            of_atoms = properties.atom_energies
            of_atoms = jnp.where(batch.index.spread(is_lost, False, of_atoms), jnp.nan, of_atoms)
            is_valid = ~is_stale | is_lost
            return Evaluation(enthalpies, gradient, is_valid, observed, of_atoms)

        if moves is None:
            optimizer, view = constrained(settings.optimizer, batch.constraints)
        else:
            optimizer, view = with_cells(settings.optimizer, batch.constraints, moves)

        def step(run: Run, turns) -> Run:
            return advance(
                evaluate, run, optimizer, settings.criterion, settings.max_steps, turns, view
            )

        return step


@_by_precision
def _advance(
    fixed: _Fixed, arrays, batch, moves, neighbors: Neighbors, reach: Reach, run: Run, skins
) -> tuple[Run, Any, Any]:
    """As `Course.turned`, of a run."""

    def go(step, turns, run):
        return step(run, turns)

    course = Course(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    return course.turned(go, run, lambda run: run, skins)


@_by_precision
def _recorded(
    fixed: _Fixed,
    arrays,
    batch,
    moves,
    neighbors: Neighbors,
    reach: Reach,
    run: Run,
    skins,
    interval,
) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
    """As `_advance`; beside the run, where systems stood after multiples of the interval of steps.

    The points of each system come in their order along a first axis, the last of `FRAMES`; `steps`
    is -1 where there is none.
    """
    prefix = run.optimizer_state.index_prefix

    def go(step, turns, carry):
        def turn(carry):
            before, dues, count = carry
            run = step(before, 1)
            is_judged = (run.steps > before.steps) | (run.status != before.status)
            is_due = is_judged & (before.steps % interval == 0)
            there = Point(before.params, run.energies, run.gradients, run.fmax, run.extras)

            def newer(dues):
                return [
                    (select_points(is_due, x, y, prefix), jnp.where(is_due, n, m))
                    for (x, n), (y, m) in zip([*dues[1:], (there, before.steps)], dues, strict=True)
                ]

            dues = jax.lax.cond(jnp.any(is_due), newer, lambda dues: dues, dues)
            return run, dues, count + 1

        def goes_on(carry):
            run, _, count = carry
            return (count == 0) | (jnp.any(run.has_moved) & (count < turns))

        return jax.lax.while_loop(goes_on, turn, (*carry, jnp.int32(0)))[:2]

    here = Point(run.params, run.energies, run.gradients, run.fmax, run.extras)
    none = (here, jnp.full_like(run.steps, -1))
    course = Course(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    # No more turns than give so many frames; the interval may be as large as an integer.
    n_turns = FRAMES * jnp.minimum(interval, PERIODS * PERIOD)
    (run, dues), skins, is_stale = course.turned(
        go, (run, [none] * FRAMES), lambda carry: carry[0], skins, n_turns
    )
    found = [{"steps": n} | _found(point, batch, moves) for point, n in dues]
    # The host takes a large array sooner than many.
    return (run, jax.tree.map(lambda *each: jnp.stack(each), *found)), skins, is_stale


def _moved(batch: Batch, moves: CellMoves | None, params: Any) -> Batch:
    """The batch where the parameters say."""
    if moves is None:
        return dataclasses.replace(batch, positions=params)
    positions, cells = _structure(moves, params, batch.index)
    return dataclasses.replace(batch, positions=positions, cells=cells)


_structure = jax.jit(CellMoves.structure)


@jax.jit
def _result(run: Run, batch: Batch, moves: CellMoves | None) -> dict[str, Any]:
    """Where structures are returned, and what was found there."""
    point = final_point(stopped(run))
    counts = {"steps": run.steps, "evaluations": run.evaluations, "status": run.status}
    # Of a system that could get no list nothing is known where it stands.
    counts["is_known"] = ~run.is_pending | (run.status != Status.NOT_FINITE.value)
    return counts | {"fmax": point.fmax} | _found(point, batch, moves)


@jax.jit
def _found(point: Point, batch: Batch, moves: CellMoves | None) -> dict[str, Any]:
    here = _moved(batch, moves, point.params)
    place = {"positions": here.positions, "cells": here.cells}
    if point.of_rows is not None:  # frames do without
        place["of_atoms"] = point.of_rows
    if moves is None:
        return place | {"forces": -point.gradients, "energies": point.energies}
    stress = point.extras.stress
    stress = jnp.stack([(stress[:, i, j] + stress[:, j, i]) / 2 for i, j in VOIGT], axis=1)
    found = {"energies": point.extras.energies, "stress": stress}
    forces = moves.forces(point.params, point.gradients, batch.index)
    return place | found | {"forces": forces, "is_free": moves.is_free}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _start(fixed: "_Fixed", keep_best: bool, arrays, batch: Batch, moves: CellMoves | None) -> Run:
    _, settings = eqx.combine(arrays, fixed.tree)
    params, prefix = _beginning(batch, moves)
    extras = None if moves is None else moves.nothing_observed()
    needs = settings.criterion.needs
    return start(
        settings.optimizer,
        params,
        prefix,
        keep_best=keep_best,
        extras=extras,
        of_rows=jnp.zeros_like(batch.positions[:, 0]),
        needs=needs,
    )


@functools.partial(jax.jit, static_argnums=0)
def _restart(fixed: _Fixed, arrays, batch: Batch, moves: CellMoves | None, run: Run, mask) -> Run:
    _, settings = eqx.combine(arrays, fixed.tree)
    return restart(run, settings.optimizer, *_beginning(batch, moves), mask)
