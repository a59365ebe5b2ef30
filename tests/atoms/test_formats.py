"""Files of structures: each content is kept, named as lost, or refused before a run."""

import datetime
import gzip
from pathlib import Path

import formats_table
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian, FixCom
from ase.db import connect
from ase.io.formats import UnknownFileTypeError
from ase.spacegroup import Spacegroup

from basinax.atoms._formats.equality import losses
from basinax.atoms._formats.extxyz import as_extxyz
from basinax.atoms._formats.formats import Form, form_to_read, form_to_write
from basinax.atoms._formats.occupancy import check_occupancies
from basinax.atoms._formats.trial import tried


def test_the_table_of_the_page_is_what_formats_keep():
    """Where it is not: python tests/atoms/formats_table.py."""
    assert formats_table.text() in formats_table.PAGE.read_text()


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
    **{"huge": np.arange(4) * 10**15},
}


def written_and_read(name: str, path: Path, atoms: Atoms) -> Atoms:
    Form(name).write(path, [atoms, atoms])
    first, second = Form(name).read(path)
    assert losses(first, second) == []
    return first


def kinds(info: dict, arrays: dict) -> list[tuple]:
    return [*(("info", name) for name in info), *(("array", name) for name in arrays)]


@pytest.mark.parametrize(("kind", "name"), kinds(INFO, ARRAYS), ids=repr)
def test_extended_xyz_keeps(tmp_path, kind, name):
    info = {name: INFO[name]} if kind == "info" else {}
    atoms = result(info, {name: ARRAYS[name]} if kind == "array" else {})
    assert as_extxyz(atoms)[1] == []
    assert losses(atoms, written_and_read("extxyz", tmp_path / "x.xyz", atoms)) == []


def test_extended_xyz_keeps_all_of_them_together(tmp_path):
    atoms = result(INFO | INFO_LEFT_OUT, ARRAYS | ARRAYS_LEFT_OUT)
    lost = losses(atoms, written_and_read("extxyz", tmp_path / "x.xyz", atoms))
    assert set(lost) == {f"{kind} {name!r}" for kind, name in kinds(INFO_LEFT_OUT, ARRAYS_LEFT_OUT)}


@pytest.mark.parametrize(("kind", "name"), kinds(INFO_LEFT_OUT, ARRAYS_LEFT_OUT), ids=repr)
def test_extended_xyz_leaves_out_by_name_what_would_harm_the_rest(tmp_path, kind, name):
    info = {name: INFO_LEFT_OUT[name]} if kind == "info" else {}
    arrays = {} if kind == "info" else {name: ARRAYS_LEFT_OUT[name]}
    atoms = result(info, arrays)
    expected = [f"{kind} {name!r}"]
    assert as_extxyz(atoms)[1] == expected
    assert losses(atoms, written_and_read("extxyz", tmp_path / "x.xyz", atoms)) == expected


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


# --- what a trial finds


def different_sizes() -> list[Atoms]:
    small = bulk("Ar", a=5.3, cubic=True)
    return [small, small * (2, 1, 1)]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((name, 1) for name in ("proteindatabank", "xsf", "xtd", "bundletrajectory", "vasp")),
        *((name, -1) for name in ("proteindatabank", "xtd", "bundletrajectory", "vasp")),
    ],
)
def test_formats_that_lose_atoms_or_structures_are_refused(name, order):
    fault = tried(Form(name), "x", different_sizes()[::order], [False, False]).fault
    assert fault is not None


def test_formats_that_lose_elements_are_refused():
    structures = [Atoms("Ar2", [[0, 0, 0], [0, 0, 4]]), Atoms("Kr2", [[0, 0, 0], [0, 0, 4]])]
    assert tried(Form("xyz"), "x", structures, [False, False]).fault is None
    alone = tried(Form("proteindatabank"), "x", structures, [False, False]).fault
    assert alone is not None and alone.number == 1


def test_an_entry_that_spoils_a_file_is_left_out_and_the_others_stay():
    atoms = Atoms(
        "Ar2", [[0, 0, 0], [0, 0, 4]], info={"bad": b"bytes", "path": Path("x"), "good": 1}
    )
    trial = tried(Form("json"), "x.json", [atoms], [False])
    assert trial.fault is None
    assert {str(item) for item in trial.left_out} == {"info 'bad'", "info 'path'"}
    assert trial.written(atoms).info == {"good": 1}
    assert trial.in_words(["a"]) in ("info 'bad', info 'path'", "info 'path', info 'bad'")


def test_losses_are_found_in_whichever_structure_has_them():
    structures = [bulk("Ar", a=5.3, cubic=True) for _ in range(30)]
    structures[17].info["key"] = object()
    structures[23].set_array("b", np.ones((4, 2, 2)))
    trial = tried(Form("extxyz"), "x", structures, [False] * 30)
    assert trial.lost == {"info 'key'": 17, "array 'b'": 23}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FixAtoms([0, 1]), [FixCartesian([0]), FixCartesian([1])]),
        (FixAtoms([0, 1]), [FixAtoms([0])]),
        (FixCom(), []),
    ],
)
def test_constraints_are_compared_by_what_they_do(ours, theirs):
    meant, got = Atoms("Ar2", [[0, 0, 0], [0, 0, 4]]), Atoms("Ar2", [[0, 0, 0], [0, 0, 4]])
    meant.set_constraint(ours)
    got.set_constraint(theirs)
    assert losses(meant, got) == ([] if len(theirs) == 2 else ["constraints"])


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


@pytest.mark.parametrize("name", ["sdf", "mol", "vasp", "gen", "lammps-data", "turbomole", "xsd"])
def test_structures_behind_the_first_are_counted(tmp_path, name):
    path = tmp_path / "x"
    Form(name).write(path, [bulk("Ar", a=5.3, cubic=True)])
    assert Form(name).count(path) == 1
    assert Form(name).not_read(path) == []
    if name == "xsd":
        path.write_text(
            path.read_text().replace("<Atom3d ", '<Atom3d RestrictedProperties="X" ', 1)
        )
        assert Form(name).not_read(path) == ["fixed atoms"]
    else:
        path.write_text(path.read_text() * 3)
        assert Form(name).count(path) == 3


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
