"""The constraints of a batch on the device.

Constraints act in the order of each structure, in stages of parts; each system uses only some
parts. In a moving cell, the deformation turns rows into Cartesian vectors; a part that depends on
the deformation receives a `Turn`.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx

from basinax.minimize.criteria import Evidence
from basinax.optimizers.protocol import AbstractAround, AbstractTransform, updated
from basinax.structures.constraints.kinds import PARTS
from basinax.structures.constraints.protocol import AbstractPart, Room, Rows, Stages, Turning
from basinax.structures.matrices import Matrices
from basinax.systems.index import SystemIndex

Stage = tuple[AbstractPart | None, ...]
"""The parts of a stage in the order of `PARTS`; None for parts without any system."""


class Constraints(eqx.Module):
    """The constraints of a batch. `Batch.from_atoms` makes them."""

    stages: tuple[Stage, ...]
    layout: "Layout" = eqx.field(static=True)

    @property
    def parts(self) -> list[AbstractPart]:
        """All parts in the order in which they act."""
        return [part for stage in self.stages for part in stage if part is not None]

    def of_gradient(
        self, gradient: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The gradient under the constraints, as from ASE's `adjust_forces`.

        Args:
            params: unused; constraints here do not depend on positions.
            turning: None if all rows are Cartesian.
        """
        for part in self.parts:
            gradient = part.of_gradient(gradient, index, turning)
        return gradient

    def of_step(
        self, step: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The step under the constraints, as from ASE's `adjust_positions`.

        Args:
            params: unused; constraints here do not depend on positions.
            turning: None if all rows are Cartesian.
        """
        for part in self.parts:
            step = part.of_step(step, index, turning)
        return step

    def of_stress(self, stress: Matrices, turning: Turning = None) -> Matrices:
        """The stress under the constraints, as from ASE's `adjust_stress`.

        Args:
            turning: the turning of the gradient; None if no cell is deformed.
        """
        for part in self.parts:
            stress = part.of_stress(stress, turning)
        return stress

    def of_cell_step(self, step: Matrices) -> Matrices:
        """The step of F − 1, with the deformation F, as from ASE's `adjust_cell`."""
        for part in self.parts:
            step = part.of_cell_step(step)
        return step


class Constrained(AbstractAround):
    """An optimizer that receives the constrained gradient and whose steps keep the constraints."""

    constraints: Any
    """An object with the two methods `of_gradient` and `of_step`."""

    def update(self, updates, state, params=None, **extra):
        gradient = self.constraints.of_gradient(updates, state.index_prefix, params)
        step, state = updated(self.optimizer, gradient, state, params, **extra)
        return self.constraints.of_step(step, state.index_prefix, params), state


def constrained(
    optimizer: AbstractTransform, constraints: Any
) -> tuple[AbstractTransform, Callable[[Evidence], Evidence] | None]:
    """The optimizer, and the view of evidence for criteria, under these constraints.

    Gradients elsewhere stay those of the potential.

    Args:
        constraints: an object with `of_gradient` and `of_step`, or None.
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
"""The room of each part of each stage; batches that share a program have one layout."""


def layout_of(structures: Iterable[Stages]) -> Layout:
    """The room for the constraints of all these structures; empty without constraints."""
    return _joined(
        tuple(
            tuple(part.room_of(stage[part]) if part in stage else () for part in PARTS)
            for stage in own
        )
        for own in structures
        if own
    )


def _joined(layouts: Iterable[Layout]) -> Layout:
    """The smallest layout with room for all given ones."""

    def largest(rooms: Iterable[Room]) -> Room:
        return tuple(map(max, itertools.zip_longest(*rooms, fillvalue=0)))

    nothing = ((),) * len(PARTS)  # a layout from before a part was registered is shorter
    stages = itertools.zip_longest(*layouts, fillvalue=nothing)
    return tuple(
        tuple(map(largest, itertools.zip_longest(nothing, *rooms, fillvalue=())))
        for rooms in stages
    )


def blank(layout: Layout, n_rows: int, n_systems: int, dtype: Any) -> Constraints | None:
    """Host arrays without any constraint; None for an empty layout."""
    stages = [
        tuple(
            part.blank(room, n_rows, n_systems, dtype) if any(room) else None
            for part, room in zip(PARTS, rooms, strict=False)
        )
        for rooms in layout
    ]
    return Constraints(tuple(stages), layout) if stages else None


def has_room(layout: Layout, own: Stages) -> bool:
    """Whether a layout has room for the constraints of one structure."""
    return _joined([layout, layout_of([own])]) == _joined([layout])


def write(constraints: Constraints | None, system: int, rows: slice, own: Stages) -> None:
    """Write the constraints of one structure over those of its place in host arrays.

    Args:
        constraints: NumPy arrays from `blank`.
        system: the number of the place.
        rows: the rows of the place, padding included.

    Raises:
        ValueError: the layout has no room for the constraints.
    """
    layout = () if constraints is None else constraints.layout
    if not has_room(layout, own):
        raise ValueError(f"system {system}: the layout has no room for its constraints")
    stages = () if constraints is None else constraints.stages
    for stage, found in itertools.zip_longest(stages, own, fillvalue={}):
        for kind, part in zip(PARTS, stage, strict=False):
            if part is not None:
                part.write(system, rows, found.get(kind))
