"""kUPS 1.0.8 beside basinax: bits of a batch against each system alone, and time.

Bits: 24 systems of 1 to 40 rows, each in a bowl of its own, take 200 steps (L-BFGS 60) in a jitted
loop; then every second system alone. Counted are the systems whose positions differ at the end, for
four optimizers with a limit, in both precisions: 96 comparisons for each library.
Time: 256 rattled argon cells of 32 atoms, Lennard-Jones, FIRE, float64, to fmax 0.005 eV/Å, in one
process: processor seconds, without those of compiling (kUPS: of a run of four steps; basinax: the
second call).

kUPS needs Python 3.12 or newer: `pip install kups==1.0.8`, then `python benchmarks/beside_kups.py`.
"""

import functools
import tempfile
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import kups.application.simulations.relax as kups_simulation
import numpy as np
import optax
from _timing import report
from ase.build import bulk
from kups.application.relaxation.data import RelaxRunConfig, RelaxState, relax_state_from_ase
from kups.application.relaxation.simulation import make_relax_propagator, run_relax
from kups.application.simulations.potentials import LjPotentialConfig
from kups.core.data import Table
from kups.core.data.index import Index
from kups.core.lens import identity_lens
from kups.core.neighborlist import UniversalNeighborlistParameters
from kups.relaxation import transforms
from kups.relaxation.config import make_optimizer
from kups.relaxation.optimizer import apply_updates as kups_apply_updates, chain as kups_chain

import basinax
from basinax import FIRE, FIRE2, LBFGS, ClipByGlobalNorm, GradientDescent, MaxStepSize, chain
from basinax.atoms import LennardJones, relax

FMAX = 0.005
MAX_STEPS = 600

OPTIMIZERS = {
    "FIRE": (
        lambda: kups_chain(
            optax.scale(-1.0),
            transforms.ClipByGlobalNorm(max_norm=3.0),
            transforms.ScaleByFire(dt_start=0.1),
            transforms.MaxStepSize(max_step_size=0.2),
        ),
        lambda: chain(ClipByGlobalNorm(3.0), FIRE(), MaxStepSize(0.2)),
    ),
    "FIRE2": (
        lambda: kups_chain(
            optax.scale(-1.0),
            transforms.ScaleByFire2(dt_start=0.05),
            transforms.MaxStepSize(max_step_size=0.2),
        ),
        lambda: chain(FIRE2(), MaxStepSize(0.2)),
    ),
    "LBFGS": (
        lambda: kups_chain(
            transforms.ScaleByAseLbfgs(memory_size=10),
            optax.scale(-1.0),
            transforms.MaxStepSize(max_step_size=0.2),
        ),
        lambda: chain(LBFGS(memory=10), MaxStepSize(0.2)),
    ),
    "clip": (
        lambda: kups_chain(transforms.ClipByGlobalNorm(max_norm=0.5), optax.scale(-0.3)),
        lambda: chain(ClipByGlobalNorm(0.5), GradientDescent(0.3)),
    ),
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    rows = []
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype is np.float64):  # kUPS takes no float32 beside float64
            rows += [bits(name, dtype) for name in OPTIMIZERS]
    report("kups_bits", rows)
    report("kups_time", [times()])


def bits(name: str, dtype: type) -> dict:
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 41, 24)
    starts = draw.standard_normal((sizes.sum(), 3)).astype(dtype)
    stiffness = np.exp(draw.uniform(-2, 2, starts.shape)).astype(dtype)
    n_steps = 60 if name == "LBFGS" else 200
    theirs, ours = OPTIMIZERS[name]
    runs = {
        "kUPS": functools.partial(run_kups, theirs, n_steps),
        "basinax": functools.partial(run_basinax, ours, n_steps),
    }
    ends = np.cumsum(sizes)
    found = {"optimizer": name, "dtype": np.dtype(dtype).name, "compared": len(sizes[::2])}
    for library, run in runs.items():
        batch = run(starts, stiffness, np.repeat(np.arange(len(sizes)), sizes))
        differ = 0
        for end, size in zip(ends[::2], sizes[::2], strict=True):
            rows = slice(end - size, end)
            alone = run(starts[rows], stiffness[rows], np.zeros(size, int))
            differ += not np.array_equal(alone, batch[rows])
        found[f"{library} differ"] = differ
    return found


def run_kups(make, n_steps: int, x, stiffness, ids) -> np.ndarray:
    optimizer = make()
    x, stiffness = jnp.asarray(x), jnp.asarray(stiffness)
    state = optimizer.init(x, Index.integer(ids, n=int(ids.max()) + 1))

    def step(_, carry):
        x, state = carry
        updates, state = optimizer.update(basinax.rounded(stiffness * x), state, x)
        return kups_apply_updates(x, updates), state

    return np.asarray(
        jax.jit(lambda *carry: jax.lax.fori_loop(0, n_steps, step, carry))(x, state)[0]
    )


def run_basinax(make, n_steps: int, x, stiffness, ids) -> np.ndarray:
    optimizer = make()
    x, stiffness = jnp.asarray(x), jnp.asarray(stiffness)
    arrays, rest = eqx.partition(optimizer.init(x, basinax.SystemIndex.from_ids(ids)), eqx.is_array)

    def step(_, carry):
        x, arrays = carry
        gradient = basinax.rounded(stiffness * x)
        updates, state = optimizer.update(gradient, eqx.combine(arrays, rest), x)
        return basinax.apply_updates(x, updates), eqx.filter(state, eqx.is_array)

    return np.asarray(
        jax.jit(lambda *carry: jax.lax.fori_loop(0, n_steps, step, carry))(x, arrays)[0]
    )


def times(n_systems: int = 256) -> dict:
    structures = []
    for k in range(n_systems):
        atoms = bulk("Ar", "fcc", 5.26 * (0.97 + 0.01 * (k % 7)), cubic=True).repeat(2)
        atoms.rattle(0.1, seed=k)
        structures.append(atoms)
    argon = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
    run = functools.partial(relax, structures, argon, FIRE(), fmax=FMAX, max_steps=MAX_STEPS)
    run()  # compiles
    seconds, result = processor_seconds(run)
    relaxed_by_kups(structures, 4)  # each call compiles, the first one more
    few, after_few = processor_seconds(lambda: relaxed_by_kups(structures, 4))
    all_, after_all = processor_seconds(lambda: relaxed_by_kups(structures, MAX_STEPS))
    n_steps, n_few = int(after_all.step[0]), int(after_few.step[0])
    theirs = (all_ - few) / (n_steps - n_few) * n_steps
    largest = np.linalg.norm(np.asarray(after_all.particles.data.forces), axis=1).max()
    if not (result.converged.all() and largest < FMAX * 3**0.5):  # kUPS may judge components
        raise AssertionError(f"not relaxed: kUPS {largest} eV/Å, basinax {result.fmax.max()}")
    return {
        "systems": len(structures),
        "kUPS steps": n_steps,
        "basinax steps": int(result.steps.max()),
        "kUPS cpu s": theirs,
        "basinax cpu s": seconds,
        "ratio": theirs / seconds,
    }


def processor_seconds(call):
    begin = time.process_time()
    result = jax.block_until_ready(call())
    return time.process_time() - begin, result


def relaxed_by_kups(structures, max_steps: int) -> RelaxState:
    lens = identity_lens(RelaxState)
    optimizer = make_optimizer(
        [
            {"transform": "scale", "step_size": -1.0},
            {"transform": "scale_by_fire", "dt_start": 0.1},
            {"transform": "max_step_size", "max_step_size": 0.2},
        ]
    )
    potential, cutoff = LjPotentialConfig(
        cutoff=8.5, parameters={"Ar": (3.40, 0.0104)}, mixing_rule="lorentz_berthelot"
    ).build(lens, kups_simulation.POSITIONS_ONLY)
    propagator, init = make_relax_propagator(
        lens, potential, optimizer, kups_simulation.POSITIONS_ONLY
    )
    pairs = [relax_state_from_ase(atoms) for atoms in structures]
    particles, systems = Table.union(*map(list, zip(*pairs, strict=True)))
    lists = UniversalNeighborlistParameters.estimate(
        particles.data.system.counts, systems, cutoff, multiplier=1.0
    )
    start = RelaxState(
        particles=particles,
        systems=systems,
        neighborlist_params=lists,
        opt_state=init(particles, systems),
        step=jnp.array([0]),
    )
    with tempfile.TemporaryDirectory() as folder:
        config = RelaxRunConfig(
            out_file=str(Path(folder, "out.h5")),
            max_steps=max_steps,
            seed=0,
            force_tolerance=FMAX,
            optimize_cell=False,
            optimizer=["_"],
        )
        return run_relax(jax.random.key(0), propagator, start, config)


if __name__ == "__main__":
    main()
