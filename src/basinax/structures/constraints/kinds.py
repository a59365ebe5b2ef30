"""The supported kinds of constraints, and the order of parts in a stage."""

from basinax.structures.constraints.fix_atoms import FixAtomsKind
from basinax.structures.constraints.fix_cartesian import FixCartesianKind
from basinax.structures.constraints.fix_com import FixComKind, Masses
from basinax.structures.constraints.fix_scaled import FixScaledKind
from basinax.structures.constraints.fix_symmetry import FixSymmetryKind, Symmetry
from basinax.structures.constraints.fixed_line import FixedLineKind
from basinax.structures.constraints.fixed_plane import FixedPlaneKind
from basinax.structures.constraints.of_atoms import OfAtoms
from basinax.structures.constraints.protocol import AbstractKind, AbstractPart

KINDS: tuple[AbstractKind, ...] = (
    FixAtomsKind(),
    FixCartesianKind(),
    FixedLineKind(),
    FixedPlaneKind(),
    FixComKind(),
    FixScaledKind(),
    FixSymmetryKind(),
)

PARTS: tuple[type[AbstractPart], ...] = (OfAtoms, Masses, Symmetry)
"""The parts of a stage in order. A structure with constraints in another order has more stages."""

KIND_OF = {kind.of: kind for kind in KINDS}
