"""A batch on the device: its start, its turns, and its results."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from basinax.engine.moving_cells import CellMoves, with_cells
from basinax.minimize.criteria import AbstractCriterion
from basinax.minimize.run import (
    Evaluation,
    Point,
    Run,
    advance,
    final_point,
    restart,
    start,
    stopped,
)
from basinax.minimize.status import Status
from basinax.numerics import xla
from basinax.numerics.static import Static
from basinax.numerics.switches import config_context
from basinax.optimizers.protocol import AbstractTransform, Places
from basinax.structures.batch import Batch
from basinax.structures.constraints.applied import constrained
from basinax.structures.matrices import VOIGT
from basinax.structures.read import Structure


class Settings(eqx.Module):
    """Settings that may differ between structures; leaves are numbers, or arrays of some each."""

    optimizer: AbstractTransform
    criterion: AbstractCriterion
    max_steps: Any

    def own(self, n_structures: int) -> list[tuple[Any, ...]]:
        """The numbers of each structure in the leaves that are arrays of all."""
        arrays = [x for x in jax.tree.leaves(self) if np.ndim(x)]
        return list(zip(*arrays, strict=True)) if arrays else [()] * n_structures

    def of(self, structures: Sequence[Structure]) -> "Settings":
        """The settings of these structures: arrays have an entry of each, from its `own`."""
        own = zip(*(structure.own for structure in structures), strict=True)

        def choose(x):
            if np.ndim(x):
                return np.array(next(own), np.asarray(x).dtype)
            return np.asarray(x) if isinstance(x, bool | int | float) else x

        return jax.tree.map(choose, self)


def beginning(batch: Batch, moves: CellMoves | None) -> tuple[Any, Any]:
    """The parameters of a batch and their prefix."""
    if moves is None:
        return batch.positions, batch.index
    return moves.start(batch.positions), moves.prefix(batch.index)


Device = Any
"""A `jax.Device`, or None for JAX's default device."""


def on_lane(wanted: dict[str, Any], lane: Device) -> dict[str, Any]:
    """The JAX switches of a thread: `wanted`, with the thread's device, if any, as default."""
    return wanted if lane is None else wanted | {"jax_default_device": lane}


def on_device(tree: Any, device: Device) -> Any:
    """The tree with its JAX arrays on a device; unchanged if `device` is None."""
    if device is None:
        return tree
    arrays, others = eqx.partition(tree, lambda x: isinstance(x, jax.Array))
    return eqx.combine(jax.device_put(arrays, device), others)


def advanced(
    evaluate: Callable[[Any], Evaluation],
    run: Run,
    settings: Settings,
    batch: Batch,
    moves: CellMoves | None,
    turns: Any,
) -> Run:
    """The run after at most `turns` turns, under the batch's constraints and moving cells."""
    if moves is None:
        optimizer, view = constrained(settings.optimizer, batch.constraints)
    else:
        optimizer, view = with_cells(settings.optimizer, batch.constraints, moves)
    return advance(evaluate, run, optimizer, settings.criterion, settings.max_steps, turns, view)


def moved(batch: Batch, moves: CellMoves | None, params: Any) -> Batch:
    """The batch at the given parameters."""
    if moves is None:
        return dataclasses.replace(batch, positions=params)
    positions, cells = structure(moves, params, batch.index)
    return dataclasses.replace(batch, positions=positions, cells=cells)


structure = xla.jitted(CellMoves.structure)


def result(run: Run, batch: Batch, moves: CellMoves | None) -> dict[str, Any]:
    """The returned positions of structures, and the results there; NaN where there are none."""
    with config_context({"jax_debug_nans": False}):
        return _result(run, batch, moves)


@functools.partial(xla.jitted, is_kept=True, options=xla.ONCE)
def _result(run: Run, batch: Batch, moves: CellMoves | None) -> dict[str, Any]:
    point = final_point(stopped(run))
    counts = {"steps": run.steps, "evaluations": run.evaluations, "status": run.status}
    # A system for which no list could be made has no known values at its position.
    counts["is_known"] = ~run.is_pending | (run.status != Status.NOT_FINITE.code)
    if run.first is not None:
        counts["first_energies"] = (run.first if moves is None else run.first.extras).energies
    return counts | found_at(point, batch, moves)


@xla.jitted
def found_at(point: Point, batch: Batch, moves: CellMoves | None) -> dict[str, Any]:
    here = moved(batch, moves, point.params)
    place = {"positions": here.positions, "cells": here.cells, "fmax": point.fmax}
    if point.of_rows is not None:  # frames have none
        place["of_atoms"] = point.of_rows
    if moves is None:
        return place | {"forces": -point.gradients, "energies": point.energies}
    stress = point.extras.stress
    stress = jnp.stack([(stress[:, i, j] + stress[:, j, i]) / 2 for i, j in VOIGT], axis=1)
    found = {"energies": point.extras.energies, "stress": stress}
    forces = moves.forces(point.params, point.gradients, batch.index)
    return place | found | {"forces": forces, "is_free": moves.is_free}


@functools.partial(xla.jitted, is_kept=True, options=xla.ONCE, static_argnums=(0, 1))
def started(fixed: "Static", keep_best: bool, arrays, batch: Batch, moves: CellMoves | None) -> Run:
    potential, settings = eqx.combine(arrays, fixed.tree)
    params, prefix = beginning(batch, moves)
    extras = None if moves is None else moves.nothing_observed()
    needs = settings.criterion.needs
    return start(
        settings.optimizer,
        params,
        prefix,
        keep_best=keep_best,
        keep_first=True,
        extras=extras,
        of_rows=None if potential is None else jnp.zeros_like(batch.positions[:, 0]),
        needs=needs,
    )


@functools.partial(xla.jitted, is_kept=True, options=xla.ONCE, static_argnums=0)
def restarted(
    fixed: Static,
    arrays,
    batch: Batch,
    moves: CellMoves | None,
    run: Run,
    mask,
    places: Places | None,
) -> Run:
    _, settings = eqx.combine(arrays, fixed.tree)
    return restart(run, settings.optimizer, *beginning(batch, moves), mask, places)
