"""The potential of Zhou, Johnson and Wadley: its formulas, its forces and the metals it fits."""

import functools

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.neighborlist import neighbor_list

from basinax.atoms import Batch, NeighborTable, ZhouEAM, potential_from
from basinax.potentials.zhou import METALS, Metal
from metal_tables import metal
from structures import evaluate, rattled, results_of, shapes_of

pytestmark = pytest.mark.usefixtures("few_shapes")

# Cohesive energies in eV and fcc or bcc lattice constants in Å, to which the potential was fitted;
# of hcp metals a. Measured values, as in C. Kittel, Introduction to Solid State Physics, 8th ed.
# (2005), are Cu 3.49, Ag 2.95, Au 3.81, Ni 4.44, Pd 3.89, Pt 5.84, Al 3.39, Pb 2.03, Fe 4.28,
# Mo 6.82, Ta 8.10, W 8.90, Mg 1.51, Co 4.39, Ti 4.85 and Zr 6.25 eV.
FITTED = {
    "Cu": (3.54, 3.615),
    "Ag": (2.85, 4.09),
    "Au": (3.93, 4.08),
    "Ni": (4.45, 3.52),
    "Pd": (3.91, 3.89),
    "Pt": (5.77, 3.92),
    "Al": (3.58, 4.05),
    "Pb": (2.02, 4.95),
    "Fe": (4.29, 2.866),
    "Mo": (6.81, 3.15),
    "Ta": (8.09, 3.303),
    "W": (8.76, 3.165),
    "Mg": (1.55, 3.20),
    "Co": (4.41, 2.51),
    "Ti": (4.87, 2.95),
    "Zr": (6.36, 3.23),
}
ALLOY = ("Cu", "Al", "Fe", "Zr")
PARAMETERS = {element: Metal(*numbers) for element, numbers in METALS.items()}


def decay(m: Metal, r, rate, center):
    return np.exp(-rate * (r / m.re - 1)) / (1 + (r / m.re - center) ** 20)


def profile(m: Metal, r):
    return m.fe * decay(m, r, m.beta, m.lambda_)


def like(m: Metal, r):
    return m.a * decay(m, r, m.alpha, m.kappa) - m.b * decay(m, r, m.beta, m.lambda_)


def unlike(a: Metal, b: Metal, r):
    fa, fb = profile(a, r), profile(b, r)
    return 0.5 * (fb / fa * like(a, r) + fa / fb * like(b, r))


def embedding(m: Metal, rho):
    low, middle, high = rho / (m.rhon * m.rhoe) - 1, rho / m.rhoe - 1, rho / m.rhos
    if rho < m.rhon * m.rhoe:
        return m.fn0 + m.fn1 * low + m.fn2 * low**2 + m.fn3 * low**3
    if rho < 1.15 * m.rhoe:
        return m.f0 + m.f2 * middle**2 + m.f3 * middle**3
    return m.fe_high * (1 - m.eta * np.log(high)) * high**m.eta


def energy_of(atoms: Atoms, cutoff: float) -> float:
    """Written as in the paper."""
    metals = [PARAMETERS[symbol] for symbol in atoms.symbols]
    energy, density = 0.0, np.zeros(len(atoms))
    for i, j, r in zip(*neighbor_list("ijd", atoms, cutoff), strict=True):
        energy += 0.5 * unlike(metals[i], metals[j], r)
        density[i] += profile(metals[j], r)
    return energy + sum(embedding(m, rho) for m, rho in zip(metals, density, strict=True))


STRUCTURES = ("one open atom", "cell of 32", "skewed and tiny", "cluster of 13")


@pytest.mark.parametrize("elements", [("Cu",), ALLOY, tuple(METALS)], ids=len)
def test_the_energy_is_the_published_formula(elements):
    systems = [metal(structure, elements) for structure in STRUCTURES]
    # Further out there are only more of the same pairs.
    _, got = evaluate(systems, ZhouEAM(*elements, cutoff=5.5))
    expected = [energy_of(atoms, 5.5) for atoms in systems]
    np.testing.assert_allclose(got.energies[: len(systems)], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 0.75, 0.85, 1.2])
@pytest.mark.parametrize("element", ["Pt", "W"])
def test_each_branch_of_the_embedding_energy_is_the_published_formula(element, scale):
    """From 0.1 to 4 times the density of the crystal."""
    potential = ZhouEAM(element)
    atoms = bulk(element, cubic=True)
    atoms.set_cell(atoms.cell * scale, scale_atoms=True)
    _, got = evaluate([atoms], potential)
    expected = energy_of(atoms, potential.cutoff)
    np.testing.assert_allclose(got.energies[0], expected, rtol=1e-12)


@pytest.mark.parametrize("element", METALS)
def test_the_embedding_energy_has_no_jump(element):
    """A wrong digit among its parameters would show: they have six, so jumps are below 5e-7 eV."""
    m = PARAMETERS[element]
    for at in (m.rhon * m.rhoe, 1.15 * m.rhoe):
        jump = embedding(m, at * (1 + 1e-12)) - embedding(m, at * (1 - 1e-12))
        assert abs(jump) < 6e-7
    assert abs(embedding(m, 0.0)) < 2e-6


SCALES = np.linspace(0.99, 1.01, 21)


@functools.cache
def energies_of_crystals() -> dict[str, np.ndarray]:
    """Of each metal per atom, at lengths around the fitted one."""
    crystals = []
    for element, (_, length) in FITTED.items():
        for scale in SCALES:
            crystals.append(bulk(element, a=length))
            crystals[-1].set_cell(crystals[-1].cell * scale, scale_atoms=True)
    _, got = evaluate(crystals, ZhouEAM(*METALS))
    energies = np.asarray(got.energies)[: len(crystals)] / [len(a) for a in crystals]
    return dict(zip(FITTED, energies.reshape(-1, len(SCALES)), strict=True))


@pytest.mark.parametrize("element", METALS)
def test_crystals_have_the_energy_and_size_they_were_fitted_to(element):
    cohesive, _ = FITTED[element]
    energies = energies_of_crystals()[element]
    # The fit is of hcp metals with an ideal c/a, from which ASE's are up to 3 % away.
    np.testing.assert_allclose(energies.min(), -cohesive, atol=0.01)
    np.testing.assert_allclose(SCALES[energies.argmin()], 1, atol=0.006)


@pytest.mark.parametrize("structure", ["cell of four", "cluster of 13", "wire"])
def test_forces_are_differences_of_the_energy(structure):
    """Of three atoms at most, for which there is room in the program of other tests."""
    atoms, h = rattled(metal(structure, ALLOY), 3), 1e-5
    images, chosen = [atoms], range(0, len(atoms), 1 + len(atoms) // 3)
    for a in chosen:
        for c in range(3):
            for sign in (1, -1):
                images.append(atoms.copy())
                images[-1].positions[a, c] += sign * h
    _, got = evaluate(images, ZhouEAM(*ALLOY))
    energies = np.asarray(got.energies)[1 : len(images)].reshape(-1, 3, 2)
    forces = -(energies[..., 0] - energies[..., 1]) / (2 * h)
    # Energies of 100 eV have 1e-14 eV of rounding; a pair that crosses the cutoff jumps by 1e-5 eV.
    np.testing.assert_allclose(np.asarray(got.forces)[chosen], forces, atol=2e-7)


@pytest.mark.parametrize("structure", ["cell of four", "skewed and tiny"])
def test_stress_is_the_derivative_of_the_energy_by_strain(structure):
    atoms, h = rattled(metal(structure, ALLOY), 3), 1e-6
    images = [atoms]
    for a in range(3):
        for b in range(3):
            for sign in (1, -1):
                strain = np.eye(3)
                strain[a, b] += sign * h
                images.append(atoms.copy())
                images[-1].set_cell(np.asarray(atoms.cell) @ strain, scale_atoms=True)
    _, got = evaluate(images, ZhouEAM(*ALLOY))
    energies = np.asarray(got.energies)[1 : len(images)].reshape(3, 3, 2)
    stress = (energies[..., 0] - energies[..., 1]) / (2 * h * atoms.get_volume())
    np.testing.assert_allclose(got.stress[0], stress, atol=1e-8)


def test_forces_of_the_sixteen_metals_add_up_to_nothing():
    """To the last digits: a pair's force is the same from both of its ends."""
    batch, got = evaluate([metal("cell of 32", tuple(METALS))], ZhouEAM(*METALS))
    np.testing.assert_allclose(results_of(batch, got, 0)[0].sum(0), 0, atol=1e-12)


@pytest.mark.parametrize("first", METALS)
def test_the_energy_of_a_pair_jumps_by_less_than_a_fifth_of_a_mev_at_the_cutoff(first):
    m, r = PARAMETERS[first], ZhouEAM(first).cutoff
    for n in PARAMETERS.values():
        jump = unlike(m, n, r) + embedding(m, profile(n, r)) + embedding(n, profile(m, r))
        assert n.re > m.re or abs(jump - embedding(m, 0.0) - embedding(n, 0.0)) < 2e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_have_the_dtype_of_the_positions(dtype):
    got = shapes_of([metal("cell of four", ALLOY)], ZhouEAM(*ALLOY), dtype)
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype(dtype)}


def test_an_alloy_is_evaluated_outside_of_jit_too():
    """As a program by itself its kernel ended the process."""
    alloy = Batch.from_atoms([Atoms("CuNiCu", [(0, 0, 0), (2.5, 0.1, 0), (0.3, 2.6, 0.2)])])
    potential = ZhouEAM("Cu", "Ni")
    lists = NeighborTable(alloy, potential.cutoff, 0.5, lists=potential.lists).to_device()
    expected = jax.jit(lambda *given: potential(*given).energies)(alloy, lists)
    np.testing.assert_allclose(potential(alloy, lists).energies, expected, rtol=1e-12)


def test_two_atoms_at_one_place_have_an_energy_that_is_not_finite():
    overlapping, other = metal("cell of four", ALLOY), metal("slab", ALLOY)
    overlapping.positions[1] = overlapping.positions[0]
    _, got = evaluate([overlapping, other], ZhouEAM(*ALLOY))
    assert np.isnan(got.energies[0])
    assert np.isfinite(got.energies[1])
    assert np.isfinite(np.asarray(got.forces)[8:]).all()


def test_its_text_names_the_metals():
    assert potential_from("zhou:Cu,Ni").species == (28, 29)
    assert potential_from("zhou:Cu,cutoff=5").cutoff == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZhouEAM("Na"), "no parameters for 'Na', only for Cu, Ag"),
        (lambda: ZhouEAM("Cu", "Cu"), "name each metal once.*got Cu, Cu"),
        (lambda: ZhouEAM(), "name each metal once.*got none"),
        (lambda: ZhouEAM("Cu", cutoff=0.0), "cutoff must be positive"),
        (lambda: potential_from("zhou:Cu,cut=5"), "has no option 'cut', did you mean 'cutoff'"),
        (lambda: potential_from("zhou"), "name each metal once.*none$"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
