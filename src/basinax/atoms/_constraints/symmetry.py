"""Systems that keep their symmetry, as with ASE's `FixSymmetry`: host and device.

The average of a vector per atom over all operations, each of which turns the vectors and permutes
the atoms, is taken by orbits (atoms that operations exchange), which are far fewer than operations:
every vector is turned to where the orbit's first atom stands, these are added in the order of the
atoms, and the sum, averaged over the operations that leave the first atom, is turned back.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.constraints import FixSymmetry
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from basinax._bits.rounding import rounded
from basinax._systems.index import SystemIndex

Rows = Float[Array, "rows 3"]
Tensors = Float[Array, "systems 3 3"]

NO_ATOM = -1
"""What stands in `Symmetry.members` behind the last atom of an orbit."""


def turned(matrices: Float[Array, "rows n n"], x: Float[Array, "rows n"]) -> Float[Array, "rows n"]:
    """A matrix a row times its vector, added in index order."""
    total = rounded(matrices[:, :, 0] * x[:, 0:1])
    for k in range(1, x.shape[1]):
        total = total + rounded(matrices[:, :, k] * x[:, k : k + 1])
    return total


class Symmetry(eqx.Module):
    """The orbits of systems that keep their symmetry."""

    mask: Bool[Array, "systems"]
    """Whose gradients do."""
    moves: Bool[Array, "systems"]
    """Whose steps do."""
    moves_cell: Bool[Array, "systems"]
    """Whose cells' steps do."""
    into: Float[Array, "rows 3 3"]
    """Turns the vector of an atom to that of its orbit's first one."""
    back: Float[Array, "rows 3 3"]
    """Turns the sum over an orbit to the average at an atom."""
    members: Int32[Array, "slots rows"]
    """The rows of an atom's orbit, ascending, then `NO_ATOM`."""
    tensors: Float[Array, "systems 9 9"]
    """The average over the operations for the entries of a 3x3 tensor."""

    def of_gradient(self, x: Rows, index: SystemIndex) -> Rows:
        return self._averaged(x, index, self.mask)

    def of_step(self, x: Rows, index: SystemIndex) -> Rows:
        return self._averaged(x, index, self.moves)

    def of_stress(self, x: Tensors) -> Tensors:
        return self._averaged_tensors(x, self.mask)

    def of_cell_step(self, x: Tensors) -> Tensors:
        return self._averaged_tensors(x, self.moves_cell)

    def _averaged_tensors(self, x: Tensors, mask: Bool[Array, "systems"]) -> Tensors:
        averaged = turned(self.tensors, x.reshape(-1, 9)).reshape(-1, 3, 3)
        return jnp.where(mask[:, None, None], averaged, x)

    def _averaged(self, x: Rows, index: SystemIndex, mask: Bool[Array, "systems"]) -> Rows:
        at_first = turned(self.into, x)

        def add(slot, total):
            rows = self.members[slot]
            vectors = at_first.at[jnp.maximum(rows, 0)].get(mode="promise_in_bounds")
            return total + jnp.where((rows != NO_ATOM)[:, None], vectors, 0.0)

        total = lax.fori_loop(0, self.members.shape[0], add, jnp.zeros_like(x))
        return jnp.where(index.spread(mask, False, x), turned(self.back, total), x)


# --- on the host


class Orbits(NamedTuple):
    """A `FixSymmetry` of one structure, in the terms of `Symmetry`."""

    moves: bool
    moves_cell: bool
    into: Float[np.ndarray, "atoms 3 3"]
    back: Float[np.ndarray, "atoms 3 3"]
    members: Int32[np.ndarray, "slots atoms"]
    tensor: Float[np.ndarray, "9 9"]


def orbits_of(constraint: FixSymmetry, atoms: Atoms) -> Orbits:
    """The orbits of a constraint without faults."""
    found = _orbits(*_operations(constraint, atoms))
    moves, moves_cell = constraint.do_adjust_positions, constraint.do_adjust_cell
    return found._replace(moves=bool(moves), moves_cell=bool(moves_cell))


def padded_slots(n: int) -> int:
    """A power of two, so that few programs serve most structures; 0 for none."""
    return 1 << (n - 1).bit_length() if n else 0


def blank_symmetry(n_slots: int, n_rows: int, n_systems: int, dtype: Any) -> Any:
    """Arrays of the host in which nothing is kept; None without slots."""
    if not n_slots:
        return None

    def full(value: Any, dtype: Any, *shape: int) -> Any:
        return np.full(shape, value, dtype)

    return Symmetry(
        mask=full(False, bool, n_systems),
        moves=full(False, bool, n_systems),
        moves_cell=full(False, bool, n_systems),
        into=full(0.0, dtype, n_rows, 3, 3),
        back=full(0.0, dtype, n_rows, 3, 3),
        members=full(NO_ATOM, np.int32, n_slots, n_rows),
        tensors=full(0.0, dtype, n_systems, 9, 9),
    )


def write_symmetry(symmetry: Any, system: Any, rows: slice, orbits: Orbits | None) -> None:
    """Puts the orbits of one structure into arrays of the host, in place of what was there.

    Args:
        symmetry: of NumPy arrays, as `blank_symmetry` makes them.
        system: the number of its place.
        rows: those of the place, padding included.
    """
    symmetry.mask[system] = orbits is not None
    symmetry.moves[system] = orbits is not None and orbits.moves
    symmetry.moves_cell[system] = orbits is not None and orbits.moves_cell
    symmetry.members[:, rows] = NO_ATOM
    if orbits is None:
        return
    own = slice(rows.start, rows.start + len(orbits.into))
    symmetry.into[own], symmetry.back[own] = orbits.into, orbits.back
    placed = np.where(orbits.members == NO_ATOM, NO_ATOM, orbits.members + rows.start)
    symmetry.members[: len(placed), own] = placed
    symmetry.tensors[system] = orbits.tensor


def fault_of_symmetry(constraint: FixSymmetry, atoms: Atoms) -> str:
    """What is wrong with a constraint; nothing if it is empty."""
    maps = np.array(constraint.symm_map)
    if maps.shape != (len(constraint.rotations), len(atoms)):
        return f"was made for another number of atoms than {len(atoms)}"
    if not abs(np.linalg.det(atoms.cell.array)) > 0:
        return f"needs a cell with a volume, got {atoms.cell.array.tolist()}"
    if (np.sort(maps, axis=1) != np.arange(len(atoms))).any() or not _are_group(
        *_operations(constraint, atoms)
    ):
        return "has operations that are no group: make it with another symprec"
    return ""


def _operations(constraint: FixSymmetry, atoms: Atoms) -> tuple[bytes, bytes, int]:
    """Matrices and maps, as a cache wants them, and the number of atoms."""
    cell = atoms.cell.array
    turns = cell.T @ np.asarray(constraint.rotations, float) @ np.linalg.inv(cell).T
    maps = np.array(constraint.symm_map, np.int64)
    return turns.tobytes(), maps.tobytes(), len(atoms)


def _arrays(turns: bytes, maps: bytes, n_atoms: int) -> tuple[np.ndarray, np.ndarray]:
    targets = np.frombuffer(maps, np.int64).reshape(-1, n_atoms)
    return np.frombuffer(turns).reshape(-1, 3, 3), targets


@functools.lru_cache(maxsize=256)
def _orbits(turns: bytes, maps: bytes, n_atoms: int) -> Orbits:
    matrices, targets = _arrays(turns, maps, n_atoms)
    first = targets.min(0)
    of_first = targets[:, first]
    chosen = matrices[np.argmax(of_first == np.arange(n_atoms), axis=0)]
    leaves_first = (of_first == first).T
    site = np.einsum("ng,gab->nab", leaves_first, matrices) / leaves_first.sum(1)[:, None, None]
    sizes = np.bincount(first, minlength=n_atoms)[first]
    members = np.full((sizes.max(), n_atoms), NO_ATOM, np.int32)
    for atom in np.unique(first):
        orbit = np.flatnonzero(first == atom)
        members[: len(orbit), orbit] = orbit[:, None]
    # σ' = (1/n) Σ Mᵀ σ M
    tensor = np.einsum("gca,gdb->abcd", matrices, matrices) / len(matrices)
    back = chosen @ site / sizes[:, None, None]
    return Orbits(True, True, np.linalg.inv(chosen), back, members, tensor.reshape(9, 9))


@functools.lru_cache(maxsize=256)
def _are_group(turns: bytes, maps: bytes, n_atoms: int) -> bool:
    """Whether the average by orbits is that over all operations: for vectors drawn once."""
    matrices, targets = _arrays(turns, maps, n_atoms)
    vectors = np.random.default_rng(0).normal(size=(n_atoms, 3))
    expected = np.zeros((n_atoms, 3))
    for matrix, target in zip(matrices, targets, strict=True):
        expected[target] += vectors @ matrix.T / len(matrices)
    orbits = _orbits(turns, maps, n_atoms)
    at_first = np.einsum("nab,nb->na", orbits.into, vectors)
    present = (orbits.members != NO_ATOM)[:, :, None]
    total = np.where(present, at_first[orbits.members], 0.0).sum(0)
    return np.allclose(np.einsum("nab,nb->na", orbits.back, total), expected, atol=1e-6)
