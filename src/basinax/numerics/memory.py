"""Memory of devices and of this process."""

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import jax

from basinax.numerics.switches import switches

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
    return min(_limits(), default=UNKNOWN)


def require_memory(n_bytes: float, what: str) -> None:
    """Raise ValueError if something needs more memory than the machine is known to have.

    The allocation would otherwise end the process, long after the request.
    """
    available = min(_limits(), default=n_bytes)
    if n_bytes > available:
        raise ValueError(
            f"{what} needs {n_bytes / 2**30:.3g} GiB of memory, and the machine has"
            f" {available / 2**30:.3g} GiB"
        )


@functools.cache
def _limits() -> tuple[int, ...]:
    """Bytes of the machine and limits of the Linux control groups of this process."""
    limits, groups = [], ["/"]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        groups += [line.split(":", 2)[2] for line in lines if line.startswith("0::")]
    for group in groups:
        folder = _GROUPS / group.lstrip("/")
        for here in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                limits.append(int((here / "memory.max").read_text()))
    return tuple(limits)
