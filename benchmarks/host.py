"""Processor microseconds a structure by part of the host's work, beside `atoms.copy()`.

Argon crystals of 32 atoms with Lennard-Jones, the metals of `materials.py` with EMT, the same with
moving cells (`Frechet`), and the molecules of `start.py` with a pair potential in JAX; float64,
FIRE. `none` takes no step, `whole` ends at fmax. Medians of `ROUNDS` calls after one that compiles,
in one process, of all threads. Parts: reading and checking structures and grouping them (`read`),
neighbour lists (`list`), arrays of batches and refills (`fill`), records of those that have ended
(`hand over`); `turn` is all else: programs on the device, and Python between them. `ratio` is all
over `copy`, the time of `atoms.copy()`. Pin the process to one core, as threads that wait for each
other count too:

    taskset -c 0 python benchmarks/host.py [CASE ...]
"""

import functools
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from _timing import report
from ase import Atoms
from ase.build import bulk
from materials import metal_cells
from start import bonds, molecules

from basinax import FIRE
from basinax.atoms import EMT, Frechet, LennardJones, relax
from basinax.engine import relax as of_relax
from basinax.engine.groups import RunSettings
from basinax.engine.run import Feed
from basinax.engine.slots import Slots
from basinax.neighbors.table import NeighborTable

ROUNDS = 5
PARTS = {
    "read": [
        *((of_relax, name) for name in ("intake", "check_occupancies", "warn_of_unused")),
        (RunSettings, "check"),
        (RunSettings, "groups"),
        (Feed, "read"),
    ],
    "list": [(NeighborTable, "__init__"), (NeighborTable, "rebuild"), (NeighborTable, "lists")],
    "fill": [(Slots, "__init__"), (Slots, "refill")],
    "hand over": [(Slots, "take_out"), (Slots, "emit")],
}


def argon(n: int) -> list[Atoms]:
    made = [bulk("Ar", "fcc", 5.3, cubic=True).repeat(2) for _ in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


CASES: dict[str, Callable[[], tuple[list[Atoms], Any, dict[str, Any]]]] = {
    "argon": lambda: (argon(1024), LennardJones(0.0104, 3.40, cutoff=8.5), {"fmax": 0.005}),
    "metals": lambda: (metal_cells(), EMT(), {"fmax": 0.02}),
    "moving cells": lambda: (metal_cells(), EMT(), {"fmax": 0.02, "cell": Frechet()}),
    "molecules": lambda: (molecules(512), bonds(), {"fmax": 0.02}),
}


def main(names: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    spent = Spent()
    for part, methods in PARTS.items():
        for kind, name in methods:
            setattr(kind, name, spent.timed(part, getattr(kind, name)))
    report("host", [row for name in names or CASES for row in measured(name, spent)])


def measured(name: str, spent: "Spent") -> list[dict[str, Any]]:
    """A row without steps, and one of whole relaxations."""
    atoms, potential, options = CASES[name]()
    rows = []
    for steps, most in (("none", 0), ("whole", 500)):
        run = functools.partial(relax, atoms, potential, FIRE(), max_steps=most, **options)
        evaluations = run().evaluations
        each = [spent.of(run) | {"copy": copied(atoms)} for _ in range(ROUNDS)]
        scale = 1e6 / len(atoms)
        rows.append(
            {
                "case": name,
                "systems": len(atoms),
                "atoms": sum(map(len, atoms)),
                "steps": steps,
                "evaluations": float(evaluations.mean()),
                **{of: scale * statistics.median(x[of] for x in each) for of in each[0]},
                "ratio": statistics.median(x["all"] / x["copy"] for x in each),
            }
        )
    return rows


def copied(atoms: list[Atoms]) -> float:
    """Processor seconds of copies of all structures."""
    begin = time.process_time()
    for a in atoms:
        a.copy()
    return time.process_time() - begin


class Spent:
    """Processor seconds by part; a part within another counts alone."""

    def __init__(self):
        self._by_part = dict.fromkeys(PARTS, 0.0)
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def of(self, call: Callable[[], Any]) -> dict[str, float]:
        """The seconds of one call."""
        self._by_part = dict.fromkeys(PARTS, 0.0)
        begin = time.process_time()
        call()
        total, parts = time.process_time() - begin, self._by_part
        return parts | {"turn": total - sum(parts.values()), "all": total}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts for a part."""

        @functools.wraps(function)
        def call(*args, **options):
            mine = self._of_thread
            others, mine.within = getattr(mine, "within", 0.0), 0.0
            begin = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                took = time.thread_time() - begin
                with self._lock:
                    self._by_part[part] += took - mine.within
                mine.within = others + took

        return call


if __name__ == "__main__":
    main(sys.argv[1:])
