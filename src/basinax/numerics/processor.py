"""This machine's processor: its cores, and its kind, as far as it decides the bits of numbers."""

import functools
import os
import platform
from pathlib import Path

_KIND = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
"""The lines of Linux's table by which BLAS chooses its kernels; others change with the kernel."""

_SETS = ("avx", "avx2", "fma", "avx512f", "amx_tile", "sve")
"""Sets of instructions for which kernels are written."""


def n_cores() -> int:
    """The number of cores for this process, which a cluster job or a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def instructions() -> str:
    """The architecture, with the fused multiply-add, on which bits of XLA's programs depend.

    No bit depends on the width of the vectors.
    """
    return ", ".join([platform.machine(), *(["fma"] if "fma" in _flags() else [])])


@functools.cache
def kind_of_processor() -> str:
    """The kind of processor for which BLAS has a kernel, with its sets of instructions."""
    lines = described()
    kind = [f"{name} {lines[name]}" for name in _KIND if name in lines]
    sets = [name for name in _SETS if name in _flags()]
    return ", ".join([platform.machine(), *(kind or [platform.processor()]), *sets])


def _flags() -> list[str]:
    lines = described()
    return (lines.get("flags") or lines.get("Features") or "").split()


@functools.cache
def described() -> dict[str, str]:
    """The first processor in Linux's table; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
