"""The options with which XLA compiles in tests.

Compiling is nearly all that tests do, and quick options halve it. They change no bit of what keeps
its bits; but what does not, such as a product without `rounded`, shows best in programs as users
compile them. So evaluations of potentials and the long runs of every optimizer are compiled with
XLA's own options (`AS_USERS`), all else quickly. `BASINAX_TESTS_XLA=quick` compiles these quickly
too, `BASINAX_TESTS_XLA=default` compiles everything as users do.
"""

import os

import jaxlib

WISHED = os.environ.get("BASINAX_TESTS_XLA", "both")
# XLA ends a process for an option that it lacks.
IS_TRIED = jaxlib.__version__.startswith("0.10.")

OF_XLA: dict[str, bool | int] = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_backend_optimization_level": 3,
}
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
AS_USERS = OF_XLA if WISHED == "both" and IS_TRIED else {}
"""For `jax.jit(..., compiler_options=AS_USERS)`."""


def choose_options() -> None:
    """For this process and those that tests start, workers too; before anything is compiled."""
    if WISHED not in ("both", "quick", "default"):
        raise ValueError(f"BASINAX_TESTS_XLA is 'both', 'quick' or 'default', got {WISHED!r}")
    flags = os.environ.get("XLA_FLAGS", "")
    if WISHED != "default" and IS_TRIED and QUICK not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK}"
