"""Constraints of ASE structures: read on the host, kept on the device.

What ASE's `adjust_forces` and `adjust_positions` do is linear in forces and steps. Constraints of
single atoms become one matrix a row, in the order in which they stand on the structure; a `FixCom`
ends a stage, and what stands behind it begins another. A row without constraint is selected, not
multiplied, so that a free structure keeps its bits beside constrained ones. A `FixSymmetry` ends a
stage, too.

Where a cell moves, an optimizer's rows are no Cartesian vectors but turn into them with the
deformation. Fixed atoms, centres of mass and symmetries that cells keep do not notice; rows that
keep some directions are made Cartesian, and made again what they were.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
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
from jaxtyping import Array, Bool, Float

from basinax._bits.rounding import rounded
from basinax._loop.criteria import Evidence
from basinax._systems.index import SystemIndex
from basinax.atoms._constraints.symmetry import (
    Orbits,
    Symmetry,
    blank_symmetry,
    fault_of_symmetry,
    orbits_of,
    padded_slots,
    turned,
    write_symmetry,
)
from basinax.atoms._matrices import Matrices, multiply, transposed, turned_rows
from basinax.transforms._protocol import AbstractTransform

Rows = Float[Array, "rows 3"]

SUPPORTED = (FixAtoms, FixCartesian, FixedLine, FixedPlane, FixCom, FixScaled, FixSymmetry)
"""Classes of constraints that are kept; classes derived from them may do something else."""

ON_AXES = 1e-9
"""How far from 0 and 1 a matrix of a `FixScaled` may be that fixes coordinates x, y or z, and a
symmetric cell from what its operations make of it."""


class Slants(eqx.Module):
    """Constraints that mix the components of a row: lines and planes along no axis."""

    mask: Bool[Array, "rows 3"]
    """The components that `matrices` decides."""
    matrices: Float[Array, "rows 3 3"]

    def apply(self, x: Rows) -> Rows:
        return jnp.where(self.mask, turned(self.matrices, x), x)


class Masses(eqx.Module):
    """Systems whose centre of mass stands still, and their atoms' masses in u."""

    mask: Bool[Array, "systems"]
    masses: Float[Array, "rows"]
    totals: Float[Array, "systems"]
    """Σ m; 1 for a system whose centre of mass is free."""
    squares: Float[Array, "systems"]
    """Σ m²; 1 likewise."""

    def of_gradient(self, x: Rows, index: SystemIndex) -> Rows:
        """x − m (Σ m x)/(Σ m²): equations 3 and 7 of doi:10.1021/jp9722824, as in ASE."""
        return self._without_mean(x, index, self.squares, self.masses)

    def of_step(self, x: Rows, index: SystemIndex) -> Rows:
        """x − (Σ m x)/(Σ m)."""
        return self._without_mean(x, index, self.totals, jnp.ones_like(self.masses))

    def _without_mean(self, x: Rows, index: SystemIndex, norms, weights) -> Rows:
        is_kept = index.spread(self.mask, False, weights)
        columns = []
        for c in range(3):
            mean = rounded(index.sum(rounded(self.masses * x[:, c])) / norms)
            change = rounded(weights * index.spread(mean, 0.0, weights))
            columns.append(jnp.where(is_kept, x[:, c] - change, x[:, c]))
        return jnp.stack(columns, 1)


class Turn(NamedTuple):
    """How the rows of systems whose cell moves become Cartesian vectors, and these rows again."""

    mask: Bool[Array, "systems"]
    """The rows of other systems are Cartesian."""
    there: Matrices
    back: Matrices
    loses_symmetry: Bool[Array, "systems"]
    """Whose cells may lose a symmetry although their steps keep it."""

    def around(self, adjust: Callable[[Rows], Rows], x: Rows, index: SystemIndex) -> Rows:
        """What `adjust` makes of the Cartesian vectors."""
        return turned_rows(adjust(turned_rows(x, self.there, index)), self.back, index)


def symmetric_gradient(symmetry: Symmetry, x: Rows, index: SystemIndex, turn: Turn | None) -> Rows:
    """The average over operations: as in ASE of Cartesian forces f, by those of the deformed cell.

    With F the deformation and M an operation of the undeformed cell these are F M F⁻¹, and rows
    hold Fᵀ f. Where the cell keeps the symmetry M and Fᵀ F commute, and rows are averaged as they
    are.
    """
    if turn is None:
        return symmetry.of_gradient(x, index)
    is_turned = index.spread(_may_be_lost(symmetry, turn), False, x)
    metric = multiply(transposed(turn.back), turn.back)
    inverse = multiply(turn.there, transposed(turn.there))
    x = jnp.where(is_turned, turned_rows(x, inverse, index), x)
    x = symmetry.of_gradient(x, index)
    return jnp.where(is_turned, turned_rows(x, metric, index), x)


def symmetric_stress(symmetry: Symmetry, stress: Matrices, turn: Turn | None) -> Matrices:
    """As `symmetric_gradient`, of σ: Fᵀ σ F is averaged in the undeformed cell."""
    if turn is None:
        return symmetry.of_stress(stress)
    is_turned = _may_be_lost(symmetry, turn)[:, None, None]
    pulled = multiply(transposed(turn.back), multiply(stress, turn.back))
    stress = symmetry.of_stress(jnp.where(is_turned, pulled, stress))
    pushed = multiply(transposed(turn.there), multiply(stress, turn.there))
    return jnp.where(is_turned, pushed, stress)


def _may_be_lost(symmetry: Symmetry, turn: Turn) -> Bool[Array, "systems"]:
    """Whose cells may lose the symmetry that their gradients keep."""
    return symmetry.mask & turn.mask & (~symmetry.moves_cell | turn.loses_symmetry)


class Stage(eqx.Module):
    """Constraints of single atoms, then those of centres of mass, then those of symmetry."""

    fixed: Bool[Array, "rows 3"]
    """Components that stand still."""
    slants: Slants | None
    partial: Bool[Array, "rows"] | None
    """Rows that keep some directions, not all and not none; None where no structure has any."""
    com: Masses | None
    symmetry: Symmetry | None

    @property
    def room(self) -> "StageLayout":
        n_slots = 0 if self.symmetry is None else len(self.symmetry.members)
        has_partial = self.partial is not None
        return StageLayout(self.slants is not None, self.com is not None, n_slots, has_partial)

    def of_rows(self, x: Rows, still: float, index: SystemIndex, turn: Turn | None) -> Rows:
        left = self._of_components(x, still)
        if turn is None or self.partial is None:
            return left
        around = turn.around(lambda x: self._of_components(x, still), x, index)
        is_turned = self.partial[:, None] & index.spread(turn.mask, False, x)
        return jnp.where(is_turned, around, left)

    def _of_components(self, x: Rows, still: float) -> Rows:
        x = x if self.slants is None else self.slants.apply(x)
        return jnp.where(self.fixed, jnp.asarray(still, x.dtype), x)


class Constraints(eqx.Module):
    """The constraints of a batch. `Batch.from_atoms` makes them."""

    stages: tuple[Stage, ...]

    @property
    def has_partial(self) -> bool:
        """Whether there are rows that keep some directions: those that a `Turn` is for."""
        return any(stage.partial is not None for stage in self.stages)

    @property
    def has_symmetry(self) -> bool:
        """Whether there is room for symmetries, whose gradients a `Turn` is for, too."""
        return any(stage.symmetry is not None for stage in self.stages)

    def of_gradient(
        self, gradient: Rows, index: SystemIndex, params: Any = None, turn: Turn | None = None
    ) -> Rows:
        """The gradient that the constraints leave, as ASE's `adjust_forces` does.

        Args:
            params: nothing here depends on where that is.
            turn: None where all rows are Cartesian.
        """
        for stage in self.stages:
            gradient = stage.of_rows(gradient, 0.0, index, turn)
            if stage.com is not None:
                gradient = stage.com.of_gradient(gradient, index)
            if stage.symmetry is not None:
                gradient = symmetric_gradient(stage.symmetry, gradient, index, turn)
        return gradient

    def of_step(
        self, step: Rows, index: SystemIndex, params: Any = None, turn: Turn | None = None
    ) -> Rows:
        """The step that the constraints leave, as ASE's `adjust_positions` does.

        Args:
            params: nothing here depends on where that is.
            turn: None where all rows are Cartesian.
        """
        for stage in self.stages:
            # what -0.0 is added to keeps its sign, too
            step = stage.of_rows(step, -0.0, index, turn)
            if stage.com is not None:
                step = stage.com.of_step(step, index)
            if stage.symmetry is not None:
                step = stage.symmetry.of_step(step, index)
        return step

    def of_stress(self, stress: Matrices, turn: Turn | None = None) -> Matrices:
        """The stress that the constraints leave, as ASE's `adjust_stress` does.

        Args:
            turn: that of the gradient; None where nothing is deformed.
        """
        for stage in self.stages:
            if stage.symmetry is not None:
                stress = symmetric_stress(stage.symmetry, stress, turn)
        return stress

    def of_cell_step(self, step: Matrices) -> Matrices:
        """The step of F − 1, with F the deformation, that ASE's `adjust_cell` leaves."""
        for stage in self.stages:
            if stage.symmetry is not None:
                step = stage.symmetry.of_cell_step(step)
        return step


class Constrained(AbstractTransform):
    """An optimizer that sees the constrained gradient and whose steps keep the constraints.

    Its state is the optimizer's.
    """

    optimizer: AbstractTransform
    constraints: Any
    """With the two methods of `Constraints`."""

    def init(self, parameters, index_prefix=None):
        return self.optimizer.init(parameters, index_prefix)

    def update(self, updates, state, params=None, **extra):
        gradient = self.constraints.of_gradient(updates, state.index_prefix, params)
        step, state = self.optimizer.update(gradient, state, params, **extra)
        return self.constraints.of_step(step, state.index_prefix, params), state

    def is_accepted(self, state):
        return self.optimizer.is_accepted(state)

    def has_failed(self, state):
        return self.optimizer.has_failed(state)


def constrained(
    optimizer: AbstractTransform, constraints: Any
) -> tuple[AbstractTransform, Callable[[Evidence], Evidence] | None]:
    """The optimizer, and what criteria are shown, under these constraints.

    Gradients outside of both stay those of the potential.

    Args:
        constraints: with the two methods of `Constraints`; None for none.
    """
    if constraints is None:
        return optimizer, None

    def view(evidence: Evidence) -> Evidence:
        gradients = constraints.of_gradient(
            evidence.gradients, evidence.index_prefix, evidence.params
        )
        return evidence._replace(gradients=gradients)

    return Constrained(optimizer, constraints), view


# --- on the host


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


Layout = tuple[StageLayout, ...]
"""What constraints have arrays for: batches that share a program have one layout."""


class _Read(NamedTuple):
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


def layout_of(atoms: Iterable[Atoms]) -> Layout:
    """What the constraints of any of these structures need; empty where there are none."""
    layout: list[StageLayout] = []
    for a in atoms:
        for at, stage in enumerate(_read(a)):
            known = layout[at] if at < len(layout) else StageLayout(False, False)
            needed: list[Any] = list(map(max, stage.needed, known))
            layout[at : at + 1] = [StageLayout(*needed)]
    return tuple(layout)


def blank(layout: Layout, n_rows: int, n_systems: int, dtype: Any) -> Constraints | None:
    """Arrays of the host in which nothing is constrained; None for an empty layout."""

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, dtype)

    def none(*shape: int) -> Any:
        return np.zeros(shape, bool)

    stages = []
    for has_slants, has_com, n_slots, has_partial in (StageLayout(*each) for each in layout):
        slants = Slants(none(n_rows, 3), zeros(n_rows, 3, 3)) if has_slants else None
        ones = 1 + zeros(n_systems), 1 + zeros(n_systems)
        com = Masses(none(n_systems), zeros(n_rows), *ones) if has_com else None
        symmetry = blank_symmetry(n_slots, n_rows, n_systems, dtype)
        partial = none(n_rows) if has_partial else None
        stages.append(Stage(none(n_rows, 3), slants, partial, com, symmetry))
    return Constraints(tuple(stages)) if stages else None


def write(constraints: Constraints | None, system: Any, rows: slice, atoms: Atoms) -> None:
    """Puts the constraints of one structure into arrays of the host, in place of what was there.

    Args:
        constraints: of NumPy arrays, as `blank` makes them.
        system: the number of its place.
        rows: those of the place, padding included.

    Raises:
        ValueError: the layout has no room for them.
    """
    stages: tuple[Any, ...] = () if constraints is None else constraints.stages
    read = _read(atoms)
    if len(read) > len(stages):
        raise ValueError(f"system {system}: the layout has no room for its constraints")
    if not stages:
        return
    free = _Read(_free(len(atoms)))
    for stage, own in zip(stages, [*read, *[free] * (len(stages) - len(read))], strict=True):
        if any(map(operator.gt, own.needed, stage.room)):
            raise ValueError(f"system {system}: the layout has no room for its constraints")
        stage.fixed[rows] = _padded(own.fixed, stage.fixed[rows])
        if stage.slants is not None:
            stage.slants.mask[rows] = _padded(own.slanted, stage.slants.mask[rows])
            stage.slants.matrices[rows] = _padded(own.matrices, stage.slants.matrices[rows])
        if stage.partial is not None:
            stage.partial[rows] = _padded(own.partial, stage.partial[rows])
        if stage.com is not None:
            masses = atoms.get_masses() if own.has_com else np.zeros(0)
            stage.com.mask[system] = own.has_com
            stage.com.masses[rows] = _padded(masses, stage.com.masses[rows])
            stage.com.totals[system] = masses.sum() if own.has_com else 1.0
            stage.com.squares[system] = (masses**2).sum() if own.has_com else 1.0
        if stage.symmetry is not None:
            write_symmetry(stage.symmetry, system, rows, own.symmetry)


def _padded(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The values, and zeros up to the rows of `like`."""
    padded = np.zeros_like(like)
    padded[: len(values)] = values
    return padded


def with_fixed(atoms: Atoms, positions: Float[np.ndarray, "atoms 3"]) -> np.ndarray:
    """The positions, with those of the structure where they are fixed.

    A run in single precision has rounded them. A `FixCom` or `FixSymmetry` moves what is fixed
    before it.
    """
    read = _read(atoms)
    if not read or read[-1].has_com or read[-1].symmetry:
        return positions
    return np.where(read[-1].fixed, atoms.positions, positions)


def _read(atoms: Atoms) -> list[_Read]:
    """The stages of a structure's constraints; none where it has none."""
    if not atoms.constraints:
        return []
    stages = [_Read(_free(len(atoms)))]
    for kind, group in itertools.groupby(atoms.constraints, _kind):
        if kind is FixSymmetry:
            for constraint in group:
                stages[-1] = stages[-1]._replace(symmetry=orbits_of(constraint, atoms))
                stages.append(_Read(_free(len(atoms))))
            continue
        if stages[-1].has_com:
            stages.append(_Read(_free(len(atoms))))
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


def _free(n_atoms: int) -> Float[np.ndarray, "atoms 3 3"]:
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
