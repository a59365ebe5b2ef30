"""The probe passes what keeps its bits, and finds what does not or is no derivative."""

import threading
import warnings
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.io import write
from typer.testing import CliRunner

from basinax import FIRE, OrderWarning, cli
from basinax.atoms import (
    AbstractEvaluator,
    AbstractPotential,
    AbstractSession,
    ASECalculator,
    Evaluated,
    EvaluationError,
    JaxModel,
    Properties,
    evaluate,
    potential_from,
    probe,
    relax,
)
from basinax.engine.fresh import evaluate_afresh
from calculators import Springs
from comparison import same_ends
from graph_models import CUTOFF, Direct, Network, structures


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Processes take seconds; the two tests that need a fresh one start it."""
    monkeypatch.setattr("basinax.engine.probe.evaluate_afresh", evaluate)


@pytest.fixture
def in_another(monkeypatch):
    monkeypatch.setattr("basinax.engine.probe.evaluate_afresh", evaluate_afresh)


class Shared(AbstractEvaluator):
    """One calculator for all, which is not reset."""

    def __init__(self, calculator):
        self.calculator = calculator

    def open(self, atoms, needs_stress):
        del needs_stress
        return SharedSession(self.calculator, atoms)


class SharedSession(AbstractSession):
    def __init__(self, calculator, atoms):
        self.calculator, self.atoms, self.waiting = calculator, atoms, []

    def ask(self, requests):
        self.waiting += requests

    def answers(self, timeout):
        del timeout
        asked, self.waiting = self.waiting, []
        return [(request.number, self.found(request)) for request in asked]

    def found(self, request):
        atoms = self.atoms[request.number].copy()
        atoms.positions = request.positions
        atoms.calc = self.calculator
        try:
            return Evaluated(atoms.get_potential_energy(), atoms.get_forces())
        except Exception as error:
            return EvaluationError(str(error))

    def end(self, number):
        pass

    def close(self):
        pass


def wrong(found) -> set[str]:
    return {finding.name for finding in found.findings if not finding.is_kept}


def metals() -> list[Atoms]:
    made = [bulk("Cu", cubic=True), bulk("Al", cubic=True), bulk("Au").repeat((2, 1, 1))]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


def molecules() -> list[Atoms]:
    made = [molecule(name) for name in ("H2O", "NH3", "CH4")]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


def test_a_calculator_that_forgets_passes():
    found = probe(EMT(), metals())
    assert wrong(found) == set()
    assert found.is_kept
    assert len(found.findings) == 13
    assert all(finding.n_compared >= 3 for finding in found.findings)
    assert found.evaluations_per_second > 0


class Joined(SharedSession):
    """Its last digits depend on the number of structures that it evaluates together."""

    def answers(self, timeout):
        scale = 1 + 4e-16 * len(self.waiting)
        found = super().answers(timeout)
        return [(k, e._replace(energy=scale * e.energy, forces=scale * e.forces)) for k, e in found]


class JoinedSprings(Shared):
    def open(self, atoms, needs_stress):
        return Joined(Springs(), atoms)


def test_a_model_passes_by_itself():
    assert probe(JaxModel.of_vectors(Network(), CUTOFF), structures()[:3]).is_kept


def test_a_model_that_joins_structures_is_found():
    found = wrong(probe(JoinedSprings(None), molecules()))
    assert {"together", "in parts"} <= found


def test_a_model_that_counts_spare_atoms_is_found():
    def energies(vectors, numbers, senders, receivers):
        lengths = jnp.sqrt(jnp.sum(vectors**2, axis=1))
        decay = jnp.exp(-lengths) * jnp.clip(1 - lengths / 5, 0, 1) ** 2
        sums = jnp.zeros(len(numbers)).at[receivers].add(decay)
        return sums - sums.mean()

    # Of two series of shapes, some structures have the same one in both.
    crystals = [bulk("Cu", a=3.5, cubic=True), bulk("Cu", a=3.7) * 2]
    found = probe(JaxModel.of_vectors(energies, 5.0), crystals)
    assert [x.name for x in found.findings if not x.is_kept] == ["energy with other spare atoms"]


def test_a_calculator_that_remembers_is_found():
    assert "after near points" in wrong(probe(Shared(Springs()), molecules()))


def test_forces_that_are_no_derivatives_are_found():
    direct = JaxModel.of_vectors(Direct(Network()), CUTOFF, conservative=False)
    assert wrong(probe(direct, structures()[:3])) == {"forces are derivatives"}


class Counting(Springs):
    """Its last digits change at the third evaluation of its process."""

    n_calls = 0

    def calculate(self, atoms=None, properties=None, system_changes=()):
        super().calculate(atoms, properties, system_changes)
        Counting.n_calls += 1
        if Counting.n_calls > 2:
            self.results["energy"] *= 1 + 4e-16


@pytest.mark.usefixtures("in_another")
def test_what_the_process_did_before_is_found():
    Counting.n_calls = 3
    found = probe(Counting(), molecules())
    afresh = next(x for x in found.findings if x.name == "in a fresh process")
    assert afresh.n_wrong == 2
    assert "together" not in wrong(found)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("in_another")
def test_a_fresh_process_takes_arrays_in_their_own_precision():
    atoms = [bulk("Cu", cubic=True), bulk("Au", cubic=True)]
    for k, structure in enumerate(atoms):
        structure.rattle(0.1, seed=k)
    assert "in a fresh process" not in wrong(probe(potential_from("emt"), atoms))


@pytest.mark.usefixtures("in_another")
def test_a_model_that_cannot_be_sent_is_compared_without_a_fresh_process():
    calculator = EMT()
    calculator.lock = threading.Lock()
    found = probe(calculator, metals())
    assert found.is_kept
    assert "in a fresh process" not in {finding.name for finding in found.findings}
    assert "cannot be sent to another process" in found.not_tried
    assert "not tried in a fresh process" in str(found)


class Turning(Springs):
    """Its energy changes where the structure is moved, turned or renumbered."""

    def calculate(self, atoms=None, properties=(), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        energy = float(atoms.positions[0] @ [1.0, 2.0, 3.0])
        forces = np.zeros((len(atoms), 3))
        forces[0] = [-1.0, -2.0, -3.0]
        self.results = {"energy": energy, "forces": forces}


def test_an_energy_that_is_not_invariant_is_found():
    found = wrong(probe(Turning(), molecules()))
    assert found == {f"energy of the structure {how}" for how in ("moved", "turned", "renumbered")}


def test_a_model_without_numbers_is_found():
    found = probe(Shared(None), molecules())
    assert "alone, not finite" in wrong(found)


def test_calculators_of_the_structures_are_probed():
    atoms = metals()[:2]
    for a in atoms:
        a.calc = EMT()
    assert wrong(probe(None, atoms)) == set()


def test_stress_is_probed_where_all_calculators_have_it():
    class NoStress(EMT):
        implemented_properties = ["energy", "free_energy", "forces"]  # noqa: RUF012

    atoms = [Atoms("Cu"), *metals()[:2]]
    for a, calculator in zip(atoms, [EMT(), EMT(), NoStress()], strict=True):
        a.calc = calculator
    names = {finding.name for finding in probe(None, atoms).findings}
    assert "forces are derivatives" in names and "stress is a derivative" not in names


def test_stresses_that_are_no_numbers_are_found():
    """A function of positions, whose derivative is infinite for an atom without neighbours."""

    def energies(positions, cell, numbers, senders, receivers, shifts):
        vectors = positions[senders] + shifts @ cell - positions[receivers]
        length = jnp.sqrt((vectors**2).sum(1))
        near = jnp.maximum(4.0 - length, 0.0) ** 2
        return -jnp.sqrt(jnp.zeros(len(numbers)).at[receivers].add(near))

    found = probe(JaxModel(energies, 4.0), metals()[:2])
    assert "alone, not finite" in wrong(found) and not found.is_kept


def test_a_probe_needs_structures():
    with pytest.raises(ValueError, match="two structures at least"):
        probe(EMT(), metals()[:1])


@pytest.mark.parametrize(("tolerance", "code", "text"), [("1e-3", 0, ""), ("1e-9", 1, "differs")])
def test_the_command_says_what_differs(tmp_path, monkeypatch, tolerance, code, text):
    monkeypatch.chdir(tmp_path)
    write("metals.extxyz", metals())
    lines = "from ase.calculators.emt import EMT", "calculator = EMT()"
    Path("model.py").write_text("\n".join(lines))
    options = ["--potential", "python:model.py:calculator", "--tolerance", tolerance, "--quiet"]
    ran = CliRunner().invoke(cli.app, ["probe", "metals.extxyz", *options])
    assert ran.exit_code == code
    assert text in ran.stdout


# --- a quantum method, whose self-consistent field begins at what it saw last


@pytest.fixture
def tblite():
    return pytest.importorskip("tblite.ase", reason="tblite is not installed").TBLite


def test_tblite_has_the_same_bits_alone_and_in_a_batch(tblite):
    made = ASECalculator(lambda: tblite(method="GFN2-xTB", verbosity=0), workers=2)
    atoms = molecules()
    batch = relax([*atoms, *atoms[::-1]], made, FIRE(), max_steps=4)
    alone = [relax([a], made, FIRE(), max_steps=4) for a in atoms]
    assert same_ends(batch, [*alone, *alone[::-1]])


def test_one_tblite_for_all_is_found(tblite):
    found = probe(Shared(tblite(method="GFN2-xTB", verbosity=0)), molecules())
    led = next(finding for finding in found.findings if finding.name == "after near points")
    # Several threads of OpenMP, which differ from run to run, would change 1e-15.
    assert led.n_wrong == 3
    assert led.largest > 1e-9


class Loose(AbstractPotential):
    """Pairs whose squared distances are naked products in a sum of XLA's."""

    species: tuple[int, ...] = eqx.field(static=True, default=())

    @property
    def cutoff(self) -> float:
        return 4.0

    def __call__(self, batch, edges, *, stress=False):
        def energies(vectors):
            away = jnp.minimum(jnp.sum(vectors * vectors, axis=1) - 16.0, 0.0)
            return edges.sum(1e-3 * away**2)

        return Properties.of_vectors(energies, batch, edges, stress=stress)


def test_what_a_potential_leaves_to_the_compiler_is_told_once_and_by_the_probe():
    atoms = [bulk("Ar", "fcc", 5.2, cubic=True), bulk("Ar", "fcc", 5.4).repeat(2)]
    for k, structure in enumerate(atoms):
        structure.rattle(0.1, seed=k)
    with pytest.warns(OrderWarning, match=r"test_probe.py:\d+: sum over an axis") as said:
        relax(atoms, Loose(), FIRE(), max_steps=1)
    assert len([x for x in said if x.category is OrderWarning]) == 1
    evaluate(atoms, Loose())
    found = probe(Loose(), atoms)
    assert "sum over an axis" in {finding.rule for finding in found.left_open}
    assert str(found.left_open[0]) in str(found)


def test_a_filter_of_warnings_makes_it_an_error():
    class Looser(Loose):
        pass

    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=OrderWarning)
        with pytest.raises(OrderWarning, match="sum over an axis"):
            relax([bulk("Ar", "fcc", 5.2, cubic=True)], Looser(), FIRE(), max_steps=1)
