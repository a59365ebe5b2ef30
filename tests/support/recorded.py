"""What ASE's optimizers and filters do, kept in files: they take as long as a program to compile.

    def test_steps_are_those_of_ase(recorded):
        theirs = recorded(walk_of_ase, ase.optimize.FIRE, atoms, fmax=0.01)

has the arrays that this call returned when it was recorded. Exhaustive tests call ASE. Tests with
this fixture have the mark `recorded`; with `BASINAX_TESTS_ASE=again` ASE runs in all of them and is
compared with the files, so that another ASE and a wrong file are found: `.ci/run` does. This writes
the files of some tests:

    BASINAX_TESTS_ASE=record pytest -n 0 tests/optimizers/test_fire.py
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODE = os.environ.get("BASINAX_TESTS_ASE", "kept")
FOLDER = Path(__file__).parents[1] / "data" / "ase"
TOLERANCE = 1e-8
"""In Å and eV: another BLAS rounds in another way, and steps make that larger."""

Arrays = Mapping[str, np.ndarray]


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., Arrays]:
    if request.node.get_closest_marker("exhaustive"):
        return lambda run, *args, **kwargs: _arrays(run(*args, **kwargs))
    return Recording(FOLDER / f"{request.path.stem}.npz", request.node.name, MODE)


class Recording:
    """Calls of one test, told apart by their order."""

    def __init__(self, file: Path, name: str, mode: str):
        if mode not in ("kept", "again", "record"):
            raise ValueError(f"BASINAX_TESTS_ASE is 'kept', 'again' or 'record', got {mode!r}")
        self.file, self.name, self.mode, self.count = file, name, mode, 0
        self.kept = _read(file) if file.exists() else {}

    def __call__(self, run: Callable[..., Arrays], *args: Any, **kwargs: Any) -> Arrays:
        prefix, self.count = f"{self.name} {self.count} ", self.count + 1
        kept = {k.removeprefix(prefix): x for k, x in self.kept.items() if k.startswith(prefix)}
        if self.mode == "kept":
            assert kept, f"{self.file.name} has nothing of {prefix}: see tests/support/recorded.py"
            return kept
        found = _arrays(run(*args, **kwargs))
        if self.mode == "record":
            _write(self.file, prefix, found)
            return found
        assert kept.keys() == found.keys(), f"{self.file.name} does not fit {prefix}"
        for key, value in found.items():
            message = f"{self.file.name}: {prefix}{key}"
            np.testing.assert_allclose(kept[key], value, rtol=0, atol=TOLERANCE, err_msg=message)
        return found


def _arrays(found: Arrays) -> Arrays:
    return {key: np.asarray(value) for key, value in found.items()}


def _read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _write(file: Path, prefix: str, arrays: dict[str, np.ndarray]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise ValueError("workers would write over each other's files: record with pytest -n 0")
    old = _read(file) if file.exists() else {}
    others = {key: value for key, value in old.items() if not key.startswith(prefix)}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **others | {prefix + key: value for key, value in arrays.items()})
