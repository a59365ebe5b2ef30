"""Relaxing rattled argon crystals: structures per second, beside ASE's FIRE one at a time.

Lennard-Jones argon (epsilon 0.0104 eV, sigma 3.40 Å, cutoff 8.5 Å, shifted as in ASE), float64,
FIRE with ASE's settings to fmax 0.005 eV/Å: 256 and 1024 cells of 32 atoms, 64 of 108, displaced by
0.15 Å a component. Timed is `basinax.atoms.relax` from `Atoms` to `Atoms`, neighbour lists and all:
the first call, which compiles, and the median of those that follow for some seconds. ASE runs a
sample of the same structures in the same process; steps must be equal and positions agree to
1e-6 Å.
"""

import functools
import statistics
import time

import jax
import numpy as np
from _timing import medians, report
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE
from basinax.atoms import LennardJones, relax

FMAX = 0.005
SAMPLE = 5
ROUNDS = 5
SECONDS = 6.0


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rows = []
    for n_systems, repeat in ((256, 2), (1024, 2), (64, 3)):
        atoms = rattled_crystals(n_systems, repeat)
        potential = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
        run = functools.partial(relax, atoms, potential, FIRE(), fmax=FMAX)
        begin = time.perf_counter()
        result = run()
        first = time.perf_counter() - begin
        seconds = medians({"relax": run}, ROUNDS, SECONDS)["relax"]
        chosen = np.random.default_rng(1).permutation(n_systems)[:SAMPLE]
        ase_seconds = statistics.median(against_ase(atoms[i], result, i) for i in chosen)
        rows.append(
            {
                "systems": n_systems,
                "atoms": len(atoms[0]),
                "converged": int(result.converged.sum()),
                "steps": float(np.mean(result.steps)),
                "systems/s": n_systems / seconds,
                "ASE systems/s": 1 / ase_seconds,
                "ratio": n_systems / seconds * ase_seconds,
                "first call s": first,
                "compiling": max(0.0, 1 - seconds / first),
            }
        )
    report("relax_lj", rows)


def rattled_crystals(n_systems: int, repeat: int) -> list[Atoms]:
    crystals = []
    for seed in range(n_systems):
        atoms = bulk("Ar", "fcc", 5.26, cubic=True).repeat(repeat)
        atoms.rattle(0.15, seed=seed)
        crystals.append(atoms)
    return crystals


def against_ase(start: Atoms, result, at: int) -> float:
    """Seconds that ASE takes; raises unless it goes the same way."""
    atoms = start.copy()
    atoms.calc = ASELennardJones(epsilon=0.0104, sigma=3.40, rc=8.5)
    optimizer = ASEFIRE(atoms, logfile=None)
    begin = time.perf_counter()
    optimizer.run(fmax=FMAX, steps=500)
    seconds = time.perf_counter() - begin
    if optimizer.nsteps != result.steps[at]:
        raise AssertionError(f"system {at}: {result.steps[at]} steps, ASE {optimizer.nsteps}")
    np.testing.assert_allclose(result.atoms[at].positions, atoms.positions, atol=1e-6, rtol=0)
    return seconds


if __name__ == "__main__":
    main()
