"""Streams structures through batches of one shape: whoever has ended makes room for who waits.

When the host looks, who stands beside whom and when a list is rebuilt is chosen for speed alone:
no bit of a result depends on it.
"""

import contextlib
import dataclasses
import logging
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax._bits import xla
from basinax._jax.fixed import Fixed, split
from basinax._jax.memory import is_out_of_memory
from basinax._loop.run import Evaluation, Run, judged_between
from basinax._loop.status import Status
from basinax.atoms._batch import Batch
from basinax.atoms._cells.moves import CellMoves
from basinax.atoms._machine import machine
from basinax.atoms._neighbors.lists import ChunkedLists, Lists, moved_too_far
from basinax.atoms._neighbors.narrowing import Reach, chosen, next_skins
from basinax.atoms._neighbors.rooms import Room, Rooms, largest
from basinax.atoms._neighbors.table import NeighborTable
from basinax.atoms._streams.device import (
    Device,
    Settings,
    advanced,
    found_at,
    moved,
    on_device,
    restarted,
    started,
)
from basinax.atoms._streams.places import Group, Places
from basinax.atoms.potentials import AbstractPotential
from basinax.transforms._protocol import select_state

_LOG = logging.getLogger("basinax")

FRAMES = 3
"""Frames of a system between two looks: turns are fewer where more would fall due."""


@dataclasses.dataclass
class Work:
    """A group and its lists' settings, for batches that run one program."""

    group: Group
    """With the shape of batches that are made from now on."""
    potential: AbstractPotential
    skin: float
    is_short: bool
    """Whether the group is done soon, and compiling is most of it."""
    most_elements: int | None
    """In any of its structures; None if that is of no account."""
    begun: "dict[Device, deque[Stream]]" = dataclasses.field(
        default_factory=lambda: defaultdict(deque)
    )
    """Batches that have lists and wait for a thread of their device."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Held while batches are made smaller."""

    def first_members(self, n_batches: int) -> list[list[int]]:
        """Structures for the first batches, at most so many."""
        fills = [self.group.fill() for _ in range(n_batches)]
        return [members for members in fills if members]

    def make(self, group: Group, members: list[int], device: Device) -> "Stream | None":
        """A batch of these structures; None if memory ran out, and they wait again."""
        with self._smaller_if_it_must(group, lambda: members):
            return Stream(self, group, members, device)
        return None

    def begin(self, streams: "list[Stream]") -> None:
        """Gives the first batches room for the lists of any of them, and so one program."""
        for shape in {stream.group.shape for stream in streams}:
            alike = [stream for stream in streams if stream.group.shape == shape]
            tables = [stream.table for stream in alike]
            group, needs = alike[0].group, largest([table.needs for table in tables])
            room = self._room(group, needs, is_lean=tables[0].is_lean)
            for stream in alike:
                stream.table.fit(room)
                self.begun[stream.device].append(stream)
            _LOG.info(
                "batches: %d, of %d rows and %d structures at most, with room for %d neighbours",
                *(len(alike), *shape, room.slots),
            )

    def _room(self, group: Group, needs: Room, *, is_lean: bool) -> Room:
        """The room of a batch's table, shared by batches that run the same program."""
        how, _ = split((self.potential, group.settings))
        kept = group.kind, group.layout, group.keep_best, group.recorder is not None
        program = how, group.shape, group.dtype, kept
        return _ROOMS.of(program, needs, group.shape[0], is_lean=is_lean)

    def drain(self, device: Device = None) -> None:
        """Relax until nothing waits, or the run is stopped."""
        while not self.group.monitor.is_stopped() and (stream := self._next(device)):
            with self._smaller_if_it_must(stream.group, stream.given_up):
                stream.run()
            del stream  # and its arrays, before another is made

    def _next(self, device: Device) -> "Stream | None":
        with contextlib.suppress(IndexError):
            return self.begun[device].popleft()
        group = self.group
        while members := group.fill():
            with group.monitor.during("listing"):
                stream = self.make(group, members, device)
            if stream is not None:
                room = self._room(group, stream.table.needs, is_lean=stream.table.is_lean)
                stream.table.fit(room)
                _LOG.info(
                    "another batch of %d structures, room for %d neighbours",
                    *(len(members), room.slots),
                )
                return stream
            group = self.group
        return None

    @contextlib.contextmanager
    def _smaller_if_it_must(
        self, group: Group, standing: Callable[[], list[int]]
    ) -> Iterator[None]:
        """Where memory runs out within, structures wait again, for batches half as large.

        They go on from their input, and so with the same bits.

        Args:
            standing: returns the structures in the batch.
        """
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            members, smaller = standing(), group.halved()
            if smaller.shape == group.shape:
                raise MemoryError(
                    f"memory has run out, and batches cannot be smaller: {len(members)} structures"
                    f" in {group.shape[0]} rows, the largest of {group.most_rows} atoms"
                ) from error
            group.queue.put_back(members)
            with self.lock:
                is_first = self.group.shape == group.shape
                self.group = smaller if is_first else self.group
            if is_first:
                text = (
                    f"memory has run out: {len(members)} structures begin again, in batches of"
                    f" {smaller.shape[0]} rows instead of {group.shape[0]}"
                )
                warnings.warn(text, RuntimeWarning, stacklevel=2)
                _LOG.info("%s", text)


_ROOMS = Rooms()
"""Rooms of all runs of the process, which share programs."""


class Stream:
    """One batch with its neighbour lists."""

    def __init__(self, work: Work, group: Group, members: list[int], device: Device = None):
        """Args: device: where it is relaxed, in a thread with this default; JAX's own if None."""
        self.work, self.group, self.device = work, group, device
        self.places = Places(group, members)
        self.potential = on_device(work.potential, device)
        self.table = NeighborTable(
            self.places.batch,
            work.potential.cutoff,
            work.skin,
            follows_cells=group.kind is not None,
            lists=work.potential.lists,
            reverse=True,
            most_elements=work.most_elements,
            is_fitted=False,
        )

    def given_up(self) -> list[int]:
        """The structures that stand here; those that have left are handed over."""
        self.places.hand_over()
        self.group.monitor.forget(self.places)
        return self.places.members[self.places.occupied].tolist()

    def _how(self) -> tuple[Fixed, Any]:
        """The potential and the settings of the structures that stand here, on the device."""
        return split((self.potential, on_device(self.places.settings(), self.device)))

    def run(self) -> None:
        places, work, group = self.places, self.work, self.group
        is_running = places.occupied
        neighbors, n_packed = self.table.lists(is_running), places.n_rows(is_running)
        how, dtype = self._how(), places.batch.positions.dtype
        with group.monitor.during("compiling"):
            run = started(how[0], group.keep_best, how[1], places.batch, places.moves)
        reach = Reach(jnp.asarray(work.potential.cutoff, dtype), jnp.asarray(work.skin, dtype))
        skins = np.full(len(places.occupied), np.inf, dtype)
        # Unless a batch before has had this program.
        phase: contextlib.AbstractContextManager = group.monitor.during("compiling")
        while True:
            here = (places.batch, places.moves, neighbors, reach, run, skins)
            due = None
            with phase:
                if group.recorder is None:
                    run, skins, is_stale = _advance[work.is_short](*how, *here)
                else:
                    interval = np.asarray(group.recorder.interval, np.int32)
                    (run, due), skins, is_stale = _recorded[work.is_short](*how, *here, interval)
            phase = contextlib.nullcontext()
            places.hand_over()  # while the device works
            status, fmax, is_stale, due = jax.device_get(
                (run.status, run.point.fmax, is_stale, due)
            )
            if due is not None:
                for k in range(FRAMES):
                    places.record({name: x[k] for name, x in due.items()})
            group.monitor.report(places, status[places.occupied], fmax[places.occupied])
            if group.monitor.is_stopped():
                places.take_out(run, places.occupied)
                places.hand_over()
                return
            is_running = places.occupied & (status == Status.RUNNING)
            has_ended = places.occupied & ~is_running
            needs_list = is_running & is_stale
            if has_ended.sum() * machine().worth_refilling >= places.occupied.sum():
                places.take_out(run, has_ended)
                is_new = places.refill()
                if not places.occupied.any():
                    places.hand_over()
                    return
                if is_new.any():
                    how = self._how()
                    run = restarted(*how, places.batch, places.moves, run, is_new)
                    skins = np.where(is_new, np.inf, skins)
                    needs_list |= is_new
                    is_running |= is_new
            if needs_list.any():
                failed = self.table.rebuild(places.here(run), needs_list)
                if failed.any():
                    status = np.where(failed, Status.NOT_FINITE, run.status).astype(np.int32)
                    run = eqx.tree_at(lambda r: r.status, run, status)
            n_rows = places.n_rows(is_running)
            if needs_list.any() or n_rows <= machine().worth_packing * n_packed:
                neighbors, n_packed = self.table.lists(is_running), n_rows


def _by_length(function: Callable) -> dict[bool, Callable]:
    """The function jitted for runs that are short, and for others."""
    return {
        is_short: xla.jitted(
            function, xla.ON_ONE_CORE | (xla.SHORT if is_short else {}), static_argnums=0
        )
        for is_short in (False, True)
    }


class Course(NamedTuple):
    """How a batch goes on between two looks of the host."""

    how: tuple[AbstractPotential, Settings]
    batch: Batch
    moves: CellMoves | None
    neighbors: Lists
    reach: Reach

    def here(self, run: Run) -> Batch:
        return moved(self.batch, self.moves, run.point.params)

    def turned(self, go: Callable, carry: Any, run_of: Callable, skins, n_turns=None) -> tuple:
        """Carry a run through some turns.

        Args:
            go: from a function, a count of turns and the carry to the carry after these turns.
            run_of: from the carry to its run.
            skins: of each system, in Å, see `chosen`.
            n_turns: the most turns.

        Returns:
            The carried values, skins to go on with, and which systems need a new list.
        """
        reach, lists, of = self.reach, self.neighbors, machine()
        chunked = lists if isinstance(lists, ChunkedLists) and self.how[0].has_dear_pairs else None
        most = of.turns if chunked is None else of.periods * of.period
        n_turns = most if n_turns is None else jnp.minimum(n_turns, most)
        if chunked is None:
            carry = go(self._stepper(lists, reach.skin), n_turns, carry)
            return carry, skins, self._is_stale(self.here(run_of(carry)))

        def period(state):
            carry, skins, _, n_done = state
            run = run_of(carry)
            is_running = run.status == Status.RUNNING.value
            near, skins = chosen(chunked, self.here(run), reach, skins, is_running)
            n_now = jnp.minimum(of.period, n_turns - n_done)
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

    def _stepper(self, neighbors: Lists, skin) -> Callable:
        """A function that lets a run go on for so many turns with these lists."""
        (potential, settings), batch, moves = self.how, self.batch, self.moves

        def evaluate(params):
            here = moved(batch, moves, params)
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

        def step(run: Run, turns) -> Run:
            return advanced(evaluate, run, settings, batch, moves, turns)

        return step


@_by_length
def _advance(
    fixed: Fixed, arrays, batch, moves, neighbors: Lists, reach: Reach, run: Run, skins
) -> tuple[Run, Any, Any]:
    """`Course.turned` for a run."""

    def go(step, turns, run):
        return step(run, turns)

    course = Course(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    return course.turned(go, run, lambda run: run, skins)


@_by_length
def _recorded(
    fixed: Fixed,
    arrays,
    batch,
    moves,
    neighbors: Lists,
    reach: Reach,
    run: Run,
    skins,
    interval,
) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
    """`_advance` with points of systems after multiples of the interval of steps.

    The points of each system come in their order along a first axis, the last of `FRAMES`; `steps`
    is -1 where there is none.
    """
    prefix = run.index_prefix

    def go(step, turns, carry):
        def turn(carry):
            before, dues, count = carry
            run = step(before, 1)
            is_judged, there = judged_between(before, run)
            is_due = is_judged & (before.steps % interval == 0)
            counts = {"steps": before.steps, "evaluations": run.evaluations}

            def due(new, old):
                return jnp.where(is_due, new, old)

            def newer(dues):
                return [
                    (select_state(is_due, x, y, prefix), jax.tree.map(due, n, m))
                    for (x, n), (y, m) in zip([*dues[1:], (there, counts)], dues, strict=True)
                ]

            dues = jax.lax.cond(jnp.any(is_due), newer, lambda dues: dues, dues)
            return run, dues, count + 1

        def goes_on(carry):
            run, _, count = carry
            return (count == 0) | (jnp.any(run.has_moved) & (count < turns))

        return jax.lax.while_loop(goes_on, turn, (*carry, jnp.int32(0)))[:2]

    here = dataclasses.replace(run.point, of_rows=None)
    nothing = jnp.full_like(run.steps, -1)
    none = (here, {"steps": nothing, "evaluations": nothing})
    course = Course(eqx.combine(arrays, fixed.tree), batch, moves, neighbors, reach)
    # No more turns than give so many frames; the interval may be as large as an integer.
    n_turns = FRAMES * jnp.minimum(interval, machine().periods * machine().period)
    (run, dues), skins, is_stale = course.turned(
        go, (run, [none] * FRAMES), lambda carry: carry[0], skins, n_turns
    )
    found = [counts | found_at(point, batch, moves) for point, counts in dues]
    # The host takes a large array sooner than many.
    return (run, jax.tree.map(lambda *each: jnp.stack(each), *found)), skins, is_stale
