"""Arrays have the types and shapes that signatures state, in the core and in potentials."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import basinax

TESTS = Path(__file__).parents[1]
FOLDERS = [str(TESTS / name) for name in ("support", "optimizers", "potentials")]
POTENTIALS = Path(basinax.__file__).parent / "potentials"
CHECKED = [
    *(f"basinax.{room}" for room in ("numerics", "systems", "optimizers", "minimize")),
    *(f"basinax.potentials.{x.stem}" for x in POTENTIALS.iterdir() if x.stem != "tables"),
]
"""Modules whose signatures are checked. (beartype cannot read some of the others.)"""

CODE = f"""
import sys
from jaxtyping import install_import_hook
sys.path += {FOLDERS}
install_import_hook({CHECKED}, "checker.check")
import traced
print(*traced.trace(), sep="\\n")
"""
STRICT = {
    "JAX_ENABLE_X64": "1",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
}


@pytest.mark.exhaustive
def test_signatures_state_what_is_passed():
    """Of all transforms, the loop with all criteria, its derivative, and all potentials.

    In a process of its own, since modules are checked from their import on.
    """
    command, environment = [sys.executable, "-c", CODE], os.environ | STRICT
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"FIRE", "BFGS", "LevenbergMarquardt", "relax", "EMT"} <= set(done.stdout.splitlines())
