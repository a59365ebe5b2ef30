"""Seconds to the first result: whole processes, beside ASE doing the same one structure at a time.

Each case runs in new processes that take turns: basinax with an empty cache for compiled programs,
basinax with the cache that this one has filled, and ASE. A process imports, makes or reads the
structures, relaxes them, and is timed from its beginning to its end: on the clock, and by what its
threads and those of the system took of processors. `cold` and `warm` are processor seconds over
those of ASE; beside them stand the seconds in which XLA compiled, and how many programs. Shown are
medians of some rounds. ASE takes the same steps, and ends with the same energies, or this raises.

Slabs are 12 atoms of copper under an oxygen, with EMT and BFGS; cells of metals have 4 or 8 atoms,
EMT and FIRE, and move by `Frechet`; noble gases are the files of `examples/data`, relaxed as the
README does from the command line; molecules have a potential that is written here.

    python benchmarks/start.py [CASE ...]
"""

import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.constraints import FixAtoms
from ase.io import read
from ase.neighborlist import NeighborList

ROUNDS = 3
WAYS = ("cold", "warm", "ASE")
DATA = Path(__file__).parents[1] / "examples" / "data"
METALS = ("Cu", "Ni", "Al", "Au", "Ag", "Pd", "Pt")
MOLECULES = ("CH4", "H2O", "NH3", "C2H6", "C2H4", "CH3OH", "HCN", "CO2", "C6H6", "N2H4")
NOBLE_GASES = np.zeros((55, 2))
"""ε in eV and σ in Å by atomic number, those of `LennardJones.named`."""
NOBLE_GASES[[10, 18, 36, 54]] = (0.0031, 2.74), (0.0104, 3.40), (0.0140, 3.65), (0.0200, 3.98)
NOBLE_GAS_CUTOFF = 8.5
DEPTH, RATE, LENGTH, CUTOFF = 4.0, 1.8, 1.3, 5.0
"""Of the bonds of molecules, in eV, 1/Å, Å and Å."""


def main(names: list[str]) -> None:
    from _timing import report

    report("start", [measured(name) for name in names or CASES])


def measured(name: str) -> dict[str, Any]:
    """The row of a case."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            for way in WAYS:
                runs[way].append(of_process(name, way, cache))
    check_alike([run for way in WAYS for run in runs[way]])
    seconds = {
        way: {of: statistics.median(r[of] for r in runs[way]) for of in ("processor", "wall")}
        for way in WAYS
    }
    by_ase, first = seconds["ASE"]["processor"], runs["cold"]
    return {
        "case": name,
        **{f"{way} s": seconds[way]["processor"] for way in WAYS},
        "cold": seconds["cold"]["processor"] / by_ase,
        "warm": seconds["warm"]["processor"] / by_ase,
        **{f"{way} wall s": seconds[way]["wall"] for way in WAYS},
        "compiling s": statistics.median(r["compiling"] for r in first),
        "programs": max(r["programs"] for r in first),
    }


def of_process(name: str, way: str, cache: str) -> dict[str, Any]:
    """What a new process says of a case, and how long it took."""
    keeps = {
        "BASINAX_CACHE": cache,
        "JAX_ENABLE_X64": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # an installed package has its bytecode
    }
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(
        [sys.executable, __file__, "--one", name, way],
        env=os.environ | keeps,
        stdout=subprocess.PIPE,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = sum(getattr(after, of) - getattr(before, of) for of in ("ru_utime", "ru_stime"))
    found = json.loads(said.stdout.splitlines()[-1])
    return found | {"processor": took, "wall": time.perf_counter() - began}


def check_alike(runs: list[dict[str, Any]]) -> None:
    """Raise unless all took the same steps to the same energies."""
    for run in runs:
        if run["steps"] != runs[-1]["steps"]:
            raise AssertionError(f"steps {run['steps']}, ASE {runs[-1]['steps']}")
        np.testing.assert_allclose(run["energies"], runs[-1]["energies"], rtol=0, atol=1e-5)


def slabs(n: int) -> list[Atoms]:
    made = []
    for k in range(n):
        atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
        add_adsorbate(atoms, "O", 1.4, "fcc")
        atoms.set_constraint(FixAtoms(mask=atoms.get_tags() > 2))
        atoms.rattle(0.05, seed=k)
        made.append(atoms)
    return made


def cells(n: int) -> list[Atoms]:
    made = []
    for k in range(n):
        atoms = bulk(METALS[k % 7], cubic=True).repeat((1 + k % 2, 1, 1))
        atoms.set_cell(atoms.cell * (0.98 + 0.02 * (k % 3)), scale_atoms=True)
        atoms.rattle(0.05, seed=k)
        made.append(atoms)
    return made


def molecules(n: int) -> list[Atoms]:
    made = [molecule(MOLECULES[k % len(MOLECULES)]) for k in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


def noble_gases() -> list[Atoms]:
    return [atoms for file in sorted(DATA.glob("*.extxyz")) for atoms in read(file, ":")]


def slabs_by_basinax(n: int) -> tuple[Any, Any]:
    from basinax import BFGS
    from basinax.atoms import EMT, relax

    result = relax(slabs(n), EMT(), BFGS(), fmax=0.02, max_steps=200)
    return result.steps, result.energies


def slabs_by_ase(n: int) -> tuple[Any, Any]:
    from ase.calculators.emt import EMT
    from ase.optimize import BFGS

    return one_at_a_time(slabs(n), EMT, lambda atoms: BFGS(atoms, logfile=None), 0.02, 200)


def cells_by_basinax(n: int) -> tuple[Any, Any]:
    from basinax import FIRE
    from basinax.atoms import EMT, Frechet, relax

    result = relax(cells(n), EMT(), FIRE(), cell=Frechet(), fmax=0.02, max_steps=200)
    return result.steps, result.energies


def cells_by_ase(n: int) -> tuple[Any, Any]:
    from ase.calculators.emt import EMT
    from ase.filters import FrechetCellFilter
    from ase.optimize import FIRE

    def optimizer(atoms):
        return FIRE(FrechetCellFilter(atoms), logfile=None)

    return one_at_a_time(cells(n), EMT, optimizer, 0.02, 200)


def noble_gases_by_basinax(n: int) -> tuple[Any, Any]:
    from basinax.cli import main as command

    files = [str(file) for file in sorted(DATA.glob("*.extxyz"))]
    potential = "lennard-jones:Ne,Ar,Kr,Xe,cutoff=8.5"
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/relaxed.extxyz"
        options = ["--potential", potential, "--optimizer", "fire", "--fmax", "0.01"]
        ends = ["--max-steps", "500", "--output", output, "--table", f"{folder}/results.csv"]
        sys.argv = ["basinax", "relax", *files, *options, *ends]
        try:
            command()
        except SystemExit as end:
            if end.code:
                raise
        with Path(folder, "results.csv").open() as table:
            rows = list(csv.DictReader(table))
    assert len(rows) == n
    return [int(row["steps"]) for row in rows], [float(row["energy_eV"]) for row in rows]


def noble_gases_by_ase(n: int) -> tuple[Any, Any]:
    from ase.io import write
    from ase.optimize import FIRE

    atoms = noble_gases()
    assert len(atoms) == n

    def optimizer(atoms):
        return FIRE(atoms, logfile=None)

    def calculator():
        return PairCalculator(noble_gas_pair, NOBLE_GAS_CUTOFF)

    found = one_at_a_time(atoms, calculator, optimizer, 0.01, 500)
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/relaxed.extxyz", atoms)
    return found


def bonds() -> Any:
    """The potential of molecules, for basinax."""
    import jax.numpy as jnp

    from basinax.atoms import AbstractAtomEnergyPotential

    class Bonds(AbstractAtomEnergyPotential):
        species: tuple[int, ...] = (1, 6, 7, 8)

        def reach(self):
            return jnp.full((4, 4), CUTOFF)

        def energy(self, near):
            decay = jnp.exp(-RATE * (near.distances - LENGTH))
            end = jnp.clip(1 - near.distances / CUTOFF, min=0.0) ** 2
            return DEPTH / 2 * jnp.sum(((1 - decay) ** 2 - 1) * end, where=near.is_there)

    return Bonds()


def molecules_by_basinax(n: int) -> tuple[Any, Any]:
    from basinax import FIRE
    from basinax.atoms import relax

    result = relax(molecules(n), bonds(), FIRE(), fmax=0.02, max_steps=300)
    return result.steps, result.energies


def molecules_by_ase(n: int) -> tuple[Any, Any]:
    from ase.optimize import FIRE

    return one_at_a_time(
        molecules(n),
        lambda: PairCalculator(bond, CUTOFF),
        lambda atoms: FIRE(atoms, logfile=None),
        0.02,
        300,
    )


class PairCalculator(Calculator):
    """A potential of pairs as one writes it for ASE: a list with a skin, and NumPy."""

    implemented_properties = ("energy", "forces")

    def __init__(self, pair: Callable[[Any, Any, Any], tuple[Any, Any]], cutoff: float):
        """Args: pair: from two atomic numbers and a distance, the energy and its derivative."""
        super().__init__()
        self.pair, self.cutoff, self.list = pair, cutoff, None

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        atoms = cast(Atoms, self.atoms)
        if self.list is None:
            radii = [self.cutoff / 2] * len(atoms)
            self.list = NeighborList(radii, skin=0.3, self_interaction=False, bothways=True)
        if self.list.update(atoms) or not self.results:
            found = [self.list.get_neighbors(i) for i in range(len(atoms))]
            self.ones = np.repeat(np.arange(len(atoms)), [len(others) for others, _ in found])
            self.others = np.concatenate([others for others, _ in found])
            self.shifts = np.concatenate([shifts for _, shifts in found])
        d = atoms.positions[self.others] - atoms.positions[self.ones]
        d = d + self.shifts @ atoms.cell.array
        r = np.sqrt((d**2).sum(1))
        energies, slopes = self.pair(atoms.numbers[self.ones], atoms.numbers[self.others], r)
        forces = np.zeros_like(atoms.positions)
        np.add.at(forces, self.ones, (slopes / r)[:, None] * d)
        self.results = {"energy": energies.sum() / 2, "forces": forces}


def one_at_a_time(
    atoms: list[Atoms],
    calculator: Callable[[], Any],
    optimizer: Callable[[Atoms], Any],
    fmax: float,
    max_steps: int,
) -> tuple[Any, Any]:
    """Steps and energies of ASE."""
    steps, energies = [], []
    for a in atoms:
        a.calc = calculator()
        run = optimizer(a)
        run.run(fmax=fmax, steps=max_steps)
        steps.append(run.nsteps)
        energies.append(a.get_potential_energy())
    return np.array(steps), np.array(energies)


def noble_gas_pair(of_one: Any, of_other: Any, r: Any) -> tuple[Any, Any]:
    """As `LennardJones.named`, shifted as in ASE."""
    (e1, s1), (e2, s2) = NOBLE_GASES[of_one].T, NOBLE_GASES[of_other].T
    epsilon, sigma = np.sqrt(e1 * e2), (s1 + s2) / 2
    q, shift = (sigma / r) ** 6, (sigma / NOBLE_GAS_CUTOFF) ** 6
    inside = r < NOBLE_GAS_CUTOFF
    energy = 4 * epsilon * (q**2 - q - (shift**2 - shift))
    return np.where(inside, energy, 0), np.where(inside, -24 * epsilon * (2 * q**2 - q) / r, 0)


def bond(of_one: Any, of_other: Any, r: Any) -> tuple[Any, Any]:
    decay, end = np.exp(-RATE * (r - LENGTH)), np.clip(1 - r / CUTOFF, 0, None)
    well = (1 - decay) ** 2 - 1
    slope = 2 * RATE * decay * (1 - decay) * end**2 - 2 * well * end / CUTOFF
    return DEPTH * well * end**2, DEPTH * slope


CASES = {
    **{f"{n} slabs": (n, slabs_by_basinax, slabs_by_ase) for n in (1, 10, 50, 200)},
    "10 cells": (10, cells_by_basinax, cells_by_ase),
    "72 noble gases": (72, noble_gases_by_basinax, noble_gases_by_ase),
    "20 molecules": (20, molecules_by_basinax, molecules_by_ase),
}


def one(name: str, way: str) -> None:
    """Run a case, and print what it found."""
    n, by_basinax, by_ase = CASES[name]
    seconds: list[float] = []
    if way == "ASE":
        steps, energies = by_ase(n)
    else:
        import jax

        def note(event: str, duration_secs: float, **_: str | int) -> None:
            if event == "/jax/core/compile/backend_compile_duration":
                seconds.append(duration_secs)

        jax.monitoring.register_event_duration_secs_listener(note)
        steps, energies = by_basinax(n)
    found = {"steps": np.asarray(steps).tolist(), "energies": np.asarray(energies).tolist()}
    print(json.dumps(found | {"compiling": sum(seconds), "programs": len(seconds)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main(sys.argv[1:])
