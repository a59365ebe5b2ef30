"""Two results of the same structures: what is matched, and how far apart they are."""

import dataclasses
import json

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.constraints import (
    FixAtoms,
    FixBondLengths,
    FixCom,
    FixedLine,
    FixInternals,
    Hookean,
)

from basinax.atoms import AtomsRelaxation, Compared, Comparison, Relaxed


def entry(atoms, source="0", positions=None, **fields):
    """An entry that ends at these positions, or where it began."""
    place = atoms.positions if positions is None else positions
    fields = {"status": "converged", "energy": -1.0, "steps": 3, "evaluations": 4} | fields
    return Relaxed.of(atoms, place, atoms.cell.array, {}, source=source, **fields)


def result(**energies):
    """One helium for each name, with this energy."""
    return AtomsRelaxation([entry(Atoms("He"), x, energy=e) for x, e in energies.items()])


def test_structures_are_matched_by_source_in_any_order():
    found = result(a=-1.0, b=-2.0, c=-3.0).compare(result(d=0.0, c=-3.5, b=-1.0))
    assert [pair.source for pair in found] == ["b", "c"]
    assert [pair.energy_difference for pair in found] == [1.0, -0.5]
    assert (found.only_first, found.only_other) == (["a"], ["d"])
    assert found[1].first.energy == -3.0 and isinstance(found[:1], Comparison)


def test_a_source_that_stands_more_often_in_one_result_is_refused():
    twice = result(a=0.0) + result(a=0.0)
    for pair, counts in [((twice, result(a=0.0)), "2 times"), ((result(a=0.0), twice), "1 time")]:
        with pytest.raises(
            ValueError, match=rf"'a' stands {counts} in the first result and .*: remove info"
        ):
            pair[0].compare(pair[1])


def test_a_file_that_was_named_twice_is_matched_in_order():
    found = (result(a=-1.0, b=-2.0) + result(a=-3.0)).compare(result(a=-1.5) + result(a=-3.5))
    assert [pair.energy_difference for pair in found] == [-0.5, -0.5]
    assert (found.only_first, found.only_other) == (["b"], [])


def test_a_source_of_other_atoms_is_refused():
    other = AtomsRelaxation([entry(Atoms("Ne"), "a")])
    with pytest.raises(ValueError, match="source 'a' is He in the first result and Ne in"):
        result(a=0.0).compare(other)


def test_what_is_no_result_is_refused():
    with pytest.raises(TypeError, match="other must be a result of relax, got 3"):
        result(a=0.0).compare(3)


def test_a_summary_has_counts_sums_and_the_first_structures(tmp_path):
    other = result(a=-1.5, b=-1.0, d=0.0)
    other = AtomsRelaxation([dataclasses.replace(x, status="stalled", steps=9) for x in other])
    found = result(a=-1.0, b=-1.0, c=-1.0).compare(other)
    assert repr(found).splitlines()[:5] == [
        "2 structures in both results",
        "1 only in the first: c",
        "1 only in the other: d",
        "in the first and the other: converged 2 and 0; steps 6 and 18; evaluations 8 and 8",
        "energies of the other: 1 lower, 0 higher, 1 within 1 meV/atom; largest distance 0 Å",
    ]
    assert found._repr_html_().count("<tr>") == 3
    assert repr(result().compare(other)).splitlines()[0] == "0 structures in both results"
    found.write_table(tmp_path / "table.json")
    rows = json.loads((tmp_path / "table.json").read_text())
    assert [row["other_steps"] for row in rows] == [9, 9] and list(rows[0]) == list(found.to_dict())
    pandas = pytest.importorskip("pandas", reason="to_pandas needs pandas")
    assert isinstance(found.to_pandas(), pandas.DataFrame)


def test_a_structure_is_at_no_distance_from_itself():
    """Of sums and turns some roundings would be left, as if bits differed."""
    bent = Atoms("Ar3", [(0, 0, 0), (0.1, 0, 3.8), (0, 2, 7)])
    assert apart(bent, bent.positions) == 0.0
    assert apart(bent, bent.positions * (1 + 1e-9)) > 0


def test_infinite_energies_are_lower_or_higher():
    found = result(a=0.0, b=0.0, c=0.0, d=0.0).compare(
        result(a=np.inf, b=-np.inf, c=np.nan, d=0.0005)
    )
    assert "1 lower, 1 higher, 1 within 1 meV/atom, 1 unknown; largest" in repr(found)


def apart(atoms, positions) -> float:
    return Compared(entry(atoms), entry(atoms, positions=positions)).distance


def moved(atoms, size=0.01):
    """The positions, of which the first is moved."""
    positions = atoms.positions.copy()
    positions[0] += [size, 0, 0]
    return positions


def test_a_molecule_that_moved_and_turned_has_no_distance():
    ethanol, turned = molecule("CH3CH2OH"), molecule("CH3CH2OH")
    turned.rotate(40, (1, 2, 3))
    turned.translate([1.0, -2.0, 0.5])
    assert apart(ethanol, turned.positions) < 1e-12
    assert 0.005 < apart(ethanol, moved(turned)) < 0.01


def test_a_mirror_image_is_another_structure():
    chiral = Atoms("CHFClBr", np.array([[0, 0, 0], *np.eye(3), [-1, -1, -1]]) * [1.0, 1.5, 2.0])
    assert apart(chiral, chiral.positions * [-1, 1, 1]) > 0.5


def test_a_crystal_is_compared_by_nearest_images():
    crystal = bulk("Cu", cubic=True) * 2
    images = crystal.positions + [[crystal.cell[0, 0], 0, 0], *[[0, 0, 0]] * 31] + 0.3
    assert apart(crystal, images) < 1e-12
    n = len(crystal)
    assert apart(crystal, moved(crystal, 0.1)) == pytest.approx(0.1 * (n - 1) / n)


@pytest.mark.parametrize("skew", [[0, 0, 0], [12, 0, 0], [-8, 16, 0], [4, -8, 0]])
def test_nearest_images_are_those_of_the_lattice_in_skewed_cells(skew):
    """Cell vectors of one lattice."""
    atoms = Atoms("Ar2", [[0, 0, 0], [0.1, 0.2, 4.0]], cell=[4, 4, 8], pbc=True)
    atoms.cell[2] += skew
    apart_by = np.add(atoms.positions, [[0, 0, 0], [0, 0.8, 0]])
    assert apart(atoms, apart_by) == pytest.approx(0.4)


def test_a_cell_that_grew_evenly_has_no_distance():
    crystal, larger = bulk("Cu", cubic=True), bulk("Cu", a=4.0, cubic=True)
    pair = Compared(entry(crystal), entry(larger))
    assert pair.distance < 1e-12
    assert pair.volume_difference == pytest.approx(64.0 - crystal.cell.volume)


def test_atoms_that_constraints_hold_in_space_count_where_they_are():
    slab = fcc111("Al", (2, 2, 2), vacuum=5.0)
    slab.set_constraint(FixAtoms(range(4)))
    raised = slab.positions + np.array([0, 0, 0.5])
    assert apart(slab, raised) == pytest.approx(0.5)
    assert apart(slab, slab.positions + slab.cell[0]) < 1e-12
    slab.set_constraint()
    assert apart(slab, raised) < 1e-12


@pytest.mark.parametrize(
    ("constraint", "is_held"),
    [
        (FixBondLengths([[0, 1]]), False),
        (FixInternals(bonds=[[1.0, [0, 1]]]), False),
        (Hookean(0, 1, 5.0, 2.0), False),
        (Hookean(0, [0, 0, 0], 5.0, 2.0), True),
        (FixCom(), False),
        (FixAtoms([]), False),
        (FixedLine([0], [0, 0, 1]), True),
    ],
)
def test_constraints_hold_atoms_in_space_or_to_each_other(constraint, is_held):
    water, turned = molecule("H2O"), molecule("H2O")
    turned.rotate(40, (1, 2, 3))
    water.set_constraint(constraint)
    assert (apart(water, turned.positions) > 0.1) == is_held


@pytest.mark.parametrize("cell", [[np.nan, 4, 4], [[4, 0, 0], [8, 0, 0], [0, 0, 4]]])
def test_cells_that_are_unusable_have_no_distance(cell):
    """A run records such structures."""
    assert np.isnan(apart(Atoms("He", cell=cell, pbc=True), np.zeros((1, 3))))


def test_positions_that_are_not_finite_have_no_distance():
    assert np.isnan(apart(Atoms("He2", [[0, 0, 0], [0, 0, 3]]), np.full((2, 3), np.nan)))
