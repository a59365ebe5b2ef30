"""ASE's `FixCartesian`: fixed x, y or z of some atoms."""

from ase import Atoms
from ase.constraints import FixCartesian

from basinax.structures.constraints.of_atoms import AbstractAtomsKind, Left


class FixCartesianKind(AbstractAtomsKind):
    of = FixCartesian

    def read(self, constraint: FixCartesian, atoms: Atoms) -> Left:
        return Left(constraint.index, fixed=constraint.mask)
