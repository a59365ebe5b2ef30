"""ASE's `FixedLine`: atoms that move along one direction only."""

import numpy as np
from ase import Atoms
from ase.constraints import FixedLine

from basinax.structures.constraints.of_atoms import AbstractDirectionKind, Remainder


class FixedLineKind(AbstractDirectionKind):
    of = FixedLine

    def read(self, constraint: FixedLine, atoms: Atoms) -> Remainder:
        return Remainder(constraint.index, matrix=np.outer(constraint.dir, constraint.dir))
