"""Relaxing metal cells with EMT: structures per second, beside ASE's FIRE one at a time.

512 cells of Al, Ni, Cu, Pd, Ag, Pt, Au and their alloys, of 4 to 108 atoms, displaced by 0.1 Å a
component and sheared by 2 %, float64, FIRE with ASE's settings to fmax 0.02 eV/Å: with fixed cells,
and with cells that move (`Frechet`, ASE's `FrechetCellFilter`). Timed is `basinax.atoms.relax` from
`Atoms` to `Atoms`: the first call, which compiles, and the median of those after it, without and
with trajectories (one frame in ten steps, one file a structure, each run in a new folder within the
temporary one). Nothing is removed there before the end, nor should it be in the minutes before:
ext4 takes ten times as long to make a file where many have been removed. ASE runs all structures
with fixed cells and some of each size with cells that move, between those calls in the same
process; steps must be equal and positions agree to 1e-6 Å.
"""

import functools
import operator
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from _timing import report
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT as ASEEMT
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE
from basinax.atoms import EMT, Frechet, relax

N_SYSTEMS = 512
FMAX = 0.02
MAX_STEPS = 500
N_BY_ASE = {"fixed": 1000, "Frechet": 2}
"""How many structures of each size ASE relaxes, at most."""
ROUNDS = 9
METALS = ("Al", "Ni", "Cu", "Pd", "Ag", "Pt", "Au")
REPEATS = ((1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 3), (2, 3, 3), (3, 3, 3))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    with tempfile.TemporaryDirectory() as folder:
        report("materials", measured(folder))


def measured(folder: str) -> list[dict[str, Any]]:
    """A row for each kind of cells; trajectories go to new folders within this one."""
    atoms, potential, rows = metal_cells(), EMT(), []
    for name, cell in (("fixed", None), ("Frechet", Frechet())):
        options = {"cell": cell, "fmax": FMAX, "max_steps": MAX_STEPS}
        run = functools.partial(relax, atoms, potential, FIRE(), **options)
        begin = time.perf_counter()
        result = run()
        first = time.perf_counter() - begin
        ways = {
            "relax": run,
            "recorded": lambda run=run: run(trajectory=tempfile.mkdtemp(dir=folder)),
        }
        ways["recorded"]()
        times, by_ase = {way: [] for way in ways}, {}
        for chosen in np.array_split(by_size(atoms, N_BY_ASE[name]), ROUNDS):
            for way, call in ways.items():
                times[way].append(timed(call))
            by_ase |= {i: against_ase(atoms[i], result, i, cell) for i in chosen}
        seconds = statistics.median(times["relax"])
        slower = statistics.median(map(operator.truediv, times["recorded"], times["relax"]))
        ase_seconds = mean_over_sizes(atoms, by_ase)
        rows.append(
            {
                "cells": name,
                "systems": N_SYSTEMS,
                "atoms": sum(map(len, atoms)),
                "converged": int(result.converged.sum()),
                "steps": float(np.mean(result.steps)),
                "systems/s": N_SYSTEMS / seconds,
                "ASE systems/s": 1 / ase_seconds,
                "ratio": N_SYSTEMS / seconds * ase_seconds,
                "with trajectories": slower,
                "first call s": first,
                "compiling": max(0.0, 1 - seconds / first),
            }
        )
    return rows


def timed(call: Callable[[], Any]) -> float:
    """The seconds that it takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def metal_cells() -> list[Atoms]:
    """Sizes and elements in turn; every second one is an alloy."""
    cells = []
    for k in range(N_SYSTEMS):
        random = np.random.default_rng(k)
        atoms = bulk(METALS[k % 7], cubic=True).repeat(REPEATS[(k // 7) % 7])
        if k % 2:
            atoms.symbols[random.random(len(atoms)) < 0.5] = METALS[(k + 3) % 7]
        atoms.set_cell(
            atoms.cell.array @ (np.eye(3) + random.normal(0, 0.02, (3, 3))), scale_atoms=True
        )
        atoms.positions += random.normal(0, 0.1, atoms.positions.shape)
        cells.append(atoms)
    return cells


def by_size(atoms: list[Atoms], n_each: int) -> np.ndarray:
    """So many structures of each size, at most, shuffled."""
    random, sizes = np.random.default_rng(1), np.array([len(a) for a in atoms])
    members = [random.permutation(np.flatnonzero(sizes == size)) for size in np.unique(sizes)]
    return random.permutation(np.concatenate([some[:n_each] for some in members]))


def mean_over_sizes(atoms: list[Atoms], seconds: dict[int, float]) -> float:
    """The mean of all structures, of which each size has that of those that were timed."""
    of_sizes: dict[int, list[float]] = {}
    for i, each in seconds.items():
        of_sizes.setdefault(len(atoms[i]), []).append(each)
    return statistics.mean(statistics.mean(of_sizes[len(a)]) for a in atoms)


def against_ase(start: Atoms, result, at: int, cell) -> float:
    """Seconds that ASE takes; raises unless it goes the same way."""
    atoms = start.copy()
    atoms.calc = ASEEMT()
    optimizer = ASEFIRE(atoms if cell is None else FrechetCellFilter(atoms), logfile=None)
    begin = time.perf_counter()
    optimizer.run(fmax=FMAX, steps=MAX_STEPS)
    seconds = time.perf_counter() - begin
    if optimizer.nsteps != result.steps[at]:
        raise AssertionError(f"system {at}: {result.steps[at]} steps, ASE {optimizer.nsteps}")
    np.testing.assert_allclose(result.atoms[at].positions, atoms.positions, atol=1e-6, rtol=0)
    return seconds


if __name__ == "__main__":
    main()
