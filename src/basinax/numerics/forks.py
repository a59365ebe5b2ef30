"""A check for forks of a process that had used JAX: such a fork lacks JAX's threads.

A call that needs such a thread waits forever. A fork before the first use of JAX is harmless.
"""

import os

import jax

_PROBE = "jax_num_cpu_devices"
"""A setting that JAX refuses to change after first use, as documented."""


def check_process() -> None:
    """Raise RuntimeError in a process that was forked after JAX had been used."""
    if _Fork.is_broken:
        raise RuntimeError(
            "this process was forked from one that had used JAX, and would wait forever for the"
            ' threads that a fork leaves behind: start processes with "spawn", such as'
            ' multiprocessing.get_context("spawn").Pool(), or fork before JAX is used'
        )


class _Fork:
    """Whether the parent had used JAX at the last fork, and whether this process may use JAX."""

    follows_use = False
    is_broken = False


def _is_jax_used() -> bool:
    known = getattr(jax.config, _PROBE, None)
    if known is None:
        return False
    try:
        jax.config.update(_PROBE, known + 1)
    except RuntimeError:
        return True
    jax.config.update(_PROBE, known)
    return False


def _before() -> None:
    _Fork.follows_use = _is_jax_used()


def _in_child() -> None:
    _Fork.is_broken = _Fork.follows_use


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
