"""Constraints of single atoms: one matrix per row, in the order of the structure's constraints.

A free row is selected, not multiplied, so that a free structure keeps its bits beside constrained
ones. In a moving cell the deformation turns the optimizer's rows into Cartesian vectors. Fixed
atoms are unaffected; rows with some free directions are turned to Cartesian vectors and back.
"""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Bool, Float

from basinax.structures.constraints.protocol import AbstractKind, AbstractPart, Room, Rows, Turning
from basinax.structures.matrices import turned
from basinax.systems.index import SystemIndex


class Remainder(NamedTuple):
    """The part of a force or step that a constraint leaves to each of its atoms."""

    index: Any
    fixed: Any = None
    """The mask of fixed x, y and z; None if a matrix holds the remaining part."""
    matrix: Any = None


class OwnAtoms(NamedTuple):
    """The part of a force or step that remains for each atom of one structure."""

    matrices: Float[np.ndarray, "atoms 3 3"]

    @property
    def fixed(self) -> Bool[np.ndarray, "atoms 3"]:
        return (self.matrices == 0).all(2)

    @property
    def slanted(self) -> Bool[np.ndarray, "atoms 3"]:
        return ~self.fixed & (self.matrices != np.eye(3)).any(2)

    @property
    def partial(self) -> Bool[np.ndarray, "atoms"]:
        return (self.matrices != np.eye(3)).any((1, 2)) & ~self.fixed.all(1)


class Slants(eqx.Module):
    """Constraints that mix the components of a row: lines and planes off the axes."""

    mask: Bool[Array, "rows 3"]
    """The components that `matrices` determines."""
    matrices: Float[Array, "rows 3 3"]

    def apply(self, x: Rows) -> Rows:
        return jnp.where(self.mask, turned(self.matrices, x), x)


class OfAtoms(AbstractPart):
    """Constraints of single atoms."""

    fixed: Bool[Array, "rows 3"]
    """Components that are fixed."""
    slants: Slants | None
    partial: Bool[Array, "rows"] | None
    """Rows with some but not all directions free; None if no structure has any."""

    @classmethod
    def gathered(cls, found: list[Remainder], n_atoms: int) -> OwnAtoms:
        matrices = np.tile(np.eye(3), (n_atoms, 1, 1))
        for has_matrix, group in itertools.groupby(found, lambda left: left.matrix is not None):
            if has_matrix:
                for left in group:
                    matrices[left.index] = left.matrix @ matrices[left.index]
            else:
                matrices[_fixed(list(group), n_atoms)] = 0.0
        return OwnAtoms(matrices)

    @classmethod
    def room_of(cls, own: OwnAtoms) -> Room:
        return 1, int(own.slanted.any()), int(own.partial.any())

    @classmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> "OfAtoms":
        none: Any = np.zeros((n_rows, 3), bool)
        zeros: Any = np.zeros((n_rows, 3, 3), dtype)
        _, has_slants, has_partial = room
        slants = Slants(none.copy(), zeros) if has_slants else None
        return cls(none, slants, none[:, 0].copy() if has_partial else None)

    def write(self, system: int, rows: slice, own: OwnAtoms | None) -> None:
        own = self.gathered([], 0) if own is None else own
        _put(self.fixed, rows, own.fixed)
        if self.slants is not None:
            _put(self.slants.mask, rows, own.slanted)
            _put(self.slants.matrices, rows, own.matrices)
        if self.partial is not None:
            _put(self.partial, rows, own.partial)

    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        return self._left(x, 0.0, index, turning)

    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        # A frozen entry is -0.0: adding -0.0 keeps every number, and the sign of a zero.
        return self._left(x, -0.0, index, turning)

    def _left(self, x: Rows, still: float, index: SystemIndex, turning: Turning) -> Rows:
        left = self._of_components(x, still)
        if turning is None or self.partial is None:
            return left
        turn = turning()
        around = turn.around(lambda x: self._of_components(x, still), x, index)
        is_turned = self.partial[:, None] & index.spread(turn.mask, False, x)
        return jnp.where(is_turned, around, left)

    def _of_components(self, x: Rows, still: float) -> Rows:
        x = x if self.slants is None else self.slants.apply(x)
        return jnp.where(self.fixed, jnp.asarray(still, x.dtype), x)


class AbstractAtomsKind(AbstractKind):
    """An ASE class that acts on single atoms, which its `index` lists."""

    part = OfAtoms

    def fault(self, constraint: Any, atoms: Atoms) -> str:
        index = np.asarray(constraint.index)
        if ((index < -len(atoms)) | (index >= len(atoms))).any():
            return f"holds atoms {index.tolist()} of a system of {len(atoms)}"
        return ""


class AbstractDirectionKind(AbstractAtomsKind):
    """An ASE class whose atoms stay on the direction `dir`, or orthogonal to it."""

    def fault(self, constraint: Any, atoms: Atoms) -> str:
        if not np.isfinite(constraint.dir).all():
            return "has a direction without length"
        return super().fault(constraint, atoms)


def _fixed(found: list[Remainder], n_atoms: int) -> Bool[np.ndarray, "atoms 3"]:
    """The coordinates that any of these constraints fixes."""
    masks = np.array([left.fixed for left in found])
    atom = np.concatenate([left.index for left in found])
    which, axis = np.nonzero(np.repeat(masks, [len(left.index) for left in found], axis=0))
    fixed = np.zeros((n_atoms, 3), bool)
    fixed[atom[which], axis] = True
    return fixed


def _put(array: Any, rows: slice, values: np.ndarray) -> None:
    """Write the values, and zeros into the remaining rows."""
    array[rows] = 0
    array[rows.start : rows.start + len(values)] = values
