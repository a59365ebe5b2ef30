"""FIRE follows ASE's FIRE: each system of a batch as ASE moves it alone.

Forces come from the same NumPy functions for both, so nothing but the optimizer can differ. What is
left is rounding: ASE sums and multiplies in another order, a few 1e-16 a step of at most 0.2, which
the contracting dynamics of these problems amplifies by less than a factor of 1e4 in 50 steps.
"""

import functools

import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from basinax import FIRE, SystemIndex, relax, rounded, segment
from cases import apply, update
from follow_ase import walk_of_ase

TOLERANCE = 1e-9
CHECKED = (1, 10, 50)


def bowl(seed, size):
    draw = np.random.default_rng(seed)
    stiffness, centre = draw.uniform(0.5, 20, (size, 3)), draw.normal(size=(size, 3))

    def evaluate(x):
        return 0.5 * (stiffness * (x - centre) ** 2).sum(), stiffness * (x - centre)

    return evaluate, centre + draw.normal(size=(size, 3))


def wells(seed, size):
    draw = np.random.default_rng(seed)
    tilt = 0.2 * draw.normal(size=(size, 3))

    def evaluate(x):
        return ((x**2 - 1) ** 2 / 4 + tilt * x).sum(), (x**2 - 1) * x + tilt

    return evaluate, draw.uniform(-0.5, 0.5, (size, 3))


def lennard_jones(seed, per_edge):
    """A cluster cut from a cubic lattice, which rearranges."""
    grid = np.arange(per_edge) * 1.15
    sites = np.stack(np.meshgrid(grid, grid, grid), axis=-1).reshape(-1, 3)

    def evaluate(x):
        vectors = x[:, None] - x[None]
        squares = (vectors**2).sum(-1)
        np.fill_diagonal(squares, np.inf)
        sixth = squares**-3
        slope = (24 * sixth - 48 * sixth**2) / squares
        return 2 * (sixth**2 - sixth).sum(), (slope[..., None] * vectors).sum(1)

    return evaluate, sites + 0.05 * np.random.default_rng(seed).normal(size=sites.shape)


PROBLEMS = [bowl(0, 5), wells(1, 9), lennard_jones(2, 2), bowl(3, 1), lennard_jones(4, 3)]

OPTIONS = {
    "defaults": {},
    "small steps": {"dt": 0.02, "maxstep": 0.05, "dtmax": 0.3},
    "eager": {"Nmin": 1, "finc": 1.3, "fdec": 0.3, "dtmax": 0.6},
    "mixing": {"a": 0.25, "astart": 0.3, "fa": 0.9},
}


class NumPyCalculator(Calculator):
    implemented_properties = ["energy", "forces"]  # noqa: RUF012, ASE's way to declare it

    def __init__(self, evaluate):
        super().__init__()
        self.evaluate = evaluate

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        energy, gradient = self.evaluate(self.atoms.positions)
        self.results = {"energy": energy, "forces": -gradient}


def by_ase(evaluate, start, fmax, steps, options=None):
    """Positions after the checked steps and the last one that ASE's FIRE makes."""
    atoms = Atoms(
        numbers=np.ones(len(start)), positions=start, calculator=NumPyCalculator(evaluate)
    )
    fire = functools.partial(ase.optimize.FIRE, **options or {})
    return walk_of_ase(fire, atoms, fmax, steps, CHECKED)


def by_basinax(fire, fmax, steps):
    """The same for all problems as one batch, and the steps after which each had converged."""
    starts = [start for _, start in PROBLEMS]
    index = SystemIndex.from_sizes([len(start) for start in starts])
    cuts = np.cumsum([len(start) for start in starts])[:-1]
    params = jnp.asarray(np.concatenate(starts))
    fire = jax.tree.map(np.asarray, fire)  # one program for all numbers
    state = fire.init(params, index)
    path, converged = [], {}
    for step in range(steps + 1):
        positions = np.split(np.asarray(params), cuts)
        path.append(positions)
        gradients = [evaluate(x)[1] for (evaluate, _), x in zip(PROBLEMS, positions, strict=True)]
        for at, gradient in enumerate(gradients):
            if np.linalg.norm(gradient, axis=1).max() < fmax:
                converged.setdefault(at, step)
        change, state = update(fire, np.concatenate(gradients), state, params)
        params = apply(params, change)
    return path, converged


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_positions_are_those_of_ase_at_steps_1_10_and_50(options, recorded):
    path, _ = by_basinax(FIRE(**options), 0.0, max(CHECKED))
    for at, (evaluate, start) in enumerate(PROBLEMS):
        theirs = recorded(by_ase, evaluate, start, 0.0, max(CHECKED), options)
        for step, expected in zip((*CHECKED, max(CHECKED)), theirs["positions"], strict=True):
            np.testing.assert_allclose(path[step][at], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_the_number_of_steps_is_that_of_ase(options, recorded):
    fmax, steps = 0.01, 300
    _, converged = by_basinax(FIRE(**options), fmax, steps)
    expected = {
        at: int(recorded(by_ase, evaluate, start, fmax, steps, options)["steps"])
        for at, (evaluate, start) in enumerate(PROBLEMS)
    }
    assert converged == {at: count for at, count in expected.items() if count < steps}


def test_options_per_system_are_those_of_each_run_of_ase(recorded):
    per_system = {
        "dt": [0.1, 0.05, 0.02, 0.1, 0.03],
        "maxstep": [0.2, 0.1, 0.05, 0.3, 0.1],
        "Nmin": [5, 1, 2, 3, 4],
        "fa": [0.99, 0.9, 0.95, 0.99, 0.8],
    }
    path, _ = by_basinax(FIRE(**{name: np.array(v) for name, v in per_system.items()}), 0.0, 50)
    for at, (evaluate, start) in enumerate(PROBLEMS):
        options = {name: values[at] for name, values in per_system.items()}
        expected = recorded(by_ase, evaluate, start, 0.0, 50, options)["positions"][-1]
        np.testing.assert_allclose(path[50][at], expected, rtol=0, atol=TOLERANCE)


def test_a_relaxation_makes_as_many_steps_as_ase(recorded):
    index = SystemIndex.from_sizes([4, 9, 1])
    draw = np.random.default_rng(5)
    stiffness, start = draw.uniform(0.5, 20, (14, 3)), draw.normal(size=(14, 3))

    def evaluate(x):
        gradient = rounded(jnp.asarray(stiffness) * x)
        return rounded(0.5 * segment.dot(gradient, x, index)), gradient

    result = relax(evaluate, jnp.asarray(start), FIRE(), index_prefix=index, fmax=0.01)
    for at, rows in enumerate((slice(0, 4), slice(4, 13), slice(13, 14))):

        def of_one(x, k=stiffness[rows]):
            return 0.5 * (k * x**2).sum(), k * x

        theirs = recorded(by_ase, of_one, start[rows], 0.01, 500)
        assert result.steps[at] == int(theirs["steps"])
        expected = theirs["positions"][-1]
        np.testing.assert_allclose(result.params[rows], expected, rtol=0, atol=TOLERANCE)
