"""The constraints of a batch, kept on the device.

They act in the order of each structure, in stages of parts; each system uses the parts that it
needs. Where a cell moves, the deformation turns rows into Cartesian vectors; a part that depends on
this receives a `Turn`.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx

from basinax._loop.criteria import Evidence
from basinax._systems.index import SystemIndex
from basinax.atoms._constraints.kinds import PARTS
from basinax.atoms._constraints.protocol import AbstractPart, Room, Rows, Stages, Turning
from basinax.atoms._matrices import Matrices
from basinax.transforms._protocol import AbstractTransform

Stage = tuple[AbstractPart | None, ...]
"""In the order of `PARTS`; None where no system has any."""


class Constraints(eqx.Module):
    """The constraints of a batch. `Batch.from_atoms` makes them."""

    stages: tuple[Stage, ...]

    @property
    def parts(self) -> list[AbstractPart]:
        """One after another, as they act."""
        return [part for stage in self.stages for part in stage if part is not None]

    @property
    def layout(self) -> "Layout":
        return tuple(
            tuple(() if part is None else part.room for part in stage) for stage in self.stages
        )

    def of_gradient(
        self, gradient: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The gradient that the constraints leave, as ASE's `adjust_forces` does.

        Args:
            params: nothing here depends on where that is.
            turning: None where all rows are Cartesian.
        """
        for part in self.parts:
            gradient = part.of_gradient(gradient, index, turning)
        return gradient

    def of_step(
        self, step: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The step that the constraints leave, as ASE's `adjust_positions` does.

        Args:
            params: nothing here depends on where that is.
            turning: None where all rows are Cartesian.
        """
        for part in self.parts:
            step = part.of_step(step, index, turning)
        return step

    def of_stress(self, stress: Matrices, turning: Turning = None) -> Matrices:
        """The stress that the constraints leave, as ASE's `adjust_stress` does.

        Args:
            turning: that of the gradient; None where nothing is deformed.
        """
        for part in self.parts:
            stress = part.of_stress(stress, turning)
        return stress

    def of_cell_step(self, step: Matrices) -> Matrices:
        """The step of F − 1, with F the deformation, that ASE's `adjust_cell` leaves."""
        for part in self.parts:
            step = part.of_cell_step(step)
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
    """The optimizer, and the view of evidence for criteria, under these constraints.

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


Layout = tuple[tuple[Room, ...], ...]
"""The room of each part of each stage: batches that share a program have one layout."""


def layout_of(structures: Iterable[Stages]) -> Layout:
    """The room for the constraints of all of these structures; empty where there are none."""
    return _joined(
        tuple(tuple(stage[part].room if part in stage else () for part in PARTS) for stage in own)
        for own in structures
    )


def _joined(layouts: Iterable[Layout]) -> Layout:
    """The least layout with room for each of these."""

    def largest(rooms: Iterable[Room]) -> Room:
        return tuple(map(max, itertools.zip_longest(*rooms, fillvalue=0)))

    nothing = ((),) * len(PARTS)
    stages = itertools.zip_longest(*layouts, fillvalue=nothing)
    return tuple(tuple(map(largest, zip(*rooms, strict=True))) for rooms in stages)


def blank(layout: Layout, n_rows: int, n_systems: int, dtype: Any) -> Constraints | None:
    """Arrays of the host in which nothing is constrained; None for an empty layout."""
    stages = [
        tuple(
            part.blank(room, n_rows, n_systems, dtype) if any(room) else None
            for part, room in zip(PARTS, rooms, strict=True)
        )
        for rooms in layout
    ]
    return Constraints(tuple(stages)) if stages else None


def write(constraints: Constraints | None, system: int, rows: slice, own: Stages) -> None:
    """Write the constraints of one structure over those in arrays of the host.

    Args:
        constraints: of NumPy arrays, as `blank` makes them.
        system: the number of its place.
        rows: those of the place, padding included.

    Raises:
        ValueError: the layout has no room for them.
    """
    layout = () if constraints is None else constraints.layout
    if _joined([layout, layout_of([own])]) != layout:
        raise ValueError(f"system {system}: the layout has no room for its constraints")
    stages = () if constraints is None else constraints.stages
    for stage, found in itertools.zip_longest(stages, own, fillvalue={}):
        for kind, part in zip(PARTS, stage, strict=True):
            if part is not None:
                part.write(system, rows, found.get(kind))
