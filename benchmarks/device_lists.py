"""Lists that the device makes beside those of the host: the bits of relaxations, and their times.

Argon cells of 32 atoms (`relax_lj.py`) and the metals of `materials.py`, with fixed and with moving
cells, float64, L-BFGS before FIRE. Every case runs twice with each kind of lists, in one process;
structures differ if a bit of their results does. A row is a case in a process of its own. On a GPU
each process is followed by one without CUDA graphs, which tells whether they are the cause.

    python benchmarks/device_lists.py [PROCESSES]
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
from _timing import report
from materials import metal_cells
from relax_lj import rattled_crystals

from basinax import FIRE, LBFGS
from basinax.atoms import EMT, AtomsRelaxation, Frechet, LennardJones, relax
from basinax.structures.machine import machine

CANDIDATES = 1 << 24
ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
CASES: dict[str, Callable[[Any], AtomsRelaxation]] = {
    "argon": lambda optimizer: relax(argon(), ARGON, optimizer, fmax=0.005),
    "metals": lambda optimizer: relax(metals(), EMT(), optimizer, fmax=0.02),
    "metals in moving cells": lambda optimizer: relax(
        metals(), EMT(), optimizer, cell=Frechet(), fmax=0.02
    ),
}
WITHOUT_GRAPHS = "--xla_gpu_enable_command_buffer="

argon = functools.cache(lambda: rattled_crystals(2048 if on_gpu() else 64, 2))
metals = functools.cache(lambda: metal_cells() if on_gpu() else metal_cells()[:32])


def on_gpu() -> bool:
    return jax.default_backend() != "cpu"


def main(processes: int) -> None:
    ways = {"graphs": "", "no graphs": WITHOUT_GRAPHS} if on_gpu() else {"no GPU": ""}
    for number in range(processes):
        for name, flags in ways.items():
            flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
            own = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            command = [sys.executable, __file__, "rows"]
            found = subprocess.run(command, env=own, stdout=subprocess.PIPE, check=True)
            rows = json.loads(found.stdout)
            report("device_lists", [{"process": number, "way": name} | row for row in rows])


def rows() -> list[dict[str, Any]]:
    """A row for each case and optimizer, in this process."""
    found = []
    for name, run in CASES.items():
        for optimizer in (LBFGS(), FIRE()):
            with mock.patch.object(machine(), "candidates", 0):
                host, of_host = timed(run, optimizer)
            with mock.patch.object(machine(), "candidates", CANDIDATES):
                device, of_device = timed(run, optimizer)
            found.append(
                {
                    "case": name,
                    "optimizer": type(optimizer).__name__,
                    "systems": len(of_host),
                    "differ": sum(map(differ, of_host, of_device)),
                    "evaluations": float(of_host.evaluations.mean()),
                    "evaluations there": float(of_device.evaluations.mean()),
                    "host s": host,
                    "device s": device,
                }
            )
    return found


def timed(run: Callable[[Any], AtomsRelaxation], optimizer: Any) -> tuple[float, AtomsRelaxation]:
    """The seconds of a second call, and its result."""
    run(optimizer)
    begin = time.perf_counter()
    result = run(optimizer)
    return time.perf_counter() - begin, result


def differ(a: Any, b: Any) -> bool:
    """Whether two results of a structure differ in any bit."""
    pairs = [(a.steps, b.steps), (a.evaluations, b.evaluations), (a.energy, b.energy)]
    pairs += [(getattr(a.atoms, x), getattr(b.atoms, x)) for x in ("positions", "cell")]
    pairs += [(a.atoms.calc.results["forces"], b.atoms.calc.results["forces"])]
    return not all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:] == ["rows"]:
        print(json.dumps(rows()))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 4)
