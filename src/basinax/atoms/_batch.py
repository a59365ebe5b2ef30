"""Many ASE structures as one batch of arrays, and back.

Every structure starts on a multiple of eight rows (the aligned layout of docs/design.md, section
2), and rows and systems are padded to a few sizes, so that another composition runs the same
program.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Bool, Float, Int32

from basinax._bits.rounding import BLOCK
from basinax._settings import at_least, require_whole, shown
from basinax._systems.index import SystemIndex, index_of_sizes
from basinax._systems.plan import require_room
from basinax.atoms._constraints.applied import Constraints, Layout, blank, layout_of, write
from basinax.atoms._constraints.reading import check_constraints, read_stages

STEPS_PER_OCTAVE = 8
"""Padded sizes between a number and its double: padding adds an eighth at most, past 64."""

INDEPENDENT = 1e-6
"""The least volume that the unit vectors along periodic directions may span."""


class Batch(eqx.Module):
    """Structures, one after another. Padding rows lie at the origin and belong to no system."""

    positions: Float[Array, "rows 3"]
    """In Å; never wrapped into the cell."""

    numbers: Int32[Array, "rows"]
    """Atomic numbers; 0 for padding."""

    cells: Float[Array, "systems 3 3"]
    """Cell vectors as rows, in Å, as in ASE; along an open direction a vector may be zero."""

    pbc: Bool[Array, "systems 3"]
    """Along which cell vectors a system is periodic."""

    index: SystemIndex
    """Which row belongs to which system; systems without rows fill up the batch."""

    constraints: Constraints | None = None
    """What ASE's constraints leave of forces and steps; None if there are none."""

    @classmethod
    def from_atoms(
        cls,
        atoms: Iterable[Atoms],
        dtype: Any = None,
        n_rows: int | None = None,
        n_systems: int | None = None,
        layout: Layout | None = None,
        most_rows: int = 0,
    ) -> "Batch":
        """The batch of these structures. Their calculators, if any, are not looked at.

        Args:
            atoms: at least one structure, each with at least one atom. Their constraints may be
                `FixAtoms`, `FixCartesian`, `FixScaled` (along x, y and z), `FixedLine`,
                `FixedPlane`, `FixCom` and `FixSymmetry`.
            dtype: float32 or float64; JAX's default float if None.
            n_rows: rows in all, a multiple of 8; `batch_shape` decides if None.
            n_systems: systems in all; `batch_shape` decides if None.
            layout: for which constraints there is room; for those of these structures if None.
            most_rows: there is room for systems of so many rows, of which there may be none.

        Raises:
            TypeError: something is not an `Atoms`, or `dtype` is not available.
            ValueError: there is no structure, or they do not fit into `n_rows` and `n_systems`, or
                one has no atom, a number that is not finite, a cell that is flat along a periodic
                direction, or a constraint of an atom that is not there.
            NotImplementedError: a structure has a constraint of another class.
        """
        atoms = checked(atoms)
        sizes = [len(a) for a in atoms]
        fitting = batch_shape(sizes)
        for name, value in (("n_rows", n_rows), ("n_systems", n_systems)):
            if value is not None:
                require_whole(value, name, at_least(1))
        n_rows = fitting[0] if n_rows is None else n_rows
        n_systems = fitting[1] if n_systems is None else n_systems
        if n_systems < len(atoms) or n_rows % BLOCK:
            raise ValueError(
                f"n_systems must be at least {len(atoms)} and n_rows a multiple of {BLOCK}:"
                f" got n_systems={n_systems} and n_rows={n_rows}"
            )
        require_room(n_rows, n_systems)
        sizes += [0] * (n_systems - len(atoms))
        index = index_of_sizes(sizes, align=BLOCK, n_rows=n_rows, most_rows=most_rows)
        dtype = available_dtype(dtype)
        positions, numbers = np.zeros((n_rows, 3)), np.zeros(n_rows, np.int32)
        cells, pbc = np.tile(np.eye(3), (n_systems, 1, 1)), np.zeros((n_systems, 3), bool)
        own = [read_stages(a) for a in atoms]
        layout = layout_of(own) if layout is None else layout
        constraints = blank(layout, n_rows, n_systems, dtype)
        for k, (start, a) in enumerate(zip(row_starts(sizes), atoms, strict=False)):
            rows = slice(start, start + len(a))
            positions[rows], numbers[rows] = a.positions, a.numbers
            cells[k], pbc[k] = np.asarray(a.cell), a.pbc
            write(constraints, k, rows, own[k])
        arrays: dict[str, Any] = {
            "positions": positions.astype(dtype),
            "numbers": numbers,
            "cells": cells.astype(dtype),
            "pbc": pbc,
        }
        # All at once, and by no program of their own.
        return jax.device_put(cls(**arrays, index=index, constraints=constraints))

    @property
    def n_systems(self) -> int:
        """The number of systems, those without rows included."""
        return self.index.n_systems

    @property
    def n_rows(self) -> int:
        """The number of rows, padding included."""
        return self.index.n_rows

    def to_atoms(self, originals: Sequence[Atoms]) -> list[Atoms]:
        """Copies of the structures that the batch was made of, with its positions and cells.

        `pbc`, `info`, arrays and constraints are those of the originals; calculators are not
        copied.

        Raises:
            ValueError: the originals are not as many, or not as large, as the batch's systems.
        """
        sizes = np.asarray(self.index.sizes)
        expected, got = sizes[sizes > 0].tolist(), [len(a) for a in originals]
        if expected != got:
            raise ValueError(
                f"originals must be the structures of the batch, in its order: they have {got}"
                f" atoms, the batch's systems {expected}"
            )
        positions = np.asarray(self.positions, np.float64)
        cells = np.asarray(self.cells, np.float64)
        copies = [a.copy() for a in originals]
        for start, cell, a in zip(row_starts(sizes), cells, copies, strict=False):
            a.set_cell(cell, apply_constraint=False)
            a.set_positions(positions[start : start + len(a)], apply_constraint=False)
        return copies


def batch_shape(sizes: Sequence[int]) -> tuple[int, int]:
    """Rows and systems of a batch of systems of these sizes, padded.

    Rows are a multiple of 8, and both are one of `padded_size`'s few sizes, so that most batches
    of a like amount of atoms have one shape. The last system may be padding.
    """
    for size in sizes:
        require_whole(size, "sizes of systems", at_least(0))
    n_rows = sum(-(-size // BLOCK) * BLOCK for size in sizes)
    return padded_size(n_rows, least=BLOCK), padded_size(len(sizes))


def padded_size(n: int, least: int = 1, steps: int = STEPS_PER_OCTAVE) -> int:
    """The next of a few sizes at or above `n`.

    Args:
        least: the size is a multiple of this power of two, and not 0.
        steps: how many sizes lie between a number and its double, a power of two.
    """
    unit = max(least, (1 << max(n - 1, 1).bit_length()) // (2 * steps))
    return max(-(-n // unit), 1) * unit


def row_starts(sizes: Any) -> np.ndarray:
    """The first row of each system of an aligned batch, on the host."""
    padded = -(-np.asarray(sizes, np.int64) // BLOCK) * BLOCK
    return np.cumsum(padded) - padded


def available_dtype(dtype: Any) -> np.dtype:
    """The dtype of a batch for which this one is asked; raises what `Batch.from_atoms` does."""
    default = np.dtype(jnp.result_type(float))
    try:
        wanted = default if dtype is None else np.dtype(dtype)
    except TypeError:
        wanted = None
    if wanted is None or wanted not in (np.dtype("float32"), np.dtype("float64")):
        got = shown(dtype) if wanted is None else wanted
        raise TypeError(f"dtype must be float32 or float64, got {got}")
    if wanted == np.dtype("float64") != default:
        raise TypeError(
            'dtype float64 needs jax.config.update("jax_enable_x64", True) before the first'
            " array is made, or JAX_ENABLE_X64=1 in the environment"
        )
    return wanted


def checked(atoms: Iterable[Atoms]) -> list[Atoms]:
    """The structures, if each can be relaxed; raises what `Batch.from_atoms` does otherwise."""
    if isinstance(atoms, Atoms):
        raise TypeError("atoms must be a list of ase.Atoms, got one Atoms: pass [atoms]")
    atoms = list(atoms)
    if not atoms:
        raise ValueError("atoms must hold at least one structure, got an empty list")
    for k, a in enumerate(atoms):
        if not isinstance(a, Atoms):
            raise TypeError(f"atoms must be a list of ase.Atoms: entry {k} is a {type(a).__name__}")
    if not _are_usable(atoms):
        for k, a in enumerate(atoms):
            _check_one(a, f"system {k} ({a.symbols or 'no atoms'})")
    return atoms


def _are_usable(atoms: list[Atoms]) -> bool:
    """What `_check_one` makes sure of, for thousands at once."""
    if any(len(a) == 0 for a in atoms):
        return False
    cells, pbc = np.stack([a.cell.array for a in atoms]), np.stack([a.pbc for a in atoms])
    if not (
        np.isfinite(cells).all() and np.isfinite(np.concatenate([a.positions for a in atoms])).all()
    ):
        return False
    lengths = np.linalg.norm(cells, axis=2)
    if (pbc & (lengths == 0)).any():
        return False
    units = cells * (1 / np.where(lengths > 0, lengths, 1.0))[:, :, None]
    are_solid = squared_measures(units, pbc) > INDEPENDENT**2
    return bool(are_solid.all()) and not any(a.constraints for a in atoms)


def squared_measures(
    cells: Float[np.ndarray, "systems 3 3"], pbc: Bool[np.ndarray, "systems 3"]
) -> Float[np.ndarray, "systems"]:
    """The squared volume (area, length) that periodic cell vectors span: 1 where there is none."""
    vectors = cells * pbc[:, :, None]
    # Open directions count as orthogonal to the others, and of length one.
    gram = vectors @ vectors.transpose(0, 2, 1) + np.eye(3) * ~pbc[:, None, :]
    return np.linalg.det(gram)


def _check_one(a: Atoms, name: str) -> None:
    if len(a) == 0:
        raise ValueError(f"{name} has no atoms: remove it from the list")
    if not np.isfinite(a.positions).all():
        at = int(np.argmin(np.isfinite(a.positions).all(1)))
        raise ValueError(f"{name}: the position of atom {at} is not finite: {a.positions[at]}")
    cell = np.asarray(a.cell)
    if not np.isfinite(cell).all():
        raise ValueError(f"{name}: the cell is not finite: {cell.tolist()}")
    periodic = cell[a.pbc]
    if spanned_volume(periodic) < INDEPENDENT:
        raise ValueError(
            f"{name} has pbc={a.pbc.tolist()}, but its cell vectors along these directions are zero"
            f" or not independent: {cell.tolist()}. Set the cell, or pbc to False where the system"
            " is open"
        )
    check_constraints(a, name)


def spanned_volume(vectors: Float[np.ndarray, "n 3"]) -> float:
    """The volume (length, area) that the vectors' unit vectors span: 1 where orthogonal or none.

    0 where a vector is zero or one depends on the others.
    """
    lengths = np.linalg.norm(vectors, axis=1)
    if not (lengths > 0).all():
        return 0.0
    units = vectors / lengths[:, None]
    return float(np.sqrt(max(np.linalg.det(units @ units.T), 0.0)))
