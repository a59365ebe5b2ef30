"""Texts and files that cannot be right end the command in one line, before much is done."""

import bz2
import gzip
import os
import pickle
import sqlite3
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atom, Atoms
from ase.io.formats import ioformats
from typer.testing import CliRunner

from basinax import cli
from basinax.atoms import (
    LennardJones,
    Morse,
    cell_from,
    evaluate,
    neb,
    potential_from,
    relax,
    relax_stream,
    vibrations,
)
from basinax.cli.console import LONGEST, shown
from basinax.cli.guard import Unreadable
from basinax.cli.inputs import read_structures

pytestmark = pytest.mark.usefixtures("few_lengths")

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"


@pytest.fixture(autouse=True)
def calls(tmp_path, monkeypatch):
    """The commands that a shell was given, from a folder of its own; none must be."""
    given = []
    monkeypatch.setattr(os, "system", given.append)
    monkeypatch.chdir(tmp_path)
    yield given
    assert given == []


@pytest.fixture
def good():
    ase.io.write("good.extxyz", Atoms("Ar2", [[0, 0, 0], [0, 0, 3.8]]))
    return "good.extxyz"


def run(*arguments):
    return CliRunner().invoke(cli.app, ["relax", *map(str, arguments)])


def refused(*arguments):
    """The lines that a command prints that does nothing else."""
    before = sorted(os.listdir())
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert sorted(os.listdir()) == before
    lines = done.stderr.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


class Call:
    """What calls a shell where it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch x",)


PROGRAM = b"import os\nos.system('touch x')\nimages = []\n"
ATOM = "1\nProperties=species:S:1:pos:R:3\n{} 0 0 0\n"
HUGE = 10**12

FILES = {
    "empty.extxyz": (b"", "the file is empty"),
    "empty.cif.gz": (gzip.compress(b""), "it holds no structure"),
    "noise.extxyz": (b"\x00\xff\xfe", "line 1: expected a number of atoms"),
    "noise.extxyz.gz": (b"\x00\xff\xfe", "Not a gzipped file"),
    "noise.xyz.xz": (b"\x00\xff\xfe", "ended before the end"),
    "cut.cif.bz2": (bz2.compress(b"x" * 999)[:-5], "ended before the end"),
    "noise.traj": (b"- of UlmASE-Trajectory" + b"\xff" * 99, "noise.traj cannot be read"),
    "endless.restart": ("&GLOBAL\n", "it has a section without an end"),
    "noise.db": (b"\x00\xff\xfe", "it is no database of ASE"),
    "empty.json": (b"{}", "ASE does not know this kind of file"),
    "deep.json": (b"[" * 100_000, "too deep in one another"),
    "deuterium.extxyz": (ATOM.format("D"), "there is no element D"),
    "deuterium.xyz": (ATOM.format("Qq"), "there is no element Qq"),
    "POSCAR": ("D\n1\n5 0 0\n0 5 0\n0 0 5\nD\n1\nDirect\n0 0 0\n", "there is no element D"),
    "cut.extxyz": ("3\n\nAr 0 0 0\nAr 0 0 4\n", "ends after 2 of the 3 atoms of its structure 0"),
    "second.xyz": (ATOM.format("Ar") + "5\n\n", "ends after 0 of the 5 atoms of its structure 1"),
    "many.extxyz": (ATOM.format("Ar").replace("1", str(HUGE), 1), f"1 of the {HUGE} atoms"),
    "fewer.extxyz": (ATOM.format("Ar").replace("1", "-3", 1), "cannot have -3 atoms"),
    "short.xyz": ("2\n\nAr 0 0 0\nAr 0 0", "an atom has 3 values, and its Properties say 4"),
    "column.extxyz": (
        ATOM.format("Ar") + "1\nProperties=species:S:1:pos:R:3:tags:I:1\nAr 0 0 0\n",
        "an atom has 4 values, and its Properties say 5, in its structure 1",
    ),
    "words.extxyz": ("Ar 0 0 0\n", "line 1: expected a number of atoms, got 'Ar 0 0 0'"),
    "huge.cfg": (f"Number of particles = {HUGE}\n", "more memory than a file of its size"),
    "huge.cube": (f"\n\n{HUGE} 0 0 0\n1 1 0 0\n1 0 1 0\n1 0 0 1\n", "more memory than a file"),
    "huge.json": (
        f'{{"1": {{"numbers": {{"__ndarray__": [[{HUGE}], "int64", [1]]}}}}, "ids": [1]}}',
        "more memory than a file",
    ),
    "program.py": (PROGRAM, "program.py cannot be read"),
    "pickle.pckl": (pickle.dumps(Call()), "ASE does not know this kind of file"),
    "pickle.traj": (pickle.dumps(Call()), "pickle.traj cannot be read"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_has_a_reason(name, tmp_path):
    content, reason = FILES[name]
    data = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(data)
    (line,) = refused(name, "--potential", ARGON)
    assert line.startswith(f"{name} cannot be read: ")
    assert reason in line
    assert (tmp_path / name).read_bytes() == data


READABLE = [form for form in ioformats.values() if form.can_read]


@pytest.mark.parametrize("content", [pickle.dumps(Call()), PROGRAM], ids=["pickle", "program"])
def test_no_format_runs_what_a_file_holds(content, tmp_path, calls):
    """Neither by its ending nor by the name that ASE has for files of it."""
    names = {f"a.{ending}" for form in READABLE for ending in form.extensions}
    names |= {glob.replace("*", "a") for form in READABLE for glob in form.globs}
    assert len(names) > 40
    for name in sorted(names):
        (tmp_path / name).write_bytes(content)
    lines = [line for name in sorted(names) for line in refused(name, "--potential", ARGON)]
    assert len(lines) == len(names)
    np.save("a.npy", np.array([Call()], dtype=object), allow_pickle=True)
    assert "does not know" in refused("a.npy", "--potential", ARGON)[0]
    assert calls == []


def test_all_that_cannot_be_read_are_named_with_their_reasons(good, tmp_path):
    (tmp_path / "deuterium.extxyz").write_text(ATOM.format("D"))
    (tmp_path / "empty.extxyz").touch()
    (tmp_path / "folder").mkdir()
    files = ["deuterium.extxyz", good, "empty.extxyz", "folder", "none.extxyz", f"{good}@4"]
    assert refused(*files, "--potential", ARGON) == [
        "deuterium.extxyz cannot be read: there is no element D",
        "empty.extxyz cannot be read: the file is empty",
        "folder cannot be read: it is a folder in which no file can be seen",
        "none.extxyz cannot be read: No such file or directory",
        f"{good}@4 cannot be read: it holds no structure of that number",
        "1 of 6 can be read: --skip-unreadable goes on with these",
    ]


def test_many_that_cannot_be_read_are_counted():
    lines = refused(*[f"{k}.xyz" for k in range(30)], "--potential", ARGON)
    assert len(lines) == 11
    assert lines[-1] == "20 more of 30 cannot be read"


def test_what_is_no_plain_file_is_not_read(tmp_path):
    os.mkfifo("pipe.xyz")
    (tmp_path / "device.xyz").symlink_to("/dev/zero")
    for name, kind in {"pipe.xyz": "a named pipe", "device.xyz": "a device"}.items():
        assert refused(name, "--potential", ARGON) == [
            f"{name} cannot be read: it is {kind}, not a file"
        ]
    for kind in ("tersoff", "stillinger-weber", "eam"):
        end = ",format=alloy" if kind == "eam" else ""
        assert "it is a device" in refused("no.xyz", "--potential", f"{kind}:device.xyz{end}")[0]


def test_a_database_of_another_program_is_left_alone(tmp_path):
    """ASE would add its tables."""
    with sqlite3.connect("other.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
    database.close()
    before = (tmp_path / "other.db").read_bytes()
    assert "no table of systems" in refused("other.db", "--potential", ARGON)[0]
    assert (tmp_path / "other.db").read_bytes() == before


def test_a_name_stands_for_a_file_whatever_it_begins_with(tmp_path):
    """Of some, ASE would ask a server of databases."""
    for name in ("postgres.extxyz", "mysql.extxyz", "mariadb.extxyz"):
        (tmp_path / name).write_text(ATOM.format("D"))
        assert "there is no element D" in refused(name, "--potential", ARGON)[0]


def test_files_in_the_middle_of_being_written_are_read_up_to_there(tmp_path):
    (tmp_path / "cut.extxyz").write_text(ATOM.format("Ar") + "3\n\nAr 0 0 0\n")
    path = tmp_path / "cut.extxyz"
    for images in ("0", "0:1"):
        assert len(read_structures(Path(f"{path}@{images}"))) == 1
    for images in ("1", "-1", ":", "0:2", "-1:"):
        with pytest.raises(Unreadable, match="ends after 1 of the 3 atoms"):
            read_structures(Path(f"{path}@{images}"))


# --- what is printed

NAMES = ["[red]x[.extxyz", ":smile:.extxyz", "[b]x[b].extxyz", "a  b.extxyz", "\\[bold]x.extxyz"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name, tmp_path):
    assert refused(name, "--potential", ARGON)[0].startswith(f"{name} cannot be read")
    (tmp_path / name).write_text(ATOM.format("Ar"))
    assert refused(f"{name}@7", "--potential", ARGON)[0].startswith(f"{name}@7 cannot")


def test_the_summary_has_names_as_they_are(good, wells, tmp_path):
    for name in NAMES[:2]:
        (tmp_path / good).rename(name)
        options = ["--max-steps", 0, "--fmax", 0, "--output", f"{name[:-7]}-out.extxyz"]
        done = run(name, "--potential", ARGON, *options)
        assert f"{name} (Ar2): max_steps reached" in done.stdout
        assert f"Written: {name[:-7]}-out.extxyz" in done.stdout
        (tmp_path / name).rename(good)


def test_what_moves_a_cursor_is_escaped():
    assert shown("a\x1b[31mb\r\n\tc\u202e\udcff Å é") == r"a\x1b[31mb\r\n\tc\u202e\xff Å é"
    assert refused("a\x1b[2J\nb.xyz", "--potential", ARGON)[0].startswith(r"a\x1b[2J")


def test_a_line_fits_a_screen():
    line = shown("begin" + "x" * 10**6 + "end")
    assert len(line) < LONGEST + 10
    assert line.startswith("begin")
    assert line.endswith("end")


# --- texts

HOSTILE = "__import__('os').system('touch x')"

POTENTIALS = {
    HOSTILE: "unknown potential",
    "os.system:touch": "unknown potential 'os.system'",
    f"lennard-jones:epsilon={HOSTILE},sigma=1": 'epsilon must be a number, got "__import__',
    "lennard-jones:epsilon=os.system": "epsilon must be a number, got 'os.system'",
    "lennard-jones:__class__=1": "no option '__class__'",
    "lennard-jones:Ar,__init__=1": "no option '__init__'",
    "lennard-jones:epsilon=1,sigma=3,cutoff=true": "cutoff must be a number, got true",
    "lennard-jones:epsilon=true,sigma=3": "epsilon must be a number, got true",
    "lennard-jones:epsilon.Ar=false,sigma=3": "epsilon must be a number, got false",
    "lennard-jones:epsilon=1_0,sigma=3": "epsilon must be a number, got '1_0'",
    "lennard-jones:epsilon=1,epsilon.Ar=2,sigma=3": "epsilon is given for all atoms, and for some",
    "lennard-jones:epsilon.Ar=1,epsilon=2,sigma=3": "epsilon is given for all atoms, and for some",
    "lennard-jones:epsilon.Ar-Kr-Xe=1,sigma=3": "'Kr-Xe' is no chemical element",
    "lennard-jones:epsilon=" + "9" * 5000 + ",sigma=3": "epsilon must be finite, got inf",
    "morse:r0=true": "r0 must be a number, got true",
    "buckingham:BKS,cutoff=true": "cutoff must be a number, got true",
    "buckingham:q.Na=true,alpha=0.2": "q must be a number, got true",
    "buckingham:os.system": "os.system",
    "zhou:Cu,cutoff=true": "cutoff must be a number, got true",
    "zhou:__import__": "__import__",
    "emt:os.system": "no parameters for 'os.system'",
    "eam:": "got no file",
    "eam:~nobody-of-this-name/x.eam.alloy": "cannot be read: No such file",
    "eam:a,format=pickle": "format must be one of alloy, fs, eam",
    "eam:program.py": "format must be one of alloy, fs, eam",
    "tersoff:program.py": "program.py, line 1",
    "stillinger-weber:program.py": "program.py, line 1",
    "stillinger-weber:program.py,elements=os.system": "program.py has no os.system",
    "tersoff:/": "it is a folder, not a file",
    "": "unknown potential ''",
}


@pytest.mark.parametrize("text", POTENTIALS, ids=lambda text: text[:40])
def test_a_text_names_potentials_and_their_numbers(text, good, tmp_path):
    (tmp_path / "program.py").write_bytes(PROGRAM)
    (line,) = refused(good, "--potential", text)
    assert POTENTIALS[text] in line
    assert len(line) < LONGEST + 10


CELLS = {
    HOSTILE: "unknown cell",
    "frechet:mask=os.system": "mask must be six digits",
    "frechet:pressure=true": "pressure must be a number, got true",
    "strain:pressure=os.system": "pressure must be a number, got 'os.system'",
    "unit-cell:cell_factor=true": "cell_factor must be a number, got true",
    "frechet:__class__=1": "no option '__class__'",
}


@pytest.mark.parametrize("text", CELLS)
def test_a_text_names_cells_and_their_numbers(text):
    with pytest.raises((TypeError, ValueError), match=r"must be|unknown cell|no option") as error:
        cell_from(text)
    assert CELLS[text] in str(error.value)


@pytest.mark.parametrize("what", [None, 3, Atom("Ar")], ids=["None", "a number", "an atom"])
def test_what_is_no_list_of_structures_is_refused(what):
    argon = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5)
    expected = f"must be a list of ase.Atoms, got a {type(what).__name__}"
    for call in (relax, evaluate, relax_stream, neb):
        with pytest.raises(TypeError, match=expected):
            list(call(what, argon))


def test_an_iterator_that_changes_its_object_is_refused():
    """All entries would be its last state. A list may hold an object several times."""
    argon, pair = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=8.5), Atoms("Ar2")

    def moved():
        for length in (3.5, 4.0, 4.5):
            pair.positions[1, 0] = length
            yield pair

    for call in (evaluate, relax, vibrations, lambda paths, model: neb([paths], model)):
        with pytest.raises(ValueError, match=r"structure 1 of the input .* yield atoms.copy\(\)"):
            call(moved(), argon)
    assert len(set(evaluate((a.copy() for a in moved()), argon).energies)) == 3
    assert len(evaluate([pair] * 3, argon)) == 3


@pytest.mark.parametrize("make", [LennardJones, Morse], ids=["lennard-jones", "morse"])
def test_true_and_texts_are_no_numbers_of_potentials(make):
    for value in (True, np.True_, "1.0"):
        with pytest.raises(TypeError, match="epsilon must be a real number"):
            make(epsilon=value)
        with pytest.raises(TypeError, match="epsilon must be a real number"):
            make(epsilon={"Ar": value})


HEADER = ["", "", "", "1 Cu", "{} 0.1 {} 0.01 5.5", "29 63.5 3.6 fcc"]


@pytest.mark.parametrize(
    ("densities", "distances"),
    [(HUGE, 500), (500, HUGE), ("9" * 400, 500), (500, "9" * 4000), ("9" * 5000, 5)],
    ids=["densities", "distances", "float", "integer", "digits"],
)
def test_a_header_allocates_nothing_that_its_file_does_not_hold(densities, distances, tmp_path):
    text = "\n".join(HEADER).format(densities, distances) + "\n" + "0.0 " * 1500
    (tmp_path / "a.eam.alloy").write_text(text)
    with pytest.raises(ValueError, match=r"a.eam.alloy, line 5: .*(do not fit|an integer)"):
        potential_from("eam:a.eam.alloy")


OPTIMIZERS = {
    "lbfgs:memory=1000000000,is_bounded=false": "memory=1000000000, the pairs that L-BFGS keeps",
    "a.json": "more than 100 deep in one another",
    "~nobody-of-this-name/a.json": "No such file",
}


@pytest.mark.parametrize("text", OPTIMIZERS, ids=lambda text: text[:30])
def test_a_setting_that_asks_for_too_much_is_refused(text, good, tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    (line,) = refused(good, "--potential", ARGON, "--optimizer", text)
    assert OPTIMIZERS[text] in line
    assert len(line) < LONGEST + 10
