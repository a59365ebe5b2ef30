"""The loop of a run: structures stream through the slots of batches, turn after turn.

Waiting structures take free slots, and running ones close up for others. The times of host syncs,
the neighbours in a batch and the times of list rebuilds are chosen for speed alone: no bit of a
result depends on them.
"""

import abc
import contextlib
import dataclasses
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from basinax.engine.device import Device
from basinax.engine.sizes import smaller, tell_of_smaller
from basinax.engine.slots import Ended, Group, Slots
from basinax.minimize.status import Status
from basinax.numerics.oom import is_out_of_memory
from basinax.optimizers.protocol import Places
from basinax.structures.read import Structure


class AbstractBackend(abc.ABC):
    """What carries the structures of one batch from turn to turn: a device, or the host."""

    slots: Slots

    @abc.abstractmethod
    def start(self) -> None:
        """Prepare the first turn of all structures."""

    @abc.abstractmethod
    def advance(self) -> None:
        """Begin one or more turns, without waiting for their end."""

    @abc.abstractmethod
    def look(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the end of these turns, record their points, and return status and fmax."""

    @abc.abstractmethod
    def is_worth_refilling(self, has_ended: np.ndarray) -> bool:
        """Whether to take out these structures and to fill free slots."""

    @abc.abstractmethod
    def take_out(self, which: np.ndarray) -> None:
        """Take structures out of these slots, where they stand."""

    def may_close_up(self) -> bool:
        """Whether the running structures may go on in other slots."""
        return True

    @abc.abstractmethod
    def restart(self, is_new: np.ndarray, places: Places | None) -> None:
        """Begin the structures that have filled these slots.

        Args:
            places: where the others stood before; None if they stay.
        """

    @abc.abstractmethod
    def prepare(self, is_new: np.ndarray) -> None:
        """Prepare the next turns.

        Args:
            is_new: slots that have been filled since the last turn.
        """

    def give_up(self) -> None:
        """End the turns of all structures, which begin again in another batch."""
        self.slots.group.monitor.forget(self.slots)


MakeBackend = Callable[[Slots, Device], Any]
"""A function that makes the backend of a batch."""


class Stream:
    """One batch, from its first structures to its last."""

    def __init__(
        self, group: Group, structures: list[Structure], make: MakeBackend, device: Device
    ):
        """Args: device: the device of the batch, and the default of its thread; None for JAX's."""
        self.group, self.device = group, device
        self.slots = Slots(group, structures)
        self.backend: AbstractBackend = make(self.slots, device)

    def run(self) -> Iterator[Ended]:
        """Relax the structures, and those that take their slots; yields them as they end."""
        slots, backend, monitor = self.slots, self.backend, self.group.monitor
        nobody = np.zeros_like(slots.occupied)
        backend.start()
        while True:
            backend.advance()
            yield slots.emit()  # while the backend works
            status, fmax = backend.look()
            monitor.report(slots, status[slots.occupied], fmax[slots.occupied])
            is_over, is_new, places = monitor.is_stopped(), nobody, None
            has_ended = slots.occupied & (is_over | (status != Status.RUNNING.code))
            if is_over or backend.is_worth_refilling(has_ended):
                backend.take_out(has_ended)
                if not is_over:
                    is_new, places = slots.refill(backend.may_close_up)
                if not slots.occupied.any():
                    yield slots.emit()
                    monitor.forget(slots)
                    return
                if is_new.any():
                    backend.restart(is_new, places)
            backend.prepare(is_new)


@dataclasses.dataclass
class BatchGroup:
    """A group and its batches, which run one program."""

    group: Group
    """The group, with the current shape of new batches."""
    make_backend: MakeBackend
    equip: Callable[[Sequence[Any]], None] = lambda backends: None
    """Prepares backends of batches of one shape, before the first of them runs."""
    begun: "dict[Device, deque[Stream]]" = dataclasses.field(
        default_factory=lambda: defaultdict(deque)
    )
    """Batches that wait for a thread of their device."""
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Guards `group`: if several threads run out of memory at once, one halves the batches."""

    def make(self, group: Group, structures: list[Structure], device: Device) -> Stream | None:
        """A batch of these structures; None if memory ran out and the structures wait again."""
        try:
            return Stream(group, structures, self.make_backend, device)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(group, structures, error)
            return None

    def begin(self, streams: list[Stream]) -> None:
        """Let these batches wait for a thread; those of one shape share one program."""
        for shape in {stream.group.shape for stream in streams}:
            alike = [stream for stream in streams if stream.group.shape == shape]
            self.equip([stream.backend for stream in alike])
            for stream in alike:
                self.begun[stream.device].append(stream)

    def is_waiting(self) -> bool:
        """Whether a structure waits for a thread that begins another batch."""
        return self.group.queue.n_rows > 0

    def drain(self, device: Device = None) -> Iterator[Ended]:
        """Relax until no structure waits, or until the run is stopped; yields what has ended."""
        while not self.group.monitor.is_stopped() and (stream := self._next(device)):
            try:
                yield from stream.run()
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                slots = stream.slots
                yield slots.emit()
                stream.backend.give_up()
                self._halve(stream.group, [*slots.in_slots(slots.occupied).values()], error)
            del stream  # frees its arrays before another batch is made

    def _next(self, device: Device) -> Stream | None:
        while True:
            with contextlib.suppress(IndexError):
                return self.begun[device].popleft()
            group = self.group
            structures = group.fill()
            if not structures:
                return None
            with group.monitor.during("listing"):
                stream = self.make(group, structures, device)
            if stream is not None:
                self.begin([stream])

    def _halve(self, group: Group, structures: list[Structure], error: BaseException) -> None:
        """After a lack of memory, structures wait again for batches half as large.

        They restart from their input, so the bits are the same.
        """
        less = smaller(group, len(structures), error)
        group.queue.put_back(structures)
        with self.lock:
            is_first = self.group.shape == group.shape
            self.group = less if is_first else self.group
        if is_first:
            tell_of_smaller(group, less, len(structures))
