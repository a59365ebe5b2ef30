"""Internal coordinates of one structure, as functions of its degrees of freedom."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from basinax.internal import primitives
from basinax.internal.arithmetic import product
from basinax.internal.carried import PLAIN_STEP
from basinax.internal.deformation import Deformation
from basinax.internal.lists import InternalList, Standing, list_of
from basinax.internal.sparse import Jacobian, Pattern
from basinax.internal.stiffness import Stiffness

Vector = Float[np.ndarray, "dofs"]


class InternalCoordinates:
    """Stretches, bends, near-linear bends, torsions and impropers, in this order.

    Args:
        frame: the degrees of freedom of the structure.
        listed: the list of coordinates.
        x: the point at which the list was made.
        maxstep: the longest step of an atom, in Å.
        stiffness: a factor of the model's force constants.
    """

    def __init__(
        self,
        frame: Deformation,
        listed: InternalList,
        x: Vector,
        maxstep: float = 1.0,
        stiffness: float = 1.0,
    ):
        self.frame, self.maxstep, self.factor = frame, maxstep, stiffness
        self.listed = listed
        self._stiffness = Stiffness(self.listed, frame.numbers)
        linear = np.repeat(listed.linear, 2, axis=0)
        twisted = np.concatenate([listed.torsions, listed.flat])
        images = self._images(self._undeformed(x), frame.deformation(x))
        axes = primitives.axes_across(images, listed.linear).reshape(-1, 3)
        self._groups: list[tuple[Callable[..., primitives.Value], np.ndarray]] = [
            (primitives.stretches, listed.stretches),
            (primitives.bends, listed.bends),
            (functools.partial(primitives.linear_bends, axes=axes), linear),
            (primitives.torsions, twisted),
        ]
        self._n_straight = sum(len(at) for _, at in self._groups[:3])
        self._pattern = Pattern([self._columns(at) for _, at in self._groups], len(x))

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Jacobian]:
        frame = self.frame
        undeformed, deformation = self._undeformed(x), frame.deformation(x)
        images = self._images(undeformed, deformation)
        by_cell = None if frame.kind is None else frame.derivative(x).reshape(9, -1)
        q, entries = [], []
        for (function, at), columns in zip(self._groups, self._pattern.groups, strict=True):
            if len(at):
                values, derivatives = function(images, at)
                q.append(values)
                by_images = np.stack(derivatives, 1)
                entries.append(self._by_dofs(at, by_images, undeformed, deformation, by_cell))
            else:
                entries.append(np.zeros(columns.shape))
        return np.concatenate([*q, np.zeros(0)]), Jacobian(self._pattern, entries)

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        images = self._images(self._undeformed(x), self.frame.deformation(x))
        return self.factor * self._stiffness(images)

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        turned = change[self._n_straight :]
        turned = (turned + np.pi) % (2 * np.pi) - np.pi
        return np.concatenate([change[: self._n_straight], turned])

    def reach(self, step: Vector) -> float:
        has_some = len(self.listed.kinds) > 0
        return self.frame.longest(step, self.maxstep if has_some else min(self.maxstep, PLAIN_STEP))

    def _columns(self, at: Int[np.ndarray, "q ends"]) -> Int[np.ndarray, "q entries"]:
        """The degrees of freedom on which coordinates between these images depend."""
        frame, own = self.frame, self.listed.owners[at][:, :, None]
        of_atoms = (3 * own + np.arange(3)).reshape(len(at), 3 * at.shape[1])
        of_cell = np.tile(np.arange(3 * frame.n_atoms, frame.n_dofs), (len(at), 1))
        if frame.kind == "strain":  # atoms follow the cell and have no degrees of freedom
            return of_cell
        return np.concatenate([of_atoms, of_cell], 1)

    def _by_dofs(
        self,
        at: Int[np.ndarray, "q ends"],
        by_images: Float[np.ndarray, "q ends 3"],
        undeformed: Float[np.ndarray, "images 3"],
        deformation: Float[np.ndarray, "3 3"],
        by_cell: Float[np.ndarray, "9 entries"] | None,
    ) -> Float[np.ndarray, "q entries"]:
        """Derivatives by the degrees of freedom in `_columns`, from derivatives by images.

        Axes: q coordinate, a end of the coordinate, c and d Cartesian components, m the nine
        entries of the deformation.
        """
        frame, n = self.frame, len(at)
        rows = by_images
        if frame.kind is not None:
            rows = np.einsum("qac,cd->qad", rows, deformation)
        if frame.left is not None:
            rows = np.einsum("qac,qacd->qad", rows, frame.left[self.listed.owners[at]])
        rows = rows.reshape(n, -1)
        if by_cell is None:
            return rows
        moments = np.einsum("qac,qad->qcd", by_images, undeformed[at]).reshape(n, 9)
        cells = np.einsum("qm,mc->qc", moments, by_cell)
        return cells if frame.kind == "strain" else np.concatenate([rows, cells], 1)

    def _undeformed(self, x: Vector) -> Float[np.ndarray, "images 3"]:
        rows = x[: 3 * self.frame.n_atoms].reshape(-1, 3)
        if not self.frame.pbc.any():
            return rows
        return rows[self.listed.owners] + product(self.listed.shifts, self.frame.cell)

    def _images(self, undeformed: np.ndarray, deformation: np.ndarray) -> np.ndarray:
        return undeformed if self.frame.kind is None else product(undeformed, deformation.T)


class NoCoordinates:
    """No coordinates, for a structure that takes the steps of plain L-BFGS."""

    def __init__(self, frame: Deformation, maxstep: float):
        self.frame, self.maxstep = frame, min(maxstep, PLAIN_STEP)
        self._none = Jacobian(Pattern([np.zeros((0, 0), int)], frame.n_dofs), [np.zeros((0, 0))])

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Jacobian]:
        return np.zeros(0), self._none

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        return np.zeros(0)

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        return change

    def reach(self, step: Vector) -> float:
        return self.frame.longest(step, self.maxstep)


def internal_coordinates(
    frame: Deformation, maxstep: float, stiffness: float
) -> Callable[[Vector, Any], InternalCoordinates]:
    """A function that makes the coordinates of a structure at any point.

    Args:
        maxstep: the longest step of an atom, in Å.
        stiffness: a factor of the model's force constants.
    """

    def renewed(x: Vector, before: InternalCoordinates | None) -> InternalCoordinates:
        listed = list_of(where_it_stands(frame, x), None if before is None else before.listed)
        if before is not None and listed is before.listed:
            return before
        return InternalCoordinates(frame, listed, x, maxstep, stiffness)

    return renewed


def where_it_stands(frame: Deformation, x: Vector) -> Standing:
    deformation = frame.deformation(x)
    positions = product(x[: 3 * frame.n_atoms].reshape(-1, 3), deformation.T)
    return Standing(frame.numbers, positions, product(frame.cell, deformation.T), frame.pbc)
