"""Seconds of molecules: 20 with GFN2-xTB in whole processes, and steps of 64 with a free model.

`processes`: the 20 of data/molecules.extxyz by GFN2-xTB to fmax 0.05, from the beginning to the end
of a new process: imports, compiling and all. basinax relaxes them in one call, by as many processes
as there are cores; ASE's BFGS and Sella in internal coordinates one after another. Seconds on the
clock, and of processors by the process and its children; the least of some rounds.

`steps`: 64 of these molecules, rattled, with springs between atoms that NumPy evaluates: processor
ms a structure and step of a second call, evaluation included, which stands beside them.

    python benchmarks/molecules.py [processes] [steps]
"""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.io import read

ROUNDS, N_STEPS, N_MOLECULES = 2, 10, 64
WAYS = ("basinax", "ASE BFGS", "Sella")


def main(names: list[str]) -> None:
    from _timing import report

    for name in names or ["processes", "steps"]:
        report("molecules", {"processes": processes, "steps": steps}[name]())


# --- whole processes


def processes() -> list[dict[str, Any]]:
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            runs[way].append(of_process(way))
    return [
        {
            "case": f"20 molecules, {way}",
            "wall s": min(wall for wall, _ in of_way),
            "processor s": min(processor for _, processor in of_way),
        }
        for way, of_way in runs.items()
    ]


def of_process(way: str) -> tuple[float, float]:
    """Seconds on the clock, and of processors."""
    before, begin = _of_children(), time.perf_counter()
    subprocess.run([sys.executable, __file__, "--way", way], check=True)
    return time.perf_counter() - begin, _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def molecules() -> list[Atoms]:
    return read(Path(__file__).parent / "data" / "molecules.extxyz", ":")


def xtb() -> Any:
    from tblite.ase import TBLite

    return TBLite(method="GFN2-xTB", verbosity=0)


def relaxed(way: str) -> None:
    """What a process does."""
    if way == "basinax":
        import jax

        from basinax.atoms import ASECalculator, InternalLBFGS, relax

        jax.config.update("jax_enable_x64", True)
        result = relax(molecules(), ASECalculator(xtb), InternalLBFGS(), fmax=0.05)
        assert result.converged.all()
        return
    for atoms in molecules():
        atoms.calc = xtb()
        if way == "Sella":
            from sella import Sella

            optimizer = Sella(atoms, order=0, internal=True, logfile=None)
        else:
            from ase.optimize import BFGS

            optimizer = BFGS(atoms, logfile=None)
        assert optimizer.run(fmax=0.05, steps=500)


# --- steps


class Springs(Calculator):
    """Springs between all atoms that are within 3 Å of each other in one of some molecules."""

    implemented_properties = ("energy", "forces")

    def __init__(self, references: list[Atoms]):
        super().__init__()
        self.springs = {}
        for atoms in references:
            i, k = np.triu_indices(len(atoms), 1)
            lengths = np.linalg.norm(atoms.positions[i] - atoms.positions[k], axis=1)
            near = lengths < 3.0
            self.springs[atoms.numbers.tobytes()] = i[near], k[near], lengths[near]

    def calculate(self, atoms: Any = None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        i, k, lengths = self.springs[atoms.numbers.tobytes()]
        apart = atoms.positions[i] - atoms.positions[k]
        now = np.linalg.norm(apart, axis=1)
        pulls = (10.0 * (now - lengths) / now)[:, None] * apart
        forces = np.zeros_like(atoms.positions)
        np.add.at(forces, i, -pulls)
        np.add.at(forces, k, pulls)
        self.results = {"energy": 5.0 * float(((now - lengths) ** 2).sum()), "forces": forces}


def steps() -> list[dict[str, Any]]:
    import jax

    from basinax import LBFGS
    from basinax.atoms import InternalLBFGS, evaluate, relax

    jax.config.update("jax_enable_x64", True)
    references = molecules()
    springs, n = Springs(references), len(references)
    starts = [references[k % n].copy() for k in range(N_MOLECULES)]
    for k, atoms in enumerate(starts):
        atoms.rattle(0.1, seed=k)

    def seconds(call) -> float:
        call()
        begin = time.process_time()
        call()
        return time.process_time() - begin

    rows = []
    for name, optimizer in {"InternalLBFGS": InternalLBFGS(), "LBFGS": LBFGS()}.items():

        def run(optimizer=optimizer):
            return relax(starts, springs, optimizer, fmax=1e-12, max_steps=N_STEPS)

        per_step = 1000 * seconds(run) / (N_STEPS * N_MOLECULES)
        evaluation = 1000 * seconds(lambda: evaluate(starts, springs)) / N_MOLECULES
        rows.append({"case": f"64 molecules, {name}", "ms": per_step, "evaluation ms": evaluation})
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        relaxed(sys.argv[2])
    else:
        main(sys.argv[1:])
