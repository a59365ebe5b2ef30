"""Hessians by differentiation: what differences tend to, and the bits of each structure alone."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc100, molecule
from ase.calculators.emt import EMT as ASEEMT
from ase.calculators.lj import LennardJones as ASELennardJones
from ase.calculators.tersoff import Tersoff as ASETersoff, TersoffParameters
from ase.constraints import FixAtoms
from ase.vibrations import Vibrations as ASEVibrations

from argon_of_users import ByHand, ByRows, ByVectors
from basinax import FIRE
from basinax.atoms import (
    EMT,
    AbstractAtomEnergyPotential,
    AbstractPairPotential,
    ASECalculator,
    Buckingham,
    JaxModel,
    LennardJones,
    Morse,
    StillingerWeber,
    Tersoff,
    ZhouEAM,
    check_minima,
    relax,
    vibrations,
)
from basinax.potentials import tersoff
from comparison import same_bits
from cover import named_daily
from graph_models import CUTOFF, Direct, Network, OfPositions
from listed_energies import CUTOFF as LISTED_CUTOFF, Format, by_list
from metal_tables import potential as eam, reference as ase_eam

pytestmark = pytest.mark.filterwarnings("ignore::basinax.OrderWarning")  # of users' potentials

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def rattled(atoms: Atoms, width: float = 0.02) -> Atoms:
    atoms.rattle(width, seed=3)
    return atoms


def cluster(symbols: str, distance: float) -> Atoms:
    corners = np.array([(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1.9)])
    return rattled(Atoms(symbols, corners * distance / np.sqrt(2)))


def adatom() -> Atoms:
    atoms = fcc100("Cu", (2, 2, 2), vacuum=6.0)
    add_adsorbate(atoms, "Au", 1.8, "bridge")
    atoms.set_constraint(FixAtoms(mask=[atom.tag > 1 for atom in atoms]))
    return rattled(atoms)


def slab() -> Atoms:
    atoms = fcc100("Ni", (2, 2, 2), a=3.5, vacuum=5.0)
    atoms.symbols[:4] = "Al"
    atoms.set_constraint(FixAtoms([0, 1, 2, 3, 4, 5]))
    return rattled(atoms)


class Case(NamedTuple):
    """A potential with a structure none of whose pairs comes to the cutoff when displaced."""

    atoms: Atoms
    potential: object
    theirs: object = None
    """ASE's calculator, if there is one."""
    is_table: bool = False
    """Whether energies are cubic pieces, whose third derivatives jump."""


ARGON = LennardJones(0.0104, 3.4, 8.5)
SILICON = rattled(bulk("Si", a=5.431, cubic=True))
ASE_TERSOFF = ASETersoff({("Si",) * 3: TersoffParameters(*tersoff.SILICON)})
NET = Network(dtype=np.float64)

CASES = {
    "Lennard-Jones, cluster": Case(
        cluster("Ar5", 3.8), ARGON, ASELennardJones(epsilon=0.0104, sigma=3.4, rc=8.5)
    ),
    "Lennard-Jones, mixture": Case(
        cluster("ArKrArKrAr", 3.9), LennardJones.named("Ar", "Kr", cutoff=None)
    ),
    "Lennard-Jones, smooth crystal": Case(
        rattled(bulk("Ar", a=5.3, cubic=True)),
        LennardJones(0.0104, 3.4, 8.0, smooth=True, onset=7.0),
        ASELennardJones(epsilon=0.0104, sigma=3.4, rc=8.0, ro=7.0, smooth=True),
    ),
    "Morse": Case(cluster("Ar5", 2.8), Morse(0.3, 4.0, 2.8)),
    "Buckingham": Case(
        rattled(Atoms("SiO2", [(0, 0, 0), (1.6, 0, 0), (0, 1.6, 0)])),
        Buckingham.named("BKS", cutoff=10.0),
    ),
    "EMT, molecule": Case(rattled(molecule("NH3")), EMT(), ASEEMT()),
    "EMT, slab": Case(adatom(), EMT(), ASEEMT()),
    "EMT, crystal": Case(rattled(bulk("Cu", cubic=True)), EMT(), ASEEMT()),
    "EAM, slab": Case(slab(), eam("mix.eam.alloy"), ase_eam("mix.eam.alloy"), is_table=True),
    "EAM, Finnis-Sinclair": Case(cluster("NiAlCuNiAl", 2.6), eam("mix.eam.fs"), is_table=True),
    "EAM of Zhou": Case(cluster("CuNiCuNiCu", 2.6), ZhouEAM("Cu", "Ni")),
    "Stillinger-Weber": Case(SILICON, StillingerWeber.named("Si")),
    "Tersoff": Case(SILICON, Tersoff.named("Si"), ASE_TERSOFF),
    "Tersoff, molecule": Case(cluster("SiCSiCSi", 1.96), Tersoff.named("Si", "C")),
    "Tersoff, ends with one neighbour": Case(  # ASE's calculator divides by 0 there
        rattled(Atoms("Si3", [(0, 0, 0), (0, 0, 2.3), (0, 1, 4.4)])), Tersoff.named("Si")
    ),
    "a model of vectors": Case(SILICON, JaxModel.of_vectors(NET, CUTOFF, dtype="float64")),
}
DAILY = ("Lennard-Jones, cluster", "Tersoff, ends with one neighbour", "a model of vectors")


def limit_of(case: Case, by_differences) -> tuple[np.ndarray, float]:
    """The Hessian without the first error in the displacement, and a bound of what is left.

    The first error is of fourth order and the next of sixth. Where a third derivative jumps, the
    jump of a table's pieces is the error per displacement: some 1e-2 of the Hessian in 1/Å.
    """
    if case.is_table:
        found = by_differences(5e-5)
        return found, 5e-7 * np.abs(found).max()
    coarse, fine = by_differences(0.03), by_differences(0.015)
    error = (fine - coarse) / (2**4 - 1)
    assert np.abs(error).max() < 1e-3 * np.abs(fine).max()
    return fine + error, 0.1 * np.abs(error).max()


@pytest.mark.parametrize("case", named_daily(CASES, DAILY))
def test_it_is_what_differences_tend_to(case):
    def by_differences(delta):
        (found,) = vibrations([case.atoms], case.potential, nfree=4, delta=delta)
        return found.hessian

    (ours,) = vibrations([case.atoms], case.potential, hessian="analytical")
    expected, bound = limit_of(case, by_differences)
    # Forces round by 1e-14 eV/Å, and differences divide by the displacement.
    np.testing.assert_allclose(ours.hessian, expected, rtol=0, atol=bound + 1e-10)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=k) for k, c in CASES.items() if c.theirs is not None]
)
def test_it_is_what_hessians_of_ase_tend_to(case, tmp_path):
    atoms = case.atoms.copy()
    atoms.calc = case.theirs

    def by_differences(delta):
        theirs = ASEVibrations(atoms, name=str(tmp_path / f"{delta}"), nfree=4, delta=delta)
        theirs.run()
        return theirs.get_vibrations().get_hessian_2d()

    (ours,) = vibrations([case.atoms], case.potential, hessian="analytical")
    expected, bound = limit_of(case, by_differences)
    np.testing.assert_allclose(ours.hessian, expected, rtol=0, atol=bound + 1e-6)


class OfPairs(AbstractPairPotential):
    """A pair potential of a user."""

    species: tuple[int, ...] = eqx.field(static=True, default=())

    def reach(self):
        return jnp.full((1, 1), 8.5)

    def table(self, dtype):
        return jnp.full((1, 1), 3.4**6, dtype)

    def pair(self, r2, known):
        c6 = known / (r2 * r2 * r2)
        return 4 * 0.0104 * (c6 * (c6 - 1.0)), -24 * 0.0104 * (c6 * (2.0 * c6 - 1.0))


class OfAtoms(AbstractAtomEnergyPotential):
    """The energies of atoms, of which derivatives are made."""

    species: tuple[int, ...] = eqx.field(static=True, default=())

    def reach(self):
        return jnp.full((1, 1), 8.5)

    def energy(self, near):
        c6 = (3.4 / near.distances) ** 6
        return jnp.sum(2 * 0.0104 * (c6 * c6 - c6), where=near.is_there)


@pytest.mark.parametrize(
    "potential",
    named_daily(
        {c.__name__: c() for c in (ByVectors, ByHand, ByRows, OfPairs, OfAtoms)},
        ["ByHand", "OfAtoms"],
    ),
)
def test_potentials_of_users_have_it(potential):
    structures = [cluster("Ar5", 3.8), rattled(bulk("Ar", a=5.3, cubic=True))]
    expected = vibrations(structures, ARGON, hessian="analytical")
    found = vibrations(structures, potential, hessian="analytical")
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.hessian, theirs.hessian, rtol=0, atol=1e-13)


@jax.custom_jvp
def in_steps(x):
    return jnp.round(jnp.exp(x) * 1e9) / 1e9


@in_steps.defjvp
def _slope_of_steps(primals, tangents):
    return in_steps(*primals), in_steps(*primals) * tangents[0]


class OfFunctions(OfAtoms):
    """Energies whose forces have functions that are rewritten, and one with a rule of its own."""

    def energy(self, near):
        r = near.distances / 3.4
        terms = (jnp.tanh(r - 1.0) - 0.4) ** 2 + jax.nn.softplus(2.0 - r) + r * jnp.log(r)
        return jnp.sum(0.01 * (terms + in_steps(1.0 - r)), where=near.is_there)


def test_functions_that_are_rewritten_have_their_derivatives_in_it():
    numerical, analytical = (
        vibrations([cluster("Ar5", 3.8)], OfFunctions(), hessian=method)[0].hessian
        for method in ("numerical", "analytical")
    )
    np.testing.assert_allclose(analytical, numerical, rtol=0, atol=1e-6)
    assert np.abs(numerical).max() > 1e-3


MODELS = {
    "vectors": lambda dtype: JaxModel.of_vectors(NET, CUTOFF, dtype=dtype),
    "positions": lambda dtype: JaxModel(OfPositions(NET), CUTOFF, dtype=dtype),
    "forces of its own": lambda dtype: JaxModel.of_vectors(
        Direct(NET), CUTOFF, dtype=dtype, conservative=False
    ),
    "jax-md": lambda dtype: JaxModel.jax_md(
        by_list, LISTED_CUTOFF, Format.OrderedSparse, dtype=dtype, fractional_coordinates=False
    ),
}


@pytest.mark.parametrize("made", named_daily(MODELS, []))
def test_models_have_it_whatever_they_are_functions_of(made):
    model = made("float64")
    (ours,) = vibrations([SILICON], model, hessian="analytical")
    (theirs,) = vibrations([SILICON], model, nfree=4)
    np.testing.assert_allclose(ours.hessian, theirs.hessian, rtol=0, atol=1e-4)


def coincident() -> Atoms:
    return Atoms("Cu3", [(0, 0, 0), (0, 0, 0), (0, 0, 2.5)])


MIXED = {
    "one atom": Atoms("Cu"),
    "molecule": rattled(molecule("NH3")),
    "not finite": coincident(),
    "slab": adatom(),
    "eleven": rattled(bulk("Cu", cubic=True).repeat((3, 1, 1)))[:11],
    "cell of one": bulk("Cu"),
}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_structure_has_the_bits_that_it_has_alone(dtype):
    structures = list(MIXED.values())
    options = {"hessian": "analytical", "dtype": dtype}
    together = vibrations(structures, EMT(), **options)
    turned = vibrations(structures[::-1], EMT(), **options)[::-1]
    for k, atoms in enumerate(structures):
        (alone,) = vibrations([atoms], EMT(), **options)
        for other in (together[k], turned[k]):
            assert same_bits(alone.hessian, other.hessian)
            assert same_bits(alone.frequencies.view(float), other.frequencies.view(float))
    finite = [v.is_finite for v in together]
    assert finite == [name != "not finite" for name in MIXED]


@pytest.mark.usefixtures("as_users")
@both_dtypes
@pytest.mark.parametrize("made", named_daily(MODELS, ["vectors"]))
def test_a_model_gives_the_bits_of_each_structure_alone(made, dtype):
    small = [SILICON, rattled(bulk("Si", a=5.3, cubic=True)).repeat((2, 1, 1))]
    structures = [SILICON] * 2 if made is MODELS["jax-md"] else [molecule("H2O"), *small]
    options = {"hessian": "analytical"}
    together = vibrations(structures, made(dtype), **options)
    for atoms, other in zip(structures, together, strict=True):
        (alone,) = vibrations([atoms], made(dtype), **options)
        assert same_bits(alone.hessian, other.hessian) and alone.is_finite


def test_chosen_atoms_have_their_part_of_the_whole():
    atoms = cluster("Ar5", 3.8)
    atoms.set_constraint(FixAtoms([1, 3]))
    (whole,) = vibrations([atoms], ARGON, hessian="analytical", indices=[range(5)])
    (free,) = vibrations([atoms], ARGON, hessian="analytical")
    (chosen,) = vibrations([atoms], ARGON, hessian="analytical", indices=[[4, 1]])
    for found, numbers in ((free, [0, 2, 4]), (chosen, [1, 4])):
        at = (3 * np.array(numbers)[:, None] + np.arange(3)).ravel()
        np.testing.assert_allclose(found.hessian, whole.hessian[np.ix_(at, at)], atol=1e-15)


def test_minima_are_told_from_saddles():
    chain = Atoms("Ar3", [(0, 0, 0), (0, 0, 3.8), (0, 0, 7.6)])
    bent = Atoms("Ar3", [(0, 0, 0), (0, 0, 3.8), (0, 2, 7)])
    relaxed = relax([chain, bent], ARGON, FIRE(), fmax=1e-4)
    found = check_minima(relaxed, ARGON, tolerance=1.0, hessian="analytical")
    assert found.tolist() == [False, True]


def test_no_structures_and_no_free_atoms_are_fine():
    assert vibrations([], EMT(), hessian="analytical") == ()
    fixed = molecule("N2")
    fixed.set_constraint(FixAtoms([0, 1]))
    (found,) = vibrations([fixed], EMT(), hessian="analytical")
    assert found.hessian.shape == (0, 0) and found.is_minimum


class Stubborn(ByHand):
    def __call__(self, batch, edges, *, stress=False):
        found = super().__call__(batch, edges, stress=stress)
        turns = jnp.int32(found.forces[0, 0] + 2)
        return eqx.tree_at(
            lambda p: p.forces, found, jax.lax.fori_loop(0, turns, lambda _, f: f / 2, found.forces)
        )


@pytest.mark.parametrize(
    ("potential", "text"),
    [
        (ASECalculator(ASEEMT()), 'ASECalculator has no analytical .*take hessian="numerical"'),
        (ASEEMT(), "ASECalculator has no analytical"),
        (None, "no analytical Hessian"),
        (Stubborn(), 'JAX cannot differentiate these forces .*take hessian="numerical"'),
        (EMT, "got the class EMT"),
    ],
)
def test_what_has_no_derivatives_is_refused(potential, text):
    atoms = molecule("N2")
    atoms.calc = ASEEMT()
    with pytest.raises(TypeError, match=text):
        vibrations([atoms], potential, hessian="analytical")


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="did you mean 'analytical'"):
        vibrations([molecule("N2")], EMT(), hessian="analytic")
