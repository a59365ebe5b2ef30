"""The ways in which a cell may move: `UnitCell`, `Frechet`, `Strain`; one per structure."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import equinox as eqx
import numpy as np
from ase import Atoms
from ase.constraints import FixScaled
from jaxtyping import Bool, Float

from basinax.numerics.settings import FINITE, POSITIVE, one_number, require, require_switch, shown
from basinax.structures.matrices import VOIGT_OF_ENTRIES

Kind = Literal["unit-cell", "frechet", "strain"]


class AbstractCell(eqx.Module):
    """The way in which a cell moves, its pressure, and its frozen entries.

    Options are those of ASE's filters; a list with one cell per structure may mix kinds.
    """

    kind: ClassVar[Kind]

    pressure: float | Sequence[float] | Float[np.ndarray, "structures"] = 0.0
    """The pressure in eV/Å³ (1 GPa is 0.00624 eV/Å³), positive for compression; one number, or one
    per structure. The enthalpy E + pV is minimised."""

    mask: Any = None
    """The components that may move: six booleans (xx, yy, zz, yz, xz, xy) or a symmetric 3x3 matrix
    of booleans; all if None."""

    hydrostatic_strain: bool = False
    """Keep the shape of the cell."""

    constant_volume: bool = False
    """Project the trace out of the cell's motion, as in ASE: the volume is kept approximately."""

    cell_factor: float | None = None
    """The scale of the cell's rows relative to positions (`exp_cell_factor` of ASE's
    `FrechetCellFilter`); the number of atoms if None, 1 for `Strain`. `LBFGS()` and
    `ConjugateGradient()` have units of their own if None."""

    def __check_init__(self):
        name = type(self).__name__
        for switch in ("hydrostatic_strain", "constant_volume"):
            require_switch(getattr(self, switch), f"{name}: {switch}")
        try:
            require(self.pressure, f"{name}: pressure", FINITE)
        except TypeError as error:
            message = f"{name}: pressure must be a number, or one a structure, got"
            raise TypeError(f"{message} {shown(self.pressure)}") from error
        if self.cell_factor is not None:
            one_number(self.cell_factor, f"{name}: cell_factor", POSITIVE)
        if self.hydrostatic_strain and self.constant_volume:
            raise ValueError(
                f"{name}: with hydrostatic_strain and constant_volume nothing of a cell can move"
            )
        self.movable()

    def movable(self) -> Bool[np.ndarray, "3 3"]:
        """The components that may move.

        Raises:
            ValueError: `mask` has neither six entries nor is a symmetric 3x3 matrix.
        """
        if self.mask is None:
            return np.ones((3, 3), bool)
        mask = np.asarray(self.mask)
        if mask.shape == (6,):
            mask = mask[list(VOIGT_OF_ENTRIES)].reshape(3, 3)
        are_flags = mask.dtype == bool or np.isin(mask, (0, 1)).all()
        if mask.shape != (3, 3) or not are_flags or (mask != mask.T).any():
            raise ValueError(
                f"{type(self).__name__}: mask must be six booleans (xx, yy, zz, yz, xz, xy) or a"
                f" symmetric 3x3 matrix of them, got {self.mask}"
            )
        return mask.astype(bool)


class UnitCell(AbstractCell):
    """The nine entries of the deformation F move, as with ASE's `UnitCellFilter`.

    E. B. Tadmor et al., Phys. Rev. B 59, 235 (1999), doi:10.1103/PhysRevB.59.235.
    """

    kind: ClassVar[Kind] = "unit-cell"


class Frechet(AbstractCell):
    """The logarithm of the deformation moves, as with ASE's `FrechetCellFilter`; the default."""

    kind: ClassVar[Kind] = "frechet"


class Strain(AbstractCell):
    """Six components of a strain move, and atoms only with the cell, as with ASE's
    `StrainFilter`."""

    kind: ClassVar[Kind] = "strain"


# --- on the host


def one_a_structure(cell: Any, n_structures: int) -> list[AbstractCell | None]:
    """The cell of each structure, with a pressure of its own.

    Args:
        cell: one cell, or a sequence of cells; None for a fixed cell.

    Raises:
        TypeError: an entry is no cell.
        ValueError: the number of cells or of pressures is wrong.
    """
    cells = list(cell) if isinstance(cell, list | tuple) else [cell] * n_structures
    if len(cells) != n_structures:
        raise ValueError(
            f"cell must be one, or one for each of the {n_structures} structures: got {len(cells)}"
        )
    singles: list[AbstractCell | None] = []
    for k, c in enumerate(cells):
        if c is not None and not isinstance(c, AbstractCell):
            raise TypeError(
                f"cell must be Frechet(), UnitCell(), Strain(), one of their names or None: entry"
                f" {k} is {c!r}"
            )
        pressure = None if c is None else np.asarray(c.pressure, float)
        if pressure is not None and pressure.shape not in ((), (n_structures,)):
            raise ValueError(
                f"pressure must be a number or have one entry for each of the {n_structures}"
                f" structures, got shape {pressure.shape}"
            )
        if pressure is not None and pressure.shape:
            c = dataclasses.replace(cast(AbstractCell, c), pressure=float(pressure[k]))
        singles.append(c)
    return singles


def check_cell(atoms: Atoms, cell: AbstractCell, name: str) -> None:
    """Check that a cell that should move can move.

    Raises:
        ValueError: the cell has no volume.
        NotImplementedError: a `FixScaled` fixes directions that turn with the cell.
    """
    if not abs(np.linalg.det(atoms.cell.array)) > 0:
        raise ValueError(
            f"{name}: its cell has no volume, so it cannot move: {atoms.cell.array.tolist()}. Give"
            " open directions a vector too, or leave this cell fixed (cell=None)"
        )
    if _may_turn(atoms, cell):
        raise NotImplementedError(
            f"{name} has FixScaled, which is not supported where its cell may shear: the"
            " directions that it fixes are those of the cell, and turn with it. Hold its shears"
            " (mask=(1, 1, 1, 0, 0, 0) or hydrostatic_strain=True), fix all three coordinates,"
            " use FixAtoms, which has atoms move with the cell alone, FixCartesian or FixedLine"
            " or leave this cell fixed (cell=None)"
        )


def is_open(cell: AbstractCell | None) -> bool:
    """Whether a deformation under the mask may have a logarithm with entries outside the mask.

    Never so if products of free entries are free: a shear with both lengths, and two shears with
    the third.
    """
    if cell is None or cell.kind != "frechet":
        return False
    movable = cell.movable()
    return bool(((movable @ movable) & ~movable).any())


def _may_turn(atoms: Atoms, cell: AbstractCell) -> bool:
    """Whether a `FixScaled` fixes directions that the cell may turn."""
    if cell.kind == "strain" or cell.hydrostatic_strain:
        return False
    has_shears = bool((cell.movable() & ~np.eye(3, dtype=bool)).any())
    return has_shears and fixes_directions(atoms)


def fixes_directions(atoms: Atoms) -> bool:
    """Whether a `FixScaled` fixes some directions of the cell, which turn where it shears."""
    fixed = [c.mask for c in atoms.constraints if isinstance(c, FixScaled)]
    return any(any(mask) and not all(mask) for mask in fixed)
