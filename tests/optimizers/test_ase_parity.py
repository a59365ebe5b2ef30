"""The optimizers that have ASE's names take ASE's steps, on ASE's calculators.

Positions are compared at steps 1, 2, 5, 10, 20 and 30, and the number of evaluations at each of the
steps. What is left is rounding, which the dynamics amplifies: at most 4e-10 Å in any of them.
"""

import ase.optimize
import ase.optimize.fire2
import ase.optimize.lbfgs
import pytest

from basinax import BFGS, FIRE, FIRE2, LBFGS, BFGSLineSearch, LBFGSLineSearch, MDMin, MoreThuente
from cover import cover, exhaustive
from follow_ase import PROBLEMS, ROWS, checked_steps_of_ase, compare, follow

TOLERANCE = 1e-8  # Å, as docs/choosing.md says

PAIRS = {
    "FIRE": (FIRE(), ase.optimize.FIRE, {}),
    "FIRE2": (FIRE2(), ase.optimize.fire2.FIRE2, {}),
    "ABC-FIRE": (FIRE2(use_abc=True), ase.optimize.fire2.FIRE2, {"use_abc": True}),
    "MDMin": (MDMin(), ase.optimize.MDMin, {}),
    "LBFGS": (LBFGS.ase(), ase.optimize.LBFGS, {}),
    "BFGS": (BFGS(max_rows=ROWS), ase.optimize.BFGS, {}),
    "LBFGSLineSearch": (LBFGSLineSearch(), ase.optimize.lbfgs.LBFGSLineSearch, {}),
    "BFGSLineSearch": (BFGSLineSearch(max_rows=ROWS), ase.optimize.BFGSLineSearch, {}),
}


@pytest.mark.parametrize(*cover("name, problem", PAIRS.keys(), PROBLEMS.keys(), strength=1))
def test_steps_and_evaluations_are_those_of_ase(name, problem, recorded):
    ours, theirs, settings = PAIRS[name]
    atoms = PROBLEMS[problem]()
    expected = recorded(checked_steps_of_ase, theirs, atoms, 0.01, 31, **settings)
    got = follow(ours, PROBLEMS[problem](), 0.01, 31)
    apart, has_equal_counts = compare(got, expected)
    assert has_equal_counts
    assert max(apart) < TOLERANCE


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (
            FIRE2(dt=0.2, maxstep=0.1, dtmax=0.5, dtmin=0.01, Nmin=3, finc=1.2, fdec=0.6, fa=0.9),
            ase.optimize.fire2.FIRE2,
            {"dt": 0.2, "maxstep": 0.1, "dtmax": 0.5, "dtmin": 0.01, "Nmin": 3}
            | {"finc": 1.2, "fdec": 0.6, "fa": 0.9},
        ),
        (MDMin(dt=0.3, maxstep=0.05), ase.optimize.MDMin, {"dt": 0.3, "maxstep": 0.05}),
        exhaustive(
            LBFGS(0.1, 3, 0.9, 40.0, is_scaled=False, curvature=-2.0),
            ase.optimize.LBFGS,
            {"maxstep": 0.1, "memory": 3, "damping": 0.9, "alpha": 40.0},
        ),
        (
            BFGS(maxstep=0.1, alpha=40.0, max_rows=ROWS),
            ase.optimize.BFGS,
            {"maxstep": 0.1, "alpha": 40.0},
        ),
        (
            BFGSLineSearch(20.0, MoreThuente(0.1, 0.1, 0.3, 20.0), max_rows=ROWS),
            ase.optimize.BFGSLineSearch,
            {"alpha": 20.0, "maxstep": 0.1, "c1": 0.1, "c2": 0.3, "stpmax": 20.0},
        ),
    ],
    ids=["FIRE2", "MDMin", "LBFGS", "BFGS", "BFGSLineSearch"],
)
def test_settings_mean_what_they_mean_in_ase(ours, theirs, settings, recorded):
    atoms = PROBLEMS["LJ13"]()
    expected = recorded(checked_steps_of_ase, theirs, atoms, 0.01, 31, **settings)
    apart, has_equal_counts = compare(follow(ours, PROBLEMS["LJ13"](), 0.01, 31), expected)
    assert has_equal_counts
    assert max(apart) < TOLERANCE
