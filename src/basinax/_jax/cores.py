"""The cores that this process may use."""

import os


def n_cores() -> int:
    """The cores that this process may use; a job of a cluster or a container may limit them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
