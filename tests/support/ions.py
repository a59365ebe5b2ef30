"""Structures of ions, potentials for them, and what plain NumPy makes of both."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.units import Bohr, Hartree

from basinax.atoms import Buckingham
from structures import STRUCTURES, rattled


def salt(repeat=1, a=4.4, seed=1) -> Atoms:
    return rattled(bulk("SiO", "rocksalt", a=a, cubic=True).repeat(repeat), seed, 0.08)


def slab() -> Atoms:
    """Without a third cell vector; not neutral."""
    atoms = salt((2, 1, 1), seed=2)[:-3]
    cell = np.asarray(atoms.cell)
    cell[2] = 0.0
    atoms.set_cell(cell)
    atoms.pbc = [True, True, False]
    return atoms


def skewed_tiny() -> Atoms:
    cell = [[3.1, 0.0, 0.0], [2.8, 3.0, 0.0], [1.4, -1.7, 3.2]]
    return Atoms("SiO", scaled_positions=[[0.1, 0.2, 0.3], [0.6, 0.7, 0.9]], cell=cell, pbc=True)


def cluster() -> Atoms:
    atoms = salt(2, seed=3)[:13]
    atoms.pbc = False
    atoms.set_cell(np.zeros((3, 3)))
    return atoms


def cristobalite() -> Atoms:
    """The idealised cubic structure: Si on a diamond lattice, O halfway between."""
    silicon = bulk("Si", "diamond", a=7.16, cubic=True)
    positions = silicon.positions
    bonds = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 7.16 / 8
    oxygen = np.concatenate([positions[k] + bonds for k in (0, 2, 4, 6)])
    atoms = silicon + Atoms("O16", oxygen)
    return rattled(atoms, 4, 0.05)


def far_slab() -> Atoms:
    atoms = STRUCTURES["slab and a far atom"].copy()
    atoms.symbols = np.random.default_rng(5).choice(["Si", "O"], len(atoms))
    return atoms


SYSTEMS = {
    "one open atom": Atoms("O"),
    "open pair": Atoms("SiO", [[0, 0, 0], [0.3, 0.4, 1.6]]),
    "salt of 8": salt(),
    "salt of 64": salt(2),
    "slab": slab(),
    "skewed and tiny": skewed_tiny(),
    "cluster of 13": cluster(),
    "silica": cristobalite(),
    "slab and a far atom": far_slab(),
    "needle": Atoms("OSi", [[0, 0, 0], [1.2, 4.0, 3.0]], cell=[3.4, 19, 17], pbc=True),
}


class Parameters(NamedTuple):
    """Tables over O and Si, in this order; of one number each where all atoms are alike."""

    a: np.ndarray
    rho: np.ndarray
    c: np.ndarray
    q: np.ndarray
    alpha: float = 0.2
    cutoff: float = 9.0
    short: float = 9.0
    shift: bool = True


BKS = Parameters(
    a=np.array([[1388.7730, 18003.7572], [18003.7572, 0.0]]),
    rho=np.array([[1 / 2.76, 1 / 4.87318], [1 / 4.87318, 1.0]]),
    c=np.array([[175.0, 133.5381], [133.5381, 0.0]]),
    q=np.array([-1.2, 2.4]),
)
PARAMETERS = {
    "BKS": BKS,
    "short and unshifted": BKS._replace(short=5.5, shift=False, alpha=0.3),
    "undamped": BKS._replace(alpha=0.0, q=np.array([-0.4, 1.1])),
    "without charges": BKS._replace(q=np.zeros(2)),
    "all alike": Parameters(
        np.full((2, 2), 2000.0), np.full((2, 2), 0.3), np.full((2, 2), 40.0), np.full(2, 0.7)
    ),
}
NAMES = {("O", "O"): (0, 0), ("O", "Si"): (0, 1)}


def _made(p: Parameters, **charges) -> Buckingham:
    a, rho, c = ({pair: t[at] for pair, at in NAMES.items()} for t in (p.a, p.rho, p.c))
    short = None if p.short == p.cutoff else p.short
    how = {"alpha": p.alpha, "cutoff": p.cutoff, "short_cutoff": short, "shift": p.shift}
    return Buckingham(a, rho, c, **charges, **how)


def _with_charges(p: Parameters) -> Buckingham:
    return _made(p, q={"O": p.q[0], "Si": p.q[1]})


POTENTIALS = {
    "BKS": Buckingham.named("BKS", cutoff=9.0),
    "short and unshifted": _with_charges(PARAMETERS["short and unshifted"]),
    "undamped": _with_charges(PARAMETERS["undamped"]),
    "without charges": _made(PARAMETERS["without charges"]),
    "all alike": Buckingham(2000.0, 0.3, 40.0, 0.7, cutoff=9.0),
}


def field(r: float, alpha: float) -> float:
    """The damped field of a charge: −d/dr of erfc(αr)/r."""
    x = alpha * r
    return math.erfc(x) / r**2 + 2 * alpha / math.sqrt(math.pi) * math.exp(-x * x) / r


def pair_terms(r: float, p: Parameters, i: int, j: int) -> tuple[float, float]:
    """The energy of a pair within the cutoff in eV, written as in the papers, and dE/dr."""
    energy = slope = 0.0
    if r <= p.short:
        a, rho, c = p.a[i, j], p.rho[i, j], p.c[i, j]
        energy = a * math.exp(-r / rho) - c / r**6
        slope = 6 * c / r**7 - a / rho * math.exp(-r / rho)
        energy -= p.shift * (a * math.exp(-p.short / rho) - c / p.short**6)
    end, product = p.cutoff, Hartree * Bohr * p.q[i] * p.q[j]
    bare = math.erfc(p.alpha * r) / r - math.erfc(p.alpha * end) / end
    energy += product * (bare + field(end, p.alpha) * (r - end))
    return energy, slope - product * (field(r, p.alpha) - field(end, p.alpha))


def own_energy(q: float, p: Parameters) -> float:
    """As LAMMPS has it in `pair_style coul/dsf`."""
    shift = math.erfc(p.alpha * p.cutoff) / p.cutoff + field(p.cutoff, p.alpha) * p.cutoff
    return -Hartree * Bohr * q**2 * (shift / 2 + p.alpha / math.sqrt(math.pi))


def shifts_of(atoms: Atoms, reach: float) -> np.ndarray:
    """Displacements of all images that may be within reach of an atom in the cell."""
    cell = np.asarray(atoms.cell.complete())
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    spread = np.abs(np.ptp(atoms.positions @ np.linalg.inv(cell), axis=0))
    counts = np.where(atoms.pbc, np.ceil(reach / heights + spread), 0).astype(int)
    return np.array(list(itertools.product(*(range(-n, n + 1) for n in counts)))) @ cell


def evaluated(atoms: Atoms, p: Parameters) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Energies of atoms, forces and the 3x3 virial, by a double loop over atoms and images."""
    kinds = [{"O": 0, "Si": 1}[s] for s in atoms.symbols]
    energies = np.array([own_energy(p.q[k], p) for k in kinds])
    forces, virial = np.zeros((len(atoms), 3)), np.zeros((3, 3))
    shifts = shifts_of(atoms, p.cutoff)
    for i, j in itertools.product(range(len(atoms)), repeat=2):
        vectors = atoms.positions[j] - atoms.positions[i] + shifts
        distances = np.linalg.norm(vectors, axis=1)
        for at in np.flatnonzero((distances <= p.cutoff) & (distances > 0)):
            energy, slope = pair_terms(float(distances[at]), p, kinds[i], kinds[j])
            pull = slope / distances[at] * vectors[at]
            energies[i] += energy / 2
            forces[i] += pull
            virial += np.outer(pull, vectors[at]) / 2
    return energies, forces, virial
