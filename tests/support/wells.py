"""Relaxations without a program, for tests of what stands around them: commands, files and runs.

Each structure lies in a well of its own, which its start alone decides: its atoms are pulled to
0.9 times where they were. NumPy goes a fifth of the way in each step. So a result follows from the
content of the structure and its own numbers, as the engine's does, and a test that uses it sees
reading, writing, going on and printing, but no potential, optimizer or cell.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from ase import Atoms

from basinax import Status
from basinax.engine.queue import NOBODY
from basinax.engine.run import relaxed
from basinax.results.history import History
from basinax.results.record import Relaxed
from basinax.results.snapshot import Snapshot
from basinax.results.trajectory import Frame
from basinax.structures.constraints.hosted import energy_under
from basinax.structures.read import Structure, source_of

DEPTH = -1.0
"""The energy of an atom in eV at the bottom."""


class Wells:
    """Stands in for `basinax.engine.run.relaxed`."""

    def __init__(self):
        self.run: Any = None
        """The settings of the last call."""
        self.structures: list[Structure] = []
        """Those of all calls."""

    def __call__(self, run, feed, monitor, recorder=None) -> Iterator[Any]:
        self.run = run
        while not monitor.is_stopped():
            while faults := feed.read():
                yield faults
                feed.release(faults)
            structures = feed.take()
            if not structures:
                return
            monitor.n_structures += len(structures)
            self.structures += structures
            for structure in structures:
                if monitor.is_stopped():
                    return
                end = _ended(structure, run, recorder)
                monitor.report(self, NOBODY, NOBODY, ended=np.array([end.status.code]))
                ended = {structure.number: end}
                yield ended
                feed.release(ended)


@pytest.fixture
def wells(monkeypatch) -> Wells:
    """Relaxations of this test, those of `relax` too, are in wells."""
    found = Wells()
    _put(found, monkeypatch)
    return found


@pytest.fixture
def engine(wells, monkeypatch) -> None:
    """The engine again, for a test of a file whose other tests use wells."""
    _put(relaxed, monkeypatch)


def _put(function, monkeypatch) -> None:
    for place in ("relax", "relax_stream"):
        monkeypatch.setattr(f"basinax.engine.{place}.relaxed", function)


def _ended(structure: Structure, run, recorder) -> Relaxed:
    settings = run.settings.of([structure])
    fmax, most = np.ravel(jax.tree.leaves(settings.criterion)[0])[0], settings.max_steps[0]
    path = []
    for snapshot, force in _walk(structure):
        path.append((snapshot, force))
        if force < fmax or len(path) > most:
            break
    end, force = path[-1]
    steps = len(path) - 1
    if recorder is not None:
        due = [k for k in range(len(path)) if k % recorder.interval == 0 or k == steps]
        frames = [Frame(structure.number, k, *path[k], is_last=k == steps) for k in due]
        recorder.add(frames)
    start = structure.atoms
    last = Atoms(start, positions=end.positions)
    return Relaxed.of(
        start,
        end.positions,
        end.cell,
        end.properties(),
        energy=energy_under(last, end.energy),
        fmax=force,
        steps=steps,
        evaluations=steps + 1,
        status=Status.CONVERGED if force < fmax else Status.MAX_STEPS,
        source=source_of(start, structure.number),
        initial_energy=path[0][0].energy,
        seconds=0.25,
        history=_history(path) if run.points else None,
    )


def _walk(structure: Structure) -> Iterator[tuple[Snapshot, float]]:
    """All points of a path, with the largest force at each."""
    atoms = Atoms(structure.atoms)
    bottom = 0.9 * atoms.positions
    has_stress = structure.cell is not None and bool(atoms.pbc.any())
    while True:
        away = atoms.positions - bottom
        energies = DEPTH + 0.5 * (away * away).sum(axis=1)
        allowed = -away
        for constraint in atoms.constraints:
            constraint.adjust_forces(atoms, allowed)
        snapshot = Snapshot(
            positions=atoms.positions.copy(),
            cell=atoms.cell.array.copy(),
            forces=-away,
            stress=np.zeros(6) if has_stress else None,
            energy=float(energies.sum()),
            energies=energies,
        )
        yield snapshot, float(np.sqrt((allowed * allowed).sum(axis=1)).max(initial=0.0))
        atoms.set_positions(atoms.positions + 0.2 * allowed)


def _history(path: list[tuple[Snapshot, float]]) -> History:
    numbers = np.arange(len(path), dtype=np.int32)
    energies = np.array([snapshot.energy for snapshot, _ in path])
    return History(numbers, energies, np.array([force for _, force in path]), None, numbers + 1)
