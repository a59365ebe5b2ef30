"""Energies, forces and stresses of structures where they are, in batches of few shapes.

Each structure's numbers have the bits that they have alone, and those of a relaxation's first turn.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from ase import Atoms

from basinax.neighbors.rooms import SMALL, Rooms
from basinax.neighbors.table import NeighborTable
from basinax.numerics import xla
from basinax.numerics.order import checked_once
from basinax.numerics.rounding import BLOCK
from basinax.numerics.static import Static, partition
from basinax.results.snapshot import Snapshot
from basinax.structures.batch import Batch, bare, padded_size, row_starts
from basinax.structures.machine import machine
from basinax.structures.matrices import VOIGT


def found_of(
    potential: Any, atoms: Sequence[Atoms], dtype: Any, *, stress: bool
) -> Iterator[Snapshot]:
    """Structures with their results, in their order; constraints are ignored.

    Stress is NaN without a volume, and None unless requested.

    Args:
        potential: an `AbstractPotential`.
    """
    parts = list(parts_of(atoms))
    n_rows, n_systems = shape_of(parts)
    fixed, arrays = partition(potential)
    for part in parts:
        batch = Batch.from_atoms(bare(part), dtype, n_rows, n_systems)
        table = NeighborTable(
            batch, potential.cutoff, 0.0, lists=potential.lists, reverse=True, is_fitted=False
        )
        program = fixed, n_rows, n_systems, np.dtype(dtype), stress
        table.fit(ROOMS.of(program, table.needs, n_rows, is_lean=table.is_lean))
        found = properties_of(fixed, stress, arrays, batch, table.lists())
        yield from _by_structure(jax.device_get(found), part)


ROOMS = Rooms()
"""Rooms of all calls of the process, so that like structures share a program."""


def parts_of(atoms: Sequence[Atoms]) -> Iterator[list[Atoms]]:
    """The structures in batches that are not too large, unless one structure is."""
    part: list[Atoms] = []
    n_rows = 0
    for a in atoms:
        n_rows += _rows_of([a])
        if part and n_rows > machine().point_rows:
            yield part
            part, n_rows = [], _rows_of([a])
        part.append(a)
    yield part


def shape_of(parts: Sequence[list[Atoms]]) -> tuple[int, int]:
    """The numbers of rows and systems of batches with room for each part."""
    n_rows = max(map(_rows_of, parts))
    n_rows = padded_size(
        max(n_rows, machine().few_point_rows), BLOCK, *([1] if n_rows <= SMALL else [])
    )
    return n_rows, padded_size(max(map(len, parts)), steps=1)


def _rows_of(part: Sequence[Atoms]) -> int:
    return sum(-(-len(a) // BLOCK) for a in part) * BLOCK


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT, static_argnums=(0, 1))
def properties_of(fixed: Static, stress: bool, arrays: Any, batch: Batch, lists: Any) -> Any:
    potential = eqx.combine(arrays, fixed.tree)
    evaluate = functools.partial(potential, stress=stress)
    return checked_once(potential, evaluate, batch, lists)


def _by_structure(found: Any, part: Sequence[Atoms]) -> Iterator[Snapshot]:
    for k, (start, a) in enumerate(zip(row_starts([len(a) for a in part]), part, strict=True)):
        rows = slice(start, start + len(a))
        stress = None
        if found.stress is not None:
            s = np.asarray(found.stress[k], np.float64)
            stress = np.array([(s[i, j] + s[j, i]) / 2 for i, j in VOIGT])
        yield Snapshot(
            a.positions,
            a.cell.array,
            np.asarray(found.forces[rows], np.float64),
            stress,
            float(found.energies[k]),
            np.asarray(found.atom_energies[rows], np.float64),
        )
