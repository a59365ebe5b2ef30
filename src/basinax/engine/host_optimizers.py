"""Steps that the host makes, for one structure at a time, after its evaluation has arrived."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from basinax.engine.slots import Slots
from basinax.internal.carried import Walk
from basinax.internal.deformation import Deformation
from basinax.internal.optimizer import InternalLBFGS
from basinax.minimize.run import Run


class HostOptimizers:
    """The optimizers of the structures in the slots of a batch."""

    def __init__(self, slots: Slots, look: Callable[[], None]):
        """Args: look: called between two steps."""
        self.slots, self._look = slots, look
        self._walks: dict[int, tuple[Deformation, Walk]] = {}
        """Optimizers by structure number."""

    def end(self, number: int) -> None:
        self._walks.pop(number, None)

    def steps(self, run: Run, energies: dict[int, float], gradients: Any) -> Any:
        """The steps of structures whose evaluation has arrived, like the parameters; 0 for others.

        Args:
            energies: energies of the potential in eV, by slot.
            gradients: gradients like the parameters, under the constraints.
        """
        params, gradients = jax.device_get((run.point.params, gradients))
        steps = jax.tree.map(np.zeros_like, params)
        for k, energy in energies.items():
            rows = self._rows(k)
            frame, walk = self._walk(k)
            x, gradient = (_vector(tree, rows) for tree in (params, gradients))
            enthalpy = energy + frame.pressure * frame.volume(x)
            step = walk.step(x, enthalpy, frame.by_steps(gradient))
            self._look()
            for array, own in zip(jax.tree.leaves(steps), rows, strict=True):
                n = 3 * (own.stop - own.start)
                array[own], step = step[:n].reshape(-1, 3), step[n:]
        return steps

    def _walk(self, k: int) -> tuple[Deformation, Walk]:
        slots = self.slots
        structure = slots.structures[k]
        if structure.number not in self._walks:
            optimizer: Any = slots.settings().optimizer
            assert isinstance(optimizer, InternalLBFGS)
            self._walks[structure.number] = optimizer.walk(structure, k)
        return self._walks[structure.number]

    def _rows(self, k: int) -> list[slice]:
        """The rows of a slot in each leaf of the parameters."""
        rows, moves = [self.slots.rows_of(k)], self.slots.moves
        if moves is not None:
            each = 2 if moves.kind == "strain" else 3
            begin = each * k
            rows.append(slice(begin, begin + each if moves.is_free[k] else begin))
        return rows


def _vector(tree: Any, rows: list[slice]) -> np.ndarray:
    leaves = jax.tree.leaves(tree)
    parts = [leaf[own].ravel() for leaf, own in zip(leaves, rows, strict=True)]
    return np.concatenate(parts).astype(np.float64)
