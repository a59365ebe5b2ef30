"""Relaxing without each trick for the compiler (`basinax.numerics.xla`): what each is worth.

Workloads: 256 argon cells of 32 atoms (Lennard-Jones, FIRE), 64 metals of 4 to 16 atoms of one or
two elements (EMT, FIRE), and 1000 fits of three parameters (the core, LBFGS). A figure is the
processor time of all threads without a trick, divided by that with all, each the median of some
calls in turns; programs are loaded from a cache of the run, so that compiling counts for nothing.
Results must be the same bits.

    python benchmarks/ablation.py [ROUNDS] [WORKLOAD...]
"""

import functools
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import report
from ase import Atoms
from ase.build import bulk

import basinax
from basinax import LBFGS, SystemIndex, segment
from basinax.atoms import EMT, LennardJones, relax
from basinax.numerics import xla

ROUNDS = 5


def argon() -> Any:
    cells = [bulk("Ar", cubic=True, a=5.3) * (2, 2, 2) for _ in range(256)]
    for seed, cell in enumerate(cells):
        cell.rattle(0.15, seed=seed)
    result = relax(cells, LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5), fmax=0.02)
    return [a.positions for a in result.atoms], result.energies


def metals() -> Any:
    result = relax([_metal(seed) for seed in range(64)], EMT(), fmax=0.02)
    return [a.positions for a in result.atoms], result.energies


def _metal(seed: int) -> Atoms:
    draw = np.random.default_rng(seed)
    first, second = draw.choice(["Cu", "Ni", "Pd", "Ag", "Pt", "Au"], 2, replace=False)
    cell = bulk(str(first), cubic=True) * (1, 1, 1 + seed % 4)
    if seed % 2:
        cell.symbols[::4] = str(second)
    cell.rattle(0.1, seed=seed)
    return cell


@functools.cache
def _fits() -> tuple[Any, Any, Any]:
    draw = np.random.default_rng(0)
    index = SystemIndex.from_sizes([3] * 1000)
    stiffness = jnp.asarray(draw.uniform(0.5, 50, size=3000))
    return index, stiffness, jnp.asarray(draw.normal(size=3000))


def fit(x: Any) -> Any:
    index, stiffness, _ = _fits()
    bent = basinax.rounded(stiffness * x)
    squares = basinax.rounded(bent * x) * 0.5
    return segment.sum(squares + jnp.sin(x), index), bent + jnp.cos(x)


def fits() -> Any:
    index, _, start = _fits()
    result = basinax.relax(fit, start, LBFGS(), index_prefix=index, fmax=1e-9, max_steps=60)
    return result.params, result.energies


WORKLOADS: dict[str, Callable[[], Any]] = {"argon": argon, "metals": metals, "fits": fits}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    arguments = sys.argv[1:]
    rounds = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else ROUNDS
    with tempfile.TemporaryDirectory() as programs:
        jax.config.update("jax_compilation_cache_dir", programs)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        report(
            "ablation", [row for name in arguments or WORKLOADS for row in rows_of(name, rounds)]
        )


def rows_of(name: str, rounds: int) -> list[dict[str, Any]]:
    workload, rows = WORKLOADS[name], []
    for trick in xla.SWITCHES:
        with_all, without, same = [], [], True
        for _ in range(rounds):
            seconds, bits = timed(workload)
            with_all.append(seconds)
            with xla.without(trick):
                seconds, other = timed(workload)
            without.append(seconds)
            same &= bits == other
        ratio = statistics.median(without) / statistics.median(with_all)
        rows.append({"workload": name, "without": trick, "times": ratio, "same bits": same})
        print(rows[-1], flush=True)
    return rows


def timed(workload: Callable[[], Any]) -> tuple[float, str]:
    """Seconds of all threads of a second call, and what its result hashes to."""
    jax.clear_caches()
    workload()
    begin = time.process_time()
    result = jax.device_get(workload())
    seconds = time.process_time() - begin
    arrays = [np.asarray(x).tobytes() for x in jax.tree.leaves(result)]
    return seconds, hashlib.sha256(b"".join(arrays)).hexdigest()


if __name__ == "__main__":
    main()
