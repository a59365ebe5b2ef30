"""Batches on a device: neighbour lists, and several turns between two host syncs."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax.engine.device import Device, on_device, restarted, started
from basinax.engine.slots import Slots
from basinax.engine.stream import AbstractBackend
from basinax.engine.turns import advance_block, noted, recorded
from basinax.minimize.run import Run
from basinax.minimize.status import Status
from basinax.neighbors.device_table import MOST_ATOMS, DeviceTable
from basinax.neighbors.edges import EdgeList
from basinax.neighbors.lists import Neighbors
from basinax.neighbors.prune import CutoffAndSkin
from basinax.neighbors.rooms import Rooms, largest
from basinax.neighbors.search import tasks_of_systems
from basinax.neighbors.table import NeighborTable
from basinax.numerics.static import Static, partition
from basinax.optimizers.protocol import Places
from basinax.potentials import AbstractPotential
from basinax.structures.machine import machine

_LOG = logging.getLogger("basinax")

_ROOMS = Rooms()
"""Rooms of all runs of the process, which share programs."""


class DeviceBackend(AbstractBackend):
    """One batch with its neighbour lists."""

    def __init__(
        self,
        slots: Slots,
        device: Device,
        potential: AbstractPotential,
        skin: float,
        is_short: bool,
    ):
        """Args: is_short: whether the group ends soon, so that compiling dominates."""
        self.slots, self.device, self.skin, self.is_short = slots, device, skin, is_short
        self.potential = on_device(potential, device)
        self.table = self._device_table() or self._host_table()
        # The phase is "compiling" during the first turns, which may compile.
        self.phase = lambda: slots.group.monitor.during("compiling")

    def _device_table(self) -> DeviceTable | None:
        """The table of lists made on the device; None if they suit it less than the host."""
        slots, potential = self.slots, self.potential
        is_small = slots.group.most_rows <= MOST_ATOMS
        if potential.lists is EdgeList or not (is_small and machine().candidates):
            return None
        table = DeviceTable(
            slots.batch,
            potential.cutoff,
            self.skin,
            most_rows=slots.group.most_rows,
            n_neighbors=slots.group.most_neighbors,
            follows_cells=slots.group.kind is not None,
            reverse=potential.lists is Neighbors,
        )
        failed = table.rebuild(slots.batch, slots.occupied)
        return None if failed is None or failed.any() else table

    def _host_table(self, listed: np.ndarray | None = None) -> NeighborTable:
        slots, potential = self.slots, self.potential
        return NeighborTable(
            slots.batch,
            potential.cutoff,
            self.skin,
            follows_cells=slots.group.kind is not None,
            lists=potential.lists,
            reverse=True,
            most_elements=slots.group.most_elements,
            is_fitted=False,
            listed=listed,
        )

    def start(self) -> None:
        slots = self.slots
        self._list(slots.occupied)
        self.how, dtype = self._how(), slots.batch.positions.dtype
        with self.phase():
            keep_best, how = slots.group.keep_best, self.how
            self.run: Run = started(how[0], keep_best, how[1], slots.batch, slots.moves)
        reach = self.potential.cutoff, self.skin
        self.reach = CutoffAndSkin(*(jnp.asarray(x, dtype) for x in reach))
        self.skins: Any = np.full(len(slots.occupied), np.inf, dtype)

    def advance(self) -> None:
        slots = self.slots
        here = slots.batch, slots.moves, self.neighbors, self.reach, self.run, self.skins
        with self.phase():
            (self.run, self.due), self.skins, self.is_stale = self._turned(*self.how, *here)
        self.phase = contextlib.nullcontext

    def _turned(self, *here: Any) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
        """Some turns: the run with any stored points, skins, and the mask of stale lists."""
        group, is_short = self.slots.group, self.is_short
        if group.recorder is not None:
            interval = 1 if group.points else group.recorder.interval
            return recorded[is_short](*here, np.asarray(interval, np.int32))
        if group.points:
            return noted[is_short](*here)
        run, *rest = advance_block[is_short](*here)
        return (run, {}), *rest

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        run = self.run
        self.status, fmax, self.is_stale, due = jax.device_get(
            (run.status, run.point.fmax, self.is_stale, self.due)
        )
        self.slots.record(due)
        return self.status, fmax

    def is_worth_refilling(self, has_ended: np.ndarray) -> bool:
        """Not before several slots are free, since each refill costs a program call."""
        return has_ended.sum() * machine().worth_refilling >= self.slots.occupied.sum()

    def take_out(self, which: np.ndarray) -> None:
        self.slots.take_out(self.run, which)

    def may_close_up(self) -> bool:
        """Whether all can get a list where they stand. One that cannot, as its positions are NaN or
        its cell has collapsed, ends in a later turn, with the list that it has."""
        slots = self.slots
        if not slots.occupied.any():
            return True
        here, members = slots.here(self.run), np.flatnonzero(slots.occupied)
        return bool(tasks_of_systems(here, members, self.potential.cutoff + self.skin).may_be.all())

    def restart(self, is_new: np.ndarray, places: Places | None) -> None:
        slots = self.slots
        if slots.structures[0].own:  # otherwise all structures have the same settings
            self.how = self._how()
        self.run = restarted(*self.how, slots.batch, slots.moves, self.run, is_new, places)
        if places is not None:
            self.table.begin(slots.batch)
            self.status, self.skins = (
                np.asarray(x)[places.systems] for x in (self.status, self.skins)
            )
            self.is_stale = np.ones_like(is_new)
        self.skins = np.where(is_new, np.inf, self.skins)

    def prepare(self, is_new: np.ndarray) -> None:
        slots = self.slots
        is_running = slots.occupied & (is_new | (self.status == Status.RUNNING.code))
        needs_list = is_running & (is_new | self.is_stale)
        if needs_list.any():
            # Without a list a system cannot be evaluated, so it ends here.
            failed = self._rebuild(needs_list, is_running)
            if failed.any():
                status = np.where(failed, Status.NOT_FINITE.code, self.run.status).astype(np.int32)
                self.run = eqx.tree_at(lambda run: run.status, self.run, status)
        if needs_list.any() or slots.n_rows(is_running) <= machine().worth_packing * self.n_packed:
            self._list(is_running)

    def _rebuild(self, needs_list: np.ndarray, is_running: np.ndarray) -> np.ndarray:
        """Make the lists that are needed; the mask of systems without one."""
        here = self.slots.here(self.run)
        failed = self.table.rebuild(here, needs_list)
        if failed is None:  # a system has become too large for lists made on the device
            self.table = self._host_table(np.zeros_like(needs_list))
            failed = self.table.rebuild(here, is_running) & needs_list
        return failed

    def _list(self, which: np.ndarray) -> None:
        """Pack the lists of these slots."""
        self.neighbors, self.n_packed = self.table.lists(which), self.slots.n_rows(which)

    def _how(self) -> tuple[Static, Any]:
        """The potential and the settings of the structures in the batch, on the device."""
        return partition((self.potential, on_device(self.slots.settings(), self.device)))


def share_room(backends: Sequence[DeviceBackend]) -> None:
    """Give batches of one shape the room of the largest lists, so that they share one program."""
    group, tables = backends[0].slots.group, [backend.table for backend in backends]
    how, _ = partition((backends[0].potential, group.settings))
    kept = group.kind, group.layout, group.keep_best, group.recorder is not None, group.points
    program = how, group.shape, group.dtype, kept
    needs, is_lean = largest([table.needs for table in tables]), tables[0].is_lean
    room = _ROOMS.of(program, needs, group.shape[0], is_lean=is_lean)
    for table in tables:
        table.fit(room)
    _LOG.info(
        "batches: %d, of %d rows and %d structures at most, with room for %d neighbours",
        *(len(tables), *group.shape, room.slots),
    )
