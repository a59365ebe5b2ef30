"""Structures relaxed as they come: bits, order of reading, and what ends a stream."""

import threading

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms

from basinax import FIRE, Status
from basinax.atoms import Frechet, LennardJones, relax, relax_stream

pytestmark = pytest.mark.usefixtures("few_shapes")

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)


def crystals(n: int) -> list[Atoms]:
    made = [bulk("Ar", a=5.2 + 0.02 * (k % 4), cubic=True) for k in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
        atoms.info["name"] = f"crystal {k}"
    return made


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [t for t in threading.enumerate() if "ThreadPoolExecutor" in t.name] == []


@pytest.mark.parametrize("at_once", [3, 100])
def test_each_structure_ends_in_the_bits_of_relax_and_keeps_its_number(at_once):
    atoms = crystals(8)
    whole = relax(atoms, ARGON, FIRE(), fmax=0.01)
    found = dict(relax_stream(iter(atoms), ARGON, FIRE(), fmax=0.01, at_once=at_once))
    assert sorted(found) == list(range(8))
    for number, entry in found.items():
        assert np.array_equal(entry.atoms.positions, whole.atoms[number].positions)
        assert entry.energy == whole.energies[number]
        assert entry.initial_energy == whole.initial_energies[number]
        assert entry.displacement == whole.displacements[number] == whole[number].displacement
        assert 0 < entry.seconds < np.inf
        assert entry.steps == whole.steps[number]
        assert entry.status is Status.CONVERGED
        assert entry.source == str(number)
        assert entry.atoms.info["name"] == f"crystal {number}"


def test_no_more_are_read_than_are_worked_on():
    read, given = [], []

    def reader():
        for k, atoms in enumerate(crystals(9)):
            read.append(k)
            yield atoms

    stream = relax_stream(reader(), ARGON, FIRE(), fmax=0.01, at_once=3)
    assert read == []
    for number, _ in stream:
        given.append(number)
        assert len(read) - len(given) < 3
    assert sorted(given) == list(range(9))


def test_as_many_are_read_as_there_is_memory_for(monkeypatch):
    """By their rows, of which a structure of four atoms has eight."""
    monkeypatch.setattr("basinax.engine.relax_stream.host_memory", lambda: 16 * 1000 * 30)
    read, given = [], []

    def reader():
        for k, atoms in enumerate(crystals(9)):
            read.append(k)
            yield atoms

    for number, _ in relax_stream(reader(), ARGON, FIRE(), fmax=0.01):
        given.append(number)
        assert len(read) - len(given) < 4
    assert sorted(given) == list(range(9))


@pytest.mark.exhaustive
@pytest.mark.parametrize("at_once", [2, 5])
def test_structures_that_no_batch_has_room_for_wait_for_the_next(at_once):
    """Each is larger or has other constraints than all before it, or a cell that moves."""
    atoms = [bulk("Ar", a=5.2, cubic=True).repeat((k, 1, 1)) for k in (1, 2, 3, 1, 4)]
    for k, each in enumerate(atoms):
        each.rattle(0.1, seed=k)
    atoms[3].set_constraint(FixAtoms([0]))
    for cell in (None, "frechet"):
        whole = relax(atoms, ARGON, FIRE(), fmax=0.05, cell=cell)
        found = dict(
            relax_stream(iter(atoms), ARGON, FIRE(), fmax=0.05, cell=cell, at_once=at_once)
        )
        assert sorted(found) == list(range(5))
        for number, entry in found.items():
            assert np.array_equal(entry.atoms.positions, whole.atoms[number].positions)
            assert entry.energy == whole.energies[number]


def test_what_reads_structures_may_belong_to_the_thread_of_the_caller():
    """As a connection to SQLite does."""
    threads = set()

    def reader():
        for atoms in crystals(5):
            threads.add(threading.current_thread())
            yield atoms

    list(relax_stream(reader(), ARGON, FIRE(), fmax=0.01, at_once=2))
    assert threads == {threading.main_thread()}


def test_nothing_in_is_nothing_out():
    assert list(relax_stream([], ARGON, FIRE())) == []


def test_who_stops_iterating_ends_the_run():
    stream = relax_stream(crystals(6), ARGON, FIRE(), fmax=0.01, at_once=3)
    next(stream)
    stream.close()


def test_a_run_that_is_stopped_gives_back_what_has_ended():
    given = []
    stream = relax_stream(
        crystals(9), ARGON, FIRE(), fmax=0.01, at_once=3, should_stop=lambda: len(given) > 2
    )
    for number, entry in stream:
        given.append(number)
        assert entry.status is Status.CONVERGED
    assert 3 <= len(given) < 9


def test_a_run_that_is_stopped_does_not_raise_what_was_read_ahead():
    stream = relax_stream([*crystals(4), Atoms()], ARGON, FIRE(), should_stop=lambda: True)
    assert list(stream) == []


def test_a_structure_that_cannot_be_relaxed_is_named_after_those_before_it():
    given = []
    atoms = crystals(5)
    with pytest.raises(ValueError, match="system 0") as caught:
        for number, _ in relax_stream([*atoms[:4], Atoms()], ARGON, FIRE(), fmax=0.01, at_once=3):
            given.append(number)
    assert sorted(given) == [0, 1, 2, 3]
    assert "This is structure 4 of the input" in caught.value.__notes__[0]
    assert caught.value.__context__ is None  # errors of the groups that it was read with


@pytest.mark.parametrize("broken", [Atoms(), "no structure", OSError("the file ends here")])
def test_all_that_were_read_before_an_error_are_handed_out(broken):
    def read():
        yield from crystals(2)
        if isinstance(broken, Exception):
            raise broken
        yield broken
        yield from crystals(1)

    given = []
    with pytest.raises((ValueError, TypeError, OSError)) as caught:
        for number, _ in relax_stream(read(), ARGON, FIRE(), fmax=0.01):
            given.append(number)
    assert sorted(given) == [0, 1]
    notes = getattr(caught.value, "__notes__", [])
    is_of_reader = isinstance(broken, Exception)  # whose own text names no system
    assert notes == [] if is_of_reader else "structure 2 of the input" in notes[0]


def test_settings_are_one_for_all():
    with pytest.raises(TypeError, match="fmax must be one number for all"):
        relax_stream([], ARGON, FIRE(), fmax=np.array([0.1, 0.2]))
    with pytest.raises(TypeError, match=r"optimizer\.dt must be one number for all"):
        relax_stream([], ARGON, FIRE(dt=[0.1, 0.2]))
    for options in ({"fmax": [0.1]}, {"max_steps": (5,)}):
        with pytest.raises(TypeError, match=f"{min(options)} must be one number for all"):
            relax_stream([], ARGON, FIRE(), **options)
    with pytest.raises(TypeError, match="pressure must be one number for all"):
        relax_stream([], ARGON, FIRE(), cell=Frechet(pressure=[0.01, 0.02]))
    with pytest.raises(TypeError, match="cell must be one for all"):
        relax_stream([], ARGON, FIRE(), cell=["frechet", None])
    with pytest.raises(ValueError, match="at_once must be at least 1"):
        relax_stream([], ARGON, FIRE(), at_once=0)
    with pytest.raises(TypeError, match="should_stop"):
        relax_stream([], ARGON, FIRE(), should_stop=True)


def test_an_end_is_told_once_of_each_and_what_it_raises_ends_the_run():
    told = {}
    result = relax(crystals(4), ARGON, FIRE(), fmax=0.01, on_end=told.__setitem__)
    assert sorted(told) == [0, 1, 2, 3]
    assert all(told[k].energy == result.energies[k] for k in told)

    def full(number, entry):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        relax(crystals(4), ARGON, FIRE(), fmax=0.01, on_end=full)
    with pytest.raises(TypeError, match="on_end"):
        relax(crystals(1), ARGON, FIRE(), on_end=True)


def test_a_generator_that_goes_on_with_its_object_is_refused():
    """It would have changed before it is relaxed; a list may hold one object several times."""

    def steps(n_objects):
        objects = [bulk("Ar", a=5.0) for _ in range(n_objects)]
        for k in range(3):
            atoms = objects[k % n_objects]
            atoms.positions += 0.1
            yield atoms

    argon = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
    for n in (1, 2):
        ends, message = [], rf"structure {n} of the input .* yield atoms.copy\(\)"
        with pytest.raises(ValueError, match=message):
            ends.extend(relax_stream(steps(n), argon, max_steps=0))
        assert sorted(number for number, _ in ends) == list(range(n))
    assert len(list(relax_stream([*steps(1)], argon, max_steps=0))) == 3
