"""`evaluate` in a process that has evaluated nothing before, with this one's switches of JAX."""

import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ase import Atoms

from basinax.engine.evaluate import AtomsEvaluation, evaluate
from basinax.models.evaluators.worker import text_of
from basinax.numerics.switches import switches
from basinax.structures.batch import bare

_SCRIPT = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    sys.path[:] = pickle.load(file)
    from basinax.numerics.switches import config_context
    with config_context(pickle.load(file)):  # before arrays, which would lose digits
        found = pickle.load(file)()
with open(sys.argv[2], "wb") as file:
    pickle.dump(found, file)
"""


class NotTriedError(Exception):
    """No fresh process could evaluate; the message has the reason."""


def evaluate_afresh(atoms: Sequence[Atoms], model: Any, *, stress: bool) -> AtomsEvaluation:
    """The result of `evaluate` in a fresh process.

    Raises:
        NotTriedError: the model cannot be sent to another process, or fails there.
    """
    from basinax.models.packing import packed

    if model is not None:
        atoms = bare(atoms)
    try:
        question = packed(functools.partial(evaluate, atoms, model, stress=stress))
    except Exception as error:
        raise NotTriedError(
            f"the model cannot be sent to another process ({text_of(error)}): pass ASECalculator"
            " with a function that makes it"
        ) from error
    # Memory of a GPU that this process has reserved is not free.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = (Path(folder, name) for name in ("asked", "answer"))
        asked.write_bytes(pickle.dumps(sys.path) + packed(switches()) + question)
        command = [sys.executable, "-c", _SCRIPT, str(asked), str(answer)]
        done = subprocess.run(
            command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise NotTriedError(f"the process failed: {said[-1]}")
        return pickle.loads(answer.read_bytes())
