"""Relaxation of a stream of structures of any length, in bounded memory."""

import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

import jax
import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator

from basinax.engine.device import Settings
from basinax.engine.groups import RunSettings
from basinax.engine.precision import warn_of_single_precision
from basinax.engine.queue import Monitor
from basinax.engine.relax import Progress, named_cells, run_settings
from basinax.engine.run import Feed, Outcomes, relaxed
from basinax.engine.text import named_model
from basinax.engine.workers import Devices
from basinax.minimize.criteria import AbstractCriterion
from basinax.minimize.status import Status
from basinax.models.evaluators.protocol import AbstractEvaluator
from basinax.numerics.forks import check_process
from basinax.numerics.memory import host_memory
from basinax.numerics.settings import (
    at_least,
    knows_options_of_ase,
    require_function,
    require_whole,
)
from basinax.numerics.switches import config_context, own_switches, switches
from basinax.optimizers.protocol import AbstractTransform
from basinax.potentials import AbstractPotential
from basinax.results.history import AnyRecorder
from basinax.results.record import Relaxed
from basinax.structures.batch import available_dtype
from basinax.structures.cells.kinds import AbstractCell
from basinax.structures.machine import machine
from basinax.structures.read import Fault, Item, check_are_several, repeated, unwrapped

BATCHES = 3
"""The number of batches of structures in memory for each thread, if memory allows: one that runs,
and others that keep a structure of each size waiting for its slots."""

ROUNDS = 8
"""The fewest structures in memory for each that an evaluator evaluates at a time."""

SHARE, BYTES_OF_ROW = 1 / 16, 1000
"""The share of the host's memory for structures in flight, and the bytes of a row with its results
(0.75 kB measured with 8000 more argon crystals of 8 atoms in a window)."""

Found = list[tuple[int, Relaxed | Fault]]
"""The numbers of structures, and how each ended, or why it cannot be relaxed."""


@knows_options_of_ase
def relax_stream(
    structures: Iterable[Atoms | Relaxed],
    potential: AbstractPotential | AbstractEvaluator | BaseCalculator | str | None = None,
    optimizer: AbstractTransform | str | None = None,
    *,
    cell: str | AbstractCell | None = None,
    fmax: float | None = None,
    convergence: AbstractCriterion | None = None,
    max_steps: int = 500,
    dtype: Any = None,
    skin: float | None = None,
    keep_best: bool = False,
    history: bool | int = False,
    should_stop: Callable[[], bool] = lambda: False,
    at_once: int | None = None,
    devices: Devices = None,
) -> Iterator[tuple[int, Relaxed]]:
    """Relax structures as they arrive, and return each as soon as it has ended.

        for number, entry in relax_stream(ase.io.iread("many.extxyz"), EMT()):
            print(number, entry.status, entry.energy)

    Each structure ends with the bits of `relax`. A structure is read when another has ended (with a
    model, or a calculator in this process, when all in memory have), so memory does not grow with
    their number. The run ends when the iteration stops.

    Args:
        structures: any iterable, such as a generator; read during the run. None may change after
            it was read: a generator that goes on with its object yields copies.
        potential: like the further options, as for `relax`, with one value for all structures.
        should_stop: called now and then; after it returns True, the iteration ends without the
            structures that still run.
        at_once: the number of structures in memory; if None, as many as keep all threads busy, by
            numbers of atoms, within a sixteenth of the memory, and eight at least for each process
            of a calculator.
        devices: the devices that share the structures, see `relax`.

    Yields:
        The number of a structure in the input, from 0, and its entry of a result, in the order in
        which structures end.

    Raises:
        TypeError, ValueError: an argument or a structure is unusable, as for `relax`. All
            structures that were read before it have been returned then; so they are if reading
            raises.
        NotImplementedError: likewise, of a constraint or a cell that is not supported.
        RuntimeError: a fork of a process that had used JAX calls this function.
    """
    check_process()
    check_are_several(structures)
    potential, optimizer = named_model(potential, optimizer)
    cell = named_cells(cell)
    of_all = {
        "optimizer": optimizer,
        "fmax": fmax,
        "convergence": convergence,
        "max_steps": max_steps,
    }
    _check_is_for_all(of_all)
    _check_cell(cell)
    warn_of_single_precision(dtype, available_dtype(dtype))
    run = run_settings(
        potential,
        **of_all,
        dtype=dtype,
        skin=skin,
        keep_best=keep_best,
        history=history,
        devices=devices,
        n_structures=1,
    )
    faults: list[Fault] = []
    each = iter(structures)
    # A list may hold one object several times; a generator has changed it meanwhile.
    items = _items(each, cell, faults, may_repeat=each is not structures)
    ends = relax_items(items, run, should_stop=should_stop, at_once=at_once)
    return _before_faults(ends, faults)


def _items(
    structures: Iterator[Atoms | Relaxed], cell: Any, faults: list[Fault], *, may_repeat: bool
) -> Iterator[Item | Fault]:
    """The structures up to the first fault."""
    number = 0  # of the next structure
    before: weakref.WeakValueDictionary[int, Atoms] = weakref.WeakValueDictionary()
    try:
        for atoms in structures:
            if faults:
                return
            held = unwrapped(atoms)
            if not may_repeat and isinstance(held, Atoms):
                if before.get(id(held)) is held:
                    raise repeated(number)
                before[id(held)] = held
            yield Item(number, held, cell)
            number += 1
    except Exception as error:
        yield Fault(number, Atoms(), error, is_read=False)


def _before_faults(ends: Generator[Found], faults: list[Fault]) -> Iterator[tuple[int, Relaxed]]:
    """The outcomes of all structures before the first fault, which is raised then.

    In a run that was stopped, some of them may be missing; the fault is not raised.
    """
    n_ended = 0
    for number, end in itertools.chain.from_iterable(ends):
        if isinstance(end, Fault):
            faults.append(end)
        elif not faults or number < faults[0].number:
            n_ended += 1
            yield number, end
    if faults and n_ended == faults[0].number:
        if faults[0].is_read:  # else its text names no system
            faults[0].error.add_note(f"This is structure {faults[0].number} of the input.")
        raise faults[0].error


def relax_items(
    items: Iterator[Item | Fault],
    run: RunSettings,
    *,
    progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    at_once: int | None = None,
    recorder: AnyRecorder | None = None,
) -> Generator[Found]:
    """Relax structures as they arrive, each of which may have settings of its own.

    Args:
        items: structures, and those that are known to be unusable.
        run: from `run_settings`; each item replaces arrays in it by its `own_numbers`.
        at_once: like the others, as for `relax_stream`.
        recorder: gets frames, with the numbers of structures in the input.

    Returns:
        An iterator over structures that have ended since the last: their numbers, and the result
        or the fault of each.
    """
    if at_once is not None:
        require_whole(at_once, "at_once", at_least(1))
    require_function(should_stop, "should_stop")
    if at_once is None:
        feed = Feed(run, items, _most_rows(run), fewest=ROUNDS * run.n_at_once)
    else:
        feed = Feed(run, items, at_once, size_of=lambda atoms: 1)
    tell = None if progress is None else lambda *found: progress(Progress(*found))
    with own_switches():
        return _ended(relaxed(run, feed, Monitor(tell, should_stop), recorder), switches())


@own_switches()
def faults_of(items: Iterable[Item], run: RunSettings) -> list[Fault]:
    """Those of these structures that cannot be relaxed, which `relax_items` would return."""
    found = Feed(run, items, sys.maxsize).read().values()
    return [fault for fault in found if isinstance(fault, Fault)]


def own_numbers(convergence: AbstractCriterion, max_steps: int) -> tuple[Any, ...]:
    """The numbers of one structure in settings whose arrays have one entry, for `relax_items`."""
    return Settings(cast(Any, None), convergence, np.array([max_steps])).own(1)[0]


def _most_rows(run: RunSettings) -> int:
    """The rows of structures in memory: some batches for each thread, within the memory."""
    wanted = BATCHES * machine(run.lanes[0]).max_rows * len(run.lanes)
    return min(wanted, int(SHARE * host_memory()) // BYTES_OF_ROW)


def _ended(ends: Generator[Outcomes], wanted: dict[str, Any]) -> Generator[Found]:
    """Those that have ended, found with these switches of JAX, which no caller sees."""
    with contextlib.closing(ends):
        while True:
            with config_context(wanted):
                ended = next(ends, None)
            if ended is None:
                return
            items = ended.items()
            yield [(k, x) for k, x in items if isinstance(x, Fault) or x.status != Status.RUNNING]


def refused(atoms: Atoms, source: str, reason: str) -> Relaxed:
    """The entry of a structure that cannot be relaxed."""
    end = {"status": Status.EVALUATION_FAILED, "displacement": float("nan")}
    place = atoms.positions, atoms.cell.array, {}
    return Relaxed.of(atoms, *place, source=source, message=reason, **end)


def _check_is_for_all(options: dict[str, Any]) -> None:
    """Raise TypeError if a setting has one value per structure."""
    for name, value in options.items():
        is_listed = isinstance(value, list | tuple)
        leaves = [((), value)] if is_listed else jax.tree_util.tree_leaves_with_path(value)
        for path, leaf in leaves:
            if np.ndim(leaf):
                raise TypeError(
                    f"{name}{jax.tree_util.keystr(path)} must be one number for all structures of a"
                    f" stream, got shape {np.shape(leaf)}"
                )


def _check_cell(cell: Any) -> None:
    """Raise TypeError if there is one cell, or one pressure, per structure."""
    if not (cell is None or isinstance(cell, str | AbstractCell)):
        raise TypeError(
            f"cell must be one for all structures of a stream, such as Frechet(), got {cell!r:.60}"
        )
    if isinstance(cell, AbstractCell):
        _check_is_for_all({"pressure": cell.pressure})
