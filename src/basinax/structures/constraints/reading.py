"""Reading and checks of a structure's ASE constraints."""

import itertools
from typing import Any

import numpy as np
from ase import Atoms
from jaxtyping import Bool

from basinax.structures.constraints.kinds import KIND_OF, PARTS
from basinax.structures.constraints.of_atoms import OfAtoms
from basinax.structures.constraints.protocol import Stages


def read_stages(atoms: Atoms) -> Stages:
    """The stages of a structure's constraints; empty without constraints."""
    stages: Stages = []
    for part, alike in itertools.groupby(atoms.constraints, lambda c: KIND_OF[type(c)].part):
        found = [KIND_OF[type(c)].read(c, atoms) for c in alike]
        behind = PARTS[PARTS.index(part) :]
        for joined in [found] if part.joins else [[one] for one in found]:
            if not stages or any(other in stages[-1] for other in behind):
                stages.append({})
            stages[-1][part] = part.gathered(joined, len(atoms))
    return stages


def fixed_by(stages: Stages, n_atoms: int) -> Bool[np.ndarray, "atoms 3"]:
    """Coordinates that never move. A constraint that couples atoms moves atoms fixed before it."""
    if stages and set(stages[-1]) == {OfAtoms}:
        return stages[-1][OfAtoms].fixed
    return np.zeros((n_atoms, 3), bool)


def check_constraints(atoms: Atoms, name: str) -> None:
    """Check that every constraint is supported.

    Raises:
        NotImplementedError: a constraint is of another class.
        ValueError: a constraint is unusable: an index without an atom, a direction without length.
    """
    others = {type(c).__name__ for c in atoms.constraints if not _is_kept(c, atoms)}
    if others:
        known = ", ".join(kind.__name__ for kind in KIND_OF)
        raise NotImplementedError(
            f"{name} has constraints ({', '.join(sorted(others))}), which are not supported and"
            f" never ignored; supported are {known}. FixScaled may fix coordinates x, y or z alone,"
            " or all: elsewhere ASE leaves other directions of forces than of steps, and FixedLine"
            " or FixedPlane can hold what it is to hold. Remove them with `del atoms.constraints`,"
            " or relax this system elsewhere"
        )
    for constraint in atoms.constraints:
        fault = KIND_OF[type(constraint)].fault(constraint, atoms)
        if fault:
            raise ValueError(f"{name}: {type(constraint).__name__} {fault}")


def _is_kept(constraint: Any, atoms: Atoms) -> bool:
    kind = KIND_OF.get(type(constraint))
    return kind is not None and kind.is_kept(constraint, atoms)
