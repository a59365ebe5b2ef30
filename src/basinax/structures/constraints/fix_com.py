"""ASE's `FixCom`: a fixed centre of mass."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.constraints import FixCom
from jaxtyping import Array, Bool, Float

from basinax.numerics.elementary import quotient
from basinax.numerics.rounding import rounded
from basinax.structures.constraints.protocol import AbstractKind, AbstractPart, Room, Rows, Turning
from basinax.systems.index import SystemIndex


class Masses(AbstractPart):
    """Systems with a fixed centre of mass, and the masses of their atoms in u."""

    mask: Bool[Array, "systems"]
    masses: Float[Array, "rows"]
    totals: Float[Array, "systems"]
    """Σ m; 1 for systems with a free centre of mass."""
    squares: Float[Array, "systems"]
    """Σ m²; 1 for systems with a free centre of mass."""

    @classmethod
    def room_of(cls, own: np.ndarray) -> Room:
        return (1,)

    @classmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> "Masses":
        none: Any = np.zeros(n_systems, bool)
        masses: Any = np.zeros(n_rows, dtype)
        ones: Any = np.ones(n_systems, dtype)
        return cls(none, masses, ones, ones.copy())

    def write(self, system: int, rows: slice, own: np.ndarray | None) -> None:
        arrays: Any = self
        arrays.mask[system], arrays.masses[rows] = own is not None, 0.0
        arrays.totals[system] = arrays.squares[system] = 1.0
        if own is not None:
            arrays.masses[rows.start : rows.start + len(own)] = own
            arrays.totals[system], arrays.squares[system] = own.sum(), (own**2).sum()

    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """x − m (Σ m x)/(Σ m²): equations 3 and 7 of doi:10.1021/jp9722824, as in ASE."""
        return self._without_mean(x, index, self.squares, self.masses)

    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """x − (Σ m x)/(Σ m)."""
        return self._without_mean(x, index, self.totals, jnp.ones_like(self.masses))

    def _without_mean(self, x: Rows, index: SystemIndex, norms, weights) -> Rows:
        is_kept = index.spread(self.mask, False, weights)
        columns = []
        for c in range(3):
            mean = quotient(index.sum(rounded(self.masses * x[:, c])), norms)
            change = rounded(weights * index.spread(mean, 0.0, weights))
            columns.append(jnp.where(is_kept, x[:, c] - change, x[:, c]))
        return jnp.stack(columns, 1)


class FixComKind(AbstractKind):
    of = FixCom
    part = Masses

    def read(self, constraint: FixCom, atoms: Atoms) -> np.ndarray:
        return atoms.get_masses()

    def fault(self, constraint: FixCom, atoms: Atoms) -> str:
        total = atoms.get_masses().sum()
        is_heavy = np.isfinite(total) and total > 0
        return "" if is_heavy else f"needs a mass that is finite and not 0, got {total}"
