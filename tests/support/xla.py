"""The options with which XLA compiles in tests.

Compiling is nearly all that tests do, and quick options halve it. They change no bit of what keeps
its bits; but what does not, such as a product without `rounded`, shows in programs as users compile
them: without optimisation nothing is contracted. So what is compared with single operations, the
long runs of optimizers in a batch and evaluations of potentials whose bits are compared are
compiled with XLA's own options (`AS_USERS`), and all else quickly. Programs of the library have
options of their own only in tests that use `as_users`; in exhaustive cells of whole relaxations
whose bits are compared all of them are compiled as users do (`exhaustively_as_users`).
`BASINAX_TESTS_XLA=quick` compiles these quickly too, and `BASINAX_TESTS_XLA=default` compiles
everything as users do.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jaxlib
import pytest

WISHED = os.environ.get("BASINAX_TESTS_XLA", "both")
# XLA ends a process for an option that it lacks.
IS_TRIED = jaxlib.version.__version__.startswith("0.10.")

ALWAYS: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""} if IS_TRIED else {}
"""That of `basinax.numerics.xla`, which is not imported here: XLA's flags are not chosen yet."""

DEFAULTS: dict[str, Any] = (
    {"xla_cpu_use_fusion_emitters": True, "xla_backend_optimization_level": 3} | ALWAYS
    if IS_TRIED
    else {}
)
"""For `jax.jit(..., compiler_options=DEFAULTS)`: as users compile, whatever is wished."""

QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
AS_USERS = ALWAYS if WISHED == "quick" else DEFAULTS
"""As users compile, unless all is to be quick."""


def jit_as_users(function: Callable, **options: Any) -> Any:
    return jax.jit(function, compiler_options=AS_USERS, **options)


def one_by_one(function: Callable) -> Callable:
    """The function, with each operation a program by itself."""

    def called(*args):
        with jax.disable_jit():
            return function(*args)

    return called


both_ways = pytest.mark.parametrize(
    ("plainly", "alone_by"),
    [
        pytest.param(jax.jit, jax.jit, id="quick"),
        pytest.param(one_by_one, jit_as_users, id="op by op", marks=pytest.mark.exhaustive),
    ],
)
"""How a function runs whose bits those of one compiled as users do must be, and how it runs alone.

Compiled quickly it has the bits of single operations (optimizers/test_jit.py), a hundred programs
of which take longer.
"""


def choose_options() -> None:
    """For this process and those that tests start, workers too; before anything is compiled."""
    if WISHED not in ("both", "quick", "default"):
        raise ValueError(f"BASINAX_TESTS_XLA is 'both', 'quick' or 'default', got {WISHED!r}")
    flags = os.environ.get("XLA_FLAGS", "")
    if WISHED != "default" and IS_TRIED and QUICK not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK}"

    from basinax.numerics.xla import SWITCHES  # now that the flags are chosen

    SWITCHES["options"] = WISHED == "default"
