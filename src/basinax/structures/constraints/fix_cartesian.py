"""ASE's `FixCartesian`: fixed x, y or z of some atoms."""

from ase import Atoms
from ase.constraints import FixCartesian

from basinax.structures.constraints.of_atoms import AbstractAtomsKind, Remainder


class FixCartesianKind(AbstractAtomsKind):
    of = FixCartesian

    def read(self, constraint: FixCartesian, atoms: Atoms) -> Remainder:
        return Remainder(constraint.index, fixed=constraint.mask)
