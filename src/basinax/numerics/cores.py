"""The cores that this process may use."""

import os


def n_cores() -> int:
    """The number of cores for this process, which a cluster job or a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
