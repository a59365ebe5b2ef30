"""The warning of pairs whose energy is not 0 at the cutoff, and none where it is."""

import gc
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms

import basinax.potentials.folds.pair as pair
from basinax import FIRE, rounded
from basinax.atoms import (
    AbstractPairPotential,
    Buckingham,
    LennardJones,
    Morse,
    evaluate,
    relax,
    relax_stream,
)
from basinax.numerics import settings
from basinax.potentials.folds.pair import ABRUPT, AbruptCutoff


class Dispersion(AbstractPairPotential):
    """E(r) = −C/r⁶, with a C for each pair of species, cut off."""

    c6: jax.Array  # eV Å⁶
    radius: jax.Array  # Å
    species: tuple = eqx.field(static=True, default=())

    def reach(self):
        return self.radius

    def table(self, dtype):
        return self.c6.astype(dtype)

    def pair(self, r2, known):
        inverse2 = rounded(1 / r2)
        energy = rounded(-known * (inverse2 * inverse2 * inverse2))
        return energy, -6 * energy


def dispersion(c6=10.0, radius=4.0, species=()) -> Dispersion:
    return Dispersion(jnp.asarray(c6, float), jnp.asarray(radius, float), species)


class Scalar(Dispersion):
    def reach(self):
        return 4.0

    def pair(self, r2, known):
        energy, work = super().pair(r2, known)
        return jnp.sum(energy), work


def test_cutoffs_and_pairs_of_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"Dispersion.reach must return .* of 1 species, got .*2"):
        evaluate([DIMER], dispersion(radius=[4.0, 5.0]))
    with pytest.raises(ValueError, match=r"Scalar.pair must return E and r dE/dr, both of the sh"):
        evaluate([DIMER], Scalar(jnp.asarray(1e-3), jnp.asarray(4.0)))
    with pytest.raises(ValueError, match=r"Dispersion.reach must be symmetric, as a pair has one"):
        evaluate([OXIDE], dispersion(np.full((2, 2), 1e-6), [[3.0, 4.0], [2.0, 5.0]], ("Si", "O")))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(settings, "_said", set())


DIMER = Atoms("Ar2", [(0, 0, 0), (0, 0, 3.0)])
OXIDE = Atoms("SiO2", [(0, 0, 0), (0, 0, 1.6), (0, 0, -1.6)])


def test_a_jump_is_told_once_with_its_number():
    with pytest.warns(AbruptCutoff) as found:
        for _ in range(2):
            evaluate([DIMER], dispersion())
            relax([DIMER], dispersion(), FIRE(), max_steps=1)
            list(relax_stream([DIMER, DIMER], dispersion(), FIRE(), max_steps=1, at_once=1))
    (told,) = [str(each.message) for each in found if each.category is AbruptCutoff]
    number = f"{-10 / 4**6:.2g}"
    assert told.startswith(
        f"Dispersion ends abruptly: the energy of a pair is {number} eV at its cutoff of 4 Å"
    )
    assert told.endswith(
        "choose a larger cutoff, or subtract that value in `pair`, or end its energy smoothly"
    )


def test_the_largest_jump_of_the_elements_that_are_there_is_told():
    c6 = [[1.0, 30.0], [30.0, 80.0]]
    potential = dispersion(c6, [[4.0, 5.0], [5.0, 5.0]], ("Ar", "Kr"))
    evaluate([DIMER], potential)  # 1/4⁶ eV is no jump to speak of
    with pytest.warns(AbruptCutoff, match=rf"Kr-Kr is {-80 / 5**6:.2g} eV at its cutoff of 5 Å"):
        evaluate([DIMER, Atoms("ArKr", DIMER.positions)], potential)


def test_buckingham_jumps_at_its_short_cutoff_unless_it_is_shifted():
    evaluate([OXIDE], Buckingham.named("BKS", short_cutoff=5.5))
    evaluate([OXIDE], Buckingham.named("BKS", short_cutoff=9.0, shift=False))
    unshifted = Buckingham.named("BKS", short_cutoff=5.5, shift=False)
    message = r"pair O-O is -0.006 eV at its cutoff of 5.5 Å.*or pass shift=True"
    with pytest.warns(AbruptCutoff, match=message):
        evaluate([OXIDE], unshifted)
    # The number is that by which the energy of two atoms changes where one crosses the cutoff.
    apart = [Atoms("O2", [(0, 0, 0), (0, 0, 5.5 + d)]) for d in (-1e-9, 1e-9)]
    inside, outside = evaluate(apart, unshifted).energies
    assert inside - outside == pytest.approx(unshifted.ends().energies[0, 0], abs=1e-7)


SMOOTH = {
    "Lennard-Jones": LennardJones(0.0104, 3.4),
    "smooth Lennard-Jones": LennardJones(0.0104, 3.4, smooth=True),
    "short Lennard-Jones": LennardJones(1.0, 3.4, cutoff=4.0),
    "all pairs": LennardJones(0.0104, 3.4, cutoff=None),
    "Morse": Morse(0.0135, 5.85, 3.786),
    "all pairs of Morse": Morse(0.0135, 5.85, 3.786, rcut2=None),
    "BKS": Buckingham.named("BKS"),
    "small": dispersion(0.9 * ABRUPT * 4**6),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_what_ends_at_zero_is_not_told(name):
    potential, atoms = SMOOTH[name], OXIDE if name == "BKS" else DIMER
    with warnings.catch_warnings(action="error", category=AbruptCutoff):
        evaluate([atoms], potential)
    if (known := potential.ends()) is None:  # known by construction, so its own pairs show it
        fixed, arrays = pair.partition(potential)
        known = pair.Ends(*map(np.asarray, pair._ends(fixed, arrays)))
    assert (np.abs(np.nan_to_num(known.energies)) <= ABRUPT).all()


def test_no_cutoff_has_no_jump():
    evaluate([DIMER], dispersion(radius=np.inf))


def test_nothing_keeps_a_potential_that_was_looked_at():
    potential = dispersion(1.0)
    evaluate([DIMER], potential)
    there = weakref.ref(potential)
    assert there() is potential
    del potential
    gc.collect()
    assert there() is None
