"""ASE's optimizers and those of basinax on the same calculators, step by step.

Energies and forces come from the same ASE calculator for both, so that nothing but the optimizer
can differ.
"""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.morse import MorsePotential

from basinax import AbstractTransform, SystemIndex, apply_updates, largest_force

ROWS = 40
"""At least as many as any problem has, and so many that either of two systems has some blocks."""

CHECKED_STEPS = (1, 2, 5, 10, 20, 30)


def _rattled(atoms: Atoms, amount: float, seed: int, calculator: Any) -> Atoms:
    atoms.positions += np.random.default_rng(seed).normal(size=(len(atoms), 3)) * amount
    atoms.calc = calculator
    return atoms


def _cluster(n: int, seed: int) -> Atoms:
    """Atoms in a ball, none closer than 1 sigma to another."""
    draw = np.random.default_rng(seed)
    points: list[np.ndarray] = []
    while len(points) < n:
        point = draw.uniform(-1, 1, 3) * 0.75 * n ** (1 / 3)
        if all(np.linalg.norm(point - other) > 1.0 for other in points):
            points.append(point)
    return Atoms(f"Ar{n}", positions=np.array(points))


def _argon() -> Atoms:
    calculator = LennardJones(sigma=3.405, epsilon=0.0104, rc=8.5)
    return _rattled(bulk("Ar", a=5.26, cubic=True) * 2, 0.15, 1, calculator)


def _lj13() -> Atoms:
    return _rattled(_cluster(13, 3), 0.0, 0, LennardJones(rc=20.0))


def _lj38() -> Atoms:
    return _rattled(_cluster(38, 4), 0.0, 0, LennardJones(rc=20.0))


def _morse() -> Atoms:
    calculator = MorsePotential(epsilon=0.3429, rho0=2.866 * 1.3588, r0=2.866)
    return _rattled(bulk("Cu", a=4.05, cubic=True) * 2, 0.1, 2, calculator)


def _copper() -> Atoms:
    atoms = bulk("Cu", a=3.61, cubic=True) * 2
    return _rattled(atoms, 0.1, 5, EMT())


def _slab() -> Atoms:
    atoms = fcc111("Al", (2, 2, 3), vacuum=8.0)
    atoms.positions[-1, 2] += 0.3
    return _rattled(atoms, 0.05, 6, EMT())


def _hydrogen() -> Atoms:
    return _rattled(molecule("H2"), 0.05, 7, EMT())


def _ethane() -> Atoms:
    atoms = molecule("C2H6")
    return _rattled(atoms, 0.1, 8, EMT())


PROBLEMS: dict[str, Callable[[], Atoms]] = {
    "argon crystal": _argon,
    "LJ13": _lj13,
    "LJ38": _lj38,
    "Morse crystal": _morse,
    "EMT copper": _copper,
    "EMT slab": _slab,
    "EMT hydrogen": _hydrogen,
    "EMT ethane": _ethane,
}


def count_calls(atoms: Atoms) -> list[int]:
    """Wraps the calculator of `atoms`; the only entry is the number of its evaluations."""
    calls, calculate = [0], atoms.calc.calculate

    def counting(*args, **kwargs):
        calls[0] += 1
        return calculate(*args, **kwargs)

    atoms.calc.calculate = counting
    return calls


def follow_ase(optimizer: type, atoms: Atoms, fmax: float, steps: int, **settings: Any):
    """Positions after each step and evaluations until then, for `recorded`."""
    path, calls, n_calls = [], count_calls(atoms), []
    with warnings.catch_warnings(action="ignore"):
        run = optimizer(atoms, logfile=None, **settings)
        run.fmax = fmax
        for _ in run.irun(fmax=fmax, steps=steps):
            path.append(atoms.get_positions())
            n_calls.append(calls[0])
    return {"positions": np.array(path), "evaluations": np.array(n_calls)}


def walk_of_ase(optimizer: type, atoms: Any, fmax: float, steps: int = 500, kept: Any = ()):
    """The number of steps, and where atoms, of a filter perhaps, are at its end, for `recorded`.

    Args:
        kept: steps after which their places are wanted, before that of the end; where the walk ends
            sooner, they are those of its end.
    """
    there, walk = getattr(atoms, "atoms", atoms), []
    run = optimizer(atoms, logfile=None)
    with warnings.catch_warnings(action="ignore"):
        for _ in run.irun(fmax=fmax, steps=steps):
            walk.append((there.get_positions(), there.cell.array.copy()))
    places = [walk[min(n, len(walk) - 1)] for n in (*kept, len(walk))]
    return {
        "steps": np.array(run.nsteps),
        "positions": np.array([positions for positions, _ in places]),
        "cells": np.array([cell for _, cell in places]),
    }


def checked_steps_of_ase(optimizer: type, atoms: Atoms, fmax: float, steps: int, **settings: Any):
    """As `follow_ase`, with the positions of the checked steps alone."""
    path = follow_ase(optimizer, atoms, fmax, steps, **settings)
    at = [n for n in CHECKED_STEPS if n < len(path["positions"])]
    return path | {"positions": path["positions"][at]}


@eqx.filter_jit
def _turn(optimizer, gradient, state, params, energies):
    step, state = optimizer.update(gradient, state, params, energies=energies)
    return (
        apply_updates(params, step),
        state,
        optimizer.is_accepted(state)[0],
        optimizer.has_failed(state)[0],
        largest_force(gradient, state.index_prefix)[0],
    )


def follow(optimizer: AbstractTransform, atoms: Atoms, fmax: float, steps: int):
    """As `follow_ase`, for an optimizer of basinax.

    Rows up to `ROWS` are a second system without forces, so that all sizes share a program; so do
    all settings that are numbers.
    """
    own, index = slice(len(atoms)), SystemIndex.from_sizes([len(atoms), ROWS - len(atoms)])
    optimizer = jax.tree.map(np.asarray, optimizer)
    params = jnp.asarray(_padded(atoms.positions))
    state, path, calls = optimizer.init(params, index), [], count_calls(atoms)
    while len(path) <= steps:
        atoms.set_positions(np.asarray(params)[own])
        energies = jnp.asarray([atoms.get_potential_energy(), 0.0])
        gradient = jnp.asarray(_padded(-atoms.get_forces()))
        last = params
        params, state, is_accepted, has_failed, largest = _turn(
            optimizer, gradient, state, params, energies
        )
        if is_accepted:
            path.append((np.asarray(last)[own], calls[0]))
            if largest < fmax or has_failed:
                break
    return path


def _padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, ((0, ROWS - len(rows)), (0, 0)))


def compare(ours, theirs) -> tuple[list[float], bool]:
    """The largest difference of a coordinate at each checked step, and equality of the counts."""
    assert len(ours) > 1
    checked = zip(CHECKED_STEPS, theirs["positions"], strict=False)
    apart = [float(np.abs(ours[n][0] - there).max()) for n, there in checked if n < len(ours)]
    return apart, [calls for _, calls in ours] == theirs["evaluations"].tolist()
