"""Constraints of ASE structures, kept on the device.

What ASE's `adjust_forces` and `adjust_positions` do is linear in forces and steps. Constraints of
single atoms become one matrix a row, in the order in which they stand on the structure; a `FixCom`
ends a stage, and what stands behind it begins another. A row without constraint is selected, not
multiplied, so that a free structure keeps its bits beside constrained ones. A `FixSymmetry` ends a
stage, too.

Where a cell moves, an optimizer's rows are no Cartesian vectors but turn into them with the
deformation. Fixed atoms, centres of mass and symmetries that cells keep do not notice; rows that
keep some directions are made Cartesian, and made again what they were.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Bool, Float

from basinax._bits.rounding import rounded
from basinax._loop.criteria import Evidence
from basinax._systems.index import SystemIndex
from basinax.atoms._constraints.reading import ReadStage, StageLayout, all_free, read_stages
from basinax.atoms._constraints.symmetry import Symmetry, blank_symmetry, turned, write_symmetry
from basinax.atoms._matrices import Matrices, multiply, transposed, turned_rows
from basinax.transforms._protocol import AbstractTransform

Rows = Float[Array, "rows 3"]


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


Layout = tuple[StageLayout, ...]
"""What constraints have arrays for: batches that share a program have one layout."""


def layout_of(atoms: Iterable[Atoms]) -> Layout:
    """What the constraints of any of these structures need; empty where there are none."""
    layout: list[StageLayout] = []
    for a in atoms:
        for at, stage in enumerate(read_stages(a)):
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
    read = read_stages(atoms)
    if len(read) > len(stages):
        raise ValueError(f"system {system}: the layout has no room for its constraints")
    if not stages:
        return
    free = ReadStage(all_free(len(atoms)))
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
