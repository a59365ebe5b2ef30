"""Evaluations that optimizers need where an evaluation is what costs: molecules, crystals, slabs.

- `molecules`: the 20 of data/molecules.extxyz, made from SMILES of common compounds with a
  distance-geometry embedder, 12 to 48 atoms, by GFN2-xTB (`pip install tblite`), fmax 0.05.
- `molecules 0.01`, `molecules 0.001`: the same to these fmax.
- `others`: 20 more, kept back: the recipe was fixed before they were made (data/_kept_back.py).
- `g2`: the molecules of the G2 set in ASE with at least four atoms and an even number of electrons,
  rattled by 0.1 Å; GFN2-xTB, fmax 0.05.
- `bad starts`: twelve of the 20 rattled by 0.3 Å, six molecules with a bond 1.6 times as long, and
  six pairs of small ones 1.2 Å apart; GFN2-xTB, fmax 0.05.
- `molecular crystals`: urea, carbon dioxide and ammonia, rattled and strained, with cells that
  move; GFN1-xTB, fmax 0.05.
- `crystals`: nine alloys and silicon cells, rattled and strained, with cells that move; ASE's EMT,
  and Stillinger and Weber's silicon; fmax 0.02.
- `salts`: nine oxides, halides and semiconductors, rattled by 0.08 Å and strained, with cells that
  move; Nequix-MP-1 in single precision, fmax 0.02. Its weights are no part of this project: a file
  beside the checkout, or `--weights FILE`; without them its sets are left out.
- `slabs`: an oxygen atom on slabs of six metals whose lowest layer is fixed; EMT, fmax 0.02.
- `adsorbates`: eight molecules, turned at random, above metal slabs whose lowest layer is fixed;
  Nequix-MP-1 in single precision, fmax 0.05.
- `clusters`: ten random clusters of 38 atoms that lj38.py grows, by Lennard-Jones with the
  parameters of copper, to forces of 0.01 in reduced units.

All optimizers begin at the same structures. What is not done after 500 evaluations (of clusters,
2000) has failed, and they count. Beside ours stand ASE's optimizers, and Sella in internal
coordinates (`pip install sella`) for molecules. Evaluations and energies (eV) of each structure are
recorded, null where it failed; docs/pictures/_evaluations.py makes a table and a plot of them.

    python benchmarks/evaluations.py [--sets molecules ...] [--only NAME ...] [--weights FILE]
"""

import argparse
import functools
import itertools
import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ase.optimize
import jax
import numpy as np
from _timing import report
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.collections import g2
from ase.constraints import FixAtoms
from ase.filters import FrechetCellFilter
from ase.io import read
from ase.spacegroup import crystal
from lj38 import grown_clusters

from basinax import BFGS, FIRE, LBFGS
from basinax.atoms import (
    ASECalculator,
    Frechet,
    InternalLBFGS,
    JaxModel,
    StillingerWeber,
    evaluate,
    relax,
)

CAP = 500

OPTIMIZERS = {
    "InternalLBFGS": InternalLBFGS(),
    "InternalLBFGS, stiffness / 20": InternalLBFGS(stiffness=1 / 20),
    "InternalLBFGS, stiffness x 20": InternalLBFGS(stiffness=20.0),
    "LBFGS": LBFGS(),
    "BFGS": BFGS(),
    "FIRE": FIRE(),
}
OF_MOLECULES = ("molecules", "molecules 0.01", "molecules 0.001", "others", "g2", "bad starts")
OF_NEQUIX = ("salts", "adsorbates")
THEIRS = {
    "ASE FIRE": ase.optimize.FIRE,
    "ASE LBFGS": ase.optimize.LBFGS,
    "ASE BFGS": ase.optimize.BFGS,
}


class Problems(NamedTuple):
    """Structures, how each is evaluated, and until when."""

    atoms: list[Atoms]
    make: list[Callable[[], Any]]
    fmax: float
    is_moving: bool = False
    most: int = CAP
    """Evaluations after which a structure has failed."""
    model: JaxModel | None = None
    """Evaluates for our optimizers, where it does so by itself; in single precision."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore")
    logging.disable()
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    for name in arguments.sets:
        needs_weights = name in OF_NEQUIX
        if needs_weights and not arguments.weights.exists():
            print(f"{name}: left out: there are no weights of Nequix-MP-1 at {arguments.weights}")
            continue
        problems = SETS[name](arguments.weights) if needs_weights else SETS[name]()
        for optimizer in [*OPTIMIZERS, *THEIRS, "Sella"]:
            is_left_out = optimizer == "Sella" and name not in OF_MOLECULES
            if not is_left_out and (not arguments.only or optimizer in arguments.only):
                begin = time.perf_counter()
                ends = relaxed(optimizer, problems)
                seconds = time.perf_counter() - begin
                report("evaluations", [row(name, optimizer, *ends, seconds)])


def row(name, optimizer, evaluations, energies, converged, seconds) -> dict[str, Any]:
    return {
        "set": name,
        "optimizer": optimizer,
        "structures": len(evaluations),
        "mean": float(np.mean(evaluations)),
        "median": float(np.median(evaluations)),
        "most": int(np.max(evaluations)),
        "failed": int((~converged).sum()),
        "seconds": seconds,
        "evaluations": np.asarray(evaluations).tolist(),
        "energies": [
            round(float(energy), 6) if is_done else None
            for energy, is_done in zip(energies, converged, strict=True)
        ],
    }


# --- the sets


DATA = Path(__file__).parent / "data"
WEIGHTS = Path(__file__).parents[2] / "shared" / "data" / "nequix-mp-1.nqx"


def by_xtb(
    atoms: list[Atoms], method: str = "GFN2-xTB", fmax: float = 0.05, **how: Any
) -> Problems:
    from tblite.ase import TBLite

    make = functools.partial(TBLite, method=method, verbosity=0)
    return Problems(atoms, [make] * len(atoms), fmax, **how)


def molecules(fmax: float = 0.05) -> Problems:
    return by_xtb(read(DATA / "molecules.extxyz", ":"), fmax=fmax)


def others() -> Problems:
    return by_xtb(read(DATA / "kept_back.extxyz", ":"))


def small() -> Problems:
    draw = np.random.default_rng(6)
    made = [a for a in map(molecule, g2.names) if len(a) >= 4 and a.numbers.sum() % 2 == 0]
    for atoms in made:
        atoms.positions += 0.1 * draw.standard_normal(atoms.positions.shape)
    return by_xtb(made)


def bad_starts() -> Problems:
    draw = np.random.default_rng(8)  # with 7, GFN2-xTB finds no density for one of them
    made = read(DATA / "molecules.extxyz", ":12")
    for atoms in made:
        atoms.positions += 0.3 * draw.standard_normal(atoms.positions.shape)
    stretched = [("CH3OH", 0, 1), ("CH3CN", 0, 1), ("H2CO", 0, 1), ("C2H6", 0, 1)]
    for name, i, k in [*stretched, ("CH3Cl", 0, 1), ("H2O2", 0, 1)]:
        atoms = molecule(name)
        atoms.set_distance(i, k, 1.6 * atoms.get_distance(i, k), fix=0)
        made.append(atoms)
    for name, other in itertools.combinations(("CH4", "H2O", "NH3", "HCN"), 2):
        one, two = molecule(name), molecule(other)
        apart = np.ptp(one.positions[:, 0]) + 1.2
        two.positions[:, 0] += one.positions[:, 0].min() + apart - two.positions[:, 0].min()
        made.append(one + two)
    return by_xtb(made)


def molecular_crystals() -> Problems:
    """Sites by diffraction, in fractions of the cells, as in textbooks."""
    urea = crystal(
        ["C", "O", "N", "H", "H"],
        [
            (0, 0.5, 0.326),
            (0, 0.5, 0.5953),
            (0.1459, 0.6459, 0.1766),
            (0.2575, 0.7575, 0.2827),
            (0.1441, 0.6441, -0.0380),
        ],
        spacegroup=113,
        cellpar=[5.565, 5.565, 4.684, 90, 90, 90],
    )
    sites = [(0, 0, 0), (0.1185, 0.1185, 0.1185)]
    dioxide = crystal(["C", "O"], sites, spacegroup=205, cellpar=[5.62] * 3 + [90] * 3)
    sites = [(0.2107, 0.2107, 0.2107), (0.3689, 0.2671, 0.1159)]
    ammonia = crystal(["N", "H"], sites, spacegroup=198, cellpar=[5.13] * 3 + [90] * 3)
    made = [urea, dioxide, ammonia]
    for atoms in made:
        draw = np.random.default_rng(4).standard_normal
        atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.03 * draw((3, 3))), scale_atoms=True)
        atoms.positions += 0.05 * draw(atoms.positions.shape)
    return by_xtb(made, "GFN1-xTB", is_moving=True)


def crystals() -> Problems:
    draw = np.random.default_rng(4)
    alloys = [("Cu", {0: "Au"}), ("Cu", {0: "Pd", 1: "Pd"}), ("Ni", {3: "Al"}), ("Ag", {2: "Au"})]
    made, make = [], []
    for k, (host, guests) in enumerate([*alloys, ("Pt", {1: "Cu", 2: "Ni"}), ("Al", {})]):
        atoms = bulk(host, cubic=True)
        for at, symbol in guests.items():
            atoms.symbols[at] = symbol
        made.append(atoms.repeat((2, 1 + k % 2, 1 + (k > 2))))
        make.append(EMT)
    for repeats in ((1, 1, 1), (2, 1, 1), (2, 2, 2)):
        made.append(bulk("Si", cubic=True).repeat(repeats))
        make.append(silicon)
    for atoms in made:
        strain = np.eye(3) + 0.03 * draw.standard_normal((3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += 0.1 * draw.standard_normal(atoms.positions.shape)
    return Problems(made, make, 0.02, is_moving=True)


def silicon() -> Any:
    return StillingerWeber.named("Si").calculator()


def salts(weights: Path = WEIGHTS) -> Problems:
    """Sites and cells as in textbooks."""
    right = [90, 90, 90]
    sites = [(0, 0, 0), (0.305, 0.305, 0)]
    rutile = crystal(["Ti", "O"], sites, spacegroup=136, cellpar=[4.594, 4.594, 2.959, *right])
    sites = [(0, 0, 0), (0.5, 0.5, 0.5), (0.5, 0.5, 0)]
    elements, cell = ["Sr", "Ti", "O"], [3.905] * 3 + right
    perovskite = crystal(elements, sites, spacegroup=221, cellpar=cell)
    made = [
        bulk("NaCl", "rocksalt", 5.64, cubic=True),
        bulk("MgO", "rocksalt", 4.212, cubic=True),
        bulk("ZnS", "zincblende", 5.409, cubic=True),
        bulk("GaAs", "zincblende", 5.653, cubic=True),
        bulk("ZnO", "wurtzite", 3.25, c=5.207),
        bulk("GaN", "wurtzite", 3.189, c=5.185),
        bulk("CaF2", "fluorite", 5.463),
        rutile,
        perovskite,
    ]
    draw = np.random.default_rng(9)
    for atoms in made:
        strain = np.eye(3) + draw.uniform(-0.04, 0.04, (3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        atoms.positions += 0.08 * draw.standard_normal(atoms.positions.shape)
    return by_nequix(made, weights, 0.02, is_moving=True)


METALS = ("Cu", "Pt", "Ni", "Pd", "Au", "Al", "Ag", "Pt")
GUESTS = ("CO", "H2O", "NH3", "CH3OH", "C2H4", "CO2", "HCOOH", "H3CNH2")


def adsorbates(weights: Path = WEIGHTS) -> Problems:
    """Their lowest atoms are 2 Å above an atom of the metal."""
    draw = np.random.default_rng(10)
    made = []
    for metal, name in zip(METALS, GUESTS, strict=True):
        atoms, guest = fcc111(metal, (2, 2, 3), vacuum=8.0), molecule(name)
        guest.euler_rotate(*draw.uniform(0, 360, 3))
        lowest = guest.positions[guest.positions[:, 2].argmin()]
        guest.translate(atoms.positions[-1] + [0, 0, 2] - lowest)
        atoms.set_constraint(FixAtoms(atoms.get_tags() == 3))
        made.append(atoms + guest)
    return by_nequix(made, weights, 0.05)


def by_nequix(made: list[Atoms], weights: Path, fmax: float, **how: Any) -> Problems:
    model = JaxModel.nequix(weights)
    return Problems(made, [lambda: OfModel(model)] * len(made), fmax, model=model, **how)


class OfModel(Calculator):
    """A model for ASE's optimizers: one structure at a time, by the programs of ours."""

    implemented_properties: ClassVar = ["energy", "forces", "stress"]

    def __init__(self, model: JaxModel):
        super().__init__()
        self.model = model

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        bare = self.atoms.copy()
        bare.set_constraint()
        has_stress = bool(bare.pbc.any())
        self.results = evaluate([bare], self.model, stress=has_stress).atoms[0].calc.results


def slabs() -> Problems:
    draw = np.random.default_rng(5)
    made = []
    for metal in ("Cu", "Pt", "Ni", "Pd", "Au", "Al"):
        atoms = fcc111(metal, (2, 2, 3), vacuum=8.0)
        add_adsorbate(atoms, "O", 1.5, "fcc")
        atoms.positions += 0.05 * draw.standard_normal(atoms.positions.shape)
        atoms.set_constraint(FixAtoms(atoms.get_tags() == 3))
        made.append(atoms)
    return Problems(made, [EMT] * len(made), 0.02)


def clusters() -> Problems:
    """T. Halicioglu and G. M. Pound, Phys. Status Solidi A 30, 619 (1975)."""
    sigma, epsilon = 2.338, 0.4094
    made = [Atoms("Cu38", sigma * x) for x in grown_clusters(10)]
    make = functools.partial(LennardJones, sigma=sigma, epsilon=epsilon, rc=100.0)
    return Problems(made, [make] * len(made), 0.01 * epsilon / sigma, most=2000)


SETS = {
    "molecules": molecules,
    "molecules 0.01": functools.partial(molecules, 0.01),
    "molecules 0.001": functools.partial(molecules, 0.001),
    "others": others,
    "g2": small,
    "bad starts": bad_starts,
    "molecular crystals": molecular_crystals,
    "crystals": crystals,
    "salts": salts,
    "slabs": slabs,
    "adsorbates": adsorbates,
    "clusters": clusters,
}


# --- the optimizers


def relaxed(name: str, problems: Problems) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluations, energies, and which have converged."""
    if name not in OPTIMIZERS:
        ends = [
            theirs(name, *each, problems)
            for each in zip(problems.atoms, problems.make, strict=True)
        ]
        evaluations, energies, converged = map(np.array, zip(*ends, strict=True))
        return evaluations, energies, converged
    atoms = [a.copy() for a in problems.atoms]
    potential = problems.model
    if potential is None and len(set(problems.make)) == 1:
        potential = ASECalculator(problems.make[0])
    for a, make in zip(atoms, problems.make, strict=True):
        a.calc = make() if potential is None else None
    result = relax(
        atoms,
        potential,
        OPTIMIZERS[name],
        cell=Frechet() if problems.is_moving else None,
        fmax=problems.fmax,
        max_steps=problems.most - 1,
    )
    return result.evaluations, result.energies, result.converged


def theirs(name: str, start: Atoms, make: Callable[[], Any], problems: Problems):
    atoms = start.copy()
    atoms.calc, counted = make(), 0
    calculate = atoms.calc.calculate

    def counting(*arguments, **options):
        nonlocal counted
        counted += 1
        return calculate(*arguments, **options)

    atoms.calc.calculate = counting
    moved = FrechetCellFilter(atoms) if problems.is_moving else atoms
    try:
        optimizer = made(name, moved)
        converged = bool(optimizer.run(fmax=problems.fmax, steps=problems.most - 1))
        return counted, float(atoms.get_potential_energy()), converged and counted <= problems.most
    except Exception as error:
        print(f"{name}: {start.symbols} failed: {error}")
        return problems.most, float("inf"), False


def made(name: str, atoms: Any) -> Any:
    if name != "Sella":
        return THEIRS[name](atoms, logfile=None)
    from sella import Sella

    return Sella(atoms, order=0, internal=True, logfile=None)


if __name__ == "__main__":
    main()
