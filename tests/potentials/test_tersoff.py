"""Tersoff's potential against ASE's, against differences, and against published numbers."""

import functools

import equinox as eqx
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.tersoff import Tersoff as ASETersoff, TersoffParameters

from basinax import FIRE
from basinax.atoms import Batch, NeighborTable, Tersoff, TersoffTriplet, potential_from, relax
from basinax.potentials.tersoff import SILICON as SILICON_OF_1988
from covalent import MIXED, POTENTIALS, SILICON, SYSTEMS, A, of, varied_bonds
from structures import evaluate, results_of

pytestmark = pytest.mark.usefixtures("few_short_shapes")

NAMES = [name for name in POTENTIALS if name.startswith("Tersoff")]
every_set = pytest.mark.parametrize("name", NAMES)

CARBIDE = """# UNITS: metal
C  C  C  3 1 0 38049  4.3484 -.57058 .72751 1.5724e-7 2.2119  346.74  1.95 0.15 3.4879 1393.6
Si Si Si 3 1 0 100390 16.217 -.59825 .78734 1.1e-6    1.7322  471.18  2.85 0.15 2.4799 1830.8
Si Si C  3 1 0 100390 16.217 -.59825 0 0 0 0
         2.357 0.1527 0 0

Si C  C  3 1 0 100390 16.217 -.59825 .78734 1.1e-6    1.97205 395.145 2.357 0.1527 2.9839 1597.311
C  Si Si 3 1 0 38049  4.3484 -.57058 .72751 1.5724e-7 1.97205 395.145 2.357 0.1527 2.9839 1597.311
C  Si C  3 1 0 38049  4.3484 -.57058 0 0 0 0 1.95  0.15   0 0
C  C  Si 3 1 0 38049  4.3484 -.57058 0 0 0 0 2.357 0.1527 0 0
Si C  Si 3 1 0 100390 16.217 -.59825 0 0 0 0 2.85  0.15   0 0
"""
"""Some numbers of SiC as LAMMPS has them; those that are not used are 0, as in its files."""


@pytest.fixture
def carbide(tmp_path):
    path = tmp_path / "SiC.tersoff"
    path.write_text(CARBIDE)
    return path


@functools.cache
def structures(name):
    _, elements, scale = POTENTIALS[name]
    return [of(elements, s, scale) for s in SYSTEMS]


@functools.cache
def all_of(name):
    return evaluate(structures(name), POTENTIALS[name][0])


class Reference(ASETersoff):
    """ASE's, which divides by zero where a bond has no third atom near."""

    def _calc_bij_d(self, zeta, beta, n):
        return super()._calc_bij_d(zeta, beta, n) if zeta > 0 else 0.0


def with_ase(atoms, triplets):
    atoms = atoms.copy()
    atoms.calc = Reference({key: TersoffParameters(*p) for key, p in triplets.items()})
    return atoms


TRIPLETS = {
    "Tersoff": {SILICON * 3: SILICON_OF_1988},
    "Tersoff, mixed": varied_bonds(MIXED, 2),
}


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", TRIPLETS)
def test_energies_forces_and_stresses_are_those_of_ase(name, system):
    k = list(SYSTEMS).index(system)
    forces, atom_energies, energy, stress = results_of(*all_of(name), k)
    reference = with_ase(structures(name)[k], TRIPLETS[name])
    # ASE's angular function loses c²/d², some 1e7, of its digits, and with it forces 1e-9.
    expected = reference.get_potential_energy()
    np.testing.assert_allclose(energy, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(atom_energies.sum(), expected, rtol=1e-9, atol=1e-9)
    scale = max(1.0, np.abs(forces).max())
    np.testing.assert_allclose(forces, reference.get_forces(), atol=1e-8 * scale)
    if reference.cell.rank == 3:
        # Per volume, of which the needle has much.
        np.testing.assert_allclose(stress, reference.get_stress(voigt=False), atol=1e-9 * scale)


def test_a_file_gives_the_numbers_of_ase(carbide):
    atoms = of(("Si", "C"), "cell of 64", 0.8)
    forces, _, energy, _ = results_of(*evaluate([atoms], Tersoff.read(carbide)), 0)
    atoms.calc = Reference.from_lammps(carbide)
    np.testing.assert_allclose(energy, atoms.get_potential_energy(), rtol=1e-9)
    np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-8)


def test_named_parameters_of_a_mixture_are_those_of_its_file(carbide):
    """Which has five digits of mixed numbers."""
    atoms = of(("Si", "C"), "cell of 64", 0.8)
    expected = evaluate([atoms], Tersoff.read(carbide))[1].energies
    got = evaluate([atoms], Tersoff.named("Si", "C"))[1].energies
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_a_tiny_cell_has_the_energies_and_forces_of_its_supercell():
    potential, small = POTENTIALS["Tersoff, mixed"][0], of(MIXED, "skewed and tiny")
    large = small.repeat(3)
    batch, got = evaluate([small, large], potential)
    one, many = results_of(batch, got, 0), results_of(batch, got, 1)
    # Forces are some 10 eV/Å.
    np.testing.assert_allclose(many[0], np.tile(one[0], (27, 1)), atol=1e-11)
    np.testing.assert_allclose(many[2], 27 * one[2], rtol=1e-13)
    np.testing.assert_allclose(many[3], one[3], atol=1e-12)


@every_set
def test_forces_are_differences_of_the_energy(name):
    potential, (batch, got) = POTENTIALS[name][0], all_of(name)
    k, h = list(SYSTEMS).index("cluster"), 1e-4
    atoms = structures(name)[k]
    steps = [(a, c, sign) for a in range(0, len(atoms), 15) for c in range(3) for sign in (1, -1)]
    images = []
    for a, c, sign in steps:
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
    for a in range(3):
        for b in range(a, 3):
            for sign in (1, -1):
                strain = np.zeros((3, 3))
                strain[a, b] += sign * h / 2
                strain[b, a] += sign * h / 2
                images.append(atoms.copy())
                images[-1].set_cell(np.asarray(atoms.cell) @ (np.eye(3) + strain), scale_atoms=True)
    energies = np.asarray(evaluate(images, potential)[1].energies)[: len(images)]
    slopes = (energies[::2] - energies[1::2]) / (2 * h) / atoms.get_volume()
    stress = results_of(batch, got, k)[-1]
    np.testing.assert_allclose(stress[np.triu_indices(3)], slopes, atol=1e-7)


@pytest.mark.parametrize(
    ("element", "a", "expected"),
    [("Si", 5.432, -4.6297), ("C", 3.566, -7.3705), ("Ge", 5.6567, -3.8506)],
)
def test_cohesive_energies_are_the_published_ones(element, a, expected):
    """4.63, 7.37 and 3.85 eV in the papers; LAMMPS 22 Jul 2025 gives these digits."""
    crystal = bulk(element, "diamond", a=a)
    energies = evaluate([crystal], Tersoff.named(element))[1].energies
    assert energies[0] / 2 == pytest.approx(expected, abs=5e-5)


def test_a_crystal_relaxes_to_itself():
    crystal = bulk("Si", "diamond", a=A, cubic=True)
    crystal.positions[0] += [0.2, 0.1, -0.1]
    result = relax([crystal], Tersoff.named("Si"), FIRE(), fmax=1e-4)
    assert result.converged.all()
    # Forces of 1e-4 leave displacements of 1e-5 Å, and their squares times 10 eV/Å².
    ideal = evaluate([bulk("Si", "diamond", a=A)], Tersoff.named("Si"))[1].energies[0]
    assert result.energies[0] / 4 == pytest.approx(float(ideal), abs=1e-8)


def test_atoms_on_top_of_each_other_count_as_not_finite():
    pair = bulk("Si", "diamond", a=A)
    pair.positions[1] = pair.positions[0]
    assert not np.isfinite(evaluate([pair], Tersoff.named("Si"))[1].forces).all()


def test_a_list_without_the_other_ends_of_pairs_is_refused():
    potential, batch = Tersoff.named("Si"), Batch.from_atoms([of(SILICON, "cell of 8")])
    neighbors = NeighborTable(batch, potential.cutoff, 0.5).to_device()
    with pytest.raises(ValueError, match=r"Tersoff needs lists with .* reverse=True"):
        potential(batch, neighbors)


# --- where parameters come from


@pytest.mark.parametrize("text", ["tersoff:Si", "tersoff:C", "tersoff:Si,C", "tersoff:Si, Ge"])
def test_symbols_choose_published_parameters(text):
    elements = [word.strip() for word in text.partition(":")[2].split(",")]
    got, expected = potential_from(text), Tersoff.named(*elements)
    assert got.species == expected.species
    assert got.cutoff == expected.cutoff


def test_a_comment_ends_with_its_line_alone(carbide):
    """At no page break; and units are a word of the first line."""
    expected = Tersoff.read(carbide)
    text = CARBIDE.replace("# UNITS: metal", "# XUNITS: real \x0c a page \u2028 another")
    carbide.write_text(text, encoding="utf-8")
    assert text != CARBIDE and eqx.tree_equal(Tersoff.read(carbide), expected)


def test_text_chooses_elements_of_a_file(carbide):
    assert potential_from(f"tersoff:{carbide}").species == (6, 14)
    assert potential_from(f"tersoff:{carbide},elements=Si").species == (14,)
    assert Tersoff.read(carbide, elements="Si").species == (14,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    {
        "a letter": ("346.74", "E46.74", r"line 2: expected B, a finite number, got 'E46.74'"),
        "a number is missing": (".15 3.4879 1393", ".15 1393", r"line 3: expected A, .* got 'Si'"),
        "infinite": ("1.5724e-7", "1e999", r"line 2: expected beta, a finite number"),
        "no element": ("C  C  C ", "C  Cx C ", r"line 2: expected the symbol of element 2 .*'Cx'"),
        "twice": ("C  Si C ", "C  Si Si", r"line 9: C Si Si stands twice"),
        "it ends early": ("2.85  0.15   0 0", "2.85", r"line 11: an entry has 3 symbols and 14"),
        "units": ("UNITS: metal", "UNITS: real", r"line 1: units must be metal .*, got real"),
        "m": ("C  Si C  3", "C  Si C  2", r"m must be 1 or 3, got 2.0 for C Si C"),
        "n": (".72751 1.5724e-7 2.2", "0 1.5724e-7 2.2", r"n must be positive, got 0.0 for C C"),
        "D": ("1.95 0.15", "1.95 2.15", r"D must not be larger than R"),
    }.values(),
    ids=str,
)
def test_a_broken_file_is_named_with_its_line(carbide, old, new, message):
    assert old in CARBIDE
    carbide.write_text(CARBIDE.replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"{carbide.name}(: |, ){message}"):
        Tersoff.read(carbide)


def test_a_file_without_entries_is_refused(tmp_path):
    (tmp_path / "empty").write_text("# nothing\n\n")
    with pytest.raises(ValueError, match="there is no entry in it"):
        Tersoff.read(tmp_path / "empty")


def test_a_missing_triplet_is_named():
    triplets = varied_bonds(("Si", "C"), 1)
    del triplets["C", "Si", "C"]
    with pytest.raises(ValueError, match=r"no parameters for C Si C .* 1 of the 8 triplets"):
        Tersoff(triplets)


def test_names_that_a_file_has_for_no_element_may_be_left_out(carbide):
    carbide.write_text(CARBIDE + CARBIDE.splitlines()[2].replace("Si", "Si(B)"))
    assert Tersoff.read(carbide, ["C"]).species == (6,)


def test_elements_that_a_file_does_not_have_are_refused(carbide):
    with pytest.raises(ValueError, match="has no Ge, only C, Si"):
        Tersoff.read(carbide, ["Si", "Ge"])


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (("Sn",), "no named parameters for 'Sn'"),
        (("C", "Ge"), "for the pair C-Ge"),
        ((), "name at"),
    ],
)
def test_unpublished_parameters_are_refused(elements, message):
    with pytest.raises(ValueError, match=message):
        Tersoff.named(*elements)


def test_no_file_and_no_element_is_refused():
    with pytest.raises(ValueError, match="expected a file or elements of C, Si, Ge"):
        potential_from("tersoff:")


def test_an_element_without_parameters_is_named_before_anything_runs():
    with pytest.raises(ValueError, match="Tersoff has no parameters for Ar"):
        relax([bulk("Ar", "fcc", a=5.2)], Tersoff.named("Si"), FIRE())


def test_another_value_of_a_parameter_compiles_nothing(count_compilations):
    atoms = [of(SILICON, "cell of 8")]
    evaluate(atoms, Tersoff({SILICON * 3: SILICON_OF_1988}))
    with count_compilations() as counted:
        evaluate(atoms, Tersoff({SILICON * 3: SILICON_OF_1988._replace(beta=1.2e-6)}))
    assert counted.count == 0


def test_an_entry_has_the_order_of_lammps():
    assert TersoffTriplet._fields[:4] == ("m", "gamma", "lambda3", "c")
    assert TersoffTriplet._fields[-4:] == ("R", "D", "lambda1", "A")
