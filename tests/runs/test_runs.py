"""A run of the command line: its options in files, its inputs, its outputs, and its record."""

import csv
import json
import os
import tomllib
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms, FixCartesian, FixedLine, FixedPlane, FixSymmetry
from ase.units import GPa
from typer.testing import CliRunner

import basinax
from basinax import cli
from basinax.atoms import LennardJones
from basinax.cli.config import RECORD
from basinax.cli.values import NAMES, chosen
from basinax.config.specs import optimizer_from
from basinax.config.tables import read_config, toml_of, write_config
from stand_in import Relaxation

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The working folder, with two files."""
    monkeypatch.chdir(tmp_path)
    crystals = [bulk("Ar", "fcc", a, cubic=True) for a in (5.2, 5.4)]
    crystals[1].info["external_pressure"] = 0.002
    ase.io.write("crystals.extxyz", crystals)
    ase.io.write("dimer.xyz", Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]]))


@pytest.fixture
def relaxation(monkeypatch):
    relaxation = Relaxation()
    relaxation.put_into(monkeypatch)
    return relaxation


def run(command, *arguments, stdin=None):
    return CliRunner().invoke(cli.app, [command, *map(str, arguments)], input=stdin)


def done(command, *arguments, code=0, stdin=None):
    ran = run(command, *arguments, stdin=stdin)
    assert ran.exit_code == code, ran.output
    return ran


def refused(*arguments):
    """The text of an error, where nothing was written."""
    before = sorted(os.listdir())
    ran = done("relax", *arguments, code=2)
    assert sorted(os.listdir()) == before
    return " ".join(ran.stderr.split())


def printed(command, *arguments):
    return done(command, *arguments, "--print-config").stdout


# --- options in files

RUN = f"""
files = ["crystals.extxyz", "dimer.xyz@0"]
potential = "{ARGON}"
cell = "frechet:mask=110001"
pressure = "info:external_pressure,default=5GPa"
fmax = 0.02
max_steps = 7
quiet = true
fix_atoms = "0-1"

[optimizer]
name = "chain"

[[optimizer.transforms]]
name = "clip-by-global-norm"
max_norm = 10.0

[[optimizer.transforms]]
name = "fire"
"""


def test_a_config_file_holds_a_run_which_the_command_line_overrides(relaxation):
    Path("run.toml").write_text(RUN)
    ran = done("relax", "--config", "run.toml", "--max-steps", 9, "--output", "a.extxyz")
    assert ran.stdout == ""
    assert len(relaxation.atoms) == 3
    settings = relaxation.settings
    clip = basinax.ClipByGlobalNorm(10.0)
    assert settings["optimizer"] == basinax.chain(clip, basinax.FIRE())
    assert [item.own[-1] for item in relaxation.items] == [9] * 3
    assert [item.cell.pressure for item in relaxation.items] == [5 * GPa, 0.002, 5 * GPa]
    assert [c.index.tolist() for c in relaxation.atoms[0].constraints] == [[0, 1]]


def test_what_is_printed_gives_the_same_run_again(relaxation):
    Path("run.toml").write_text(RUN)
    first = printed("relax", "--config", "run.toml", "--cell", "strain", "--log", "x.log")
    Path("again.toml").write_text(first)
    assert printed("relax", "--config", "again.toml") == first
    write_config(tomllib.loads(first), "again.json")
    assert printed("relax", "--config", "again.json") == first
    table = tomllib.loads(first)
    assert (table["cell"], table["fmax"], table["max_steps"]) == ("strain", 0.02, 7)
    assert table["pressure"] == "info:external_pressure,default=5GPa"
    assert not relaxation.is_done


@pytest.mark.parametrize("command", ["evaluate", "verify", "probe"])
def test_every_command_prints_and_reads_its_options(command):
    Path("a.toml").write_text(printed(command, "dimer.xyz", "--potential", ARGON))
    assert printed(command, "--config", "a.toml") == Path("a.toml").read_text()


def test_config_files_that_options_name_stand_in_what_is_printed():
    basinax.write_config(basinax.to_config(basinax.FIRE(maxstep=0.1)), "fire.json")
    Path("model.toml").write_text('potential = "ase:ase.calculators.emt:EMT"\nworkers = 2\n')
    text = printed("relax", "a.cif", "--potential", "model.toml", "--optimizer", "fire.json")
    table = tomllib.loads(text)
    assert table["potential"] == "ase:ase.calculators.emt:EMT"
    assert table["workers"] == 2
    assert table["optimizer"]["maxstep"] == 0.1


def test_an_optimizer_may_be_a_table_in_text():
    optimizer = basinax.chain(basinax.ClipByGlobalNorm(0.5), basinax.FIRE())
    assert optimizer_from(json.dumps(basinax.to_config(optimizer))) == optimizer


WRONG = {
    "an unknown name": ("fmx = 1", "a.toml has no option 'fmx', did you mean 'fmax'? Known are:"),
    "another spelling": ("max-steps = 1", "no option 'max-steps', did you mean 'max_steps'?"),
    "a negative number": ("fmax = -1", "'--fmax': a.toml: must be 0 or more"),
    "a word as number": ('max_steps = "many"', "a.toml: .*many"),
    "half a step": ("max_steps = 1.5", "a.toml: .*1.5"),
    "a table as number": ("fmax = { a = 1 }", "a.toml: "),
    "a list as number": ("fmax = [1]", "a.toml: fmax must be a number or a text, got [1]"),
    "a switch as number": ("fmax = true", "a.toml: fmax must be a number or a text, got true"),
    "a word as switch": ('quiet = "yes"', "a.toml: quiet must be true or false, got 'yes'"),
    "a number as file": ("files = [1]", "a.toml: files must be a list of names, got [1]"),
    "no such precision": ('dtype = "float16"', "a.toml: "),
    "no TOML": ("fmax 1", "a.toml: Expected '=' after a key"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_config_file_is_named(name):
    text, message = WRONG[name]
    Path("a.toml").write_text(text)
    arguments = [] if text.startswith("files") else ["dimer.xyz"]
    error = refused(*arguments, "--potential", "emt", "--config", "a.toml")
    *parts, last = message.split(".*")
    assert all(part in error for part in (*parts, last)), error


def test_a_config_file_that_is_not_there_is_named():
    assert "no.toml cannot be read: No such file" in refused("a.cif", "--config", "no.toml")
    assert "must end in .json or .toml" in refused("a.cif", "--config", "dimer.xyz")


def test_what_a_config_file_has_run_is_said_before(relaxation):
    Path("models.py").write_text("from basinax.atoms import EMT\nprint('imported')\nmake = EMT\n")
    text = 'potential = "python:models.py:make"\nfiles = "copper.xyz"\n'
    Path("run.toml").write_text(text)
    ase.io.write("copper.xyz", bulk("Cu"))
    ran = done("relax", "--config", "run.toml", "--quiet")
    assert "run.toml names python:models.py:make, whose code runs now" in ran.stderr
    options = ["--potential", "python:models.py:make", "--quiet", "--overwrite"]
    assert "whose code" not in done("relax", "copper.xyz", *options).stderr


def test_a_structure_without_a_value_has_the_default(relaxation):
    options = ["--potential", ARGON, "--cell", "info:how,default=strain", "--overwrite"]
    done("relax", "dimer.xyz", *options, "--fmax", "info:limit,default=0.03")
    (item,) = relaxation.items
    assert type(item.cell).__name__ == "Strain"
    assert item.own[0] == 0.03
    error = refused("dimer.xyz", *options, "--fmax", "info:limit,default=small")
    assert "Invalid value for '--fmax'" in error
    assert "add ,default=VALUE" in refused("dimer.xyz", *options, "--fmax", "info:limit")


# --- inputs


def test_a_folder_stands_for_its_files(relaxation):
    Path("in/deeper").mkdir(parents=True)
    for name in ("b.xyz", "a.xyz", ".hidden.xyz"):
        ase.io.write(f"in/{name}", Atoms("Ar2", [[0, 0, 0], [0, 0, 4]]), format="xyz")
    done("relax", "in", "--potential", ARGON)
    written = ase.io.read("relaxed.extxyz", ":")
    assert [a.info["relax_source"] for a in written] == ["in/a.xyz", "in/b.xyz"]


def test_structures_come_from_standard_input(relaxation):
    options = ["--potential", ARGON, "--output", "a.extxyz"]
    done("relax", "-", *options, stdin=Path("crystals.extxyz").read_text())
    written = ase.io.read("a.extxyz", ":")
    assert [a.info["relax_source"] for a in written] == ["stdin.extxyz@0", "stdin.extxyz@1"]
    ran = run("relax", "-", *options, "--overwrite", stdin="2\n\nAr 0 0 0\n")
    assert "- cannot be read: the file ends after 1 of the 2 atoms" in ran.stderr


def test_files_that_cannot_be_read_are_skipped_where_asked(relaxation):
    Path("broken.xyz").write_text("no structure\n")
    files = ["broken.xyz", "dimer.xyz", "nowhere.xyz"]
    error = refused(*files[:2], "--potential", ARGON)
    assert "1 of 2 can be read: --skip-unreadable goes on with these" in error
    ran = done("relax", *files, "--potential", ARGON, "--skip-unreadable", "--json")
    assert ran.stderr.count("warning: ") == 2
    skipped = json.loads(ran.stdout)["skipped"]
    assert skipped[0].startswith("broken.xyz cannot be read: line 1: expected a number of atoms")
    assert read_config("relaxed.extxyz.run.json")["record"]["skipped"] == skipped
    options = ["--potential", ARGON, "--skip-unreadable", "--overwrite"]
    assert "broken.xyz cannot" in refused("broken.xyz", *options)


# --- atoms that are fixed

VALUES = {
    "x": np.array([0.0, 1.0, 2.0, 3.0]),
    "y": np.array([0.0, 0.0, 5.0, 5.0]),
    "z": np.array([2.0, 2.5, 3.0, -1.0]),
    "tag": np.array([1, 1, 2, 2]),
}

CHOICES = {
    "0": [0],
    "0-2": [0, 1, 2],
    "3,0-1": [0, 1, 3],
    "z < 2.5": [0, 3],
    "z <= 2.5": [0, 1, 3],
    "-2 < z - 1 < 1.25 and not tag == 2": [0],
    "x + y >= 7 or z == 2": [0, 2, 3],
    "(x > 0.5 and x < 2.5) or tag != 1": [1, 2, 3],
    "2 * x / 4 > 1": [3],
    "1 < 2": [0, 1, 2, 3],
}


@pytest.mark.parametrize("text", CHOICES)
def test_a_text_chooses_atoms(text):
    assert chosen(text, VALUES, 4) == CHOICES[text]
    assert tuple(VALUES) == NAMES


HOSTILE = [
    "",
    "z",
    "z <",
    "q < 1",
    "z < 2.5 & x > 1",
    "z.real < 1",
    "__import__('os').system('touch x') < 1",
    "(lambda: 1)() < z",
    "z ** 9 < 1",
    "'z' < 1",
    "True < z",
    "z in [1]",
    "z < 1j",
    "z if z else x",
    "(" * 300 + "z" + ")" * 300 + " < 1",
    "-" * 900 + "z < 1",
    "z < 1" + " or z < 1" * 200,
    "1-",
    "0:3",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_chooses_no_atoms_is_refused(text):
    error = refused("dimer.xyz", "--potential", ARGON, f"--fix-atoms={text}")
    assert "expected numbers such as 0-3,7, or a condition on x, y, z, tag" in error


def test_atoms_that_are_chosen_do_not_move(relaxation):
    options = ["--potential", ARGON, "--fix-atoms", "z < 1"]
    done("relax", "crystals.extxyz", "dimer.xyz", *options)
    fixed = [[c.index.tolist() for c in a.constraints] for a in relaxation.atoms]
    assert fixed == [[[0, 3]], [[0, 3]], [[0]]]
    written = ase.io.read("relaxed.extxyz", ":")
    assert [type(a.constraints[0]) for a in written] == [FixAtoms] * 3


def test_a_choice_that_no_structure_has_is_refused():
    options = ["--potential", ARGON, "--fix-atoms"]
    error = refused("crystals.extxyz", "dimer.xyz", *options, "0-3")
    assert "--fix-atoms 0-3: dimer.xyz: there is no atom 3 among 2, which count from 0" in error
    assert "3-0 is no range" in refused("dimer.xyz", *options, "3-0")
    assert "holds of no atom of any structure" in refused("dimer.xyz", *options, "z > 50")


def test_crystals_keep_their_symmetry(relaxation):
    done("relax", "crystals.extxyz", "dimer.xyz", "--potential", ARGON, "--symmetrize", "--quiet")
    kinds = [[type(c) for c in a.constraints] for a in relaxation.atoms]
    assert kinds == [[FixSymmetry], [FixSymmetry], []]


@pytest.mark.parametrize(
    "constraint, is_kept",
    {
        "all atoms": (FixAtoms(range(4)), True),
        "some atoms": (FixAtoms([1, 2]), False),
        "a plane": (FixedPlane([0, 1, 2, 3], [0, 0, 1]), False),
        "a line of one atom": (FixedLine([2], [0, 0, 1]), False),
        "two axes": (FixCartesian([0, 1, 2, 3], [True, True, False]), False),
        "three axes": (FixCartesian([0, 1, 2, 3], [True, True, True]), True),
    }.values(),
)
def test_symmetrize_refuses_what_moves_held_atoms(relaxation, constraint, is_kept):
    crystal = bulk("Ar", "fcc", 5.2, cubic=True)
    crystal.set_constraint(constraint)
    crystal.write("held.traj")
    given = ["held.traj", "--potential", ARGON, "--symmetrize"]
    if is_kept:
        done("relax", *given, "--quiet")
    else:
        assert "a symmetry of held.traj takes atom" in refused(*given)


def test_atoms_that_symmetry_would_move_though_they_are_held_are_refused(relaxation):
    options = ["--potential", ARGON, "--symmetrize"]
    error = refused("crystals.extxyz", *options, "--fix-atoms", "0")
    assert "a symmetry of crystals.extxyz@0 takes atom 0 to atom" in error
    crystal = bulk("Ar", "fcc", 5.2, cubic=True)
    crystal.set_constraint(FixAtoms([1, 2]))
    ase.io.write("held.extxyz", crystal)
    assert "a symmetry of held.extxyz takes atom" in refused("held.extxyz", *options)
    done("relax", "held.extxyz", *options, "--fix-atoms", "0-3", "--quiet")


def test_symmetrize_keeps_directions_that_each_symmetry_keeps(relaxation):
    crystal = bulk("Ti", "hcp", 2.95, 4.68)
    crystal.set_constraint(FixedPlane([0, 1], [0, 0, 1]))
    crystal.write("held.traj")
    done("relax", "held.traj", "--potential", ARGON, "--symmetrize", "--quiet")
    kinds = [type(c) for c in relaxation.atoms[0].constraints]
    assert kinds == [FixedPlane, FixSymmetry]


# --- outputs


def test_what_exists_is_replaced_only_where_asked(relaxation):
    options = ["dimer.xyz", "--potential", ARGON, "--table", "t.csv", "--trajectory", "tr"]
    Path("t.csv").write_text("old")
    error = refused(*options)
    assert error == "error: t.csv exists: add --overwrite, or choose another place"
    assert not relaxation.is_done
    done("relax", *options, "--overwrite")
    assert Path("t.csv").read_text() != "old"
    Path("tr").mkdir(exist_ok=True)
    Path("tr/0.traj").write_text("old")
    assert "relaxed.extxyz and 2 more exist: add --overwrite" in refused(*options)
    assert "tr/0.traj exists: add --overwrite" in refused(
        "dimer.xyz", "--potential", ARGON, "--trajectory", "tr", "--output", "new.xyz"
    )
    done("relax", *options, "--overwrite")


def test_folders_of_outputs_are_made(relaxation):
    places = {"--output": "a/b/out.extxyz", "--table": "c/t.csv", "--log": "d/run.log"}
    arguments = [x for pair in places.items() for x in pair]
    done("relax", "dimer.xyz", "--potential", ARGON, *arguments)
    assert len(ase.io.read("a/b/out.extxyz", ":")) == 1
    assert Path("c/t.csv").exists()
    assert Path("d").is_dir()


def test_each_input_has_an_output_of_its_name(relaxation):
    for name in ("one", "two"):
        Path(name).mkdir()
        ase.io.write(f"{name}/POSCAR", bulk("Ar"), format="vasp")
    files = ["crystals.extxyz@1", "dimer.xyz", "crystals.extxyz@0"]
    ran = done("relax", *files, "--potential", ARGON, "--output-dir", "out/new", "--quiet")
    assert sorted(os.listdir("out/new")) == ["crystals.extxyz", "dimer.xyz", "run.json"]
    written = ase.io.read("out/new/crystals.extxyz", ":")
    assert [a.info["relax_number"] for a in written] == [0, 2]
    assert ran.stderr == ""
    done("relax", "one/POSCAR", "two", "--potential", ARGON, "--output-dir", "alike")
    assert sorted(str(x) for x in Path("alike").rglob("POSCAR")) == [
        "alike/one/POSCAR",
        "alike/two/POSCAR",
    ]
    Path("dimer.xyz").rename("stdin.extxyz")
    options = ["--potential", ARGON, "--output-dir", "x"]
    ran = run("relax", "stdin.extxyz", "-", *options, stdin=Path("crystals.extxyz").read_text())
    assert ran.exit_code == 2 and "rename the file of that name" in ran.stderr
    error = refused("one", "--potential", ARGON, "--output-dir", "x", "--output", "y.xyz")
    assert "--output and --output-dir both say where structures go" in error


def test_a_table_is_printed(relaxation):
    options = ["--potential", ARGON, "--table", "t.csv"]
    done("relax", "dimer.xyz", *options)
    ran = done("relax", "dimer.xyz", *options[:2], "--table", "-", "--overwrite")
    tables = [list(csv.reader(x.splitlines())) for x in (ran.stdout, Path("t.csv").read_text())]
    cut = tables[0][0].index("seconds")
    assert [row[:cut] for row in tables[0]] == [row[:cut] for row in tables[1]]
    assert "Written: relaxed.extxyz" in ran.stderr
    error = refused("dimer.xyz", *options[:2], "--table", "-", "--json", "--overwrite")
    assert "--json and --table - go to standard output alike" in error


def test_a_summary_is_printed_for_programs(relaxation):
    ran = done("relax", "crystals.extxyz", "--potential", ARGON, "--json", "--quiet")
    summary = json.loads(ran.stdout)
    assert (summary["structures"], summary["left"]) == (2, 0)
    assert summary["counts"] == {"converged": 2}
    assert summary["steps"] == {"median": 3.0, "most": 3}
    assert summary["not_converged"] == []
    assert summary["written"] == ["relaxed.extxyz"]
    assert Path(summary["record"]).exists()


def test_evaluate_has_the_same_outputs():
    options = ["--potential", ARGON, "--output-dir", "out", "--json"]
    summary = json.loads(done("evaluate", "dimer.xyz", *options).stdout)
    assert summary["counts"] == {"evaluated": 1, "failed": 0}
    assert summary["written"] == ["out/dimer.xyz"]
    record = read_config(summary["record"])["record"]
    assert (record["command"], record["results"]) == ("evaluate", summary["counts"])
    printed = done("evaluate", "dimer.xyz", *options[:2], "--table", "-")
    assert printed.stdout.startswith("source,formula,atoms,energy_eV")
    assert "1 of 1 structures evaluated" in printed.stderr
    error = done("evaluate", "dimer.xyz", *options[:2], code=2).stderr
    assert "evaluated.extxyz and 1 more exist: add --overwrite" in error


# --- the record


def test_a_record_says_how_an_output_was_made_and_makes_it_again(relaxation):
    options = ["--potential", ARGON, "--optimizer", "fire:maxstep=0.1", "--fmax", "inf"]
    done("relax", "crystals.extxyz", "dimer.xyz", *options)
    table = read_config("relaxed.extxyz.run.json")
    record = table["record"]
    assert table["optimizer"] == "fire:maxstep=0.1"
    assert record["command"] == "relax"
    assert [x["structures"] for x in record["inputs"]] == [2, 1]
    assert all(len(x["sha256"]) == 64 for x in record["inputs"])
    assert record["versions"]["basinax"] == basinax.__version__
    assert {"jax", "jaxlib", "numpy", "python", "system"} <= set(record["versions"])
    assert record["precision"] == "float64"
    assert record["started"] <= record["ended"]
    assert record["results"] == {"converged": 3}
    assert {"device", "cores", "cache", "folder"} <= set(record)
    first, relaxation.items = relaxation.settings, []
    done("relax", "--config", "relaxed.extxyz.run.json", "--overwrite")
    assert len(relaxation.atoms) == 3
    assert relaxation.settings["optimizer"] == first["optimizer"]
    assert read_config("relaxed.extxyz.run.json") | {"record": 0} == table | {
        "record": 0,
        "overwrite": True,
    }


def test_a_record_is_toml_as_well(relaxation):
    done("relax", "dimer.xyz", "--potential", ARGON)
    table = read_config("relaxed.extxyz.run.json")
    text = toml_of(table, (RECORD,))
    assert tomllib.loads(text) == table
    assert "\n[record.versions]\nbasinax = " in text
    Path("run.toml").write_text(text)
    assert printed("relax", "--config", "run.toml") == printed(
        "relax", "dimer.xyz", "--potential", ARGON
    )


# --- one run that is computed


def test_a_log_has_a_line_a_step_and_structure():
    options = ["--potential", ARGON, "--fmax", 1e-9, "--max-steps", 2, "--log", "run.log"]
    done("relax", "dimer.xyz", *options, code=1)
    title, *lines = Path("run.log").read_text().splitlines()
    assert title.split() == ["structure", "step", "time", "energy_eV", "fmax_eV_per_A"]
    assert [line.split()[:2] for line in lines] == [["0", str(k)] for k in range(3)]
    dimer = ase.io.read("dimer.xyz")
    dimer.calc = LennardJones(0.0104, 3.40, 8.5).calculator()
    assert float(lines[0].split()[3]) == pytest.approx(dimer.get_potential_energy(), abs=1e-6)
    assert float(lines[0].split()[4]) == pytest.approx(np.abs(dimer.get_forces()).max(), abs=1e-6)
