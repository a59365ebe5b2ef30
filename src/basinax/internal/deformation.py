"""The degrees of freedom of one structure on the host: rows of atoms, then rows of its cell.

They equal those of `CellMoves`, in double precision: positions in the undeformed cell, and the
deformation F times the cell factor, its logarithm, or a strain. The derivative of the exponential
is exact: otherwise a rotation of the cell would leak into the gradient, where only ε resists it.
"""

import math
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixCom
from jaxtyping import Bool, Float

from basinax.internal.arithmetic import dot, product
from basinax.structures.cells.kinds import AbstractCell
from basinax.structures.constraints.reading import left_by_constraints
from basinax.structures.matrices import VOIGT_OF_ENTRIES
from basinax.structures.read import Structure

STRAIN = 0.1
"""The longest row of a step of the deformation."""

_UNITS = np.eye(9).reshape(9, 3, 3)


class Deformation:
    """The map from entries of x to the atoms and the cell of one structure."""

    def __init__(self, structure: Structure):
        atoms, cell = structure.atoms, structure.cell
        self.n_atoms, self.positions = len(atoms), atoms.positions.copy()
        self.cell = atoms.cell.array.copy()
        self.pbc, self.numbers = atoms.pbc.copy(), atoms.numbers.copy()
        self.kind, self.pressure = structure.kind, 0.0
        self.left = _left(atoms)
        # Beside fixed atoms, steps that `FixCom` shifts are no longer those of `left`.
        self.shares = None if self.left is not None else _shares(atoms)
        self.n_dofs = 3 * (self.n_atoms + {None: 0, "strain": 2}.get(self.kind, 3))
        if cell is None:
            return
        self.pressure = float(cell.pressure)  # pyright: ignore[reportArgumentType]
        usual = 1.0 if self.kind == "strain" else float(len(atoms))
        self.factor = usual if cell.cell_factor is None else cell.cell_factor
        self.mask: Bool[np.ndarray, "3 3"] = cell.movable()
        self.allowed = _allowed(cell)

    def start(self) -> Float[np.ndarray, "dofs"]:
        """The undeformed point."""
        at_rest = np.zeros(self.n_dofs - 3 * self.n_atoms)
        if self.kind == "unit-cell":
            at_rest = self.factor * np.eye(3).ravel()
        return np.concatenate([self.positions.ravel(), at_rest])

    def deformation(self, x: Float[np.ndarray, "dofs"]) -> Float[np.ndarray, "3 3"]:
        """F; rows are multiplied by its transpose."""
        if self.kind is None:
            return np.eye(3)
        matrix, unit = self._matrix(x), np.eye(3)
        if self.kind == "strain":
            change = np.where(unit > 0, matrix, matrix / 2)
        else:
            change = (exponential(matrix) if self.kind == "frechet" else matrix) - unit
        return unit + np.where(self.mask, change, 0.0)

    def volume(self, x: Float[np.ndarray, "dofs"]) -> float:
        """The volume in Å³; 0 for a fixed cell."""
        if self.kind is None:
            return 0.0
        a, b, c = product(self.cell, self.deformation(x).T)
        return abs(dot(a, np.cross(b, c)))

    def derivative(self, x: Float[np.ndarray, "dofs"]) -> Float[np.ndarray, "3 3 entries"]:
        """The derivative of F by the entries of the cell's rows."""
        changes = _UNITS
        if self.kind == "frechet":
            # exp [[L, E], [0, L]] holds the derivative of exp L along E in its upper right block.
            blocks = np.zeros((9, 6, 6))
            blocks[:, :3, :3] = blocks[:, 3:, 3:] = self._matrix(x)
            blocks[:, :3, 3:] = _UNITS
            changes = exponential(blocks)[:, :3, 3:]
        elif self.kind == "strain":
            changes = np.zeros((6, 3, 3))
            for entry, voigt in enumerate(VOIGT_OF_ENTRIES):
                i, j = divmod(entry, 3)
                changes[voigt, i, j] = 1.0 if i == j else 0.5
        changes = np.where(self.mask, changes, 0.0) / self.factor
        return product(changes.transpose(1, 2, 0), self.allowed)

    def by_steps(self, gradient: Float[np.ndarray, "dofs"]) -> Float[np.ndarray, "dofs"]:
        """The gradient by steps that `FixCom` shifts after they are made, from the constrained one.

        ASE's `FixCom` takes a multiple of the masses off the gradient, but a mean off steps. With
        the one as the derivative by the other, no pair of L-BFGS would fit a symmetric Hessian.
        """
        if self.shares is None:
            return gradient
        rows = gradient[: 3 * self.n_atoms].reshape(-1, 3)
        rows = rows - self.shares[:, None] * rows.sum(0)
        return np.concatenate([rows.ravel(), gradient[3 * self.n_atoms :]])

    def longest(self, step: Float[np.ndarray, "dofs"], maxstep: float) -> float:
        """The longest row of a step, relative to the longest allowed."""
        lengths = np.linalg.norm(step.reshape(-1, 3), axis=1)
        longest = lengths[: self.n_atoms].max() / maxstep
        if self.kind is None:
            return float(longest)
        return float(max(longest, lengths[self.n_atoms :].max() / (self.factor * STRAIN)))

    def _matrix(self, x: np.ndarray) -> Float[np.ndarray, "3 3"]:
        rows = x[3 * self.n_atoms :] / self.factor
        return (rows[list(VOIGT_OF_ENTRIES)] if self.kind == "strain" else rows).reshape(3, 3)


def exponential(matrices: np.ndarray) -> np.ndarray:
    """exp of one or several square matrices: halving, a Taylor series, then squaring."""
    largest = float(np.abs(matrices).sum(-1).max())
    if not largest < 2.0**60:
        raise np.linalg.LinAlgError("no deformation is as large")
    n_halved = max(0, math.frexp(2 * largest)[1])
    x = matrices * 0.5**n_halved
    unit = np.eye(matrices.shape[-1])
    result = unit + x / 14
    for k in range(13, 0, -1):
        result = unit + product(x, result) / k
    for _ in range(n_halved):
        result = product(result, result)
    return result


def _left(atoms: Atoms) -> Float[np.ndarray, "atoms 3 3"] | None:
    """The matrix that constraints apply to each atom's steps; None if all are free."""
    left = left_by_constraints(atoms)
    return None if (left == np.eye(3)).all() else left


def _shares(atoms: Atoms) -> Float[np.ndarray, "atoms"] | None:
    """Each atom's share of the mass; None without a `FixCom`."""
    if not any(type(constraint) is FixCom for constraint in atoms.constraints):
        return None
    masses = atoms.get_masses()
    return masses / masses.sum()


def _allowed(cell: AbstractCell) -> Float[np.ndarray, "entries entries"]:
    """The projector on steps of the cell's rows that the cell's options allow."""
    movable = cell.movable()
    if cell.kind == "strain":
        voigt: Any = [VOIGT_OF_ENTRIES.index(k) for k in range(6)]
        free, trace = movable.ravel()[voigt], np.arange(6) < 3
    else:
        free, trace = movable.ravel(), np.eye(3, dtype=bool).ravel()
    along = np.where(free & trace, 1.0, 0.0)
    onto = np.outer(along, along) / max(along.sum(), 1.0)
    if cell.hydrostatic_strain:
        return onto
    return np.diag(free.astype(float)) - (onto if cell.constant_volume else 0.0)
