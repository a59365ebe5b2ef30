"""Minimum-energy paths between structures: nudged elastic bands, many at once."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast

import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator

from basinax.engine.evaluate import evaluated
from basinax.engine.groups import PotentialWithSkin, evaluator_or_listed
from basinax.engine.relax import Progress, one_a_structure, relax
from basinax.engine.text import named_optimizer, named_potential
from basinax.engine.workers import Devices
from basinax.internal.optimizer import steps_on_the_host
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.neb.batched import Batched
from basinax.neb.evaluator import Ends, PathEvaluator
from basinax.neb.paths import Band, read_bands
from basinax.neb.result import MinimumEnergyPath, PathsResult, counted_by_images
from basinax.neb.spline import Equidistant
from basinax.neb.trajectories import PathTrajectories
from basinax.numerics.forks import check_process
from basinax.numerics.settings import count_of, first_of, knows_options_of_ase, shown, warn
from basinax.numerics.switches import own_switches
from basinax.optimizers import LBFGS
from basinax.optimizers.line_search.walk import has_search
from basinax.optimizers.protocol import AbstractTransform, check_transform
from basinax.potentials import AbstractPotential
from basinax.results.trajectory import Trajectories
from basinax.structures.batch import available_dtype
from basinax.structures.charges import warn_of_unused

METHODS = "aseneb", "improvedtangent", "string"


@own_switches()
@knows_options_of_ase
def neb(
    paths: Iterable[Sequence[Atoms]],
    potential: str | AbstractPotential | AbstractEvaluator | BaseCalculator | None = None,
    optimizer: AbstractTransform | str | None = None,
    *,
    k: float | Sequence[Any] | np.ndarray = 0.1,
    climb: bool | float | Sequence[bool | float] | np.ndarray = True,
    method: str = "improvedtangent",
    n_images: int | None = None,
    interpolate: Literal["idpp", "linear"] = "idpp",
    fmax: float | Sequence[float] | np.ndarray = 0.05,
    max_steps: int | Sequence[int] | np.ndarray = 500,
    dtype: Any = None,
    skin: float | None = None,
    trajectory: Trajectories | str | os.PathLike[str] | None = None,
    history: bool | int = False,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    throw: bool = False,
    devices: Devices = None,
) -> PathsResult:
    """Find minimum-energy paths by nudged elastic bands, each path as if it were alone.

    A path is one system, whose rows are the atoms of all its images: an optimizer steps a whole
    path, as ASE's optimizers step an `ase.mep.NEB`; those of ASE take the same steps. The images of
    all paths are evaluated together. End points are evaluated once and do not move; cells are
    fixed.

        paths = [[start, end] for start, end in hops]
        for path in neb(paths, EMT(), n_images=7):
            print(path.barrier, path.saddle)

    Args:
        paths: for each path its images, the end points first and last, with the same elements in
            the same order, pbc, cell and constraints (`FixAtoms`, `FixCartesian`, `FixScaled`,
            `FixedLine` and `FixedPlane`); or its two end points alone, see `n_images`. None is
            changed. Numbers of images and of atoms may differ between paths. From each image to
            the next, atoms take the shortest way: where that crosses boundaries of the cell, later
            images of the result lie in neighbouring cells.
        potential: as for `relax`; if None, each image's own `atoms.calc`.
        optimizer: such as `FIRE()`, `BFGS()` or "mdmin:dt=0.1"; if None, `LBFGS(curvature=0.8)`.
            Those with line searches are refused: the forces on a path are not derivatives of an
            energy.
        k: spring constants in eV/Å²: one number, or one entry per path, a number or those of all
            springs of the path.
        climb: whether the highest image climbs, from the first step on; or the force (eV/Å) at
            which it begins, once the largest force on the path is smaller, which must not be less
            than `fmax`. One for all, or one per path.
        method: "improvedtangent" (Henkelman and Jónsson, 2000), ASE's default since 3.27; "aseneb",
            its default before; or "string" (Makri, Ortner and Kermode, 2019): no springs, but
            images at equal distances along a spline after each step.
        n_images: the number of images of paths that are given by their end points, these included.
        interpolate: how ASE makes these images, "idpp" (with the springs and the method, without
            climbing) or "linear".
        fmax: a path has converged when the force on each atom of each image is smaller (eV/Å); one
            number, or one per path.
        max_steps: a path ends unconverged after this many steps; one number, or one per path.
        dtype: as for `relax`.
        skin: as for `relax`.
        trajectory: as for `relax`, one file for each path, with all images of a step one after
            another, as ASE's trajectories of an `NEB` have them: `ase gui FILE@-7:` shows the last
            step of a path of seven images, and its plot.
        history: as for `relax`; the energy of a path is that of its highest inner image.
        log: as for `relax`, with that energy.
        progress: as for `relax`.
        should_stop: as for `relax`.
        throw: raise if a path does not converge; otherwise see `status`. A path of which an image
            cannot be evaluated ends alone, as `Status.EVALUATION_FAILED`; its `message` names the
            image.
        devices: as for `relax`, for models.

    Raises:
        TypeError, ValueError, NotImplementedError: a path or an argument is unusable; the message
            names it and the reason, before anything runs.
        RuntimeError: with `throw`, a path did not converge; or a fork of a process that had used
            JAX calls this function.

    Warns:
        UserWarning: end points are not relaxed: a force on an atom exceeds `fmax`.
    """
    check_process()
    dtype = available_dtype(dtype)
    check_method(method)
    potential, steps = named_potential(potential), usable_optimizer(optimizer)
    inner = evaluator_of_images(potential, skin, dtype)
    bands = read_bands(paths, k, n_images, interpolate, method)
    warn_of_unused([band.images[0] for band in bands], potential, "path")
    of_paths, steps = as_systems(bands, inner, steps, method, climb, fmax, dtype)
    frames = None if trajectory is None else PathTrajectories.of(trajectory, of_paths)
    relaxed = relax(
        [band.joined(number) for number, band in enumerate(bands)],
        of_paths,
        steps,
        fmax=fmax,
        max_steps=max_steps,
        dtype=dtype,
        trajectory=frames,
        history=history,
        log=log,
        progress=progress,
        should_stop=should_stop,
        throw=throw,
        devices=devices,
    )
    return PathsResult([MinimumEnergyPath(counted_by_images(entry)) for entry in relaxed])


def check_method(method: str) -> None:
    if method not in METHODS:
        known = ", ".join(f'"{name}"' for name in METHODS)
        raise ValueError(f"method must be one of {known}, got {shown(method)}")


def usable_optimizer(optimizer: AbstractTransform | str | None) -> AbstractTransform:
    """The optimizer, or the usual one; raises TypeError if it cannot step paths."""
    # No energy has the forces on a path: only pairs along which they change much like those of one
    # are kept.
    usual = LBFGS(curvature=0.8)
    steps: Any = usual if optimizer is None else named_optimizer(optimizer)
    check_transform(steps)
    if steps_on_the_host(steps):
        raise TypeError(
            "InternalLBFGS steps by the bonds of one structure, a path has many: choose FIRE(),"
            " MDMin(), BFGS() or LBFGS()"
        )
    if has_search(steps):
        raise TypeError(
            "forces on a path are not derivatives of an energy, so a search along a line finds no"
            " end: choose FIRE(), MDMin(), BFGS() or LBFGS()"
        )
    return steps


def evaluator_of_images(potential: Any, skin: float | None, dtype: Any) -> AbstractEvaluator:
    """What evaluates the images; raises TypeError or ValueError."""
    evaluator, listed = evaluator_or_listed(potential, skin)
    return evaluator or Batched(cast(PotentialWithSkin, listed), dtype)


def as_systems(
    bands: list[Band],
    inner: AbstractEvaluator,
    steps: AbstractTransform,
    method: str,
    climb: Any,
    fmax: Any,
    dtype: Any,
) -> tuple[PathEvaluator, AbstractTransform]:
    """The potential and the optimizer of paths for the loop, to which each is one structure.

    Their end points are evaluated here.

    Args:
        inner: what evaluates images.
        steps: the optimizer.
        climb, fmax: as for `neb`.

    Raises:
        TypeError, ValueError: the potential or an argument does not suit a path.
    """
    for number, band in enumerate(bands):
        try:
            check_images(inner, band)
        except (TypeError, ValueError) as error:
            raise type(error)(f"path {number}, {error}") from error
    limits = np.broadcast_to(one_a_structure(fmax, "fmax", len(bands)), len(bands))
    climbs = _climbs(climb, limits)
    if method == "string" and bands:
        steps = Equidistant(
            steps,
            np.array([band.n_atoms for band in bands]),
            max(len(band.images) for band in bands),
            max(band.n_atoms for band in bands),
        )
    ends = _ends(bands, inner, limits, dtype)
    return PathEvaluator(inner, bands, ends, method, climbs, dtype), steps


def check_images(inner: AbstractEvaluator, band: Band) -> None:
    """Raise TypeError or ValueError, which speaks of images, unless all can be evaluated."""
    try:
        inner.check(band.images, [False] * len(band.images))
    except (TypeError, ValueError) as error:
        raise type(error)(f"its images: {error}") from error


def _climbs(climb: Any, fmax: np.ndarray) -> np.ndarray:
    """The force below which the highest image of each path climbs; see `PathEvaluator`."""

    def force(each: Any) -> Any:
        is_switch = isinstance(each, bool | np.bool_)
        return (np.inf if each else -np.inf) if is_switch else each

    is_listed = isinstance(climb, list | tuple) or (isinstance(climb, np.ndarray) and climb.ndim)
    forces = [force(each) for each in climb] if is_listed else force(climb)
    climbs = np.broadcast_to(one_a_structure(forces, "climb", len(fmax)), len(fmax))
    wrong = (climbs < fmax) & (climbs > -np.inf)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"climb must not be less than fmax, at which paths end: path {at} has"
            f" climb={climbs[at]:g} and fmax={fmax[at]:g}"
        )
    return climbs


def _ends(bands: list[Band], inner: AbstractEvaluator, fmax: np.ndarray, dtype: Any) -> list[Ends]:
    """The results of the end points; warns of those that are not relaxed."""
    if not bands:
        return []
    structures = [band.images[at] for band in bands for at in (0, -1)]
    found = evaluated(structures, inner, None, stress=False, dtype=dtype)
    ends, forces = [], np.zeros(len(bands))
    for number, band in enumerate(bands):
        both = found.atoms[2 * number : 2 * number + 2]
        message = ""
        for at, image in enumerate((0, len(band.images) - 1)):
            place = 2 * number + at
            real = found.forces[place]
            if message := message or found.messages[place]:
                message = message if message.startswith("image ") else f"image {image}: {message}"
            elif not (np.isfinite(real).all() and np.isfinite(found.energies[place])):
                message = f"image {image}: its energy or a force is not finite"
            else:
                rows = np.linalg.norm(band.constrained(image, real), axis=1)
                forces[number] = max(forces[number], rows.max())
        first, last = (dict(cast(Any, end.calc).results) for end in both)
        ends.append(Ends((first, last), message))
    _warn_of_unrelaxed(forces, fmax)
    return ends


def _warn_of_unrelaxed(forces: np.ndarray, fmax: np.ndarray) -> None:
    above = np.flatnonzero(forces > fmax).tolist()
    if above:
        at = int(np.argmax(forces))
        warn(
            f"end points of {count_of(len(above), 'path')} ({first_of(above)}) are not relaxed:"
            f" the largest force on an atom is {forces[at]:.3g} eV/Å, of path {at}, and fmax is"
            f" {fmax[at]:g}. Relax them, or barriers refer to no minimum"
        )
