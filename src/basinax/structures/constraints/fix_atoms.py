"""ASE's `FixAtoms`: fixed atoms."""

from ase import Atoms
from ase.constraints import FixAtoms

from basinax.structures.constraints.of_atoms import AbstractAtomsKind, Left


class FixAtomsKind(AbstractAtomsKind):
    of = FixAtoms

    def read(self, constraint: FixAtoms, atoms: Atoms) -> Left:
        return Left(constraint.index, fixed=(True, True, True))
