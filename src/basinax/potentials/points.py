"""Energies, forces and stresses of structures where they are, in batches of few shapes.

Each structure's numbers have the bits that they have alone, and those of a relaxation's first turn.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from basinax.neighbors.rooms import SMALL, Rooms
from basinax.neighbors.table import NeighborTable
from basinax.numerics import xla
from basinax.numerics.oom import FEWER, half, is_out_of_memory
from basinax.numerics.order import checked_once
from basinax.numerics.rounding import BLOCK
from basinax.numerics.settings import warn, warn_once
from basinax.numerics.static import Static, partition
from basinax.results.snapshot import Snapshot
from basinax.structures.batch import (
    Batch,
    bare,
    in_parts,
    padded_size,
    row_starts,
    rows_of_sizes,
)
from basinax.structures.machine import machine
from basinax.structures.matrices import VOIGT, determinant


def found_of(
    potential: Any,
    atoms: Sequence[Atoms],
    dtype: Any,
    *,
    stress: bool,
    most_rows: int | None = None,
) -> Iterator[Snapshot]:
    """Structures with their results, in their order; constraints are ignored.

    Stress is 0 without a volume, and None unless requested. Where memory runs out, batches are
    halved, with the same bits.

    Args:
        potential: an `AbstractPotential`.
        most_rows: the most rows of a batch of several structures; None for those of the machine.
    """
    parts = parts_of(atoms, most_rows)
    n_rows, n_systems = shape_of(parts)
    fixed, arrays = partition(potential)
    for k, part in enumerate(parts):
        found = None
        try:
            batch = Batch.from_atoms(bare(part), dtype, n_rows, n_systems)
            table = table_of(potential, batch, 0.0, (fixed, stress))
            found = jax.device_get(properties_of(fixed, stress, arrays, batch, table.lists()))
        except (MemoryError, RuntimeError) as error:
            if len(part) == 1 or not is_out_of_memory(error):
                raise
        batch = table = None  # frees their arrays
        if found is None:
            warn(FEWER, RuntimeWarning)
            rest = [a for part in parts[k:] for a in part]
            most = half(n_rows, rows_of_sizes(map(len, part)))
            yield from found_of(potential, rest, dtype, stress=stress, most_rows=most)
            return
        yield from _by_structure(found, part)


def warn_of_single_parameters(potential: Any, dtype: Any) -> None:
    """Warn once a process where all numbers of a potential are float32 in a run of float64."""
    floats = [leaf for leaf in jax.tree.leaves(potential) if eqx.is_inexact_array(leaf)]
    if dtype == np.float64 and floats and all(leaf.dtype == np.float32 for leaf in floats):
        warn_once(
            f"the parameters of {potential} are float32, JAX's default before jax_enable_x64 is"
            ' set: make it afterwards for double precision, or pass dtype="float32" where single is'
            " meant"
        )


_ROOMS = Rooms()
"""Rooms of all calls of the process, so that like structures share a program."""


def table_of(potential: Any, batch: Batch, skin: float, program: tuple[Any, ...]) -> NeighborTable:
    """The lists of a batch, with the room that batches of its shape have in a program.

    Args:
        program: what tells programs of one shape and dtype apart.
    """
    table = NeighborTable(
        batch, potential.cutoff, skin, lists=potential.lists, reverse=True, is_fitted=False
    )
    n_rows, dtype = len(batch.positions), np.dtype(batch.positions.dtype)
    warn_of_single_parameters(potential, dtype)
    key = (*program, n_rows, batch.n_systems, dtype)
    table.fit(_ROOMS.of(key, table.needs, n_rows, is_lean=table.is_lean))
    return table


def parts_of(atoms: Sequence[Atoms], most_rows: int | None = None) -> list[list[Atoms]]:
    """The structures in batches that are not too large, unless one structure is."""
    most_rows = most_rows or machine().point_rows
    return list(in_parts(atoms, lambda a: rows_of_sizes([len(a)]), most_rows))


def shape_of(parts: Sequence[list[Atoms]]) -> tuple[int, int]:
    """The numbers of rows and systems of batches with room for each part."""
    n_rows = max(rows_of_sizes(map(len, part)) for part in parts)
    n_rows = padded_size(
        max(n_rows, machine().few_point_rows), BLOCK, *([1] if n_rows <= SMALL else [])
    )
    return n_rows, padded_size(max(map(len, parts)), steps=1)


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT, static_argnums=(0, 1))
def properties_of(fixed: Static, stress: bool, arrays: Any, batch: Batch, lists: Any) -> Any:
    potential = eqx.combine(arrays, fixed.tree)
    evaluate = functools.partial(potential, stress=stress)
    found = checked_once(potential, evaluate, batch, lists)
    if found.stress is None:
        return found
    has_volume = (determinant(batch.cells) != 0)[:, None, None]
    return dataclasses.replace(found, stress=jnp.where(has_volume, found.stress, 0.0))


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
