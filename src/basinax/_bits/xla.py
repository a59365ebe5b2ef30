"""How XLA compiles programs of this package. Nothing here changes a bit of any result.

Options belong to single programs; no setting of the process is touched, and options that the
installed XLA lacks are left out. Each trick is a function behind a switch; benchmarks/ablation.py
measures the gain of each.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Shaped

from basinax._bits.rounding import exact

SWITCHES: dict[str, bool] = dict.fromkeys(
    ("stored", "behind", "by_bits", "within", "one_kernel", "options"), True
)
"""The tricks that programs traced from now on use."""


@contextlib.contextmanager
def without(trick: str) -> Iterator[None]:
    """Leave one trick out of programs traced inside; `jax.clear_caches` drops older programs."""
    SWITCHES[trick] = False
    try:
        yield
    finally:
        SWITCHES[trick] = True


def stored(x: Shaped[Array, "..."], signs: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`x / signs`, for signs of 1 or -1, so that XLA stores the result.

    XLA recomputes a cheap value for every reader, a sum with all its terms, but stores a quotient
    that several operations read. Dividing by 1 or -1 is exact.
    """
    return exact(x / signs, "1 or -1") if SWITCHES["stored"] else jnp.where(signs == 1, x, -x)


def behind(
    x: Shaped[Array, "..."], first: Shaped[Array, "..."], never: Bool[Array, "..."]
) -> Shaped[Array, "..."]:
    """`x`, after `first` was read.

    XLA updates an array in place if every read precedes the write, and copies the array otherwise.
    The choice makes the write depend on the read; its result is always `x`.

    Args:
        never: false everywhere, by a comparison that no compiler can fold.
    """
    return jnp.where(never, first.astype(x.dtype), x) if SWITCHES["behind"] else x


def within(indices: Int32[Array, "..."], n: int, most: int) -> Int32[Array, "..."]:
    """Indices into a table of n entries, masked so that LLVM can prove their bound.

    XLA clamps gather indices even where the caller promises bounds: four of eight instructions per
    entry on the CPU. For n a power of two, a mask proves the bound and LLVM drops the clamp.
    Indices within bounds keep their values.

    Args:
        most: a power of two; without the trick, the bits from this one on are removed.
    """
    is_power = n > 0 and not n & (n - 1)
    if not SWITCHES["within"]:
        return indices & (most - 1)
    return indices & (n - 1) if is_power else indices


Options = dict[str, Any]

SHORT: Options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""For programs that run briefly: compiling takes 2/3 of the time, a step 1/20 more. XLA's functions
keep their bits on arrays over rows, except `tan`, `cbrt` and `atan`, which `elementary`
replaces."""

ONCE: Options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""For programs that run once and call none of XLA's elementary functions: a step takes ten times as
long, and `exp`, `tanh` and `log1p` have other bits."""


ON_ONE_CORE: Options = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
"""For batches that own one core. XLA would split a loop that reads a large table between two
threads, which costs more than the loop; a step of 300 metals takes 0.84 of the time without the
split."""


REPEATABLE: Options = {"xla_gpu_deterministic_ops": True}
"""For functions that others wrote. By default a GPU adds in the order in which threads arrive and
picks kernels by their timing, so the last digits differ from call to call."""


def jitted(function: Callable[..., Any], options: Options, **how: Any) -> Callable[..., Any]:
    """`function`, jitted with the options that the installed XLA has.

    Args:
        how: further arguments of `jax.jit`.
    """
    programs = [jax.jit(function, compiler_options=options, **how)]
    plain = jax.jit(function, **how)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not SWITCHES["options"]:
            return plain(*args)
        program = programs[-1]
        try:
            return program(*args)
        except jax.errors.JaxRuntimeError:
            known = {name: value for name, value in options.items() if _is_known(name, value)}
            if program is not programs[0] or len(known) == len(options):
                raise
        if len(programs) == 1:  # otherwise another thread has appended a program meanwhile
            programs.append(jax.jit(function, compiler_options=known, **how))
        return programs[-1](*args)

    return call


@functools.cache
def _is_known(name: str, value: Any) -> bool:
    """Whether a program can be compiled with this option."""
    nothing = jax.jit(lambda x: x).lower(np.float32(0.0))
    try:
        nothing.compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True
