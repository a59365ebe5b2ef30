"""The force on the images of paths: the real one across the path, and springs along it.

Henkelman, Uberuaga and Jónsson, J. Chem. Phys. 113, 9901 and 9978 (2000), as in `ase.mep.NEB`.

Every image is a system whose rows are its atoms. All sums go over the rows of one image, so no bit
of a force depends on other images than its two neighbours.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from basinax.neb.spline import Grid, slopes
from basinax.numerics import xla
from basinax.numerics.rounding import rounded
from basinax.systems import segment
from basinax.systems.index import SystemIndex


class Chain(eqx.Module):
    """How the images of some paths hang together."""

    index: SystemIndex
    """The image of each row."""
    before: Int32[Array, "rows"]
    """The row of the same atom in the image before; the row itself in first images."""
    after: Int32[Array, "rows"]
    """The row of the same atom in the next image; the row itself in last images."""
    springs_before: Float[Array, "images"]
    """The constant of the spring to the image before, in eV/Å²; 0 in first images."""
    springs_after: Float[Array, "images"]
    """The constant of the spring to the next image; 0 in last images."""
    moves: Bool[Array, "images"]
    """Images between two others."""
    grid: Grid | None
    """Where the rows lie in a grid, for the string method alone."""


@functools.partial(xla.jitted, is_kept=True, options=xla.SHORT, static_argnums=0)
def band_forces(
    method: str,
    chain: Chain,
    positions: Float[Array, "rows 3"],
    forces: Float[Array, "rows 3"],
    weights: tuple[Float[Array, "images"], Float[Array, "images"]],
) -> tuple[Float[Array, "rows 3"], Float[Array, "rows 3"], Float[Array, "images"]]:
    """The forces of images that do not climb, of images that do, and the largest of the first.

    Args:
        method: "aseneb": springs pull by their components along the path; "improvedtangent": by
            their lengths; "string": the tangent is that of a spline, and there are no springs.
        forces: the real forces, in eV/Å.
        weights: of the ways from the image before and to the next one in an image's tangent.
    """
    index = chain.index
    after = positions[chain.after] - positions
    before = after[chain.before]
    if (grid := chain.grid) is not None:
        tangent = grid.put(slopes(grid, grid.points(positions))[1], jnp.zeros_like(positions))
    else:
        tangent = segment.scale(before, weights[0], index)
        tangent = tangent + segment.scale(after, weights[1], index)
    unit = _unit(tangent, index)
    along = segment.dot(forces, unit, index)
    if method == "string":
        pull = jnp.zeros_like(along)
    elif method == "aseneb":
        pulls = segment.scale(after, chain.springs_after, index)
        pulls = pulls - segment.scale(before, chain.springs_before, index)
        pull = segment.dot(pulls, unit, index)
    else:
        pull = rounded(chain.springs_after * segment.norm(after, index))
        pull = pull - rounded(chain.springs_before * segment.norm(before, index))
    still = jnp.zeros_like(forces)
    relaxing = forces - segment.scale(unit, along - pull, index)
    relaxing = segment.where(chain.moves, relaxing, still, index)
    climbing = forces - segment.scale(unit, 2 * along, index)
    climbing = segment.where(chain.moves, climbing, still, index)
    return relaxing, climbing, segment.longest_row(relaxing, index)


def _unit(rows: Float[Array, "rows 3"], index: SystemIndex) -> Float[Array, "rows 3"]:
    """The rows of each image over their norm; 0 where that is 0."""
    norms = segment.norm(rows, index)
    return segment.scale(rows, jnp.where(norms > 0, 1 / norms, 0.0), index)


def tangent_weights(
    method: str, energies: Float[np.ndarray, "images"], highest: int
) -> Float[np.ndarray, "2 images"]:
    """The weights of the ways before and behind each image of one path in its tangent.

    Args:
        energies: in eV.
        highest: the inner image of the highest energy.
    """
    weights = np.zeros((2, len(energies)))
    if method != "improvedtangent":
        numbers = np.arange(len(energies))
        weights[0], weights[1] = numbers >= highest, numbers <= highest
        return weights
    below, here, above = energies[:-2], energies[1:-1], energies[2:]
    steps = np.abs(above - here), np.abs(below - here)
    most, least = np.maximum(*steps), np.minimum(*steps)
    rises, falls = (above > here) & (here > below), (above < here) & (here < below)
    at_extremum = np.where(above > below, [least, most], [most, least])
    weights[:, 1:-1] = np.where(rises, [[0.0], [1.0]], np.where(falls, [[1.0], [0.0]], at_extremum))
    return weights
