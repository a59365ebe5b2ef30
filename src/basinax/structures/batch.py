"""Many ASE structures as one batch of arrays, and back.

Every structure starts on a multiple of eight rows (the aligned layout of docs/design.md, section
2), and rows and systems are padded to a few sizes, so that another composition runs the same
program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Bool, Float, Int, Int32

from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import at_least, require_whole, shown
from basinax.structures.constraints.applied import Constraints, Layout, blank, layout_of, write
from basinax.structures.read import Structure, cells_of, intake
from basinax.systems.index import SystemIndex, index_of_sizes
from basinax.systems.plan import ranges, require_room

T = TypeVar("T")

STEPS_PER_OCTAVE = 8
"""The number of padded sizes between a number and its double: padding adds ≤ 1/8 beyond 64."""


class Batch(eqx.Module):
    """Structures, one after another. Padding rows lie at the origin and belong to no system."""

    positions: Float[Array, "rows 3"]
    """The positions in Å, never wrapped into the cell."""

    numbers: Int32[Array, "rows"]
    """Atomic numbers; 0 for padding."""

    cells: Float[Array, "systems 3 3"]
    """Cell vectors as rows, in Å, as in ASE; the vector of an open direction may be zero."""

    pbc: Bool[Array, "systems 3"]
    """The cell vectors along which a system is periodic."""

    index: SystemIndex
    """The system of each row; systems without rows pad the batch."""

    constraints: Constraints | None = None
    """ASE's constraints, as projections of forces and steps; None if there are none."""

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
        """The batch of these structures. Calculators are ignored.

        Args:
            atoms: at least one structure, each with at least one atom. Constraints may be
                `FixAtoms`, `FixCartesian`, `FixScaled` (along x, y and z), `FixedLine`,
                `FixedPlane`, `FixCom` and `FixSymmetry`.
            dtype: float32 or float64; JAX's default float if None.
            n_rows: the total number of rows, a multiple of 8; None for that of `batch_shape`.
            n_systems: the total number of systems; None for that of `batch_shape`.
            layout: the room for constraints; None for the constraints of these structures.
            most_rows: make room for systems of this many rows, present or not.

        Raises:
            TypeError: an entry is no `Atoms`, or `dtype` is not available.
            ValueError: the list is empty, the structures do not fit into `n_rows` and `n_systems`,
                or one has no atom, a number that is not finite, a cell that is flat along a
                periodic direction, or a constraint of a missing atom.
            NotImplementedError: a structure has a constraint of another class.
        """
        structures = intake(atoms)
        if not structures:
            raise ValueError("atoms must hold at least one structure, got an empty list")
        return cls.of(structures, dtype, n_rows, n_systems, layout, most_rows)

    @classmethod
    def of(
        cls,
        structures: Sequence[Structure],
        dtype: Any = None,
        n_rows: int | None = None,
        n_systems: int | None = None,
        layout: Layout | None = None,
        most_rows: int = 0,
    ) -> "Batch":
        """`from_atoms` for structures that have been read already."""
        sizes = [len(s) for s in structures]
        fitting = _shape_for(sizes)
        for name, value in (("n_rows", n_rows), ("n_systems", n_systems)):
            if value is not None:
                require_whole(value, name, at_least(1))
        n_rows = fitting[0] if n_rows is None else n_rows
        n_systems = fitting[1] if n_systems is None else n_systems
        if n_systems < len(sizes) or n_rows % BLOCK:
            raise ValueError(
                f"n_systems must be at least {len(sizes)} and n_rows a multiple of {BLOCK}:"
                f" got n_systems={n_systems} and n_rows={n_rows}"
            )
        require_room(n_rows, n_systems)
        sizes += [0] * (n_systems - len(sizes))
        index = index_of_sizes(sizes, align=BLOCK, n_rows=n_rows, most_rows=most_rows)
        dtype = available_dtype(dtype)
        layout = layout_of(s.stages for s in structures) if layout is None else layout
        arrays: dict[str, Any] = {
            "positions": np.zeros((n_rows, 3), dtype),
            "numbers": np.zeros(n_rows, np.int32),
            "cells": np.tile(np.eye(3, dtype=dtype), (n_systems, 1, 1)),
            "pbc": np.zeros((n_systems, 3), bool),
            "constraints": blank(layout, n_rows, n_systems, dtype),
        }
        batch = cls(**arrays, index=index)
        put(batch, np.arange(len(structures)), row_starts(sizes)[: len(structures)], structures)
        # Copy all arrays in one call, which compiles no program.
        return jax.device_put(batch)

    @property
    def n_systems(self) -> int:
        """The number of systems, including those without rows."""
        return self.index.n_systems

    @property
    def n_rows(self) -> int:
        """The number of rows, padding included."""
        return self.index.n_rows

    def to_atoms(self, originals: Sequence[Atoms]) -> list[Atoms]:
        """Copies of the batch's original structures, with the positions and cells of the batch.

        `pbc`, `info`, arrays and constraints are those of the originals; calculators are not
        copied.

        Raises:
            ValueError: the originals differ in number or size from the batch's systems.
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


def put(
    batch: Any,
    systems: Int[np.ndarray, "some"],
    starts: Int[np.ndarray, "some"],
    structures: Sequence[Structure],
) -> None:
    """Write structures into places of a batch of NumPy arrays, over those before.

    Args:
        systems: the numbers of the places.
        starts: their first rows.
    """
    if not len(structures):
        return
    sizes, atoms = np.array([s.n_atoms for s in structures]), [s.atoms for s in structures]
    padded = -(-sizes // BLOCK) * BLOCK
    if (padded > sizes).any():
        of_places = ranges(starts, padded)
        batch.positions[of_places], batch.numbers[of_places] = 0.0, 0
    rows = ranges(starts, sizes)
    batch.positions[rows] = np.concatenate([a.positions for a in atoms])
    batch.numbers[rows] = np.concatenate([a.numbers for a in atoms])
    batch.cells[systems], batch.pbc[systems] = cells_of(atoms)
    constraints = batch.constraints
    if constraints is None and not any(s.stages for s in structures):
        return
    for system, start, length, structure in zip(systems, starts, padded, structures, strict=True):
        write(constraints, int(system), slice(start, start + length), structure.stages)


def batch_shape(sizes: Sequence[int]) -> tuple[int, int]:
    """Rows and systems of a batch of systems of these sizes, padded.

    Rows are a multiple of 8, and both are one of `padded_size`'s few sizes, so that most batches
    of a like amount of atoms have one shape. The last system may be padding.
    """
    for size in sizes:
        require_whole(size, "sizes of systems", at_least(0))
    return _shape_for(sizes)


def _shape_for(sizes: Sequence[int]) -> tuple[int, int]:
    """`batch_shape` for sizes that are known to be whole."""
    return padded_size(rows_of_sizes(sizes), least=BLOCK), padded_size(len(sizes))


def rows_of_sizes(sizes: Iterable[int]) -> int:
    """The rows of an aligned batch of systems of these sizes, without padding at its end."""
    return sum(-(-size // BLOCK) * BLOCK for size in sizes)


def in_parts(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in parts of at most this size, unless one item is larger; at least one part."""
    part: list[T] = []
    n = 0
    for item in items:
        n += size_of(item)
        if part and n > most:
            yield part
            part, n = [], size_of(item)
        part.append(item)
    yield part


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
    """The dtype of a batch for a requested dtype, with the errors of `Batch.from_atoms`."""
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


def bare(atoms: Sequence[Atoms]) -> list[Atoms]:
    """Copies without constraints and calculators, which an evaluator must not use."""
    copies = [a.copy() for a in atoms]
    for copy in copies:
        copy.set_constraint()
    return copies
