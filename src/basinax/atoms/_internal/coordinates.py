"""Internal coordinates of one structure, as functions of its degrees of freedom."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from basinax.atoms._internal import primitives
from basinax.atoms._internal.carried import PLAIN_STEP
from basinax.atoms._internal.deformation import Frame
from basinax.atoms._internal.dense import product
from basinax.atoms._internal.lists import InternalList, Structure, list_of
from basinax.atoms._internal.stiffness import Stiffness

Vector = Float[np.ndarray, "dofs"]


class InternalCoordinates:
    """Stretches, bends, near-linear bends, torsions and impropers, in this order.

    Args:
        frame: of the structure.
        listed: which coordinates there are.
        x: where the list was made.
        maxstep: the longest step of an atom, in Å.
        stiffness: the force constants of the model are multiplied by it.
    """

    def __init__(
        self,
        frame: Frame,
        listed: InternalList,
        x: Vector,
        maxstep: float = 1.0,
        stiffness: float = 1.0,
    ):
        self.frame, self.maxstep, self.factor = frame, maxstep, stiffness
        self.listed = listed
        self._stiffness = Stiffness(self.listed, frame.numbers)
        images = self._images(x, frame.deformation(x))
        self._axes = primitives.axes_across(images, self.listed.linear)
        self._n_straight = sum(
            len(at) for at in (self.listed.stretches, self.listed.bends, *[self.listed.linear] * 2)
        )

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Float[np.ndarray, "q dofs"]]:
        frame, listed = self.frame, self.listed
        deformation = frame.deformation(x)
        values = self._values(self._images(x, deformation))
        q = np.concatenate([value for _, (value, _) in values])
        by_atoms = np.zeros((len(q), frame.n_atoms, 3))
        moments = np.zeros((len(q), 3, 3))
        undeformed = self._undeformed(x)
        begin = 0
        for images, (value, derivatives) in values:
            rows = np.arange(begin, begin := begin + len(value))
            for at, derivative in zip(images.T, derivatives, strict=True):
                by_atoms[rows, listed.owners[at]] += derivative
                if frame.kind is not None:
                    moments[rows] += derivative[:, :, None] * undeformed[at][:, None, :]
        return q, self._by_dofs(by_atoms, moments, x, deformation)

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        return self.factor * self._stiffness(self._images(x, self.frame.deformation(x)))

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        turned = change[self._n_straight :]
        turned = (turned + np.pi) % (2 * np.pi) - np.pi
        return np.concatenate([change[: self._n_straight], turned])

    def reach(self, step: Vector) -> float:
        has_some = len(self.listed.kinds) > 0
        return self.frame.longest(step, self.maxstep if has_some else min(self.maxstep, PLAIN_STEP))

    def _values(self, images: np.ndarray) -> list:
        listed = self.listed
        linear = np.repeat(listed.linear, 2, axis=0)
        axes = self._axes.reshape(-1, 3)
        return [
            (listed.stretches, primitives.stretches(images, listed.stretches)),
            (listed.bends, primitives.bends(images, listed.bends)),
            (linear, primitives.linear_bends(images, linear, axes)),
            (listed.torsions, primitives.torsions(images, listed.torsions)),
            (listed.flat, primitives.torsions(images, listed.flat)),
        ]

    def _undeformed(self, x: Vector) -> Float[np.ndarray, "images 3"]:
        rows = x[: 3 * self.frame.n_atoms].reshape(-1, 3)
        if not self.frame.pbc.any():
            return rows
        return rows[self.listed.owners] + self.listed.shifts @ self.frame.cell

    def _images(self, x: Vector, deformation: np.ndarray) -> Float[np.ndarray, "images 3"]:
        images = self._undeformed(x)
        return images if self.frame.kind is None else images @ deformation.T

    def _by_dofs(self, by_atoms, moments, x: Vector, deformation) -> np.ndarray:
        frame, n = self.frame, len(by_atoms)
        if frame.kind is not None:
            by_atoms = by_atoms @ deformation
        if frame.left is not None:
            by_atoms = np.einsum("qac,acd->qad", by_atoms, frame.left)
        if frame.kind == "strain":  # atoms move with the cell alone
            by_atoms = np.zeros_like(by_atoms)
        by_rows = by_atoms.reshape(n, 3 * frame.n_atoms)
        if frame.kind is None:
            return by_rows
        derivative = frame.derivative(x).reshape(9, -1)
        return np.concatenate([by_rows, product(moments.reshape(n, 9), derivative)], axis=1)


class NoCoordinates:
    """Of a structure that takes the steps of plain L-BFGS."""

    def __init__(self, frame: Frame, maxstep: float):
        self.frame, self.maxstep = frame, min(maxstep, PLAIN_STEP)

    def at(self, x: Vector) -> tuple[Float[np.ndarray, "q"], Float[np.ndarray, "q dofs"]]:
        return np.zeros(0), np.zeros((0, len(x)))

    def stiffness(self, x: Vector) -> Float[np.ndarray, "q"]:
        return np.zeros(0)

    def wrapped(self, change: np.ndarray) -> np.ndarray:
        return change

    def reach(self, step: Vector) -> float:
        return self.frame.longest(step, self.maxstep)


def internal_coordinates(
    frame: Frame, maxstep: float, stiffness: float
) -> Callable[[Vector, Any], InternalCoordinates]:
    """A function that makes the coordinates of a structure wherever it stands.

    Args:
        maxstep: the longest step of an atom, in Å.
        stiffness: the force constants of the model are multiplied by it.
    """

    def renewed(x: Vector, before: InternalCoordinates | None) -> InternalCoordinates:
        listed = list_of(structure_at(frame, x))
        if before is not None and listed.is_same(before.listed):
            return before
        return InternalCoordinates(frame, listed, x, maxstep, stiffness)

    return renewed


def structure_at(frame: Frame, x: Vector) -> Structure:
    deformation = frame.deformation(x)
    positions = x[: 3 * frame.n_atoms].reshape(-1, 3) @ deformation.T
    return Structure(frame.numbers, positions, frame.cell @ deformation.T, frame.pbc)
