"""Buckingham with damped charges, against plain NumPy, differences and what is published."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms

from basinax import FIRE, Status
from basinax.atoms import Batch, Buckingham, NeighborTable, potential_from, relax
from basinax.numerics.erfc import erfc
from cover import exhaustive
from ions import PARAMETERS, POTENTIALS, SYSTEMS, evaluated
from structures import evaluate, results_of

pytestmark = pytest.mark.usefixtures("few_shapes")

# The double loop would take long over the largest, and its images of the far atom longer.
COMPARED = [name for name in SYSTEMS if name not in ("salt of 64", "slab and a far atom")]
every_potential = pytest.mark.parametrize("name", POTENTIALS)


@functools.cache
def all_of(name):
    return evaluate(list(SYSTEMS.values()), POTENTIALS[name])


def of_system(name, system):
    """Forces, energies of atoms, energy and stress of a system in the batch of all."""
    return results_of(*all_of(name), list(SYSTEMS).index(system))


# --- the numbers


@pytest.mark.parametrize("system", COMPARED)
@every_potential
def test_energies_forces_and_stress_are_those_of_a_double_loop(name, system):
    """Rounding in sums of up to a thousand pairs of some 10 eV, and of some 100 eV/Å."""
    atoms = SYSTEMS[system]
    forces, atom_energies, energy, stress = of_system(name, system)
    energies, expected, virial = evaluated(atoms, PARAMETERS[name])
    np.testing.assert_allclose(atom_energies, energies, rtol=0, atol=1e-10)
    np.testing.assert_allclose(energy, energies.sum(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(forces, expected, rtol=0, atol=1e-9)
    if atoms.cell.rank == 3:
        np.testing.assert_allclose(stress * atoms.get_volume(), virial, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["BKS", "without charges"])
@pytest.mark.parametrize("system", ["salt of 8", "slab", "cluster of 13"])
def test_forces_are_differences_of_the_energy(name, system):
    """1e-6 eV/Å: h² times third derivatives of up to 1e4 eV/Å³; no pair crosses a cutoff."""
    atoms, h = SYSTEMS[system], 1e-5
    images = [atoms]
    for a, c, sign in ((a, c, sign) for a in (0, 5) for c in range(3) for sign in (1, -1)):
        images.append(atoms.copy())
        images[-1].positions[a, c] += sign * h
    _, got = evaluate(images, POTENTIALS[name])
    energies = np.asarray(got.energies)[1 : len(images)].reshape(2, 3, 2)
    forces = -(energies[..., 0] - energies[..., 1]) / (2 * h)
    np.testing.assert_allclose(np.asarray(got.forces)[[0, 5]], forces, rtol=0, atol=1e-6)


def test_the_complementary_error_function_is_exact_to_a_few_units_in_the_last_place():
    x = np.concatenate([np.linspace(0.0, 8.0, 8000), [1e3, 1e12]])
    got, gaussian = jax.jit(erfc)(jnp.asarray(x))
    expected = np.array([math.erfc(v) for v in x])
    # erfc(0) is 1, with 2.2e-16 between numbers.
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)
    inside = x < 6
    np.testing.assert_allclose(got[inside], expected[inside], rtol=1e-14)
    np.testing.assert_allclose(gaussian[inside], np.exp(-(x[inside] ** 2)), rtol=1e-14)


def test_energy_and_force_of_charges_vanish_at_the_cutoff():
    charges = Buckingham(q={"Na": 1.0}, cutoff=9.0)
    near, far = (Atoms("Na2", [[0, 0, 0], [9.0 + d, 0, 0]]) for d in (-1e-6, 1e-6))
    _, got = evaluate([Atoms("Na"), near, far], charges)
    alone, inside, outside = np.asarray(got.energies)[:3]
    # Second order in the distance to the cutoff, beside sums of some eV.
    assert abs(inside - 2 * alone) < 1e-13
    assert outside == 2 * alone
    assert np.abs(np.asarray(got.forces)).max() < 1e-6


def test_neutral_crystals_have_the_energy_of_madelung():
    """Rock salt: 1.747565 k/r₀ a formula unit. 1e-4: the damping's own error, exp(−α²R²)."""
    crystal = Atoms("NaCl", [[0, 0, 0], [2.8, 0, 0]], cell=2.8 * (1 - np.eye(3)), pbc=True)
    ions = Buckingham(
        A={("Na", "Cl"): 1e4}, rho={("Na", "Cl"): 0.05}, q={"Na": 1, "Cl": -1},
        alpha=0.2, cutoff=20.0,
    )  # fmt: skip
    _, got = evaluate([crystal], ions)
    assert got.energies[0] == pytest.approx(-1.747565 * 14.399645 / 2.8, rel=1e-4)


@pytest.mark.exhaustive
def test_silica_has_bonds_of_silica():
    """Four of about 1.60 Å for each Si, as in quartz by the paper."""
    result = relax([SYSTEMS["silica"]], Buckingham.named("BKS", cutoff=10.0), FIRE(), fmax=0.01)
    assert result.converged[0]
    atoms = result.atoms[0]
    bonds = np.sort(atoms.get_all_distances(mic=True)[:8, 8:], axis=1)[:, :4]
    np.testing.assert_allclose(bonds, 1.60, rtol=0.03)


# --- the barrier


def test_barriers_stand_where_published_ones_do():
    """1.439 Å for O-O and 1.1936 Å for Si-O: K. Vollmayr, W. Kob and K. Binder, Phys. Rev. B 54,
    15808 (1996), with whole charges."""
    walls = np.asarray(Buckingham.named("BKS", alpha=0.0, cutoff=1000.0).walls)
    np.testing.assert_allclose(walls[0], [1.439, 1.1936], atol=5e-4)
    assert walls[1, 1] == 0.0


def test_a_pair_within_its_barrier_has_no_energy():
    pairs = [Atoms("SiO", [[0, 0, 0], [0, 0, r]]) for r in (1.20, 1.18, 0.5, 1e-4, 0.0)]
    _, got = evaluate(pairs, POTENTIALS["BKS"])
    assert np.isnan(got.energies[: len(pairs)]).tolist() == [False, True, True, True, True]


@pytest.mark.parametrize("dtype", [exhaustive(np.float32), np.float64])
def test_a_system_that_falls_together_ends_as_not_finite_and_no_other_does(dtype):
    """A pair that starts within its barrier, and one that gains the speed to pass it."""
    fallen, falling = (Atoms("SiO", [[0, 0, 0], [0, 0, r]]) for r in (1.1, 1.9))
    result = relax([fallen, falling, SYSTEMS["salt of 8"]], POTENTIALS["BKS"], FIRE(), dtype=dtype)
    assert result.status.tolist() == [Status.NOT_FINITE, Status.NOT_FINITE, Status.CONVERGED]
    assert result.steps[0] == 0 < result.steps[1]


# --- parameters


def test_pairs_that_are_not_named_have_charges_alone():
    p = Buckingham({("Mg", "O"): 1400.0}, {("O", "Mg"): 0.295}, q={"Mg": 2, "O": -2})
    assert np.asarray(p.A).tolist() == [[0.0, 1400.0], [1400.0, 0.0]]
    assert not np.asarray(p.C).any()
    _, got = evaluate([Atoms("Mg2", [[0, 0, 0], [3.0, 0, 0]])], p)
    _, bare = evaluate([Atoms("Mg2", [[0, 0, 0], [3.0, 0, 0]])], Buckingham(q={"Mg": 2}))
    assert got.energies[0] == bare.energies[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buckingham({("Mg", "O"): 1400.0}, {("O", "O"): 0.3}), r"rho .* pair O-Mg: add"),
        (lambda: Buckingham(1400.0), "A needs rho"),
        (lambda: Buckingham(-1.0, 0.3), "A and C must not be negative, got -1"),
        (lambda: Buckingham(1.0, 0.0), "rho must be positive"),
        (lambda: Buckingham(1.0, 0.3, cutoff=0.0), "cutoff must be positive"),
        (lambda: Buckingham(1.0, 0.3, cutoff=5.0, short_cutoff=6.0), "at most cutoff, got 6.0"),
        (lambda: Buckingham(1.0, 0.3, alpha=-0.1), "alpha must be 0 or more"),
        (lambda: Buckingham(q={"Xx": 1.0}), "'Xx' is no chemical element"),
        (lambda: Buckingham(q={("Na", "Cl"): 1.0}), "charges are per element"),
        (lambda: Buckingham({("Na", "Cl"): 1e3}, 0.3, q={"Na": 1}), "q has no value for Cl"),
        (lambda: Buckingham(q={"Na": 1, "Cl": -1}), "pair Na-Cl attracts at every distance"),
        (lambda: Buckingham(C=3.0), "pair of all atoms attracts at every distance"),
        (lambda: Buckingham.named("MgO"), "no named parameters 'MgO'"),
        (lambda: potential_from("buckingham:MgO"), "no named parameters 'MgO', only BKS"),
    ],
)
def test_wrong_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_species_without_parameters_is_named_with_its_systems():
    with pytest.raises(ValueError, match=r"Buckingham .* for Al, which is in system .* for O, Si"):
        POTENTIALS["BKS"].check([Atoms("SiO2"), Atoms("Al")])


def test_it_is_made_from_text():
    def same(a, b):
        return jax.tree.structure(a) == jax.tree.structure(b) and all(
            map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b))
        )

    text = "A.Mg-O=1400,rho.Mg-O=0.3,C.O-O=28,A.O-O=2e4,rho.O-O=0.15,q.Mg=2,q.O=-2,alpha=0.25"
    made = Buckingham(
        {("Mg", "O"): 1400, ("O", "O"): 2e4},
        {("Mg", "O"): 0.3, ("O", "O"): 0.15},
        {("O", "O"): 28},
        {"Mg": 2, "O": -2},
        alpha=0.25,
    )
    assert same(potential_from(f"buckingham:{text}"), made)
    bks = Buckingham.named("BKS", cutoff=9, short_cutoff=6.0, shift=False)
    assert same(potential_from("Buckingham:BKS,cutoff=9,short_cutoff=6,shift=false"), bks)


def test_other_numbers_compile_nothing(count_compilations):
    batch = Batch.from_atoms([SYSTEMS["salt of 8"]])
    neighbors = NeighborTable(batch, 9.0, 0.5).to_device()
    run = jax.jit(lambda potential: potential(batch, neighbors).energies)
    run(POTENTIALS["BKS"])
    a, c = {("Si", "O"): 1e4, ("O", "O"): 1e3}, {("O", "O"): 90.0}
    other = Buckingham(a, 0.25, c, {"Si": 2, "O": -1}, cutoff=8.0)
    with count_compilations() as compiled:
        run(other)
    assert compiled.count == 0


@every_potential
def test_padding_has_neither_energy_nor_force(name):
    batch, got = all_of(name)
    padding = ~np.asarray(batch.index.has_system())
    assert padding.any()
    assert (np.asarray(got.forces)[padding] == 0).all()
    assert (np.asarray(got.atom_energies)[padding] == 0).all()


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("name", "dtype"), [exhaustive("BKS", np.float32), exhaustive("all alike", np.float64)]
)
def test_four_hundred_steps_of_a_relaxation_have_the_bits_they_have_alone(name, dtype):
    atoms = [SYSTEMS[k] for k in ("salt of 8", "cluster of 13")]
    atoms.append(Atoms("SiO", np.zeros((2, 3))))
    settings = {"fmax": 0.0, "max_steps": 400, "dtype": dtype}
    batch = relax(atoms, POTENTIALS[name], FIRE(), **settings)
    assert batch.steps.max() == 400
    assert batch.status[-1] == Status.NOT_FINITE
    for k, a in enumerate(atoms):
        # Another skin, so that lists are made at other steps.
        alone = relax([a], POTENTIALS[name], FIRE(), skin=0.2, **settings)
        assert alone.steps[0] == batch.steps[k]
        one, other = alone.atoms[0], batch.atoms[k]
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.get_forces(), other.get_forces())
        np.testing.assert_array_equal(alone.energies[0], batch.energies[k])
