"""Hessians by differentiation of forces, one structure at a time.

Each structure has a program whose shape it alone decides, so its Hessian has the bits that it has
alone, whatever derivatives do to the order and rounding of sums.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jaxtyping import Array, Float, Int32

from basinax.neighbors.edges import EdgeList
from basinax.neighbors.rooms import Room
from basinax.neighbors.table import NeighborTable
from basinax.numerics import xla
from basinax.numerics.rounding import BLOCK
from basinax.numerics.static import Static, partition
from basinax.structures.batch import Batch, bare

LANES, FEWEST_LANES = 2048, 8
"""About how many rows of atoms one call differentiates, and the fewest coordinates of a call."""

NUMERICAL = 'take hessian="numerical"'
"""What to do where forces have no derivatives."""

LARGE = 128
"""Structures of more rows have a shape for each doubling of their size; smaller ones share shapes,
since a program takes longer to compile than it runs."""


def hessian_of(
    potential: Any, atoms: Atoms, moving: np.ndarray, dtype: Any
) -> Float[np.ndarray, "3*moving 3*moving"]:
    """Second derivatives of the energy in eV/Å² by the moving atoms, not made symmetric.

    Args:
        potential: an `AbstractPotential`.
        moving: the indices of the atoms.
    """
    n_rows = _size(len(atoms), BLOCK)
    batch = Batch.from_atoms(bare([atoms]), dtype, n_rows, 1)
    how: dict[str, Any] = {"lists": potential.lists, "reverse": True, "is_fitted": False}
    table = NeighborTable(batch, potential.cutoff, 0.0, **how)
    slots, images, shifts = table.needs
    others = n_rows + BLOCK  # of the table of images, whose length is to be a power of two
    room = Room(_size(slots, BLOCK), _size(images + others, 512) - others, _size(shifts, 128))
    table.fit(room)
    fixed, arrays = partition(potential)
    lists = table.lists()
    return by_coordinates(lambda at: _derived(fixed, arrays, batch, lists, at), moving, n_rows)


def _size(n: int, least: int) -> int:
    """The next of a few sizes at or above `n`: by fours times `least` up to 128, then by twos."""
    size = least
    while size < n:
        size *= 4 if 4 * size <= LARGE else 2
    return size


def by_coordinates(
    derived: Callable[[Int32[np.ndarray, "lanes"]], Float[Array, "lanes rows 3"]],
    moving: np.ndarray,
    n_rows: int,
) -> Float[np.ndarray, "3*moving 3*moving"]:
    """The Hessian, from calls for as many coordinates at a time as the number of rows decides.

    Args:
        derived: the derivatives of the gradient of a structure by coordinates.
    """
    n_lanes = min(3 * n_rows, max(FEWEST_LANES, LANES // n_rows))
    at = (3 * moving[:, None] + np.arange(3)).ravel().astype(np.int32)
    parts = [np.resize(at[k : k + n_lanes], n_lanes) for k in range(0, len(at), n_lanes)]
    found = [np.asarray(derived(part), np.float64)[:, moving] for part in parts]
    return np.concatenate([np.zeros((0, len(moving), 3)), *found])[: len(at)].reshape(2 * at.shape)


def derivatives(
    forces: Callable[[Float[Array, "rows 3"]], Float[Array, "rows 3"]],
    positions: Float[Array, "rows 3"],
    coordinates: Int32[Array, "lanes"],
    *,
    by_reverse: bool,
) -> Float[Array, "lanes rows 3"]:
    """The derivatives of the gradient by some coordinates.

    Args:
        by_reverse: differentiate the forces in reverse mode, which each energy that is trained on
            forces has; otherwise forward, which the loops of this package have.

    Raises:
        TypeError: while tracing, if JAX cannot differentiate the forces.
    """
    units = jax.nn.one_hot(coordinates, positions.size, dtype=positions.dtype)
    units = units.reshape(-1, *positions.shape)
    try:
        if by_reverse:
            _, pull_back = jax.vjp(forces, positions)
            return -jax.vmap(lambda unit: pull_back(unit)[0])(units)
        return -jax.vmap(lambda unit: jax.jvp(forces, (positions,), (unit,))[1])(units)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise TypeError(f"JAX cannot differentiate these forces ({error}): {NUMERICAL}") from error


@functools.partial(xla.jitted, options=xla.SHORT | xla.REPEATABLE, static_argnums=0, is_kept=True)
def _derived(
    fixed: Static, arrays: Any, batch: Batch, lists: Any, coordinates: Any
) -> Float[Array, "lanes rows 3"]:
    potential = eqx.combine(arrays, fixed.tree)

    def forces(positions):
        return potential(eqx.tree_at(lambda b: b.positions, batch, positions), lists).forces

    is_edges = potential.lists is EdgeList  # folds over edges have derivatives in reverse alone
    return derivatives(forces, jnp.asarray(batch.positions), coordinates, by_reverse=is_edges)
