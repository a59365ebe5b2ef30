"""EMT against ASE's: energies, forces, stresses and relaxations; and against differences."""

import functools

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT as ASEEMT
from ase.optimize import FIRE as ASEFIRE

import basinax
from basinax import FIRE, Status
from basinax.atoms import EMT, potential_from, relax
from cover import exhaustive
from follow_ase import walk_of_ase
from metals import METALS, SYSTEMS, alloy, slab_with_atoms
from structures import evaluate, evaluate_as_users, results_of, shapes_of

pytestmark = pytest.mark.usefixtures("few_shapes")

both_cutoffs = pytest.mark.parametrize("asap_cutoff", [False, True])
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def close(got, expected, scale):
    """Equal to 1e-11 of the scale; the energies that cancel are some eV an atom."""
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11 * scale)


@functools.cache
def all_of(asap_cutoff):
    return evaluate(list(SYSTEMS.values()), EMT(asap_cutoff=asap_cutoff))


def of_system(asap_cutoff, name):
    """Forces, energies of atoms, energy and stress of a system in the batch of all."""
    return results_of(*all_of(asap_cutoff), list(SYSTEMS).index(name))


def with_ase(atoms, asap_cutoff=False):
    atoms = atoms.copy()
    atoms.calc = ASEEMT(asap_cutoff=asap_cutoff)
    return atoms


@both_cutoffs
@pytest.mark.parametrize("name", SYSTEMS)
def test_energies_and_forces_are_those_of_ase(name, asap_cutoff):
    forces, atom_energies, energy, _ = of_system(asap_cutoff, name)
    reference = with_ase(SYSTEMS[name], asap_cutoff)
    close(energy, reference.get_potential_energy(), len(reference))
    close(atom_energies, reference.get_potential_energies(), 1.0)
    close(forces, reference.get_forces(), 1.0)


@both_cutoffs
@pytest.mark.parametrize("name", [name for name, a in SYSTEMS.items() if a.cell.rank == 3])
def test_stress_is_that_of_ase(name, asap_cutoff):
    expected = with_ase(SYSTEMS[name], asap_cutoff).get_stress(voigt=False)
    close(of_system(asap_cutoff, name)[-1], expected, 0.1)


@pytest.mark.parametrize(
    ("asap_cutoff", "dtype", "k"),
    [exhaustive(False, np.float32, 0), exhaustive(True, np.float64, 1)],
)
def test_the_elements_that_it_was_made_for_change_no_bit(asap_cutoff, dtype, k):
    """Each is alone with its elements in one dtype: they make a program of their own."""
    systems = [SYSTEMS["cell of 32"], SYSTEMS["slab with atoms"]]
    batch, got = evaluate_as_users(systems, EMT(asap_cutoff=asap_cutoff), dtype)
    narrow = EMT(*sorted(set(systems[k].symbols)), asap_cutoff=asap_cutoff)
    alone = results_of(*evaluate_as_users([systems[k]], narrow, dtype), 0)
    for a, b in zip(alone, results_of(batch, got, k), strict=True):
        np.testing.assert_array_equal(a, b)


def test_lists_reach_no_farther_than_the_elements_need():
    # r_c of ASE for the element, and what ASE lists beyond it
    assert EMT("Cu").cutoff == EMT().cutoff == pytest.approx(5.8767983)
    assert EMT("Cu", asap_cutoff=True).cutoff == pytest.approx(5.6187544 * 2.67 / 3.01)
    assert EMT(asap_cutoff=True).cutoff == EMT("Ag", asap_cutoff=True).cutoff


@pytest.mark.parametrize(
    ("name", "asap_cutoff"),
    [("slab with atoms", False), ("cluster of 13", True), ("molecule", True)],
)
def test_forces_are_differences_of_the_energy(name, asap_cutoff):
    atoms, h = SYSTEMS[name], 1e-4
    steps = [(a, c, sign) for a in range(0, len(atoms), 3) for c in range(3) for sign in (1, -1)]
    images = [atoms]
    for a, c, sign in steps:
        images.append(atoms.copy())
        images[-1].positions[a, c] += sign * h
    _, got = evaluate(images, EMT(asap_cutoff=asap_cutoff))
    energies = np.asarray(got.energies)[1 : len(images)].reshape(-1, 3, 2)
    forces = -(energies[..., 0] - energies[..., 1]) / (2 * h)
    # The error of the central difference: h² times a third derivative of up to 100 eV/Å³.
    np.testing.assert_allclose(got.forces[: len(atoms) : 3], forces, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "asap_cutoff"), [("skewed and tiny", True), ("slab with atoms", False)]
)
def test_stress_is_the_derivative_of_the_energy_by_strain(name, asap_cutoff):
    atoms, h = SYSTEMS[name], 1e-5
    images = [atoms]
    for a, b in np.ndindex(3, 3):
        for sign in (1, -1):
            strain = np.eye(3)
            strain[a, b] += sign * h
            images.append(atoms.copy())
            images[-1].set_cell(np.asarray(atoms.cell) @ strain, scale_atoms=True)
    _, got = evaluate(images, EMT(asap_cutoff=asap_cutoff))
    energies = np.asarray(got.energies)[1 : len(images)].reshape(3, 3, 2)
    stress = (energies[..., 0] - energies[..., 1]) / (2 * h * atoms.get_volume())
    # h² times a third derivative, and rounding errors of some eV over 2hV.
    np.testing.assert_allclose(got.stress[0], stress, atol=1e-8)


@both_cutoffs
def test_two_atoms_at_one_place_have_the_energy_of_ase_and_no_force(asap_cutoff):
    overlapping = SYSTEMS["cell of 32"].copy()
    overlapping.positions[1] = overlapping.positions[0]
    batch, got = evaluate([overlapping, SYSTEMS["alloy"]], EMT(asap_cutoff=asap_cutoff))
    with np.errstate(all="ignore"):
        expected = with_ase(overlapping, asap_cutoff).get_potential_energy()
    forces, _, energy, _ = results_of(batch, got, 0)
    close(energy, expected, len(overlapping))
    assert np.isnan(forces[:2]).all()
    assert all(np.isfinite(x).all() for x in results_of(batch, got, 1))


@both_cutoffs
def test_pairs_at_any_distance_are_those_of_ase_in_single_precision(asap_cutoff):
    """Where the logistic function is one, and where it ends."""
    distances = (1e-3, 0.05, 0.5, 1.0, 1.9, 2.2, 2.6, 3.5, 4.6, 5.3, 5.7, 5.9, 9.0)
    pairs = [Atoms("CuPd", [[0, 0, 0], [0, 0, d]]) for d in distances]
    batch, found = evaluate(pairs, EMT(asap_cutoff=asap_cutoff), np.float32)
    for k, pair in enumerate(pairs):
        forces, _, energy, _ = results_of(batch, found, k)
        expected = with_ase(pair, asap_cutoff)
        scale = np.abs(expected.get_forces()).max() + 1.0
        np.testing.assert_allclose(energy, expected.get_potential_energy(), rtol=3e-5, atol=3e-5)
        np.testing.assert_allclose(forces, expected.get_forces(), atol=3e-4 * scale)


def test_padding_has_neither_energy_nor_force():
    batch, got = all_of(False)
    padding = ~np.asarray(batch.index.has_system())
    assert padding.any()
    assert (np.asarray(got.forces)[padding] == 0).all()
    assert (np.asarray(got.atom_energies)[padding] == 0).all()


@both_dtypes
def test_results_have_the_dtype_of_the_positions(dtype):
    got = shapes_of([SYSTEMS["alloy"]], EMT(), dtype)
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype(dtype)}


def test_elements_without_parameters_are_named():
    with pytest.raises(ValueError, match="no parameters for 'Fe', only for Al, Ni, Cu, "):
        EMT("Cu", "Fe")
    with pytest.raises(ValueError, match=r"EMT has no parameters for Fe, .* for H, C, N, O, Al"):
        relax([bulk("Cu"), bulk("Fe")], EMT(), FIRE())
    with pytest.raises(ValueError, match=r"no parameters for Au, .* it has them for Ni, Cu"):
        EMT("Cu", "Ni").check([bulk("Au")])
    with pytest.raises(TypeError, match="asap_cutoff must be true or false, got 'yes'"):
        EMT(asap_cutoff="yes")  # pyright: ignore[reportArgumentType]


def test_it_is_made_from_text():
    def same(a, b):
        return jax.tree.structure(a) == jax.tree.structure(b) and all(
            map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b))
        )

    assert same(potential_from("emt"), EMT())
    assert same(potential_from("emt:Cu,Au"), EMT("Cu", "Au"))
    assert same(potential_from("EMT:Cu,asap_cutoff=true"), EMT("Cu", asap_cutoff=True))
    with pytest.raises(ValueError, match="no parameters for 'Ar'"):
        potential_from("emt:Ar")
    with pytest.raises(ValueError, match=r"has no option 'cutoff'.*asap_cutoff"):
        potential_from("emt:cutoff=5")


# --- whole relaxations


def off_their_minima() -> list[Atoms]:
    return [slab_with_atoms(), alloy(METALS, 8), SYSTEMS["skewed and tiny"], Atoms("Pt")]


def test_fire_ends_where_and_when_that_of_ase_does(recorded):
    atoms = off_their_minima()
    result = relax(atoms, EMT(), FIRE(), fmax=0.01)
    for k, a in enumerate(atoms):
        theirs = recorded(walk_of_ase, ASEFIRE, with_ase(a), 0.01)
        assert result.steps[k] == theirs["steps"]
        assert np.abs(result.atoms[k].positions - theirs["positions"][-1]).max() < 1e-8
    assert result.converged.all()


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.parametrize(
    ("asap_cutoff", "dtype"),
    # In float32 every day in test_narrowing.py.
    [exhaustive(False, np.float64), exhaustive(True, np.float32)],
)
def test_a_long_relaxation_has_the_same_bits_alone(asap_cutoff, dtype):
    atoms = [*off_their_minima()[:2], Atoms("Cu9", np.zeros((9, 3)))]
    settings = {"fmax": 0.0, "max_steps": 450, "dtype": dtype}
    potential, optimizer = EMT(asap_cutoff=asap_cutoff), basinax.FIRE(maxstep=0.05)
    batch = relax(atoms, potential, optimizer, **settings)
    assert batch.status[-1] == Status.NOT_FINITE
    assert batch.steps.max() >= 400
    for k, a in enumerate(atoms):
        alone = relax([a], potential, optimizer, **settings)
        for field in ("energies", "fmax", "steps", "status"):
            np.testing.assert_array_equal(getattr(alone, field)[0], getattr(batch, field)[k])
        np.testing.assert_array_equal(alone.atoms[0].positions, batch.atoms[k].positions)
        np.testing.assert_array_equal(alone.atoms[0].get_forces(), batch.atoms[k].get_forces())
