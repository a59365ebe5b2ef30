"""Streams of structures through batches of one shape: a waiting structure takes each free place.

The times of host syncs, the neighbours in a batch and the times of list rebuilds are chosen for
speed alone: no bit of a result depends on them.
"""

import contextlib
import dataclasses
import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax._jax.fixed import Fixed, split
from basinax._jax.shortage import is_out_of_memory
from basinax._loop.run import Run
from basinax._loop.status import Status
from basinax.atoms._machine import machine
from basinax.atoms._neighbors.narrowing import Reach
from basinax.atoms._neighbors.rooms import Room, Rooms, largest
from basinax.atoms._neighbors.table import NeighborTable
from basinax.atoms._streams.device import (
    Device,
    on_device,
    restarted,
    started,
)
from basinax.atoms._streams.places import Group, Places
from basinax.atoms._streams.sizes import smaller, tell_of_smaller
from basinax.atoms._streams.turns import advance, noted, recorded
from basinax.atoms.potentials import AbstractPotential

_LOG = logging.getLogger("basinax")


@dataclasses.dataclass
class Work:
    """A group and the settings of its lists, for batches that run one program."""

    group: Group
    """The group, with the current shape of new batches."""
    potential: AbstractPotential
    skin: float
    is_short: bool
    """Whether the group ends soon, so that compiling dominates."""
    most_elements: int | None
    """The most elements of one structure; None if the number does not matter."""
    begun: "dict[Device, deque[Stream]]" = dataclasses.field(
        default_factory=lambda: defaultdict(deque)
    )
    """Batches with lists, which wait for a thread of their device."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Guards `group`: if several threads run out of memory at once, one halves the batches."""

    def make(self, group: Group, members: list[int], device: Device) -> "Stream | None":
        """A batch of these structures; None if memory ran out and the structures wait again."""
        with self._smaller_if_it_must(group, lambda: members):
            return Stream(self, group, members, device)
        return None

    def begin(self, streams: "list[Stream]") -> None:
        """Give the first batches the room of the largest lists, so that they share one program."""
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
        kept = group.kind, group.layout, group.keep_best, group.recorder is not None, group.points
        program = how, group.shape, group.dtype, kept
        return _ROOMS.of(program, needs, group.shape[0], is_lean=is_lean)

    def drain(self, device: Device = None) -> None:
        """Relax until no structure waits, or until the run is stopped."""
        while not self.group.monitor.is_stopped() and (stream := self._next(device)):
            with self._smaller_if_it_must(stream.group, stream.given_up):
                stream.run()
            del stream  # frees its arrays before another batch is made

    def _next(self, device: Device) -> "Stream | None":
        with contextlib.suppress(IndexError):
            return self.begun[device].popleft()
        group = self.group
        while members := group.fill():
            with group.monitor.during("listing"):
                stream = self.make(group, members, device)
            if stream is not None:
                self.begin([stream])
                return self.begun[device].popleft()
            group = self.group
        return None

    @contextlib.contextmanager
    def _smaller_if_it_must(
        self, group: Group, standing: Callable[[], list[int]]
    ) -> Iterator[None]:
        """If memory runs out inside this context, structures wait again for batches half as large.

        They restart from their input, so the bits are the same.

        Args:
            standing: returns the structures in the batch.
        """
        try:
            yield
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            members = standing()
            less = smaller(group, members, error)
            with self.lock:
                is_first = self.group.shape == group.shape
                self.group = less if is_first else self.group
            if is_first:
                tell_of_smaller(group, less, len(members))


_ROOMS = Rooms()
"""Rooms of all runs of the process, which share programs."""


class Stream:
    """One batch with its neighbour lists."""

    def __init__(self, work: Work, group: Group, members: list[int], device: Device = None):
        """Args: device: the device of the batch, and the default of its thread; None for JAX's."""
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
        """The structures in the batch, after those that ended were handed over."""
        self.places.hand_over()
        self.group.monitor.forget(self.places)
        return self.places.members[self.places.occupied].tolist()

    def _how(self) -> tuple[Fixed, Any]:
        """The potential and the settings of the structures in the batch, on the device."""
        return split((self.potential, on_device(self.places.settings(), self.device)))

    def _turned(self, *here: Any) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
        """Some turns: the run with any stored points, skins, and the mask of stale lists."""
        group, is_short = self.group, self.work.is_short
        if group.recorder is not None:
            interval = 1 if group.points else group.recorder.interval
            return recorded[is_short](*here, np.asarray(interval, np.int32))
        if group.points:
            return noted[is_short](*here)
        run, *rest = advance[is_short](*here)
        return (run, {}), *rest

    def run(self) -> None:
        places, work, group = self.places, self.work, self.group
        is_running = places.occupied
        neighbors, n_packed = self.table.lists(is_running), places.n_rows(is_running)
        how, dtype = self._how(), places.batch.positions.dtype
        with group.monitor.during("compiling"):
            run = started(how[0], group.keep_best, how[1], places.batch, places.moves)
        reach = Reach(jnp.asarray(work.potential.cutoff, dtype), jnp.asarray(work.skin, dtype))
        skins = np.full(len(places.occupied), np.inf, dtype)
        # Report the phase "compiling" for the first call only, which may compile.
        phase: contextlib.AbstractContextManager = group.monitor.during("compiling")
        while True:
            here = (places.batch, places.moves, neighbors, reach, run, skins)
            with phase:
                (run, due), skins, is_stale = self._turned(*how, *here)
            phase = contextlib.nullcontext()
            places.hand_over()  # runs on the host while the device works
            status, fmax, is_stale, due = jax.device_get(
                (run.status, run.point.fmax, is_stale, due)
            )
            places.record(due)
            group.monitor.report(places, status[places.occupied], fmax[places.occupied])
            if group.monitor.is_stopped():
                places.take_out(run, places.occupied)
                places.hand_over()
                return
            is_running = places.occupied & (status == Status.RUNNING)
            has_ended = places.occupied & ~is_running
            needs_list = is_running & is_stale
            # Wait until several places are free, since each refill costs a program call.
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
                # Without a list a system cannot be evaluated, so it ends here.
                failed = self.table.rebuild(places.here(run), needs_list)
                if failed.any():
                    status = np.where(failed, Status.NOT_FINITE, run.status).astype(np.int32)
                    run = eqx.tree_at(lambda r: r.status, run, status)
            n_rows = places.n_rows(is_running)
            if needs_list.any() or n_rows <= machine().worth_packing * n_packed:
                neighbors, n_packed = self.table.lists(is_running), n_rows
