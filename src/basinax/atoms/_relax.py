"""Relaxes ASE structures: packs them into batches, runs the loop, and keeps neighbour lists fresh.

How structures are grouped, when lists are rebuilt and how often the host looks at a run is chosen
for speed alone: no bit of a result depends on it.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from jaxtyping import Bool, Float, Int32

from basinax._optimizer import AbstractTransform
from basinax._relax import Run, advance, final_point, raise_unless_converged, start
from basinax._status import Status
from basinax.atoms._batch import Batch, batch_shape, checked, row_starts
from basinax.atoms._neighbors import Neighbors, NeighborTable, moved_too_far
from basinax.atoms.potentials import AbstractPotential
from basinax.transforms import FIRE

SKIN = 0.15
"""How much farther than the cutoff lists reach, as a part of it. A list costs as much as many
evaluations: with 0.15 most rattled crystals relax on their first one."""

MAX_ROWS = 2048
"""Rows of a batch, about: its arrays stay in a core's cache, and each core gets batches."""

TURNS = 20
"""Turns of the loop between two looks of the host at what waits for it."""

WORTH_COMPILING = 4_000_000
"""Pair slots a turn that a batch of its own must save to be worth a program of its own."""


class AtomsRelaxation(eqx.Module):
    """The result of `relax`; every field has one entry a structure, in the order of the input."""

    atoms: list[Atoms]
    """Copies at their last positions, with energy (eV) and forces (eV/Å) in a calculator."""
    energies: Float[np.ndarray, "systems"]
    """In eV."""
    fmax: Float[np.ndarray, "systems"]
    """The largest force on one atom in eV/Å; inf where it is not finite."""
    steps: Int32[np.ndarray, "systems"]
    """Steps made; a structure that is converged makes none."""
    evaluations: Int32[np.ndarray, "systems"]
    """Energies and forces computed."""
    status: Int32[np.ndarray, "systems"]
    """Codes of `Status`."""

    @property
    def converged(self) -> Bool[np.ndarray, "systems"]:
        return self.status == Status.CONVERGED


class Progress(eqx.Module):
    """How far a relaxation is."""

    n_systems: int
    n_converged: int
    n_failed: int
    """Ended without having converged."""

    @property
    def n_running(self) -> int:
        return self.n_systems - self.n_converged - self.n_failed


def relax(
    atoms: Iterable[Atoms],
    potential: AbstractPotential,
    optimizer: AbstractTransform | None = None,
    *,
    fmax: float | Sequence[float] | np.ndarray = 0.05,
    max_steps: int | Sequence[int] | np.ndarray = 500,
    dtype: Any = None,
    skin: float | None = None,
    keep_best: bool = False,
    progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    throw: bool = False,
) -> AtomsRelaxation:
    """Relax the positions of every structure, each as if it were alone.

    Args:
        atoms: at least one structure; they are not changed.
        potential: such as `LennardJones.named("Ar")`.
        optimizer: `FIRE()` if None.
        fmax: a structure has converged when no force on one of its atoms is as large (eV/Å).
        max_steps: after so many steps a structure ends unconverged. Both may be one a structure.
        dtype: float32 or float64; JAX's default float if None (float64 needs `jax_enable_x64`).
        skin: how much farther than the cutoff neighbour lists reach (Å), 0.15 of it if None;
            changes speed only.
        keep_best: return what does not converge at its point of lowest energy instead of the last.
        progress: called with a `Progress` as the run goes.
        should_stop: asked now and then; once it says so, the run ends and what has not is returned
            where it is, as `Status.RUNNING`.
        throw: raise if a structure does not converge, instead of leaving it to `status`.

    Raises:
        TypeError, ValueError, NotImplementedError: a structure or an argument is not usable; says
            which and why, before anything runs.
        RuntimeError: with `throw`, a structure did not converge.
    """
    atoms = checked(atoms)
    potential.check(Batch.from_atoms(atoms, dtype))
    optimizer = FIRE() if optimizer is None else optimizer
    skin = SKIN * potential.cutoff if skin is None else skin
    settings = _Settings(
        optimizer,
        _one_a_structure(fmax, "fmax", len(atoms)),
        _one_a_structure(max_steps, "max_steps", len(atoms)),
    )
    monitor = _Monitor(len(atoms), progress, should_stop)
    jobs = []
    for group in _grouped(atoms, potential.cutoff + skin):
        shape = np.max([batch_shape([len(atoms[i]) for i in members]) for members in group], axis=0)
        for members in group:
            batch = Batch.from_atoms([atoms[i] for i in members], dtype, *shape.tolist())
            jobs.append(_Job(members, batch, potential, settings, skin, keep_best, monitor))
    with ThreadPoolExecutor(_n_workers(len(jobs))) as pool:
        parts = list(pool.map(_Job.run, jobs))
    result = _in_order(atoms, jobs, parts)
    if throw:
        raise_unless_converged(result.status)
    return result


class _Settings(eqx.Module):
    """What may differ between structures; leaves are numbers or one a structure."""

    optimizer: AbstractTransform
    fmax: Any
    max_steps: Any

    def of(self, members: np.ndarray, n_atoms: int, n_systems: int) -> "_Settings":
        """The settings of these structures, for a batch with so many systems."""

        def choose(x):
            x = np.asarray(x) if isinstance(x, bool | int | float) else x
            if np.shape(x) != (n_atoms,):
                return x
            chosen = np.asarray(x)[members]
            return np.pad(chosen, (0, n_systems - len(members)), mode="edge")

        return jax.tree.map(choose, self)


class _Job:
    """One batch, from its first list to its last step."""

    def __init__(self, members, batch, potential, settings, skin, keep_best, monitor):
        self.members, self.batch, self.potential = members, batch, potential
        self.settings = settings.of(members, monitor.n_systems, batch.n_systems)
        self.skin, self.keep_best, self.monitor = skin, keep_best, monitor

    def run(self) -> Run:
        table = NeighborTable(self.batch, self.potential.cutoff, self.skin)
        neighbors = table.to_device()
        run = start(
            self.settings.optimizer,
            self.batch.positions,
            self.batch.index,
            keep_best=self.keep_best,
        )
        while True:
            run = _advance(
                self.potential, self.batch, neighbors, np.asarray(self.skin), run, self.settings
            )
            status, is_pending, has_moved = jax.device_get(
                (run.status, run.is_pending, run.has_moved)
            )
            is_running = status == Status.RUNNING
            self.monitor.report(self, status[: len(self.members)])
            if not is_running.any() or self.monitor.should_stop():
                return run
            is_waiting = is_running & is_pending & ~has_moved
            if is_waiting.any():
                batch = eqx.tree_at(lambda b: b.positions, self.batch, run.params)
                failed = table.rebuild(batch, is_waiting)
                neighbors = table.to_device()
                if failed.any():
                    status = np.where(failed, Status.NOT_FINITE, status).astype(np.int32)
                    run = eqx.tree_at(lambda r: r.status, run, jnp.asarray(status))


@eqx.filter_jit
def _advance(potential, batch, neighbors: Neighbors, skin, run: Run, settings: _Settings) -> Run:
    def evaluate(positions):
        properties = potential(eqx.tree_at(lambda b: b.positions, batch, positions), neighbors)
        is_stale = moved_too_far(positions, neighbors, batch.index, skin)
        return properties.energies, -properties.forces, ~is_stale

    return advance(
        evaluate, run, settings.optimizer, settings.fmax, settings.max_steps, turns=TURNS
    )


class _Monitor:
    """Adds up what the jobs report, and tells the caller one at a time."""

    def __init__(self, n_systems: int, progress: Any, should_stop: Callable[[], bool]):
        self.n_systems, self._progress, self.should_stop = n_systems, progress, should_stop
        self._counts: dict[Any, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def report(self, job: _Job, status: np.ndarray) -> None:
        if self._progress is None:
            return
        with self._lock:
            n_converged = int((status == Status.CONVERGED).sum())
            n_failed = int((status != Status.RUNNING).sum()) - n_converged
            self._counts[job] = n_converged, n_failed
            converged, failed = (sum(c) for c in zip(*self._counts.values(), strict=True))
            self._progress(Progress(self.n_systems, converged, failed))


def _n_workers(n_jobs: int) -> int:
    """One XLA program on CPU keeps about one core busy; another device takes one at a time."""
    return min(n_jobs, os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


def _one_a_structure(value: Any, name: str, n_atoms: int) -> np.ndarray:
    value = np.asarray(value)
    if value.shape not in ((), (n_atoms,)):
        raise ValueError(
            f"{name} must be a number or have one entry for each of the {n_atoms} structures, got"
            f" shape {value.shape}"
        )
    return value


def _grouped(atoms: list[Atoms], reach: float) -> list[list[np.ndarray]]:
    """Groups of batches of structures, given by their numbers; a group's batches share a program.

    Structures with many neighbours stand apart from those with few where that saves enough, and
    batches of a group hold about as many rows, so that they can have one shape.
    """
    rows = np.array([batch_shape([len(a)])[0] for a in atoms])
    slots = np.array([_expected_neighbors(a, reach) for a in atoms])
    order = np.argsort(-slots, kind="stable")
    groups, begin = [], 0
    for k in range(1, len(order) + 1):
        head = slots[order[begin]]
        saved = (head - slots[order[k:]]) * rows[order[k:]]
        is_last = k == len(order)
        if is_last or (slots[order[k]] * 2 <= head and saved.sum() > WORTH_COMPILING):
            groups.append(_split(order[begin:k], rows))
            begin = k
    return groups


def _split(members: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Parts of about equal numbers of rows, each no more than about `MAX_ROWS`."""
    ends = np.cumsum(rows[members])
    n_parts = -(-int(ends[-1]) // MAX_ROWS)
    part = np.minimum((ends - rows[members] // 2) * n_parts // ends[-1], n_parts - 1)
    return [members[part == p] for p in range(n_parts) if (part == p).any()]


def _expected_neighbors(a: Atoms, reach: float) -> float:
    """About how many atoms lie within `reach` of one: by density, where there is a volume."""
    periodic = np.asarray(a.cell)[a.pbc]
    if len(periodic) == 0:
        return len(a)
    measure = np.sqrt(np.linalg.det(periodic @ periodic.T))
    ball = {1: 2 * reach, 2: np.pi * reach**2, 3: 4 / 3 * np.pi * reach**3}[len(periodic)]
    return len(a) * max(ball / measure, 1.0)


def _in_order(atoms: list[Atoms], jobs: list[_Job], parts: list[Run]) -> AtomsRelaxation:
    """The results of all jobs, in the order of the input."""
    n = len(atoms)
    relaxed: list[Any] = [None] * n
    energies, fmax = np.zeros(n), np.zeros(n)
    steps, evaluations, status = (np.zeros(n, np.int32) for _ in range(3))
    for job, run in zip(jobs, parts, strict=True):
        point = final_point(run)
        count = len(job.members)
        energies[job.members] = np.asarray(point.energies)[:count]
        fmax[job.members] = np.asarray(point.fmax)[:count]
        steps[job.members] = np.asarray(run.steps)[:count]
        evaluations[job.members] = np.asarray(run.evaluations)[:count]
        status[job.members] = np.asarray(run.status)[:count]
        forces = -np.asarray(point.gradients, np.float64)
        batch = eqx.tree_at(lambda b: b.positions, job.batch, point.params)
        copies = batch.to_atoms([atoms[i] for i in job.members])
        starts = row_starts(job.batch.index.sizes)
        for i, first, copy in zip(job.members, starts, copies, strict=False):
            copy.calc = SinglePointCalculator(
                copy, energy=float(energies[i]), forces=forces[first : first + len(copy)]
            )
            relaxed[i] = copy
    return AtomsRelaxation(relaxed, energies, fmax, steps, evaluations, status)
