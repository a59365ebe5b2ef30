"""Seconds of 64 minimum-energy paths: adatoms that hop on the (100) faces of four metals, by EMT.

Seven images of 28 atoms each, of which nine are held, to fmax 0.05 with FIRE and a climbing image,
by the improved tangent. End points are relaxed and images interpolated before, and not timed.
basinax has all paths in one call, of which the first compiles; ASE has one path after another, and
every eighth of them here: its figures are eight times those of the eight. Steps must be the same.

    python benchmarks/neb.py
"""

import time
from typing import Any

import jax
import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT as EMTOfASE
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import FIRE

from basinax.atoms import EMT, neb, relax

jax.config.update("jax_enable_x64", True)

METALS, ADATOMS = ("Cu", "Ag", "Au", "Al"), ("Cu", "Ag", "Pd", "Pt")
N_PATHS, N_IMAGES, EVERY, FMAX = 64, 7, 8, 0.05


def main() -> None:
    from _timing import report

    bands = [images_of(*ends) for ends in end_points()]
    lines = [{"case": f"basinax, call {k}", **of_basinax(bands)[0]} for k in (1, 2)]
    _, paths = of_basinax(bands)
    ours = [path.steps for path in paths[::EVERY]]
    line, theirs = of_ase(bands[::EVERY])
    if ours != theirs:
        raise SystemExit(f"steps differ: {ours} and {theirs} of ASE")
    report("neb", [*lines, {"case": "ASE", **line}])


def end_points() -> list[list[Atoms]]:
    """Hollows before and after each hop, rattled and relaxed."""
    random, atoms = np.random.default_rng(0), []
    for k in range(N_PATHS):
        start = fcc100(METALS[k % 4], (3, 3, 3))
        add_adsorbate(start, ADATOMS[k // 4 % 4], 1.8, "hollow")
        start.center(5.0, axis=2)
        start.positions += random.normal(size=start.positions.shape) * 0.01
        start.set_constraint(FixAtoms(mask=start.get_tags() == 3))
        end = start.copy()
        end.positions[-1, 0] += start.cell[0, 0] / 3
        atoms += [start, end]
    relaxed = relax(atoms, EMT(), fmax=0.01).atoms
    return [relaxed[k : k + 2] for k in range(0, len(relaxed), 2)]


def images_of(start: Atoms, end: Atoms) -> list[Atoms]:
    images = [start.copy() for _ in range(N_IMAGES - 1)] + [end.copy()]
    NEB(images, method="improvedtangent").interpolate("idpp", mic=True)
    return images


def of_basinax(bands: list[list[Atoms]]) -> tuple[dict[str, Any], Any]:
    clock, processor = time.perf_counter(), time.process_time()
    paths = neb(bands, EMT(), method="improvedtangent", fmax=FMAX)
    line = _line(clock, processor, 1, sum(path.evaluations for path in paths))
    return line | {"converged": int(paths.converged.sum())}, paths


def of_ase(bands: list[list[Atoms]]) -> tuple[dict[str, Any], list[int]]:
    clock, processor, steps = time.perf_counter(), time.process_time(), []
    for images in bands:
        band = NEB(images, climb=True, method="improvedtangent")
        for image in images:
            image.calc = EMTOfASE()
        run = FIRE(band, logfile=None)
        run.run(fmax=FMAX, steps=500)
        steps.append(run.nsteps)
    evaluations = sum((N_IMAGES - 2) * (n + 1) + 2 for n in steps)
    return _line(clock, processor, EVERY, EVERY * evaluations) | {"converged": N_PATHS}, steps


def _line(clock: float, processor: float, times: int, evaluations: int) -> dict[str, Any]:
    return {
        "all s": times * (time.perf_counter() - clock),
        "processor s": times * (time.process_time() - processor),
        "evaluations": evaluations,
    }


if __name__ == "__main__":
    main()
