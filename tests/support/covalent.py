"""Structures of tetrahedral semiconductors, and three-body potentials to evaluate on them."""

import itertools

import numpy as np
from ase import Atoms
from ase.build import bulk, diamond100

from basinax.atoms import StillingerWeber, StillingerWeberTriplet, Tersoff, TersoffTriplet
from basinax.potentials import stillinger_weber, tersoff
from structures import rattled

A = 5.431
"""The lattice constant of silicon, in Å."""


def diamond(repeat: int = 1) -> Atoms:
    return bulk("Si", "diamond", a=A, cubic=True).repeat(repeat)


def cluster() -> Atoms:
    """All atoms of a crystal around one of its bonds."""
    atoms = diamond(3)
    middle = atoms.positions.mean(0)
    atoms = atoms[np.linalg.norm(atoms.positions - middle, axis=1) < 4.6]
    atoms.set_cell(np.zeros((3, 3)))
    atoms.pbc = False
    return atoms


def slab() -> Atoms:
    """Open in z, without a third cell vector."""
    atoms = diamond100("Si", (2, 2, 5), a=A)
    cell = np.asarray(atoms.cell)
    cell[2] = 0.0
    atoms.set_cell(cell)
    atoms.pbc = [True, True, False]
    return atoms


def skewed_tiny() -> Atoms:
    cell = [[2.6, 0.0, 0.0], [2.3, 2.7, 0.0], [1.1, -1.4, 2.8]]
    scaled = [[0.1, 0.2, 0.3], [0.55, 0.7, 0.85]]
    return Atoms("Si2", scaled_positions=scaled, cell=cell, pbc=True)


def squeezed() -> Atoms:
    """Closer than they like to be: the fullest surroundings."""
    atoms = rattled(diamond(), 4, 0.3)
    atoms.set_cell(0.85 * np.asarray(atoms.cell), scale_atoms=True)
    return atoms


def unwrapped() -> Atoms:
    """Atoms outside their cell, by whole cell vectors that differ."""
    atoms = rattled(diamond(2), 5)
    shifts = np.random.default_rng(5).integers(-3, 4, (len(atoms), 3))
    atoms.set_positions(atoms.positions + shifts @ np.asarray(atoms.cell))
    return atoms


SYSTEMS = {
    "one open atom": Atoms("Si"),
    "pair": Atoms("Si2", [[0, 0, 0], [0.3, 0.2, 2.3]]),
    "bent": Atoms("Si3", [[0, 0, 0], [0.3, 0.2, 2.3], [0.7, -2.1, -0.4]]),
    "primitive": bulk("Si", "diamond", a=A),
    "cell of 8": rattled(diamond(), 1),
    "cell of 64": rattled(diamond(2), 2, 0.2),
    "skewed and tiny": skewed_tiny(),
    "one atom, tiny": Atoms("Si", cell=[[2.4, 0, 0], [0.1, 2.5, 0], [0, 0.2, 2.6]], pbc=True),
    "slab": rattled(slab(), 3),
    "cluster": rattled(cluster(), 6),
    "squeezed": squeezed(),
    "unwrapped": unwrapped(),
    "needle": Atoms("Si2", [[0, 0, 0], [1.0, 1.9, 0.5]], cell=[2.3, 19, 17], pbc=True),
}


def of(elements, name: str, scale: float = 1.0) -> Atoms:
    """A structure of these elements, at random, with all lengths scaled."""
    atoms = SYSTEMS[name].copy()
    random = np.random.default_rng(list(SYSTEMS).index(name))
    atoms.symbols = random.choice(elements, len(atoms))
    atoms.set_cell(scale * np.asarray(atoms.cell))
    atoms.set_positions(scale * atoms.positions)
    return atoms


def varied(entry, elements, seed: int, **choices) -> dict:
    """Triplets around an entry, each with other numbers, by 5 %."""
    random = np.random.default_rng(seed)
    triplets = {}
    for key in itertools.product(elements, repeat=3):
        numbers = np.array(entry) * random.uniform(0.95, 1.05, len(entry))
        triplets[key] = type(entry)(*numbers.tolist())._replace(
            **{name: random.choice(values).item() for name, values in choices.items()}
        )
    return triplets


def varied_angles(elements, seed: int) -> dict[tuple[str, str, str], StillingerWeberTriplet]:
    """Powers that are no integers, and angles that do not mind which neighbour is the first."""
    triplets = varied(stillinger_weber.NAMED["Si"]._replace(q=0.1), elements, seed)
    same = ("epsilon", "lambda_", "cos_theta0")
    return {
        (i, j, k): entry._replace(
            **{name: getattr(triplets[i, min(j, k), max(j, k)], name) for name in same}
        )
        for (i, j, k), entry in triplets.items()
    }


def varied_bonds(elements, seed: int) -> dict[tuple[str, str, str], TersoffTriplet]:
    """Cutoffs that depend on both neighbours, and both powers."""
    return varied(tersoff.SILICON, elements, seed, m=[1.0, 3.0])


SILICON, MIXED = ("Si",), ("Si", "C", "Ge")

POTENTIALS = {
    "StillingerWeber": (StillingerWeber.named("Si"), SILICON, 1.0),
    "StillingerWeber, mixed": (StillingerWeber(varied_angles(MIXED, 1)), MIXED, 1.0),
    "Tersoff": (Tersoff.named("Si"), SILICON, 1.0),
    "Tersoff, carbide": (Tersoff.named("Si", "C"), ("Si", "C"), 0.8),
    "Tersoff, mixed": (Tersoff(varied_bonds(MIXED, 2)), MIXED, 1.0),
}
"""Each with the elements of its structures and their lengths relative to silicon's."""
