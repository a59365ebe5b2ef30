"""Edge lists, which a user's potential takes: in an order of their own, and differentiable."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from argon_of_users import CUTOFF, EPSILON, SIGMA, Argon, ByHand, ByRows, ByVectors, pair_energies
from basinax import FIRE, product
from basinax.atoms import (
    EMT,
    Batch,
    EdgeList,
    Frechet,
    LennardJones,
    Neighbors,
    NeighborTable,
    Properties,
    UnitCell,
    relax,
)
from comparison import same
from cover import cover, every_day, exhaustive
from structures import (
    STRUCTURES,
    evaluate,
    evaluate_as_users,
    fcc,
    jitted_as_users,
    listed,
    moved,
    rattled,
    results_of,
)

# Two of the potentials sum as derivatives of JAX do.
pytestmark = pytest.mark.filterwarnings("ignore::basinax.OrderWarning")

NAMES = ("cell of four", "skewed and tiny", "one open atom", "cluster of 13", "slab, open in z")
SYSTEMS = [STRUCTURES[name] for name in NAMES]


def turned(vectors, matrices):
    """v M of each edge, with rounded products."""
    terms = [
        product(jnp.broadcast_to(vectors[:, k, None], vectors.shape), matrices[:, k])
        for k in range(3)
    ]
    return terms[0] + terms[1] + terms[2]


def volumes(cells):
    a, b, c = jnp.moveaxis(cells, 1, 0)
    across = [
        product(b[:, k - 2], c[:, k - 1]) - product(b[:, k - 1], c[:, k - 2]) for k in range(3)
    ]
    return jnp.abs(sum(product(a[:, k], across[k]) for k in range(3)))


class ByStrain(Argon):
    """By the derivatives of the sum of all energies by positions and by a strain of each system."""

    def __call__(self, batch, edges, *, stress=False):
        def total(positions, strain):
            d = edges.vectors(positions, batch.cells)
            d = d + turned(d, strain[edges.systems])
            energies = edges.sum(pair_energies(d)) / 2
            energies = jnp.where(batch.index.has_system(), energies, 0.0)
            return jnp.sum(energies), energies

        by_both = jax.grad(total, argnums=(0, 1), has_aux=True)
        (gradient, virials), energies = by_both(batch.positions, jnp.zeros_like(batch.cells))
        virials = (virials + jnp.swapaxes(virials, 1, 2)) / 2
        stresses = virials / volumes(batch.cells)[:, None, None] if stress else None
        return Properties(batch.index.sum(energies), -gradient, energies, stresses)


OURS = LennardJones(EPSILON, SIGMA, CUTOFF)
USERS = {"vectors": ByVectors(), "strain": ByStrain(), "hand": ByHand(), "rows": ByRows()}
IN_ORDER = ("vectors", "strain", "hand")


# --- the arrays


def edges_of(batch, edges, k):
    """(receiver, sender, shift) of the k-th system in the order of the list, from its rows."""
    edges = jax.tree.map(np.asarray, edges)
    of_system = edges.mask & (edges.systems == k)
    start = np.argmax(np.asarray(batch.index.ids) == k)
    ends = np.stack([edges.receivers, edges.senders], 1)[of_system] - start
    return np.concatenate([ends, edges.shifts[of_system]], 1).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_stand_in_an_order_that_each_structure_alone_decides(dtype):
    batch = Batch.from_atoms(SYSTEMS, dtype)
    edges = NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList).lists()
    for k, atoms in enumerate(SYSTEMS):
        alone = Batch.from_atoms([atoms], dtype)
        expected = edges_of(alone, NeighborTable(alone, CUTOFF, 0.5, lists=EdgeList).lists(), 0)
        assert edges_of(batch, edges, k) == expected == sorted(expected)
    n_edges = int(edges.mask.sum())
    assert edges.mask[:n_edges].all() and n_edges < len(edges.mask)
    assert (edges.receivers[n_edges:] == batch.n_rows - 1).all()
    assert (np.diff(edges.receivers) >= 0).all()


def test_each_edge_has_its_reverse_and_each_receiver_its_edges():
    batch = Batch.from_atoms(SYSTEMS)
    table = NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList)
    which = np.arange(batch.n_systems) != 1
    for edges in (table.lists(), table.lists(which)):
        there = edges.mask
        back = edges.reverse[there]
        np.testing.assert_array_equal(edges.receivers[back], edges.senders[there])
        np.testing.assert_array_equal(edges.senders[back], edges.receivers[there])
        np.testing.assert_array_equal(edges.shifts[back], -edges.shifts[there])
        of_rows = np.repeat(np.arange(batch.n_rows), edges.counts)
        np.testing.assert_array_equal(edges.receivers[there], of_rows)
        np.testing.assert_array_equal(
            np.flatnonzero(np.diff(of_rows, prepend=-1)), edges.starts[edges.counts > 0]
        )
    assert edges_of(batch, edges, 1) == [] != edges_of(batch, edges, 0)


def test_rebuilt_edges_are_those_of_a_fresh_table():
    random, batch = np.random.default_rng(0), Batch.from_atoms(SYSTEMS)
    table = NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList)
    for width in (1.0, 3.0):
        there = moved(
            batch, np.asarray(batch.positions) + random.normal(0, width, (batch.n_rows, 3))
        )
        which = np.arange(batch.n_systems) % 2 == 0
        table.rebuild(there, which)
        fresh = NeighborTable(there, CUTOFF, 0.5, lists=EdgeList)
        for k in np.flatnonzero(which[: len(SYSTEMS)]):
            assert edges_of(batch, table.lists(), k) == edges_of(batch, fresh.lists(), k)


def test_batches_of_like_amounts_of_edges_have_arrays_of_one_length():
    lengths = set()
    for seed in range(8):
        batch = Batch.from_atoms([rattled(fcc(2), seed, 0.2), rattled(fcc(1), seed, 0.2)])
        lengths.add(len(NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList).lists().mask))
    assert len(lengths) == 1


# --- what is computed of them


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_lead_to_the_images_of_the_lists_by_rows(dtype):
    batch = Batch.from_atoms(SYSTEMS, dtype)
    rows = NeighborTable(batch, CUTOFF, 0.5).to_device()
    edges = NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList).to_device()
    images = np.stack(rows.images(batch.positions, batch.cells), 1)
    slots = np.asarray(rows.slots).T
    receivers, at = np.nonzero(slots != batch.n_rows)
    expected = images[slots[receivers, at]] - np.asarray(batch.positions)[receivers]
    for vectors in (edges.vectors, eqx.filter_jit(edges.vectors)):
        got = np.asarray(vectors(batch.positions, batch.cells))
        np.testing.assert_array_equal(got[np.asarray(edges.mask)], expected)
        assert (got[~np.asarray(edges.mask)] == 10.0).all()
    near = edges.within(CUTOFF, batch.positions, batch.cells)
    lengths = np.linalg.norm(expected, axis=1)
    np.testing.assert_array_equal(np.asarray(near.mask)[: len(lengths)], lengths <= CUTOFF)


def test_derivatives_are_those_of_plain_indexing():
    """And what stands in padding adds nothing to them, NaN included."""
    batch = Batch.from_atoms(SYSTEMS)
    edges = NeighborTable(batch, CUTOFF, 0.5, lists=EdgeList).to_device()
    random, there = np.random.default_rng(0), np.asarray(edges.mask)
    weights = jnp.asarray(np.where(there[:, None], random.normal(size=(len(there), 3)), np.nan))
    of_rows = jnp.asarray(random.normal(size=(batch.n_rows, 3)))
    known = jnp.where(there[:, None], weights, 0.0)

    def plain_sum(x):
        return jax.ops.segment_sum(x, edges.receivers, batch.n_rows)

    np.testing.assert_allclose(edges.sum(weights), plain_sum(known), rtol=1e-12, atol=1e-12)
    for ours, plain in (
        (edges.of_senders, lambda x: x[edges.senders]),
        (edges.of_receivers, lambda x: x[edges.receivers]),
    ):
        np.testing.assert_array_equal(ours(of_rows), plain(of_rows))
        got, expected = (jax.vjp(f, of_rows)[1](w)[0] for f, w in ((ours, weights), (plain, known)))
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
        twice = [
            jax.grad(lambda x, f=f: jnp.sum(jnp.sin(edges.sum(f(x) ** 2))))(of_rows)
            for f in (ours, plain)
        ]
        np.testing.assert_allclose(*twice, rtol=1e-10, atol=1e-10)
    got = jax.grad(lambda w: jnp.sum(edges.sum(w) * of_rows))(weights)
    np.testing.assert_array_equal(got, jnp.where(there[:, None], of_rows[edges.receivers], 0.0))


DTYPES = [np.float32, np.float64]


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(*cover("name, dtype", list(USERS), DTYPES, strength=1))
def test_a_users_potential_agrees_with_ours(name, dtype):
    batch, got = evaluate(SYSTEMS, USERS[name], dtype)
    expected = evaluate(SYSTEMS, OURS, dtype)[1]
    error = 2e-6 if dtype == np.float32 else 1e-13
    close = {"rtol": error, "atol": 10 * error}
    atoms = np.asarray(batch.numbers) > 0
    np.testing.assert_allclose(got.energies, expected.energies, **close)
    np.testing.assert_allclose(got.forces, expected.forces, **close)
    np.testing.assert_allclose(got.atom_energies[atoms], expected.atom_energies[atoms], **close)
    if got.stress is not None:
        solid = [NAMES.index("cell of four"), NAMES.index("skewed and tiny")]
        stresses = (np.asarray(p.stress)[solid] for p in (got, expected))
        np.testing.assert_allclose(*stresses, **close)


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("vectors", np.float32),
        ("hand", np.float64),
        exhaustive("vectors", np.float64),
        exhaustive("hand", np.float32),
        *(exhaustive("strain", dtype) for dtype in (np.float32, np.float64)),
    ],
)
def test_documented_sums_keep_the_bits_of_each_structure(name, dtype):
    """In any order, beside NaN, from lists with and without a skin; the stress too."""
    potential = USERS[name]
    batch = Batch.from_atoms(SYSTEMS[::-1], dtype)
    positions = np.array(batch.positions)
    broken = 1
    positions[np.asarray(batch.index.ids) == broken] = np.nan
    got = jitted_as_users(potential, moved(batch, positions), listed(batch, potential, skin=1.5))
    for k, atoms in enumerate(SYSTEMS[::-1]):
        if k != broken:
            alone = evaluate_as_users([atoms], potential, dtype, skin=0.0)
            for a, b in zip(found(batch, got, k), found(*alone, 0), strict=True):
                np.testing.assert_array_equal(a, b)
    assert np.isnan(got.energies[broken])


def found(batch, properties, k):
    if properties.stress is None:
        properties = eqx.tree_at(
            lambda p: p.stress, properties, properties.energies, is_leaf=lambda x: x is None
        )
    return results_of(batch, properties, k)


# --- relaxations


def crystals(n):
    """Of different sizes and numbers of neighbours."""
    return [rattled(fcc(1, 5.2 + 0.02 * k).repeat((1 + k % 2, 1, 1)), k) for k in range(n)]


MOVING = {
    "vectors": [Frechet(), None, Frechet(pressure=0.001), Frechet(), None, Frechet()],
    "strain": UnitCell(),
    "hand": None,
    "rows": None,
}


@pytest.mark.usefixtures("few_shapes", "few_places")
# Cells move with "vectors" every day on a page, docs/extending/potential.md.
@pytest.mark.parametrize("name", every_day(list(USERS), ("hand", "rows").__contains__))
def test_a_users_potential_relaxes_like_ours(name):
    """With more structures than places, and lists so short that they are made anew."""
    structures, potential, cells = crystals(6), USERS[name], MOVING[name]
    settings = {"fmax": 0.01, "skin": 0.05}
    got = relax(structures, potential, FIRE(), cell=cells, **settings)
    expected = relax(structures, OURS, FIRE(), cell=cells, **settings)
    assert got.converged.all()
    np.testing.assert_array_equal(got.steps, expected.steps)
    np.testing.assert_allclose(got.energies, expected.energies, rtol=0, atol=1e-9)
    if name in IN_ORDER:
        cell = cells[5] if isinstance(cells, list) else cells
        assert same(relax([structures[5]], potential, FIRE(), cell=cell, **settings), 0, got, 5)


class Misled(Argon):
    def __call__(self, batch, neighbors, *, stress=False):
        return Properties(
            batch.index.sum(neighbors.slots[0]), batch.positions, batch.positions[:, 0]
        )


class Formless(ByVectors):
    lists: ClassVar = "edges"


def test_a_potential_that_takes_another_form_than_it_reads_is_corrected():
    with pytest.raises(AttributeError, match=r"'slots'.*lists = Neighbors"):
        relax([fcc(1)], Misled(), FIRE())
    with pytest.raises(TypeError, match=r"Formless.lists must be EdgeList or Neighbors.*'edges'"):
        relax([fcc(1)], Formless(), FIRE())


def test_each_potential_of_ours_takes_the_lists_that_it_says():
    batch = Batch.from_atoms([fcc(1)])
    for form in (EdgeList, Neighbors, EMT.lists):
        assert type(NeighborTable(batch, CUTOFF, 0.5, lists=form).lists()) is form
