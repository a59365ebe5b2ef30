"""JAX models of others as potentials: the promise, derivatives, and models that are of no use."""

import dataclasses
import functools
import itertools
import re
import threading
from contextlib import closing
from pathlib import Path

import ase.optimize
import ase.optimize.lbfgs
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.calculators.mixing import SumCalculator
from ase.filters import FrechetCellFilter
from ase.geometry import wrap_positions
from ase.io import read, write
from ase.neighborlist import neighbor_list
from typer.testing import CliRunner

from basinax import BFGS, FIRE, LBFGSLineSearch, Status, chain, cli
from basinax.atoms import (
    AbstractSession,
    EvaluationError,
    Frechet,
    JaxModel,
    Request,
    Trajectories,
    evaluate,
    potential_from,
    relax,
)
from basinax.models import graphs, session as model_session
from basinax.models.graphs import SKIN, VerletList, shape_of
from comparison import same_ends
from cover import exhaustive
from follow_ase import follow_ase, walk_of_ase
from graph_models import CUTOFF, Direct, Network, NetworkCalculator, OfPositions, structures
from structures import STRUCTURES

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "nequix-mp-1.nqx"
"""Of a published model; they are no part of this project."""


pytestmark = pytest.mark.usefixtures("one_shape")


def network(**options) -> JaxModel:
    return JaxModel.of_vectors(Network(), CUTOFF, **options)


def found_of(model: JaxModel, atoms: list[Atoms], order: list[int]) -> dict:
    """What the model finds of structures that are asked for in this order, all at once."""
    with closing(model.open(atoms, [True] * len(atoms))) as session:
        return answers_of(session, [request_of(k, atoms[k]) for k in order])


def answers_of(session: AbstractSession, requests: list[Request]) -> dict:
    session.ask(requests)
    found = {}
    while len(found) < len(requests):
        found |= dict(session.answers(1.0))
    return found


def request_of(number: int, atoms: Atoms) -> Request:
    return Request(number, atoms.positions, _cell_of(atoms), needs_stress=True)


def _cell_of(atoms: Atoms) -> np.ndarray:
    return atoms.cell.array if atoms.pbc.any() else 20.0 * np.eye(3)


# --- the promise


@pytest.mark.parametrize(
    ("model", "options", "n_pairs"),
    [
        exhaustive(network(dtype="float32"), {"cell": "frechet"}, 0),
        exhaustive(JaxModel(OfPositions(Network()), CUTOFF), {}, 0),
        exhaustive(network(dtype="float32"), {"cell": "frechet"}, 600),
        (JaxModel(OfPositions(Network()), CUTOFF), {}, 1200),
    ],
    ids=[
        "vectors-float32-moving",
        "positions-float64",
        "side-by-side-float32-moving",
        "side-by-side-float64",
    ],
)
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(
    models_as_users, monkeypatch, model, options, n_pairs
):
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", n_pairs)
    # There are places for two to four of these eight, so the others take theirs.
    few, settings = structures()[::-1][:4], {"fmax": 0.05, "max_steps": 10, **options}
    batch = relax([*few, *few[::-1]], model, **settings)
    alone = [relax([a], model, **settings) for a in few]
    assert (batch.steps > 1).all()
    assert same_ends(batch, [*alone, *alone[::-1]])
    assert batch.steps.tolist() == [int(r.steps[0]) for r in [*alone, *alone[::-1]]]


def test_a_model_serves_ase_as_a_calculator():
    """In a sum, too, as with a dispersion correction."""
    crystals, model = structures()[2:4], network(dtype="float32")
    found = evaluate(crystals, model, stress=True)
    for k, atoms in enumerate(crystals):
        atoms.calc = model.calculator(label="network")
        assert atoms.get_potential_energy() == found.energies[k]
        assert "stress" not in atoms.calc.results  # it is found where it is asked for
        assert np.array_equal(atoms.get_stress(), found.stresses[k])
        assert np.array_equal(atoms.get_forces(), found.forces[k])
        atoms.calc = SumCalculator([model.calculator(), ASELennardJones(epsilon=0.01, rc=5.0)])
    settings = {"optimizer": FIRE(), "max_steps": 5}
    together = relax(crystals, **settings)
    assert same_ends(together, [relax([a], **settings) for a in crystals])
    direct = JaxModel.of_vectors(Direct(Network()), CUTOFF, dtype="float32", conservative=False)
    crystals[0].calc = direct.calculator()
    assert crystals[0].get_forces().shape == (2, 3)
    with pytest.raises(ValueError, match="the model has no stress"):
        crystals[0].get_stress()
    open_one = crystals[0].copy()
    open_one.pbc, open_one.calc = False, model.calculator()
    with pytest.raises(PropertyNotImplementedError):
        open_one.get_stress()


@pytest.mark.exhaustive
def test_no_bit_depends_on_when_lists_are_made(models_as_users, monkeypatch):
    few, cells, model = structures()[3:], [None, None, Frechet()], network(dtype="float32")
    seldom = relax(few, model, FIRE(), cell=cells, max_steps=10)
    monkeypatch.setattr("basinax.models.graphs.SKIN", 0.02)
    every = zip(few, cells, strict=True)
    assert same_ends(seldom, [relax([a], model, FIRE(), cell=c, max_steps=10) for a, c in every])


def test_what_is_not_finite_ends_its_structure_alone():
    atoms = structures()
    poisoned = eqx.tree_at(
        lambda n: n.embedding, Network(), replace_fn=lambda x: x.at[1].set(np.nan)
    )
    model = JaxModel.of_vectors(poisoned, CUTOFF)
    has_hydrogen = np.array([1 in a.numbers for a in atoms])
    result = relax(atoms, model, max_steps=5)
    assert (result.status[has_hydrogen] == Status.NOT_FINITE).all()
    others = [a for a, has in zip(atoms, has_hydrogen, strict=True) if not has]
    assert same_ends(
        relax(others, network(), max_steps=5), [relax([a], model, max_steps=5) for a in others]
    )
    assert np.array_equal(
        result.energies[~has_hydrogen], relax(others, model, max_steps=5).energies
    )


def test_structures_side_by_side_find_the_same_to_rounding(monkeypatch):
    atoms = structures()
    alone = relax(atoms, network(), FIRE(), max_steps=5)
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", 600)
    beside = relax(atoms, network(), FIRE(), max_steps=5)
    np.testing.assert_allclose(beside.energies, alone.energies, rtol=0, atol=1e-9)


@pytest.mark.exhaustive  # every day two threads take turns in other tests of this file
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_evaluations_at_a_time_have_the_bits_of_one(dtype, models_as_users, monkeypatch):
    """As on a GPU: the host prepares one, and takes turns, while the device works for another."""
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", 600)
    monkeypatch.setattr("basinax.structures.machine.CPU.model_threads", 1)
    model, settings = network(dtype=dtype), {"optimizer": FIRE(), "max_steps": 30, "fmax": 0.5}
    some = [molecule(name) for name in ("CH3CH2OH", "H2O", "CH3CHO", "CH4", "NH3")]
    crystals = [bulk("NaCl", "rocksalt", 5.6, cubic=True), bulk("Cu", cubic=True)]
    atoms = [a.copy() for a in [*some, *crystals] * 3]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    one_by_one = [relax([a], model, **settings) for a in atoms]
    assert len({int(r.steps[0]) for r in one_by_one}) > 3  # so that they leave places in turn
    evaluate, calls, meet = model_session.evaluate, itertools.count(), threading.Barrier(2)

    def seen(*arguments):
        if next(calls) < 2:
            meet.wait(60)  # raises unless another thread evaluates, too
        return evaluate(*arguments)

    monkeypatch.setattr("basinax.structures.machine.CPU.model_threads", 2)
    monkeypatch.setattr(model_session, "evaluate", seen)
    for order in (atoms, atoms[::-1]):
        ends = one_by_one if order is atoms else one_by_one[::-1]
        together = relax(order, model, **settings)
        assert same_ends(together, ends)
        assert together.steps.tolist() == [int(r.steps[0]) for r in ends]


def test_a_structure_that_is_not_finite_changes_none_beside_it(monkeypatch):
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", 600)
    atoms = [bulk("Cu", cubic=True, a=a) for a in (3.5, 3.6, 3.7)]  # all of one shape
    found = found_of(network(), atoms, [0, 1, 2])
    far = [request_of(k, a) for k, a in enumerate(atoms)]
    far[1] = far[1]._replace(positions=np.full((4, 3), np.nan))
    with closing(network().open(atoms, [True] * 3)) as session:
        answers = answers_of(session, far)
    assert isinstance(answers[1], EvaluationError)
    for k in (0, 2):
        assert answers[k].energy == found[k].energy
        assert np.array_equal(answers[k].forces, found[k].forces)


@pytest.mark.parametrize("n_pairs", [0, 600])
def test_a_structure_that_has_ended_gets_no_answer_until_it_is_asked_for_again(
    n_pairs, monkeypatch
):
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", n_pairs)
    atoms = [bulk("Cu", cubic=True), bulk("Cu", cubic=True)]
    requests = [request_of(k, a) for k, a in enumerate(atoms)]
    with closing(network().open(atoms, [True] * 2)) as session:
        session.ask(requests[:1])
        session.end(0)
        assert list(answers_of(session, requests[1:])) == [1]
        assert list(answers_of(session, [request_of(0, atoms[0])])) == [0]


@pytest.mark.parametrize("n_pairs", [0, 600])
def test_structures_that_began_first_are_evaluated_first(n_pairs, monkeypatch):
    """In one thread, one structure or several in a program."""
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", n_pairs)
    atoms = [bulk("Cu", cubic=True)] * 5
    requests = [request_of(k, a)._replace(rank=10 - k) for k, a in enumerate(atoms)]
    model = network().on(jax.devices()[:1])
    with closing(model.open(atoms, [True] * 5)) as session:
        assert list(answers_of(session, requests)) == [4, 3, 2, 1, 0]


def test_models_whose_sums_have_no_order_are_evaluated_one_at_a_time(monkeypatch, caplog):
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", 600)

    def energies(vectors, numbers, senders, receivers):
        del senders
        by_component = jnp.zeros((len(numbers), 3), vectors.dtype)
        for k in range(3):  # to single entries, not to rows
            by_component = by_component.at[receivers, k].add(vectors[:, k] ** 2)
        return by_component.sum(1)

    atoms = [bulk("Cu")]
    with caplog.at_level("INFO", logger="basinax"):
        session = JaxModel.of_vectors(energies, CUTOFF).open(atoms, [True])
    session.close()
    assert "one at a time: a scatter adds to single entries" in caplog.text


def test_models_that_differ_in_their_weights_share_programs():
    first, second = (JaxModel.of_vectors(Network(seed), CUTOFF) for seed in (1, 2))
    atoms = [molecule("CH3CH2OH"), molecule("CH3CHO")]
    energies = relax(atoms, first, max_steps=1).energies
    again = relax(atoms, second, max_steps=1)
    assert again.compilations == 0
    assert (again.energies != energies).all()


# --- programs


def sizes_of(graph: dict) -> int:
    return graph["senders"].shape[-1]


def test_programs_are_made_first_for_the_shape_that_most_structures_wait_for(monkeypatch):
    made, atoms = [], [bulk("Cu"), *[bulk("Cu", cubic=True).repeat((2, 2, 1))] * 3]
    monkeypatch.setattr("basinax.models.session.n_cores", lambda: 1)
    monkeypatch.setattr("basinax.models.session.prepare", lambda *args: made.append(args[-1]))
    found_of(network(), atoms, [0, 1, 2, 3])
    assert [sizes_of(graph) for graph in made] == [320, 160]


def test_structures_begin_whose_program_is_there(monkeypatch):
    atoms, may_end = [bulk("Cu", cubic=True).repeat((2, 2, 1)), bulk("Cu")], threading.Event()

    def prepare(*args):
        if sizes_of(args[-1]) > 160:
            may_end.wait(60)

    monkeypatch.setattr("basinax.models.session.n_cores", lambda: 2)
    monkeypatch.setattr("basinax.models.session.prepare", prepare)
    with closing(network().open(atoms, [True] * 2)) as session:
        session.ask([request_of(k, a) for k, a in enumerate(atoms)])
        while not (first := session.answers(1.0)):
            pass
        assert [number for number, _ in first] == [1]
        assert re.fullmatch(r"compiling 1 of 2 programs of Network \(\d+ s\)", session.phase())
        may_end.set()
        while not (second := session.answers(1.0)):
            pass
        assert [number for number, _ in second] == [0]
        assert session.phase() == ""


def test_progress_tells_what_is_compiled(monkeypatch):
    seen, is_told = [], threading.Event()

    def tell(progress):
        seen.append(progress)
        if progress.text:
            is_told.set()

    monkeypatch.setattr("basinax.models.session.prepare", lambda *_: is_told.wait(60))
    relax([bulk("Cu")], network(), max_steps=1, progress=tell)
    assert {p.phase for p in seen if p.text} == {"compiling"}
    assert next(p.text for p in seen if p.text).startswith("compiling 1 of 1 programs of Network (")
    assert (seen[-1].phase, seen[-1].text) == ("running", "")


def test_a_program_that_cannot_be_made_ends_the_structures_of_its_shape(monkeypatch):
    def prepare(*args):
        if sizes_of(args[-1]) > 160:
            raise RuntimeError("no such program")

    monkeypatch.setattr("basinax.models.session.prepare", prepare)
    atoms = [bulk("Cu", cubic=True).repeat((2, 2, 1)), bulk("Cu"), bulk("Cu")]
    found = found_of(network(), atoms, [0, 1, 2])
    assert "no such program" in str(found[0])
    assert np.isfinite([found[1].energy, found[2].energy]).all()


# --- ASE


@pytest.mark.parametrize(
    ("optimizer", "theirs"),
    [
        (FIRE(), ase.optimize.FIRE),
        exhaustive(BFGS(), ase.optimize.BFGS),
        exhaustive(LBFGSLineSearch(), ase.optimize.lbfgs.LBFGSLineSearch),
    ],
    ids=["fire", "bfgs", "line-search"],
)
def test_every_step_is_that_of_ase(tmp_path, optimizer, theirs, recorded):
    atoms = [structures()[k] for k in (0, 4)]
    where = Trajectories(tmp_path, interval=1)
    relaxed = relax(atoms, network(), optimizer, fmax=0.01, max_steps=25, trajectory=where)
    assert (relaxed.steps > 5).all()
    for k, a in enumerate(atoms):
        a.calc = NetworkCalculator()
        path = recorded(follow_ase, theirs, a, 0.01, 25)["positions"]
        ours = [frame.positions for frame in read(tmp_path / f"{k}.traj", ":")]
        assert len(ours) == len(path)
        # Sums in another order: some units in the last place, which steps make larger.
        np.testing.assert_allclose(ours, path, rtol=0, atol=1e-8)


def test_every_cell_is_that_of_ase(tmp_path, recorded):
    atoms = structures()[5]
    where = Trajectories(tmp_path, interval=1)
    relax([atoms], network(), FIRE(), cell="frechet", fmax=0.01, max_steps=20, trajectory=where)
    atoms.calc = NetworkCalculator()
    held, before = FrechetCellFilter(atoms), range(20)
    theirs = recorded(walk_of_ase, ase.optimize.FIRE, held, 0.01, 20, kept=before)
    ours = [frame.cell.array for frame in read(tmp_path / "0.traj", ":")]
    np.testing.assert_allclose(ours, theirs["cells"], rtol=0, atol=1e-8)


# --- derivatives and graphs


def test_forces_and_stress_are_derivatives_of_the_energy():
    atoms = structures()[0]
    both = {}
    for name, model in (
        ("vectors", network()),
        ("positions", JaxModel(OfPositions(Network()), CUTOFF)),
    ):
        both[name] = found = found_of(model, [atoms], [0])[0]
        step, moved = 1e-4, [atoms.copy() for _ in range(4)]
        moved[0].positions[3, 1] += step
        moved[1].positions[3, 1] -= step
        strain = np.eye(3)
        strain[0, 1] = strain[1, 0] = step / 2
        moved[2].set_cell(moved[2].cell @ strain, scale_atoms=True)
        strain[0, 1] = strain[1, 0] = -step / 2
        moved[3].set_cell(moved[3].cell @ strain, scale_atoms=True)
        energies = [e.energy for _, e in sorted(found_of(model, moved, [0, 1, 2, 3]).items())]
        slopes = -(energies[0] - energies[1]), (energies[2] - energies[3]) / atoms.get_volume()
        # Differences over 2e-4 err by its square and by the rounding of the energy over it.
        np.testing.assert_allclose(
            (found.forces[3, 1], found.stress[5]), np.array(slopes) / (2 * step), rtol=0, atol=1e-6
        )
    np.testing.assert_allclose(both["vectors"].forces, both["positions"].forces, atol=1e-12)
    np.testing.assert_allclose(both["vectors"].stress, both["positions"].stress, atol=1e-12)


@pytest.mark.parametrize("pbc", [(True,) * 3, (True, True, False), (False,) * 3])
def test_pairs_are_those_of_ase_in_one_order(pbc):
    atoms = structures()[3]
    atoms.pbc = pbc
    for cutoff in (3.0, 7.0):
        pairs = VerletList(atoms.pbc, atoms.numbers, cutoff)
        graph = pairs.graph(atoms.positions, atoms.cell.array)
        i, j, shifts, vectors = neighbor_list("ijSD", atoms, cutoff)
        order = np.lexsort([*shifts.T[::-1], j, i])
        assert np.array_equal(graph.receivers, i[order])
        assert np.array_equal(graph.senders, j[order])
        assert np.array_equal(graph.shifts, shifts[order])
        # ASE adds the terms of a vector in another order.
        np.testing.assert_allclose(graph.vectors, vectors[order], atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_list_that_follows_its_structure_has_the_pairs_of_a_fresh_one(name, dtype, monkeypatch):
    """Along a walk of atoms and cell, with a jump and a return into the cell."""
    atoms, random, made = STRUCTURES[name], np.random.default_rng(0), []
    make = graphs.pairs_of_each
    monkeypatch.setattr(graphs, "pairs_of_each", lambda *here: made.append(1) or make(*here))
    positions, cell = atoms.positions, atoms.cell.array
    following = VerletList(atoms.pbc, atoms.numbers, 4.0)
    for k in range(24):
        strain = np.eye(3) + (k % 3 > 0) * random.normal(0, 0.003, (3, 3))
        positions, cell = positions @ strain, cell @ strain
        width = 1.0 if k == 10 else 0.02 if k % 4 else 0.06
        positions = positions + random.normal(0, width, positions.shape)
        if k == 16:
            positions = wrap_positions(positions, cell, atoms.pbc)
        here = positions.astype(dtype).astype(float), cell.astype(dtype).astype(float)
        graph = following.graph(*here)
        fresh = VerletList(atoms.pbc, atoms.numbers, 4.0).graph(*here)
        for name in ("receivers", "senders", "shifts", "vectors"):
            assert np.array_equal(getattr(graph, name), getattr(fresh, name))
    assert 0 < len(made) - 24 < 24


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_graphs_made_at_once_are_those_of_each_alone(dtype):
    """Some with a list from before; one has no list."""
    random, each = np.random.default_rng(0), list(STRUCTURES.values())

    def lists():
        return [VerletList(a.pbc, a.numbers, 4.0) for a in each]

    def moved(width):
        places = [a.positions + random.normal(0, width, a.positions.shape) for a in each]
        return [place.astype(dtype).astype(float) for place in places]

    cells, together = np.array([a.cell.array for a in each]), lists()
    graphs.graphs_of(together[::2], moved(0.0)[::2], cells[::2])
    for width in (0.02, 0.5):
        here = moved(width)
        here[1] = np.full_like(here[1], np.nan)
        found = graphs.graphs_of(together, here, cells)
        assert isinstance(found.pop(1), ValueError)
        each_alone = list(zip(lists(), here, cells, strict=True))
        alone = [own.graph(*at) for own, *at in each_alone[:1] + each_alone[2:]]
        laid_out = graphs.VECTORS.arrays(found, 4.0, dtype)
        for ours, theirs, (shape, arrays) in zip(found, alone, laid_out, strict=True):
            assert all(map(np.array_equal, ours, theirs))
            ((other, others),) = graphs.VECTORS.arrays([theirs], 4.0, dtype)
            assert shape == other
            assert all(np.array_equal(arrays[name], others[name]) for name in others)


FAR = 4.0 + SKIN + 1e-3
"""A distance beyond lists of the cutoff 4 Å, in Å."""
APPROACHES = {
    # Two positions along x, the length of the cell, and how these change.
    "atoms": ([0.0, FAR], 0.0, [0.5, -0.5], 0.0),
    "images": ([0.0, 0.0], FAR, [0.0, 0.0], -1.0),
    "images of atoms that rest": ([0.0, -0.9 * FAR / 2.1], FAR / 2.1, [0.0, 0.0], -1 / 3),
    "images of atoms outside": ([0.0, -2.9 * FAR / 2.1], FAR / 2.1, [0.0, 0.0], -1 / 5),
}


@pytest.mark.parametrize("name", APPROACHES)
def test_a_list_has_a_pair_as_soon_as_it_is_within_the_cutoff(name):
    x, length, dx, change = (np.asarray(value) for value in APPROACHES[name])
    pbc, across = np.array([length > 0, False, False]), np.diag([0.0, 20.0, 20.0])
    following, n_pairs = VerletList(pbc, np.ones(2, int), 4.0), set()
    for t in np.linspace(0, SKIN + 0.01, 60):
        positions = np.stack([x + t * dx, [0.0, 0.01], [0.0, 0.0]], axis=1)
        here = positions, across + (length + t * change) * np.diag([1.0, 0, 0])
        senders = following.graph(*here).senders
        assert np.array_equal(senders, VerletList(pbc, np.ones(2, int), 4.0).graph(*here).senders)
        n_pairs.add(len(senders))
    assert len(n_pairs) > 1


@pytest.mark.parametrize(("series", "most"), [("few", 7), ("fine", 24)])
def test_shapes_hold_what_they_are_for_and_are_few(series, most):
    """The fine ones hold those of few shapes, of which the smallest serves small structures."""
    for cutoff in (2.0, 6.0):
        shapes, few = set(), set()
        for n_atoms in range(1, 100, 7):
            for n_edges in range(0, 6000, 97):
                shape = shape_of(n_atoms, n_edges, cutoff, series)
                assert shape.atoms >= n_atoms + 2
                assert shape.edges >= n_edges
                shapes.add(shape)
                few.add(shape_of(n_atoms, n_edges, cutoff))
        assert len(shapes) <= most
        assert all(shape_of(s.atoms - 2, s.edges, cutoff, series) == s for s in few)
    assert shape_of(3, 6, 6.0, series) == shape_of(12, 132, 6.0, series)


@pytest.mark.usefixtures("models_as_users")
def test_in_fine_shapes_a_structure_has_the_same_bits_alone_and_in_a_batch():
    few, model = structures()[3:], network(dtype="float32", shapes="fine")
    batch = relax([*few, *few[::-1]], model, FIRE(), cell="frechet", max_steps=4)
    alone = [relax([a], model, FIRE(), cell="frechet", max_steps=4) for a in few]
    assert same_ends(batch, [*alone, *alone[::-1]])


# --- models of packages


@pytest.mark.exhaustive
def test_a_trained_model_has_the_same_bits_alone_and_in_a_batch():
    pytest.importorskip("nequix.model", reason="nequix is not installed")
    if not WEIGHTS.exists():
        pytest.skip("the weights of Nequix-MP-1 are not beside the checkout")
    model = JaxModel.nequix(WEIGHTS)
    atoms = [bulk("Si"), bulk("GaAs", "zincblende", 5.7)]
    for k, a in enumerate(atoms):
        a.rattle(0.05, seed=k)
    batch = relax([*atoms, *atoms[::-1]], model, cell="frechet", max_steps=3)
    alone = [relax([a], model, cell="frechet", max_steps=3) for a in atoms]
    assert same_ends(batch, [*alone, *alone[::-1]])
    # PBE, of which it learned, has silicon at -5.42 eV an atom; it is rattled.
    assert -5.44 < batch.energies[0] / 2 < -5.40
    with pytest.raises(ValueError, match="the model does not know Po; it knows H, "):
        relax([bulk("Po", "sc", 3.3)], model)


# --- by name


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("nequix:", "no file"),
        ("nequix:{file}", "is no model of nequix"),
        ("nequix:{file},shapes=fine,dtype=int8", "dtype must be float32 or float64"),
        ("nequix:{file},shapes=all", "shapes must be few or fine"),
        ("python:{file}", "expected python:FILE.py:NAME"),
        ("python:{file}:nothing", "has no nothing, but EMT, make, number, energies"),
        ("python:{file}:number", "got int"),
        ("python:{file}:energies", "energies of .* needs vectors, numbers: NAME must be"),
        ("python:{broken}:make", "cannot be run: ZeroDivisionError"),
    ],
)
def test_a_text_that_names_no_model_raises(tmp_path, text, error):
    names = {"file": tmp_path / "models.py", "broken": tmp_path / "broken.py"}
    names["file"].write_text(MODELS)
    names["broken"].write_text("1 / 0")
    with pytest.raises(ValueError, match=error):
        potential_from(text.format(**names))


MODELS = """
from ase.calculators.emt import EMT

def make():
    return EMT()

number = 3

def energies(vectors, numbers, *others, sign=1):
    pass
"""


def test_a_file_of_python_makes_calculators_for_processes(tmp_path):
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    made = potential_from(f"python:{file}:make")
    atoms = [bulk("Cu", "fcc", 3.7, cubic=True)]
    there = relax(atoms, dataclasses.replace(made, workers=1), max_steps=2)
    assert same_ends(there, [relax(atoms, EMT(), max_steps=2)])


@pytest.mark.parametrize(
    ("config", "code", "text"),
    [
        (
            'potential = "python:models.py:make"\nworkers = 1',
            0,
            "models.py:make, whose code runs",
        ),
        ('potential = "emt"\nworkers = 1', 2, "--workers is for calculators of ASE and models"),
        ('potential = "emt"\nworker = 1', 2, "no option 'worker', did you mean 'workers'"),
    ],
)
def test_a_config_file_names_a_potential(tmp_path, monkeypatch, config, code, text):
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    Path("models.toml").write_text(config)
    write("copper.extxyz", bulk("Cu", "fcc", 3.7, cubic=True))
    arguments = ["relax", "copper.extxyz", "--potential", "models.toml", "--max-steps", "1"]
    ran = CliRunner().invoke(cli.app, [*arguments, "--fmax", "10"])
    assert ran.exit_code == code
    assert text in ran.stderr


def test_a_model_prints_as_one_line():
    assert str(network(species=("Si", "Cu"), dtype="float32")) == (
        "JaxModel(Network; Si, Cu; cutoff 4 Å; float32)"
    )
    assert str(network(shapes="fine")).endswith("; cutoff 4 Å; fine shapes)")
    every = network(species=range(1, 90))
    assert repr(every).endswith("(Network; H, He, Li, Be, B, C, N, O and 81 others; cutoff 4 Å)")
    assert repr(JaxModel(scalar, 4.0)) == "JaxModel(scalar; any element; cutoff 4 Å)"


def test_options_behind_a_file_are_told_if_it_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"expected nequix:FILE\[,dtype=float64\]"):
        potential_from("nequix:weights.nqx,dtpe=float64")


def test_where_weights_are_is_told_if_the_file_is_not_there():
    with pytest.raises(FileNotFoundError, match="atomicarchitects/nequix, such as"):
        JaxModel.nequix("weights.nqx")


# --- models that are of no use


def test_searches_along_lines_refuse_forces_that_are_no_derivatives():
    model = JaxModel.of_vectors(Direct(Network()), CUTOFF, conservative=False)
    with pytest.raises(TypeError, match="not conservative"):
        relax(structures()[:1], model, chain(LBFGSLineSearch()))
    found = found_of(network(), structures()[:1], [0])[0]
    atoms = structures()[0]
    relaxed = relax([atoms], model, FIRE(), max_steps=0).atoms[0]
    assert relaxed.get_potential_energy() == found.energy
    assert not np.allclose(relaxed.get_forces(), found.forces)


def test_forces_that_are_no_derivatives_step_with_fire_by_default():
    """`InternalLBFGS` judges its steps by energies."""
    model = JaxModel.of_vectors(Direct(Network()), CUTOFF, conservative=False)
    ours, fire = (relax(structures()[:1], model, o, max_steps=2) for o in (None, FIRE()))
    assert np.array_equal(ours.atoms[0].positions, fire.atoms[0].positions)


def scalar(vectors, numbers, senders, receivers):
    del numbers, senders, receivers
    return vectors.sum()


def broken(*arguments):
    raise RuntimeError("no weights")


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (lambda: JaxModel.of_vectors(scalar, 4.0), {}, TypeError, "energies of atoms of shape"),
        (lambda: JaxModel(broken, 4.0), {}, RuntimeError, "no weights"),
        (
            lambda: network(species=iter(["Si", "C"])),
            {},
            ValueError,
            "does not know Cu; it knows C, Si",
        ),
        (lambda: JaxModel.of_vectors(Network(), 60.0), {}, ValueError, "no neighbour list can be"),
        (
            lambda: JaxModel.of_vectors(Direct(Network()), CUTOFF, conservative=False),
            {"cell": "frechet"},
            ValueError,
            "but the model has no stress: choose another model",
        ),
        (
            lambda: JaxModel.of_vectors(Network(), CUTOFF, conservative=False),
            {},
            TypeError,
            "must return energies, forces and stress",
        ),
        (
            lambda: JaxModel.of_vectors(lambda v, numbers, *_: 2 * numbers, 4.0),
            {},
            TypeError,
            "energies of atoms as floats, got int",
        ),
    ],
    ids=["scalar", "raises", "species", "cutoff", "no-stress", "not-direct", "integers"],
)
def test_what_cannot_run_raises_before_it_runs(make, options, error, text):
    with pytest.raises(error) as raised:
        relax([bulk("Cu", cubic=True)], make(), **options)
    assert text in str(raised.value)


@dataclasses.dataclass
class Unhashable:
    def __call__(self, *arguments):
        return scalar(*arguments)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_weights_of_numpy_and_of_jax_and_keys_may_follow_each_other():
    def energies(weights, key, vectors, numbers, *_):
        del key, vectors
        return weights[:1] * jnp.full(len(numbers), 2.0)

    atoms, key = [bulk("Cu")], jax.random.key(0)
    for weights in (np.ones(2), jnp.ones(2), np.ones(2, np.float32), jnp.ones(2)):
        function = jax.tree_util.Partial(energies, weights, key)
        found = evaluate(atoms, JaxModel.of_vectors(function, 3.0, dtype="float32"))
        assert found.energies == [2.0] and found.messages == [""]


def test_a_charge_that_is_bound_or_changes_counts():
    def energies(positions, cell, numbers, senders, receivers, shifts, charge):
        return charge + 0.0 * positions[:, 0]

    bound = functools.partial(energies, charge=2.0)
    assert JaxModel(bound, 3.0).uses == JaxModel(jax.jit(bound), 3.0).uses == frozenset()
    atoms = Atoms("Ar2", [[0, 0, 0], [0, 0, 2]], info={"charge": 1})
    atoms.calc = JaxModel(energies, 3.0).calculator()
    assert atoms.get_potential_energy() == 2.0
    atoms.info["charge"] = 3
    assert atoms.get_potential_energy() == 6.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"energies": 3}, "energies must be a function"),
        ({"cutoff": -1.0}, "cutoff must be positive"),
        ({"species": "Cu"}, "species must be a sequence"),
        ({"species": ("Xx",)}, "'Xx' is no element"),
        ({"species": iter(["Xx"])}, "'Xx' is no element"),
        ({"species": (18.9,)}, "18.9 is no element"),
        ({"species": (True,)}, "True is no element"),
        ({"dtype": "int32"}, "dtype must be float32 or float64"),
        ({"dtype": "flot"}, "dtype must be float32 or float64, got 'flot'"),
        ({"energies": Unhashable()}, "energies must have a hash"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"shapes": "all"}, "unknown shapes 'all'"),
        ({"devices": [3]}, "devices must be some of JAX"),
    ],
)
def test_settings_that_are_of_no_use_raise(options, text):
    with pytest.raises((TypeError, ValueError), match=text):
        JaxModel(**({"energies": scalar, "cutoff": 4.0} | options))


def test_a_point_without_a_list_of_neighbours_ends_its_structure_alone():
    atoms = [molecule("H2O"), molecule("H2O")]
    far = np.full((3, 3), 1e9)
    with closing(network().open(atoms, [False, False])) as session:
        requests = [request_of(0, atoms[0])._replace(positions=far), request_of(1, atoms[1])]
        found = answers_of(session, requests)
    assert isinstance(found[0], EvaluationError)
    assert np.isfinite(found[1].energy)
