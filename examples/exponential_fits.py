"""Fit a thousand decays a·exp(−k·t), each with its own points, by Levenberg and Marquardt's method.

Each fit has the bits that it has alone.

    python examples/exponential_fits.py
"""

import jax
import jax.numpy as jnp
import numpy as np

from basinax import LevenbergMarquardt, SystemIndex, relax, sum_of_squares

jax.config.update("jax_enable_x64", True)

draw = np.random.default_rng(0)
truth = np.stack([draw.uniform(1, 3, 1000), draw.uniform(0.5, 2, 1000)], axis=1)
times = [np.sort(draw.uniform(0, 3, draw.integers(8, 33))) for _ in truth]
noise = [draw.normal(0, 0.01, len(t)) for t in times]
values = [a * np.exp(-k * t) + e for (a, k), t, e in zip(truth, times, noise, strict=True)]


def residuals(curve, is_row, points, is_point):
    """Of one curve: its one row of parameters is a and k, its points stand beside."""
    (a, k), (t, y) = curve[0], points
    return a * jnp.exp(-k * t) - y


def fit(times, values):
    curves = SystemIndex.from_sizes([1] * len(times))
    points = SystemIndex.from_sizes([len(t) for t in times])
    data = jnp.asarray(np.concatenate(times)), jnp.asarray(np.concatenate(values))
    model = sum_of_squares(residuals)
    return relax(
        lambda params: model(params, curves, data, points),
        jnp.ones((len(times), 2)),
        LevenbergMarquardt(),
        index_prefix=curves,
        has_extras=True,
        fmax=1e-8,
    )


result = fit(times, values)
assert result.converged.all()
assert np.abs(result.params - truth).max() < 0.2
print(f"1000 fits, {result.evaluations.min()} to {result.evaluations.max()} evaluations each")

# The normal matrix JᵀJ at the minimum gives standard deviations of the parameters.
freedom = np.array([len(t) - 2 for t in times])
variances = 2 * np.asarray(result.energies) / freedom
covariance = np.linalg.inv(result.extras) * variances[:, None, None]
a, k = np.asarray(result.params[17])
of_a, of_k = np.sqrt(np.diagonal(covariance[17]))
print(f"curve 17: a = {a:.4f} ± {of_a:.4f}, k = {k:.4f} ± {of_k:.4f}; drawn {truth[17]}")

alone = fit(times[17:18], values[17:18])
assert np.array_equal(alone.params[0], result.params[17])
