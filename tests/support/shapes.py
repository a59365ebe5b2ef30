"""Fewer shapes and so fewer programs to compile, which is what takes the time of tests of atoms."""

import numpy as np
import pytest

from basinax.neighbors.rooms import Room
from basinax.numerics.rounding import BLOCK


@pytest.fixture
def few_shapes(few_lengths, monkeypatch):
    """Batches of a few sizes, with lists of a few lengths: a shape is a program.

    Relaxations have 64 rows and 16 systems at least, alone too, so that a small batch may run the
    program of one system; evaluations have 512 rows and 64 systems, but for one that fills a block.
    Tests of shapes, and those of whole relaxations, keep the real ones.
    """

    def of_relaxations(n: int, least: int | None = None, steps: int = 1) -> int:
        del steps
        return _coarse_size(n, 16 if least is None else 64)

    def of_evaluations(sizes):
        n_rows = sum(-(-size // BLOCK) * BLOCK for size in sizes)
        if n_rows == BLOCK:
            return BLOCK, 1
        return _coarse_size(n_rows, 512), _coarse_size(len(sizes), 64)

    monkeypatch.setattr("basinax.structures.batch._shape_for", of_evaluations)
    monkeypatch.setattr("basinax.engine.groups.padded_size", of_relaxations)
    monkeypatch.setattr("basinax.structures.machine.CPU.few_rows", BLOCK)


@pytest.fixture
def few_lengths(monkeypatch):
    """Lists so long that hardly any structure here needs longer ones.

    Where a run goes on with lists of another length, it goes on with another program. Folds over
    neighbours end with the longest list in use, and mind no further slots.
    """
    monkeypatch.setattr("basinax.neighbors.table.padded_size", _coarse_size)
    monkeypatch.setattr("basinax.neighbors.rooms.own_room", _ample_room(512))


@pytest.fixture
def few_short_shapes(few_shapes, monkeypatch):
    """As `few_shapes`, where short ranges need few slots, and pairs of slots take much memory."""
    monkeypatch.setattr("basinax.neighbors.rooms.own_room", _ample_room(64))


@pytest.fixture
def one_shape(monkeypatch):
    """Batches of one shape, where the host evaluates, so that few programs are compiled."""
    monkeypatch.setattr("basinax.engine.groups.shape_of_batches", lambda *_: (64, 4))


@pytest.fixture
def few_places(monkeypatch):
    """Batches with room for four structures of some ten atoms, alike or not, which close up
    where others fit behind them."""
    monkeypatch.setattr("basinax.structures.machine.CPU.max_rows", 48)
    monkeypatch.setattr("basinax.structures.machine.CPU.few_rows", BLOCK)
    monkeypatch.setattr("basinax.structures.machine.CPU.alike", np.inf)
    monkeypatch.setattr("basinax.structures.machine.CPU.worth_closing_up", 1.0)
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 1)


def _ample_room(n_slots: int):
    """Whatever a table needs, it has at least so much room."""

    def room(needs, n_rows, *, is_lean):
        del n_rows, is_lean
        ample = zip(needs, (n_slots, 32768, 4096), strict=True)
        return Room(*(_coarse_size(*pair) for pair in ample))

    return room


def _coarse_size(n: int, least: int = 1, steps: int = 1) -> int:
    """The next number at or above `n` that is `least` times a power of eight."""
    del steps
    size = least
    while size < n:
        size *= 8
    return size
