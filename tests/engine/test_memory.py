"""Batches that are too large for the memory: halved, and begun again from the input."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

import torch_stub
from basinax import BFGS, FIRE, LBFGS, Status
from basinax.atoms import (
    ASECalculator,
    JaxModel,
    LennardJones,
    TorchSimModel,
    evaluate,
    relax,
)
from basinax.engine import hosted, on_device, run
from basinax.engine.slots import Slots
from basinax.models import session
from basinax.models.session import Lanes
from basinax.numerics.memory import host_memory, memory_of
from basinax.numerics.oom import is_out_of_memory
from basinax.systems.index import index_of_sizes
from comparison import same_ends
from cover import exhaustive

ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=5.0)


class Greedy(LennardJones):
    """Takes more memory than there is, for more rows than 16."""

    def __call__(self, batch, neighbors, *, stress=False):
        if batch.n_rows > 16:
            raise MemoryError
        return super().__call__(batch, neighbors, stress=stress)


def argon(n: int = 9) -> list[Atoms]:
    made = [bulk("Ar", a=5.2 + 0.02 * k, cubic=True) for k in range(n)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


def same(a, b) -> bool:
    columns = ("energies", "fmax", "steps", "evaluations", "status")
    return all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns) and all(
        np.array_equal(x.positions, y.positions) for x, y in zip(a.atoms, b.atoms, strict=True)
    )


@pytest.fixture(scope="module")
def whole():
    return relax(argon(), ARGON, FIRE(), fmax=0.01, history=True)


def test_a_batch_that_is_too_large_is_halved_with_the_same_bits(few_places, whole):
    greedy = Greedy(epsilon=0.0104, sigma=3.40, cutoff=5.0)
    with pytest.warns(RuntimeWarning, match="begin again, in batches of .* rows instead of"):
        found = relax(argon(), greedy, FIRE(), fmax=0.01)
    assert same(found, whole)


@pytest.mark.parametrize("calls", [exhaustive(1), 3])
def test_memory_that_runs_out_on_the_way_changes_no_bit(calls, few_places, whole, monkeypatch):
    """After some looks, when structures have ended and others have taken their places."""
    advance, seen = dict(on_device.noted), []

    def exhausted(*arguments):
        batch = arguments[2]
        seen.append(batch.n_rows)
        if batch.n_rows > 16 and len(seen) > calls:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
        return advance[True](*arguments)

    monkeypatch.setattr(on_device, "noted", {True: exhausted, False: exhausted})
    ended = []
    with pytest.warns(RuntimeWarning, match="memory has run out"):
        found = relax(
            argon(), ARGON, FIRE(), fmax=0.01, history=True, on_end=lambda k, _: ended.append(k)
        )
    assert sorted(ended) == list(range(9))
    assert same(found, whole)
    for a, b in zip(found.history, whole.history, strict=True):
        assert np.array_equal(a.steps, b.steps)
        assert np.array_equal(a.energies, b.energies)


def test_what_has_ended_is_kept_where_memory_runs_out_for_its_results(
    few_places, whole, monkeypatch
):
    made, calls = Slots._outcomes, itertools.count()

    def short(*arguments):
        if next(calls) == 1:
            raise MemoryError
        return made(*arguments)

    monkeypatch.setattr(Slots, "_outcomes", short)
    with pytest.warns(RuntimeWarning, match="memory has run out"):
        found = relax(argon(), ARGON, FIRE(), fmax=0.01, history=True)
    assert same(found, whole)


def test_no_structure_is_lost_where_memory_runs_out_before_others_close_up(few_places, monkeypatch):
    """Those that were to begin wait again."""
    atoms, calls = argon(), itertools.count()
    del atoms[1][3:], atoms[4][5:]  # of other sizes than their neighbours
    atoms = [a.repeat((1, 1, 1 + k % 3)) for k, a in enumerate(atoms)]
    whole = relax(atoms, ARGON, FIRE(), fmax=0.01)

    def short(self):
        if next(calls) == 0:
            raise MemoryError
        return True

    monkeypatch.setattr(on_device.DeviceBackend, "may_close_up", short)
    with pytest.warns(RuntimeWarning, match="memory has run out"):
        found = relax(atoms, ARGON, FIRE(), fmax=0.01)
    assert same(found, whole)


def test_points_are_evaluated_in_smaller_batches_where_memory_runs_out(monkeypatch):
    monkeypatch.setattr("basinax.structures.machine.CPU.few_point_rows", 8)
    greedy, atoms = Greedy(epsilon=0.0104, sigma=3.40, cutoff=5.0), argon()
    whole = evaluate(atoms, ARGON, stress=True)
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        found = evaluate(atoms, greedy, stress=True)
    for name in ("energies", "forces", "stresses"):
        assert np.array_equal(getattr(found, name), getattr(whole, name))
    with pytest.raises(MemoryError), pytest.warns(RuntimeWarning):
        evaluate([*atoms, bulk("Ar", cubic=True).repeat((2, 2, 2))], greedy)


def test_a_structure_that_is_too_large_by_itself_raises(few_places):
    crystal = bulk("Ar", cubic=True).repeat((2, 2, 2))
    greedy = Greedy(epsilon=0.0104, sigma=3.40, cutoff=5.0)
    with pytest.raises(MemoryError, match=r"cannot be smaller: 1 structures .* of 32 atoms"):
        relax([crystal], greedy, FIRE())


@pytest.mark.parametrize(
    ("optimizer", "memory"),
    [(FIRE(), 1 << 21), (LBFGS.ase(), 1 << 24), (BFGS(), 1 << 24)],
    ids=["FIRE", "LBFGS", "BFGS"],
)
def test_batches_are_as_large_as_memory_allows(optimizer, memory, monkeypatch):
    """Half of the memory serves the host's two threads."""
    atoms, shapes = [bulk("Ar", cubic=True).repeat(2) for _ in range(24)], []
    monkeypatch.setattr("basinax.engine.groups.n_cores_used", lambda: 2)

    def stop(groups, *_):
        shapes.extend(group.group.shape for group in groups)
        raise StoppedError

    monkeypatch.setattr(run, "in_threads", stop)
    for n_bytes in (1 << 40, memory, 1 << 10):
        monkeypatch.setattr("basinax.engine.sizes.memory_of", lambda _, n=n_bytes: n)
        with pytest.raises(StoppedError):
            relax(atoms, ARGON, optimizer)
    large, fitting, least = shapes
    assert large[0] > fitting[0] > least[0] == 32
    assert least[1] == 1
    # Of a batch that is full, which has its state twice at least: before and after its steps.
    index = index_of_sizes([32] * (fitting[0] // 32), n_rows=fitting[0], align=8)
    state = jax.tree.leaves(optimizer.init(np.zeros((fitting[0], 3)), index))
    assert 2 * sum(np.asarray(x).nbytes for x in state) < memory / 4


class StoppedError(Exception):
    """Batches have their shapes, and none runs."""


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room"))
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no such option"))
    assert not is_out_of_memory(ValueError("Out of memory"))
    assert is_out_of_memory(OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    of_torch = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate"
    assert is_out_of_memory(RuntimeError(of_torch))
    assert not is_out_of_memory(RuntimeError("SCF did not converge"))


def test_the_memory_of_a_device_is_what_jax_reports_or_that_of_the_host():
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 12345}

    assert memory_of(Device()) == 12345
    assert memory_of() == host_memory() > 1 << 28


# --- structures that the host evaluates


@pytest.mark.parametrize("calls", [exhaustive(0), 2])
def test_a_batch_of_a_calculator_that_is_too_large_is_halved_with_the_same_bits(
    calls, few_places, monkeypatch
):
    settings = {"optimizer": FIRE(), "fmax": 0.05, "history": True}
    calculator = ASECalculator(ARGON.calculator())
    whole = relax(argon(6), calculator, **settings)
    turn, seen = hosted._turn, []

    def exhausted(*arguments):
        batch = arguments[2]
        seen.append(batch.n_rows)
        if batch.n_rows > 16 and len(seen) > calls:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
        return turn(*arguments)

    monkeypatch.setattr(hosted, "_turn", exhausted)
    with pytest.warns(RuntimeWarning, match="begin again, in batches of .* rows instead of"):
        found = relax(argon(6), calculator, **settings)
    assert same(found, whole)
    for a, b in zip(found.history, whole.history, strict=True):
        assert np.array_equal(a.energies, b.energies)


def test_batches_of_calculators_are_as_large_as_memory_allows(monkeypatch):
    atoms, shapes = [bulk("Ar", cubic=True).repeat(2) for _ in range(24)], []

    def stop(group, backends):
        shapes.append(group.shape)
        raise StoppedError

    monkeypatch.setattr(run, "BatchGroup", stop)
    for n_bytes in (1 << 40, 1 << 24, 1 << 10):
        monkeypatch.setattr("basinax.engine.sizes.memory_of", lambda _, n=n_bytes: n)
        with pytest.raises(StoppedError):
            relax(atoms, ASECalculator(ARGON.calculator()), BFGS())
    large, fitting, least = shapes
    assert large[0] > fitting[0] > least[0] == 32


class Joined:
    """A model of TorchSim's interface: springs, in memory for so many atoms at a time."""

    def __init__(self, most: int):
        self.most, self.seen = most, []

    def forward(self, state):
        self.seen.append(state.n_atoms)
        if state.n_atoms > self.most:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if 79 in state.atomic_numbers:
            raise ValueError("no gold")
        x = state.positions
        mine = [x[state.system_idx == k] for k in range(state.n_systems)]
        return {
            "energy": torch_stub.tensor([0.5 * (x * x).sum() for x in mine]),
            "forces": -x,
            "stress": torch_stub.tensor(np.zeros((state.n_systems, 3, 3))),
        }


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_stub.TORCH)
    monkeypatch.setitem(sys.modules, "torch_sim", None)


def molecules(*symbols: str) -> list[Atoms]:
    rng = np.random.default_rng(0)
    return [Atoms(s, rng.uniform(-1, 1, (len(Atoms(s)), 3))) for s in symbols]


@pytest.mark.parametrize("most", [5, exhaustive(9), exhaustive(16)])
def test_a_joined_call_that_is_too_large_is_halved_with_the_same_bits(most, torch):
    atoms = molecules("H3", "C5", "O2", "N4", "H5", "HF", "O3", "C5")
    whole = relax(atoms, TorchSimModel(Joined(99), batched=True), fmax=1e-3)
    alone = [relax([a], TorchSimModel(Joined(99)), fmax=1e-3) for a in atoms]
    assert whole.converged.all() and same_ends(whole, alone)
    model = Joined(most)
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        found = relax(atoms, TorchSimModel(model, batched=True), fmax=1e-3)
    assert same(found, whole) and same_ends(found, alone)
    # What is too much is tried once for each halving, and then no more.
    failed = [n for n in model.seen if n > most]
    assert failed == sorted(set(failed), reverse=True)
    assert all(b <= -(-a // 2) for a, b in itertools.pairwise(failed))
    assert max(model.seen[model.seen.index(failed[-1]) + 1 :]) <= most


def test_a_structure_that_is_too_large_for_a_joined_call_fails_alone(torch):
    atoms = molecules("H3", "C5", "O8", "N4", "H5")
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        found = relax(atoms, TorchSimModel(Joined(7), batched=True), fmax=1e-3)
    failed = [entry.status == Status.EVALUATION_FAILED for entry in found]
    assert failed == [False, False, True, False, False]
    text = "memory has run out for this structure alone: OutOfMemoryError: CUDA out of memory"
    assert found.messages[2].startswith(text)
    others = [atoms[k] for k in (0, 1, 3, 4)]
    whole = relax(others, TorchSimModel(Joined(99), batched=True), fmax=1e-3)
    ends = [found.atoms[k] for k in (0, 1, 3, 4)]
    assert all(
        np.array_equal(a.positions, b.positions) for a, b in zip(ends, whole.atoms, strict=True)
    )


def test_a_structure_that_a_model_refuses_fails_alone_in_a_joined_call(torch):
    model = Joined(99)
    found = evaluate(molecules("H3", "AuH", "O2"), TorchSimModel(model, batched=True))
    assert found.messages == ["", "ValueError: no gold", ""]
    assert model.seen == [7, 3, 2, 2]


class OutOfMemoryError(RuntimeError):
    """Like torch's."""


def springs(vectors, numbers, senders, receivers):
    """Energies of atoms whose neighbours want to be 3.5 Å away."""
    lengths = jnp.sqrt((vectors * vectors).sum(axis=1))
    within = jnp.where(lengths < 5.0, (lengths - 3.5) ** 2 * (5.0 - lengths) ** 2, 0.0)
    return jnp.zeros(numbers.shape, vectors.dtype).at[receivers].add(0.01 * within)


def test_a_model_evaluates_fewer_at_a_time_where_memory_runs_out(monkeypatch):
    model = JaxModel.of_vectors(springs, 5.0, dtype="float64", workers=4)
    whole = relax(argon(5), model, FIRE(), max_steps=5)
    calls, evaluate = itertools.count(), session.evaluate

    def greedy(*arguments):
        if next(calls) in (3, 9):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        return evaluate(*arguments)

    monkeypatch.setattr(session, "evaluate", greedy)
    with pytest.warns(RuntimeWarning, match="no more than half as many structures are evaluated"):
        assert same(relax(argon(5), model, FIRE(), max_steps=5), whole)


def test_a_structure_that_has_too_little_memory_alone_fails_alone(monkeypatch):
    atoms = [*argon(2), bulk("Ar", cubic=True).repeat((3, 1, 1))]
    model = JaxModel.of_vectors(springs, 5.0, dtype="float64", workers=1)
    evaluate = session.evaluate

    def greedy(fixed, arrays, graph):
        if graph["is_atom"].sum() > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        return evaluate(fixed, arrays, graph)

    monkeypatch.setattr(session, "evaluate", greedy)
    found = relax(atoms, model, FIRE(), max_steps=2)
    failed = [entry.status == Status.EVALUATION_FAILED for entry in found]
    assert failed == [False, False, True]
    assert found.messages[2].startswith("memory has run out for this structure alone")


def test_structures_side_by_side_that_have_too_little_memory_fail_by_their_shape(monkeypatch):
    monkeypatch.setattr("basinax.structures.machine.CPU.model_pairs", 4096)
    atoms = [*argon(2), bulk("Ar", cubic=True).repeat((3, 2, 1))]
    model = JaxModel.of_vectors(springs, 5.0, dtype="float64", workers=1)
    evaluate = session.evaluate

    def greedy(fixed, arrays, graphs):
        if graphs["is_atom"][0].sum() > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room")
        return evaluate(fixed, arrays, graphs)

    monkeypatch.setattr(session, "evaluate", greedy)
    found = relax(atoms, model, FIRE(), max_steps=2)
    failed = [entry.status == Status.EVALUATION_FAILED for entry in found]
    assert failed == [False, False, True]
    assert found.messages[2].startswith("memory has run out for structures of 24 atoms")


def test_lanes_of_a_device_are_halved_down_to_one():
    lanes = Lanes(["a"] * 4 + ["b"])
    with lanes.turn() as first, lanes.turn() as second:
        assert (first, second) == (("a", 4), ("a", 4))
        assert lanes.fewer(first)
        assert lanes.fewer(second)  # it began beside four, so no two more are left out
    with lanes.turn() as third, lanes.turn() as fourth, lanes.turn() as other:
        assert (third, fourth, other) == (("a", 2), ("a", 2), ("b", 1))
        assert not lanes.fewer(other)
        assert lanes.fewer(third)
    with lanes.turn() as one, lanes.turn() as two:
        assert {one, two} == {("a", 1), ("b", 1)}
