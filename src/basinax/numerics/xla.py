"""How XLA compiles programs of this package, all of which `jitted` makes.

Options belong to single programs; no setting of the process is touched, and options that the
installed XLA lacks are left out. Each trick is a function behind a switch, which changes no bit of
any result; benchmarks/ablation.py measures the gain of each.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_context
from jax.extend import core as jax_core
from jaxtyping import Array, Bool, Int32, Shaped

from basinax.numerics.programs import Programs
from basinax.numerics.rounding import exact
from basinax.numerics.switches import default_platform

SWITCHES: dict[str, bool] = dict.fromkeys(
    ("materialise", "after", "by_bits", "bounded_index", "one_kernel", "options", "branches"), True
)
"""The tricks that programs traced from now on use."""


@contextlib.contextmanager
def without(trick: str) -> Iterator[None]:
    """Leave one trick out of programs traced inside.

    `jitted` traces anew; `jax.clear_caches` drops what `jax.jit` by itself has traced before.
    """
    SWITCHES[trick] = False
    try:
        yield
    finally:
        SWITCHES[trick] = True


def materialise(x: Shaped[Array, "..."], signs: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """`x / signs`, for signs of 1 or -1, so that XLA stores the result.

    XLA recomputes a cheap value for every reader, a sum with all its terms, but stores a quotient
    that several operations read. Dividing by 1 or -1 is exact.
    """
    return exact(x / signs, "1 or -1") if SWITCHES["materialise"] else jnp.where(signs == 1, x, -x)


def after(
    x: Shaped[Array, "..."], first: Shaped[Array, "..."], never: Bool[Array, "..."]
) -> Shaped[Array, "..."]:
    """`x`, after `first` was read.

    XLA updates an array in place if every read precedes the write, and copies the array otherwise.
    The choice makes the write depend on the read; its result is always `x`.

    Args:
        never: false everywhere, by a comparison that no compiler can fold.
    """
    return jnp.where(never, first.astype(x.dtype), x) if SWITCHES["after"] else x


def bounded_index(indices: Int32[Array, "..."], n: int, most: int) -> Int32[Array, "..."]:
    """Indices into a table of n entries, masked so that LLVM can prove their bound.

    XLA clamps gather indices even where the caller promises bounds: four of eight instructions per
    entry on the CPU. For n a power of two, a mask proves the bound and LLVM drops the clamp.
    Indices within bounds keep their values.

    Args:
        most: a power of two; without the trick, the bits from this one on are removed.
    """
    is_power = n > 0 and not n & (n - 1)
    if not SWITCHES["bounded_index"]:
        return indices & (most - 1)
    return indices & (n - 1) if is_power else indices


def has_cheap_branches() -> bool:
    """Whether a program may ask often what to do next: on a CPU.

    A GPU waits for the host at each choice between branches, and at each turn of a loop of a length
    that is not known when it is compiled: some 30 µs, in which it starts ten kernels.
    """
    return SWITCHES["branches"] and default_platform() == "cpu"


Options = dict[str, Any]

ALWAYS: Options = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""For every program. The fusion that this turns off computes wrong numbers with jaxlib 0.10.2 on
CPUs, where a matrix times a vector under `vmap` is summed in 16,385 to 65,536 rows
(https://github.com/jax-ml/jax/issues/39103), and ends the process with 0.11.0 (#39257)."""

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


def jitted(
    function: Callable[..., Any],
    options: Options | None = None,
    *,
    static_argnums: int | tuple[int, ...] = (),
    is_kept: bool = False,
) -> Callable[..., Any]:
    """`function`, jitted with `ALWAYS` and the options that the installed XLA has.

    Called while a program is traced, it becomes a part of that program, which has options of its
    own: JAX refuses other ones there.

    Args:
        static_argnums: as for `jax.jit`.
        is_kept: keep programs in the cache for later processes. Finding one takes 50 µs a call.
            Such a function has `compile(*args)`, which makes the program ahead of its first call.
    """
    static = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
    programs: dict[Any, Any] = {}
    same: dict[Any, Callable[..., Any]] = {}

    def plainly(**how: Any) -> Any:
        # JAX keeps what it has traced of a function, so each set of switches has one of its own.
        key = tuple(SWITCHES.items())
        if key not in same:
            same[key] = functools.wraps(function)(functools.partial(function))
        return jax.jit(same[key], static_argnums=static, **how)

    def known() -> Options:
        wanted = ALWAYS | ((options or {}) if SWITCHES["options"] else {})
        return {name: value for name, value in wanted.items() if (name, value) not in _MISSING}

    def programs_of(chosen: Options) -> Any:
        key = (*chosen.items(), *SWITCHES.items())
        if key not in programs:
            program = plainly(compiler_options=chosen)
            programs[key] = Programs(function, program, key, static) if is_kept else program
        return programs[key]

    def with_known_options(use: Callable[[Any], Any]) -> Any:
        tried = known()
        try:
            return use(programs_of(tried))
        except jax.errors.JaxRuntimeError:
            _MISSING.update(item for item in tried.items() if not is_known(*item))
            if known() == tried:
                raise
        return use(programs_of(known()))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if is_traced():
            return plainly()(*args)
        try:
            return with_known_options(lambda program: program(*args))
        except ValueError:
            if not any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
                raise
        # JAX refuses options where a derivative outside `jit` becomes a program of its own.
        return plainly()(*args)

    cast(Any, call).compile = lambda *args: with_known_options(lambda made: made.compile(*args))
    return call


def traced(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """The shapes that `function` returns; JAX keeps what it has traced. Nothing is compiled.

    Args:
        how: arguments of `jax.jit`.
    """
    return jax.jit(function, **how).eval_shape


with eval_context():
    _OUTSIDE = jax_core.get_opaque_trace_state()


def is_traced() -> bool:
    """Whether this thread traces a program; a derivative or `vmap` outside of `jit` is none."""
    if jax_core.get_opaque_trace_state() == _OUTSIDE:
        return False
    return isinstance(jnp.asarray(np.float32(0)), Tracer)


_MISSING: set[tuple[str, Any]] = set()
"""Options that the installed XLA lacks, as far as known."""


@functools.cache
def is_known(name: str, value: Any) -> bool:
    """Whether a program can be compiled with this option."""
    nothing = jax.jit(lambda x: x).lower(np.float32(0.0))
    try:
        nothing.compile(compiler_options={name: value})
    except jax.errors.JaxRuntimeError:
        return False
    return True
