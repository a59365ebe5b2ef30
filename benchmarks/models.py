"""Relaxing with models of others: structures per second, beside ASE one at a time.

- `crystals`: 32 of 8 and 16 atoms with Nequix-MP-1 in single precision, as it was trained. Its
  weights are no part of this project: `--weights FILE`, or beside the checkout. `pip install
  --no-deps nequix matscipy e3nn-jax jraph` has the package.
- `molecules`: the first 20 of data/molecules.extxyz with GFN2-xTB (`pip install tblite`), whose
  self-consistent field begins anew at each evaluation; `reused`: with a calculator a structure,
  where it begins at the last density, as ASE's does.

FIRE with ASE's settings, cells fixed, so many steps for each. Timed is the second of two
equal calls of `basinax.atoms.relax`, from `Atoms` to `Atoms`. The first compiles the model
in the shapes that structures pass through, and the program of the loop; its seconds stand
beside (`first call s`). ASE runs all molecules, and of the crystals one of each kind after
one evaluation, which compiles, with the packages' own calculators, in the same process and
with as many threads as their libraries choose. `cores` is processor time over time. Positions
must agree: to 1e-3 Å for the model in single precision, to 1e-4 Å for the molecules.

    python benchmarks/models.py [--sets molecules reused crystals] [--systems N] [--steps N]
"""

import argparse
import contextlib
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from _timing import report
from ase import Atoms
from ase.build import bulk
from ase.io import read
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE
from basinax.atoms import ASECalculator, JaxModel, relax

WEIGHTS = Path(__file__).parents[2] / "shared" / "data" / "nequix-mp-1.nqx"
MOLECULES = Path(__file__).parent / "data" / "molecules.extxyz"


class Problem(NamedTuple):
    """Structures, and the same model for both."""

    model: str
    atoms: list[Atoms]
    steps: int
    potential: Any
    calculators: Callable[[Atoms], Any]
    """Of ASE, ready for the structure."""
    by_ase: list[int]
    """Numbers of the structures that ASE relaxes."""
    tolerance: float
    """Of positions, in Å."""
    is_single: bool = False


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--systems", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    report("models", [measured(SETS[name](arguments)) for name in arguments.sets])


def crystals(arguments: argparse.Namespace) -> Problem:
    from nequix.calculator import NequixCalculator

    atoms, by_ase = made_crystals(arguments.systems or 32)
    with jax.enable_x64(False):  # nequix reads weights in JAX's own precision
        calculator = NequixCalculator(model_path=arguments.weights, use_kernel=False)
    steps, potential = arguments.steps or 5, JaxModel.nequix(arguments.weights)
    name = "Nequix-MP-1, crystals"
    return Problem(name, atoms, steps, potential, lambda _: calculator, by_ase, 1e-3, True)


def molecules(arguments: argparse.Namespace, *, reuse: bool = False) -> Problem:
    from tblite.ase import TBLite

    def make(_: Any = None) -> Any:
        return TBLite(method="GFN2-xTB", verbosity=0)

    atoms = read(MOLECULES, ":")[: arguments.systems or 20]
    steps, everyone = arguments.steps or 20, list(range(len(atoms)))
    name = "GFN2-xTB, molecules" + (", reuse=True" if reuse else "")
    potential = ASECalculator(make, reuse=reuse)
    return Problem(name, atoms, steps, potential, make, everyone, 1e-4)


SETS = {
    "molecules": molecules,
    "reused": functools.partial(molecules, reuse=True),
    "crystals": crystals,
}


def measured(problem: Problem) -> dict[str, Any]:
    first, _, before = timed(lambda: relaxed(problem))
    seconds, busy, result = timed(lambda: relaxed(problem))
    theirs = [against_ase(problem, k, result.atoms[k]) for k in problem.by_ase]
    n, compiling, ase_seconds = len(problem.atoms), *np.mean(theirs, axis=0)
    return {
        "model": problem.model,
        "systems": n,
        "atoms": sum(map(len, problem.atoms)),
        "evaluations": int(result.evaluations.sum()),
        "systems/s": n / seconds,
        "ASE systems/s": float(1 / ase_seconds),
        "ratio": float(n / seconds * ase_seconds),
        "cores": busy / seconds,
        "first call s": first,
        "compile s": first - seconds,
        "compilations": before.compilations,
        "ASE first evaluation s": float(compiling),
    }


def relaxed(problem: Problem) -> Any:
    return relax(problem.atoms, problem.potential, FIRE(), fmax=1e-6, max_steps=problem.steps)


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, processor seconds of this process and those that it ended, and what it returns."""
    begin, before = time.perf_counter(), sum(os.times()[:4])
    returned = call()
    return time.perf_counter() - begin, sum(os.times()[:4]) - before, returned


def against_ase(problem: Problem, k: int, ours: Atoms) -> tuple[float, float]:
    """Seconds of ASE's first evaluation and of its steps; raises unless it goes the same way."""
    with jax.enable_x64(False) if problem.is_single else contextlib.nullcontext():
        atoms = problem.atoms[k].copy()
        atoms.calc = problem.calculators(atoms)
        compiling = timed(atoms.get_forces)[0] if problem.is_single else 0.0
        atoms.calc.reset()
        search = ASEFIRE(atoms, logfile=None)
        seconds, *_ = timed(lambda: search.run(fmax=1e-6, steps=problem.steps))
    np.testing.assert_allclose(ours.positions, atoms.positions, atol=problem.tolerance, rtol=0)
    return compiling, seconds


def made_crystals(n: int) -> tuple[list[Atoms], list[int]]:
    """Four kinds, displaced, and the numbers of the first of each."""
    kinds = [
        bulk("Si", cubic=True),
        bulk("NaCl", "rocksalt", 5.69, cubic=True),
        bulk("Cu", cubic=True).repeat((2, 1, 1)),
        bulk("Fe", cubic=True).repeat((2, 2, 2)),
    ]
    atoms = [kinds[k % len(kinds)].copy() for k in range(n)]
    for k, a in enumerate(atoms):
        a.set_initial_magnetic_moments(None)
        a.rattle(0.1, seed=k)
    return atoms, list(range(min(n, len(kinds))))


if __name__ == "__main__":
    main()
