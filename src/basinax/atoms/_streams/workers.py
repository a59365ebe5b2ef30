"""Threads that relax groups of structures from one queue: one per core, or one per device."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax

from basinax._jax.compilations import Compilations
from basinax._jax.switches import switched, switches
from basinax._settings import at_least, require_whole, shown
from basinax.atoms._streams import groups
from basinax.atoms._streams.device import Device
from basinax.atoms._streams.places import Group
from basinax.atoms._streams.queue import Monitor
from basinax.atoms._streams.stream import Stream, Work

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
            raise ValueError(f"devices must be at most {len(found)}, as many as JAX has here")
        return _lanes(found[:devices])
    chosen = list(devices) if isinstance(devices, Sequence) else [devices]
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise TypeError(f"devices must be some of JAX, or their number, got {shown(devices)}")
    if len(set(chosen)) < len(chosen) or len({device.platform for device in chosen}) > 1:
        raise ValueError(f"devices must differ, and be of one platform, got {shown(devices)}")
    return _lanes(chosen)


def _lanes(devices: Sequence[Device]) -> list[Device]:
    return list(devices) if len(devices) > 1 else list(devices) * groups.n_cores_used()


def on_lane(wanted: dict[str, Any], lane: Device) -> dict[str, Any]:
    """The JAX switches of a thread: `wanted`, with the thread's device as default."""
    return wanted if lane is None else wanted | {"jax_default_device": lane}


def work_off(
    works: list[Work], monitor: Monitor, compilations: Compilations, lanes: list[Device]
) -> None:
    """Relax all groups in threads; each thread has one batch, which keeps one core busy on CPU.

    If one thread fails, or the caller is interrupted, the others end at their next host sync. After
    an interrupt the caller does not wait for compilers.
    """
    wanted = switches()

    def drain(lane: Device) -> None:
        with switched(on_lane(wanted, lane)), compilations.counted():
            for work in works:
                work.drain(lane)

    pool, waits = ThreadPoolExecutor(len(lanes)), True
    try:
        with monitor.during("listing"):
            begin(works, monitor, pool, lanes, wanted)
        for thread in as_completed([pool.submit(drain, lane) for lane in lanes]):
            thread.result()
    except BaseException as error:
        monitor.stop()
        # A compiler may run for minutes and cannot be interrupted.
        waits = isinstance(error, Exception) or not monitor.is_compiling()
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def begin(
    works: list[Work],
    monitor: Monitor,
    pool: ThreadPoolExecutor,
    lanes: list[Device],
    wanted: dict[str, Any],
) -> None:
    """Make the first batches of all groups, with lists, before any batch runs.

    Thus shapes do not depend on the order of threads.

    Args:
        wanted: JAX's switches for the threads.
    """

    def make(
        work: Work, group: Group, members: list[int], lane: Device, is_first: bool
    ) -> Stream | None:
        with switched(on_lane(wanted, lane)):
            is_wanted = is_first or not monitor.is_stopped()
            return work.make(group, members, lane) if is_wanted else None

    futures: list[list[Any]] = [[] for _ in works]
    for work, of_work in zip(works, futures, strict=True):
        group = work.group
        fills = filter(None, [group.fill() for _ in lanes])
        for members, lane in zip(fills, lanes, strict=False):
            is_first = not futures[0]
            of_work.append(pool.submit(make, work, group, members, lane, is_first))
    for work, streams in zip(works, futures, strict=True):
        made = [made for stream in streams if (made := stream.result()) is not None]
        if made:  # empty if the run is stopped
            work.begin(made)
