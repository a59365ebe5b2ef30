"""ASE's `FixAtoms`: fixed atoms."""

from ase import Atoms
from ase.constraints import FixAtoms

from basinax.structures.constraints.of_atoms import AbstractAtomsKind, Remainder


class FixAtomsKind(AbstractAtomsKind):
    of = FixAtoms

    def read(self, constraint: FixAtoms, atoms: Atoms) -> Remainder:
        return Remainder(constraint.index, fixed=(True, True, True))
