"""ASE's constraints of a structure, read and checked."""

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from ase.cell import Cell
from ase.constraints import (
    FixAtoms,
    FixCartesian,
    FixCom,
    FixedLine,
    FixedPlane,
    FixScaled,
    FixSymmetry,
)
from jaxtyping import Bool, Float

from basinax.atoms._constraints.symmetry import Orbits, fault_of_symmetry, orbits_of, padded_slots

SUPPORTED = (FixAtoms, FixCartesian, FixedLine, FixedPlane, FixCom, FixScaled, FixSymmetry)
"""Classes of constraints that are kept; classes derived from them may do something else."""

ON_AXES = 1e-9
"""How far from 0 and 1 a matrix of a `FixScaled` may be that fixes coordinates x, y or z, and a
symmetric cell from what its operations make of it."""


def loses_symmetry(atoms: Atoms, movable: Bool[np.ndarray, "3 3"]) -> bool:
    """Whether steps of a cell that keep the symmetry of `atoms` may take it from the cell.

    They do where `movable`, what may move of the deformation, lacks the symmetry, or where the cell
    itself has lost it since the constraint was made.
    """
    keepers = [c for c in atoms.constraints if isinstance(c, FixSymmetry) and c.do_adjust_cell]
    averages = [orbits_of(c, atoms).tensor for c in keepers]
    unit, left = np.eye(3).reshape(9, 1), np.eye(9)
    for average in averages:
        left = average @ left
    left = np.where(movable.reshape(9, 1), left, 0.0)
    changes = [average @ x - x for average in averages for x in (unit, left)]
    return any(np.abs(change).max() > ON_AXES for change in changes)


class StageLayout(NamedTuple):
    """What a stage has arrays for."""

    has_slants: bool
    has_com: bool
    n_slots: int = 0
    """Room for the largest orbit of a symmetry; 0 for no symmetry."""
    has_partial: bool = False


class ReadStage(NamedTuple):
    """A stage of one structure."""

    matrices: Float[np.ndarray, "atoms 3 3"]
    """What is left of a force or a step of each atom."""
    has_com: bool = False
    symmetry: Orbits | None = None

    @property
    def needed(self) -> StageLayout:
        n_slots = 0 if self.symmetry is None else len(self.symmetry.members)
        flags = bool(self.slanted.any()), self.has_com
        return StageLayout(*flags, padded_slots(n_slots), bool(self.partial.any()))

    @property
    def fixed(self) -> Bool[np.ndarray, "atoms 3"]:
        return (self.matrices == 0).all(2)

    @property
    def slanted(self) -> Bool[np.ndarray, "atoms 3"]:
        return ~self.fixed & (self.matrices != np.eye(3)).any(2)

    @property
    def partial(self) -> Bool[np.ndarray, "atoms"]:
        return (self.matrices != np.eye(3)).any((1, 2)) & ~self.fixed.all(1)


def with_fixed(atoms: Atoms, positions: Float[np.ndarray, "atoms 3"]) -> np.ndarray:
    """The positions, with those of the structure where they are fixed.

    A run in single precision has rounded them. A `FixCom` or `FixSymmetry` moves what is fixed
    before it.
    """
    read = read_stages(atoms)
    if not read or read[-1].has_com or read[-1].symmetry:
        return positions
    return np.where(read[-1].fixed, atoms.positions, positions)


def read_stages(atoms: Atoms) -> list[ReadStage]:
    """The stages of a structure's constraints; none where it has none."""
    if not atoms.constraints:
        return []
    stages = [ReadStage(all_free(len(atoms)))]
    for kind, group in itertools.groupby(atoms.constraints, _kind):
        if kind is FixSymmetry:
            for constraint in group:
                stages[-1] = stages[-1]._replace(symmetry=orbits_of(constraint, atoms))
                stages.append(ReadStage(all_free(len(atoms))))
            continue
        if stages[-1].has_com:
            stages.append(ReadStage(all_free(len(atoms))))
        if kind is FixCom:
            stages[-1] = stages[-1]._replace(has_com=True)
            continue
        matrices = stages[-1].matrices
        if kind is FixCartesian:
            matrices[_fixed(list(group), atoms)] = 0.0
            continue
        for constraint in group:
            matrices[constraint.index] = _left(constraint) @ matrices[constraint.index]
    return stages[:-1] if isinstance(atoms.constraints[-1], FixSymmetry) else stages


def _kind(constraint: Any) -> type:
    """`FixCartesian` for what fixes coordinates: a file may bring one of them for each atom."""
    kind = type(constraint)
    return FixCartesian if kind in (FixAtoms, FixScaled) else kind


def all_free(n_atoms: int) -> Float[np.ndarray, "atoms 3 3"]:
    return np.tile(np.eye(3), (n_atoms, 1, 1))


def _left(constraint: FixedLine | FixedPlane) -> Float[np.ndarray, "3 3"]:
    """What the constraint leaves of a force or step of each of its atoms."""
    along = np.outer(constraint.dir, constraint.dir)
    return along if isinstance(constraint, FixedLine) else np.eye(3) - along


def _fixed(constraints: list[Any], atoms: Atoms) -> Bool[np.ndarray, "atoms 3"]:
    """The coordinates that one of these fixes."""
    masks = np.array([_mask(c, atoms) for c in constraints])
    atom = np.concatenate([c.index for c in constraints])
    which, axis = np.nonzero(np.repeat(masks, [len(c.index) for c in constraints], axis=0))
    fixed = np.zeros((len(atoms), 3), bool)
    fixed[atom[which], axis] = True
    return fixed


def _mask(constraint: Any, atoms: Atoms) -> Any:
    if isinstance(constraint, FixAtoms):
        return (True, True, True)
    return _scaled_mask(constraint, atoms) if isinstance(constraint, FixScaled) else constraint.mask


def _scaled_mask(constraint: FixScaled, atoms: Atoms) -> tuple[bool, ...] | None:
    """Which of x, y and z it fixes; None where it fixes something between them.

    ASE then leaves other components of steps than of forces.
    """
    return _scaled_mask_in(atoms.cell.array.tobytes(), tuple(constraint.mask))


@functools.lru_cache(maxsize=64)
def _scaled_mask_in(cell_bytes: bytes, mask: tuple[bool, ...]) -> tuple[bool, ...] | None:
    cell = Cell(np.frombuffer(cell_bytes).reshape(3, 3)).complete().array
    if not abs(np.linalg.det(cell)) > 0:
        return None
    free = np.diag(np.where(mask, 0.0, 1.0))
    forces = cell @ free @ np.linalg.inv(cell)
    steps = np.linalg.inv(cell) @ free @ cell
    axes = np.round(np.diag(steps))
    is_between = np.abs([forces - np.diag(axes), steps - np.diag(axes)]).max() > ON_AXES
    return None if is_between else tuple(axes == 0)


def are_supported(atoms: Atoms) -> bool:
    """Whether `check_constraints` has nothing to say."""
    if not atoms.constraints:
        return True
    if {type(c) for c in atoms.constraints} <= {FixAtoms, FixCartesian}:
        rows = np.concatenate([[0], *(c.index for c in atoms.constraints)])
        return bool(-len(atoms) <= rows.min() and rows.max() < len(atoms))
    return all(_is_kept(c, atoms) and not _fault(c, atoms) for c in atoms.constraints)


def _is_kept(constraint: Any, atoms: Atoms) -> bool:
    if isinstance(constraint, FixScaled) and _scaled_mask(constraint, atoms) is None:
        return False
    return type(constraint) in SUPPORTED


def check_constraints(atoms: Atoms, name: str) -> None:
    """Makes sure that every constraint is one of those that are kept.

    Raises:
        NotImplementedError: one is of another class.
        ValueError: one is of no use: an index without an atom, a direction without length.
    """
    others = {type(c).__name__ for c in atoms.constraints if not _is_kept(c, atoms)}
    if others:
        known = ", ".join(kind.__name__ for kind in SUPPORTED)
        raise NotImplementedError(
            f"{name} has constraints ({', '.join(sorted(others))}), which are not supported and"
            f" never ignored; supported are {known}. FixScaled may fix coordinates x, y or z alone,"
            " or all: elsewhere ASE leaves other directions of forces than of steps, and FixedLine"
            " or FixedPlane can hold what it is to hold. Remove them with `del atoms.constraints`,"
            " or relax this system elsewhere"
        )
    for constraint in atoms.constraints:
        fault = _fault(constraint, atoms)
        if fault:
            raise ValueError(f"{name}: {type(constraint).__name__} {fault}")


def _fault(constraint: Any, atoms: Atoms) -> str:
    """What is wrong with a supported constraint; nothing if it is empty."""
    if isinstance(constraint, FixSymmetry):
        return fault_of_symmetry(constraint, atoms)
    if isinstance(constraint, FixCom):
        total = atoms.get_masses().sum()
        is_heavy = np.isfinite(total) and total > 0
        return "" if is_heavy else f"needs a mass that is finite and not 0, got {total}"
    index = np.asarray(constraint.index)
    if ((index < -len(atoms)) | (index >= len(atoms))).any():
        return f"holds atoms {index.tolist()} of a system of {len(atoms)}"
    if isinstance(constraint, FixedLine | FixedPlane) and not np.isfinite(constraint.dir).all():
        return "has a direction without length"
    return ""
