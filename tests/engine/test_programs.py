"""Seconds go into programs: a call has one a group, and like calls have the same."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111

from basinax import BFGS, FIRE
from basinax.atoms import EMT, AbstractPairPotential, LennardJones, Tersoff, evaluate, relax
from basinax.engine import run, workers
from basinax.neighbors.rooms import Room, Rooms
from basinax.numerics.compilations import Compilations
from basinax.numerics.static import partition
from cover import exhaustive

ARGON = {"epsilon": 0.0104, "sigma": 3.40, "cutoff": 8.5}


def argon(n: int, scale: float = 1.0) -> list[Atoms]:
    """Cells of two sizes, and a third where there are several."""
    made = [
        bulk("Ar", "fcc", a=5.26, cubic=True).repeat((1 + k % 2, 1, 1 + (k % 5 == 4)))
        for k in range(n)
    ]
    for k, atoms in enumerate(made):
        atoms.set_cell(atoms.cell * scale, scale_atoms=True)
        atoms.rattle(0.1, seed=k)
    return made


class Power(AbstractPairPotential):
    """A pair energy with an exponent, whose whole numbers have a program of their own."""

    exponent: float = eqx.field(static=True)
    species: tuple = eqx.field(static=True, default=())

    def reach(self):
        return jnp.array([[6.0]])

    def table(self, dtype):
        return jnp.asarray(0.01, dtype)

    def pair(self, r2, known):
        TRACED.append(type(self.exponent))
        x = 36.0 / r2 - 1.0
        energy = known * x**self.exponent
        return energy, -energy * self.exponent


TRACED: list[type] = []


class Mean(NamedTuple):
    width: float


class Scale(NamedTuple):
    width: float


OTHERS = [
    (np.float32(3), np.int64(3)),
    (Mean(2.0), Scale(2.0)),
    (frozenset({2}), frozenset({2.0})),
    ((1, (2, 0.0)), (1, (2, -0.0))),
]
"""Pairs of equal values."""


def test_equal_numbers_of_other_kinds_have_programs_of_their_own():
    """Programs of `x**4` and `x**4.0` have other bits."""
    for kinds in ([float, int], [int, float]):
        jax.clear_caches()
        TRACED.clear()
        for kind in kinds:
            evaluate(argon(1), Power(kind(4)))
        assert list(dict.fromkeys(TRACED)) == kinds
    assert partition({"a": 1})[0] != partition({"a": 1.0})[0]
    assert partition(FIRE(dt=1))[0] == partition(FIRE(dt=1.0))[0]  # both are 1.0
    assert partition({"a": 0.0})[0] != partition({"a": -0.0})[0]
    assert partition([True])[0] != partition([1])[0]
    for one, other in OTHERS:
        assert partition(one)[0] != partition(other)[0]
    assert partition(FIRE())[0] == partition(FIRE())[0]


def slabs(n: int, scale: float = 1.0) -> list[Atoms]:
    made = [fcc111("Cu", (2, 2, 3), a=3.6 * scale, vacuum=8.0) for _ in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


def metals(n: int) -> list[Atoms]:
    made = [bulk(("Cu", "Au", "Al")[k % 3], cubic=True) for k in range(n)]
    for k, atoms in enumerate(made):
        atoms.set_cell(atoms.cell.array @ np.array([[1, 0.02, 0], [0, 0.97, 0.01], [0, 0, 1.03]]))
        atoms.rattle(0.05, seed=k)
    return made


def silicon(n: int, scale: float = 1.0) -> list[Atoms]:
    """Where a cell that is a tenth smaller brings another shell of neighbours."""
    width = 5.43 * (1 + (scale - 1) / 10)
    made = [bulk("Si", "diamond", a=width, cubic=True) for _ in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


WORKLOADS = {
    "argon": (argon, LennardJones(**ARGON), FIRE(), {}),
    "slabs": (slabs, EMT(), BFGS(), {}),
    "cells": (argon, LennardJones(**ARGON), FIRE(), {"cell": "frechet"}),
    "lists with the other ends": (silicon, Tersoff.named("Si"), FIRE(), {}),
}


class MadeError(Exception):
    """Batches are made, and none runs."""


@pytest.fixture
def shapes_of(monkeypatch):
    """A function that returns all that the program of each first batch of a call depends on."""
    monkeypatch.setattr("basinax.engine.on_device._ROOMS", Rooms())
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 2)

    def found(make, potential, optimizer, options, n, scale=1.0):
        programs = []

        def stop(groups, monitor, lanes, wanted):
            with ThreadPoolExecutor(2) as pool:
                workers.begin(groups, monitor, pool, lanes, wanted)
            for stream in [stream for group in groups for stream in group.begun[None]]:
                slots, settings = stream.slots, stream.group.settings
                lists = stream.backend.table.lists(slots.occupied)
                arrays = slots.batch, lists, slots.moves
                leaves, structure = jax.tree.flatten((settings, arrays))
                programs.append(
                    (structure, [(np.shape(x), jax.dtypes.result_type(x)) for x in leaves])
                )
            raise MadeError

        monkeypatch.setattr(run, "in_threads", stop)
        with pytest.raises(MadeError):
            relax(make(n, scale), potential, optimizer, **options)
        return programs

    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_like_calls_have_one_program(name, shapes_of):
    """Of 10, 12 and 20 structures, whose cells are a tenth wider or narrower; 60 fill batches."""
    first = shapes_of(*WORKLOADS[name], 10)
    for n, scale in ((10, 1.0), (12, 1.0), (20, 1.0), (10, 1.1), (12, 0.95), (60, 1.0)):
        assert [got for got in shapes_of(*WORKLOADS[name], n, scale) if got != first[0]] == []


def test_the_lists_of_all_first_batches_decide_on_their_room(shapes_of):
    """Of which the second has far more neighbours, and larger structures."""

    def make(n, scale):
        return [*argon(n, 1.15), *argon(n, 0.9), *[a.repeat((2, 2, 1)) for a in argon(2)]]

    _, *case = WORKLOADS["argon"]
    programs = shapes_of(make, *case, 90)
    assert len(programs) == 2
    assert programs[0] == programs[1]


def test_rooms_of_equal_needs_stay_equal():
    rooms, needs = Rooms(), [Room(100, 5000, 400), Room(30, 900, 80), Room(700, 9000, 1200)]
    first = [rooms.of("program", need, 512, is_lean=False) for need in needs]
    assert [rooms.of("program", need, 512, is_lean=False) for need in needs] == first
    assert rooms.of("another", needs[1], 512, is_lean=False) == rooms.of(
        "yet another", needs[1], 512, is_lean=False
    )


def test_a_second_call_compiles_nothing(count_compilations, monkeypatch):
    """Nor does one of other structures and numbers, that goes on with new lists."""
    # Other tests of this process may have had the programs of the first, or rooms for its tables.
    jax.clear_caches()
    monkeypatch.setattr("basinax.engine.on_device._ROOMS", Rooms())
    with count_compilations() as counted:
        first = relax(argon(10), LennardJones(**ARGON), FIRE(), fmax=0.0123)
    # What starts, what goes on, what ends, and what takes a place again where one is.
    assert 0 < first.compilations <= 4
    assert first.compilations <= counted.count
    others = {"fmax": 0.02, "max_steps": 300, "skin": 0.05}
    again = [
        relax(argon(10), LennardJones(**ARGON), FIRE(), fmax=0.0123),
        relax([*argon(12), argon(1)[0][:3]], LennardJones(0.011, 3.38, 8.4), FIRE(), **others),
    ]
    assert [result.compilations for result in again] == [0, 0]


def test_what_another_thread_compiles_is_not_counted():
    compilations, size = Compilations(), itertools.count(1009)

    def compile_one():
        jax.jit(lambda x: x + 1).lower(np.zeros(next(size))).compile()

    with compilations.counted():
        thread = threading.Thread(target=compile_one)
        thread.start()
        thread.join()
        assert compilations.count == 0
        compile_one()
    compile_one()
    assert compilations.count == 1


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("optimizer", "cell", "recorded"),
    [
        # Evaluations every day, in test_potential_isolation.py.
        exhaustive(BFGS(), None, True),
        exhaustive(FIRE(), "frechet", False),
    ],
    ids=["BFGS", "cells"],
)
def test_short_runs_have_the_bits_of_long_ones(optimizer, cell, recorded, monkeypatch, tmp_path):
    runs, systems = [], slabs(2) if cell is None else metals(2)
    for rows in (0, 1000):
        monkeypatch.setattr("basinax.structures.machine.CPU.short_rows", rows)
        folder = tmp_path / str(rows) if recorded else None
        runs.append(relax(systems, EMT(), optimizer, cell=cell, trajectory=folder, fmax=0.02))
    short, long = runs
    assert short.converged.all()
    assert short.compilations > 0
    assert long.compilations > 0
    np.testing.assert_array_equal(short.steps, long.steps)
    for one, other in zip(short.atoms, long.atoms, strict=True):
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.cell.array, other.cell.array)
        np.testing.assert_array_equal(one.get_forces(), other.get_forces())
