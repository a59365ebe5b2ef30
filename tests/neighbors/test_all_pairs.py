"""Isolated clusters without a cutoff: all pairs count, and lists are made once."""

import itertools

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.cluster import Icosahedron

from basinax import FIRE
from basinax.atoms import (
    Batch,
    EdgeList,
    LennardJones,
    Morse,
    NeighborTable,
    evaluate,
    potential_from,
    relax,
)
from comparison import same
from cover import exhaustive

ARGON = LennardJones(0.0104, 3.4, cutoff=None)
MORSE = Morse(0.0134784, 5.849, 3.786, rcut2=None)


def clusters() -> list[Atoms]:
    """Of 1 to 55 atoms, one with a far part; off their minima."""
    made = [
        Atoms("Ar13", Icosahedron("Ar", 2, latticeconstant=5.4).positions),
        Atoms("Ar2", [[0, 0, 0], [0, 0, 40.0]]),
        Atoms("Ar55", Icosahedron("Ar", 3, latticeconstant=5.4).positions + 1e3),
        Atoms("Ar"),
        Atoms("Ar5", np.random.default_rng(3).uniform(0, 6, (5, 3))),
    ]
    made[0] += Atoms("Ar", [[0, 0, 5e4]])
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


def lennard_jones(r):
    c6 = (3.4 / r) ** 6
    return 4 * 0.0104 * (c6 * c6 - c6)


def morse(r):
    x = np.exp(5.849 * (1 - r / 3.786))
    return 0.0134784 * (x * x - 2 * x)


@pytest.mark.parametrize(
    ("potential", "pair"), [(ARGON, lennard_jones), (MORSE, morse)], ids=["Lennard-Jones", "Morse"]
)
def test_energies_are_sums_over_all_pairs_and_forces_their_derivatives(potential, pair):
    def energy(positions):
        d = [np.linalg.norm(a - b) for a, b in itertools.combinations(positions, 2)]
        return sum(map(pair, d))

    some = [atoms for atoms in clusters() if len(atoms) < 20]
    found = evaluate(some, potential, dtype="float64")
    for k, atoms in enumerate(some):
        assert found.energies[k] == pytest.approx(energy(atoms.positions), rel=1e-12, abs=1e-15)
        ends = []
        for h in (-1e-5, 1e-5):
            moved = atoms.positions.copy()
            moved[-1, 0] += h
            ends.append(energy(moved))
        slope = (ends[1] - ends[0]) / 2e-5
        assert found.forces[k][-1, 0] == pytest.approx(-slope, rel=1e-6, abs=1e-9)


def test_a_cutoff_beyond_all_atoms_gives_nearly_the_same():
    cluster = clusters()[2]
    cut = LennardJones(0.0104, 3.4, cutoff=200.0)
    all_pairs, cut = (evaluate([cluster], p, dtype="float64").energies[0] for p in (ARGON, cut))
    assert all_pairs == pytest.approx(cut, rel=1e-7)


@pytest.mark.filterwarnings("ignore:positions are so far from the origin:UserWarning")
@pytest.mark.usefixtures("few_shapes", "exhaustively_as_users")
@pytest.mark.parametrize(("potential", "dtype"), [(ARGON, "float32"), exhaustive(MORSE, "float64")])
def test_a_cluster_has_the_same_bits_alone_and_in_a_batch(potential, dtype, monkeypatch):
    listed = []
    rebuild = NeighborTable.rebuild

    def counted(self, batch, which):
        listed.append(int(which.sum()))
        return rebuild(self, batch, which)

    monkeypatch.setattr(NeighborTable, "rebuild", counted)

    def ends(atoms):
        return relax(atoms, potential, FIRE(), fmax=1e-3, max_steps=60, dtype=dtype)

    many = clusters() * 2
    batch = ends(many)
    assert sum(listed) == len(many), "lists of all pairs are made once"
    moves = np.linalg.norm(batch.atoms[4].positions - many[4].positions, axis=1)
    assert batch.steps.max() > 10 and moves.max() > 0.5
    order = [4, 1, 0]
    other = ends([many[k] for k in order])
    for place, k in enumerate(order):
        alone = ends([many[k]])
        for result, at in ((batch, k), (batch, k + 5), (other, place)):
            assert same(alone, 0, result, at)


def test_a_periodic_structure_is_refused_by_name():
    periodic = [Atoms("Ar"), bulk("Ar", a=5.3)]
    message = r"system 1 \(Ar\) is periodic, .*no cutoff.* Give a cutoff"
    for run in (relax, evaluate):
        with pytest.raises(ValueError, match=message):
            run(periodic, ARGON, dtype="float64")
    periodic[1].calc = ARGON.calculator()
    with pytest.raises(ValueError, match=r"system 0 \(Ar\) is periodic"):
        periodic[1].get_potential_energy()
    batch = Batch.from_atoms(periodic)
    with pytest.raises(ValueError, match="system 1: no neighbour list"):
        NeighborTable(batch, np.inf, 0.0)
    with pytest.raises(ValueError, match="lists of edges need a cutoff"):
        NeighborTable(batch, np.inf, 0.0, lists=EdgeList)


def test_a_calculator_takes_clusters():
    cluster = clusters()[0]
    cluster.calc = ARGON.calculator(dtype="float64")
    assert cluster.get_potential_energy() == evaluate([cluster], ARGON, dtype="float64").energies[0]


def test_it_is_made_from_text_and_says_so():
    for text in ("lennard-jones:epsilon=0.0104,sigma=3.4,cutoff=none", "morse:rcut2=none"):
        assert potential_from(text).cutoff == np.inf
        assert "all pairs" in repr(potential_from(text))
    with pytest.raises(ValueError, match="sigma must be a number, got none"):
        potential_from("lennard-jones:epsilon=1,sigma=none")


def test_what_needs_a_cutoff_is_named():
    with pytest.raises(ValueError, match="smooth=True and onset need a cutoff"):
        LennardJones(cutoff=None, smooth=True)
    with pytest.raises(ValueError, match="must be a number, a mapping, None or '3 sigma'"):
        LennardJones(cutoff="long")
