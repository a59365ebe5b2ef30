"""Potentials of which only an atom's energy is written: derivatives, and the same bits as alone."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import bulk

from basinax import FIRE
from basinax.atoms import AbstractAtomEnergyPotential, relax
from covalent import MIXED, POTENTIALS, SILICON, SYSTEMS, of
from structures import evaluate, evaluate_as_users, evaluated_op_by_op, results_of

pytestmark = pytest.mark.usefixtures("few_short_shapes")

NAMES = list(SYSTEMS)


class Angles(AbstractAtomEnergyPotential):
    """Stillinger and Weber's form, written as one would write it without this package."""

    species: tuple[int, ...] = eqx.field(static=True, default=(14,))
    epsilon: float = 2.1683
    sigma: float = 2.0951

    def reach(self):
        return jnp.full((1, 1), 1.8 * self.sigma)

    def energy(self, near):
        x = near.distances / self.sigma
        inside = near.is_there & (x < 1.8)
        decay = 1 / jnp.where(inside, x - 1.8, -1.0)
        pairs = 7.049556277 * (0.6022245584 * x**-4 - 1) * jnp.exp(decay)
        legs = jnp.where(inside, jnp.exp(1.2 * decay), 0.0)
        units = near.vectors / near.distances[:, None]
        angles = (units @ units.T + 1 / 3) ** 2 * legs[:, None] * legs[None, :]
        angles = jnp.where(jnp.eye(len(x), dtype=bool), 0.0, angles)
        pair = jnp.sum(pairs, where=inside) / 2
        return self.epsilon * (pair + 21 * jnp.sum(angles) / 2)


class Embedded(AbstractAtomEnergyPotential):
    """Densities that depend on species, and a root of them."""

    weights: jax.Array
    species: tuple[int, ...] = eqx.field(static=True, default=(6, 14, 32))

    def reach(self):
        return jnp.full((3, 3), 4.0)

    def energy(self, near):
        x = jnp.clip(near.distances / 4.0, max=1.0)
        weights = self.weights.astype(x.dtype)[near.kind, near.kinds]
        bump = weights * (1 - x) ** 4 * jax.scipy.special.erfc(x)
        density = jnp.einsum("k,k->", bump, near.is_there.astype(bump.dtype))
        core = jnp.sum((1 - x) ** 6, where=near.is_there)
        return 3 * core - jnp.sqrt(density + 1e-3)


class InSymbols(Embedded):
    species: Any = eqx.field(static=True, default=("C", "Si", "Ge"))


OWN = {
    "Angles": (Angles(), SILICON),
    "Embedded": (Embedded(jnp.array([[1, 2, 3], [1.5, 2.5, 3.5], [2, 1, 0.5]])), MIXED),
}


def systems(name, of_these=NAMES):
    return [of(OWN[name][1], s) for s in of_these]


def assert_same_bits(got, expected, name):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)


def test_species_may_be_symbols():
    by_numbers, alloy = OWN["Embedded"][0], [of(MIXED, "pair")]
    by_symbols = InSymbols(by_numbers.weights)
    assert repr(by_symbols) == repr(by_numbers).replace("Embedded", "InSymbols")
    rows = np.array([32, 6, 14])
    np.testing.assert_array_equal(by_symbols.kinds(rows), by_numbers.kinds(rows))
    got, expected = (results_of(*evaluate(alloy, x), 0) for x in (by_symbols, by_numbers))
    assert_same_bits(got, expected, "pair")
    with pytest.raises(ValueError, match=r"no parameters for Cu.* C, Si, Ge"):
        by_symbols.check([bulk("Cu")])
    with pytest.raises(ValueError, match="species: 'Xx' is no element"):
        InSymbols(by_numbers.weights, species=("Xx",)).check([bulk("Cu")])


def test_energies_forces_and_stresses_are_those_with_derivatives_by_hand():
    batch, got = evaluate(systems("Angles"), OWN["Angles"][0])
    expected = evaluate(systems("Angles"), POTENTIALS["StillingerWeber"][0])[1]
    for k, name in enumerate(NAMES):
        for a, b in zip(results_of(batch, got, k), results_of(batch, expected, k), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "dtype", "those_alone"),
    [
        ("Angles", np.float64, ("cell of 64", "cluster")),
        ("Embedded", np.float32, ("one atom, tiny", "cell of 8")),
    ],
)
def test_batched_equals_alone(name, dtype, those_alone):
    """Those of one size run one program, with lists of another skin."""
    potential = OWN[name][0]
    batch, got = evaluate_as_users(systems(name), potential, dtype)
    for k in map(NAMES.index, those_alone):
        alone = evaluate_as_users(systems(name)[k : k + 1], potential, dtype, n_rows=64, skin=0.9)
        assert_same_bits(results_of(batch, got, k), results_of(*alone, 0), NAMES[k])


@pytest.mark.exhaustive
def test_a_jitted_evaluation_has_all_but_the_last_bits_of_the_one_op_by_op():
    """What a compiler makes of other divisions than ours, it makes of them in every batch."""
    potential, few, dtype = OWN["Embedded"][0], ("pair",), np.float32
    batch, got = evaluate_as_users(systems("Embedded", few), potential, dtype)
    slowly = evaluated_op_by_op(batch, potential)
    for k in range(len(few)):
        pairs = zip(results_of(batch, got, k), results_of(batch, slowly, k), strict=True)
        for a, b in pairs:
            # Some last bits of terms of up to 10 eV, and of forces.
            tolerance = 100 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=few[k])


@pytest.mark.usefixtures("exhaustively_as_users")
@pytest.mark.exhaustive
def test_four_hundred_steps_of_a_relaxation_have_the_bits_they_have_alone():
    few, settings = systems("Embedded", ("cell of 8", "cluster")), {"fmax": 0.0, "max_steps": 400}
    batch = relax(few, OWN["Embedded"][0], FIRE(), **settings)
    alone = relax(few[1:], OWN["Embedded"][0], FIRE(), skin=0.3, **settings)
    assert batch.steps[1] == alone.steps[0] == 400
    np.testing.assert_array_equal(batch.atoms[1].positions, alone.atoms[0].positions)


class OfAll(Embedded):
    def energy(self, near):
        return jnp.sum((1 - near.distances / 4.0) ** 2)


def test_energies_that_count_unused_entries_are_refused():
    atoms = [bulk("Si", cubic=True)]
    for one, _ in OWN.values():
        one.check(atoms)
    with pytest.raises(
        ValueError, match=r"OfAll.energy: unused entries must add 0, but .*near.is_there"
    ):
        relax(atoms, OfAll(OWN["Embedded"][0].weights))


class TwoCutoffs(Angles):
    def reach(self):
        return jnp.full((2,), 3.0)


class Twice(Angles):
    species: Any = eqx.field(static=True, default=("Si", 14))


@pytest.mark.parametrize(
    ("potential", "message"),
    [
        (TwoCutoffs(), r"TwoCutoffs.reach must return one cutoff, or one for each pair of 1 spec"),
        (Twice(), "species: Si is named twice"),
    ],
)
def test_cutoffs_and_species_that_do_not_fit_are_refused(potential, message):
    with pytest.raises(ValueError, match=message):
        relax([bulk("Si")], potential)


class Unordered(Angles):
    def energy(self, near):
        return jnp.cumsum(near.distances)[-1]


def test_sums_that_have_no_order_are_refused():
    with pytest.raises(TypeError, match="cumsum adds in an order that depends on shapes"):
        evaluate(systems("Angles", ["pair"]), Unordered())
