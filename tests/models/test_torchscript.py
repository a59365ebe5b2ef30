"""TorchScript runs models as they are written, however many calls came before."""

import sys

import pytest
from ase.build import bulk, molecule

import torch_stub
from basinax.atoms import ASECalculator, TorchSimModel, evaluate, relax
from comparison import same_ends


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_stub.TORCH)
    monkeypatch.setattr(torch_stub.SHARED, "n_calls", 0)


def molecules():
    made = [molecule(name) for name in ("H2O", "NH3", "CH4", "CO2")]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "make",
    [torch_stub.Scripted, lambda: ASECalculator(torch_stub.scripted, workers=2)],
    ids=["in this process", "in processes"],
)
@pytest.mark.usefixtures("stub")
def test_a_structure_has_the_same_bits_alone_and_in_a_batch(make):
    atoms, calculator = molecules(), make()
    batch = relax([*atoms, *atoms[::-1]], calculator, max_steps=3)
    alone = [relax([a], make(), max_steps=3) for a in atoms]
    assert same_ends(batch, [*alone, *alone[::-1]])


@pytest.mark.usefixtures("stub")
def test_a_model_of_torch_sim_runs_as_it_is_written(monkeypatch):
    states = []

    class Model(torch_stub.Network):
        def forward(self, state):
            states.append(torch_stub.Script.is_optimized)
            return {}

    monkeypatch.setattr("basinax.models.torch_sim.state_of", lambda *_: None)
    evaluate(molecules(), TorchSimModel(Model()))
    assert states == [False] * 4
    assert torch_stub.Script.is_optimized


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_script_that_was_compiled_before_is_named(is_shared):
    calculator = torch_stub.Scripted()
    evaluate(molecules(), calculator)
    called = torch_stub.SHARED if is_shared else calculator.models[0].script
    for _ in range(3):
        called()
    with pytest.warns(RuntimeWarning, match="TorchScript has compiled this model anew"):
        evaluate(molecules(), calculator)


@pytest.mark.filterwarnings("ignore:No tensor product accelerator:UserWarning")  # its own
def test_sevennet_has_the_same_bits_alone_and_in_a_batch():
    sevenn = pytest.importorskip("sevenn.calculator", reason="sevenn is not installed")
    atoms = [bulk("Si", a=5.4, cubic=True), bulk("GaAs", "zincblende", 5.65)]
    for k, one in enumerate(atoms):
        one.rattle(0.08, seed=k)

    def make():
        return sevenn.SevenNetCalculator("7net-0", device="cpu")

    calculator = make()
    batch = relax([*atoms, *atoms[::-1]], calculator, cell="frechet", max_steps=3)
    alone = [relax([a], calculator, cell="frechet", max_steps=3) for a in atoms]
    in_processes = relax(atoms, ASECalculator(make, workers=2), cell="frechet", max_steps=3)
    assert same_ends(batch, [*alone, *alone[::-1]])
    assert same_ends(in_processes, alone)
