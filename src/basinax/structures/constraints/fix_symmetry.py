"""Systems that keep their symmetry, as with ASE's `FixSymmetry`: host and device.

Each operation turns the vectors and permutes the atoms. The average of a vector per atom over all
operations is computed by orbits (atoms that operations exchange), which are far fewer than
operations. Every vector is turned to the position of the orbit's first atom, the turned vectors are
added in the order of atoms, and the sum is averaged over operations that fix the first atom and
turned back.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.constraints import FixSymmetry
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from basinax.structures.constraints.protocol import (
    AbstractKind,
    AbstractPart,
    Room,
    Rows,
    Stages,
    Turn,
    Turning,
)
from basinax.structures.matrices import Matrices, multiply, transposed, turned, turned_rows
from basinax.systems.index import SystemIndex

NO_ATOM = -1
"""Fills `Symmetry.members` after the last atom of an orbit."""


ON_AXES = 1e-9
"""The tolerance between a symmetric cell and its average over the operations."""


class Orbits(NamedTuple):
    """A `FixSymmetry` of one structure, with the fields of `Symmetry`."""

    moves: bool
    moves_cell: bool
    into: Float[np.ndarray, "atoms 3 3"]
    back: Float[np.ndarray, "atoms 3 3"]
    members: Int32[np.ndarray, "slots atoms"]
    tensor: Float[np.ndarray, "9 9"]


class Symmetry(AbstractPart):
    """The orbits of systems that keep their symmetry."""

    mask: Bool[Array, "systems"]
    """Systems whose gradients are averaged."""
    moves: Bool[Array, "systems"]
    """Systems whose steps are averaged."""
    moves_cell: Bool[Array, "systems"]
    """Systems whose steps of the cell are averaged."""
    into: Float[Array, "rows 3 3"]
    """Turns an atom's vector to the first atom of its orbit."""
    back: Float[Array, "rows 3 3"]
    """Turns the sum over an orbit into the average at each atom."""
    members: Int32[Array, "slots rows"]
    """The rows of an atom's orbit, ascending, then `NO_ATOM`."""
    tensors: Float[Array, "systems 9 9"]
    """The average over the operations, as a matrix on the nine entries of a tensor."""

    joins = False

    @classmethod
    def room_of(cls, own: Orbits) -> Room:
        # Round up to a power of two, so that few programs serve most structures.
        return (1 << (len(own.members) - 1).bit_length(),)

    @classmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> "Symmetry":
        def full(value: Any, dtype: Any, *shape: int) -> Any:
            return np.full(shape, value, dtype)

        return cls(
            mask=full(False, bool, n_systems),
            moves=full(False, bool, n_systems),
            moves_cell=full(False, bool, n_systems),
            into=full(0.0, dtype, n_rows, 3, 3),
            back=full(0.0, dtype, n_rows, 3, 3),
            members=full(NO_ATOM, np.int32, *room, n_rows),
            tensors=full(0.0, dtype, n_systems, 9, 9),
        )

    def write(self, system: int, rows: slice, own: Orbits | None) -> None:
        arrays: Any = self
        arrays.mask[system] = own is not None
        arrays.moves[system] = own is not None and own.moves
        arrays.moves_cell[system] = own is not None and own.moves_cell
        arrays.members[:, rows] = NO_ATOM
        if own is None:
            return
        at = slice(rows.start, rows.start + len(own.into))
        arrays.into[at], arrays.back[at] = own.into, own.back
        placed = np.where(own.members == NO_ATOM, NO_ATOM, own.members + rows.start)
        arrays.members[: len(placed), at] = placed
        arrays.tensors[system] = own.tensor

    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """The average over operations: of Cartesian forces f as in ASE, by those of the cell.

        With the deformation F and an operation M of the undeformed cell, these are F M F⁻¹, and
        rows hold Fᵀ f. If the cell keeps the symmetry, M and Fᵀ F commute, and rows are averaged
        directly.
        """
        if turning is None:
            return self._averaged(x, index, self.mask)
        turn = turning()
        is_turned = index.spread(self._may_be_lost(turn), False, x)
        metric = multiply(transposed(turn.back), turn.back)
        inverse = multiply(turn.there, transposed(turn.there))
        x = jnp.where(is_turned, turned_rows(x, inverse, index), x)
        x = self._averaged(x, index, self.mask)
        return jnp.where(is_turned, turned_rows(x, metric, index), x)

    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        return self._averaged(x, index, self.moves)

    def of_stress(self, stress: Matrices, turning: Turning) -> Matrices:
        """The averaged σ: Fᵀ σ F is averaged in the undeformed cell."""
        if turning is None:
            return self._averaged_tensors(stress, self.mask)
        turn = turning()
        is_turned = self._may_be_lost(turn)[:, None, None]
        pulled = multiply(transposed(turn.back), multiply(stress, turn.back))
        stress = self._averaged_tensors(jnp.where(is_turned, pulled, stress), self.mask)
        pushed = multiply(transposed(turn.there), multiply(stress, turn.there))
        return jnp.where(is_turned, pushed, stress)

    def of_cell_step(self, step: Matrices) -> Matrices:
        return self._averaged_tensors(step, self.moves_cell)

    def _may_be_lost(self, turn: Turn) -> Bool[Array, "systems"]:
        """The mask of systems whose cell may lose the symmetry that their gradients keep."""
        return self.mask & turn.mask & (~self.moves_cell | turn.loses_symmetry)

    def _averaged_tensors(self, x: Matrices, mask: Bool[Array, "systems"]) -> Matrices:
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


class FixSymmetryKind(AbstractKind):
    of = FixSymmetry
    part = Symmetry

    def read(self, constraint: FixSymmetry, atoms: Atoms) -> Orbits:
        found = _orbits(*_operations(constraint, atoms))
        moves, moves_cell = constraint.do_adjust_positions, constraint.do_adjust_cell
        return found._replace(moves=bool(moves), moves_cell=bool(moves_cell))

    def fault(self, constraint: FixSymmetry, atoms: Atoms) -> str:
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


def loses_symmetry(stages: Stages, movable: Bool[np.ndarray, "3 3"]) -> bool:
    """Whether steps that keep a structure's symmetry may break the symmetry of its cell.

    So they may if `movable`, the free entries of the deformation, lacks the symmetry, or if the
    cell has lost it since the constraint was made.
    """
    keepers = [stage[Symmetry] for stage in stages if Symmetry in stage]
    averages = [own.tensor for own in keepers if own.moves_cell]
    unit, left = np.eye(3).reshape(9, 1), np.eye(9)
    for average in averages:
        left = average @ left
    left = np.where(movable.reshape(9, 1), left, 0.0)
    changes = [average @ x - x for average in averages for x in (unit, left)]
    return any(np.abs(change).max() > ON_AXES for change in changes)


def turns_of(constraint: FixSymmetry, atoms: Atoms) -> Float[np.ndarray, "operations 3 3"]:
    """The operations as matrices that turn Cartesian vectors."""
    cell = atoms.cell.array
    return cell.T @ np.asarray(constraint.rotations, float) @ np.linalg.inv(cell).T


def _operations(constraint: FixSymmetry, atoms: Atoms) -> tuple[bytes, bytes, int]:
    """Matrices and maps as hashable bytes for a cache, and the number of atoms."""
    turns = turns_of(constraint, atoms)
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
    """Whether the average by orbits equals the average over all operations, for random vectors."""
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
