"""What `clip_by_norm` costs beside optax, over the whole tree and per system.

float32 rows of three components, all systems above their limits, so that every one is scaled. Timed
are jitted calls, arguments on the device, compiled before. "global" is `clip_by_norm` with
`index_prefix=None` against `optax.clip_by_global_norm` on the same array; "per system" is one call
for a batch of systems of 1 to 60 rows against one call of optax a system (of a sample, times the
number of systems). "copy" is `x + 1`. Both answers are compared before anything is timed.

Where a large array lies in memory moves each of these times by up to a half, and not together:
"global" is measured on several arrays at a time, and each column is its median over them.
"""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _timing import medians, report

import basinax

MAX_NORM = 0.5
SAMPLE = 100
PLACES = 15


def main() -> None:
    draw = np.random.default_rng(0)
    rows = [_whole(draw, shape) for shape in [(30, 3), (3000, 3), (300_000, 3), (1000, 1000)]]
    for n_systems in (1, 10, 100, 1000, 10_000):
        for layout, align in (("aligned", 8), ("general", 1)):
            rows.append(_batch(draw, n_systems, layout, align))
    report("clipping", rows)


def _whole(draw, shape):
    clip, alone = jax.jit(lambda x: basinax.clip_by_norm(x, MAX_NORM).tree), jax.jit(_optax)
    arrays = [jnp.asarray(draw.normal(size=shape), jnp.float32) for _ in range(PLACES)]
    rows = []
    for x in arrays:
        ours, theirs = functools.partial(clip, x), functools.partial(alone, x)
        np.testing.assert_allclose(ours(), theirs(), rtol=1e-4)
        rows.append(_row("global", str(shape), ours, theirs, x, 1, seconds=0.3))
    numbers = [name for name, value in rows[0].items() if isinstance(value, float)]
    return rows[0] | {name: statistics.median(row[name] for row in rows) for name in numbers}


def _batch(draw, n_systems, layout, align):
    sizes = draw.integers(1, 61, n_systems)
    index = basinax.SystemIndex.from_sizes(sizes, align=align)
    x = draw.normal(size=(index.n_rows, 3)) * np.asarray(index.has_system())[:, None]
    x = jnp.asarray(x, jnp.float32)
    clip = jax.jit(lambda x, index: basinax.clip_by_norm(x, MAX_NORM, index).tree)
    ours = functools.partial(clip, x, index)
    of_system = np.split(np.argsort(np.asarray(index.ids), kind="stable"), np.cumsum(sizes))[:-1]
    alone = jax.jit(_optax)
    systems = [x[at] for at in of_system[:SAMPLE]]
    got = np.asarray(ours())
    for at, system in zip(of_system[:SAMPLE], systems, strict=False):
        np.testing.assert_allclose(got[at], alone(system), rtol=1e-4)
    theirs = lambda: [alone(system) for system in systems]  # noqa: E731
    return _row("per system", f"{n_systems} {layout}", ours, theirs, x, n_systems / len(systems))


def _row(mode, what, ours, theirs, x, factor, seconds=1.0):
    copy = functools.partial(_copy, x)
    times = medians({"ours": ours, "optax": theirs, "copy": copy}, seconds=seconds)
    return {
        "mode": mode,
        "what": what,
        "us": times["ours"] * 1e6,
        "optax us": times["optax"] * 1e6 * factor,
        "of optax": times["ours"] / (times["optax"] * factor),
        "copies": times["ours"] / times["copy"],
    }


@jax.jit
def _copy(x):
    return x + 1


def _optax(x):
    return optax.clip_by_global_norm(MAX_NORM).update(x, optax.EmptyState())[0]


if __name__ == "__main__":
    main()
