"""How XLA compiles programs of this package: for speed, never for their bits.

Options are those of single programs; no setting of the process is touched. An option that the XLA
at hand does not have is left out.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

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


def jitted(function: Callable[..., Any], options: Options, **how: Any) -> Callable[..., Any]:
    """`function`, jitted with those of the options that XLA has.

    Args:
        how: further arguments of `jax.jit`.
    """
    programs = [jax.jit(function, compiler_options=options, **how)]

    @functools.wraps(function)
    def call(*args: Any) -> Any:
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
