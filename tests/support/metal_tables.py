"""Files of embedded-atom tables, written from an analytic form, and metals to evaluate on them."""

import functools
import tempfile
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.eam import EAM as ASEEAM
from ase.units import Bohr, Hartree

from basinax.atoms import EAM
from structures import STRUCTURES

ELEMENTS = ("Ni", "Al", "Cu")
"""Not in the order of atomic numbers."""

N_RHO, N_R, CUTOFF = 400, 500, 5.5
DRHO, DR = 0.1, CUTOFF / (N_R - 1)
"""Coarse, so that one interpolation differs from another far beyond rounding."""

RADII = {"Ni": 2.49, "Al": 2.86, "Cu": 2.56}
"""The distance of nearest neighbours, in Å."""

SCALE = 0.7
"""Turns structures of noble gases into ones of metals."""


def embedding(element: str, rho: np.ndarray) -> np.ndarray:
    return -0.4 * RADII[element] * np.sqrt(rho) + 0.01 * rho


def density(at: str, by: str, r: np.ndarray) -> np.ndarray:
    return RADII[by] * (1 + 0.1 * RADII[at]) * np.exp(-3 * (r / RADII[by] - 1)) * _end(r)


def pair(a: str, b: str, r: np.ndarray) -> np.ndarray:
    """r φ; not negative, as a funcfl file holds its square root."""
    return 3 * np.exp(-6 * (r / np.sqrt(RADII[a] * RADII[b]) - 1)) * _end(r)


def _end(r: np.ndarray) -> np.ndarray:
    return np.clip(1 - r / CUTOFF, 0, None) ** 3


RHO, R = np.arange(N_RHO) * DRHO, np.arange(N_R) * DR
GRID = f"{N_RHO} {DRHO!r} {N_R} {DR!r} {CUTOFF!r}"


def words(values: np.ndarray) -> list[str]:
    """Five on a line, as most files have them."""
    texts = [repr(float(v)) for v in values]
    return [" ".join(texts[k : k + 5]) for k in range(0, len(texts), 5)]


def setfl(elements=ELEMENTS, per_pair: bool = False) -> str:
    """A setfl file; with densities per pair, a Finnis-Sinclair one."""
    lines = ["three", "lines of", "comments 1 2 3", f"{len(elements)} {' '.join(elements)}", GRID]
    for element in elements:
        lines += [f"{Atoms(element).numbers[0]} 60.0 3.6 fcc", *words(embedding(element, RHO))]
        for other in elements if per_pair else elements[:1]:
            lines += words(density(other if per_pair else "Cu", element, R))
    for k, a in enumerate(elements):
        for b in elements[: k + 1]:
            lines += words(pair(a, b, R))
    return "\n".join(lines) + "\n"


def funcfl(element: str = "Cu") -> str:
    charge = np.sqrt(pair(element, element, R) / (Hartree * Bohr))
    lines = ["a comment", f"{Atoms(element).numbers[0]} 60.0 3.6 fcc", GRID]
    for values in (embedding(element, RHO), charge, density(element, element, R)):
        lines += words(values)
    return "\n".join(lines) + "\n"


FILES = {
    "mix.eam.alloy": setfl(),
    "mix.eam.fs": setfl(per_pair=True),
    "one.eam": funcfl(),
}


@functools.cache
def folder() -> Path:
    """Where the files are, as long as the process lives."""
    folder.kept = tempfile.TemporaryDirectory()
    for name, text in FILES.items():
        (Path(folder.kept.name) / name).write_text(text)
    return Path(folder.kept.name)


@functools.cache
def potential(name: str) -> EAM:
    return EAM.read(folder() / name)


def reference(name: str) -> ASEEAM:
    return ASEEAM(potential=str(folder() / name))


def metal(structure: str, elements=ELEMENTS, seed: int = 0, scale: float = SCALE) -> Atoms:
    """A structure of noble gases made smaller, of random ones of these elements."""
    atoms = STRUCTURES[structure].copy()
    atoms.set_cell(np.asarray(atoms.cell) * scale)
    atoms.set_positions(atoms.positions * scale)
    atoms.symbols = np.random.default_rng(seed).choice(elements, len(atoms))
    return atoms


def metal_for(name: str, structure: str, **how) -> Atoms:
    """Of the elements that a file of `FILES` has."""
    return metal(structure, ("Cu",) if name == "one.eam" else ELEMENTS, **how)
