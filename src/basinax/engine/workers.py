"""Threads that relax groups of structures from one queue: one per core, or one per device."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import jax

from basinax.engine import groups as _groups
from basinax.engine.device import Device, on_lane
from basinax.engine.queue import Monitor
from basinax.engine.slots import Ended
from basinax.engine.stream import BatchGroup, Stream
from basinax.numerics.compilations import counter_of_thread
from basinax.numerics.settings import at_least, require_whole, shown
from basinax.numerics.switches import config_context, switches
from basinax.structures.read import Structure

Devices = Sequence[Device] | int | None


def lanes_of(devices: Devices) -> list[Device]:
    """The threads of a run: one for each device, or, for a single CPU, one for each core.

    Args:
        devices: devices, or a number of `jax.local_devices()`. None stands for all local devices if
            they are no CPUs and no default device is set, otherwise for the default device.

    Raises:
        TypeError, ValueError: `devices` are no devices, too many, or of several kinds.
    """
    if devices is None:
        is_chosen = switches()["jax_default_device"] is not None
        found = [] if is_chosen or jax.default_backend() == "cpu" else jax.local_devices()
        return _lanes(found if len(found) > 1 else [None])
    if isinstance(devices, int):
        require_whole(devices, "devices", at_least(1))
        found = jax.local_devices()
        if devices > len(found):
            raise ValueError(
                f"devices must be at most {len(found)}, as many as JAX has here; got {devices}"
            )
        return _lanes(found[:devices])
    chosen = list(devices) if isinstance(devices, Sequence) else [devices]
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise TypeError(f"devices must be some of JAX, or their number, got {shown(devices)}")
    if len(set(chosen)) < len(chosen) or len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must differ, and be of one platform, got {shown(devices)}")
    return _lanes(chosen)


def _lanes(devices: Sequence[Device]) -> list[Device]:
    if len(devices) > 1:
        return list(devices)
    with config_context(on_lane({}, devices[0])):
        return list(devices) * _groups.n_cores_used()


def in_threads(
    groups: list[BatchGroup], monitor: Monitor, lanes: list[Device], wanted: dict[str, Any]
) -> Generator[Ended]:
    """Relax all groups in threads; each thread has one batch, which keeps one core busy on CPU.

    If one thread fails, or the caller is interrupted or leaves, the others end at their next host
    sync. After an interrupt the caller does not wait for compilers.

    Args:
        wanted: JAX's switches for the threads.

    Yields:
        Structures that have ended since the last yield. In the meantime further ones may be added
        to the queues.
    """
    found: SimpleQueue[Any] = SimpleQueue()
    """Structures that have ended, and the thread's device with its error at its end."""
    compilations = counter_of_thread()

    def drain(lane: Device) -> None:
        error = None
        try:
            with config_context(on_lane(wanted, lane)), compilations.counted():
                for group in groups:
                    for ended in filter(None, group.drain(lane)):
                        found.put(ended)
        except BaseException as raised:
            error = raised
        found.put((lane, error))

    pool, free, waits = ThreadPoolExecutor(len(lanes)), list(lanes), True
    try:
        with monitor.during("listing"):
            begin(groups, monitor, pool, lanes, wanted)
        is_waiting = True
        while is_waiting or len(free) < len(lanes):
            while is_waiting and free:
                pool.submit(drain, free.pop())
            ended: Ended = {}
            for one in all_of(found):
                if isinstance(one, dict):
                    ended |= one
                    continue
                lane, error = one
                if error is not None:
                    raise error
                free.append(lane)
            if ended:
                yield ended
            is_waiting = not monitor.is_stopped() and any(group.is_waiting() for group in groups)
    except BaseException as error:
        monitor.stop()
        # A compiler may run for minutes and cannot be interrupted.
        waits = isinstance(error, Exception | GeneratorExit) or not monitor.is_compiling()
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def all_of(found: "SimpleQueue[Any]") -> Iterator[Any]:
    """All that waits in the queue; waits for the first."""
    yield found.get()
    while not found.empty():
        yield found.get()


def begin(
    groups: list[BatchGroup],
    monitor: Monitor,
    pool: ThreadPoolExecutor,
    lanes: list[Device],
    wanted: dict[str, Any],
) -> None:
    """Make the first batches of all groups, with lists, before any batch runs.

    Thus shapes do not depend on the order of threads.
    """

    def make(group: BatchGroup, structures: list[Structure], lane: Device) -> Stream | None:
        is_wanted = group is groups[0] or not monitor.is_stopped()
        with config_context(on_lane(wanted, lane)):
            return group.make(group.group, structures, lane) if is_wanted else None

    futures: list[list[Any]] = []
    for group in groups:
        fills = filter(None, [group.group.fill() for _ in lanes])
        pairs = zip(fills, lanes, strict=False)
        futures.append([pool.submit(make, group, structures, lane) for structures, lane in pairs])
    for group, streams in zip(groups, futures, strict=True):
        group.begin([made for stream in streams if (made := stream.result()) is not None])
