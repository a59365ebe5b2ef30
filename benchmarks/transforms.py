"""What a step of a transform costs, beside the usual formulation and a copy of the array.

10,000 systems of 1 to 60 rows of three components, float32. Timed is one jitted update, arguments
on the device, compiled before; for L-BFGS with ten pairs, one of 16 in a loop. "scatter" is the
same algorithm over `vmap(vdot)` and `jax.ops.segment_sum`, as other batched libraries write it; it
does not keep the bits. Both answers are compared before anything is timed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from _timing import medians, report

import basinax

N_SYSTEMS = 10_000
MAX_NORM = 4.0
LONGEST = 0.5
MEMORY = 10
IN_A_LOOP = 16


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
            ("max step", *_step_limits(index, gradient)),
            ("fire", *_fires(index, gradient, velocity)),
            ("l-bfgs", *_lbfgs(index, gradient)),
        ):
            times = medians({"ours": ours, "scatter": theirs, "copy": copy})
            if name == "l-bfgs":
                times |= {who: times[who] / IN_A_LOOP for who in ("ours", "scatter")}
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


def _check(got, expected) -> None:
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)


def _clips(index, gradient):
    clip = basinax.ClipByGlobalNorm(MAX_NORM)
    state = clip.init(gradient, index)
    ours = jax.jit(lambda g, s: clip.update(g, s)[0])

    @jax.jit
    def theirs(g, ids):
        norms = jnp.sqrt(_segment_dot(g, g, ids))
        factor = jnp.minimum(1.0, MAX_NORM / norms)
        return g * _spread(factor, ids)

    _check(ours(gradient, state), theirs(gradient, index.ids))
    return lambda: ours(gradient, state), lambda: theirs(gradient, index.ids)


def _step_limits(index, step):
    limit = basinax.MaxStepSize(LONGEST)
    state = limit.init(step, index)
    ours = jax.jit(lambda u, s: limit.update(u, s)[0])

    @jax.jit
    def theirs(u, ids):
        longest = jax.ops.segment_max(jnp.linalg.norm(u, axis=1), ids, N_SYSTEMS)
        return u * _spread(jnp.minimum(1.0, LONGEST / longest), ids)

    _check(ours(step, state), theirs(step, index.ids))
    return lambda: ours(step, state), lambda: theirs(step, index.ids)


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
    _check(ours(), theirs(gradient, velocity, *arguments))
    return ours, lambda: theirs(gradient, velocity, *arguments)


def _lbfgs(index, start):
    """An update with a full history, against the two-loop recursion over one pair after another.

    In the loop many systems converge until their squares leave float32, and are taken again.
    """
    lbfgs = basinax.LBFGS(memory=MEMORY)
    stiffness = jnp.linspace(1.0, 30.0, start.size, dtype=start.dtype).reshape(start.shape)

    def plain_turn(params, state):
        step, state = lbfgs.update(basinax.rounded(stiffness * params), state, params)
        return basinax.apply_updates(params, step), state

    turn = jax.jit(plain_turn)
    params, state = start, lbfgs.init(start, index)
    for _ in range(MEMORY + 1):
        params, state = turn(params, state)
    update = jax.jit(lambda g, s, x: lbfgs.update(g, s, x)[0])
    gradient = stiffness * params

    @jax.jit
    def theirs(gradient, params, last_gradient, last_params, s, y, ids):
        s = jnp.concatenate([s[1:], (params - last_params)[None]])
        y = jnp.concatenate([y[1:], (gradient - last_gradient)[None]])
        rho = [1 / _segment_dot(s[i], y[i], ids) for i in range(MEMORY)]
        q, alpha = gradient, {}
        for i in reversed(range(MEMORY)):
            alpha[i] = rho[i] * _segment_dot(s[i], q, ids)
            q = q - _spread(alpha[i], ids) * y[i]
        z = q * _spread(1 / (rho[-1] * _segment_dot(y[-1], y[-1], ids)), ids)
        for i in range(MEMORY):
            beta = rho[i] * _segment_dot(y[i], z, ids)
            z = z + _spread(alpha[i] - beta, ids) * s[i]
        longest = jax.ops.segment_max(jnp.linalg.norm(z, axis=1), ids, N_SYSTEMS)
        limit = jnp.where(longest >= lbfgs.maxstep, lbfgs.maxstep / longest, 1.0)
        return -z * _spread(limit, ids), s, y

    # A few of the smallest systems have converged and refuse pairs. Of the others, slot 0 holds the
    # oldest, which is replaced now.
    history = state.histories[0]
    pairs = (state.gradient, state.params, history.s, history.y)
    expected = theirs(gradient, params, *pairs, index.ids)[0]
    is_full = _spread(history.pushes == MEMORY, index.ids)[:, 0] & jnp.isfinite(expected).all(1)
    differences = jnp.abs(update(gradient, state, params) - expected)[is_full]
    assert float(is_full.mean()) > 0.8
    assert float(jnp.quantile(differences, 0.99)) < 0.01 * lbfgs.maxstep

    # In a loop, as in a relaxation: the history's memory is used again from step to step.
    @jax.jit
    def ours_in_a_loop(params, state):
        return jax.lax.fori_loop(0, IN_A_LOOP, lambda _, carry: plain_turn(*carry), (params, state))

    @jax.jit
    def theirs_in_a_loop(params, pairs):
        def turn(_, carry):
            params, (last_gradient, last_params, s, y) = carry
            gradient = stiffness * params
            step, s, y = theirs(gradient, params, last_gradient, last_params, s, y, index.ids)
            return params + step, (gradient, params, s, y)

        return jax.lax.fori_loop(0, IN_A_LOOP, turn, (params, pairs))

    return lambda: ours_in_a_loop(params, state), lambda: theirs_in_a_loop(params, pairs)


def _segment_dot(x, y, ids):
    return jax.ops.segment_sum(jax.vmap(jnp.vdot)(x, y), ids, N_SYSTEMS)


def _spread(values, ids):
    return values.at[ids].get(mode="fill", fill_value=0.0)[:, None]


if __name__ == "__main__":
    main()
