"""The kinds of constraints that are kept, and the order in which a stage applies its parts."""

from basinax.atoms._constraints.fix_atoms import FixAtomsKind
from basinax.atoms._constraints.fix_cartesian import FixCartesianKind
from basinax.atoms._constraints.fix_com import FixComKind, Masses
from basinax.atoms._constraints.fix_scaled import FixScaledKind
from basinax.atoms._constraints.fix_symmetry import FixSymmetryKind, Symmetry
from basinax.atoms._constraints.fixed_line import FixedLineKind
from basinax.atoms._constraints.fixed_plane import FixedPlaneKind
from basinax.atoms._constraints.of_atoms import OfAtoms
from basinax.atoms._constraints.protocol import AbstractKind, AbstractPart

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
"""Parts of a stage, the first one first. A structure whose constraints stand in another order has
more stages."""

KIND_OF = {kind.of: kind for kind in KINDS}
