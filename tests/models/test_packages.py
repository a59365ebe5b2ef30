"""Energies of jax-md, and models of nequix and mlip with random weights.

What a package makes is compared where the package is installed. The interface of jax-md's energies
is tested without it, by one of the same form.
"""

import contextlib
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, diamond100, molecule

from basinax import FIRE, Status
from basinax.atoms import EvaluationError, JaxModel, Request, evaluate, relax
from basinax.models.packages import read_nequix
from comparison import same_ends
from cover import exhaustive, one_in
from listed_energies import CUTOFF, Format, by_list, by_vectors

pytestmark = pytest.mark.usefixtures("one_shape")


@contextlib.contextmanager
def rules_of_packages():
    """Of JAX, whose promotions the tests forbid."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def package(name: str):
    """A module of a package; skips the test where there is none."""
    with warnings.catch_warnings(action="ignore"), rules_of_packages():
        try:
            return importlib.import_module(name)
        except ImportError:
            pytest.skip(f"{name.partition('.')[0]} is not installed")


def structures() -> list[Atoms]:
    """Crystals, a slab and molecules of 3 to 16 atoms, off their minima."""
    made = [
        bulk("Si", cubic=True),
        molecule("H2O"),
        bulk("Si", a=5.5, cubic=True).repeat((2, 1, 1)),
        diamond100("Si", (2, 2, 3), vacuum=4.0),
        molecule("CH3CH2OH"),
    ]
    made[3].pbc = (True, True, False)
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


# --- jax-md


@pytest.mark.parametrize("format", one_in(3, Format))
def test_an_energy_with_a_list_is_that_of_the_same_pairs(format):
    listed = evaluate(structures(), JaxModel.jax_md(by_list, CUTOFF, format), stress=True)
    pairs = evaluate(structures(), JaxModel.of_vectors(by_vectors, CUTOFF), stress=True)
    # The same terms in other orders.
    np.testing.assert_allclose(listed.energies, pairs.energies, rtol=0, atol=1e-12)
    for ours, theirs in zip(listed.forces, pairs.forces, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(listed.stresses, pairs.stresses, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("models_as_users")
@pytest.mark.parametrize("dtype", ["float32", exhaustive("float64")])
def test_a_structure_with_a_list_has_the_same_bits_alone_and_in_a_batch(dtype):
    model, few = JaxModel.jax_md(by_list, CUTOFF, Format.Sparse, dtype=dtype), structures()[:2]
    settings = {"fmax": 0.01, "max_steps": 4, "cell": "frechet"}
    batch = relax([*few, *few[::-1]], model, FIRE(), **settings)
    alone = [relax([a], model, FIRE(), **settings) for a in few]
    assert (batch.steps > 1).all()
    assert same_ends(batch, [*alone, *alone[::-1]])


def test_a_cell_in_which_a_neighbor_has_two_images_is_refused():
    model = JaxModel.jax_md(by_list, CUTOFF, Format.Sparse)
    with pytest.raises(ValueError, match=r"system 1 \(Cu4\): the cell is 3.61 Å wide .* Repeat"):
        relax([bulk("Si", cubic=True), bulk("Cu", cubic=True)], model)
    atoms = structures()[:2]
    session = model.open(atoms, [True, False])
    session.ask([Request(0, atoms[0].positions, atoms[0].cell.array * 0.9, True)])
    session.ask([Request(1, atoms[1].positions, np.eye(3), False)])
    found = {}
    while len(found) < 2:
        found |= dict(session.answers(1.0))
    session.close()
    assert isinstance(found[0], EvaluationError)
    assert "the cell is 4.887 Å wide in one direction" in str(found[0])
    assert np.isfinite(found[1].energy)


def test_what_an_energy_is_told_of_elements_is_its_own():
    def scaled(positions, neighbor, *, depth, **box):
        return depth.mean() * by_list(positions, neighbor, **box)

    def keywords(numbers):
        return {"depth": jnp.where(numbers == 14, 2.0, 1.0)}

    atoms = structures()[:2]
    plain = evaluate(atoms, JaxModel.jax_md(by_list, CUTOFF, Format.Sparse)).energies
    model = JaxModel.jax_md(scaled, CUTOFF, Format.Sparse, keywords=keywords)
    assert np.array_equal(evaluate(atoms, model).energies, plain * [2.0, 1.0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"energy": 3}, "energy must be a function"),
        ({"format": "Sparse"}, "format must be one of jax_md.partition"),
        ({"cutoff": -1.0}, "cutoff must be positive"),
        ({"keywords": {}}, "keywords must be a function"),
        ({"fractional_coordinates": "no"}, "fractional_coordinates must be"),
    ],
)
def test_arguments_that_are_of_no_use_raise(options, text):
    arguments = {"energy": by_list, "cutoff": CUTOFF, "format": Format.Sparse}
    with pytest.raises((TypeError, ValueError), match=text):
        JaxModel.jax_md(**(arguments | options))


def lennard_jones(vectors, numbers, senders, receivers):
    """As jax-md's, which fades from 4 to 5.1 Å: HOOMD's polynomial."""
    del senders
    r = (vectors * vectors).sum(1)
    sixth = (3.4**2 / r) ** 3
    inside = (5.1**2 - r) ** 2 * (5.1**2 + 2 * r - 3 * 4.08**2) / (5.1**2 - 4.08**2) ** 3
    fade = jnp.where(r < 4.08**2, 1.0, jnp.where(r < 5.1**2, inside, 0.0))
    energies = 2 * 0.0104 * (sixth * sixth - sixth) * fade
    return jnp.zeros(len(numbers), r.dtype).at[receivers].add(energies)


@pytest.mark.parametrize("format", ["Dense", "Sparse", "OrderedSparse"])
@pytest.mark.parametrize("is_fractional", [False, True])
def test_energies_of_jax_md_are_those_of_the_same_formula(format, is_fractional):
    energy, space = package("jax_md.energy"), package("jax_md.space")
    format = package("jax_md.partition").NeighborListFormat[format]
    displacement, _ = space.periodic_general(np.eye(3), fractional_coordinates=is_fractional)
    with rules_of_packages():
        _, function = energy.lennard_jones_neighbor_list(
            displacement, 1.0, sigma=3.4, epsilon=0.0104, r_onset=1.2, r_cutoff=1.5, format=format
        )
    atoms = [bulk("Ar", "fcc", 5.3, cubic=True).repeat(2), Atoms("Ar3", np.eye(3) * 3.0)]
    for k, a in enumerate(atoms):
        a.rattle(0.1, seed=k)
    model = JaxModel.jax_md(function, 5.1, format, fractional_coordinates=is_fractional)
    theirs = evaluate(atoms, model, stress=True)
    ours = evaluate(atoms, JaxModel.of_vectors(lennard_jones, 5.1), stress=True)
    # jax-md rounds sigma and epsilon to single precision.
    np.testing.assert_allclose(theirs.energies, ours.energies, rtol=1e-6)
    np.testing.assert_allclose(theirs.forces[0], ours.forces[0], rtol=0, atol=1e-7)
    np.testing.assert_allclose(theirs.stresses[0], ours.stresses[0], rtol=0, atol=1e-8)
    settings = {"fmax": 1e-3, "max_steps": 5, "cell": "frechet"}
    batch = relax([*atoms, *atoms[::-1]], model, FIRE(), **settings)
    alone = [relax([a], model, FIRE(), **settings) for a in atoms]
    assert same_ends(batch, [*alone, *alone[::-1]])


# --- graph networks of packages, which take some ten seconds a shape to compile


def crystals() -> list[Atoms]:
    """Of 2 to 8 atoms, all in one or two shapes."""
    made = [bulk("Si"), bulk("SiC", "zincblende", 4.36), bulk("C", cubic=True)]
    for k, atoms in enumerate(made):
        atoms.rattle(0.05, seed=k)
    return made


def check_isolation(model: JaxModel) -> None:
    few = crystals()
    batch = relax([*few, *few[::-1]], model, FIRE(), cell="frechet", max_steps=3)
    alone = [relax([a], model, FIRE(), cell="frechet", max_steps=3) for a in few]
    assert (batch.status != Status.EVALUATION_FAILED).all(), batch.messages
    assert same_ends(batch, [*alone, *alone[::-1]])


def small_nequix(folder):
    """A file with a model of random weights, and the model as the package reads it."""
    nequix = package("nequix.model")
    sizes = {"lmax": 1, "cutoff": 3.5, "n_layers": 2, "hidden_irreps": "4x0e + 4x1o"}
    sizes |= {"radial_basis_size": 6, "radial_mlp_size": 8, "radial_mlp_layers": 1}
    sizes |= {"radial_polynomial_p": 6.0, "mlp_init_scale": 4.0, "index_weights": False}
    sizes |= {"layer_norm": True, "shift": 0.0, "scale": 1.0, "avg_n_neighbors": 10.0}
    file = folder / "small.nqx"
    with jax.enable_x64(False), rules_of_packages():
        model = nequix.Nequix(jax.random.key(0), n_species=2, **sizes)
        nequix.save_model(file, model, sizes | {"atomic_numbers": [6, 14]})
        return file, nequix.load_model(str(file))[0]


def test_weights_of_nequix_are_those_that_the_package_reads(tmp_path):
    file, theirs = small_nequix(tmp_path)
    ours, cutoff, numbers = read_nequix(file, np.dtype("float32"))
    few, same = jax.tree.leaves(ours.model), jax.tree.leaves(theirs)
    assert len(few) == len(same)
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(few, same, strict=True))
    assert (cutoff, numbers) == (3.5, [6, 14])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nequix_with_random_weights_keeps_bits(tmp_path, dtype):
    file, _ = small_nequix(tmp_path)
    check_isolation(JaxModel.nequix(file, dtype=dtype))
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match="cannot be read as a model of nequix"):
        JaxModel.nequix(file)


@pytest.fixture
def force_field():
    models, data = package("mlip.models"), package("mlip.data")
    info = data.DatasetInfo(
        atomic_energies_map={6: -1.0, 14: -2.0}, graph_cutoff_angstrom=3.5, avg_num_neighbors=10.0
    )
    config = models.Mace.Config(num_channels=4, l_max=1, correlation=2, radial_mlp_hidden=[8])
    properties = package("mlip.typing.properties").Properties(stress=True)
    with jax.enable_x64(False), rules_of_packages():
        return models.ForceField.from_mlip_network(models.Mace(config, info), properties)


@pytest.mark.exhaustive
def test_mlip_with_random_weights_keeps_bits(force_field):
    check_isolation(JaxModel.mlip(force_field))
    with pytest.raises(ValueError, match="the model does not know Cu; it knows C, Si"):
        relax([bulk("Cu")], JaxModel.mlip(force_field))


@pytest.mark.exhaustive
def test_mlip_finds_what_its_own_predictions_are(force_field):
    system, graph = package("mlip.data").ChemicalSystem, package("mlip.graph").Graph
    atoms = crystals()[1]
    found = evaluate([atoms], JaxModel.mlip(force_field), stress=True)
    own = graph.from_chemical_system(system.from_ase_atoms(atoms), 3.5)
    with jax.enable_x64(False), rules_of_packages():
        theirs = jax.jit(force_field)(own)
    # Single precision, and sums in another order.
    np.testing.assert_allclose(found.energies[0], theirs.energy[0], rtol=1e-5)
    np.testing.assert_allclose(found.forces[0], theirs.forces, rtol=0, atol=1e-5)
    full = np.asarray(theirs.stress[0])[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    np.testing.assert_allclose(found.stresses[0], full, rtol=0, atol=1e-6)


@pytest.mark.parametrize("thing", [3, object()])
def test_what_is_no_force_field_raises(thing):
    with pytest.raises(TypeError, match="force_field must be a ForceField of mlip"):
        JaxModel.mlip(thing)
