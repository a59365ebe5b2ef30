"""JAX's switches that a `with` sets for one thread, held for a run and for its threads.

A switch that already has the right value is not set, since JAX compiles anew for set switches.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

_GUARDS = {
    "jax_transfer_guard_host_to_device": jax.transfer_guard_host_to_device,
    "jax_transfer_guard_device_to_device": jax.transfer_guard_device_to_device,
    "jax_transfer_guard_device_to_host": jax.transfer_guard_device_to_host,
}
_MANAGERS = _GUARDS | {
    "jax_enable_x64": jax.enable_x64,
    "jax_disable_jit": jax.disable_jit,
    "jax_debug_nans": jax.debug_nans,
    "jax_debug_infs": jax.debug_infs,
    "jax_check_tracer_leaks": jax.check_tracer_leaks,
    "jax_log_compiles": jax.log_compiles,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_device": jax.default_device,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_enable_custom_prng": jax.enable_custom_prng,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}


def default_platform() -> str:
    """The platform of this thread's default device, such as "cpu" or "gpu"."""
    device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def switches() -> dict[str, Any]:
    """The values of the switches in this thread, by name."""
    return {name: getattr(jax.config, name) for name in _MANAGERS}


@contextlib.contextmanager
def config_context(wanted: dict[str, Any]) -> Iterator[None]:
    """A context with these switches, such as the switches of another thread."""
    with contextlib.ExitStack() as stack:
        for name, value in wanted.items():
            if getattr(jax.config, name) != value:
                stack.enter_context(_MANAGERS[name](value))
        yield


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """A context with JAX's usual promotion of dtypes and ranks, which packages rely on."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@contextlib.contextmanager
def own_switches() -> Iterator[None]:
    """A context for a run, which allows transfers and infinite values.

    Inf stands for no limit, and for forces that are not finite; a system with infinite energies or
    forces ends with a status instead.
    """
    set_guards = [name for name in _GUARDS if getattr(jax.config, name) is not None]
    with config_context({"jax_debug_infs": False} | dict.fromkeys(set_guards, "allow")):
        yield
