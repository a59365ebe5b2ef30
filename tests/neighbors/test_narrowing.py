"""Near pairs: exactly those within the radii, in the order of the lists, and the same bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from basinax import FIRE, Status
from basinax.atoms import EMT, Batch, Frechet, NeighborTable, ZhouEAM, moved_too_far, relax
from basinax.engine import on_device as _on_device, turns as _turns
from basinax.neighbors.lists import ChunkedLists, Neighbors, skin_left
from basinax.neighbors.prune import CutoffAndSkin, narrowed, next_skins, select_near
from basinax.optimizers import GradientDescent
from basinax.structures.machine import CPU
from comparison import same
from cover import exhaustive
from metals import SYSTEMS as METALS
from structures import POTENTIALS, STRUCTURES, jitted, jitted_as_users, moved, rattled

CUTOFF, SKIN = 6.0, 1.0
FOLDED = {
    "EMT": (EMT(), jitted_as_users),
    "Zhou": (ZhouEAM("Cu", "Au", "Pt"), jitted),
    "LJ": (POTENTIALS["shifted"], jitted),
}
"""One is compiled as users do: lists are narrowed in one way for all."""
NAMES = ("cell of four", "one open atom", "skewed and tiny", "cluster of 13", "slab, open in z")


def lists(systems, dtype=np.float64, cutoff=CUTOFF, skin=SKIN, **options):
    batch = Batch.from_atoms(systems, dtype)
    table = NeighborTable(batch, cutoff, skin, lists=ChunkedLists, **options)
    return batch, table.to_device(np.asarray(batch.index.sizes) > 0)


images_of = jax.jit(ChunkedLists.images)


def of_rows(neighbors, n_rows):
    """The images of each row, padding left out."""
    columns, slots = neighbors.columns, np.asarray(neighbors.slots)
    at, n_slots = np.asarray(columns.of_rows), np.repeat(columns.n_slots, columns.size)
    np.testing.assert_array_equal(np.asarray(columns.rows)[at], np.arange(n_rows))
    found = []
    for row in range(n_rows):
        within = slots[: n_slots[at[row]], at[row]]
        found.append(within[within != n_rows].tolist())
        # What a fold reads beyond a chunk's length, as it takes two slots at a time, is far.
        assert (slots[len(found[-1]) :, at[row]] == n_rows).all()
    return found


@pytest.fixture
def few_columns(monkeypatch):
    """Chunks of eight columns."""
    monkeypatch.setattr("basinax.structures.machine.CPU.chunk", 8)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pairs_within_the_radii_are_left_in_the_order_of_the_lists(dtype):
    batch, neighbors = lists([STRUCTURES[name] for name in NAMES], dtype)
    positions = np.asarray(batch.positions) + np.random.default_rng(0).normal(0, 0.02, (1, 3))
    batch = moved(batch, positions.astype(dtype))
    radii = np.array([6.2, 7.0, 4.0, -1.0, 5.0] + [6.0] * (batch.n_systems - 5), dtype)
    near = jax.jit(narrowed)(neighbors, batch, radii)
    x = np.asarray(batch.positions, np.float64)
    images = np.asarray(images_of(neighbors, batch.positions, batch.cells), np.float64).T
    radius = np.append(radii, -1.0)[np.asarray(batch.index.ids)]
    before, after = of_rows(neighbors, batch.n_rows), of_rows(near, batch.n_rows)
    for row, (listed, left) in enumerate(zip(before, after, strict=True)):
        distances = np.linalg.norm(images[listed] - x[row], axis=1)
        edge = 1e-3 if dtype == np.float32 else 1e-4
        assert [i for i, d in zip(listed, distances, strict=True) if d <= radius[row]] == [
            i for i in left if np.linalg.norm(images[i] - x[row]) <= radius[row]
        ]
        assert all(np.linalg.norm(images[i] - x[row]) <= radius[row] + edge for i in left)
        assert not left or radius[row] > 0
    lengths = np.array([len(after[row]) for row in np.asarray(near.columns.rows)])
    longest = lengths.reshape(-1, near.columns.size).max(1)
    assert (np.asarray(near.columns.n_slots) == longest).all()
    assert int(near.columns.n_chunks) == (longest > 0).sum() > 1
    assert (np.diff(longest) <= 0).all()


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("LJ", np.float64),
        # Whole relaxations every day, below.
        exhaustive("EMT", np.float64),
        exhaustive("LJ", np.float32),
        exhaustive("Zhou", np.float32),
    ],
)
def test_properties_have_the_bits_that_whole_lists_give(name, dtype):
    """With systems of one element folded by themselves, and elements of two told by a bit."""
    potential, program = FOLDED[name]
    names = ("skewed and tiny", "cluster of 13", "one open atom")
    systems = [METALS[name] for name in names] + [rattled(bulk("Cu", cubic=True), 3)]
    batch, neighbors = lists(systems, dtype, potential.cutoff, 0.9)
    three, two = (lists(systems, dtype, potential.cutoff, 0.9, most_elements=n)[1] for n in (3, 2))
    assert three.others is None and two.others is not None
    positions = np.array(batch.positions)
    positions[batch.index.ids == 1] = np.nan
    for here in (batch, moved(batch, positions)):
        whole = jax.tree.leaves(program(potential, here, neighbors))
        for skin in (0.0, 0.3):
            radii = np.full(batch.n_systems, potential.cutoff + skin, dtype)
            near = [jax.jit(narrowed)(n, here, radii) for n in (neighbors, three, two)]
            assert [int(n.columns.n_alike) > 0 for n in near] == [False, True, True]
            for some in (*near, three, two):
                found = jax.tree.leaves(program(potential, here, some))
                for a, b in zip(whole, found, strict=True):
                    np.testing.assert_array_equal(a, b)


def test_of_the_skin_is_left_what_the_longest_way_does_not_take_twice():
    batch, neighbors = lists([STRUCTURES["cell of four"]] * 3)
    positions = np.array(batch.positions)
    positions[1] += [0.0, 0.3, 0.4]
    positions[2] += [0.1, 0.0, 0.0]
    positions[8] = np.nan
    left = np.asarray(jax.jit(skin_left)(positions, neighbors, batch.index, SKIN))
    np.testing.assert_allclose(left[:3], [SKIN - 1.0, np.nan, SKIN], atol=1e-15)
    skins = np.where(np.arange(batch.n_systems) == 2, -0.1, 1.1)
    stale = jax.jit(moved_too_far)(positions, neighbors, batch.index, skins)
    assert stale.tolist()[:3] == [False, False, True]


@pytest.mark.parametrize("follows_cells", [exhaustive(False), True])
def test_near_pairs_last_for_as_long_as_their_skin_and_that_of_the_list(follows_cells):
    """What atoms and cells take is measured anew from where pairs were chosen."""
    systems = [STRUCTURES[name] for name in ("cell of four", "cluster of 13", "cell of 32")]
    batch, neighbors = lists(systems, follows_cells=follows_cells)
    reach = CutoffAndSkin(jnp.asarray(CUTOFF), jnp.asarray(SKIN))
    n = batch.n_systems
    is_running, inf = jnp.ones(n, bool), jnp.full(n, jnp.inf)

    def walked(batch, step, stretch):
        """The first two atoms of systems go so far apart, and crystals are stretched with them."""
        factor = stretch if follows_cells else 1.0
        positions, cells = np.array(batch.positions), np.array(batch.cells)
        of_crystals = np.isin(np.asarray(batch.index.ids), (0, 2))
        positions[of_crystals] *= factor
        cells[[0, 2]] *= factor
        for start in (0, 8, 24):
            positions[start, 0] += step
        batch = moved(batch, positions)
        return Batch(
            batch.positions, batch.numbers, jnp.asarray(cells), batch.pbc, batch.index, None
        )

    def complete(near, batch, k):
        """Whether a system's lists hold every pair within the cutoff."""
        table = NeighborTable(batch, CUTOFF, 0.0, lists=ChunkedLists)
        anew = table.to_device(np.asarray(batch.index.sizes) > 0)
        counts = [len(x) for x in of_rows(anew, batch.n_rows)]
        images = np.asarray(images_of(near, batch.positions, batch.cells)).T
        for row in np.flatnonzero(np.asarray(batch.index.ids) == k):
            d = np.linalg.norm(
                images[of_rows(near, batch.n_rows)[row]] - np.asarray(batch.positions)[row], axis=1
            )
            if (d <= CUTOFF).sum() != counts[row]:
                return False
        return True

    near, skins = jax.jit(select_near)(neighbors, batch, reach, inf, is_running)
    np.testing.assert_allclose(skins[:3], SKIN, atol=1e-12)
    there = walked(batch, 0.1, 1.004)
    skins = jax.jit(next_skins)(near, there, reach, skins)
    assert (np.asarray(skins[:3]) >= 1.25 * 0.2 - 1e-6).all() and (np.asarray(skins[:3]) < 1).all()
    near, skins = jax.jit(select_near)(neighbors, there, reach, skins, is_running)
    assert all(complete(near, there, k) for k in range(3))
    further = walked(there, 0.05, 1.002)
    is_stale = jax.jit(moved_too_far)(further.positions, near, batch.index, skins, further.cells)
    assert not is_stale[:3].any()
    assert all(complete(near, further, k) for k in range(3))
    too_far = walked(there, 0.3, 1.0)
    is_stale = jax.jit(moved_too_far)(too_far.positions, near, batch.index, skins, too_far.cells)
    assert is_stale[:3].all()
    # The list itself holds no longer: no skin is left, and no pairs.
    beyond = walked(there, 0.45, 1.0)
    near, skins = jax.jit(select_near)(neighbors, beyond, reach, inf, is_running)
    assert (np.asarray(skins[:3]) < 0).all()
    assert not any(of_rows(near, batch.n_rows))


def structures() -> list[Atoms]:
    cells = [METALS[name] for name in ("cluster of 13", "one open atom", "skewed and tiny")]
    for k, symbol in enumerate(("Cu", "Al", "Au", "Pd")):
        atoms = rattled(bulk(symbol, cubic=True).repeat((1, 1, k + 1)), k)
        atoms.symbols[0] = "Ni"
        cells.append(atoms)
    return cells


def cells_of(systems) -> list:
    """The last one is torn apart."""
    cells = [Frechet() if k % 2 and a.pbc.all() else None for k, a in enumerate(systems)]
    return [*cells[:-1], Frechet(pressure=-0.5)]


RUNS = {
    "fixed": {},
    "cells": {"cell": cells_of(structures())},
    "noted": {"history": True},
    "recorded": {},
}


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        # Their runs take minutes; every day lists are compared, above, and relaxations with ASE's.
        exhaustive("recorded", np.float32),
        exhaustive("fixed", np.float32),
        exhaustive("noted", np.float32),
        exhaustive("cells", np.float64),
    ],
)
def test_runs_have_the_bits_they_have_without_and_alone(name, dtype, monkeypatch, tmp_path):
    """More than 400 steps, in periods of several lengths, with skins that last and that do not."""
    systems = structures()
    settings = {"fmax": 0.0, "max_steps": 450, "dtype": dtype, **RUNS[name]}
    slow = GradientDescent(learning_rate=2e-3)
    if name == "recorded":
        settings["trajectory"] = str(tmp_path)
    run = functools.partial(relax, systems, EMT(), slow, **settings)
    first = run()
    assert (first.steps >= 60).sum() >= 5
    assert (first.status[-1] == Status.NOT_FINITE) == ("cell" in settings)
    others = []
    # With a thin skin in short periods, and where no pairs are chosen.
    for target, setting, value, how in (
        (CPU, "period", 5, {"skin": 0.1}),
        (EMT, "has_expensive_pairs", False, {}),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(target, setting, value)
            for program in ("advance_block", "noted", "recorded"):
                plain = getattr(_turns, program)[True].__wrapped__
                patched.setattr(_on_device, program, _turns._by_length(plain))
            others.append(run(**how))
    assert (first.status != Status.RUNNING).all()
    for other in others:
        assert [k for k in range(len(systems)) if not same(first, k, other, k)] == []
    for k in (0, 6):
        own = {"cell": cells_of(systems)[k], "trajectory": tmp_path / f"of {k}"}
        alone = settings | {name: own[name] for name in settings.keys() & own.keys()}
        assert same(relax([systems[k]], EMT(), slow, **alone), 0, first, k)


@pytest.mark.exhaustive
def test_a_machine_without_chunks_finds_the_same_bits(monkeypatch, few_shapes):
    names = ("slab with atoms", "skewed and tiny", "cluster of 13")
    systems = [rattled(METALS[name], k) for k, name in enumerate(names)]
    settings = {"fmax": 0.01, "max_steps": 20}
    chunked = relax(systems, EMT(), FIRE(), **settings)
    monkeypatch.setattr("basinax.structures.machine.CPU.chunks", 0)
    batch = Batch.from_atoms(systems)
    table = NeighborTable(batch, EMT().cutoff, 0.5, lists=ChunkedLists, reverse=True)
    assert isinstance(table.lists(), Neighbors) and table.lists().reverse is None
    plain = relax(systems, EMT(), FIRE(), **settings)
    assert (chunked.steps > 3).all()
    assert [k for k in range(3) if not same(plain, k, chunked, k)] == []
