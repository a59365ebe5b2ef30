"""ASE's `FixScaled`: atoms fixed along some cell vectors."""

import functools

import numpy as np
from ase import Atoms
from ase.cell import Cell
from ase.constraints import FixScaled

from basinax.structures.constraints.of_atoms import AbstractAtomsKind, Remainder

ON_AXES = 1e-9
"""The tolerance of entries 0 and 1 in a matrix that fixes x, y or z."""


class FixScaledKind(AbstractAtomsKind):
    of = FixScaled

    def read(self, constraint: FixScaled, atoms: Atoms) -> Remainder:
        return Remainder(constraint.index, fixed=_mask(constraint, atoms))

    def is_kept(self, constraint: FixScaled, atoms: Atoms) -> bool:
        return _mask(constraint, atoms) is not None


def _mask(constraint: FixScaled, atoms: Atoms) -> tuple[bool, ...] | None:
    """The mask of x, y and z that the constraint fixes; None if it fixes a direction in between.

    ASE would then keep other components of steps than of forces.
    """
    return _mask_in(atoms.cell.array.tobytes(), tuple(constraint.mask))


@functools.lru_cache(maxsize=64)
def _mask_in(cell_bytes: bytes, mask: tuple[bool, ...]) -> tuple[bool, ...] | None:
    cell = Cell(np.frombuffer(cell_bytes).reshape(3, 3)).complete().array
    if not abs(np.linalg.det(cell)) > 0:
        return None
    free = np.diag(np.where(mask, 0.0, 1.0))
    forces = cell @ free @ np.linalg.inv(cell)
    steps = np.linalg.inv(cell) @ free @ cell
    axes = np.round(np.diag(steps))
    is_between = np.abs([forces - np.diag(axes), steps - np.diag(axes)]).max() > ON_AXES
    return None if is_between else tuple(axes == 0)
