"""Cores are counted in one way: those that the system lets a process use."""

import os

import pytest

from basinax.engine.groups import n_cores_used
from basinax.numerics.processor import n_cores


@pytest.mark.parametrize("count", [n_cores, n_cores_used])
def test_only_cores_that_the_process_may_use_are_counted(count, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert count() == 3


@pytest.mark.parametrize(("found", "expected"), [(6, 6), (None, 1)])
def test_where_a_system_does_not_tell_all_cores_are_counted(found, expected, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: found)
    assert n_cores() == expected
