"""The supported kinds of constraints, and the order of parts in a stage."""

from collections.abc import Callable
from typing import Any, TypeVar

from basinax.numerics.settings import is_same_class
from basinax.structures.constraints.fix_atoms import FixAtomsKind
from basinax.structures.constraints.fix_cartesian import FixCartesianKind
from basinax.structures.constraints.fix_com import FixComKind, Masses
from basinax.structures.constraints.fix_scaled import FixScaledKind
from basinax.structures.constraints.fix_symmetry import FixSymmetryKind, Symmetry
from basinax.structures.constraints.fixed_line import FixedLineKind
from basinax.structures.constraints.fixed_plane import FixedPlaneKind
from basinax.structures.constraints.hosted import HOSTED
from basinax.structures.constraints.of_atoms import OfAtoms
from basinax.structures.constraints.of_users import AbstractConstraint, WrittenKind, check_fields
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

PARTS: list[type[AbstractPart]] = [OfAtoms, Masses, Symmetry]
"""The parts of a stage in order; registered ones follow. A structure with constraints in another
order has more stages."""

KIND_OF: dict[type, AbstractKind] = {kind.of: kind for kind in KINDS}

Written = TypeVar("Written", bound=type[AbstractConstraint])


def register_constraint(of: type) -> Callable[[Written], Written]:
    """A decorator: constraints of ASE's class `of`, or of your own, run with the decorated class.

    A process that relaxes must have executed it, so it belongs into a module that scripts import.
    Executed again, as in a notebook, it replaces the class of the same name.

    Raises:
        TypeError: the decorated object is no subclass of `AbstractConstraint`, a field of it is not
            declared with `rows_field` or `systems_field`, or `of` is no class with ASE's
            `adjust_forces` and `adjust_positions`, or adds to the energy.
        ValueError: another class runs the constraints of `of`.
    """

    def registered(cls: Written) -> Written:
        check_fields(cls)
        if not isinstance(of, type) or not all(
            hasattr(of, name) for name in ("adjust_forces", "adjust_positions")
        ):
            raise TypeError(f"expected a class of constraints with ASE's methods, got {of!r}")
        if hasattr(of, "adjust_potential_energy"):
            raise TypeError(f"{of.__name__} adds to the energy, which AbstractConstraint cannot")
        known: Any = KIND_OF.get(of)
        if of in HOSTED or (known is not None and not is_same_class(known.part, cls)):
            raise ValueError(f"{of.__name__} is taken: it runs already")
        if known is None:
            PARTS.append(cls)
        else:
            PARTS[PARTS.index(known.part)] = cls
        KIND_OF[of] = WrittenKind(cls)
        return cls

    return registered
