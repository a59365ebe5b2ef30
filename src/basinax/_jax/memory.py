"""Memory of devices and of this process."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from basinax._jax.switches import switches

UNKNOWN = 8 << 30
"""Bytes to assume if the system reports none."""

_GROUPS = Path("/sys/fs/cgroup")


def memory_of(device: Any = None) -> int:
    """Bytes of a device, or of JAX's default device, as JAX reports them; else of the host."""
    if device is None:
        device = switches()["jax_default_device"] or jax.local_devices()[0]
    stats = None
    with contextlib.suppress(jax.errors.JaxRuntimeError, AttributeError):  # a name, or no figures
        stats = device.memory_stats()
    return int((stats or {}).get("bytes_limit") or host_memory())


def host_memory() -> int:
    """Bytes of the machine, or of the container or job of this process."""
    found = [_of_machine(), *_of_groups()]
    return min(found)


def _of_machine() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN


def _of_groups() -> list[int]:
    """Limits of the Linux control groups of this process."""
    limits, groups = [], ["/"]
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        groups += [line.split(":", 2)[2] for line in lines if line.startswith("0::")]
    for group in groups:
        folder = _GROUPS / group.lstrip("/")
        for here in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limits.append(int((here / "memory.max").read_text()))
    return limits
