"""Reading and checks of a structure's ASE constraints."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixScaled
from jaxtyping import Bool, Float

from basinax.structures.constraints.hosted import (
    HOSTED,
    HostConstraints,
    acts_on_host,
    is_curved,
    moves_atoms,
    names_of,
)
from basinax.structures.constraints.kinds import KIND_OF, PARTS
from basinax.structures.constraints.of_atoms import AbstractAtomsKind, OfAtoms
from basinax.structures.constraints.protocol import AbstractPart, Stages

OF_SCALED = (
    "FixScaled may fix coordinates x, y or z alone, or all: elsewhere ASE leaves other directions"
    " of forces than of steps, and FixedLine or FixedPlane can hold what it is to hold. "
)


def read_stages(atoms: Atoms) -> Stages:
    """The stages of a structure's constraints; empty without any that acts on the device."""
    if not atoms.constraints or acts_on_host(atoms):
        return ()
    return _stages(atoms.constraints, atoms)


def _stages(constraints: Iterable[Any], atoms: Atoms) -> Stages:
    stages: list[dict[type[AbstractPart], Any]] = []
    for part, alike in itertools.groupby(constraints, lambda c: KIND_OF[type(c)].part):
        found = [KIND_OF[type(c)].read(c, atoms) for c in alike]
        behind = PARTS[PARTS.index(part) :]
        for joined in [found] if part.joins else [[one] for one in found]:
            if not stages or any(other in stages[-1] for other in behind):
                stages.append({})
            stages[-1][part] = part.gathered(joined, len(atoms))
    return stages


def fixed_by(stages: Stages, atoms: Atoms) -> Bool[np.ndarray, "atoms 3"]:
    """Coordinates that never move. A constraint that couples atoms moves atoms fixed before it."""
    if acts_on_host(atoms):
        moving = reversed([c for c in atoms.constraints if moves_atoms(c)])
        last = list(itertools.takewhile(lambda c: not is_curved(c), moving))
        stages = _stages(last[::-1], atoms)
    if stages and set(stages[-1]) == {OfAtoms}:
        return stages[-1][OfAtoms].fixed
    return np.zeros((len(atoms), 3), bool)


def left_by_constraints(atoms: Atoms) -> Float[np.ndarray, "atoms 3 3"]:
    """The matrix that takes a force of each atom to what constraints of single atoms leave of it.

    Constraints of several atoms are left out.
    """
    kinds = [(KIND_OF.get(type(c)), c) for c in atoms.constraints]
    found = [kind.read(c, atoms) for kind, c in kinds if isinstance(kind, AbstractAtomsKind)]
    return OfAtoms.gathered(found, len(atoms)).matrices


def check_constraints(atoms: Atoms, name: Callable[[], str], *, is_hosted: bool) -> None:
    """Check that every constraint is supported.

    Args:
        name: what messages call the structure.
        is_hosted: whether constraints may act on the host.

    Raises:
        NotImplementedError: a constraint is of another class.
        ValueError: a constraint is unusable: an index without an atom, a direction without length.
    """
    on_host = [c for c in atoms.constraints if type(c) in HOSTED]
    others = [c for c in atoms.constraints if type(c) not in HOSTED and not _is_kept(c, atoms)]
    if on_host and not others and not is_hosted:
        raise NotImplementedError(
            f"{name()} has constraints ({names_of(on_host)}), which are not supported and never"
            " ignored here: they act on the host alone, in relax with a potential that the host"
            " evaluates, such as ASECalculator(...) or a model. One of this package is such a"
            " calculator as potential.calculator()"
        )
    if others:
        known = ", ".join(kind.__name__ for kind in [*KIND_OF, *(HOSTED if is_hosted else ())])
        scaled = any(isinstance(c, FixScaled) for c in others)
        raise NotImplementedError(
            f"{name()} has constraints ({names_of(others)}), which are not supported and"
            f" never ignored; supported are {known}. {OF_SCALED if scaled else ''}Remove them with"
            " `del atoms.constraints`, or relax this system elsewhere"
        )
    for constraint in atoms.constraints:
        if type(constraint) in HOSTED:
            continue
        fault = KIND_OF[type(constraint)].fault(constraint, atoms)
        if fault:
            raise ValueError(f"{name()}: {type(constraint).__name__} {fault}")
    if on_host:
        try:
            HostConstraints(atoms)
        except Exception as error:  # constraints may raise errors of any class
            raise ValueError(f"{name()}: {names_of(on_host)} cannot act on it: {error}") from error


def _is_kept(constraint: Any, atoms: Atoms) -> bool:
    kind = KIND_OF.get(type(constraint))
    return kind is not None and kind.is_kept(constraint, atoms)
