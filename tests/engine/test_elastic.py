"""Elastic tensors against ASE's stresses, published values, and the symmetry of crystals."""

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixedLine, FixScaled, FixSymmetry
from ase.optimize import FIRE as ASEFIRE

from basinax import FIRE
from basinax.atoms import EMT, ASECalculator, LennardJones, StillingerWeber, elastic, relax
from basinax.structures.charges import Unused
from calculators import WithoutEnergy
from comparison import same_bits
from cover import exhaustive

pytestmark = pytest.mark.usefixtures("few_shapes")

SILICON = StillingerWeber.named("Si")
VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))


def two_atoms(cell) -> Atoms:
    return Atoms("Cu2", scaled_positions=[(0, 0, 0), (0.46, 0.53, 0.49)], cell=cell, pbc=True)


CRYSTALS = {
    "cubic": (bulk("Cu"), 2),
    "hexagonal": (bulk("Cu", "hcp", a=2.6, c=4.1), 3),
    "trigonal": (Atoms("Cu", cell=[2.6, 2.6, 2.6, 64, 64, 64], pbc=True), 2),
    "tetragonal": (Atoms("CuAu", [(0, 0, 0), (1.4, 1.4, 1.9)], cell=[2.8, 2.8, 3.8], pbc=True), 4),
    "orthorhombic": (Atoms("Cu", cell=[2.4, 2.5, 2.7], pbc=True), 6),
    "monoclinic": (Atoms("Cu", cell=[2.4, 2.5, 2.7, 90, 98, 90], pbc=True), 6),
    "triclinic": (two_atoms([[2.9, 0, 0], [0.6, 2.8, 0], [0.4, -0.5, 3.1]]), 6),
}
"""A crystal of each system, and how many strains its symmetry leaves."""


def ase_tensor(atoms: Atoms, size: float, fmax: float | None = None) -> np.ndarray:
    """By ASE's stresses alone, of the ions where they are or relaxed by ASE."""
    stresses = []
    for (i, j), sign in [(pair, sign) for pair in VOIGT for sign in (1, -1)]:
        strain = np.zeros((3, 3))
        strain[i, j] = strain[j, i] = sign * size * (1 if i == j else 0.5)
        copy = atoms.copy()
        copy.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        copy.calc = ASEEMT()
        if fmax:
            ASEFIRE(copy, logfile=None).run(fmax=fmax)
        stresses.append(copy.get_stress())
    tensor = (np.array(stresses[::2]) - np.array(stresses[1::2])).T / (2 * size)
    return (tensor + tensor.T) / 2


@pytest.fixture(scope="module")
def clamped():
    return elastic([atoms for atoms, _ in CRYSTALS.values()], EMT())


@pytest.mark.parametrize("system", CRYSTALS)
def test_a_clamped_tensor_is_that_of_the_stresses_of_ase(clamped, system):
    expected = ase_tensor(CRYSTALS[system][0], 2e-3)
    found = clamped[list(CRYSTALS).index(system)]
    np.testing.assert_allclose(found.tensor, expected, rtol=0, atol=1e-7)
    atoms = CRYSTALS[system][0].copy()
    atoms.calc = ASEEMT()
    np.testing.assert_allclose(found.stress, atoms.get_stress(), rtol=0, atol=1e-9)


@pytest.mark.exhaustive
def test_relaxed_ions_are_those_that_ase_relaxes():
    """In a start whose ions are relaxed, so that both find the same minimum."""
    atoms = CRYSTALS["triclinic"][0].copy()
    atoms.calc = ASEEMT()
    ASEFIRE(atoms, logfile=None).run(fmax=1e-6)
    atoms.calc = None
    atoms.rattle(1e-3, seed=0)
    (found,) = elastic([atoms], EMT(), relax_ions=True, fmax=1e-6, max_steps=3000)
    assert found.message == ""
    np.testing.assert_allclose(found.tensor, ase_tensor(atoms, 2e-3, 1e-6), rtol=0, atol=2e-4)


@pytest.mark.parametrize("system", CRYSTALS)
def test_symmetry_saves_strains_and_changes_no_constant(clamped, system):
    atoms, n_strains = CRYSTALS[system]
    asked = []

    class Counted(ASEEMT):
        def calculate(self, *args, **how):
            asked.append(1)
            super().calculate(*args, **how)

    (found,) = elastic([atoms], ASECalculator(Counted()), symmetrize=True)
    assert len(asked) == 1 + 2 * n_strains
    expected = clamped[list(CRYSTALS).index(system)].tensor
    # The terms of third order of strains of 0.002 differ.
    np.testing.assert_allclose(found.tensor, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("symmetrize", [False, True])
def test_a_rotated_crystal_has_the_rotated_tensor(symmetrize):
    """To 2e-4 eV/Å³: the terms of third order of strains of 0.002 differ."""
    crystal, turned = bulk("Cu"), bulk("Cu")
    turned.rotate(45, "z", rotate_cell=True)
    straight, rotated = elastic([crystal, turned], EMT(), symmetrize=symmetrize)
    (c11, c12, c44), c = straight.tensor[[0, 0, 3], [0, 1, 3]], rotated.tensor
    assert c[0, 0] == pytest.approx((c11 + c12) / 2 + c44, abs=2e-4)
    assert c[5, 5] == pytest.approx((c11 - c12) / 2, abs=2e-4)
    assert c[2, 2] == pytest.approx(c11, abs=2e-4)
    for name in ("bulk_modulus", "shear_modulus"):
        np.testing.assert_allclose(getattr(rotated, name), getattr(straight, name), atol=2e-4)


@pytest.mark.parametrize("symmetrize", [True, exhaustive(False)])
def test_silicon_has_the_published_constants(symmetrize):
    """E. R. Cowley, Phys. Rev. Lett. 60, 2379 (1988), as LAMMPS's examples/ELASTIC quotes it."""
    silicon = bulk("Si", a=5.43095)
    (relaxed,) = elastic([silicon], SILICON, relax_ions=True, symmetrize=symmetrize)
    c = relaxed.to_gpa()
    np.testing.assert_allclose(c[[0, 0, 3], [0, 1, 3]], [151.4, 76.4, 56.4], rtol=2e-3)
    (clamped,) = elastic([silicon], SILICON, symmetrize=symmetrize)
    c = clamped.to_gpa()
    np.testing.assert_allclose(c[[0, 0], [0, 1]], [151.4, 76.4], rtol=1e-3)
    assert c[3, 3] > 100


class OfMoments(ASEEMT):
    """Atoms of moments above 0 are of gold."""

    def calculate(self, atoms=None, properties=("energy",), changes=()):
        marked = atoms.copy()
        marked.numbers[atoms.get_initial_magnetic_moments() > 0] = 79
        super().calculate(marked, properties, ["positions", "numbers", "cell", "pbc"])


def test_moments_that_a_calculator_uses_count_for_the_symmetry():
    ordered = bulk("Cu", cubic=True, a=3.8)
    ordered.set_initial_magnetic_moments([1, 1, -1, -1])
    full, symmetric = (
        elastic([ordered], OfMoments(), symmetrize=symmetrize)[0].to_gpa()
        for symmetrize in (False, True)
    )
    np.testing.assert_allclose(symmetric, full, atol=1e-3)
    assert abs(full[0, 0] - full[1, 1]) > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("metal", "published"),
    [("Cu", (171.65, 114.82, 89.0)), ("Ag", (124.45, 86.27, 53.44))],
)
def test_metals_of_emt_have_the_published_constants(metal, published):
    """Of ASAP's EMT (Test/Stress.py, version 3.8), whose cutoff differs from that of ASE's."""
    (atoms,) = relax([bulk(metal)], EMT(), FIRE(), cell="frechet", fmax=1e-4).atoms
    (found,) = elastic([atoms], EMT(), symmetrize=True)
    np.testing.assert_allclose(found.to_gpa()[[0, 0, 3], [0, 1, 3]], published, rtol=0.02)
    assert found.is_stable and np.abs(found.stress).max() < 1e-4


def test_moduli_of_a_cubic_crystal_are_those_of_the_textbook(clamped):
    """R. Hill, Proc. Phys. Soc. A 65, 349 (1952)."""
    c11, c12, c44 = clamped[0].tensor[[0, 0, 3], [0, 1, 3]]
    bulk_modulus, shear = clamped[0].bulk_modulus, clamped[0].shear_modulus
    np.testing.assert_allclose(bulk_modulus, [(c11 + 2 * c12) / 3] * 2, rtol=1e-6)
    reuss = 5 * (c11 - c12) * c44 / (4 * c44 + 3 * (c11 - c12))
    np.testing.assert_allclose(shear, [(c11 - c12 + 3 * c44) / 5, reuss], rtol=1e-6)
    assert shear.hill == pytest.approx(sum(shear) / 2)
    np.testing.assert_allclose(clamped[0].compliance @ clamped[0].tensor, np.eye(6), atol=1e-9)


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize("dtype", ["float64", exhaustive("float32")])
@pytest.mark.parametrize("relax_ions", [exhaustive(False), True])
def test_a_structure_has_the_bits_that_it_has_alone(relax_ions, dtype):
    options = {"relax_ions": relax_ions, "symmetrize": True, "fmax": 1e-3, "dtype": dtype}
    crystals = [bulk("Si", a=5.4), bulk("Si", a=5.4, cubic=True), bulk("Si", a=5.5)]
    crystals[2].rattle(0.02, seed=0)
    together = elastic(crystals, SILICON, **options)
    for at in (2, 0):
        (alone,) = elastic(crystals[at : at + 1], SILICON, **options)
        assert same_bits(alone.tensor, together[at].tensor)
        assert same_bits(alone.stress, together[at].stress)


@pytest.mark.exhaustive
def test_a_crystal_that_a_strain_lowers_is_unstable():
    """Of body-centred copper, whose tetragonal shear leads to the face-centred crystal."""
    (atoms,) = relax([bulk("Cu", "bcc", a=2.86)], EMT(), FIRE(), cell="frechet", fmax=1e-3).atoms
    (found,) = result = elastic([atoms], EMT(), symmetrize=True)
    assert found.is_stable == (found.tensor[0, 0] > found.tensor[0, 1])
    assert not found.is_stable and "False" in repr(result)


def test_a_structure_keeps_no_symmetry_while_it_is_strained():
    silicon, held = bulk("Si", a=5.43), bulk("Si", a=5.43)
    held.set_constraint(FixSymmetry(held))
    free, symmetric = elastic([silicon, held], SILICON, relax_ions=True)
    assert same_bits(free.tensor, symmetric.tensor)


def test_what_fails_is_told_and_spoils_no_other():
    tungsten, copper = bulk("W"), bulk("Cu")
    result = elastic([tungsten, copper], ASECalculator(ASEEMT()))
    failed, ours = result
    assert "W" in failed.message and np.isnan(failed.tensor).all() and not failed.is_stable
    assert ours.message == "" and ours.is_stable
    assert "W" in repr(result)
    crushed = bulk("Si")
    crushed.positions[1] = crushed.positions[0]
    short, broken = elastic([bulk("Si"), crushed], SILICON, relax_ions=True, max_steps=1)
    assert short.message == "ions did not converge" and np.isfinite(short.tensor).all()
    assert broken.message == "energy, forces or stress are NaN or infinite"


@pytest.mark.parametrize("relax_ions", [False, exhaustive(True)])
def test_a_crystal_without_a_list_is_told_of_and_spoils_no_other(relax_ions):
    lost = bulk("Cu", cubic=True)
    lost.positions[0] = 2e8
    options = {"relax_ions": relax_ions, "symmetrize": True}
    ours, failed = elastic([bulk("Cu"), lost], EMT(), **options)
    (alone,) = elastic([bulk("Cu")], EMT(), **options)
    assert failed.message.startswith("system 1 (Cu4): no neighbour list can be made")
    assert np.isnan(failed.tensor).all() and np.isnan(failed.stress).all()
    assert ours.message == "" and same_bits(ours.tensor, alone.tensor)


def test_a_crystal_without_a_symmetry_is_told_of_and_spoils_no_other():
    lost = bulk("Cu", cubic=True)
    lost.positions[0] = lost.positions[1] + 1e-4
    failed, ours = elastic([lost, bulk("Cu")], EMT(), symmetrize=True)
    (alone,) = elastic([bulk("Cu")], EMT(), symmetrize=True)
    assert failed.message.startswith("spglib finds no symmetry of Cu4")
    assert np.isnan(failed.tensor).all() and np.isnan(failed.stress).all()
    assert ours.message == "" and same_bits(ours.tensor, alone.tensor)


def test_ions_that_constraints_keep_from_their_symmetry_give_the_tensor_of_all_strains():
    silicon = bulk("Si", a=5.431)
    silicon.set_constraint(FixedLine([0, 1], [0, 0, 1]))
    one, all_of_them = (
        elastic([silicon], SILICON, relax_ions=True, symmetrize=symmetrize)[0].to_gpa().diagonal()
        for symmetrize in (True, False)
    )
    np.testing.assert_array_equal(one, all_of_them)
    assert one[3] > 1.5 * one[5]


def test_own_calculators_are_asked(clamped):
    copper = bulk("Cu")
    copper.calc = ASEEMT()
    for relax_ions in (False, True):
        (found,) = elastic([copper], relax_ions=relax_ions)
        np.testing.assert_allclose(found.tensor, clamped[0].tensor, atol=1e-7)


@pytest.mark.parametrize("relax_ions", [False, True])
def test_a_crystal_without_an_energy_has_no_constants(relax_ions):
    (found,) = elastic([bulk("Cu")], WithoutEnergy(), relax_ions=relax_ions)
    assert np.isnan(found.tensor).all() and found.message and not found.is_stable


@pytest.mark.parametrize(
    ("atoms", "options", "error", "text"),
    [
        (bulk("Cu"), {}, TypeError, "pass \\[atoms\\]"),
        ([molecule("N2")], {}, ValueError, "system 0 \\(N2\\) has pbc=.* three periodic"),
        ([fcc111("Cu", (1, 1, 2), vacuum=5)], {}, ValueError, "three periodic"),
        ([bulk("Cu")], {"strain": 0}, ValueError, "strain must be above 0 and below 1"),
        ([bulk("Cu")], {"strain": 2.5}, ValueError, "strain must be above 0 and below 1"),
        (
            [bulk("Cu"), Atoms("Cu", cell=[3, 3, 3], pbc=True, constraint=FixScaled(0, (1, 0, 0)))],
            {"relax_ions": True},
            NotImplementedError,
            "system 1 \\(Cu\\) has FixScaled along some",
        ),
        ([bulk("Cu")], {"symprec": -1}, ValueError, "symprec must be positive"),
        ([bulk("Cu")], {"relax_ions": "yes"}, TypeError, "relax_ions must be True or False"),
        ([bulk("Cu")], {"symmetrize": 1}, TypeError, "symmetrize must be True or False"),
        ([bulk("Cu")], {"optimizer": "fire"}, TypeError, "pass relax_ions=True"),
    ],
)
def test_what_is_unusable_is_named(atoms, options, error, text):
    with pytest.raises(error, match=text):
        elastic(atoms, EMT(), **options)


SIMPLE = LennardJones(epsilon=0.4, sigma=2.3, cutoff=5.0)
"""For what any potential shows: it compiles in a third of the time of EMT."""


def test_a_fix_scaled_that_holds_nothing_or_all_may_be_strained():
    for mask in ((0, 0, 0), (1, 1, 1)):
        copper = Atoms("Cu", cell=[2.4, 2.4, 2.4], pbc=True, constraint=FixScaled(0, mask))
        assert np.isfinite(elastic([copper], SIMPLE, relax_ions=True)[0].tensor).all()


def test_units_are_those_of_ase(clamped):
    np.testing.assert_allclose(clamped[0].to_gpa() * units.GPa, clamped[0].tensor, rtol=1e-12)


def test_an_unused_charge_is_told_once_by_the_number_of_its_crystal():
    crystals = [bulk("Cu"), bulk("Cu")]
    crystals[1].info["charge"] = 1
    with pytest.warns(Unused) as told:
        elastic(crystals, SIMPLE, relax_ions=True, max_steps=1)
    (text,) = [str(warning.message) for warning in told if warning.category is Unused]
    assert text == "LennardJones does not use charge 1 (of system 1 (Cu))"
