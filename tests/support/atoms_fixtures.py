"""What tests over atoms may ask for."""

import jax
import pytest

from basinax.models import programs, session
from basinax.numerics import xla
from xla import AS_USERS


@pytest.fixture
def exhaustively_as_users(request, monkeypatch):
    """In exhaustive cells, programs of the library are compiled wholly as users compile them."""
    if request.node.get_closest_marker("exhaustive"):
        monkeypatch.setitem(xla.SWITCHES, "options", True)
        for name, value in AS_USERS.items():
            monkeypatch.setitem(xla.ALWAYS, name, value)


@pytest.fixture
def as_users(exhaustively_as_users, monkeypatch):
    """Programs of the library have the options that they have for users."""
    monkeypatch.setitem(xla.SWITCHES, "options", True)


@pytest.fixture
def models_as_users(monkeypatch):
    """Models are compiled as users compile them."""
    options = xla.REPEATABLE | AS_USERS
    program = jax.jit(programs.evaluate.__wrapped__, compiler_options=options, static_argnums=0)
    monkeypatch.setattr(session, "evaluate", program)
    monkeypatch.setattr(session, "prepare", lambda *_: None)
