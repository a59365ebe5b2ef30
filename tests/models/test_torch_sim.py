"""Models of TorchSim's interface, by one of the same interface: a Morse potential in torch."""

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.calculator import CalculationFailed
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.calculators.morse import MorsePotential

from basinax import Status
from basinax.atoms import TorchSimModel, evaluate, relax
from comparison import same_ends

torch = pytest.importorskip("torch", reason="torch is not installed")


class Morse(torch.nn.Module):
    """Of all pairs within 7 Å; cells of a state stand in columns."""

    device, dtype, compute_stress = torch.device("cpu"), torch.float64, True

    def forward(self, state):
        assert state.positions.dtype == torch.float64
        assert state.system_idx.dtype == torch.int64
        energies, forces, stresses = [], [], []
        for k in range(int(state.system_idx.max()) + 1):
            mine = state.system_idx == k
            x, cell = state.positions[mine], state.cell[k].T
            strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
            x = x.clone().requires_grad_()
            deformation = torch.eye(3, dtype=x.dtype) + 0.5 * (strain + strain.T)
            shifts = torch.cartesian_prod(*[torch.arange(-4.0, 5.0, dtype=x.dtype)] * 3)
            images = (shifts if state.pbc.all() else shifts[364:365]) @ cell
            vectors = (x[None, :, None] - x[:, None, None] + images) @ deformation
            length = torch.sqrt((vectors**2).sum(-1) + 1e-30)
            bond = torch.exp(-6 * (length / 2.6 - 1))
            s = torch.clamp(10 * (7.0 - length), 0.0, 1.0)  # as ASE lets it fade
            fade = torch.where(length > 0.1, s**3 * (6 * s**2 - 15 * s + 10), 0.0)
            energy = 0.5 * (bond * (bond - 2) * fade).sum()
            gradient, virial = torch.autograd.grad(energy, (x, strain))
            energies.append(energy.detach())
            forces.append(-gradient)
            stresses.append(virial / torch.linalg.det(cell).abs())
        return {
            "energy": torch.stack(energies),
            "forces": torch.cat(forces),
            "stress": torch.stack(stresses),
        }


class WithoutForces(Morse):
    compute_stress = False

    def forward(self, state):
        return {"energy": torch.zeros(1)}


def crystals():
    made = [
        bulk("Cu", cubic=True, a=3.7),
        bulk("Cu", a=3.6).repeat((2, 1, 1)),
        bulk("Cu", "hcp", 2.6),
    ]
    for k, atoms in enumerate(made):
        atoms.rattle(0.1, seed=k)
    return made


pytestmark = pytest.mark.usefixtures("one_shape")


def test_numbers_are_those_of_ase():
    found = evaluate(crystals(), TorchSimModel(Morse()), stress=True)
    for k, atoms in enumerate(crystals()):
        atoms.calc = MorsePotential(epsilon=1.0, r0=2.6, rho0=6.0, rcut1=6.9 / 2.6, rcut2=7 / 2.6)
        np.testing.assert_allclose(found.energies[k], atoms.get_potential_energy(), atol=1e-9)
        np.testing.assert_allclose(found.forces[k], atoms.get_forces(), atol=1e-9)
        np.testing.assert_allclose(found.stresses[k], atoms.get_stress(), atol=1e-9)


def test_a_structure_has_the_same_bits_alone_and_in_a_batch():
    model, few = TorchSimModel(Morse()), crystals()
    batch = relax([*few, *few[::-1]], model, cell="frechet", max_steps=5)
    alone = [relax([a], model, cell="frechet", max_steps=5) for a in few]
    assert same_ends(batch, [*alone, *alone[::-1]])
    by_ase = few[0].copy()
    by_ase.calc = model.calculator()
    assert np.array_equal(by_ase.get_stress(), evaluate(few, model, stress=True).stresses[0])
    joined = relax(few, TorchSimModel(Morse(), batched=True), cell="frechet", max_steps=5)
    np.testing.assert_allclose(joined.energies, batch.energies[:3], rtol=0, atol=1e-9)


def test_what_the_model_lacks_is_said():
    result = relax(crystals()[:1], TorchSimModel(WithoutForces()), max_steps=1)
    assert result.status[0] == Status.EVALUATION_FAILED
    assert result.messages[0].endswith("the model returned no forces")
    (atoms,) = crystals()[:1]
    atoms.calc = TorchSimModel(WithoutForces()).calculator()
    with pytest.raises(CalculationFailed, match="the model returned no forces"):
        atoms.get_forces()
    with pytest.raises(ValueError, match=r"system 0 needs its stress .* computes no stress"):
        relax(crystals()[:1], TorchSimModel(WithoutForces()), cell="frechet")
    with pytest.raises(TypeError, match=r"model must have forward\(state\)"):
        TorchSimModel(3)


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # its own
def test_a_model_of_torch_sim_itself_keeps_bits_and_has_the_forces_of_ase():
    module = "torch_sim.models.lennard_jones"
    lennard_jones = pytest.importorskip(module, reason="TorchSim, of Python 3.12, is not installed")
    settings = {"sigma": 3.405, "epsilon": 0.0104, "cutoff": 8.5}
    own = lennard_jones.LennardJonesModel(**settings, dtype=torch.float64, compute_stress=True)
    few = [bulk("Ar", cubic=True, a=5.2), bulk("Ar", a=5.3), bulk("Ar", "hcp", 3.8)]
    for k, atoms in enumerate(few):
        atoms.rattle(0.1, seed=k)
    found = evaluate(few, TorchSimModel(own), stress=True)
    for k, atoms in enumerate(few):
        atoms.calc = ASELennardJones(sigma=3.405, epsilon=0.0104, rc=8.5)
        np.testing.assert_allclose(found.forces[k], atoms.get_forces(), atol=1e-9)
        np.testing.assert_allclose(found.stresses[k], atoms.get_stress(), atol=1e-9)
    batch = relax([*few, *few[::-1]], TorchSimModel(own), cell="frechet", max_steps=5)
    alone = [relax([a], TorchSimModel(own), cell="frechet", max_steps=5) for a in few]
    assert same_ends(batch, [*alone, *alone[::-1]])
    joined = relax(few, TorchSimModel(own, batched=True), cell="frechet", max_steps=5)
    np.testing.assert_allclose(joined.energies, batch.energies[:3], rtol=0, atol=1e-9)
