"""What ASE's optimizers and filters do, kept in files: they take as long as a program to compile.

    def test_steps_are_those_of_ase(recorded):
        theirs = recorded(walk_of_ase, ase.optimize.FIRE, atoms, fmax=0.01)

has the arrays that this call returned when it was recorded. Tests with this fixture have the
mark `recorded`. With `BASINAX_TESTS_ASE=again` ASE runs and is compared with the files, so that
another ASE and a wrong file are found: `.ci/run` does. This writes the files of some tests:

    BASINAX_TESTS_ASE=record pytest -n 0 -m "" tests/test_fire.py
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODE = os.environ.get("BASINAX_TESTS_ASE", "kept")
FOLDER = Path(__file__).parent / "data" / "ase"
TOLERANCE = 1e-8
"""In Å and eV: another BLAS rounds in another way, and steps make that larger."""

Arrays = Mapping[str, np.ndarray]


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[..., Arrays]:
    if MODE not in ("kept", "again", "record"):
        raise ValueError(f"BASINAX_TESTS_ASE is 'kept', 'again' or 'record', got {MODE!r}")
    file, name = FOLDER / f"{request.path.stem}.npz", request.node.name
    kept = _read(file) if file.exists() else {}
    count = 0

    def take(run: Callable[..., Arrays], *args: Any, **kwargs: Any) -> Arrays:
        nonlocal count
        prefix, count = f"{name} {count} ", count + 1
        found = {key.removeprefix(prefix): x for key, x in kept.items() if key.startswith(prefix)}
        if MODE == "kept":
            assert found, f"{file.name} has nothing of {prefix}: record it (tests/recorded.py)"
            return found
        expected = {key: np.asarray(value) for key, value in run(*args, **kwargs).items()}
        if MODE == "record":
            _write(file, prefix, expected)
        else:
            assert found.keys() == expected.keys(), f"{file.name} is not of {prefix}"
            for key, value in expected.items():
                np.testing.assert_allclose(found[key], value, rtol=0, atol=TOLERANCE, err_msg=key)
        return expected

    return take


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
