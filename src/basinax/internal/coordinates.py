"""Internal coordinates of one structure, as functions of its degrees of freedom."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from basinax.internal import primitives
from basinax.internal.arithmetic import angle, product
from basinax.internal.carried import PLAIN_STEP
from basinax.internal.deformation import Deformation
from basinax.internal.lists import InternalList, Standing, list_of
from basinax.internal.sparse import Jacobian, Pattern
from basinax.internal.stiffness import Stiffness

Vector = Float[np.ndarray, "dofs"]


_NO_DERIVATIVES = [np.zeros((0, n, 3)) for n in (3, 3, 4)]
"""Of bends, near-linear bends and torsions."""


class Standpoint(NamedTuple):
    """A structure at one point."""

    undeformed: Float[np.ndarray, "images 3"]
    deformation: Float[np.ndarray, "3 3"]
    vectors: Float[np.ndarray, "vectors 3"]


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
        linear = np.repeat(listed.linear, 2, axis=0)
        bent = np.concatenate([listed.bends, linear])
        twisted = np.concatenate([listed.torsions, listed.flat])
        self._groups = listed.stretches, listed.bends, linear, twisted
        self._sizes = tuple(map(len, self._groups))
        self._n_straight = sum(self._sizes[:3])
        bonds = [twisted[:, [k + 1, k]] for k in range(3)]
        ends = np.concatenate([listed.stretches, bent[:, :2], bent[:, [2, 1]], *bonds])
        self._heads, self._tails = ends.T.copy()
        """Images at the ends of vectors: stretches; from the centres of all bends to their first
        atoms, then to their last; the first bonds of all torsions, the second, and the third."""
        self._pattern = Pattern([self._columns(at) for at in self._groups], len(x))
        self._stiffness = Stiffness(listed, frame.numbers)
        self._last: tuple[Vector, Standpoint] | None = None
        images = self._images(self._undeformed(x), frame.deformation(x))
        lines = (images[listed.linear[:, end]] for end in (0, 2))
        self._axes = primitives.axes_across(*lines).reshape(-1, 3)

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Jacobian]:
        here = self._standing(x)
        n, n_bends, n_linear, n_twisted = self._sizes
        begin = len(here.vectors) - 3 * n_twisted
        units, lengths = primitives.units(here.vectors[:begin])
        legs, reach = units[n:].reshape(2, -1, 3), lengths[n:].reshape(2, -1, 1)
        values, turned = np.zeros(0), []
        by_images = [primitives.stretches(units[:n]), *_NO_DERIVATIVES]
        if n_bends:
            *sides, by_images[1] = primitives.bends(legs[:, :n_bends], reach[:, :n_bends])
            turned.append(sides)
        if n_linear:
            line = legs[:, n_bends:], reach[:, n_bends:]
            values, by_images[2] = primitives.linear_bends(*line, self._axes)
        if n_twisted:
            *sides, by_images[3] = primitives.torsions(here.vectors[begin:].reshape(3, -1, 3))
            turned.append(sides)
        angles = np.zeros(0)
        if turned:
            angles = angle(*map(np.concatenate, zip(*turned, strict=True)))[:, 0]
        q = np.concatenate([lengths[:n, 0], angles[:n_bends], values, angles[n_bends:]])
        return q, Jacobian(self._pattern, self._by_dofs(x, here, by_images))

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        return self.factor * self._stiffness(self._standing(x).vectors)

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
        self, x: Vector, here: Standpoint, by_images: Sequence[primitives.Derivatives]
    ) -> list[Float[np.ndarray, "q entries"]]:
        """Derivatives by the degrees of freedom in `_columns`, of each group.

        Axes: q coordinate, a end of the coordinate, c and d Cartesian components, m the nine
        entries of the deformation.
        """
        frame = self.frame
        if frame.kind is None and frame.left is None:
            return [own.reshape(len(own), 3 * own.shape[1]) for own in by_images]
        by_cell = None if frame.kind is None else frame.derivative(x).reshape(9, -1)
        made = []
        for at, own in zip(self._groups, by_images, strict=True):
            rows = own
            if frame.kind is not None:
                rows = np.einsum("qac,cd->qad", rows, here.deformation)
            if frame.left is not None:
                rows = np.einsum("qac,qacd->qad", rows, frame.left[self.listed.owners[at]])
            rows = rows.reshape(len(at), 3 * at.shape[1])
            if by_cell is not None:
                moments = np.einsum("qac,qad->qcd", own, here.undeformed[at]).reshape(len(at), 9)
                cells = np.einsum("qm,mc->qc", moments, by_cell)
                rows = cells if frame.kind == "strain" else np.concatenate([rows, cells], 1)
            made.append(rows)
        return made

    def _standing(self, x: Vector) -> Standpoint:
        """Vectors at a point; `at` and `stiffness` are asked for the same point in turn."""
        if self._last is None or self._last[0] is not x:
            undeformed, deformation = self._undeformed(x), self.frame.deformation(x)
            images = self._images(undeformed, deformation)
            vectors = images.take(self._heads, 0) - images.take(self._tails, 0)
            self._last = x, Standpoint(undeformed, deformation, vectors)
        return self._last[1]

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
