"""Batches on a device: neighbour lists, and several turns between two host syncs."""

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax._jax.fixed import Fixed, split
from basinax._loop.run import Run
from basinax._loop.status import Status
from basinax.atoms._machine import machine
from basinax.atoms._neighbors.narrowing import Reach
from basinax.atoms._neighbors.rooms import Room, Rooms, largest
from basinax.atoms._neighbors.table import NeighborTable
from basinax.atoms._streams.device import Device, on_device, restarted, started
from basinax.atoms._streams.slots import Group, Slots
from basinax.atoms._streams.stream import AbstractBackend, AbstractBackends
from basinax.atoms._streams.turns import advance_block, noted, recorded
from basinax.atoms.potentials import AbstractPotential

_LOG = logging.getLogger("basinax")

_ROOMS = Rooms()
"""Rooms of all runs of the process, which share programs."""


@dataclasses.dataclass(frozen=True)
class OnDevice(AbstractBackends):
    """Batches of a potential that JAX evaluates."""

    potential: AbstractPotential
    skin: float
    is_short: bool
    """Whether the group ends soon, so that compiling dominates."""

    def make(self, slots: Slots, device: Device) -> "DeviceBackend":
        return DeviceBackend(self, slots, device)

    def equip(self, backends: "Sequence[DeviceBackend]") -> None:
        """Give the batches the room of the largest lists, so that they share one program."""
        tables = [backend.table for backend in backends]
        group, needs = backends[0].slots.group, largest([table.needs for table in tables])
        room = self._room(group, needs, is_lean=tables[0].is_lean)
        for table in tables:
            table.fit(room)
        _LOG.info(
            "batches: %d, of %d rows and %d structures at most, with room for %d neighbours",
            *(len(tables), *group.shape, room.slots),
        )

    def _room(self, group: Group, needs: Room, *, is_lean: bool) -> Room:
        """The room of a batch's table, shared by batches that run the same program."""
        how, _ = split((self.potential, group.settings))
        kept = group.kind, group.layout, group.keep_best, group.recorder is not None, group.points
        program = how, group.shape, group.dtype, kept
        return _ROOMS.of(program, needs, group.shape[0], is_lean=is_lean)


class DeviceBackend(AbstractBackend):
    """One batch with its neighbour lists."""

    def __init__(self, of: OnDevice, slots: Slots, device: Device):
        self.of, self.slots, self.device = of, slots, device
        self.potential = on_device(of.potential, device)
        self.table = NeighborTable(
            slots.batch,
            of.potential.cutoff,
            of.skin,
            follows_cells=slots.group.kind is not None,
            lists=of.potential.lists,
            reverse=True,
            most_elements=slots.group.most_elements,
            is_fitted=False,
        )
        # The phase is "compiling" during the first turns, which may compile.
        self.phase = lambda: slots.group.monitor.during("compiling")

    def start(self) -> None:
        slots = self.slots
        self._list(slots.occupied)
        self.how, dtype = self._how(), slots.batch.positions.dtype
        with self.phase():
            keep_best, how = slots.group.keep_best, self.how
            self.run: Run = started(how[0], keep_best, how[1], slots.batch, slots.moves)
        reach = self.of.potential.cutoff, self.of.skin
        self.reach = Reach(*(jnp.asarray(x, dtype) for x in reach))
        self.skins: Any = np.full(len(slots.occupied), np.inf, dtype)

    def advance(self) -> None:
        slots = self.slots
        here = slots.batch, slots.moves, self.neighbors, self.reach, self.run, self.skins
        with self.phase():
            (self.run, self.due), self.skins, self.is_stale = self._turned(*self.how, *here)
        self.phase = contextlib.nullcontext

    def _turned(self, *here: Any) -> tuple[tuple[Run, dict[str, Any]], Any, Any]:
        """Some turns: the run with any stored points, skins, and the mask of stale lists."""
        group, is_short = self.slots.group, self.of.is_short
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

    def restart(self, is_new: np.ndarray) -> None:
        slots, self.how = self.slots, self._how()
        self.run = restarted(*self.how, slots.batch, slots.moves, self.run, is_new)
        self.skins = np.where(is_new, np.inf, self.skins)

    def prepare(self, is_new: np.ndarray) -> None:
        slots = self.slots
        is_running = slots.occupied & (is_new | (self.status == Status.RUNNING))
        needs_list = is_running & (is_new | self.is_stale)
        if needs_list.any():
            # Without a list a system cannot be evaluated, so it ends here.
            failed = self.table.rebuild(slots.here(self.run), needs_list)
            if failed.any():
                status = np.where(failed, Status.NOT_FINITE, self.run.status).astype(np.int32)
                self.run = eqx.tree_at(lambda run: run.status, self.run, status)
        if needs_list.any() or slots.n_rows(is_running) <= machine().worth_packing * self.n_packed:
            self._list(is_running)

    def _list(self, which: np.ndarray) -> None:
        """Pack the lists of these slots."""
        self.neighbors, self.n_packed = self.table.lists(which), self.slots.n_rows(which)

    def _how(self) -> tuple[Fixed, Any]:
        """The potential and the settings of the structures in the batch, on the device."""
        return split((self.potential, on_device(self.slots.settings(), self.device)))
