"""Files of structures: each content is kept, named as lost, or refused before a run."""

import datetime
import gzip
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import (
    FixAtoms,
    FixBondLengths,
    FixCartesian,
    FixCom,
    FixedLine,
    FixedPlane,
    FixInternals,
    FixScaled,
    FixSymmetry,
    Hookean,
)
from ase.db import connect
from ase.io.formats import UnknownFileTypeError, ioformats
from ase.spacegroup import Spacegroup

import formats_table
from basinax.structures.formats.formats import Form, form_to_read, form_to_write
from basinax.structures.formats.held import HOLDS, in_words, losses, prepared, refusal
from basinax.structures.formats.occupancy import check_occupancies

# --- the table


def test_the_page_has_the_table():
    """Where it has not: python tests/support/formats_table.py."""
    assert formats_table.text() in formats_table.PAGE.read_text()


def crystal(**how) -> Atoms:
    """Three atoms that stand close together in a cell."""
    cell = [[5.6, 0, 0], [0.3, 5.5, 0], [0.2, 0.4, 5.7]]
    return Atoms("NaClNa", [[1, 1, 1], [1, 2, 2], [2, 1, 1]], **{"cell": cell, "pbc": True} | how)


def changed(change: Callable[[Atoms], Any]) -> Atoms:
    atoms = crystal()
    change(atoms)
    return atoms


def turned(atoms: Atoms) -> None:
    turn = np.array([[0.36, 0.48, -0.8], [-0.8, 0.6, 0], [0.48, 0.64, 0.6]])
    atoms.set_cell(atoms.cell.array @ turn, scale_atoms=True)


def with_results(atoms: Atoms) -> None:
    """Results, which a format keeps where it leaves out charges and moments."""
    atoms.set_initial_charges([0.5, -0.5, 0.25])
    atoms.set_initial_magnetic_moments(np.arange(9.0).reshape(3, 3))
    forces = np.arange(9.0).reshape(3, 3)
    found = {"energy": -1.25, "energies": np.arange(3.0), "forces": forces, "stress": np.arange(6)}
    atoms.calc = SinglePointCalculator(atoms, **found)
    atoms.info |= {"relax_status": "converged", "relax_steps": 7}


def fixed(constraint: Any) -> tuple[Atoms, Callable[[Atoms], Any]]:
    return changed(lambda atoms: atoms.set_constraint(constraint)), forces_left


def forces_left(atoms: Atoms) -> np.ndarray:
    """Asymmetric forces under the constraints."""
    forces = np.cos(np.arange(3.0 * len(atoms)) + 0.5).reshape(-1, 3)
    for constraint in atoms.constraints:
        constraint.adjust_forces(atoms, forces)
    return forces


def array(name: str, values: Any) -> tuple[Atoms, Callable[[Atoms], Any]]:
    return changed(lambda atoms: atoms.set_array(name, np.array(values))), lambda x: x.arrays[name]


RESULTS, CUBE = changed(with_results), bulk("Cu", cubic=True)
CUBE.set_constraint(FixSymmetry(CUBE))
PARTS = {
    ("cell", ""): (crystal(), lambda x: x.cell.cellpar()),
    ("cells that are not periodic in all directions", ""): (
        crystal(pbc=(True, True, False)),
        lambda x: [*x.pbc, *x.cell.cellpar()],
    ),
    ("cells that are not periodic in all directions", "at all"): (
        crystal(pbc=False),
        lambda x: [*x.pbc, *x.cell.cellpar()],
    ),
    ("orientation of the cell", ""): (changed(turned), lambda x: x.cell.array),
    ("periodic images of atoms", ""): (
        changed(lambda x: x.translate([[7.0, 0, 0], [0, -6.0, 0], [0, 0, 0]])),
        lambda x: x.get_scaled_positions(wrap=False),
    ),
    ("digits of positions", ""): (
        changed(lambda x: x.translate(0.0012345 * np.cos(np.arange(9.0)).reshape(3, 3))),
        lambda x: [x.get_distance(0, k, mic=True) for k in (1, 2)],
    ),
    ("energy", ""): (RESULTS, lambda x: x.calc.results["energy"]),
    ("energies of atoms", ""): (RESULTS, lambda x: x.calc.results["energies"]),
    ("forces", ""): (RESULTS, lambda x: x.calc.results["forces"]),
    ("stress", ""): (RESULTS, lambda x: x.calc.results["stress"]),
    ("status", ""): (RESULTS, lambda x: x.info["relax_status"] == "converged"),
    ("steps", ""): (RESULTS, lambda x: x.info["relax_steps"]),
    ("constraints", "FixAtoms"): fixed(FixAtoms([1])),
    ("constraints", "FixCartesian"): fixed(FixCartesian([1], [True, False, False])),
    ("constraints", "FixScaled"): fixed(FixScaled([1], [True, False, False])),
    ("constraints", "FixedPlane"): fixed(FixedPlane([1], [1, 1, 0])),
    ("constraints", "FixedLine"): fixed(FixedLine([1], [0, 0, 1])),
    ("constraints", "FixCom"): fixed(FixCom()),
    ("constraints", "FixSymmetry"): (CUBE, forces_left),
    ("constraints", "FixBondLengths"): fixed(FixBondLengths([[0, 1]])),
    ("constraints", "FixInternals"): fixed(FixInternals(bonds=[[None, [0, 1]]])),
    ("constraints", "Hookean of atoms"): fixed(Hookean(0, 1, 5.0, rt=1.0)),
    ("constraints", "Hookean of a point"): fixed(Hookean(0, (0.0, 0.0, 1.0), 5.0, rt=1.0)),
    ("constraints", "Hookean of a plane"): fixed(Hookean(0, (0.0, 0.0, 1.0, -0.5), 5.0)),
    ("tags", ""): array("tags", [0, 1, 2]),
    ("masses", ""): array("masses", [21.0, 22.0, 23.0]),
    ("momenta", ""): array("momenta", np.arange(9.0).reshape(3, 3)),
    ("charges", ""): array("initial_charges", [0.5, -0.5, 0.25]),
    ("magnetic moments", ""): array("initial_magmoms", [1.0, 2.0, 0.0]),
    ("magnetic moments", "vectors"): array("initial_magmoms", np.arange(9.0).reshape(3, 3)),
    ("array 'label'", ""): array("label", np.arange(3.0)),
    ("info 'gap'", ""): (crystal(info={"gap": 1.5}), lambda x: x.info["gap"]),
}
"""Structures, and what a file has to keep of them, by the loss that is named otherwise."""


def through(name: str, path: Path, structures: list[Atoms]) -> list[Atoms]:
    with warnings.catch_warnings(action="ignore"):
        Form(name).write(path, structures)
        return list(Form(name).read(path))


def is_kept(meant: Atoms, got: Atoms, part: Callable[[Atoms], Any], distance: float) -> bool:
    try:
        expected, found = np.asarray(part(meant), float), np.asarray(part(got), float)
    except (KeyError, AttributeError):
        return False
    return expected.shape == found.shape and np.allclose(expected, found, rtol=1e-5, atol=distance)


@pytest.mark.parametrize("name", HOLDS)
def test_the_table_says_what_a_format_keeps(name, tmp_path):
    missing, said = set(), set()
    for (loss, kind), (atoms, part) in PARTS.items():
        if loss in OF_THE_CELL and "cell" not in HOLDS[name]:
            continue
        assert refusal(name, [atoms], [""]) is None
        (got,) = through(name, tmp_path / "x", [atoms])
        assert list(got.symbols) == list(atoms.symbols)
        distance = 0.02 if loss in ("cell", *OF_THE_CELL) else 1e-5
        missing |= set() if is_kept(atoms, got, part, distance) else {(loss, kind)}
        said |= {(loss, kind)} if loss in losses(name, [atoms], [loss == "stress"]) else set()
    assert missing <= said
    assert {loss for loss, _ in missing} == {loss for loss, _ in said}


OF_THE_CELL = {
    "cells that are not periodic in all directions",
    "orientation of the cell",
    "periodic images of atoms",
}
"""What goes with the cell, and is not named beside it."""

SETS = {
    "several": [crystal(), changed(turned)],
    "other elements": [crystal(), changed(lambda x: x.set_atomic_numbers([11, 11, 17]))],
    "another number": [crystal(), crystal() * (2, 1, 1)],
    "a smaller number": [crystal() * (2, 1, 1), crystal()],
    "no cell": [Atoms("O2", [[0, 0, 0], [0, 0, 1.2]])],
    "two vectors": [crystal(cell=[[5, 0, 0], [0, 6, 0], [0, 0, 0]], pbc=(True, True, False))],
    "many atoms": [crystal() * (7, 7, 7)],
    "far away": [Atoms("O2", [[0, 0, 0], [2e4, 0, 1.2]])],
    "very far away": [Atoms("O2", [[0, 0, 0], [-2e5, 0, 1.2]])],
    "left-handed": [crystal(cell=[[0, 4, 0], [4, 0, 0], [0, 0, 4]])],
}


@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("kind", SETS)
def test_structures_that_a_format_does_not_hold_are_refused(name, kind, tmp_path):
    structures = SETS[kind]
    refused = refusal(name, structures, [""] * len(structures))
    try:
        found = through(name, tmp_path / "x", structures)
    except Exception:  # every writer and reader raises errors of its own
        assert refused
        return
    cells = [] if "cell" not in HOLDS[name] else [lambda x: [*x.pbc, *x.cell.array.ravel()]]
    parts = [lambda x: x.numbers, *cells]
    are_kept = len(found) == len(structures) and all(
        len(a) == len(b) and is_kept(a, b, part, 0.02)
        for a, b in zip(structures, found, strict=True)
        for part in parts
    )
    assert are_kept or refused or "orientation of the cell" in losses(name, structures, [False] * 2)


@pytest.mark.parametrize("name", HOLDS)
def test_a_name_leads_to_each_row(name):
    endings = (name, *ioformats[name].extensions)
    assert name in {form_to_write(Path(f"a.{ending}")).name for ending in endings}


@pytest.mark.parametrize("name", ioformats)
def test_formats_without_a_row_are_refused(name):
    reason = refusal(name, [crystal(pbc=True)], ["a"]) or ""
    assert ("which `ase convert` converts" in reason) == (name not in HOLDS)


@pytest.mark.parametrize("name", HOLDS)
def test_nothing_in_a_structure_spoils_a_file(name, tmp_path):
    atoms = crystal(info=INFO | INFO_LEFT_OUT)
    atoms.arrays |= {key: x[:3] for key, x in (ARRAYS | ARRAYS_LEFT_OUT).items()}
    (got,) = through(name, tmp_path / "x", [atoms])
    assert got.symbols.get_chemical_formula() == "ClNa2"
    assert "array 'my label'" in losses(name, [atoms], [False])


def test_losses_are_named_with_the_first_structure_that_has_them():
    structures = [bulk("Ar", a=5.3, cubic=True) for _ in range(30)]
    structures[17].info["key"] = object()
    structures[23].set_array("b", np.ones((4, 2, 2)))
    lost = losses("extxyz", structures, [False] * 30)
    assert lost == {"info 'key'": 17, "array 'b'": 23}
    said = in_words(lost, [f"x@{k}" for k in range(30)])
    assert said == "info 'key' (of x@17), array 'b' (of x@23)"


def result(info=(), arrays=()) -> Atoms:
    atoms = bulk("Ar", a=5.3, cubic=True)
    atoms.rattle(0.05, seed=1)
    atoms.set_constraint(FixAtoms([1]))
    forces = np.arange(12.0).reshape(4, 3)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.25, forces=forces)
    atoms.info = {"before": 1} | dict(info) | {"relax_status": "converged"}
    atoms.arrays |= dict(arrays)
    return atoms


# --- extended XYZ

INFO = {
    **{
        f"text {k}": x
        for k, x in enumerate(["", " ", " a ", "two\nlines", "a\rb", "a\tb", "a\u2028b"])
    },
    **{f"like {x}": x for x in ["T", "1234", "1e5", "nan", "1,2", "a=b", "_JSON {}", "None"]},
    **{f"sign {ord(x)}": f"{x}a{x} {x}" for x in "\"'\\{}[],=#"},
    **{"é": "Å", "my key": 3, "q'uote": 1, "uid": "12", "none": None, "yes": True, "1": 2, "-": 1},
    **{"half": np.float32(0.1), "no": np.bool_(False), "large": 2**70 + 1, "nan": float("nan")},
    **{"inf": -np.inf, "list": [1, 2], "texts": ["a", "b c"], "none left": [], "tuple": (1, 2.5)},
    **{"map": {"a": {"b": [1, None]}}, "arrays": {"x": np.arange(2)}, "vector": np.arange(3)},
    **{
        "matrix": np.eye(2),
        "virial": np.arange(9.0).reshape(3, 3),
        "flags": np.array([True, False]),
    },
    **{"words": np.array(["x", "y z"]), "spacegroup": Spacegroup(225), "charge": 1, "spin": 2},
}
"""Entries that extended XYZ keeps."""

INFO_LEFT_OUT = {
    **{
        "Lattice": "1 0 0 0 1 0 0 0 1",
        "pbc": "F F F",
        "Properties": "species:S:1",
        "a=b": 1,
        "": 5,
    },
    **{5: 6, "new\nline": 1, "complex": 1j, "bytes": b"x", "set": {1}, "path": Path("x")},
    **{"date": datetime.date(2020, 1, 1), "numbers": {1: 2}, "object": object()},
    **{"dipole": np.ones(3), "magmom": 1.0, "energy": 5.0, "stress": np.eye(3)},
}

ARRAYS = {
    **{"label": np.array(list("abcd")), "vector": np.ones((4, 3)), "é": np.arange(4.0)},
    **{
        "flag": np.arange(4) > 2,
        "half": np.ones(4, np.float32),
        "whole": np.arange(12).reshape(4, 3),
    },
    **{"masses": np.full(4, 2.0), "momenta": np.ones((4, 3)), "tags": np.arange(4)},
    **{"initial_charges": np.ones(4), "initial_magmoms": np.ones((4, 3))},
}

ARRAYS_LEFT_OUT = {
    **{name: np.arange(4.0) for name in ["my label", "a:b", 'q"uote', "", "new\nline", "pos", "Z"]},
    **{name: np.ones(4) for name in ["species", "charge", "magmoms", "charges", "move_mask"]},
    **{
        "phase": np.ones(4) * 1j,
        "any": np.array([None, 1, "a", {}], object),
        "one": np.ones((4, 1)),
    },
    **{"tensor": np.ones((4, 3, 3)), "empty": np.ones((4, 0)), "forces": np.ones((4, 3))},
    **{"blank": np.array(["a b", "c", "d", "e"]), "nothing": np.array(["", "c", "d", "e"])},
    **{"huge": np.arange(4) * 10**15, "spaced": np.array(["\xa0a", "b", "c", "d"])},
}


def are_equal(meant: Any, got: Any) -> bool:
    """Whether values have one meaning, such as a list and an array."""
    if isinstance(meant, Mapping):
        return list(meant) == list(got) and all(are_equal(x, got[k]) for k, x in meant.items())
    if isinstance(meant, list | tuple | np.ndarray):
        return len(meant) == len(got) and all(map(are_equal, meant, got))
    if isinstance(meant, int | float | np.floating | np.integer) and not isinstance(meant, bool):
        is_number = not isinstance(got, str | bool | np.bool_)
        return is_number and bool(np.isclose(float(got), float(meant), rtol=1e-6, equal_nan=True))
    meant = meant.symbol if isinstance(meant, Spacegroup) else meant
    return isinstance(got, str) == isinstance(meant, str) and got == meant


def check_kept(path: Path, atoms: Atoms, left_out: list[str]) -> None:
    """Check that two such structures are read again, with all but what is left out."""
    assert prepared("extxyz", atoms)[1] == left_out
    for got in through("extxyz", path, [atoms, atoms]):
        info = {k: x for k, x in atoms.info.items() if f"info {k!r}" not in left_out}
        arrays = {k: x for k, x in atoms.arrays.items() if f"array {k!r}" not in left_out}
        assert are_equal(info, got.info)
        assert {*arrays} == {*got.arrays}
        assert all(are_equal(x, got.arrays[k]) for k, x in arrays.items())
        np.testing.assert_allclose(got.calc.results["forces"], np.arange(12.0).reshape(4, 3))
        np.testing.assert_allclose(got.positions, atoms.positions, atol=1e-7)


def kinds(info: dict, arrays: dict) -> list[tuple]:
    return [*(("array", name) for name in arrays), *(("info", name) for name in info)]


@pytest.mark.parametrize(("kind", "name"), kinds(INFO, ARRAYS), ids=repr)
def test_extended_xyz_keeps(tmp_path, kind, name):
    info = {name: INFO[name]} if kind == "info" else {}
    atoms = result(info, {name: ARRAYS[name]} if kind == "array" else {})
    check_kept(tmp_path / "x.xyz", atoms, [])


def test_extended_xyz_keeps_all_of_them_together(tmp_path):
    atoms = result(INFO | INFO_LEFT_OUT, ARRAYS | ARRAYS_LEFT_OUT)
    names = [f"{kind} {name!r}" for kind, name in kinds(INFO_LEFT_OUT, ARRAYS_LEFT_OUT)]
    check_kept(tmp_path / "x.xyz", atoms, names)


@pytest.mark.parametrize(("kind", "name"), kinds(INFO_LEFT_OUT, ARRAYS_LEFT_OUT), ids=repr)
def test_extended_xyz_leaves_out_by_name_what_would_harm_the_rest(tmp_path, kind, name):
    info = {name: INFO_LEFT_OUT[name]} if kind == "info" else {}
    arrays = {} if kind == "info" else {name: ARRAYS_LEFT_OUT[name]}
    check_kept(tmp_path / "x.xyz", result(info, arrays), [f"{kind} {name!r}"])


def test_a_column_of_text_goes_from_file_to_file(tmp_path):
    atoms = result(arrays={"label": ARRAYS["label"]})
    for _ in range(2):
        check_kept(tmp_path / "x.xyz", atoms, [])
        (atoms,) = through("extxyz", tmp_path / "x.xyz", [atoms])


# --- databases


@pytest.mark.parametrize("name", ["db", "json"])
def test_databases_keep_pairs_and_data(tmp_path, name):
    pairs = {"material": "m0", "gap": 1.5, "stable": True, "n": 3}
    data = {"gap": 2.5, "x": [1, 2], "y": {"z": None}, "word": "12"}
    with connect(tmp_path / f"in.{name}") as database:
        for k in range(4):
            database.write(result(), key_value_pairs=pairs | {"n": k}, data=data)
    form = form_to_read(tmp_path / f"in.{name}")
    structures = list(form.read(tmp_path / f"in.{name}"))
    for atoms in structures:
        atoms.info |= {"volume": 5.0, "limits": [1, 2]}  # no names or values of pairs
    form.write(tmp_path / f"out.{name}", structures)
    rows = list(connect(tmp_path / f"out.{name}").select())
    assert [row.key_value_pairs for row in rows] == [pairs | {"n": k} for k in range(4)]
    assert dict(rows[0].data) == data | {"volume": 5.0, "limits": [1, 2]}


@pytest.mark.parametrize("name", ["db", "json"])
def test_databases_keep_a_total_charge(tmp_path, name):
    ion = Atoms("OH", [[0, 0, 0], [0, 0, 1]], info={"charge": -1, "spin": 3})
    for k in range(2):
        form_to_write(tmp_path / f"{k}.{name}").write(tmp_path / f"{k}.{name}", [ion])
        (ion,) = form_to_read(tmp_path / f"{k}.{name}").read(tmp_path / f"{k}.{name}")
        assert ion.info == {"charge": -1, "spin": 3}


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        *((None, [0, 1, 2, 3]), (1, [1]), (-1, [3]), (slice(1, 3), [1, 2]), ("n>1", [2, 3])),
        *((slice(None, None, 2), [0, 2]), (slice(None, None, -1), [3, 2, 1, 0])),
        (slice(9, None), []),
    ],
)
def test_rows_of_a_database_are_chosen_as_images_are(tmp_path, images, expected):
    path = tmp_path / "in.json"
    with connect(path) as database:
        for k in range(4):
            database.write(Atoms("Ar"), n=k)
    assert [atoms.info["n"] for atoms in Form("json").read(path, images)] == expected
    packed = tmp_path / "in.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [atoms.info["n"] for atoms in form_to_read(packed).read(packed, images)] == expected


# --- names

NAMES = {
    **{"POSCAR_relaxed.extxyz": "extxyz", "my_CONTCAR.xyz.gz": "extxyz", "CONFIG_1.cif": "cif"},
    **{"postgres_set.extxyz": "extxyz", "mysql.traj": "traj", "x.EXTXYZ": "extxyz", "a.db": "db"},
    **{"XDATCAR.vasp": "vasp-xdatcar", "POSCAR.vasp": "vasp", "x.poscar": "vasp", "POSCAR": "vasp"},
    **{"POSCAR.34": "vasp", "POSCAR_1": "vasp", "xyz.in": "gpumd", "geometry.in": "aims"},
    **{"coord": "turbomole", "OUTCAR.json": "json", "gradient.xsf": "xsf"},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_ending_decides_the_format(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert form_to_write(Path(name)).name == NAMES[name]
    Path(name).write_bytes(gzip.compress(b"text\n") if name.endswith(".gz") else b"text\n")
    assert form_to_read(Path(name)).name == NAMES[name]


def test_a_comment_of_another_format_does_not_decide(tmp_path):
    path = tmp_path / "x.xyz"
    path.write_text("1\nMOLECULE\nAr 0 0 0\n")
    (atoms,) = form_to_read(path).read(path)
    assert len(atoms) == 1


@pytest.mark.parametrize("name", ["x.foo", "x", "nowhere.db"])
def test_files_of_no_format_are_not_made(tmp_path, name):
    with pytest.raises((UnknownFileTypeError, OSError)):
        form_to_read(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


# --- what files say and ASE passes over


@pytest.mark.parametrize("name", ["sdf", "mol", "vasp", "gen", "lammps-data", "res"])
def test_structures_behind_the_first_are_counted(tmp_path, name):
    path, form = tmp_path / "x", Form(name)
    form.write(path, [bulk("Ar", a=5.3, cubic=True)])
    assert len(list(form.read_as_meant(path, None, str))) == 1
    path.write_text(path.read_text() * 3)
    with pytest.raises(ValueError, match="it holds 3 structures, and ASE reads one of them"):
        list(form.read_as_meant(path, None, str))


def test_atoms_whose_fixing_is_not_read_are_named(tmp_path):
    path, form, said = tmp_path / "x", Form("xsd"), []
    form.write(path, [bulk("Ar", a=5.3, cubic=True)])
    list(form.read_as_meant(path, None, said.append))
    assert said == []
    path.write_text(path.read_text().replace("<Atom3d ", '<Atom3d RestrictedProperties="X" ', 1))
    list(form.read_as_meant(path, None, said.append))
    assert said == ["ASE does not read its fixed atoms"]


PART = {"0": {"Cu": 0.6, "Au": 0.4}}
OCCUPANCIES = {
    "shared": ({"occupancy": PART}, {}, "0.6 Cu and 0.4 Au"),
    "partly empty": ({"occupancy": {"0": {"Cu": 1.0}, "1": {"Cu": 0.5}}}, {}, "0.5 Cu"),
    "of a molecule": ({}, {"occupancy": np.array([1.0, 0.5])}, "0.5 Cu"),
    "of a crystal": ({}, {"occupancies": np.array([0.25, 1.0])}, "0.25 Cu"),
    "whole": ({"occupancy": {"0": {"Cu": 1.0}, "1": {"Cu": "?"}}}, {"occupancy": np.ones(2)}, None),
    "not said": ({"occupancy": "high"}, {"occupancy": np.zeros(2)}, None),
}


@pytest.mark.parametrize("case", OCCUPANCIES)
def test_sites_that_are_not_one_atom_are_refused(case):
    info, arrays, site = OCCUPANCIES[case]
    atoms = Atoms("Cu2", [[0, 0, 0], [0, 0, 3]], info=info)
    atoms.arrays |= arrays
    if site is None:
        check_occupancies([Atoms("Cu"), atoms])
    else:
        with pytest.raises(ValueError, match=rf"system 1 \(Cu2\) has a site of {site}, which"):
            check_occupancies([Atoms("Cu"), atoms])
