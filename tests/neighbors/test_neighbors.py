"""Neighbour lists: complete, in canonical order, and rebuilt system by system."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from basinax.atoms import Batch, NeighborTable, moved_too_far
from basinax.neighbors.lists import SPECIES_BIT, ChunkedLists, Neighbors, filled_up, gather
from basinax.neighbors.search import _closed, pairs_of, tasks_of
from basinax.structures.read import cells_of
from cover import exhaustive
from structures import CUTOFF, POTENTIALS, SKIN, STRUCTURES, fcc, jitted, moved, rattled, results_of


def listed(table: NeighborTable, batch: Batch, k: int) -> list[tuple[int, ...]]:
    """Pairs (row, neighbour, shift) of the k-th system in the order of the list, from its rows."""
    start = int(np.argmax(np.asarray(batch.index.ids) == k))
    neighbors, n_rows, pairs = jax.tree.map(np.asarray, table.to_device()), batch.n_rows, []
    for row in range(int(batch.index.sizes[k])):
        for image in neighbors.slots[:, start + row]:
            if image < n_rows:
                pairs.append((row, image - start, 0, 0, 0))
            elif image > n_rows:
                at = image - n_rows - 1
                shift = neighbors.image_shifts[at]
                assert neighbors.shift_systems[shift] == k
                neighbor = int(neighbors.image_rows[at]) - start
                pairs.append((row, neighbor, *neighbors.shifts[shift].tolist()))
    return [tuple(map(int, pair)) for pair in pairs]


def listed_from_the_other_end(table: NeighborTable, batch: Batch, k: int):
    """The same, by what stands where each pair is said to stand seen from its neighbour."""
    start, n_rows = int(np.argmax(np.asarray(batch.index.ids) == k)), batch.n_rows
    neighbors, pairs = jax.tree.map(np.asarray, table.to_device()), []
    shifts = np.concatenate([np.zeros((1, 3), int), neighbors.shifts[neighbors.image_shifts]])
    for row in range(start, start + int(batch.index.sizes[k])):
        for slot in np.flatnonzero(neighbors.slots[:, row] != n_rows):
            there = int(neighbors.reverse[slot, row])
            image = int(neighbors.slots.ravel()[there])
            # Itself or one of its images, displaced the other way.
            assert row == image or row == neighbors.image_rows[image - n_rows - 1]
            shift = -shifts[max(image - n_rows, 0)]
            pairs.append((row - start, there % n_rows - start, *map(int, shift)))
    return pairs


def brute_force(atoms: Atoms, radius: float) -> list[tuple[int, ...]]:
    """The same pairs, by trying all shifts that could matter."""
    periodic = np.flatnonzero(atoms.pbc)
    vectors = np.asarray(atoms.cell)[periodic]
    inverse = np.linalg.pinv(vectors) if len(periodic) else np.zeros((3, 0))
    reach = np.ceil(radius * np.linalg.norm(inverse, axis=0)).astype(int) + 1
    pairs = []
    for i, j in itertools.product(range(len(atoms)), repeat=2):
        d = atoms.positions[j] - atoms.positions[i]
        nearest = -np.round(d @ inverse).astype(int)
        ranges = [range(n - r, n + r + 1) for n, r in zip(nearest, reach, strict=True)]
        shifts = list(itertools.product(*ranges))
        shifts = np.array(shifts, int).reshape(len(shifts), len(periodic))
        full = np.zeros((len(shifts), 3), int)
        full[:, periodic] = shifts
        near = np.linalg.norm(d + shifts @ vectors, axis=1) <= radius
        pairs += [(i, j, *s) for s in full[near].tolist() if i != j or any(s)]
    return sorted(pairs)


@pytest.fixture(params=["tried", "searched"])
def both_ways(request, monkeypatch):
    """Small systems try all pairs, larger ones search theirs: here small ones do both."""
    if request.param == "searched":
        monkeypatch.setattr("basinax.neighbors.search.MOST_TRIED", 0)


SMALL = [name for name, atoms in STRUCTURES.items() if len(atoms) <= 36]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("name", SMALL)
def test_lists_are_complete_and_in_canonical_order(name):
    # The lists hold a little more than the radius, relative 1e-6 and less.
    atoms = STRUCTURES[name]
    batch = Batch.from_atoms([fcc(1), atoms])
    pairs = listed(NeighborTable(batch, CUTOFF, SKIN), batch, 1)
    assert pairs == sorted(pairs)
    needed = set(brute_force(atoms, CUTOFF + SKIN))
    assert needed <= set(pairs) <= set(brute_force(atoms, CUTOFF + SKIN + 1e-4))


FAR = 9e6


def one_atom_out(axes, pbc):
    atoms = fcc(1)
    atoms.pbc = pbc
    atoms.positions[1, axes] = FAR
    return atoms


def flat_and_wide():
    atoms = fcc(1)
    atoms.set_cell([5.3, 2e4, 2e4])
    return atoms


@pytest.mark.parametrize(
    "atoms",
    [
        one_atom_out([2], [True, True, False]),
        one_atom_out([1, 2], [True, False, False]),
        one_atom_out([0], False),
        one_atom_out([0, 1, 2], False),
        one_atom_out([0, 1], True),
        flat_and_wide(),
    ],
    ids=["slab", "wire", "open", "open, diagonal", "periodic", "flat and wide cell"],
)
@pytest.mark.usefixtures("both_ways")
def test_structures_that_end_the_process_in_vesin_alone_are_listed(atoms):
    batch = Batch.from_atoms([atoms])
    pairs = listed(NeighborTable(batch, CUTOFF, SKIN), batch, 0)
    assert set(brute_force(atoms, CUTOFF + SKIN)) <= set(pairs)
    assert pairs == sorted(pairs)


@pytest.mark.parametrize("displacement", [0.0, 5e3, 9e7], ids=["here", "far", "very far"])
def test_pairs_that_are_tried_are_those_that_vesin_finds(displacement, monkeypatch):
    """Many systems at once, of sizes and cells that differ, some far from the origin.

    Those tried are within a radius that is larger by what single precision can err.
    """
    atoms = [a.copy() for _ in range(2) for a in STRUCTURES.values() if len(a) <= 150]
    for k, a in enumerate(atoms):
        a.set_positions(rattled(a, k, 0.3).positions + displacement)
    batch = Batch.from_atoms(atoms)
    tried = NeighborTable(batch, CUTOFF, SKIN)
    monkeypatch.setattr("basinax.neighbors.search.MOST_TRIED", 0)
    searched, wider = (NeighborTable(batch, CUTOFF, SKIN + more) for more in (0.0, 1e-3))
    for k in range(len(atoms)):
        pairs = listed(tried, batch, k)
        assert pairs == sorted(pairs)
        assert set(listed(searched, batch, k)) <= set(pairs) <= set(listed(wider, batch, k))


def any_structure(random):
    """A skewed, thin, flat or open structure of a few atoms, some far outside their cell."""
    n = int(random.integers(1, 13))
    lengths = np.exp(random.uniform(np.log(2.0), np.log(20.0), 3))
    cell = lengths[:, None] * (np.eye(3) + random.uniform(-0.6, 0.6, (3, 3)))
    pbc = random.random(3) < 0.7
    places = random.uniform(-0.5, 1.5, (n, 3)) + random.choice([0, 0, 0, 2], (n, 3))
    return Atoms(f"Ar{n}", places @ cell, cell=cell, pbc=pbc)


def coded_pairs(found, tasks):
    """Sorted numbers of pairs, each of system, atom, neighbour and shift."""
    sizes = tasks.sizes[found.systems]
    owners = np.repeat(found.systems, sizes)
    atoms = np.concatenate([np.arange(n) for n in sizes])
    of_pairs = np.repeat(np.arange(len(atoms)), found.lengths)
    shifts = found.shifts[found.codes[found.images]] + 100
    columns = owners[of_pairs], atoms[of_pairs], found.atoms[found.images], *shifts.T
    return functools.reduce(lambda code, column: code * 256 + column, columns, np.int64(0))


@pytest.mark.parametrize("count", [1000, exhaustive(5000)])
def test_pairs_of_random_cells_that_are_tried_are_those_that_vesin_finds(count, monkeypatch):
    """In the same order, whatever is tried beside them."""
    random = np.random.default_rng(count)
    atoms = [any_structure(random) for _ in range(count)]
    sizes, cells = np.array([len(a) for a in atoms]), cells_of(atoms)
    positions = np.concatenate([a.positions for a in atoms])

    def found(radius):
        tasks = tasks_of(positions, sizes, *cells, radius, 1e-16)
        assert tasks.may_be.sum() > 0.8 * count  # others are too flat for this radius
        each = [coded_pairs(some, tasks) for some in pairs_of(tasks, reverse=False)]
        assert all((np.diff(codes) > 0).all() for codes in each)
        return np.concatenate(each)

    tried = found(6.0)
    monkeypatch.setattr("basinax.neighbors.search.MOST_TRIED", 0)
    assert np.isin(found(6.0), tried).all() and np.isin(tried, found(6.0 + 1e-3)).all()


def test_no_pair_just_within_the_radius_is_missed():
    """Where single precision, in which all pairs are tried, is coarser than what they lack."""
    random = np.random.default_rng(0)
    ends = random.uniform(0, 100, (150, 3))
    ways = random.normal(size=ends.shape)
    ways *= (CUTOFF + SKIN) * (1 - 1e-7) / np.linalg.norm(ways, axis=1, keepdims=True)
    batch = Batch.from_atoms([Atoms("Ar300", np.concatenate([ends, ends + ways]))])
    pairs = listed(NeighborTable(batch, CUTOFF, SKIN), batch, 0)
    for k in range(len(ends)):
        assert {(k, k + 150, 0, 0, 0), (k + 150, k, 0, 0, 0)} <= set(pairs)


def test_folds_go_through_the_systems_that_they_must_with_long_lists_first(monkeypatch):
    monkeypatch.setattr("basinax.structures.machine.CPU.chunk", 16)
    monkeypatch.setattr("basinax.structures.machine.CPU.chunks", 4)
    atoms = [STRUCTURES[name] for name in ("cluster of 13", "cell of 32", "one open atom")]
    batch = Batch.from_atoms([*atoms, atoms[0]])
    table = NeighborTable(batch, CUTOFF, 0.5, lists=ChunkedLists)
    by_rows = NeighborTable(batch, CUTOFF, 0.5)
    ids = np.asarray(batch.index.ids)

    def columns(*which):
        """Of the device: the systems of columns, and how far the chunks go."""
        neighbors = table.to_device(np.isin(np.arange(batch.n_systems), which))
        found = neighbors.columns
        rows, chunks = np.asarray(found.rows), np.asarray(found.n_slots)
        np.testing.assert_array_equal(rows[np.asarray(found.of_rows)], np.arange(batch.n_rows))
        np.testing.assert_array_equal(neighbors.slots, by_rows.lists().slots[:, rows])
        assert found.size % 8 == 0 and found.size * len(chunks) == len(rows)
        assert int(found.n_chunks) == (chunks > 0).sum()
        return ids[rows], chunks.tolist()

    def longest(k):
        return int((by_rows.lists().slots[:, ids == k] != batch.n_rows).sum(0).max())

    assert longest(1) > longest(0) == 12 > longest(2) == 0
    systems, chunks = columns(0, 1, 2, 3)
    assert (systems[:32] == 1).all() and chunks == [longest(1), longest(1), 12]
    assert columns(0, 2)[1] == [12, 0, 0] and (columns(0, 2)[0][:13] == 0).all()
    assert columns(2)[1] == columns()[1] == [0, 0, 0]
    apart = moved(batch, np.asarray(batch.positions) * 3.0)
    for each in (table, by_rows):
        each.rebuild(apart, np.isin(np.arange(batch.n_systems), (0,)))
    assert columns(0)[1] == [longest(0), 0, 0] and longest(0) < 12


def test_folds_go_through_systems_of_one_element_first_where_they_must_know(monkeypatch):
    monkeypatch.setattr("basinax.structures.machine.CPU.chunk", 16)
    mixture = STRUCTURES["cell of 32"].copy()
    mixture.symbols[3] = "Kr"
    cluster = STRUCTURES["cluster of 13"]
    batch = Batch.from_atoms([mixture, cluster, STRUCTURES["cell of four"], mixture, cluster])
    table = NeighborTable(batch, CUTOFF, 0.5, lists=ChunkedLists, most_elements=2)
    ids, systems = np.asarray(batch.index.ids), np.arange(batch.n_systems)

    def going_through(*which, of_several=(0, 3)):
        """The systems of chunks, and how many of them are of one element."""
        columns = table.to_device(np.isin(systems, which)).columns
        of_columns = ids[np.asarray(columns.rows)].reshape(-1, columns.size)
        others = np.asarray(columns.has_others).reshape(of_columns.shape)
        running = (np.asarray(columns.n_slots) > 0)[:, None] & np.isin(of_columns, which)
        np.testing.assert_array_equal(others, running & np.isin(of_columns, of_several))
        assert int(columns.n_alike) <= int(columns.n_chunks) == (columns.n_slots > 0).sum()
        return of_columns[: int(columns.n_chunks), 0].tolist(), int(columns.n_alike)

    assert going_through(0, 1, 2, 3) == ([2, 1, 0, 0, 3, 3], 1)
    assert going_through(0, 3) == ([0, 0, 3, 3], 0)
    assert going_through(1, 4) == ([1, 4], 2)
    assert going_through() == ([], 0)
    pure = STRUCTURES["cell of 32"]
    changed = Batch.from_atoms([pure, cluster, STRUCTURES["cell of four"], mixture, cluster])
    table.rebuild(changed, systems == 0)
    assert going_through(0, 3, of_several=(3,)) == ([0, 0, 3, 3], 2)


def test_slots_say_which_of_two_elements_images_are_of():
    mixture, cluster = STRUCTURES["cell of four"].copy(), STRUCTURES["cluster of 13"]
    mixture.symbols = ["Kr", "Kr", "Ne", "Kr"]
    batch = Batch.from_atoms([mixture, cluster])
    options: dict = {"lists": ChunkedLists, "most_elements": 2}
    neighbors = NeighborTable(batch, CUTOFF, SKIN, **options).to_device()
    numbers = np.asarray(batch.numbers)
    slots = np.asarray(neighbors.slots)[:, np.asarray(neighbors.columns.of_rows)]
    of_images = np.asarray(neighbors.of_images(batch.numbers))
    rows = np.flatnonzero(numbers)
    others = np.asarray(neighbors.others)
    np.testing.assert_array_equal(numbers[:4] + others[:4], 36 + 10)
    np.testing.assert_array_equal(others[8:21], 18)
    is_pair = slots[:, rows] != batch.n_rows
    found = of_images[slots[:, rows] & ~SPECIES_BIT]
    is_heavier = (slots[:, rows] & SPECIES_BIT) > 0
    expected = np.where(
        is_heavier, np.maximum(numbers, others)[rows], np.minimum(numbers, others)[rows]
    )
    np.testing.assert_array_equal(found[is_pair], expected[is_pair])
    assert is_pair.any() and not is_heavier[~is_pair].any()
    mixture.symbols[0] = "Xe"
    with pytest.raises(ValueError, match="system 0 has more than 2 elements"):
        NeighborTable(Batch.from_atoms([mixture, cluster]), CUTOFF, SKIN, **options)


def test_wide_chunks_go_as_far_as_the_longest_list_of_all():
    batch = Batch.from_atoms([STRUCTURES["cell of 108"]] * 6 + [STRUCTURES["cluster of 13"]])
    columns = NeighborTable(batch, CUTOFF, 0.5, lists=ChunkedLists).to_device().columns
    wide, n_slots = columns.wide(), np.asarray(columns.n_slots)
    assert len(n_slots) == 8 and wide.size == 4 * columns.size
    np.testing.assert_array_equal(wide.n_slots, n_slots.reshape(2, 4).max(1))
    assert (int(columns.n_chunks) + 3) // 4 == int(wide.n_chunks) == 2


def test_clusters_are_closed_together_as_one_after_another():
    draw = np.random.default_rng(0)
    clusters = [draw.normal(0, 4, (n, 3)) for n in (1, 2, 13, 31)]
    far_apart = clusters[2] + np.array([[0.0, 40.0, 0.0]] * 6 + [[0.0, 0.0, 0.0]] * 7)
    systems = [*clusters, far_apart]
    n, sizes = len(systems), np.array([len(x) for x in systems])
    none = np.zeros((n, 3, 3)), np.zeros((n, 3), bool)
    tasks = tasks_of(np.concatenate(systems), sizes, *none, 9.0, 1e-15)
    alone = [
        _closed(x, np.zeros((3, 3)), np.zeros(3, bool), radius)
        for x, radius in zip(systems, tasks.radii, strict=True)
    ]
    assert np.array_equal(tasks.positions, np.concatenate([ours for ours, _ in alone]))
    assert np.array_equal(tasks.cells, [box for _, box in alone])
    assert not np.array_equal(tasks.positions[-len(far_apart) :], far_apart)


def test_two_atoms_at_one_place_are_neighbours():
    batch = Batch.from_atoms([Atoms("Ar2", np.zeros((2, 3)))])
    assert listed(NeighborTable(batch, CUTOFF, SKIN), batch, 0) == [
        (0, 1, 0, 0, 0),
        (1, 0, 0, 0, 0),
    ]


SYSTEMS = [STRUCTURES[n] for n in ("cell of four", "skewed and tiny", "cell of 32", "open pair")]


def test_a_rebuild_writes_only_what_belongs_to_its_systems():
    batch = Batch.from_atoms(SYSTEMS)
    ids, table = np.asarray(batch.index.ids), NeighborTable(batch, CUTOFF, SKIN)
    before = table.to_device()
    shifted = moved(batch, np.asarray(batch.positions) * 0.9)
    assert not table.rebuild(shifted, np.array([False, True, False, True])).any()
    after, rebuilt = table.to_device(), np.isin(ids, [1, 3])
    n_slots = before.slots.shape[0]
    np.testing.assert_array_equal(before.slots[:, ~rebuilt], after.slots[:n_slots, ~rebuilt])
    assert (np.asarray(after.slots)[n_slots:, ~rebuilt] == batch.n_rows).all()
    np.testing.assert_array_equal(before.positions[~rebuilt], batch.positions[~rebuilt])
    np.testing.assert_array_equal(after.positions[rebuilt], shifted.positions[rebuilt])
    for k in (0, 2):
        assert listed(table, batch, k) == listed(NeighborTable(batch, CUTOFF, SKIN), batch, k)
    for k in (1, 3):
        assert listed(table, batch, k) == listed(NeighborTable(shifted, CUTOFF, SKIN), batch, k)


@pytest.mark.usefixtures("both_ways")
def test_each_pair_is_found_from_its_other_end_also_after_rebuilds():
    random = np.random.default_rng(0)
    atoms = [STRUCTURES[name] for name in SMALL]
    batch = Batch.from_atoms(atoms)
    table = NeighborTable(batch, CUTOFF, SKIN, reverse=True)
    for _ in range(4):
        for k in range(len(atoms)):
            assert listed_from_the_other_end(table, batch, k) == listed(table, batch, k)
        which = random.random(batch.n_systems) < 0.5
        noise = random.normal(0, 1.0, (batch.n_rows, 3))
        failed = table.rebuild(moved(batch, np.asarray(batch.positions) + noise), which)
        assert not failed.any()


def test_shifts_too_many_for_a_table_of_all_have_their_opposites(monkeypatch):
    monkeypatch.setattr("basinax.neighbors.search.MOST_TRIED", 0)
    monkeypatch.setattr("basinax.neighbors.numbering._DENSE_SHIFTS", 0)
    batch = Batch.from_atoms([STRUCTURES["skewed and tiny"], STRUCTURES["cell of four"]])
    table = NeighborTable(batch, CUTOFF, SKIN, reverse=True)
    for k in range(2):
        assert listed_from_the_other_end(table, batch, k) == listed(table, batch, k)


def test_only_who_asks_for_the_other_ends_of_pairs_gets_them():
    assert NeighborTable(Batch.from_atoms([fcc(1)]), CUTOFF, SKIN).to_device().reverse is None


@pytest.mark.parametrize("seed", range(3))
def test_many_rebuilds_end_in_the_list_of_a_fresh_table(seed):
    """Systems shrink and grow, so that stretches move and arrays become larger."""
    random = np.random.default_rng(seed)
    batch = Batch.from_atoms(SYSTEMS)
    table = NeighborTable(batch, CUTOFF, SKIN)
    ids = np.asarray(batch.index.ids)
    current = np.array(batch.positions)
    for _ in range(12):
        which = random.random(len(SYSTEMS)) < 0.5
        rows = np.isin(ids, np.flatnonzero(which))
        noise = random.normal(0, 2.0, current.shape)
        current[rows] = (np.asarray(batch.positions) + noise)[rows]
        assert not table.rebuild(moved(batch, current), which).any()
    fresh = NeighborTable(moved(batch, current), CUTOFF, SKIN)
    for k in range(len(SYSTEMS)):
        assert listed(table, batch, k) == listed(fresh, batch, k)
    potential = POTENTIALS["shifted"]
    one = jitted(potential, moved(batch, current), table.to_device())
    two = jitted(potential, moved(batch, current), fresh.to_device())
    for k in range(len(SYSTEMS)):
        for a, b in zip(results_of(batch, one, k), results_of(batch, two, k), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_system_without_usable_positions_keeps_its_list_and_is_reported(value):
    batch = Batch.from_atoms(SYSTEMS)
    table = NeighborTable(batch, CUTOFF, SKIN)
    before = listed(table, batch, 2)
    positions = np.array(batch.positions)
    positions[np.asarray(batch.index.ids) == 2] = value
    failed = table.rebuild(moved(batch, positions), np.array([True, False, True, True]))
    assert failed.tolist() == [False, False, True, False]
    assert listed(table, batch, 2) == before


def test_a_cell_too_small_for_a_list_is_named():
    with pytest.raises(ValueError, match=r"system 1: no neighbour list .* cell"):
        NeighborTable(Batch.from_atoms([fcc(1), bulk("Ar", "sc", a=0.2)]), CUTOFF, SKIN)


@pytest.mark.parametrize(("cutoff", "skin"), [(-1.0, 0.5), (8.0, -0.1), (np.nan, 0.5)])
def test_impossible_cutoffs_and_skins_are_refused(cutoff, skin):
    with pytest.raises(ValueError, match="cutoff and skin must be 0 or more"):
        NeighborTable(Batch.from_atoms([fcc(1)]), cutoff, skin)


def test_the_device_has_a_copy():
    batch = Batch.from_atoms(SYSTEMS)
    table = NeighborTable(batch, CUTOFF, SKIN)
    before = table.to_device()
    kept = jax.tree.map(np.array, before)
    table.rebuild(moved(batch, np.asarray(batch.positions) * 0.8), np.ones(len(SYSTEMS), bool))
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 64, 100])
def test_entries_are_gathered_from_tables_of_any_length(n):
    values = jnp.asarray(np.random.default_rng(n).normal(size=(2, n)))
    indices = jnp.asarray([n - 1, 0, n // 2, n - 1], jnp.int32)
    for table in (values, filled_up(values)):
        np.testing.assert_array_equal(gather(table, indices), values[:, indices])
        np.testing.assert_array_equal(jax.jit(gather)(table, indices), values[:, indices])
    length = filled_up(values).shape[1]
    assert length >= n > length // 2 and bin(length).count("1") == 1


def test_image_tables_have_a_power_of_two_of_entries_as_they_grow():
    atoms = fcc(2)
    atoms.pbc = False
    table, lengths = NeighborTable(Batch.from_atoms([atoms]), CUTOFF, SKIN), []
    for now in (atoms, fcc(2)):
        batch = Batch.from_atoms([now])
        table.rebuild(batch, np.ones(1, bool))
        neighbors = table.to_device()
        lengths.append(len(neighbors.of_images(jnp.ones(batch.n_rows))))
        assert lengths[-1] == batch.n_rows + 8 + len(neighbors.image_rows)
    assert lengths[0] < lengths[1]
    assert all(length & (length - 1) == 0 for length in lengths)


def test_images_are_where_their_shifts_put_them():
    atoms = STRUCTURES["skewed and tiny"]
    batch = Batch.from_atoms([fcc(1), atoms])
    neighbors = NeighborTable(batch, CUTOFF, SKIN).to_device()
    images = np.asarray(neighbors.images(batch.positions, batch.cells)).T
    np.testing.assert_array_equal(images[: batch.n_rows], batch.positions)
    assert (images[batch.n_rows] == 1e12).all()
    shifts = np.asarray(neighbors.shifts)[neighbors.image_shifts]
    cells = np.asarray(batch.cells)[np.asarray(neighbors.shift_systems)[neighbors.image_shifts]]
    expected = np.asarray(batch.positions)[neighbors.image_rows]
    expected = expected + np.einsum("nk,nkc->nc", shifts, cells)
    further = images[batch.n_rows + 1 :][: len(expected)]
    np.testing.assert_allclose(further, expected, atol=1e-12)


def test_only_systems_whose_own_atoms_moved_far_ask_for_a_list():
    batch = Batch.from_atoms([fcc(1)] * 5)
    neighbors = NeighborTable(batch, CUTOFF, SKIN).to_device()
    positions = np.array(batch.positions)
    positions[8, 0] += 0.2499
    positions[16:20] += [0.2, 0.1, 0.2]
    positions[24:28] = np.nan
    positions[4:8] += 100.0  # padding rows
    got = moved_too_far(jnp.asarray(positions), neighbors, batch.index, SKIN)
    assert got.tolist()[:5] == [False, False, True, False, False]


@pytest.mark.parametrize("lists", [Neighbors, ChunkedLists])
def test_gaps_between_images_close_before_arrays_grow(lists):
    """Cells shrink in turn, as places of a batch are taken by structures with more images."""
    mixture = rattled(fcc(1), 1)
    mixture.symbols[1:3] = "Kr"
    batch = Batch.from_atoms([mixture, STRUCTURES["cluster of 13"], rattled(fcc(1), 2), fcc(1)])
    options = {"lists": lists, "reverse": True, "most_elements": 2}
    table, scales = NeighborTable(batch, CUTOFF, SKIN, is_fitted=False, **options), np.ones(4)

    def scaled():
        by_row = np.append(scales, 1.0)[np.asarray(batch.index.ids)][:, None]
        cells = np.asarray(batch.cells) * scales[:, None, None]
        return dataclasses.replace(moved(batch, batch.positions * by_row), cells=jnp.asarray(cells))

    def found(table):
        """What each slot of each row holds: the row and shift of an image, and the bit."""
        neighbors = jax.tree.map(np.asarray, table.to_device())
        slots = neighbors.slots
        if lists is ChunkedLists:
            slots = slots[:, neighbors.columns.of_rows]
        images, shifts = slots & ~SPECIES_BIT, neighbors.shifts[neighbors.image_shifts]
        at = np.maximum(images - batch.n_rows - 1, 0)
        rows = np.where(images > batch.n_rows, neighbors.image_rows[at], images)
        return rows, np.where((images > batch.n_rows)[..., None], shifts[at], 0), slots - images

    n_moved = 0
    for turn in range(40):
        at = turn % 4
        scales[at] *= 0.98
        end = table._images.end
        assert not table.rebuild(scaled(), np.arange(4) == at).any()
        n_moved += table._images.end < end
    assert n_moved
    fresh = NeighborTable(scaled(), CUTOFF, SKIN, is_fitted=False, **options)
    assert len(table.image_rows) == len(fresh.image_rows)
    for ours, theirs in zip(found(table), found(fresh), strict=True):
        assert np.array_equal(ours[: len(theirs)], theirs)
        assert (ours[len(theirs) :] == ours[-1, -1]).all()
