"""Relaxation of a stream of structures of any length, in bounded memory."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator

from basinax._bits.rounding import BLOCK
from basinax._jax.memory import host_memory
from basinax._loop.criteria import AbstractCriterion
from basinax._settings import at_least, knows_options_of_ase, require_function, require_whole
from basinax.atoms._cells.kinds import AbstractCell
from basinax.atoms._evaluators.protocol import AbstractEvaluator
from basinax.atoms._formats.occupancy import check_occupancies
from basinax.atoms._intake import check_are_several, intake
from basinax.atoms._machine import machine
from basinax.atoms._relax import named_cells, named_optimizer, points_of, relax
from basinax.atoms._result import Relaxed
from basinax.atoms._streams.workers import Devices, lanes_of
from basinax.atoms._windows import OnEnd, Take, by_number, relaxed_windows
from basinax.atoms.potentials import AbstractPotential
from basinax.transforms._protocol import AbstractTransform

BATCHES = 10
"""The number of batches of structures that are read at a time for each thread, if memory allows:
with fewer, half-empty last batches would cost more."""

SHARE, BYTES_OF_ROW = 1 / 16, 1000
"""The share of the host's memory for structures in flight, and the bytes of a row with its results
(0.75 kB measured with 8000 more argon crystals of 8 atoms in a window)."""


@knows_options_of_ase
def relax_stream(
    structures: Iterable[Atoms],
    potential: AbstractPotential | AbstractEvaluator | BaseCalculator | None = None,
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

    Each structure ends with the bits of `relax`. `at_once` structures are read and relaxed, then
    the next ones, so memory does not grow with their number. The run ends when the iteration stops.

    Args:
        structures: any iterable, such as a generator; read during the run.
        potential: like the further options, as for `relax`, with one value for all structures.
        should_stop: called now and then; after it returns True, the iteration ends without the
            structures that still run.
        at_once: the number of structures in memory; if None, as many as keep all threads busy, by
            numbers of atoms, within a sixteenth of the memory.
        devices: the devices that share the structures, see `relax`.

    Yields:
        The number of a structure in the input, from 0, and its entry of a result, in the order in
        which structures end.

    Raises:
        TypeError, ValueError: an argument or a structure is unusable, as for `relax`. All
            structures that were read before it have been returned then; so they are if reading
            raises.
    """
    check_are_several(structures)
    optimizer, cell = named_optimizer(optimizer), named_cells(cell)
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "fmax": fmax,
        "convergence": convergence,
        "max_steps": max_steps,
    }
    _check_is_for_all(options)
    _check_cell(cell)
    if at_once is not None:
        require_whole(at_once, "at_once", at_least(1))
    require_function(should_stop, "should_stop")
    lanes_of(devices)  # raises the errors of `relax`
    points_of(history)
    options |= {"cell": cell, "dtype": dtype, "skin": skin, "keep_best": keep_best}
    options |= {"history": history, "devices": devices}
    take = by_memory(lambda item: item[1], devices) if at_once is None else by_number(at_once)
    return _relaxed(iter(structures), potential, options, should_stop, take)


_Numbered = tuple[int, Atoms]


def by_memory(atoms_of: Callable[[Any], Any], devices: Devices = None) -> Take[Any]:
    """A function that takes items until their rows fill the memory for a window.

    Args:
        atoms_of: the structure of an item.
    """
    wanted = BATCHES * machine().max_rows * len(lanes_of(devices))
    most_rows = min(wanted, int(SHARE * host_memory()) // BYTES_OF_ROW)

    def take(items: Iterator[Any]) -> list[Any]:
        window, n_rows = [], 0
        while n_rows < most_rows and (item := next(items, None)) is not None:
            window.append(item)
            atoms = atoms_of(item)
            # `relax` refuses objects that are no structures.
            n_atoms = len(atoms) if isinstance(atoms, Atoms) else 1
            n_rows += max(-(-n_atoms // BLOCK), 1) * BLOCK
        return window

    return take


def _relaxed(
    structures: Iterator[Atoms],
    potential: Any,
    options: dict[str, Any],
    should_stop: Callable[[], bool],
    take: Take[_Numbered],
) -> Iterator[tuple[int, Relaxed]]:
    """The generator, apart so that the call itself checks its arguments."""

    def relax_window(window: list[_Numbered], on_end: OnEnd, is_over: Any) -> None:
        atoms = [atoms for _, atoms in window]
        relax(atoms, potential, on_end=on_end, should_stop=is_over, **options)

    errors: list[Exception] = []
    numbered = _usable(structures, potential, options["cell"], errors)
    for ended in relaxed_windows(numbered, relax_window, should_stop, take):
        for (number, _), entry in ended:
            yield number, entry._replace(source=str(number))
    for error in errors:
        raise error


def _usable(
    structures: Iterator[Atoms], potential: Any, cell: Any, errors: list[Exception]
) -> Iterator[_Numbered]:
    """The structures before the first that cannot be read or relaxed, whose error is stored."""
    number = 0
    try:
        for atoms in structures:
            intake([atoms], cell)
            check_occupancies([atoms])
            if isinstance(potential, AbstractPotential):
                potential.check([atoms])
            yield number, atoms
            number += 1
    except Exception as error:
        error.add_note(f"System 0 is structure {number} of the input.")
        errors.append(error)


def _check_is_for_all(options: dict[str, Any]) -> None:
    """Raise TypeError if a setting has one value per structure."""
    for name, value in options.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            if np.ndim(leaf):
                raise TypeError(
                    f"{name}{jax.tree_util.keystr(path)} must be one number for all structures of a"
                    f" stream, got shape {np.shape(leaf)}"
                )


def _check_cell(cell: Any) -> None:
    """Raise TypeError if there is one cell per structure."""
    if not (cell is None or isinstance(cell, str | AbstractCell)):
        raise TypeError(
            f"cell must be one for all structures of a stream, such as Frechet(), got {cell!r:.60}"
        )
