"""What ASE does is found in the files, or the difference between them."""

import numpy as np
import pytest

from recorded import Recording


def path(end, n=3):
    return {"positions": np.linspace(0.0, end, n), "steps": n}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Of two tests, of which one asks twice."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    for name, ends in (("a", [1.0, 2.0]), ("b", [3.0])):
        record = Recording(tmp_path / "of_ase.npz", name, "record")
        for end in ends:
            record(path, end)
    return tmp_path / "of_ase.npz"


def test_what_was_recorded_is_read_in_the_order_of_the_calls(file):
    kept = Recording(file, "a", "kept")
    ends = [kept(path, 0.0)["positions"][-1] for _ in range(2)]
    assert ends == [1.0, 2.0]
    assert Recording(file, "b", "kept")(path, 0.0)["steps"] == 3


@pytest.mark.parametrize(("end", "n"), [(1.0 + 1e-7, 3), (1.0, 4), (np.nan, 3)])
def test_another_path_is_found(file, end, n):
    assert Recording(file, "a", "again")(path, 1.0 + 1e-12)["positions"][-1] == 1.0 + 1e-12
    with pytest.raises(AssertionError, match=r"of_ase\.npz: a 0"):
        Recording(file, "a", "again")(path, end, n)


@pytest.mark.parametrize("mode", ["kept", "again"])
def test_what_was_not_recorded_is_named(file, mode):
    with pytest.raises(AssertionError, match=r"of_ase.npz .* c 0"):
        Recording(file, "c", mode)(path, 1.0)
    with pytest.raises(ValueError, match="got 'never'"):
        Recording(file, "c", "never")
