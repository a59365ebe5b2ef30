"""How XLA compiles programs of this package: for speed, never for their bits.

Options are those of single programs; no setting of the process is touched. An option that the XLA
at hand does not have is left out. Each trick is a function here, and has a switch; what each is
worth is measured by benchmarks/ablation.py.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Shaped

SWITCHES: dict[str, bool] = dict.fromkeys(
    ("stored", "read_twice", "behind", "by_bits", "within", "one_kernel", "options"), True
)
"""Which tricks are used in programs that are traced from now on."""


@contextlib.contextmanager
def without(trick: str) -> Iterator[None]:
    """Programs that are traced within do without a trick; `jax.clear_caches` drops older ones."""
    SWITCHES[trick] = False
    try:
        yield
    finally:
        SWITCHES[trick] = True


def stored(x: Shaped[Array, "..."], signs: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`x / signs`, where these are 1 or -1.

    A quotient that several read is stored. Cheaper values are computed again for every reader, a
    sum with all its terms.
    """
    return x / signs if SWITCHES["stored"] else jnp.where(signs == 1, x, -x)


def read_twice(
    always: Bool[Array, "..."], x: Shaped[Array, "..."], again: Shaped[Array, "..."]
) -> Shaped[Array, "..."]:
    """`x`, which `again` reads in another way.

    Values that a loop would compute more than fifteen times for one entry are stored. Others become
    part of the loop, which is then not vectorised. Nothing depends on the choice between two
    readings, and LLVM drops one of them.
    """
    return jnp.where(always, x, again) if SWITCHES["read_twice"] else x


def behind(
    x: Shaped[Array, "..."], first: Shaped[Array, "..."], never: Bool[Array, "..."]
) -> Shaped[Array, "..."]:
    """`x`, once `first` is known.

    An array that is read before it is written is changed in place; else it is copied.

    Args:
        never: false, which no compiler can tell.
    """
    return jnp.where(never, first.astype(x.dtype), x) if SWITCHES["behind"] else x


def within(indices: Int32[Array, "..."], n: int, most: int) -> Int32[Array, "..."]:
    """Indices of a table of n entries, without bits from that of `most`, a power of two, on.

    Indices are held within bounds whatever is promised, by four instructions of eight on the CPU,
    unless they have no more bits than the table needs, a power of two.
    """
    is_power = n > 0 and not n & (n - 1)
    if not SWITCHES["within"]:
        return indices & (most - 1)
    return indices & (n - 1) if is_power else indices


Options = dict[str, Any]

SHORT: Options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""For what does not run long: two thirds of the seconds to compile, a step a twentieth longer. Of
arrays over rows, functions of XLA have the bits that they have without these, but for `tan`, `cbrt`
and `atan`, which `elementary` makes by other means."""

ONCE: Options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""For what runs once, and takes no function of XLA: a step takes ten times as long, and `exp`,
`tanh` and `log1p` have other bits."""


ON_ONE_CORE: Options = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}
"""For a batch that has one core: XLA would give a loop that reads a large table to two, which takes
longer than the loop. A step of 300 metals takes 0.84 of the time."""


REPEATABLE: Options = {"xla_gpu_deterministic_ops": True}
"""For functions that others wrote: a GPU would add numbers as its threads come to them, and choose
kernels by how long each took, so that every call has other last digits."""


def jitted(function: Callable[..., Any], options: Options, **how: Any) -> Callable[..., Any]:
    """`function`, jitted with those of the options that XLA has.

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
        if len(programs) == 1:  # else another thread has found the options meanwhile
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
