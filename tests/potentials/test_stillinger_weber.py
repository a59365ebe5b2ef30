"""Stillinger and Weber's potential against a plain oracle, LAMMPS, and differences."""

import functools
import itertools

import numpy as np
import pytest
from ase.build import bulk

from basinax import FIRE
from basinax.atoms import StillingerWeber, potential_from, relax
from basinax.potentials.stillinger_weber import NAMED
from covalent import MIXED, POTENTIALS, SILICON, SYSTEMS, A, of, varied_angles
from structures import evaluate, results_of

pytestmark = pytest.mark.usefixtures("few_short_shapes")

NAMES = [name for name in POTENTIALS if name.startswith("StillingerWeber")]
every_set = pytest.mark.parametrize("name", NAMES)
TRIPLETS = {
    "StillingerWeber": {SILICON * 3: NAMED["Si"]},
    "StillingerWeber, mixed": varied_angles(MIXED, 1),
}

FILE = """# UNITS: metal
Si Si Si 2.1683 2.0951 1.80 21.0 1.20 -0.333333333333
         7.049556277 0.6022245584 4.0 0.0 0.0
"""


@functools.cache
def structures(name):
    _, elements, scale = POTENTIALS[name]
    return [of(elements, s, scale) for s in SYSTEMS]


@functools.cache
def all_of(name):
    return evaluate(structures(name), POTENTIALS[name][0])


def vectors_within(atoms, i, cutoff):
    """The neighbours of an atom and the vectors to them, from all images that may be near."""
    reach = [range(-4, 5) if periodic else (0,) for periodic in atoms.pbc]
    for shift in itertools.product(*reach):
        for j in range(len(atoms)):
            d = atoms.positions[j] + np.array(shift) @ np.asarray(atoms.cell) - atoms.positions[i]
            if 0 < np.linalg.norm(d) < cutoff:
                yield atoms.symbols[j], d


def energies_of_atoms(atoms, triplets):
    """The equations of the paper, one atom after another."""
    energies = np.zeros(len(atoms))
    for i, own in enumerate(atoms.symbols):
        near = []
        for symbol, d in vectors_within(atoms, i, 4.5):
            p, r = triplets[own, symbol, symbol], np.linalg.norm(d)
            if r < p.a * p.sigma:
                decay = 1 / (r / p.sigma - p.a)
                x = p.sigma / r
                pair = p.A * p.epsilon * (p.B * x**p.p - x**p.q) * np.exp(decay)
                energies[i] += pair / 2
                near.append((symbol, d / r, np.exp(p.gamma * decay)))
        for (j, u, h), (k, v, other) in itertools.combinations(near, 2):
            p = triplets[own, j, k]
            energies[i] += p.lambda_ * p.epsilon * (u @ v - p.cos_theta0) ** 2 * h * other
    return energies


@pytest.mark.parametrize(
    "system", ["pair", "bent", "primitive", "cell of 8", "skewed and tiny", "cluster"]
)
@every_set
def test_energies_of_atoms_are_those_of_the_equations(name, system):
    k = list(SYSTEMS).index(system)
    got = results_of(*all_of(name), k)
    expected = energies_of_atoms(structures(name)[k], TRIPLETS[name])
    # Energies of up to 10 eV, by other functions of the same numbers.
    np.testing.assert_allclose(got[1], expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(got[2], expected.sum(), rtol=1e-11, atol=1e-11)


@every_set
def test_forces_are_differences_of_the_energy(name):
    potential, (batch, got) = POTENTIALS[name][0], all_of(name)
    k, h = list(SYSTEMS).index("cluster"), 1e-4
    atoms, images = structures(name)[k], []
    for a, c, sign in itertools.product(range(0, len(atoms), 15), range(3), (1, -1)):
        images.append(atoms.copy())
        images[-1].positions[a, c] += sign * h
    energies = np.asarray(evaluate(images, potential)[1].energies)[: len(images)]
    slopes = (energies[1::2] - energies[::2]) / (2 * h)
    forces = results_of(batch, got, k)[0][::15].ravel()
    # The third derivative, some 1e3 eV/Å³, times h²
    np.testing.assert_allclose(forces, slopes, rtol=1e-5, atol=1e-5)


@every_set
def test_stress_is_the_difference_of_the_energy(name):
    potential, (batch, got) = POTENTIALS[name][0], all_of(name)
    k, h = list(SYSTEMS).index("cell of 8"), 1e-5
    atoms, images = structures(name)[k], []
    pairs = list(itertools.combinations_with_replacement(range(3), 2))
    for (a, b), sign in itertools.product(pairs, (1, -1)):
        strain = np.zeros((3, 3))
        strain[a, b] += sign * h / 2
        strain[b, a] += sign * h / 2
        images.append(atoms.copy())
        images[-1].set_cell(np.asarray(atoms.cell) @ (np.eye(3) + strain), scale_atoms=True)
    energies = np.asarray(evaluate(images, potential)[1].energies)[: len(images)]
    slopes = (energies[::2] - energies[1::2]) / (2 * h) / atoms.get_volume()
    stress = results_of(batch, got, k)[-1]
    np.testing.assert_allclose(stress[np.triu_indices(3)], slopes, atol=1e-7)


LAMMPS = {
    "cell of 64": (-214.56098941315264, 64),
    "squeezed": (38.050515829858824, 8),
    "slab": (-66.01285341965198, 20),
    "cluster": (-49.545783247314084, 20),
}
"""Energies in eV by LAMMPS 22 Jul 2025, pair_style sw, and how many atoms these are."""


@pytest.mark.parametrize("system", LAMMPS)
def test_energies_are_those_of_lammps(system):
    expected, n_atoms = LAMMPS[system]
    k = list(SYSTEMS).index(system)
    assert len(structures("StillingerWeber")[k]) == n_atoms
    got = results_of(*all_of("StillingerWeber"), k)
    np.testing.assert_allclose(got[2], expected, rtol=1e-12)


def test_a_tiny_cell_has_the_energies_and_forces_of_its_supercell():
    potential, small = POTENTIALS["StillingerWeber, mixed"][0], of(MIXED, "skewed and tiny")
    batch, got = evaluate([small, small.repeat(3)], potential)
    one, many = results_of(batch, got, 0), results_of(batch, got, 1)
    # Forces are some 10 eV/Å.
    np.testing.assert_allclose(many[0], np.tile(one[0], (27, 1)), atol=1e-11)
    np.testing.assert_allclose(many[2], 27 * one[2], rtol=1e-13)
    np.testing.assert_allclose(many[3], one[3], atol=1e-12)


@pytest.mark.parametrize(("element", "a"), [("Si", A), ("Ge", 5.6536)])
def test_a_crystal_has_two_bonds_an_atom_at_its_best_distance(element, a):
    """The paper's scale: pairs of depth ε at 2^(1/6) σ, and no strain of angles."""
    energies = evaluate([bulk(element, "diamond", a=a)], StillingerWeber.named(element))[1].energies
    assert energies[0] / 2 == pytest.approx(-2 * NAMED[element].epsilon, rel=1e-6)


def test_a_crystal_relaxes_to_itself():
    crystal = bulk("Si", "diamond", a=A, cubic=True)
    crystal.positions[0] += [0.2, 0.1, -0.1]
    result = relax([crystal], StillingerWeber.named("Si"), FIRE(), fmax=1e-4)
    # Forces of 1e-4 leave displacements of 1e-5 Å, and their squares times 10 eV/Å².
    assert result.converged.all()
    assert result.energies[0] / 8 == pytest.approx(-2 * 2.1683, abs=1e-6)


def test_small_whole_powers_give_what_logarithms_give():
    entry = NAMED["Si"]
    quickly = StillingerWeber({SILICON * 3: entry})
    slowly = StillingerWeber({SILICON * 3: entry._replace(q=1e-13)})
    assert quickly.powers == (4, 0)
    assert slowly.powers is None
    got, expected = (evaluate([of(SILICON, "cell of 8")], p)[1] for p in (quickly, slowly))
    np.testing.assert_allclose(got.forces, expected.forces, atol=1e-11)


def test_atoms_on_top_of_each_other_count_as_not_finite():
    pair = bulk("Si", "diamond", a=A)
    pair.positions[1] = pair.positions[0]
    assert not np.isfinite(evaluate([pair], StillingerWeber.named("Si"))[1].energies[0])


def test_a_file_and_its_text_give_the_named_parameters(tmp_path):
    path = tmp_path / "Si.sw"
    path.write_text(FILE)
    made = [
        StillingerWeber.read(path),
        potential_from(f"stillinger-weber:{path}"),
        potential_from("stillinger-weber:Si"),
    ]
    for potential in made:
        energies = evaluate([of(SILICON, "cell of 8")], potential)[1].energies
        # The file has twelve digits of the cosine.
        np.testing.assert_allclose(energies, all_of("StillingerWeber")[1].energies[4], rtol=1e-11)


def test_angles_that_mind_the_order_of_neighbours_are_refused():
    triplets = varied_angles(MIXED, 1)
    triplets["Si", "C", "Ge"] = triplets["Si", "C", "Ge"]._replace(lambda_=20.0)
    with pytest.raises(ValueError, match=r"lambda must be the same .* exchanged, got 2.* for Si"):
        StillingerWeber(triplets)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"sigma": -1.0}, "sigma must be 0 or more"), ({"a": 0.0}, "a and sigma must be positive")],
)
def test_impossible_numbers_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        StillingerWeber({SILICON * 3: NAMED["Si"]._replace(**changes)})


@pytest.mark.parametrize("elements", [("C",), ("Si", "Ge"), ()])
def test_unpublished_parameters_are_refused(elements):
    with pytest.raises(ValueError, match="named parameters are those of one of Si, Ge"):
        StillingerWeber.named(*elements)
