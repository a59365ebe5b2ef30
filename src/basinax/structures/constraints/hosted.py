"""ASE's constraints that act on the host, by ASE's own methods, on one structure at a time.

They depend on positions, or add to the energy. Beside one of them, all constraints of a structure
act there, in their order.
"""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.constraints import FixBondLengths, FixInternals, Hookean
from jaxtyping import Array, Bool, Float

from basinax.structures.constraints.protocol import Rows, Turning
from basinax.systems.index import SystemIndex

HOSTED = (FixBondLengths, FixInternals, Hookean)
"""The classes; subclasses may behave differently and do not count."""


def acts_on_host(atoms: Atoms) -> bool:
    """Whether a structure has a constraint that acts on the host."""
    constraints = atoms.constraints
    return bool(constraints) and any(type(c) in HOSTED for c in constraints)


def moves_atoms(constraint: Any) -> bool:
    """Whether a constraint changes steps, and not only forces and energies."""
    return type(constraint) is not Hookean


def is_curved(constraint: Any) -> bool:
    """Whether a constraint bends steps, so that they are no part of a line."""
    return type(constraint) in (FixBondLengths, FixInternals)


class HostConstraints:
    """The constraints of one structure, copied, on a copy of the structure."""

    def __init__(self, atoms: Atoms):
        """Errors are those of the constraints, of any class."""
        self._atoms = atoms.copy()
        # Lengths and angles without a given value get their value here.
        self.of_forces(atoms.positions, np.zeros((len(atoms), 3)))

    @property
    def positions(self) -> Float[np.ndarray, "atoms 3"]:
        """The positions of the last forces."""
        return self._atoms.positions

    def of_forces(
        self, positions: Float[np.ndarray, "atoms 3"], forces: Float[np.ndarray, "atoms 3"]
    ) -> Float[np.ndarray, "atoms 3"]:
        """The constrained forces at positions, where the structure is from now on."""
        self._atoms.positions[:] = positions
        return forces_under(self._atoms, forces)

    def of_energy(self, energy: float) -> float:
        """The energy in eV with that of the constraints, at the positions of the last forces."""
        return energy_under(self._atoms, energy)

    def of_positions(self, new: Float[np.ndarray, "atoms 3"]) -> Float[np.ndarray, "atoms 3"]:
        """The constrained positions after a step from the positions of the last forces."""
        new = np.array(new, float)
        for constraint in self._atoms.constraints:
            constraint.adjust_positions(self._atoms, new)
        return new


def forces_under(
    atoms: Atoms, forces: Float[np.ndarray, "atoms 3"]
) -> Float[np.ndarray, "atoms 3"]:
    """A potential's forces under the constraints, as in ASE's `get_forces`."""
    forces = np.array(forces, float)
    for constraint in atoms.constraints:
        constraint.adjust_forces(atoms, forces)
    return forces


def energy_under(atoms: Atoms, energy: float) -> float:
    """A potential's energy with that of the constraints, as in ASE's `get_potential_energy`."""
    for constraint in atoms.constraints:
        if isinstance(constraint, Hookean):
            energy += constraint.adjust_potential_energy(atoms)
    return float(energy)


def names_of(constraints: Iterable[Any]) -> str:
    """The names of their classes, each once."""
    return ", ".join(sorted({type(c).__name__ for c in constraints}))


class GivenGradients(eqx.Module):
    """Constraints of a batch, some of whose systems have gradients that the host has constrained.

    These systems' steps are constrained later, on the host.
    """

    mask: Bool[Array, "systems"]
    gradients: Rows
    others: Any = None
    """The constraints of all other systems; None if there are none."""

    def of_gradient(
        self, gradient: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The gradient under the constraints."""
        if self.others is not None:
            gradient = self.others.of_gradient(gradient, index, params, turning)
        is_given = index.spread(self.mask, False, gradient)
        return jnp.where(is_given, self.gradients, gradient)

    def of_step(
        self, step: Rows, index: SystemIndex, params: Any = None, turning: Turning = None
    ) -> Rows:
        """The step under the constraints that act on the device."""
        return step if self.others is None else self.others.of_step(step, index, params, turning)
