"""Structures that are the same are found whatever their order, place, rotation or cell."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from basinax import FIRE
from basinax.atoms import LennardJones, relax, unique


def with_energy(atoms: Atoms, energy: float = 0.0) -> Atoms:
    atoms = atoms.copy()
    atoms.calc = SinglePointCalculator(atoms, energy=energy)
    return atoms


def turned(atoms: Atoms, seed: int) -> Atoms:
    """In another order, place and orientation."""
    rng = np.random.default_rng(seed)
    atoms = atoms[rng.permutation(len(atoms))]
    atoms.rotate(rng.uniform(0, 360), rng.normal(size=3), rotate_cell=atoms.pbc.any())
    atoms.positions += rng.normal(size=3)
    return atoms


@pytest.mark.parametrize("name", ["CH3CH2OH", "C6H6", "H2O"])
def test_a_molecule_is_found_in_another_order_place_and_orientation(name):
    made = [
        molecule(name),
        turned(molecule(name), 1),
        molecule("CH3OCH3"),
        turned(molecule(name), 2),
    ]
    assert unique([with_energy(a) for a in made]) == [[0, 1, 3], [2]]


def test_a_crystal_is_found_by_other_images_and_another_cell():
    one = bulk("NaCl", "rocksalt", 5.64, cubic=True)
    other = turned(one, 3)
    other.wrap()
    sheared = one.copy()
    sheared.set_cell(np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]]) @ one.cell.array)
    strained = one.copy()
    strained.set_cell(one.cell * 1.02, scale_atoms=True)
    assert unique([with_energy(a) for a in (one, other, sheared, strained)]) == [[0, 1, 2], [3]]


def test_energies_and_distances_have_their_own_tolerances():
    pair = molecule("CO")
    far = pair.copy()
    far.positions[0] *= 1.01
    assert unique([with_energy(pair, 0.0), with_energy(pair, 0.01)]) == [[0], [1]]
    assert unique([with_energy(pair, 0.01), with_energy(pair, 0.0)], energy=0.02) == [[1, 0]]
    assert unique([with_energy(pair), with_energy(far)], distance=1e-4) == [[0], [1]]
    with pytest.raises(ValueError, match="distance must be 0 or more"):
        unique([with_energy(pair)], distance=-1)
    with pytest.raises(TypeError, match=r"pass \[atoms\]"):
        unique(with_energy(pair))
    with pytest.raises(TypeError, match="got a NoneType"):
        unique(None)
    with pytest.raises(ValueError, match=r"system 1 \(CO\) has no energy: relax or evaluate it"):
        unique([with_energy(pair), pair])


def test_what_has_no_energy_is_left_out():
    assert unique([with_energy(molecule("CO"), np.nan), with_energy(molecule("CO"))]) == [[1]]
    assert unique([with_energy(molecule("CO"), -np.inf), with_energy(molecule("CO"))]) == [[1]]


def test_minima_of_random_clusters_are_few():
    rng = np.random.default_rng(0)
    clusters = [Atoms("Ar6", rng.uniform(0, 6.5, (6, 3))) for _ in range(12)]
    argon = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
    result = relax(clusters, argon, FIRE(), fmax=1e-4, max_steps=1000, dtype="float64")
    groups = unique(result[result.converged])
    assert sum(map(len, groups)) == result.converged.sum()
    assert len(groups) < result.converged.sum() / 2
