"""Levenberg and Marquardt's method: the minima of published problems, and the bits of each fit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from basinax import FIRE, EnergyChange, LevenbergMarquardt, SystemIndex, relax, sum_of_squares
from cases import DTYPES
from cover import exhaustive, named_daily, one_in

USUAL = LevenbergMarquardt()


def fitted(residuals, starts, data=None, optimizer=USUAL, **options):
    """Fits of one row of parameters each, all with the same data."""
    curves = SystemIndex.from_sizes([1] * len(starts))
    of_data = ()
    if data is not None:
        columns = tuple(jnp.tile(jnp.asarray(x), len(starts)) for x in data)
        of_data = columns, SystemIndex.from_sizes([len(data[0])] * len(starts))
    model = sum_of_squares(residuals)
    return relax(
        lambda x: model(x, curves, *of_data),
        jnp.asarray(starts, float),
        optimizer,
        index_prefix=curves,
        has_extras=True,
        **({"fmax": 1e-6, "max_steps": 500} | options),
    )


# --- problems of the Statistical Reference Datasets of NIST (https://www.itl.nist.gov/div898/strd)


def numbers(text: str) -> np.ndarray:
    return np.array(text.split(), float)


class Reference(NamedTuple):
    curve: object
    x: np.ndarray
    y: np.ndarray
    starts: list
    certified: np.ndarray
    deviations: np.ndarray
    squares: float


def rise(b, x):
    return b[0] * (1 - jnp.exp(-b[1] * x))


def quotient(b, x):
    above = b[0] + x * (b[1] + x * (b[2] + x * b[3]))
    return above / (1 + x * (b[4] + x * (b[5] + x * b[6])))


MISRA1A = Reference(
    rise,
    numbers("""77.6 114.9 141.1 190.8 239.9 289.0 332.8 378.4 434.8 477.3 536.8 593.1 689.1
    760.0"""),
    numbers("""10.07 14.73 17.94 23.93 29.61 35.18 40.02 44.82 50.76 55.05 61.01 66.40 75.47
    81.78"""),
    [[500, 0.0001], [250, 0.0005]],
    numbers("2.3894212918e+02 5.5015643181e-04"),
    numbers("2.7070075241e+00 7.2668688436e-06"),
    1.2455138894e-01,
)

THURBER = Reference(
    quotient,
    numbers("""-3.067 -2.981 -2.921 -2.912 -2.840 -2.797 -2.702 -2.699 -2.633 -2.481 -2.363 -2.322
    -1.501 -1.460 -1.274 -1.212 -1.100 -1.046 -0.915 -0.714 -0.566 -0.545 -0.400 -0.309 -0.109
    -0.103 0.010 0.119 0.377 0.790 0.963 1.006 1.115 1.572 1.841 2.047 2.200"""),
    numbers("""80.574 84.248 87.264 87.195 89.076 89.608 89.868 90.101 92.405 95.854 100.696 101.060
    401.672 390.724 567.534 635.316 733.054 759.087 894.206 990.785 1090.109 1080.914 1122.643
    1178.351 1260.531 1273.514 1288.339 1327.543 1353.863 1414.509 1425.208 1421.384 1442.962
    1464.350 1468.705 1447.894 1457.628"""),
    [[1000, 1000, 400, 40, 0.7, 0.3, 0.03], [1300, 1500, 500, 75, 1, 0.4, 0.05]],
    numbers("""1.2881396800e+03 1.4910792535e+03 5.8323836877e+02 7.5416644291e+01
    9.6629502864e-01 3.9797285797e-01 4.9727297349e-02"""),
    numbers("""4.6647963344e+00 3.9571156086e+01 2.8698696102e+01 5.5675370270e+00
    3.1333340687e-02 1.4984928198e-02 6.5842344623e-03"""),
    5.6427082397e03,
)


@pytest.mark.parametrize(
    "problem", named_daily({"Misra1a": MISRA1A, "Thurber": THURBER}, ["Misra1a"])
)
def test_certified_values_are_found_from_both_starts(problem):
    def residuals(b, is_row, points, is_point):
        x, y = points
        return problem.curve(b[0], x) - y

    result = fitted(residuals, problem.starts, (problem.x, problem.y), fmax=1e-5)
    assert result.converged.all()
    for k in range(2):
        # NIST gives eleven digits.
        np.testing.assert_allclose(result.params[k], problem.certified, rtol=1e-9)
        assert 2 * result.energies[k] == pytest.approx(problem.squares, rel=1e-10)
        n = len(problem.certified)
        normal = np.asarray(result.extras[k])[:n, :n]
        variance = 2 * float(result.energies[k]) / (len(problem.x) - n)
        deviations = np.sqrt(variance * np.diag(np.linalg.inv(normal)))
        np.testing.assert_allclose(deviations, problem.deviations, rtol=1e-4)


# --- problems of J. J. Moré, B. S. Garbow and K. E. Hillstrom, ACM Trans. Math. Softw. 7, 17 (1981)

BARD = numbers("0.14 0.18 0.22 0.25 0.29 0.32 0.35 0.39 0.37 0.58 0.73 0.96 1.34 2.10 4.39")
KOWALIK = numbers(".1957 .1947 .1735 .16 .0844 .0627 .0456 .0342 .0323 .0235 .0246")
U = np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def rosenbrock(x, xp):
    return xp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def freudenstein_roth(x, xp):
    a, b = x
    return xp.stack([a - 13 + ((5 - b) * b - 2) * b, a - 29 + ((b + 1) * b - 14) * b])


def powell_singular(x, xp):
    a, b, c, d = x
    root = 10**0.5
    return xp.stack([a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, root * (a - d) ** 2])


def helical_valley(x, xp):
    a, b, c = x
    turn = xp.arctan2(b, a) / (2 * np.pi)
    return xp.stack([10 * (c - 10 * turn), 10 * (xp.sqrt(a * a + b * b) - 1), c])


def bard(x, xp):
    u = np.arange(1.0, 16)
    v = 16 - u
    return BARD - (x[0] + u / (v * x[1] + np.minimum(u, v) * x[2]))


def kowalik_osborne(x, xp):
    return KOWALIK - x[0] * (U * U + U * x[1]) / (U * U + U * x[2] + x[3])


PROBLEMS = {
    rosenbrock: ([-1.2, 1.0], 0.0),
    freudenstein_roth: ([0.5, -2.0], 48.98425),
    powell_singular: ([3.0, -1.0, 0.0, 1.0], 0.0),
    helical_valley: ([-1.0, 0.0, 0.0], 0.0),
    bard: ([1.0, 1.0, 1.0], 8.214877e-3),
    kowalik_osborne: ([0.25, 0.39, 0.415, 0.39], 3.075056e-4),
}


@pytest.mark.parametrize(
    "problem", one_in(2, [pytest.param(problem, id=problem.__name__) for problem in PROBLEMS])
)
def test_minima_are_those_of_scipy(problem):
    start, squares = PROBLEMS[problem]
    result = fitted(lambda x, is_row: problem(x[0], jnp), [start], fmax=1e-8)
    assert result.converged.all()
    assert 2 * result.energies[0] == pytest.approx(squares, rel=1e-6, abs=1e-10)
    theirs = scipy.optimize.least_squares(
        lambda x: problem(x, np), start, method="lm", ftol=1e-12, xtol=1e-12, gtol=1e-12
    )
    assert result.energies[0] == pytest.approx(theirs.cost, rel=1e-8, abs=1e-10)


# --- each fit by itself

DRAW = np.random.default_rng(0)
TERMS = (1, 3, 2, 1, 2)
"""How many decays a curve is the sum of: rows of its parameters."""
TIMES = [np.sort(DRAW.uniform(0, 4, n)) for n in (9, 40, 23, 4, 30)]
TRUTH = [DRAW.uniform(0.5, 3, (n, 2)) for n in TERMS]
CURVES = [
    (a * np.exp(-k * t[:, None])).sum(1) + DRAW.normal(0, 0.01, len(t))
    for (a, k), t in zip((x.T for x in TRUTH), TIMES, strict=True)
]
STARTS = [x * DRAW.uniform(0.5, 1.5, x.shape) for x in TRUTH]


def decays(x, is_row, points, is_point):
    t, y = points
    terms = x[None, :, 0] * jnp.exp(-x[None, :, 1] * t[:, None])
    return jnp.where(is_row[None], terms, 0.0).sum(1) - y


DECAYS = sum_of_squares(decays)
EVERYONE = (3, 0, 1, 2, 3, 4)


@functools.cache
def ends(systems, dtype, *, spoiled=False):
    """Of each fit, all that `relax` says.

    Args:
        spoiled: the first begins at NaN.
    """
    index = SystemIndex.from_sizes([TERMS[k] for k in systems])
    points = SystemIndex.from_sizes([len(TIMES[k]) for k in systems])
    start = np.concatenate([STARTS[k] for k in systems])
    if spoiled:
        start[0] = np.nan
    data = tuple(
        jnp.asarray(np.concatenate([x[k] for k in systems]), dtype) for x in (TIMES, CURVES)
    )

    def ended(start):
        return relax(
            lambda x: DECAYS(x, index, data, points),
            start,
            LevenbergMarquardt(),
            index_prefix=index,
            has_extras=True,
            convergence=EnergyChange(1e-7),
            max_steps=40,
        )

    result = jax.jit(ended)(jnp.asarray(start, dtype))
    whole = result.energies, result.steps, result.evaluations, result.status, result.fmax
    ids = np.asarray(index.ids)
    return [
        [np.asarray(x)[at] for x in whole]
        + [np.asarray(x)[ids == at] for x in (result.params, result.gradients)]
        for at in range(len(systems))
    ]


ORDER = (4, 2, 0, 1)


@pytest.mark.parametrize(
    ("dtype", "orders"),
    [
        pytest.param(np.float64, [], id="float64"),
        *(exhaustive(dtype, [ORDER], id=f"{dtype.__name__}, reordered") for dtype in DTYPES),
    ],
)
def test_each_fit_has_the_bits_that_it_has_alone(dtype, orders):
    broken, *together = ends(EVERYONE, dtype, spoiled=True)
    assert np.isnan(broken[0])
    batches = [together, *(dict(zip(order, ends(order, dtype), strict=True)) for order in orders)]
    differing = []
    for k in (1, 0) if orders else (1,):
        (alone,) = ends((k,), dtype)
        differing += [k for some in batches if not all(map(np.array_equal, alone, some[k]))]
    assert differing == []
    steps = [of_one[1] for of_one in together]
    assert len(set(map(int, steps))) > 2, "all stop together"


def test_fits_of_several_curves_end_where_those_of_scipy_do():
    for k in (0, 3):

        def residuals(x, t=TIMES[k], y=CURVES[k]):
            return x[0] * np.exp(-x[1] * t) - y

        theirs = scipy.optimize.least_squares(residuals, STARTS[k][0], method="lm")
        ours = ends(EVERYONE, np.float64, spoiled=True)[1 + k]
        np.testing.assert_allclose(ours[5][0], theirs.x, rtol=1e-3)
        assert ours[0] == pytest.approx(theirs.cost, rel=1e-5)


def test_a_trial_that_is_not_finite_is_refused_and_the_damping_grows():
    """A Gauss-Newton step from 2 would lead to where the logarithm is none."""
    found = fitted(
        lambda x, is_row: jnp.log(x[0]) + 3.0, [[2.0]], optimizer=LevenbergMarquardt(1e-6)
    )
    assert found.converged.all() and found.evaluations[0] > found.steps[0] + 1
    assert float(found.params[0, 0]) == pytest.approx(np.exp(-3.0), rel=1e-5)


def test_single_precision_takes_few_more_evaluations():
    """JᵀJ falls to a ten-thousandth on the way, and the damping must fall below that."""
    t = jnp.linspace(0, 10, 16, dtype=np.float32)
    model = sum_of_squares(lambda x, _: x[0, 0] * jnp.exp(x[0, 1] * t) - 2 * jnp.exp(-0.5 * t))
    index, start = SystemIndex.from_sizes([1]), jnp.array([[1.0, 0.5]], np.float32)
    options = {"index_prefix": index, "has_extras": True, "fmax": 1e-4}
    result = relax(lambda x: model(x, index), start, USUAL, **options)
    assert result.converged.all()
    assert result.evaluations[0] <= 20  # 75 with the damping bounded by 64 spacings of floats
    np.testing.assert_allclose(result.params, [[2.0, -0.5]], atol=1e-4)


def test_a_parameter_without_effect_stays_where_it_is():
    found = fitted(lambda x, is_row: x[0, :1] ** 2 - 2.0, [[1.0, 7.0]])
    assert found.converged.all() and found.params[0, 1] == 7.0


def test_what_is_missing_is_named():
    index = SystemIndex.from_sizes([1])

    def model(x):
        return 0.5 * (x * x)[:, 0], x

    with pytest.raises(TypeError, match="sum_of_squares"):
        relax(model, jnp.ones((1, 1)), LevenbergMarquardt(), index_prefix=index)
    with pytest.raises(ValueError, match="lead with the 4 rows of the data"):
        fitted(lambda x, is_row, data, is_point: x[0], [[1.0]], ([1.0, 2.0, 3.0],))
    with pytest.raises(ValueError, match="tau must be positive"):
        LevenbergMarquardt(0.0)


@pytest.mark.parametrize("sizes", [[], [0], [0, 1]])
def test_systems_without_rows_are_fitted(sizes):
    index = SystemIndex.from_sizes(sizes)
    model = sum_of_squares(lambda x, is_row: jnp.where(is_row[:, None], x - 1.0, 0.0))
    found = relax(
        lambda x: model(x, index),
        jnp.ones((index.n_rows, 2)),
        LevenbergMarquardt(),
        index_prefix=index,
        has_extras=True,
    )
    assert found.converged.all() and found.steps.shape == (len(sizes),)


def test_padding_does_not_move():
    index, params = SystemIndex.from_ids([0, -1, 1], 2), jnp.array([[1.0], [7.0], [2.0]])
    energies, gradient, normal = sum_of_squares(lambda x, is_row: jnp.sin(x[0]))(params, index)
    state = USUAL.init(params, index)
    step, _ = jax.jit(USUAL.update)(gradient, state, params, energies=energies, extras=normal)
    assert step[1] == 0.0 and (step[jnp.array([0, 2])] != 0.0).all()


def test_any_optimizer_takes_the_model():
    found = fitted(lambda x, is_row: x[0] - 2.0, [[1.0, 3.0]], optimizer=FIRE())
    assert found.converged.all()
