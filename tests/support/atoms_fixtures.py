"""What tests over atoms may ask for."""

import jax
import pytest

from basinax.engine import hosted
from basinax.models import programs, session
from basinax.numerics import xla
from basinax.structures.machine import CPU
from xla import AS_USERS

SHORT_ROWS, _TURN = CPU.short_rows, hosted._turn


@pytest.fixture
def as_users(short_runs, monkeypatch):
    """Short runs are compiled as they are for users."""
    monkeypatch.setattr("basinax.structures.machine.CPU.short_rows", SHORT_ROWS)
    monkeypatch.setattr("basinax.engine.hosted._turn", _TURN)


@pytest.fixture
def models_as_users(monkeypatch):
    """Models are compiled as users compile them."""
    options = xla.REPEATABLE | AS_USERS
    program = jax.jit(programs.evaluate.__wrapped__, compiler_options=options, static_argnums=0)
    monkeypatch.setattr(session, "evaluate", program)
    monkeypatch.setattr(session, "prepare", lambda *_: None)
