"""Energies, forces and stresses against ASE and against differences of the energy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.calculators.morse import MorsePotential
from ase.neighborlist import neighbor_list
from ase.stress import voigt_6_to_full_3x3_stress

from basinax.atoms import Batch, LennardJones, Morse, NeighborTable
from structures import (
    CUTOFF,
    MORSE,
    POTENTIALS,
    STRUCTURES,
    evaluate,
    mixed,
    rattled,
    results_of,
    shapes_of,
)

pytestmark = pytest.mark.usefixtures("few_shapes")

REFERENCES = {
    "shifted": ASELennardJones(epsilon=0.0104, sigma=3.4, rc=CUTOFF),
    "smooth": ASELennardJones(epsilon=0.0104, sigma=3.4, rc=CUTOFF, smooth=True),
    "Morse": MorsePotential(**MORSE),
}

# ASE's own lists would need a bin every few Å over 3e6 Å.
COMPARED = [name for name in STRUCTURES if name != "slab and a far atom"]


def close(got, expected, scale):
    """Equal to 1e-10 of the largest number of this kind."""
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10 * scale)


@functools.cache
def all_of(name):
    return evaluate(list(STRUCTURES.values()), POTENTIALS[name])


def of_system(name, structure):
    """Forces, energies of atoms, energy and stress of a structure in the batch of all."""
    return results_of(*all_of(name), list(STRUCTURES).index(structure))


@pytest.mark.parametrize("structure", COMPARED)
@pytest.mark.parametrize("name", REFERENCES)
def test_energies_and_forces_are_those_of_ase(name, structure):
    atoms = STRUCTURES[structure].copy()
    atoms.calc = REFERENCES[name]
    forces, atom_energies, energy, _ = of_system(name, structure)
    expected = atoms.get_forces()
    close(energy, atoms.get_potential_energy(), abs(atoms.get_potential_energy()))
    close(atom_energies, atoms.get_potential_energies(), 1e-3)
    # Forces of perfect crystals are the rounding errors of pair forces of about 0.01 eV/Å.
    close(forces, expected, max(np.abs(expected).max(), 0.01))


@pytest.mark.parametrize("structure", [s for s in COMPARED if STRUCTURES[s].cell.rank == 3])
@pytest.mark.parametrize("name", REFERENCES)
def test_stress_is_that_of_ase(name, structure):
    atoms = STRUCTURES[structure].copy()
    atoms.calc = REFERENCES[name]
    expected = voigt_6_to_full_3x3_stress(atoms.get_stress())
    close(of_system(name, structure)[-1], expected, np.abs(expected).max())


@pytest.mark.parametrize("name", REFERENCES)
def test_padding_has_no_force(name):
    batch, got = all_of(name)
    assert (np.asarray(got.forces)[~np.asarray(batch.index.has_system())] == 0).all()


def test_a_system_without_volume_has_no_stress():
    _, got = evaluate(
        [STRUCTURES["cluster of 13"], STRUCTURES["cell of four"]], POTENTIALS["Morse"]
    )
    assert np.isnan(got.stress[0]).all()
    assert np.isfinite(got.stress[1]).all()


def pairwise(atoms: Atoms, epsilon, sigma, cutoff) -> tuple[float, np.ndarray]:
    """Energy and forces of shifted Lennard-Jones pairs with the tables given, by plain NumPy."""
    i, j, d, vector = neighbor_list("ijdD", atoms, cutoff)
    kind = {z: k for k, z in enumerate((10, 18, 36, 54))}
    a, b = (np.array([kind[z] for z in atoms.numbers[k]], int) for k in (i, j))
    e, s = epsilon[a, b], sigma[a, b]
    c6, q = (s / d) ** 6, (s / cutoff) ** 6
    energy = 0.5 * np.sum(4 * e * (c6**2 - c6 - q**2 + q))
    forces = np.zeros((len(atoms), 3))
    np.add.at(forces, i, (-24 * e * (2 * c6**2 - c6) / d**2)[:, None] * vector)
    return energy, forces


@pytest.mark.parametrize("structure", ["cell of 32", "slab", "cluster of 13", "skewed and tiny"])
def test_mixtures_use_the_numbers_of_each_pair(structure):
    atoms = mixed(STRUCTURES[structure])
    e = np.array([0.0031, 0.0104, 0.0140, 0.0200])
    s = np.array([2.74, 3.40, 3.65, 3.98])
    epsilon, sigma = np.sqrt(e * e[:, None]), (s + s[:, None]) / 2
    energy, forces = pairwise(atoms, epsilon, sigma, CUTOFF)
    _, got = evaluate([atoms], LennardJones.named(cutoff=CUTOFF))
    close(got.energies[0], energy, abs(energy))
    close(got.forces[: len(atoms)], forces, np.abs(forces).max())


@pytest.mark.parametrize("name", [n for n in POTENTIALS if n != "shifted"])
@pytest.mark.parametrize("structure", ["cell of four", "slab, open in z", "cluster of 13", "wire"])
def test_forces_are_differences_of_the_energy(name, structure):
    """Of three atoms at most, for which there is room in the program of other tests.

    The shifted potential is left out: pairs that cross its cutoff change the energy's slope.
    """
    atoms, h = mixed(rattled(STRUCTURES[structure], 3), 1), 1e-4
    chosen = range(0, len(atoms), 1 + len(atoms) // 3)
    steps = [(a, c, sign) for a in chosen for c in range(3) for sign in (1, -1)]
    images = [atoms]
    for a, c, sign in steps:
        image = atoms.copy()
        image.positions[a, c] += sign * h
        images.append(image)
    _, got = evaluate(images, POTENTIALS[name])
    energies = np.asarray(got.energies)[1 : len(images)].reshape(-1, 3, 2)
    forces = -(energies[..., 0] - energies[..., 1]) / (2 * h)
    # Error of the central difference: h² times the third derivative, about 1e-8 ε/σ³.
    np.testing.assert_allclose(np.asarray(got.forces)[chosen], forces, atol=2e-8)


@pytest.mark.parametrize("name", [n for n in POTENTIALS if n != "shifted"])
@pytest.mark.parametrize(
    "structure", ["cell of four", "skewed and tiny", "primitive", "left-handed"]
)
def test_stress_is_the_derivative_of_the_energy_by_strain(name, structure):
    atoms, h = mixed(STRUCTURES[structure], 1), 1e-5
    images = [atoms]
    for a in range(3):
        for b in range(3):
            for sign in (1, -1):
                strain = np.eye(3)
                strain[a, b] += sign * h
                image = atoms.copy()
                image.set_cell(np.asarray(atoms.cell) @ strain, scale_atoms=True)
                images.append(image)
    _, got = evaluate(images, POTENTIALS[name])
    energies = np.asarray(got.energies)[1 : len(images)].reshape(3, 3, 2)
    stress = (energies[..., 0] - energies[..., 1]) / (2 * h * atoms.get_volume())
    np.testing.assert_allclose(got.stress[0], stress, atol=1e-9)


def test_the_energy_is_zero_at_the_shifted_cutoff():
    inside = Atoms("Ar2", [[0, 0, 0], [CUTOFF * (1 - 1e-12), 0, 0]])
    outside = Atoms("Ar2", [[0, 0, 0], [CUTOFF * (1 + 1e-12), 0, 0]])
    _, got = evaluate([inside, outside], POTENTIALS["shifted"])
    assert abs(got.energies[0]) < 1e-14
    assert got.energies[1] == 0
    assert np.abs(got.forces[0]).max() > 0
    assert (np.asarray(got.forces)[8:] == 0).all()


@pytest.mark.parametrize("name", POTENTIALS)
def test_two_atoms_at_one_place_have_an_energy_or_force_that_is_not_finite(name):
    overlapping = STRUCTURES["cell of four"].copy()
    overlapping.positions[1] = overlapping.positions[0]
    _, got = evaluate([overlapping, STRUCTURES["cell of four"]], POTENTIALS[name])
    assert not np.isfinite(got.energies[0])
    assert np.isfinite(got.energies[1])
    assert np.isfinite(np.asarray(got.forces)[8:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", POTENTIALS)
def test_results_have_the_dtype_of_the_positions(name, dtype):
    got = shapes_of([STRUCTURES["cell of four"]], POTENTIALS[name], dtype, n_rows=16, n_systems=3)
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype(dtype)}
    assert got.forces.shape == (16, 3)
    assert got.energies.shape == (3,)


def test_other_numbers_in_a_potential_compile_nothing():
    compiled = 0

    @jax.jit
    def energies(potential, batch, neighbors):
        nonlocal compiled
        compiled += 1
        return potential(batch, neighbors).energies

    batch = Batch.from_atoms([STRUCTURES["cell of four"]])
    neighbors = NeighborTable(batch, CUTOFF, 0.5).to_device()
    one = energies(LennardJones(0.0104, 3.4, 8.0), batch, neighbors)
    two = energies(LennardJones(0.0208, 3.4, 8.0), batch, neighbors)
    energies(LennardJones(0.0104, 3.3, 8.5), batch, neighbors)
    assert compiled == 1
    assert jnp.array_equal(2 * one, two)


def test_parameters_of_a_pair_replace_mixed_ones():
    epsilon, sigma = {"Ar": 0.01, "Kr": 0.04}, {"Ar": 3.0, "Kr": 4.0}
    potential = LennardJones({**epsilon, ("Kr", "Ar"): 0.5}, sigma)
    np.testing.assert_allclose(potential.epsilon, [[0.01, 0.5], [0.5, 0.04]])
    np.testing.assert_allclose(potential.sigma, [[3.0, 3.5], [3.5, 4.0]])
    np.testing.assert_allclose(potential.cutoffs, [[9.0, 10.5], [10.5, 12.0]])
    geometric = LennardJones(epsilon, sigma, mixing="geometric")
    np.testing.assert_allclose(geometric.sigma[0, 1], np.sqrt(12.0))
    np.testing.assert_allclose(geometric.epsilon[0, 1], 0.02)
    sixth = LennardJones(epsilon, sigma, mixing="waldman-hagler")
    np.testing.assert_allclose(sixth.sigma[0, 1], ((3.0**6 + 4.0**6) / 2) ** (1 / 6))
    np.testing.assert_allclose(sixth.epsilon[0, 1], 2 * 0.02 * 3.0**3 * 4.0**3 / (3.0**6 + 4.0**6))


def test_morse_takes_numbers_per_pair():
    potential = Morse(0.01, 6.0, {"Ar": 3.7, "Kr": 4.0, ("Ar", "Kr"): 3.9})
    assert potential.species == (18, 36)
    np.testing.assert_allclose(potential.r0, [[3.7, 3.9], [3.9, 4.0]])
    assert potential.cutoff == pytest.approx(2.7 * 4.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LennardJones({"Ar": 0.01}, {"Ar": 3.4, "Kr": 3.6}), r"epsilon .* Ar-Kr: add"),
        (lambda: LennardJones({"Argon": 0.01}, 3.4), "'Argon' is no chemical element"),
        (lambda: LennardJones(0.01, 0.0), "sigma must be positive"),
        (lambda: LennardJones(-0.01, 3.4), "epsilon must not be negative"),
        (lambda: LennardJones({"Ar": -0.01, "Kr": 0.01}, 3.4), "must not be negative, got -0.01"),
        (lambda: LennardJones(0.01, np.nan), "sigma must be finite"),
        (lambda: LennardJones(0.01, 3.4, 8.0, onset=9.0), "onset must be below cutoff"),
        (lambda: LennardJones(0.01, 3.4, mixing="other"), "mixing must be one of"),
        (lambda: LennardJones({}, 3.4), "epsilon must name at least one element"),
        (lambda: LennardJones({"Ar": 1.0, ("Ar", "Ar"): 2.0}, 3.4), "two values"),
        (lambda: LennardJones({"Ar-Ar-Ar": 1.0}, 3.4), "no chemical element"),
        (lambda: LennardJones({("Ar",): 1.0}, 3.4), "neither an element"),
        (lambda: LennardJones.named("He"), "no named parameters for 'He'"),
        (lambda: Morse(0.01, 6.0, {"Ar": 3.7, "Kr": 4.0}), "r0 has no value for the pair Ar-Kr"),
        (lambda: Morse(rcut1=3.0), "rcut1 must be below rcut2"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_species_without_parameters_is_named_with_its_systems():
    atoms = [STRUCTURES["cell of four"], mixed(STRUCTURES["slab"])]
    with pytest.raises(ValueError, match=r"for (Ne|Xe), which is in system 1;.*for Ar, Kr"):
        LennardJones.named("Ar", "Kr").check(atoms)
    LennardJones.named().check(atoms)
    POTENTIALS["shifted"].check(atoms)
