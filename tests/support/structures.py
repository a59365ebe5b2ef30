"""Structures that every test over atoms runs on, and how to evaluate them."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc100, fcc111
from ase.cluster import Icosahedron

from basinax.atoms import Batch, LennardJones, Morse, Neighbors, NeighborTable
from basinax.neighbors.lists import ChunkedLists
from basinax.neighbors.rooms import own_room
from basinax.numerics import xla
from basinax.structures.batch import padded_size
from xla import AS_USERS

SKIN = 0.5
CUTOFF = 8.5


def rattled(atoms: Atoms, seed: int, width: float = 0.1) -> Atoms:
    atoms = atoms.copy()
    random = np.random.default_rng(seed)
    atoms.set_positions(atoms.positions + random.normal(0, width, atoms.positions.shape))
    return atoms


def fcc(repeat: int, a: float = 5.3) -> Atoms:
    return bulk("Ar", "fcc", a=a, cubic=True).repeat(repeat)


def skewed_tiny() -> Atoms:
    cell = [[3.6, 0.0, 0.0], [3.3, 3.4, 0.0], [1.5, -1.9, 3.5]]
    return Atoms("Ar2", scaled_positions=[[0.1, 0.2, 0.3], [0.55, 0.7, 0.85]], cell=cell, pbc=True)


def left_handed() -> Atoms:
    atoms = fcc(1)
    atoms.set_cell(np.asarray(atoms.cell)[[1, 0, 2]])
    return atoms


def wire() -> Atoms:
    return Atoms(
        "Ar3", [[0, 0, 0], [1.9, 1.0, 3.2], [-1.5, 0.4, 6.5]], cell=[0, 0, 9], pbc=[0, 0, 1]
    )


def far_slab() -> Atoms:
    """One atom far above a slab, further than its vacuum: vesin alone would end the process."""
    atoms = fcc111("Ar", (2, 2, 2), a=5.3, vacuum=2.0)
    atoms.pbc = [True, True, False]
    return atoms + Atoms("Ar", [[0, 0, 3e6]])


def unwrapped() -> Atoms:
    """Atoms outside their cell, by whole cell vectors that differ."""
    atoms = fcc(2)
    shifts = np.random.default_rng(5).integers(-3, 4, (len(atoms), 3))
    atoms.set_positions(atoms.positions + shifts @ np.asarray(atoms.cell))
    return atoms


def slab_without_third_vector() -> Atoms:
    atoms = fcc100("Ar", (3, 2, 3), a=5.3)
    cell = np.asarray(atoms.cell)
    cell[2] = 0.0
    atoms.set_cell(cell)
    atoms.pbc = [True, True, False]
    return atoms


def cluster(shells: int) -> Atoms:
    atoms = Icosahedron("Ar", shells, 5.3)
    atoms.set_cell(np.zeros((3, 3)))
    return atoms


def two_open_directions() -> Atoms:
    atoms = fcc(2)
    atoms.pbc = [False, True, False]
    return atoms


STRUCTURES = {
    "primitive": bulk("Ar", "fcc", a=5.2),
    "one open atom": Atoms("Ar"),
    "open pair": Atoms("Ar2", [[0, 0, 0], [0, 0, 3.7]]),
    "cell of four": rattled(fcc(1), 1),
    "cell of 32": rattled(fcc(2), 2),
    "cell of 108": rattled(fcc(3), 3, 0.2),
    "cell of 256": rattled(fcc(4), 4),
    "skewed and tiny": skewed_tiny(),
    "left-handed": rattled(left_handed(), 6),
    "slab": rattled(fcc111("Ar", (3, 3, 4), a=5.3, vacuum=6.0, periodic=True), 7),
    "slab, open in z": rattled(slab_without_third_vector(), 8),
    "wire": wire(),
    "open in two directions": rattled(two_open_directions(), 9),
    "slab and a far atom": far_slab(),
    "unwrapped": rattled(unwrapped(), 10),
    "cluster of 13": rattled(cluster(2), 11),
    "cluster of 309": rattled(cluster(5), 12),
    "needle": Atoms("Ar2", [[0, 0, 0], [1.0, 4.0, 3.0]], cell=[2.9, 19, 17], pbc=True),
}

ELEMENTS = ("Ne", "Ar", "Kr", "Xe")


def mixed(atoms: Atoms, seed: int = 0) -> Atoms:
    atoms = atoms.copy()
    atoms.symbols = np.random.default_rng(seed).choice(ELEMENTS, len(atoms))
    return atoms


MORSE = {"epsilon": 0.0134784, "rho0": 5.849, "r0": 3.786, "rcut1": 1.6, "rcut2": CUTOFF / 3.786}

POTENTIALS = {
    "shifted": LennardJones(0.0104, 3.4, CUTOFF),
    "smooth": LennardJones(0.0104, 3.4, CUTOFF, smooth=True),
    "named": LennardJones.named(cutoff=CUTOFF),
    "named and smooth": LennardJones.named(mixing="waldman-hagler", smooth=True, cutoff=7.0),
    "Morse": Morse(**MORSE),
}


def evaluate(
    atoms, potential, dtype=None, skin=SKIN, built_at=None, folded=None, program=None, **shape
):
    """Batch and properties of structures; the lists are made for the structures `built_at`."""
    batch = Batch.from_atoms(atoms, dtype, **shape)
    built = batch if built_at is None else Batch.from_atoms(built_at, dtype, **shape)
    program = jitted if program is None else program
    return batch, program(potential, batch, listed(built, potential, skin, folded))


def evaluate_as_users(*atoms_and_potential, **how):
    """By a program that takes three times as long to compile: where bits are compared."""
    return evaluate(*atoms_and_potential, program=jitted_as_users, **how)


def listed(batch, potential, skin=SKIN, folded=None):
    """The neighbour lists that the potential needs, for folds of all or as in relaxations.

    Args:
        folded: the systems for which folds go through lists, each as far as it must; if None, all
            folds go through all slots.
    """
    lists = potential.lists
    if folded is None and lists is ChunkedLists:
        lists = Neighbors
    table = NeighborTable(
        batch, potential.cutoff, skin, lists=lists, reverse=potential.lists is Neighbors
    )
    which = None if folded is None else np.isin(np.arange(batch.n_systems), folded)
    return table.to_device(which)


def evaluated_op_by_op(batch, potential):
    """From lists no longer than they need to be: each slot is a row of programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("basinax.neighbors.rooms.own_room", own_room)
        patch.setattr("basinax.neighbors.table.padded_size", padded_size)
        neighbors = listed(batch, potential)
    with jax.disable_jit():
        return potential(batch, neighbors, stress=True)


def shapes_of(atoms, potential, dtype, **shape):
    """Shapes and dtypes of what `evaluate` returns, which need no program."""
    batch = Batch.from_atoms(atoms, dtype, **shape)
    return jax.eval_shape(jitted, potential, batch, listed(batch, potential))


def _properties(potential, batch, neighbors):
    return potential(batch, neighbors, stress=True)


jitted = jax.jit(_properties)
jitted_as_users = jax.jit(_properties, compiler_options=AS_USERS)


def with_programs_alone(cells, as_users: Collection[str] = ()):
    """Cells of a name and a dtype with the program of what is alone, every day a quick one.

    With few exceptions that has the bits of single operations, which those of a batch that is
    compiled as users do must be.

    Args:
        as_users: names for which it has others, as unoptimised `exp` has, so that it is compiled
            as users do.
    """
    rows = []
    for cell in cells:
        (name, dtype), marks = cell.values, list(cell.marks)
        label = cell.id or f"{name}-{dtype.__name__}"
        if name not in as_users:
            rows.append(pytest.param(name, dtype, jitted, id=f"{label}-quick", marks=marks))
            marks = [pytest.mark.exhaustive]
        rows.append(pytest.param(name, dtype, jitted_as_users, id=f"{label}-users", marks=marks))
    return pytest.mark.parametrize(("name", "dtype", "program"), rows)


def evaluated_with(options, batch, potential):
    """Properties by a program of its own, that XLA compiles with those of these that it has."""
    args = potential, batch, listed(batch, potential)
    known = {name: value for name, value in options.items() if xla.is_known(name, value)}
    return jitted.lower(*args).compile(compiler_options=known)(*args)


def results_of(batch, properties, k: int) -> list[np.ndarray]:
    """Everything that belongs to the k-th system, on the host."""
    rows = np.flatnonzero(np.asarray(batch.index.ids) == k)
    per_row = (properties.forces, properties.atom_energies)
    per_system = (properties.energies, properties.stress)
    return [np.asarray(x)[rows] for x in per_row] + [np.asarray(x)[k] for x in per_system]


def moved(batch: Batch, positions) -> Batch:
    """The batch with other positions."""
    return Batch(
        positions=jnp.asarray(positions, batch.positions.dtype),
        numbers=batch.numbers,
        cells=batch.cells,
        pbc=batch.pbc,
        index=batch.index,
    )
