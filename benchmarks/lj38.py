"""Evaluations that optimizers need from random LJ38 clusters, after OptBench.

1000 random clusters of 38 atoms, Lennard-Jones without cutoff, reduced units, float64; a cluster is
done when the norm of all its forces is at most 0.01, and has failed after 10,000 evaluations, or if
it has lost atoms. Every optimizer relaxes the same clusters as one batch. What takes longest is run
again in a batch of its own, which changes no bit. ASE runs the first clusters one by one beside it.

Clusters are grown as OptBench grows its own: atoms at random in a box that grows with their number,
none nearer than 0.8 and none farther than 1.3 bond lengths (0.62) from the next; from our own seed.
OptBench's table (henkelmangroup/optbench, minimization, LJ38) has means of 176 to 181 for the best
L-BFGS, 355 for ASE's, 463 for ASE's BFGS, 656 for ASE's FIRE, and 79 for Newton.

    python benchmarks/lj38.py [--systems 1000] [--sample 20] [--only NAME ...]
"""

import argparse
import time
import warnings

import ase.optimize
import jax
import jax.numpy as jnp
import numpy as np
from _timing import report
from ase.optimize.optimize import Optimizer
from ase.utils.abc import Optimizable

import basinax
from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    Adam,
    Armijo,
    BFGSLineSearch,
    ConjugateGradient,
    ForceNorm,
    GradientDescent,
    LBFGSLineSearch,
    MaxStepSize,
    MDMin,
    SystemIndex,
    chain,
    relax,
    rounded,
)

N_ATOMS, PADDED = 38, 40
TOLERANCE = 0.01
CAP = 10_000
FIRST_CAP = 600
BOUND = -120.0
"""A cluster that ends higher has lost atoms: no force is left, and it has failed all the same."""

OPTIMIZERS = {
    "LBFGS": LBFGS(),
    "LBFGS memory 50": LBFGS(memory=50),
    "LBFGS memory 20": LBFGS(memory=20),
    "LBFGS memory 5": LBFGS(memory=5),
    "LBFGS maxstep 0.1": LBFGS(maxstep=0.1),
    "LBFGS.ase": LBFGS.ase(),
    "LBFGSLineSearch": LBFGSLineSearch(),
    "LBFGSLineSearch Armijo": LBFGSLineSearch(search=Armijo()),
    "ConjugateGradient": ConjugateGradient(),
    "FIRE": FIRE(),
    "FIRE2": FIRE2(),
    "FIRE2 ABC": FIRE2(use_abc=True),
    "MDMin": MDMin(dt=0.05),
    "Barzilai-Borwein": chain(GradientDescent(1e-4, barzilai_borwein=True), MaxStepSize(0.1)),
    "Adam": Adam(0.02),
    "BFGS": BFGS(),
    "BFGSLineSearch": BFGSLineSearch(),
}
ASE_OPTIMIZERS = {
    "ASE LBFGS": ase.optimize.LBFGS,
    "ASE BFGS": ase.optimize.BFGS,
    "ASE FIRE": ase.optimize.FIRE,
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("--systems", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=20)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    clusters = grown_clusters(arguments.systems)
    for name, optimizer in OPTIMIZERS.items():
        if not arguments.only or name in arguments.only:
            report("lj38", [row(name, *relaxed(optimizer, clusters))])
    for name, optimizer in ASE_OPTIMIZERS.items():
        if not arguments.only or name in arguments.only:
            evaluated = ase_relaxed(optimizer, clusters[: arguments.sample])
            report("lj38", [row(name, *evaluated)])


def row(name, evaluations, converged, seconds) -> dict:
    return {
        "optimizer": name,
        "systems": len(evaluations),
        "mean": float(np.mean(evaluations)),
        "median": float(np.median(evaluations)),
        "min": int(np.min(evaluations)),
        "max": int(np.max(evaluations)),
        "failed": int((~converged).sum()),
        "seconds": seconds,
    }


def grown_clusters(count: int) -> np.ndarray:
    draw = np.random.default_rng(38)
    return np.array([_grown(draw) for _ in range(count)])


def _grown(draw, radius=0.31, packing=0.1) -> np.ndarray:
    atoms = np.zeros((1, 3))
    while len(atoms) < N_ATOMS:
        volume = (len(atoms) + 1) * 4 / 3 * np.pi * radius / packing
        atom = draw.uniform(-0.5, 0.5, 3) * volume ** (1 / 3)
        nearest = np.linalg.norm(atoms - atom, axis=1).min()
        if 0.8 < nearest / (2 * radius) < 1.3:
            atoms = np.concatenate([atoms, [atom]])
    return atoms


def lennard_jones(positions):
    """Energies and gradients of all clusters; pairs are added atom by atom."""
    x = positions.reshape(-1, PADDED, 3)[:, :N_ATOMS]
    energy, gradient = jnp.zeros(x.shape[:2]), jnp.zeros_like(x)
    for k in range(N_ATOMS):
        away = x - x[:, k : k + 1]
        squares = rounded(away * away)
        r2 = squares[..., 0] + squares[..., 1] + squares[..., 2]
        inverse = jnp.where(jnp.arange(N_ATOMS) == k, 0, rounded(1 / r2))
        i6 = rounded(inverse * inverse * inverse)
        i12 = rounded(i6 * i6)
        energy = energy + 2 * (i12 - i6)
        slope = rounded(rounded(-24 * (2 * i12 - i6)) * inverse)
        gradient = gradient + rounded(slope[..., None] * away)
    gradient = jnp.pad(gradient, ((0, 0), (0, PADDED - N_ATOMS), (0, 0)))
    return segment_sum(energy), gradient.reshape(positions.shape)


def segment_sum(energy):
    index = SystemIndex.from_sizes([N_ATOMS] * energy.shape[0])
    return index.sum(energy.reshape(-1))


def relaxed(optimizer, clusters):
    begin = time.perf_counter()
    evaluations, is_done, is_over = _relaxed(optimizer, clusters, FIRST_CAP)
    rest = np.flatnonzero(~is_over)
    if len(rest):
        evaluations[rest], is_done[rest], _ = _relaxed(optimizer, clusters[rest], CAP)
    return evaluations, is_done, time.perf_counter() - begin


def _relaxed(optimizer, clusters, cap):
    padded = np.pad(clusters, ((0, 0), (0, PADDED - N_ATOMS), (0, 0)))
    result = relax(
        lennard_jones,
        jnp.asarray(padded.reshape(-1, 3)),
        optimizer,
        index_prefix=SystemIndex.from_sizes([N_ATOMS] * len(clusters), align=8),
        convergence=ForceNorm(TOLERANCE),
        max_steps=cap,
    )
    evaluations, energies = np.array(result.evaluations), np.array(result.energies)
    is_done = np.array(result.converged) & (energies < BOUND) & (evaluations <= CAP)
    return evaluations, is_done, np.array(result.status != basinax.Status.MAX_STEPS.code)


class Cluster(Optimizable):
    """A cluster for ASE's optimizers, with the same potential; it counts its evaluations."""

    def __init__(self, positions):
        self.x, self.evaluations, self.known = positions.ravel().copy(), 0, None

    def ndofs(self):
        return self.x.size

    def get_x(self):
        return self.x.copy()

    def set_x(self, x):
        self.x, self.known = x.copy(), None

    def _evaluated(self):
        if self.known is None:
            self.evaluations += 1
            x = self.x.reshape(-1, 3)
            away = x[:, None] - x[None]
            r2 = (away**2).sum(-1)
            np.fill_diagonal(r2, np.inf)
            i6 = r2**-3
            slope = -24 * (2 * i6 * i6 - i6) / r2
            self.known = 2 * (i6 * i6 - i6).sum(), (slope[..., None] * away).sum(1).ravel()
        return self.known

    def get_value(self):
        return self._evaluated()[0]

    def get_gradient(self):
        return self._evaluated()[1].copy()

    def iterimages(self):
        return iter(())

    def converged(self, gradient, fmax):
        return np.linalg.norm(gradient) < fmax


def ase_relaxed(optimizer: type[Optimizer], clusters):
    begin = time.perf_counter()
    evaluations, converged = [], []
    for positions in clusters:
        cluster = Cluster(positions)
        with warnings.catch_warnings(action="ignore"), optimizer(cluster, logfile=None) as run:
            has_converged = run.run(fmax=TOLERANCE, steps=CAP)
            converged.append(bool(has_converged) and cluster.get_value() < BOUND)
        evaluations.append(cluster.evaluations)
    return np.array(evaluations), np.array(converged), time.perf_counter() - begin


if __name__ == "__main__":
    main()
