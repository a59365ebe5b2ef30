"""ASE's `FixedPlane`: atoms that do not move along one direction."""

import numpy as np
from ase import Atoms
from ase.constraints import FixedPlane

from basinax.structures.constraints.of_atoms import AbstractDirectionKind, Remainder


class FixedPlaneKind(AbstractDirectionKind):
    of = FixedPlane

    def read(self, constraint: FixedPlane, atoms: Atoms) -> Remainder:
        along = np.outer(constraint.dir, constraint.dir)
        return Remainder(constraint.index, matrix=np.eye(3) - along)
