"""What a step of a transform costs, beside the usual formulation and a copy of the array.

10,000 systems of 1 to 60 rows of three components, float32. Timed is one jitted update, arguments
on the device, compiled before. "scatter" is the same algorithm over `vmap(vdot)` and
`jax.ops.segment_sum`, as other batched libraries write it; it does not keep the bits. Both answers
are compared before anything is timed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _timing import medians, report

import basinax

N_SYSTEMS = 10_000
MAX_NORM = 4.0


def main() -> None:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 61, N_SYSTEMS)
    rows = []
    for layout, align in (("aligned", 8), ("general", 1)):
        index = basinax.SystemIndex.from_sizes(sizes, align=align)
        gradient, velocity = (_random_rows(draw, index) for _ in range(2))
        copy = functools.partial(jax.jit(lambda x: x + 1), gradient)
        for name, ours, theirs in (
            ("clip", *_clips(index, gradient)),
            ("fire", *_fires(index, gradient, velocity)),
        ):
            for got, expected in zip(
                jax.tree.leaves(ours()), jax.tree.leaves(theirs()), strict=True
            ):
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
            times = medians({"ours": ours, "scatter": theirs, "copy": copy})
            rows.append(
                {
                    "transform": name,
                    "layout": layout,
                    "ms": times["ours"] * 1e3,
                    "scatter ms": times["scatter"] * 1e3,
                    "of scatter": times["ours"] / times["scatter"],
                    "copies": times["ours"] / times["copy"],
                }
            )
    report("transforms", rows)


def _random_rows(draw, index):
    rows = draw.normal(size=(index.n_rows, 3)) * np.asarray(index.has_system())[:, None]
    return jnp.asarray(rows, jnp.float32)


def _clips(index, gradient):
    clip = basinax.ClipByGlobalNorm(MAX_NORM)
    state = clip.init(gradient, index)
    ours = jax.jit(lambda g, s: clip.update(g, s)[0])

    @jax.jit
    def theirs(g, ids):
        norms = jnp.sqrt(_segment_dot(g, g, ids))
        factor = jnp.minimum(1.0, MAX_NORM / norms)
        return g * _spread(factor, ids)

    return lambda: ours(gradient, state), lambda: theirs(gradient, index.ids)


def _fires(index, gradient, velocity):
    fire = basinax.FIRE()
    state = fire.init(gradient, index)
    state = basinax.FIREState(
        index, velocity, jnp.ones_like(state.has_velocity), state.dt, state.a, state.n_downhill + 6
    )
    update = jax.jit(lambda g, s: fire.update(g, s))

    def ours():
        step, after = update(gradient, state)
        return step, after.velocities, after.dt, after.a, after.n_downhill

    @jax.jit
    def theirs(g, v, dt, a, n_downhill, ids):
        force = -g
        power = _segment_dot(force, v, ids)
        ff, vv = _segment_dot(force, force, ids), _segment_dot(v, v, ids)
        downhill = power > 0
        mix = jnp.where(downhill, a * jnp.sqrt(vv) / jnp.sqrt(ff), 0.0)
        keep = jnp.where(downhill, 1 - a, 0.0)
        settled = downhill & (n_downhill > fire.Nmin)
        dt = jnp.where(settled, jnp.minimum(dt * fire.finc, fire.dtmax), dt)
        dt = jnp.where(downhill, dt, dt * fire.fdec)
        a = jnp.where(settled, a * fire.fa, jnp.where(downhill, a, fire.astart))
        v = _spread(keep, ids) * v + _spread(mix + dt, ids) * force
        step = _spread(dt, ids) * v
        norms = jnp.sqrt(_segment_dot(step, step, ids))
        step = step * _spread(jnp.where(norms > fire.maxstep, fire.maxstep / norms, 1.0), ids)
        return step, v, dt, a, jnp.where(downhill, n_downhill + 1, 0)

    arguments = (state.dt, state.a, state.n_downhill, index.ids)
    return ours, lambda: theirs(gradient, velocity, *arguments)


def _segment_dot(x, y, ids):
    return jax.ops.segment_sum(jax.vmap(jnp.vdot)(x, y), ids, N_SYSTEMS)


def _spread(values, ids):
    return values.at[ids].get(mode="fill", fill_value=0.0)[:, None]


if __name__ == "__main__":
    main()
