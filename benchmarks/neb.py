"""Seconds of minimum-energy paths of seven images, beside ASE's NEB, one path after another.

- `emt`: 64 adatoms that hop on the (100) faces of four metals; 28 atoms, nine of them held, to fmax
  0.05. Steps must be those of ASE.
- `nequix`: 16 atoms that hop into a vacancy of silicon, copper, nickel and iron, with Nequix-MP-1
  in single precision, as it was trained, two steps each. Positions must be ASE's to 1e-3 Å. The
  weights are no part of this project: `--weights FILE`, or beside the checkout. `pip install
  --no-deps nequix matscipy e3nn-jax jraph` has the package; without them the set is left out.

FIRE, a climbing image and the improved tangent. End points are relaxed (by EMT) and images
interpolated before, and not timed. basinax has all paths in one call, of which the first compiles;
ASE has one path after another, with the model after one evaluation, which compiles, and every
eighth (`emt`) or fourth path here: its figures are as many times those of these. Both run in one
process, and processor time says more than seconds where others use the machine, too.

    python benchmarks/neb.py [--sets emt nequix]
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100
from ase.calculators.emt import EMT as EMTOfASE
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import FIRE

import basinax
from basinax.atoms import EMT, JaxModel, neb, relax

jax.config.update("jax_enable_x64", True)

METALS, ADATOMS = ("Cu", "Ag", "Au", "Al"), ("Cu", "Ag", "Pd", "Pt")
N_IMAGES = 7
WEIGHTS = Path(__file__).parents[2] / "shared" / "data" / "nequix-mp-1.nqx"


class Problem(NamedTuple):
    """Paths, and the same potential for both."""

    case: str
    bands: list[list[Atoms]]
    potential: Any
    calculator: Callable[[], Any]
    """Makes a calculator of ASE, of which each image has one."""
    every: int
    """ASE has every so many paths."""
    fmax: float
    max_steps: int
    is_single: bool = False


def main() -> None:
    from _timing import report

    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    for name in arguments.sets:
        try:
            problem = SETS[name](arguments)
        except (ImportError, FileNotFoundError) as error:
            print(f"{name} is left out: {error}")
            continue
        report("neb", compared(problem))


def compared(problem: Problem) -> list[dict[str, Any]]:
    first, _ = of_basinax(problem)
    second, paths = of_basinax(problem)
    line, theirs = of_ase(problem)
    for path, (steps, positions) in zip(paths[:: problem.every], theirs, strict=True):
        if path.steps != steps:
            raise SystemExit(f"steps differ: {path.steps} and {steps} of ASE")
        np.testing.assert_allclose(path.positions, positions, rtol=0, atol=1e-3)
    cases = {"basinax, call 1": first, "basinax, call 2": second, "ASE": line}
    return [
        {"case": f"{problem.case}, {name}", **found} | _ratios(found, line)
        for name, found in cases.items()
    ]


def _ratios(found: dict[str, Any], of: dict[str, Any]) -> dict[str, float]:
    return {f"ASE / {x}": of[x] / found[x] for x in ("all s", "processor s")}


def emt(_: argparse.Namespace) -> Problem:
    """Hollows before and after each hop, rattled and relaxed."""
    random, atoms = np.random.default_rng(0), []
    for k in range(64):
        start = fcc100(METALS[k % 4], (3, 3, 3))
        add_adsorbate(start, ADATOMS[k // 4 % 4], 1.8, "hollow")
        start.center(5.0, axis=2)
        start.positions += random.normal(size=start.positions.shape) * 0.01
        start.set_constraint(FixAtoms(mask=start.get_tags() == 3))
        end = start.copy()
        end.positions[-1, 0] += start.cell[0, 0] / 3
        atoms += [start, end]
    relaxed = relax(atoms, EMT(), fmax=0.01).atoms
    bands = [images_of(*relaxed[k : k + 2]) for k in range(0, len(relaxed), 2)]
    return Problem("EMT", bands, EMT(), EMTOfASE, 8, 0.05, 500)


def nequix(arguments: argparse.Namespace) -> Problem:
    """Vacancies of crystals of eight places, rattled."""
    from nequix.calculator import NequixCalculator

    with jax.enable_x64(False):  # nequix reads weights in JAX's own precision
        calculator = NequixCalculator(model_path=arguments.weights, use_kernel=False)
    kinds = [
        bulk("Si", cubic=True),
        *(bulk(metal, cubic=True).repeat((2, 1, 1)) for metal in ("Cu", "Ni")),
        bulk("Fe", cubic=True).repeat((2, 2, 1)),
    ]
    bands = []
    for k in range(16):
        crystal = kinds[k % 4].copy()
        crystal.set_initial_magnetic_moments(None)
        ends = [crystal[1:], crystal[1:]]
        ends[1].positions[0] = crystal.positions[0]
        for end in ends:
            end.rattle(0.02, seed=k)
        bands.append(images_of(*ends))
    potential = JaxModel.nequix(arguments.weights)
    return Problem("Nequix-MP-1", bands, potential, lambda: calculator, 4, 1e-3, 2, is_single=True)


SETS = {"emt": emt, "nequix": nequix}


def images_of(start: Atoms, end: Atoms) -> list[Atoms]:
    images = [start.copy() for _ in range(N_IMAGES - 1)] + [end.copy()]
    NEB(images, method="improvedtangent").interpolate("idpp", mic=True)
    return images


def of_basinax(problem: Problem) -> tuple[dict[str, Any], Any]:
    begun = _now()
    paths = neb(
        problem.bands,
        problem.potential,
        basinax.FIRE(),
        method="improvedtangent",
        fmax=problem.fmax,
        max_steps=problem.max_steps,
    )
    return _line(begun, 1, sum(path.evaluations for path in paths)), paths


def of_ase(problem: Problem) -> tuple[dict[str, Any], list[tuple[int, np.ndarray]]]:
    with jax.enable_x64(not problem.is_single):
        if problem.is_single:
            for images in problem.bands[:: problem.every]:
                problem.calculator().get_forces(images[0])
        begun, found = _now(), []
        for images in problem.bands[:: problem.every]:
            images = [image.copy() for image in images]
            band = NEB(images, climb=True, method="improvedtangent", allow_shared_calculator=True)
            for image in images:
                image.calc = problem.calculator()
            run = FIRE(band, logfile=None)
            run.run(fmax=problem.fmax, steps=problem.max_steps)
            found.append((run.nsteps, np.array([image.positions for image in images])))
    n_evaluations = sum((N_IMAGES - 2) * (steps + 1) + 2 for steps, _ in found)
    return _line(begun, problem.every, problem.every * n_evaluations), found


def _now() -> tuple[float, float]:
    return time.perf_counter(), sum(os.times()[:4])


def _line(begun: tuple[float, float], times: int, evaluations: int) -> dict[str, Any]:
    seconds, busy = (now - then for now, then in zip(_now(), begun, strict=True))
    return {"all s": times * seconds, "processor s": times * busy, "evaluations": evaluations}


if __name__ == "__main__":
    main()
