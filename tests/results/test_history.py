"""Histories: the numbers of steps, with the bits that structures have alone and without them."""

import itertools

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from basinax import FIRE
from basinax.atoms import ASECalculator, Frechet, LennardJones, relax, relax_stream
from basinax.engine.history_buffer import ROOM, HistoryBuffer

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=5.0)
CELLS = [None, Frechet(), None, Frechet(pressure=0.001), None, None, None, Frechet(), None]


def argon() -> list[Atoms]:
    sizes = (1, 1, 2, 1, 1, 3, 1, 2, 1)
    made = [bulk("Ar", a=5.2 + 0.03 * k, cubic=True).repeat((n, 1, 1)) for k, n in enumerate(sizes)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


def thinned(history, most: int):
    """The same with so many points at most, as the documentation says."""
    stride = next(n for n in (1, 2, 4, 8, 16, 32) if history.steps[-1] // n + 1 < most)
    kept = history.steps % stride == 0
    kept[-1] = True
    return type(history)(*(x if x is None else x[kept] for x in history))


def same(one, other) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b is None or np.array_equal(a, b) for a, b in pairs)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_histories_have_the_bits_that_structures_have_alone(few_shapes, few_places, dtype):
    settings = {"fmax": 0.005, "dtype": dtype, "max_steps": 60}
    plain = relax(argon(), ARGON, FIRE(), cell=CELLS, **settings)
    whole = relax(argon(), ARGON, FIRE(), cell=CELLS, history=True, **settings)
    few = relax(argon(), ARGON, FIRE(), cell=CELLS, history=7, **settings)
    for k, (full, part) in enumerate(zip(whole.history, few.history, strict=True)):
        assert np.array_equal(full.steps, np.arange(plain.steps[k] + 1))
        assert (full.energies[-1], full.fmax[-1]) == (plain.energies[k], plain.fmax[k])
        assert full.evaluations[-1] == plain.evaluations[k]
        assert (full.volumes is None) == (CELLS[k] is None)
        assert len(part.steps) <= 7 and same(part, thinned(full, 7))
    assert all(
        np.array_equal(a.positions, b.positions)
        for a, b in zip(whole.atoms, plain.atoms, strict=True)
    )
    for k in (3, 5):
        (alone,) = relax(
            [argon()[k]], ARGON, FIRE(), cell=CELLS[k], history=True, **settings
        ).history
        assert same(alone, whole.history[k])


def test_a_calculator_s_history_is_thinned_in_the_same_way():
    made = argon()[:3]
    settings = {"potential": ASECalculator(ARGON.calculator()), "optimizer": FIRE(), "fmax": 0.02}
    whole, few = (relax(made, history=points, **settings) for points in (True, 5))
    assert min(whole.steps) > 10
    for full, part in zip(whole.history, few.history, strict=True):
        assert len(full.steps) == full.steps[-1] + 1
        assert same(part, thinned(full, 5))


def test_a_stream_gives_histories_with_its_entries(few_shapes):
    made = argon()[:2]
    whole = relax(made, ARGON, FIRE(), history=9)
    for number, entry in relax_stream(iter(made), ARGON, FIRE(), history=9):
        assert same(entry.history, whole.history[number])
        assert entry.history.energies[-1] == entry.energy
    ((_, entry),) = relax_stream(iter(made[:1]), ARGON, FIRE())
    assert entry.history is None


def test_no_structures_have_no_history_and_no_plot(wells):
    none = relax(argon()[:1], ARGON, fmax=[0.05], max_steps=[3], history=True)[:0]
    assert none.history == []
    with pytest.raises(ValueError, match="no structures to plot"):
        none.plot()


@pytest.mark.parametrize("history", [1, 0, -3, 2.5, "yes", None])
def test_a_history_is_a_switch_or_a_number_of_points(history):
    with pytest.raises((TypeError, ValueError), match="history must be"):
        relax_stream([], ARGON, FIRE(), history=history)


@pytest.mark.parametrize("most", [2, 3, 8, 10 * ROOM])
def test_notes_keep_the_same_steps_however_looks_are_timed(most):
    """Places whose occupants change, some with steps that take several turns."""
    rng = np.random.default_rng(most)
    lengths = [3 * ROOM, 1, ROOM // 2, 5]
    for looks in ([1], [12], [5, 1, 7]):
        notes = HistoryBuffer(len(lengths), most)
        for generation in range(2):
            columns = [_of_place(rng, n) for n in lengths]
            turns = max(len(column) for column in columns)
            steps = np.stack(
                [np.pad(c, (0, turns - len(c)), constant_values=-1) for c in columns], 1
            )
            cuts = itertools.cycle(looks)
            at = 0
            while at < turns:
                here = steps[at : (at := at + next(cuts))]
                names = ("steps", "evaluations", "energies", "fmax")
                notes.add({name: here * (k + 1) for k, name in enumerate(names)} | {"steps": here})
            for k, n in enumerate(lengths):
                history = notes.of(k)
                stride = next(2**j for j in range(20) if (n - 1) // 2**j + 1 < most or n == 1)
                kept = sorted({*range(0, n, stride), n - 1})
                assert history.steps.tolist() == kept
                assert history.fmax.tolist() == [4.0 * step for step in kept]
            notes.begin(np.full(len(lengths), True))
            assert notes.of(0).steps.tolist() == [], generation


def test_turns_in_which_nothing_is_judged_need_no_room():
    """As where calculators fail one after another: the room had doubled each time."""
    notes = HistoryBuffer(3, 100)
    nothing = {"steps": np.full((1, 3), -1), "energies": np.zeros((1, 3))}
    for _ in range(10):
        notes.add(nothing)
    assert notes._kept["energies"].shape == (3, ROOM)


def _of_place(rng: np.random.Generator, n: int) -> np.ndarray:
    """Its steps from turn to turn, with turns between that end none."""
    turns = np.full(2 * n, -1)
    turns[np.sort(rng.choice(2 * n, n, replace=False))] = np.arange(n)
    return turns
