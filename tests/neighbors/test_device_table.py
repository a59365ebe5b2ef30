"""Lists that the device makes: the slots of the host's lists, and the bits of relaxations."""

import functools

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

import covalent
from basinax import FIRE, LBFGS, GradientDescent, Status
from basinax.atoms import (
    EMT,
    Batch,
    Frechet,
    LennardJones,
    Neighbors,
    NeighborTable,
    relax,
)
from basinax.engine.on_device import DeviceBackend
from basinax.neighbors.device_table import DeviceTable
from basinax.neighbors.search import tasks_of
from basinax.numerics import xla
from basinax.structures import machine
from basinax.structures.read import cells_of
from comparison import same
from cover import exhaustive
from lost import Lost
from metals import SYSTEMS as METALS
from structures import moved, rattled

CUTOFF, SKIN = 5.5, 0.5
ARGON = LennardJones(0.0104, 3.40, cutoff=8.5)


def table_of(batch: Batch, skin: float = SKIN, n_neighbors: float = 80.0, **how) -> DeviceTable:
    how = {"follows_cells": False, "reverse": True} | how
    most_rows = int(np.asarray(batch.index.sizes).max())
    return DeviceTable(batch, CUTOFF, skin, most_rows=most_rows, n_neighbors=n_neighbors, **how)


def pairs_of(lists: Neighbors, n_rows: int, *, from_there: bool = False) -> np.ndarray:
    """Numbers of row, neighbour and shift, in the order of slots, row by row.

    Args:
        from_there: by what stands where each pair is said to stand seen from its neighbour.
    """
    slots, rows = np.asarray(lists.slots), np.arange(n_rows)
    is_pair = slots != n_rows
    row, slot = np.nonzero(is_pair.T)
    image, own = slots[slot, row], row
    if from_there:
        there = np.asarray(lists.reverse)[slot, row]
        own, image = there % n_rows, slots.ravel()[there]
    of_images = np.concatenate([rows, [0], np.asarray(lists.image_rows)])
    shifts = np.asarray(lists.shifts)[np.asarray(lists.image_shifts)]
    shift = np.concatenate([np.zeros((n_rows + 1, 3), int), shifts])[image]
    there = of_images[image]
    if from_there:
        own, there, shift = there, own, -shift
    code = (own.astype(np.int64) << 18) | there
    return functools.reduce(lambda code, x: (code << 8) | (x + 100), shift.T, code)


def any_structure(random) -> Atoms:
    """A skewed, thin, flat or open structure of a few atoms, some outside their cell."""
    n = int(random.integers(1, 13))
    lengths = np.exp(random.uniform(np.log(2.5), np.log(20.0), 3))
    cell = lengths[:, None] * (np.eye(3) + random.uniform(-0.6, 0.6, (3, 3)))
    pbc = random.random(3) < 0.7
    places = random.uniform(-0.5, 1.5, (n, 3)) + random.choice([0, 0, 0, 0, 0, 1], (n, 3))
    return Atoms(f"Ar{n}", places @ cell, cell=cell, pbc=pbc)


def of_few_shifts(n: int, most: int = 125) -> list[Atoms]:
    random = np.random.default_rng(n)
    atoms = [any_structure(random) for _ in range(n)]
    sizes, cells = np.array([len(a) for a in atoms]), cells_of(atoms)
    positions = np.concatenate([a.positions for a in atoms])
    tasks = tasks_of(positions, sizes, *cells, CUTOFF + SKIN, 1e-16)
    few = tasks.may_be & tasks.is_tried & ((2 * tasks.turns + 1).prod(axis=1) <= most)
    return [atoms[k] for k in np.flatnonzero(few)]


@pytest.fixture
def on_device(monkeypatch):
    """As on a GPU, but for sizes: those of batches, and the slots per turn of a fold."""
    for name in ("chunk", "chunks", "wide", "stretch", "unroll_one", "turns"):
        monkeypatch.setattr(machine.CPU, name, getattr(machine.GPU, name))
    monkeypatch.setattr(machine.CPU, "candidates", 1 << 14)
    with xla.without("branches"):
        yield


@pytest.mark.parametrize(
    ("n", "dtype", "at_a_time"),
    [
        (300, np.float64, 1 << 11),
        (300, np.float32, 1 << 20),
        exhaustive(4000, np.float64, 1 << 20),
        exhaustive(4000, np.float32, 1 << 11),
    ],
)
def test_slots_of_random_cells_are_those_of_the_host(n, dtype, at_a_time, monkeypatch):
    """In the same order; a pair at the radius, within rounding, may be in one of the lists."""
    monkeypatch.setattr("basinax.structures.machine.CPU.candidates", at_a_time)
    atoms = of_few_shifts(n)
    assert len(atoms) > n / 2
    batch = Batch.from_atoms(atoms, dtype)
    table = table_of(batch)
    occupied = np.asarray(batch.index.sizes) > 0
    assert not table.rebuild(batch, occupied).any()
    found = table.lists()
    pairs = pairs_of(found, batch.n_rows)
    assert (np.diff(pairs) > 0).all()
    assert (pairs_of(found, batch.n_rows, from_there=True) == pairs).all()
    narrow, wide = (
        pairs_of(NeighborTable(batch, CUTOFF, SKIN + more, reverse=True).lists(), batch.n_rows)
        for more in (-1e-3, 1e-3)
    )
    assert len(narrow) > 20 * len(atoms)
    assert np.isin(narrow, pairs).all() and np.isin(pairs, wide).all()


def test_the_device_finds_the_very_pairs_of_the_host_where_none_is_at_the_radius():
    names = "cell of 32", "alloy", "slab with atoms", "slab with a molecule", "cluster of 13"
    batch = Batch.from_atoms(metals(*names))
    table = table_of(batch)
    assert not table.rebuild(batch, np.asarray(batch.index.sizes) > 0).any()
    host = NeighborTable(batch, CUTOFF, SKIN, reverse=True).lists()
    assert (pairs_of(table.lists(), batch.n_rows) == pairs_of(host, batch.n_rows)).all()


def test_a_rebuild_changes_the_lists_of_its_systems_alone():
    atoms = of_few_shifts(40)
    batch = Batch.from_atoms(atoms)
    table, random = table_of(batch), np.random.default_rng(0)
    table.rebuild(batch, np.asarray(batch.index.sizes) > 0)
    current, ids = np.array(batch.positions), np.asarray(batch.index.ids)
    for _ in range(6):
        which = random.random(batch.n_systems) < 0.4
        which &= np.asarray(batch.index.sizes) > 0
        rows = np.isin(ids, np.flatnonzero(which))
        current[rows] += random.normal(0, 0.3, (rows.sum(), 3))
        # Others have moved too, and keep their lists.
        elsewhere = np.where(rows[:, None], current, current + 0.2)
        assert not table.rebuild(moved(batch, elsewhere), which).any()
    found = table.lists()
    np.testing.assert_array_equal(found.positions, current)
    fresh = table_of(moved(batch, current))
    fresh.rebuild(moved(batch, current), np.asarray(batch.index.sizes) > 0)
    expected = pairs_of(fresh.lists(), batch.n_rows)
    assert (pairs_of(found, batch.n_rows) == expected).all()


@pytest.mark.exhaustive
def test_room_grows_with_the_number_of_neighbours_and_of_shifts():
    """A crystal is pressed until its lists and the shifts in reach need more room."""
    start = bulk("Cu", cubic=True, a=8.0)
    batch = Batch.from_atoms([start, start, bulk("Cu", cubic=True, a=8.0)])
    table = table_of(batch, n_neighbors=1.0, follows_cells=True)
    which = np.asarray(batch.index.sizes) > 0
    assert not table.rebuild(batch, which).any()
    only = which & (np.arange(len(which)) == 1)

    def pressed(scale):
        cells, positions = np.array(batch.cells), np.array(batch.positions)
        cells[1] *= scale
        positions[np.asarray(batch.index.ids) == 1] *= scale
        return Batch(positions, batch.numbers, cells, batch.pbc, batch.index)

    for scale in (0.8, 0.5, 0.4):
        assert not table.rebuild(pressed(scale), only).any()
        host = NeighborTable(pressed(scale), CUTOFF, SKIN).lists()
        assert (pairs_of(table.lists(), batch.n_rows) == pairs_of(host, batch.n_rows)).all()
    assert table.lists().slots.shape[0] > 100
    assert table.rebuild(pressed(0.2), only) is None  # too many shifts to have images of all


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_system_without_usable_positions_keeps_its_list_and_is_reported(value):
    batch = Batch.from_atoms(of_few_shifts(12)[:5])
    table, which = table_of(batch), np.asarray(batch.index.sizes) > 0
    table.rebuild(batch, which)
    before = pairs_of(table.lists(), batch.n_rows)
    positions = np.array(batch.positions)
    positions[np.asarray(batch.index.ids) == 2] = value
    failed = table.rebuild(moved(batch, positions), which)
    assert np.flatnonzero(failed).tolist() == [2]
    assert (pairs_of(table.lists(), batch.n_rows) == before).all()


def metals(*names: str) -> list[Atoms]:
    return [rattled(METALS[name], k, 0.1) for k, name in enumerate(names)]


TERSOFF, ELEMENTS, SCALE = covalent.POTENTIALS["Tersoff, mixed"]


def semiconductors() -> list[Atoms]:
    names = "bent", "cell of 8", "slab"
    return [rattled(covalent.of(ELEMENTS, name, SCALE), k) for k, name in enumerate(names)]


CASES = {
    "argon": (lambda: argon(5), ARGON, FIRE(), {"fmax": 1e-4}),
    "metals": (
        lambda: metals("alloy with gases", "slab with a molecule", "cluster of 13"),
        EMT(),
        LBFGS(),
        {"fmax": 1e-3},
    ),
    "metals whose cells move": (
        lambda: metals("alloy", "slab with atoms", "one atom in a large cell"),
        EMT(),
        FIRE(),
        {"fmax": 1e-2, "cell": Frechet()},
    ),
    "semiconductors": (semiconductors, TERSOFF, FIRE(), {"fmax": 1e-2}),
}


def argon(n: int) -> list[Atoms]:
    made = [bulk("Ar", cubic=True, a=5.1 + 0.05 * k).repeat((1, 1, 1 + k % 3)) for k in range(n)]
    return [rattled(atoms, k, 0.2) for k, atoms in enumerate(made)]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("on_device", "exhaustively_as_users")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("argon", np.float32),
        ("metals", np.float64),
        ("metals whose cells move", np.float32),
        ("semiconductors", np.float64),
    ],
)
def test_lists_made_on_the_device_change_no_bit(name, dtype, monkeypatch):
    """Alone, in places that are taken again, with thin skins, and with lists of the host."""
    make, potential, optimizer, settings = CASES[name]
    atoms = make()
    settings = settings | {"max_steps": 450, "dtype": dtype}
    run = functools.partial(relax, potential=potential, optimizer=optimizer, **settings)
    together = run(atoms, skin=0.05)
    assert together.steps.max() > 10
    for k in (0, len(atoms) - 1):
        assert same(together, k, run([atoms[k]]), 0)
    with monkeypatch.context() as few:
        few.setattr("basinax.structures.machine.CPU.max_rows", 48)
        few.setattr("basinax.structures.machine.CPU.worth_closing_up", 1.0)
        few.setattr("basinax.engine.groups.n_cores_used", lambda: 1)
        streamed = run(atoms)
    monkeypatch.setattr("basinax.structures.machine.CPU.candidates", 0)
    hosted = run(atoms)
    for other in (streamed, hosted):
        assert [k for k in range(len(atoms)) if not same(together, k, other, k)] == []


@pytest.mark.usefixtures("on_device")
def test_a_system_that_loses_its_list_or_grows_too_large_leaves_the_others_their_bits(monkeypatch):
    """One is thrown out of reach of its precision, and one so far that the host lists all."""
    atoms = argon(5)
    rates = np.array([1e-3, 1e9, 1e-3, 40.0, 1e-3])
    settings = {"max_steps": 30, "dtype": np.float32, "fmax": 2e-5}
    tables = []
    rebuild = DeviceBackend._rebuild

    def watched(self, *which):
        failed = rebuild(self, *which)
        tables.append(type(self.table))
        return failed

    monkeypatch.setattr(DeviceBackend, "_rebuild", watched)
    together = relax(atoms, ARGON, GradientDescent(rates), **settings)
    assert tables[-1] is NeighborTable
    assert together.status[1] == Status.NOT_FINITE
    monkeypatch.setattr("basinax.structures.machine.CPU.candidates", 0)
    hosted = relax(atoms, ARGON, GradientDescent(rates), **settings)
    assert [k for k in range(5) if not same(together, k, hosted, k)] == []


@pytest.mark.usefixtures("on_device")
def test_a_structure_that_is_lost_ends_as_alone_where_lists_move_to_the_host(monkeypatch):
    """Half are lost in the last turn before a look: they need no list, and can get none."""
    crystal, rebuild, n_calls = bulk("Ar", "fcc", 5.3, cubic=True), DeviceTable.rebuild, 0
    atoms = [rattled(crystal, k, width) for k, width in enumerate([0.001, 0.4] * 4)]

    def rebuilt(self, *how):
        nonlocal n_calls
        n_calls += 1
        return None if n_calls == 2 else rebuild(self, *how)

    monkeypatch.setattr(machine.CPU, "turns", 2)
    monkeypatch.setattr(DeviceTable, "rebuild", rebuilt)
    settings = {"max_steps": 14, "fmax": 0.0, "skin": 0.02}
    optimizer = Lost(np.array([1, 9] * 4, np.int32))
    together = relax(atoms, ARGON, optimizer, **settings)
    assert n_calls == 2
    monkeypatch.setattr(machine.CPU, "candidates", 0)
    hosted = relax(atoms, ARGON, optimizer, **settings)
    assert (hosted.status == Status.NOT_FINITE).all()
    assert [k for k in range(8) if not same(together, k, hosted, k)] == []
    assert np.array_equal(together.evaluations, hosted.evaluations)
