"""Embedded atoms from tables: what ASE reads from the same files, and files that are broken."""

import functools

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.stress import voigt_6_to_full_3x3_stress

from basinax.atoms import EAM, potential_from
from metal_tables import (
    CUTOFF,
    DR,
    DRHO,
    ELEMENTS,
    FILES,
    N_R,
    RHO,
    R,
    density,
    embedding,
    metal_for,
    pair,
    potential,
    reference,
    setfl,
)
from structures import evaluate, results_of, shapes_of

pytestmark = pytest.mark.usefixtures("few_shapes")

COMPARED = (
    "primitive",
    "one open atom",
    "open pair",
    "cell of four",
    "cell of 32",
    "skewed and tiny",
    "slab, open in z",
    "cluster of 13",
    "needle",
)
every_file = pytest.mark.parametrize("name", FILES)


def close(got, expected, scale):
    """Equal to 1e-11 of the largest number of this kind: sums of some hundred rounded terms."""
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11 * scale)


@functools.cache
def all_of(name):
    return evaluate([metal_for(name, s) for s in COMPARED], potential(name))


@every_file
@pytest.mark.parametrize("structure", COMPARED)
def test_energies_forces_and_stress_are_those_of_ase(name, structure):
    atoms = metal_for(name, structure)
    atoms.calc = reference(name)
    forces, _, energy, stress = results_of(*all_of(name), COMPARED.index(structure))
    # A table's first energy is 0, but for a rounding error of the spline.
    close(energy, atoms.get_potential_energy(), max(abs(atoms.get_potential_energy()), 1.0))
    # Forces of perfect crystals are the rounding errors of pair forces of about 1 eV/Å.
    close(forces, atoms.get_forces(), max(np.abs(atoms.get_forces()).max(), 1.0))
    if atoms.cell.rank == 3:
        expected = voigt_6_to_full_3x3_stress(atoms.get_stress())
        close(stress, expected, np.abs(expected).max())
    else:
        assert np.isnan(stress).all()


@every_file
def test_nearer_than_the_first_distance_the_first_polynomial_goes_on_as_in_ase(name):
    pairs = [Atoms("Cu2", [[0, 0, 0], [d * DR, 0, 0]]) for d in (0.3, 0.99, 1.0, 1.5)]
    batch, got = evaluate(pairs, potential(name))
    for k, atoms in enumerate(pairs):
        atoms.calc = reference(name)
        energy, expected = atoms.get_potential_energy(), atoms.get_forces()
        close(got.energies[k], energy, abs(energy))
        close(results_of(batch, got, k)[0], expected, np.abs(expected).max())


@every_file
def test_at_densities_beyond_the_table_its_last_polynomial_goes_on_as_in_ase(name):
    dense = metal_for(name, "cell of four", scale=0.4)
    dense.calc = reference(name)
    batch, got = evaluate([dense], potential(name))
    energy, expected = dense.get_potential_energy(), dense.get_forces()
    assert dense.calc.total_density.max() > 1.5 * RHO[-1]
    # So far from its points a polynomial's error is hundreds of times that of its coefficients.
    np.testing.assert_allclose(got.energies[0], energy, rtol=1e-8)
    scale = 1e-8 * np.abs(expected).max()
    np.testing.assert_allclose(results_of(batch, got, 0)[0], expected, atol=scale)


def test_a_pair_beyond_the_cutoff_adds_nothing_whatever_the_tables_hold():
    tables = {"drho": DRHO, "dr": DR, "cutoff": 3.0}
    pairs = [function("Cu", "Cu", R)[None, None] for function in (density, pair)]
    short = EAM(["Cu"], embedding("Cu", RHO)[None], *pairs, **tables)
    beyond, inside = (Atoms("Cu2", [[0, 0, 0], [d, 0, 0]]) for d in (3.0 + 1e-9, 3.0 - 1e-9))
    _, got = evaluate([beyond, inside], short)
    assert got.energies[0] == 0
    assert abs(got.energies[1]) > 0.1
    assert (np.asarray(got.forces)[:8] == 0).all()


@every_file
def test_a_potential_of_tables_is_that_of_their_file(name):
    read = potential(name)
    elements = ["Cu"] if name == "one.eam" else list(ELEMENTS)
    by_pair = name != "mix.eam.alloy"
    made = EAM(
        elements,
        np.stack([embedding(e, RHO) for e in elements]),
        np.stack([[density(a if by_pair else "Cu", b, R) for b in elements] for a in elements]),
        np.stack([[pair(a, b, R) for b in elements] for a in elements]),
        drho=DRHO,
        dr=DR,
        cutoff=CUTOFF,
    )
    # A funcfl file holds square roots of its pair energies.
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(read), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_species_ascend_whatever_the_order_of_the_file():
    assert potential("mix.eam.fs").species == (13, 28, 29)
    assert potential("mix.eam.fs").cutoff == CUTOFF


@every_file
def test_padding_has_neither_force_nor_energy(name):
    batch, got = all_of(name)
    padding = ~np.asarray(batch.index.has_system())
    assert (np.asarray(got.forces)[padding] == 0).all()
    assert (np.asarray(got.atom_energies)[padding] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_have_the_dtype_of_the_positions(dtype):
    got = shapes_of([metal_for("mix.eam.fs", "cell of four")], potential("mix.eam.fs"), dtype)
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype(dtype)}


def test_float32_is_near_float64():
    systems = [metal_for("mix.eam.fs", s) for s in COMPARED]
    _, near = evaluate(systems, potential("mix.eam.fs"), np.float32)
    expected = np.asarray(all_of("mix.eam.fs")[1].atom_energies)
    # The position within an interval keeps the digits that hundreds of intervals leave to it.
    np.testing.assert_allclose(near.atom_energies, expected, rtol=1e-5, atol=1e-4)


def test_two_atoms_at_one_place_have_an_energy_that_is_not_finite():
    overlapping, other = metal_for("mix.eam.fs", "cell of four"), metal_for("mix.eam.fs", "slab")
    overlapping.positions[1] = overlapping.positions[0]
    _, got = evaluate([overlapping, other], potential("mix.eam.fs"))
    assert np.isnan(got.energies[0])
    assert np.isfinite(got.energies[1])
    assert np.isfinite(np.asarray(got.forces)[8:]).all()


def test_another_table_of_the_same_size_compiles_nothing(count_compilations):
    atoms = [metal_for("mix.eam.fs", "cell of four")]
    evaluate(atoms, potential("mix.eam.fs"))
    with count_compilations() as counted:
        evaluate(atoms, potential("mix.eam.alloy"))
    assert counted.count == 0


# --- files


def written(tmp_path, text, name="x.eam.alloy"):
    path = tmp_path / name
    path.write_text(text)
    return path


def without(text: str, line: int) -> str:
    lines = text.splitlines()
    return "\n".join(lines[: line - 1] + lines[line:])


def with_line(text: str, line: int, instead: str) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[: line - 1], instead, *lines[line:]])


ALLOY, LAST = setfl(), len(setfl().splitlines())
BROKEN = {
    "units": (with_line(ALLOY, 1, "# UNITS: real"), r"line 1: units must be metal .*, got real"),
    "cut off": (
        "\n".join(ALLOY.splitlines()[:200]),
        r"line 200: .* ends in the embedding energy of Al, after 65 of 400",
    ),
    "empty": ("", r"line 0: the file ends in the number of elements"),
    "header alone": ("1\n2\n3\n", r"line 3: the file ends in the number of elements"),
    "a line lost": (without(ALLOY, 50), r"line 186: expected .* Ni, .* number, got 'fcc'"),
    "a line too many": (ALLOY + "1.0 2.0\n", rf"line {LAST + 1}: 2 words more"),
    "a word for a number": (with_line(ALLOY, 60, "1 2 x 4 5"), r"line 60: .* Ni, .* got 'x'"),
    "nan": (with_line(ALLOY, 61, "1 2 nan 4 5"), r"line 61: .* finite number, got 'nan'"),
    "no element": (with_line(ALLOY, 4, "3 Ni Al Xy"), r"line 4: 'Xy' is no chemical element"),
    "an element twice": (with_line(ALLOY, 4, "3 Ni Al Ni"), r"line 4: .* twice in Ni Al Ni"),
    "no count": (with_line(ALLOY, 4, "Ni Al Cu"), r"line 4: .* number of elements, .* got 'Ni'"),
    "count of zero": (with_line(ALLOY, 4, "0"), r"line 4: expected at least one element"),
    "fewer elements": (with_line(ALLOY, 4, "4 Ni Al Cu"), r"line 5: '400' is no chemical"),
    "no step": (with_line(ALLOY, 5, f"400 0.1 {N_R} 0.0 5.5"), r"line 5: .* positive steps"),
    "four points": (with_line(ALLOY, 5, "400 0.1 4 0.1 5.5"), r"line 5: tables need at least 5"),
    "cutoff too long": (with_line(ALLOY, 5, f"400 0.1 {N_R} 0.01 5.5"), r"line 5: the cutoff, 5.5"),
    "no atomic number": (with_line(ALLOY, 6, "28.0 60 3 fcc"), r"line 6: .* number of Ni.*'28.0'"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_file_is_named_with_the_line(tmp_path, problem):
    text, message = BROKEN[problem]
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=rf"x\.eam\.alloy, {message}"):
        EAM.read(path)


def test_a_broken_funcfl_file_is_named_with_the_line(tmp_path):
    text = with_line(FILES["one.eam"], 2, "929 63.5 3.6 fcc")
    with pytest.raises(ValueError, match=r"x\.eam, line 2: 929 is the atomic number of no"):
        EAM.read(written(tmp_path, text, "x.eam"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        EAM.read(tmp_path / "nowhere.eam.alloy")


def test_the_format_may_be_said_where_the_name_does_not_tell(tmp_path):
    path = written(tmp_path, FILES["mix.eam.fs"], "tables.txt")
    assert EAM.read(path, format="fs").species == (13, 28, 29)
    with pytest.raises(ValueError, match=r"tables\.txt: format must be one of .* got None"):
        EAM.read(path)


@pytest.mark.parametrize(
    ("elements", "shape", "message"),
    [
        (["Xy"], (1, 1, 9), "different chemical elements"),
        (["Cu", "Cu"], (2, 2, 9), "different chemical elements"),
        (["Cu"], (2, 2, 9), r"must have shapes \[1, densities\]"),
    ],
)
def test_tables_that_do_not_fit_are_named(elements, shape, message):
    tables = np.ones((shape[0], 9)), np.ones(shape), np.ones(shape)
    with pytest.raises(ValueError, match=message):
        EAM(elements, *tables, drho=1.0, dr=1.0, cutoff=8.0)


@pytest.mark.parametrize(
    ("pair", "how", "message"),
    [
        (np.arange(18.0), {}, "pair must be symmetric"),
        (np.zeros(36), {"dr": 0.0}, "dr must be positive"),
        (np.zeros(36), {"cutoff": np.nan}, "cutoff must be positive"),
        (np.full(36, np.inf), {}, "finite"),
    ],
)
def test_numbers_out_of_range_are_named(pair, how, message):
    pair = np.broadcast_to(pair.reshape(-1, 2, 9), (2, 2, 9))
    tables = np.ones((2, 9)), np.ones((2, 2, 9)), pair
    with pytest.raises(ValueError, match=message):
        EAM(["Al", "Cu"], *tables, **({"drho": 1.0, "dr": 1.0, "cutoff": 8.0} | how))


def test_an_element_without_tables_is_named_with_its_systems():
    with pytest.raises(ValueError, match=r"EAM has no parameters for Al, .* has them for Cu"):
        potential("one.eam").check([metal_for("mix.eam.fs", "cell of four")])


@pytest.mark.parametrize("ending", ["", ",format=alloy"])
def test_a_file_stands_in_the_text_of_a_potential(tmp_path, ending):
    path = written(tmp_path, ALLOY, "a, b=c.eam.alloy")
    assert potential_from(f"eam:{path}{ending}").species == (13, 28, 29)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eam:", "expected eam:FILE"),
        ("eam", "expected eam:FILE"),
        ("eam:x.eam,format=setfl", "format must be one of alloy, fs, eam"),
    ],
)
def test_a_text_without_a_usable_file_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        potential_from(text)
