"""Relaxation of ASE structures: grouping, streaming through batches, and gathering of results.

The grouping affects speed alone: no bit of a result depends on it.
"""

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator

from basinax.engine.device import Settings
from basinax.engine.evaluate import evaluated
from basinax.engine.groups import RunSettings, evaluator_or_listed
from basinax.engine.precision import warn_of_single_precision, warn_of_small_fmax
from basinax.engine.queue import Monitor
from basinax.engine.run import Feed, relaxed
from basinax.engine.text import cell_from, named_model
from basinax.engine.workers import Devices, lanes_of
from basinax.internal.optimizer import InternalLBFGS, steps_on_the_host
from basinax.minimize.criteria import DEFAULT_FMAX, AbstractCriterion, criterion_of
from basinax.minimize.relax import raise_unless_converged
from basinax.minimize.status import Status
from basinax.models.evaluators.calculator import ASECalculator, evaluator_of
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.numerics.compilations import Compilations
from basinax.numerics.forks import check_process
from basinax.numerics.settings import (
    MOST,
    at_least,
    counts,
    known,
    knows_options_of_ase,
    require_function,
    require_switch,
    require_whole,
    shown,
)
from basinax.numerics.switches import own_switches
from basinax.optimizers import FIRE, LBFGS
from basinax.optimizers.levenberg_marquardt import LevenbergMarquardt
from basinax.optimizers.line_search.walk import has_search
from basinax.optimizers.protocol import AbstractTransform, check_transform, has_part
from basinax.potentials import AbstractPotential
from basinax.results.history import AnyRecorder, History, Log, Together
from basinax.results.record import Relaxed
from basinax.results.result import AtomsRelaxation
from basinax.results.snapshot import Snapshot
from basinax.results.trajectory import AbstractTrajectories, Trajectories
from basinax.structures.batch import available_dtype
from basinax.structures.cells.kinds import AbstractCell
from basinax.structures.charges import warn_of_unused
from basinax.structures.formats.occupancy import check_occupancies
from basinax.structures.read import has_volume, intake, source_of

Cells = str | AbstractCell | None | Sequence[str | AbstractCell | None]


PATIENCE = 3.0
"""Seconds after which a run on a terminal shows its progress unasked."""


class Progress(eqx.Module):
    """The progress of a relaxation."""

    n_systems: int
    n_converged: int
    n_failed: int
    """Structures that ended without convergence."""
    phase: str
    """The current work: "listing" neighbours, "compiling" or loading programs, or "running"."""
    fmax_median: float = np.nan
    """The median of running structures, in eV/Å; NaN before the first evaluation."""
    fmax_largest: float = np.nan
    text: str = ""
    """More on the phase, such as "compiling 3 of 4 programs of Nequix (12 s)"; often empty."""

    @property
    def n_running(self) -> int:
        return self.n_systems - self.n_converged - self.n_failed


@own_switches()
@knows_options_of_ase
def relax(
    atoms: Iterable[Atoms | Relaxed],
    potential: AbstractPotential | AbstractEvaluator | BaseCalculator | str | None = None,
    optimizer: AbstractTransform | str | None = None,
    *,
    cell: Cells = None,
    fmax: float | Sequence[float] | np.ndarray | None = None,
    convergence: AbstractCriterion | None = None,
    max_steps: int | Sequence[int] | np.ndarray = 500,
    dtype: Any = None,
    skin: float | None = None,
    keep_best: bool = False,
    stress: bool = False,
    trajectory: AbstractTrajectories | str | os.PathLike[str] | None = None,
    history: bool | int = False,
    log: str | os.PathLike[str] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    on_end: Callable[[int, Relaxed], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    throw: bool = False,
    devices: Devices = None,
) -> AtomsRelaxation:
    """Relax every structure as if it were alone: its positions, and its cell on request.

    Args:
        atoms: the structures, or a result or entries of it, whose structures keep their `source`;
            none is changed. Constraints act as in ASE, one after another: `FixAtoms`,
            `FixCartesian`, `FixScaled` (along x, y and z), `FixedLine`, `FixedPlane`, `FixCom` and
            `FixSymmetry`, and those of `register_constraint`. With fixed cells and potentials that
            the host evaluates, so do `FixBondLengths`, `FixInternals` and `Hookean`. Others raise,
            and so does `FixScaled` if a shearing cell would turn its directions.
        potential: such as `LennardJones.named("Ar")`, `ASECalculator(...)`, an ASE calculator, or a
            text such as "emt:Cu" (see `potential_from`); if None, each structure's own
            `atoms.calc`, for which an optimizer may stand in this place: `relax(atoms, "lbfgs")`.
        optimizer: if None, `LBFGS()`; `InternalLBFGS()` for calculators and learned models, where
            evaluations dominate the time; and `FIRE()` for models whose forces are not derivatives
            of their energy. A text such as "fire:maxstep=0.1" names one, as on the command line.
        cell: the motion of cells: `Frechet(pressure=0.0)`, `UnitCell()` or `Strain()`, a text such
            as "frechet" (see `cell_from`), None for fixed cells, or a sequence with one of these
            per structure. A structure without periodic directions has no cell that could move.
        fmax: a structure has converged when the force on each of its atoms is smaller (eV/Å), and
            each row of the generalised force on its cell, in the scale of ASE's filters; 0.05 if
            None. One number, or one per structure. Short for `convergence=MaxForce(fmax)`.
        convergence: a criterion in place of `fmax`, such as `MaxForce(0.05) & EnergyChange(1e-4)`;
            a tolerance is one number, or one per structure.
        max_steps: a structure ends unconverged after this many steps; one number, or one per
            structure.
        dtype: float32 or float64; JAX's default float if None (float64 needs `jax_enable_x64`).
        skin: the reach of neighbour lists beyond the cutoff (Å); if None, 0.15 cutoffs, or 0.2 for
            expensive pairs (embedded atoms). At most the cutoff. Changes speed only; not for
            calculators.
        keep_best: return an unconverged structure at its point of lowest free energy (plus pV), not
            its last one.
        stress: compute the final stress of structures with fixed cells, too, where the energy is
            finite.
        trajectory: a folder for trajectories, or `Trajectories(folder, interval, format)`.
        history: keep energy, fmax and volume of every step as `result.history`; a number limits
            the points of a structure to steps 0, n, 2n, ..., with n a power of two, and the last.
        log: a file for a line with energy and fmax at each step of each structure, written during
            the run; "-" is standard output.
        progress: True shows a bar, on a terminal or in a notebook, and False none; None shows it on
            a terminal in runs of more than three seconds. A function is called with a `Progress`
            during the run.
        on_end: called with the number of a structure and its outcome as soon as it has ended, in
            any order, in the thread of the caller. If it raises, the run ends. It must change no
            structure of `atoms`: those that wait are read later. The stress of `stress=True` is not
            available yet.
        should_stop: called now and then; after it returns True the run ends, and unfinished
            structures are returned at their current points, as `Status.RUNNING`.
        throw: raise if a structure does not converge; otherwise see `status`.
        devices: the JAX devices that share the structures, or a number of `jax.local_devices()`,
            for potentials of this package and models. Each device has one thread, and no bit
            depends on their number. If None, all local devices that are no CPUs (one of them for a
            model), or the default device.

    Raises:
        TypeError, ValueError, NotImplementedError: a structure or an argument is unusable; the
            message names it and the reason, before anything runs.
        OSError: trajectories cannot be written to their folder, or the log to its file.
        RuntimeError: with `throw`, a structure did not converge; or a fork of a process that had
            used JAX calls this function.
    """
    check_process()
    potential, optimizer = named_model(potential, optimizer)
    evaluator = evaluator_of(potential)
    is_hosted = evaluator is not None or steps_on_the_host(cast(Any, optimizer))
    structures = intake(atoms, named_cells(cell), is_hosted=is_hosted)
    atoms = [structure.atoms for structure in structures]
    check_occupancies(atoms)
    warn_of_unused(atoms, evaluator or potential)
    warn_of_single_precision(dtype, available_dtype(dtype))
    _check_switches(keep_best=keep_best, throw=throw, stress=stress)
    _check_functions(should_stop, progress, on_end)
    if fmax is not None:
        warn_of_small_fmax(one_a_structure(fmax, "fmax", len(atoms)), available_dtype(dtype))
    run = run_settings(
        potential,
        optimizer,
        fmax=fmax,
        convergence=convergence,
        max_steps=max_steps,
        dtype=dtype,
        skin=skin,
        keep_best=keep_best,
        history=history,
        stress=stress,
        devices=devices,
        n_structures=len(atoms),
    )
    if not structures:
        return AtomsRelaxation([])
    run.check(structures)
    structures = [
        dataclasses.replace(structure, own=own) if own else structure
        for structure, own in zip(structures, run.settings.own(len(atoms)), strict=True)
    ]

    entries: dict[int, Relaxed] = {}
    compilations = Compilations()
    with contextlib.ExitStack() as stack:
        monitor = Monitor(_teller(progress, stack), should_stop)
        recorder = _recorder(trajectory, log, atoms)
        if recorder is not None:
            stack.callback(recorder.close)
        feed = Feed(run)
        feed.waiting = structures
        ends = relaxed(run, feed, monitor, recorder)
        stack.enter_context(contextlib.closing(ends))
        stack.enter_context(compilations.counted())
        for ended in cast(Iterator[dict[int, Relaxed]], ends):  # faults have been raised
            entries |= ended
            if on_end is not None:
                for number, entry in ended.items():
                    if entry.status != Status.RUNNING:
                        on_end(number, entry)
    ends = _in_order(atoms, entries, has_history=run.points > 0)
    result = AtomsRelaxation(ends, compilations.count, _limit(fmax, convergence))
    if stress:
        _add_stresses(result.atoms, atoms, potential, run.dtype)
    if throw:
        raise_unless_converged(result.status)
    return result


def run_settings(
    potential: Any,
    optimizer: Any,
    *,
    n_structures: int,
    fmax: Any = None,
    convergence: AbstractCriterion | None = None,
    max_steps: Any = 500,
    dtype: Any = None,
    skin: float | None = None,
    keep_best: bool = False,
    history: bool | int = False,
    stress: bool = False,
    devices: Devices = None,
) -> RunSettings:
    """The settings of `relax`, checked; those that differ between structures have an entry each."""
    evaluator, listed = evaluator_or_listed(potential, skin)
    dtype = available_dtype(dtype)
    optimizer = _fit_for(evaluator, optimizer)
    lanes = lanes_of(devices)
    if evaluator and devices is not None:
        evaluator = evaluator.on(lanes)
    if steps_on_the_host(optimizer) and listed is not None:
        if skin is not None or devices is not None:
            raise TypeError(
                "skin and devices are for batches of a potential, and with InternalLBFGS it"
                " evaluates one structure at a time: leave them out, or choose another optimizer"
            )
        evaluator = ASECalculator(listed.potential.calculator(dtype))
    fmax = None if fmax is None else one_a_structure(fmax, "fmax", n_structures)
    criterion = criterion_of(fmax, convergence)
    settings = Settings(
        _each_a_structure(optimizer, "optimizer", n_structures),
        _each_a_structure(criterion, "convergence", n_structures),
        one_a_structure(_counts(max_steps), "max_steps", n_structures),
    )
    points = points_of(history)
    return RunSettings(listed, evaluator, settings, dtype, lanes, keep_best, points, stress)


def _fit_for(
    evaluator: AbstractEvaluator | None, optimizer: AbstractTransform | None
) -> AbstractTransform:
    """The optimizer, or the default one; raises TypeError if the model does not suit it.

    By default it is the kind of L-BFGS that takes the fewest evaluations (`docs/choosing.md`). Both
    kinds want forces that are derivatives of the energy; `FIRE` does without.
    """
    is_conservative = evaluator is None or evaluator.is_conservative
    if optimizer is None and is_conservative:
        optimizer = LBFGS() if evaluator is None else InternalLBFGS()
    elif optimizer is None:
        optimizer = FIRE()
    check_transform(optimizer)
    if has_part(optimizer, LevenbergMarquardt):
        raise TypeError("LevenbergMarquardt fits residuals, which an energy does not have")
    if not is_conservative:
        _check_needs_no_energy(optimizer)
    return optimizer


def _teller(
    progress: Callable[[Progress], None] | bool | None, stack: contextlib.ExitStack
) -> Callable[..., None] | None:
    """A function to call during the run with counts, phase and forces, if there is progress."""
    if progress is True or (progress is None and sys.stderr.isatty()):
        from basinax.results.bar import Bar

        bar = Bar()
        stack.callback(bar.stop)
        if progress is True:
            bar.start()
        else:
            begin = threading.Timer(PATIENCE, bar.start)
            begin.daemon = True
            begin.start()
            stack.callback(begin.join)
            stack.callback(begin.cancel)  # called first
        progress = bar.show

    if not callable(progress):
        return None
    return lambda *found: progress(Progress(*found))


def _add_stresses(relaxed: list[Atoms], originals: list[Atoms], potential: Any, dtype: Any) -> None:
    """Compute missing stresses of structures whose cells have a volume and whose energy is finite;
    where it is not, there may be no neighbour list."""
    ends, places = [], []
    for end, original in zip(relaxed, originals, strict=True):
        found = {} if end.calc is None else end.calc.results
        if has_volume(end) and "stress" not in found and np.isfinite(found.get("energy", np.nan)):
            ends.append(end)
            places.append(end.copy())
            places[-1].calc = original.calc  # evaluates the end if there is no potential
    if not ends:
        return
    found = evaluated(places, evaluator_of(potential), potential, stress=True, dtype=dtype)
    for end, stress in zip(ends, cast(np.ndarray, found.stresses), strict=True):
        if np.isfinite(stress).all():
            end.calc.results["stress"] = stress


def _recorder(
    trajectory: AbstractTrajectories | str | os.PathLike[str] | None,
    log: str | os.PathLike[str] | None,
    atoms: list[Atoms],
) -> AnyRecorder | None:
    recorders: list[AnyRecorder] = []
    if trajectory is not None:
        if not isinstance(trajectory, AbstractTrajectories):
            trajectory = Trajectories(trajectory)
        recorders.append(trajectory.recorder(atoms))
    if log is not None:
        recorders.append(Log.to(log))
    return Together(recorders) if len(recorders) > 1 else next(iter(recorders), None)


def _check_needs_no_energy(optimizer: AbstractTransform) -> None:
    """Raise TypeError if an optimizer uses line searches."""
    if has_search(optimizer):
        raise TypeError(
            "the model's forces are not derivatives of its energy (it is not conservative), so a"
            " search along a line finds no end: choose FIRE(), BFGS() or LBFGS()"
        )


def _check_switches(**switches: Any) -> None:
    for name, value in switches.items():
        require_switch(value, name)


def _check_functions(should_stop: Any, progress: Any, on_end: Any) -> None:
    require_function(should_stop, "should_stop")
    if not (progress is None or isinstance(progress, bool)):
        require_function(progress, "progress")
    if on_end is not None:
        require_function(on_end, "on_end")


def points_of(history: bool | int) -> int:
    """The largest number of stored points of a structure; raises TypeError or ValueError."""
    if isinstance(history, bool | np.bool_):
        return MOST if history else 0
    require_whole(history, "history", at_least(2))
    return int(history)


def _counts(value: Any) -> np.ndarray:
    """The value as an array of non-negative integers."""
    try:
        return counts(value, "max_steps")
    except (TypeError, ValueError):
        raise ValueError(
            f"max_steps must be an integer of 0 or more, or one for each structure, got"
            f" {shown(value)}"
        ) from None


def one_a_structure(value: Any, name: str, n_atoms: int) -> np.ndarray:
    array = known(value)
    if array is None or array.dtype.kind not in "iuf" or np.isnan(array).any():
        raise ValueError(f"{name} must be a number, or one a structure, got {shown(value)}")
    if array.shape not in ((), (n_atoms,)):
        raise ValueError(
            f"{name} must be a number or have one entry for each of the {n_atoms} structures, got"
            f" shape {array.shape}"
        )
    return array


def named_cells(cell: Any) -> Any:
    """The cells, with names replaced by cells; raises TypeError for a class of cells."""
    if isinstance(cell, str):
        return cell_from(cell)
    if isinstance(cell, type) and issubclass(cell, AbstractCell):
        raise TypeError(f"cell is the class {cell.__name__}: make one with {cell.__name__}()")
    return [named_cells(c) for c in cell] if isinstance(cell, list | tuple) else cell


def _each_a_structure(settings: Any, name: str, n_atoms: int) -> Any:
    """The settings, checked to be one number or one per structure."""

    def checked_leaf(path, value):
        return one_a_structure(value, f"{name}{jax.tree_util.keystr(path)}", n_atoms)

    return jax.tree_util.tree_map_with_path(checked_leaf, settings)


def _limit(fmax: Any, convergence: Any) -> float | None:
    """The one `fmax` of all structures; None if there is none."""
    fmax = DEFAULT_FMAX if fmax is None and convergence is None else fmax
    return None if fmax is None or np.ndim(fmax) else float(fmax)


def _in_order(
    atoms: list[Atoms], entries: dict[int, Relaxed], *, has_history: bool
) -> list[Relaxed]:
    """The entries in order; a structure that never started is returned unchanged."""
    return [
        entries.get(k) or _never_reached(of_one, k, has_history) for k, of_one in enumerate(atoms)
    ]


def _never_reached(atoms: Atoms, number: int, has_history: bool) -> Relaxed:
    nothing, nan = np.full((len(atoms), 3), np.nan), np.nan
    start = Snapshot(atoms.positions, atoms.cell.array, nothing, None, nan, nothing[:, 0])
    return Relaxed.of(
        atoms,
        atoms.positions,
        atoms.cell.array,
        start.properties(),
        status=Status.RUNNING,
        source=source_of(atoms, number),
        history=History.empty() if has_history else None,
    )
