"""Fewer programs to compile, which is what takes the time of these tests."""

import pytest


@pytest.fixture
def few_shapes(monkeypatch):
    """Batches of a few sizes, and lists as long as any before: a shape is a program.

    Relaxations have 64 rows and 16 systems at least, alone too, so that a small batch may run the
    program of one system. Tests of shapes, and those of whole relaxations, keep the real ones.
    """

    def of_relaxations(n: int, least: int | None = None) -> int:
        return _coarse_size(n, 16 if least is None else 64)

    monkeypatch.setattr("basinax.atoms._batch.padded_size", _coarse_size)
    monkeypatch.setattr("basinax.atoms._relax.padded_size", of_relaxations)
    monkeypatch.setattr("basinax.atoms._neighbors.CAPACITY_TO_SPARE", 1000)


def _coarse_size(n: int, least: int = 1) -> int:
    """The next number at or above `n` that is `least` times a power of eight."""
    size = least
    while size < n:
        size *= 8
    return size
