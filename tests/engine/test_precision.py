"""A precision that a user may not have meant is said."""

import jax
import numpy as np
import pytest
from ase.build import bulk

from basinax import FIRE
from basinax.atoms import LennardJones, evaluate, relax, vibrations
from basinax.numerics import settings

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(settings, "_said", set())


def run(**settings):
    relax([bulk("Ar", a=5.3)], LennardJones(**ARGON), FIRE(), **settings)


def test_single_precision_by_default_is_said_once():
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="single precision"):
            run()
        run()


def test_single_precision_that_was_asked_for_is_not_said():
    run(dtype="float32")


@pytest.mark.parametrize(("dtype", "fmax"), [("float32", 1e-6), ("float64", 1e-15)])
def test_an_fmax_below_the_rounding_of_forces_is_said(dtype, fmax):
    with pytest.warns(UserWarning, match=f"fmax={fmax:.3g} eV/Å is less than"):
        run(dtype=dtype, fmax=np.array([fmax]))


def test_no_tolerance_at_all_is_no_mistake():
    run(dtype="float32", fmax=0.0, max_steps=3)


def test_positions_that_single_precision_rounds_coarsely_are_said():
    crystal = bulk("Ar", a=5.3)
    crystal.positions += 1e5
    with pytest.warns(UserWarning, match="so far from the origin that float32 rounds .* 0.01 Å"):
        evaluate([crystal], LennardJones(**ARGON), dtype="float32")
    evaluate([crystal], LennardJones(**ARGON))


@pytest.mark.parametrize(
    "call",
    [
        lambda potential, crystal: relax([crystal], potential, max_steps=0),
        lambda potential, crystal: evaluate([crystal], potential),
        lambda potential, crystal: vibrations([crystal], potential),
        lambda potential, crystal: potential.calculator().get_potential_energy(crystal),
    ],
    ids=["relax", "evaluate", "vibrations", "calculator"],
)
def test_parameters_of_single_precision_in_a_run_of_double_are_said(call):
    """Where the potential was made before the switch of precision."""
    crystal = bulk("Ar", a=5.3)
    with jax.enable_x64(False):
        argon = LennardJones(**ARGON)
    with pytest.warns(UserWarning, match="parameters of LennardJones.* are float32"):
        call(argon, crystal)
    relax([crystal], argon, max_steps=0, dtype="float32")
