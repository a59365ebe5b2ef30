"""What every test over atoms may ask for."""

import jax
import pytest

from basinax._bits import xla
from basinax.atoms._machine import CPU
from basinax.atoms._models import programs, session
from basinax.atoms._streams import hosted
from shapes import few_lengths, few_places, few_shapes, few_short_shapes
from xla import AS_USERS

__all__ = ["as_users", "few_lengths", "few_places", "few_shapes", "few_short_shapes"]

SHORT_ROWS, _TURN = CPU.short_rows, hosted._turn


@pytest.fixture
def as_users(short_runs, monkeypatch):
    """Short runs are compiled as they are for users."""
    monkeypatch.setattr("basinax.atoms._machine.CPU.short_rows", SHORT_ROWS)
    monkeypatch.setattr("basinax.atoms._streams.hosted._turn", _TURN)


@pytest.fixture
def models_as_users(monkeypatch):
    """Models are compiled as users compile them."""
    options = xla.REPEATABLE | AS_USERS
    program = jax.jit(programs.evaluate.__wrapped__, compiler_options=options, static_argnums=0)
    monkeypatch.setattr(session, "evaluate", program)
