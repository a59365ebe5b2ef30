"""The command line: what it writes, prints and leaves with.

Structures relax in wells (tests/support/wells.py), so that hardly anything is compiled. From end to
end, with the engine, run: a relaxation that is compared with the library's, one with a structure
that fails, `verify`, `evaluate` with a potential and with a calculator, and two further ones of
exhaustive tests in processes of their own.
"""

import csv
import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import ase.io
import jax
import numpy as np
import pytest
import typer
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms, FixCartesian, Hookean
from ase.db import connect
from ase.units import GPa
from typer.testing import CliRunner

import basinax
from basinax import cli
from basinax.atoms import (
    Frechet,
    LennardJones,
    MaxAtomForce,
    MaxStress,
    UnitCell,
    cell_from,
    evaluate,
    potential_from,
    relax,
)
from basinax.cli import setup
from basinax.cli.values import pressure_of
from basinax.config.specs import optimizer_from
from basinax.engine.relax_stream import relax_items
from basinax.structures.formats.formats import form_to_read

pytestmark = pytest.mark.usefixtures("few_shapes", "wells")

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"

DEFAULTS = {"fmax": [0.05] * 3, "max_steps": [500] * 3}
"""One a structure, as the command line has them: a number would be another program."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two files in the working folder: one of two images, one of one."""
    monkeypatch.chdir(tmp_path)
    crystals = [bulk("Ar", "fcc", a, cubic=True) for a in (5.2, 5.4)]
    for k, crystal in enumerate(crystals):
        crystal.rattle(0.1, seed=k)
    ase.io.write("crystals.extxyz", crystals)
    ase.io.write("dimer.xyz", Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]]))
    return ["crystals.extxyz", "dimer.xyz"]


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def table(name):
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))


def timeless(name):
    """A table without the column that no run repeats."""
    return [{k: x for k, x in row.items() if k != "seconds"} for row in table(name)]


def alike(found, wished) -> bool:
    """Whether settings are these, whichever kind of numbers they hold."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wished), strict=True)
    return jax.tree.structure(found) == jax.tree.structure(wished) and all(
        np.array_equal(x, y) for x, y in pairs
    )


def test_relax_writes_what_the_library_computes(files, engine):
    done = run(
        *["relax", *files, "--potential", ARGON, "--optimizer", "fire:maxstep=0.1"],
        *["--fmax", 0.01, "--output", "out.extxyz", "--table", "out.csv"],
    )
    assert done.exit_code == 0, done.output
    starts = [a for name in files for a in ase.io.iread(name, index=":")]
    settings = DEFAULTS | {"fmax": [0.01] * 3}
    expected = relax(starts, LennardJones(0.0104, 3.40, 8.5), basinax.FIRE(maxstep=0.1), **settings)
    written = ase.io.read("out.extxyz", index=":")
    rows = table("out.csv")
    assert len(written) == len(rows) == 3
    for k, (atoms, row) in enumerate(zip(written, rows, strict=True)):
        assert np.abs(atoms.positions - expected.atoms[k].positions).max() < 1e-7
        assert atoms.get_potential_energy() == pytest.approx(expected.energies[k], abs=1e-8)
        assert atoms.get_forces().shape == (len(atoms), 3)
        assert atoms.info["relax_status"] == row["status"] == "converged"
        assert float(row["energy_eV"]) == expected.energies[k]
        assert float(row["fmax_eV_per_A"]) == expected.fmax[k]
        assert int(row["steps"]) == atoms.info["relax_steps"] == expected.steps[k]
    assert [row["source"] for row in rows] == [
        "crystals.extxyz@0",
        "crystals.extxyz@1",
        "dimer.xyz",
    ]
    assert "converged" in done.stdout
    assert "out.extxyz" in done.stdout


def structures(files):
    return [atoms for file in files for atoms in ase.io.iread(file, index=":")]


def test_everything_that_is_asked_for_must_hold(files, wells):
    asked = {"--rms-force": 1e-3, "--energy-change": 1e-7, "--max-displacement": 1e-3}
    options = [str(x) for pair in asked.items() for x in pair]
    done = run("relax", *files, "--potential", ARGON, "--fmax", 0.02, *options)
    assert done.exit_code == 0, done.output
    criterion = (
        basinax.MaxForce(np.zeros(1))  # each structure has its own
        & basinax.RMSForce(1e-3)
        & basinax.EnergyChange(1e-7)
        & basinax.MaxDisplacement(1e-3)
    )
    assert alike(wells.run.settings.criterion, criterion)
    assert [structure.own for structure in wells.structures] == [(0.02, 500)] * 3


def test_forces_need_not_matter(files, wells):
    done = run("relax", *files, "--potential", ARGON, "--fmax", "inf", "--table", "out.csv")
    assert done.exit_code == 0, done.output
    assert [structure.own for structure in wells.structures] == [(np.inf, 500)] * 3
    assert [row["steps"] for row in table("out.csv")] == ["0"] * 3


def test_cells_move_as_they_are_asked_to(files, wells):
    options = ["--cell", "frechet:mask=110001", "--pressure", "0.5GPa", "--stress-tolerance", 1e-4]
    done = run("relax", *files, "--potential", ARGON, *options, "--output", "out.extxyz")
    assert done.exit_code == 0, done.output
    cell = Frechet(pressure=0.5 * GPa, mask=(1, 1, 0, 0, 0, 1))
    assert [structure.cell for structure in wells.structures] == [cell, cell, None]
    criterion = MaxAtomForce(np.zeros(1)) & MaxStress(1e-4)
    assert alike(wells.run.settings.criterion, criterion)
    for ours in ase.io.iread("out.extxyz", index=":"):
        assert ("stress" in ours.calc.results) == ours.pbc.any()


def test_a_structure_may_bring_its_own_options(tmp_path, monkeypatch, wells):
    monkeypatch.chdir(tmp_path)
    free, held = "unit-cell", "unit-cell:mask=110001"
    own = [(free, 0.002, 0.02, 50), ("none", 0.0, 0.01, 3), (held, 0.0, 0.03, 50)]
    starts = []
    for cell, pressure, limit, most in own:
        starts.append(bulk("Ar", "fcc", 5.4, cubic=True))
        starts[-1].rattle(0.1, seed=1)
        starts[-1].info.update(how=cell, external_pressure=pressure, limit=limit, most=most)
    ase.io.write("in.extxyz", starts)
    done = run(
        *["relax", "in.extxyz", "--potential", ARGON, "--table", "out.csv", "--cell", "info:how"],
        *["--pressure", "info:external_pressure", "--fmax", "info:limit"],
        *["--max-steps", "info:most"],
    )
    assert done.exit_code == 0, done.output
    cells = [UnitCell(pressure=0.002), None, UnitCell(mask=(1, 1, 0, 0, 0, 1))]
    assert [structure.cell for structure in wells.structures] == cells
    assert [structure.own for structure in wells.structures] == [(0.02, 50), (0.01, 3), (0.03, 50)]
    assert [row["steps"] for row in table("out.csv")][1] == "3"


def test_trajectories_go_to_a_folder(files):
    for form in ("traj", "extxyz"):
        options = [
            "--trajectory",
            f"{form}s",
            "--trajectory-interval",
            4,
            "--output",
            f"{form}.xyz",
        ]
        options += ["--optimizer", "fire", "--trajectory-format", form]
        done = run("relax", *files, "--potential", ARGON, *options)
        assert done.exit_code == 0, done.output
        frames = [ase.io.read(f"{form}s/{k}.{form}", index=":") for k in range(3)]
        assert [frame.info["step"] for frame in frames[0]][:3] == [0, 4, 8]
        assert {frame.info["relax_source"] for frame in frames[1]} == {"crystals.extxyz@1"}


def test_all_wrong_options_are_named_together_with_missing_files_and_outputs_in_the_way(files):
    wrong = ("--potential", "emtt", "--optimizer", "firee", "--cell", "frechett")
    unknown = ("potential 'emtt'", "optimizer 'firee'", "cell 'frechett'")
    Path("relaxed.extxyz").touch()
    for given, besides in (
        ([*files, "--table", "t.csv", "--output", "o.xyz"], ()),
        ([*files], ("relaxed.extxyz exists",)),
        (["missing.xyz", "--overwrite"], ("missing.xyz cannot be read",)),
    ):
        done = run("relax", *given, *wrong)
        lines = [x for x in done.output.splitlines() if x.startswith("error: ")]
        assert done.exit_code == 2, done.output
        expected = [*besides, *(f"unknown {x}" for x in unknown)]
        assert all(text in line for text, line in zip(expected, lines, strict=True)), lines


def test_a_second_run_gives_the_same_files(files):
    for name in ("a", "b"):
        run(
            "relax",
            *files,
            "--potential",
            ARGON,
            "--output",
            f"{name}.xyz",
            "--table",
            f"{name}.csv",
        )
    assert timeless("a.csv") == timeless("b.csv")
    assert Path("a.xyz").read_text() == Path("b.xyz").read_text()


def constrained(*constraints) -> Atoms:
    atoms = bulk("Ar", "fcc", 5.2, cubic=True)
    atoms.rattle(0.1, seed=3)
    atoms.set_constraint(list(constraints))
    return atoms


@pytest.mark.parametrize("name", ["slab.extxyz", "POSCAR", "slab.traj"])
def test_constraints_of_a_file_are_kept_and_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    ase.io.write(name, constrained(FixAtoms([0, 2])))
    start = ase.io.read(name)
    options = ["--potential", ARGON, "--fmax", 0.01, "--output", "out.extxyz"]
    done = run("relax", name, *options)
    assert done.exit_code == 0, done.output
    relaxed = ase.io.read("out.extxyz")
    assert relaxed.constraints[0].index.tolist() == [0, 2]
    apart = np.abs(relaxed.positions - start.positions).max(1)
    assert apart[[0, 2]].max() < 1e-8  # the digits that extxyz has
    assert apart[[1, 3]].min() > 1e-3
    assert np.linalg.norm(relaxed.get_forces(), axis=1).max() < 0.01
    assert np.linalg.norm(relaxed.get_forces(apply_constraint=False), axis=1).max() > 0.01


def test_constrained_structures_have_the_same_bits_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kinds = [FixAtoms([0]), FixCartesian([1, 2], (1, 0, 1))]
    ase.io.write("in.extxyz", [constrained(*kinds), constrained(), constrained(kinds[0])])
    done = run("verify", "in.extxyz", "--potential", ARGON, "--sample", 3)
    assert done.exit_code == 0, done.output
    assert "3 of 3 structures have the same bits" in done.stdout


def test_what_was_found_is_written_in_place_of_info_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = constrained()
    start.info |= {"energy": 1.0, "stress": np.ones((3, 3)), "name": "cell"}
    start.set_array("forces", np.ones((4, 3)))
    ase.io.write("in.traj", start)
    for name in ("out.extxyz", "out.xyz", "out.traj"):
        options = ["--output", name, "--table", f"{name}.csv", "--fmax", 0.01]
        done = run("relax", "in.traj", "--potential", ARGON, *options)
        assert done.exit_code == 0, done.output
        written, row = ase.io.read(name), table(f"{name}.csv")[0]
        assert written.get_potential_energy() == pytest.approx(float(row["energy_eV"]), abs=1e-8)
        assert np.linalg.norm(written.get_forces(), axis=1).max() < 0.01
        assert "stress" not in written.calc.results
        assert written.info["name"] == "cell"


@pytest.mark.parametrize(
    ("selection", "sources"),
    [
        ("@1", ["crystals.extxyz@1"]),
        ("@1:", ["crystals.extxyz@1"]),
        ("@0:2", ["crystals.extxyz@0", "crystals.extxyz@1"]),
        ("@-2:", ["crystals.extxyz@-2:, image 0", "crystals.extxyz@-2:, image 1"]),
    ],
)
def test_some_images_of_a_file_are_relaxed(files, selection, sources):
    name = f"crystals.extxyz{selection}"
    done = run("relax", name, "--potential", ARGON, "--max-steps", 0, "--table", "out.csv")
    assert [row["source"] for row in table("out.csv")] == sources, done.output
    written = ase.io.read("relaxed.extxyz", index=":")
    for atoms, start in zip(written, ase.io.iread(name), strict=True):
        np.testing.assert_allclose(atoms.positions, start.positions, atol=1e-7)


def test_a_name_may_hold_the_sign_of_a_selection(files):
    Path("dimer.xyz").rename("ar@2.xyz")
    done = run("relax", "ar@2.xyz", "--potential", ARGON)
    assert done.exit_code == 0, done.output


def test_a_format_that_goes_by_the_ending_is_written(files):
    done = run("relax", *files, "--potential", ARGON, "--output", "out.db")
    assert done.exit_code == 0, done.output
    assert [len(a) for a in ase.io.iread("out.db", index=":")] == [
        len(a) for a in structures(files)
    ]


def test_a_database_gives_and_takes_pairs(files):
    with connect("in.db") as database:
        for k, atoms in enumerate(ase.io.iread("crystals.extxyz", index=":")):
            database.write(atoms, limit=0.02, name=f"m{k}", data={"x": k})
    options = ["--fmax", "info:limit", "--max-steps", 0, "--output", "out.db"]
    done = run("relax", "in.db", "--potential", ARGON, *options)
    assert done.exit_code == 1, done.output
    rows = list(connect("out.db").select())
    status = {"relax_status": "max_steps", "relax_steps": 0}
    assert [row.key_value_pairs for row in rows] == [
        {"limit": 0.02, "name": f"m{k}"}
        | status
        | {"relax_source": f"in.db@{k}", "relax_number": k}
        for k in range(2)
    ]
    assert [row.data for row in rows] == [{"x": 0}, {"x": 1}]
    assert all(row.forces.shape == (4, 3) for row in rows)


@pytest.mark.parametrize(
    ("output", "arrays", "warning"),
    [
        ("POSCAR_relaxed.extxyz", {}, "$"),
        (
            "out.xsf",
            {},
            ".*XCrySDen Structure File does not keep energy, energies of atoms, status, steps$",
        ),
        ("out.traj", {"label": np.ones(2)}, ".*does not keep array 'label' .of in.xyz@0.$"),
        ("out.traj", {"initial_charges": np.ones(2)}, ".*does not use charges .of in.xyz@0 and 1"),
        ("out.traj", {"masses": np.full(2, 38.0)}, ".*does not use masses of isotopes"),
    ],
    ids=["nothing", "results", "an array", "charges", "masses"],
)
def test_losses_are_named_in_one_warning(files, output, arrays, warning):
    start = ase.io.read("dimer.xyz")
    start.arrays |= arrays
    ase.io.write("in.xyz", [start, start])
    options = ["--fmax", "inf", "--output", output, "--quiet"]
    done = run("relax", "in.xyz", "--potential", ARGON, *options)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert len(lines) == (warning != "$")
    assert re.match(warning, "".join(lines)), lines
    form = form_to_read(Path(output))
    assert [len(atoms) for atoms in form.read(Path(output))] == [2, 2]


BAD = {
    "no file": (["nowhere.xyz"], {}, "nowhere.xyz cannot be read: No such file"),
    "no structure file": (["broken.extxyz"], {}, "broken.extxyz cannot be read"),
    "a NaN": (["nan.xyz"], {}, "nan.xyz .*position of atom 1 is not finite"),
    "a constraint that is not kept": (
        ["bonds.traj"],
        {"--output": "out.traj"},
        "bonds.traj .*constraints .Hookean",
    ),
    "an unknown species": (["iron.xyz"], {}, "no parameters for Fe.*iron.xyz"),
    "an unknown potential": (None, {"--potential": "lenard-jones"}, "did you mean 'lennard-jones'"),
    "an unknown option": (None, {"--potential": "lennard-jones:epsilom=1"}, "'epsilom'.*known are"),
    "a bad number": (None, {"--potential": "lennard-jones:epsilon=1,sigma=-1"}, "sigma must be"),
    "no file of tables": (None, {"--potential": "eam:no.eam"}, "no.eam cannot be read"),
    "an unknown optimizer": (None, {"--optimizer": "fyre"}, "did you mean 'fire'"),
    "an unknown search": (
        None,
        {"--optimizer": "lbfgs-line-search:search=armjo"},
        "did you mean 'armijo'",
    ),
    "no search": (
        None,
        {"--optimizer": "lbfgs-line-search:search=3"},
        "search must be MoreThuente",
    ),
    "a limit as optimizer": (None, {"--optimizer": "maxstepsize"}, "unknown optimizer"),
    "no optimizer file": (None, {"--optimizer": "no.json"}, "no.json cannot be read"),
    "an unknown setting": (None, {"--optimizer": "fire:dtt=1"}, "did you mean 'dt'"),
    "an unknown cell": (None, {"--cell": "frechett"}, "did you mean 'frechet'"),
    "a pressure of no cell": (None, {"--pressure": 0.1}, "pressure needs a cell that moves"),
    "a tolerance of a fixed cell": (
        None,
        {"--stress-tolerance": 0.1, "--cell": "none"},
        "stress-tolerance needs a cell that moves",
    ),
    "an end and none": (None, {"--strict": None, "--skip-unreadable": None}, "remove one of them"),
    "a stress of no cell": (None, {"--stress-tolerance": 0.1}, "stress-tolerance needs a cell"),
    "an endless pressure": (
        None,
        {"--cell": "strain", "--pressure": "nan"},
        "pressure must be finite, got nan",
    ),
    "a word as pressure": (
        None,
        {"--cell": "frechet:pressure=high"},
        "cell frechet: pressure must be a number, got 'high'",
    ),
    "a word as switch": (
        None,
        {"--cell": "frechet:constant_volume=maybe"},
        "constant_volume must be True or False, got 'maybe'",
    ),
    "a word as number": (
        None,
        {"--potential": "lennard-jones:epsilon=deep,sigma=2"},
        "potential lennard-jones: epsilon must be a number, got 'deep'",
    ),
    "no such image": (
        ["crystals.extxyz@5"],
        {},
        "crystals.extxyz@5 cannot be read: it holds no structure of that number",
    ),
    "two pressures": (
        None,
        {"--cell": "frechet:pressure=1", "--pressure": 2},
        "both give a pressure",
    ),
    "no selection": (["bonds.traj@x"], {}, "bonds.traj@x cannot be read: expected FILE@START:STOP"),
    "no step": (["crystals.extxyz@::0"], {}, "expected FILE@START:STOP:STEP with a step other"),
    "nothing in info": (None, {"--fmax": "info:limit"}, "crystals.extxyz@0 has no limit in its"),
    "a word in info": (["word.xyz"], {"--fmax": "info:limit"}, "has 'small', which is not usable"),
    "a folder in a file": (None, {"--output": "word.xyz/x.xyz"}, "x.xyz cannot be written: Not a"),
    "a file as folder": (None, {"--trajectory": "word.xyz"}, "word.xyz cannot be written to"),
    "a folder": (None, {"--table": "."}, "is a folder"),
    "an input as output": (None, {"--output": "dimer.xyz"}, "dimer.xyz is an input"),
    "some of an input as output": (
        ["crystals.extxyz@0"],
        {"--output": "crystals.extxyz"},
        "crystals.extxyz is an input",
    ),
    "an unknown format": (None, {"--output": "out.foo"}, "knows no format for .foo"),
    "a format that is never packed": (
        None,
        {"--output": "out.json.gz"},
        "out.json.gz: ASE JSON database file is never packed: choose a name without .gz",
    ),
    "a format that wants more": (
        ["dimer.xyz"],
        {"--output": "out.pwi"},
        "results are not written as Quantum espresso in file: try .extxyz, which `ase convert`",
    ),
    "atoms that a format loses": (
        ["dimer.xyz", "crystals.extxyz"],
        {"--output": "out.pdb"},
        "out.pdb: crystals.extxyz@0: Protein Data Bank holds the same atoms in all structures",
    ),
    "a shared site": (["shared.traj"], {}, "shared.traj .Ar2. has a site of 0.6 Ar and 0.4 Kr"),
    "more than ASE reads": (
        ["two.sdf"],
        {},
        "two.sdf cannot be read: it holds 2 structures, and ASE reads one",
    ),
    "one structure a file": (None, {"--output": "POSCAR"}, "holds one structure, not 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(files, name):
    Path("broken.extxyz").write_text("no structure\n")
    ase.io.write("nan.xyz", Atoms("Ar2", [[0, 0, 0], [0, 0, np.nan]]))
    ase.io.write("iron.xyz", Atoms("Fe2", [[0, 0, 0], [0, 0, 2.5]]))
    word = Atoms("Ar2", [[0, 0, 0], [0, 0, 4]], info={"limit": "small"})
    ase.io.write("word.xyz", word, format="extxyz")
    ase.io.write("bonds.traj", constrained(Hookean(0, 1, 5.0, 4.0)))
    shares = {"occupancy": {"0": {"Ar": 0.6, "Kr": 0.4}}}
    ase.io.write("shared.traj", Atoms("Ar2", [[0, 0, 0], [0, 0, 4]], info=shares))
    ase.io.write("two.sdf", Atoms("Ar2", [[0, 0, 0], [0, 0, 4]]))
    Path("two.sdf").write_text(Path("two.sdf").read_text() * 2)
    before = sorted(os.listdir())
    inputs, options, message = BAD[name]
    settings = {"--potential": "lennard-jones:Ar", "--output": "out.xyz"} | options
    done = run("relax", *(inputs or files), *(x for pair in settings.items() for x in pair))
    assert done.exit_code == 2
    assert sorted(os.listdir()) == before
    text = " ".join(done.stderr.split())
    assert text.startswith("error: ")
    assert re.search(message, text), text


@pytest.mark.parametrize("name", ["optimizer.json", "optimizer.toml"])
def test_an_optimizer_is_read_from_a_file(files, name, wells):
    optimizer = basinax.chain(
        basinax.ClipByGlobalNorm(0.5), basinax.FIRE(), basinax.MaxStepSize(0.1)
    )
    basinax.write_config(basinax.to_config(optimizer), name)
    done = run("relax", *files, "--potential", ARGON, "--optimizer", name)
    assert done.exit_code == 0, done.output
    assert alike(wells.run.settings.optimizer, optimizer)


def test_one_failure_is_reported_and_the_others_are_relaxed(files, engine):
    ase.io.write("overlap.xyz", Atoms("Ar2", [[0, 0, 0], [0, 0, 0]]))
    done = run("relax", "overlap.xyz", files[0], "--potential", ARGON, "--table", "out.csv")
    assert done.exit_code == 0
    assert [row["status"] for row in table("out.csv")] == ["not_finite", *["converged"] * 2]
    assert "overlap.xyz (Ar2): energy or forces became NaN" in done.stdout


def test_it_leaves_with_1_if_nothing_converged(files):
    done = run("relax", *files, "--potential", ARGON, "--max-steps", 1, "--fmax", 1e-6)
    assert done.exit_code == 1
    assert "Nothing converged" in done.stderr
    assert len(ase.io.read("relaxed.extxyz", index=":")) == 3


def test_quiet_prints_nothing(files):
    done = run("relax", *files, "--potential", ARGON, "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_verify_finds_the_same_bits(files, engine):
    done = run("verify", *files, "--potential", ARGON, "--sample", 3)
    assert done.exit_code == 0, done.output
    assert "3 of 3 structures have the same bits" in done.stdout


def test_verify_has_no_sample_of_a_negative_seed(files):
    done = run("verify", *files, "--potential", ARGON, "--seed", -1)
    assert done.exit_code == 2
    assert "--seed" in done.stderr


def test_verify_takes_all_arguments_of_relax(files):
    """And writes nothing."""
    before = sorted(os.listdir())
    outputs = {"--output": "a.xyz", "--table": "a.csv", "--trajectory": "a"}
    outputs |= {"--trajectory-interval": 5, "--trajectory-format": "extxyz"}
    names = [list(inspect.signature(command).parameters) for command in (cli.relax, cli.verify)]
    assert set(names[0]) < set(names[1])
    arguments = [x for pair in outputs.items() for x in pair]
    done = run("verify", *files, "--potential", ARGON, "--sample", 1, *arguments)
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir()) == before


def test_verify_leaves_with_1_if_a_bit_differs(files, monkeypatch):
    def one_bit_off(atoms, **settings):
        result = relax(atoms, **settings)
        if len(atoms) > 1:
            result.atoms[2].positions[0, 0] = np.nextafter(result.atoms[2].positions[0, 0], 1)
        return result

    monkeypatch.setattr(setup, "relax_atoms", one_bit_off)
    done = run("verify", *files, "--potential", ARGON, "--sample", 3)
    assert done.exit_code == 1
    assert "dimer.xyz" in done.stdout
    assert "differs in positions" in done.stdout
    assert "2 of 3 structures" in done.stdout


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGINT", "SIGINT"], ["SIGTERM"]], ids=str)
def test_an_interrupted_command_goes_on_to_the_same_file(files, monkeypatch, signals):
    """A signal that comes twice at a time is one."""

    def interrupted(*arguments, **how):
        for name in signals:
            signal.raise_signal(getattr(signal, name))
        return relax_items(*arguments, **how)

    options = ["--potential", ARGON, "--fmax", 0.01]
    assert run("relax", *files, *options, "--output", "whole.extxyz").exit_code == 0
    with monkeypatch.context() as patched:
        patched.setattr(setup, "relax_items", interrupted)
        done = run("relax", *files, *options, "--output", "out.extxyz")
    assert done.exit_code == 130, done.output
    assert "Interrupted: basinax resume out.extxyz.run goes on" in done.stderr
    assert not Path("out.extxyz").exists()
    done = run("relax", *files, *options, "--output", "out.extxyz")
    assert done.exit_code == 0, done.output
    assert Path("out.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
    assert not Path("out.extxyz.run").exists()


@pytest.mark.exhaustive  # processes of their own, each of which imports and compiles
def test_the_installed_command_prints_what_a_terminal_can_show(files):
    """And warnings without their place in some library."""
    start = ase.io.read("dimer.xyz")
    start.set_initial_charges([1, -1])
    start.write("odd.traj")
    command = [sys.executable, "-m", "basinax", "relax", "odd.traj", "--potential", ARGON]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert "Written: relaxed.extxyz" in done.stdout
    assert done.stderr.startswith("warning: ")
    assert "site-packages" not in done.stderr


def test_evaluate_writes_what_it_finds(files):
    options = ["--output", "out.extxyz", "--table", "out.csv", "--stress"]
    crystals = ase.io.read("crystals.extxyz", ":")
    for atoms in crystals:  # as an earlier run has written them
        atoms.info |= {"relax_status": "converged", "relax_steps": 3, "relax_image": 1}
    ase.io.write("crystals.extxyz", crystals)
    done = run("evaluate", *files, "--potential", ARGON, *options)
    assert done.exit_code == 0, done.output
    assert "3 of 3 structures evaluated" in done.stdout
    found = evaluate(structures(files), potential_from(ARGON), stress=True)
    written = list(ase.io.iread("out.extxyz", index=":"))
    for k, atoms in enumerate(written):
        np.testing.assert_allclose(atoms.get_forces(), found.forces[k], atol=1e-7)
        assert float(table("out.csv")[k]["energy_eV"]) == found.energies[k]
    assert "stress" in written[0].calc.results and "stress" not in written[2].calc.results
    assert written[1].info["relax_source"] == "crystals.extxyz@1"
    assert not {"relax_status", "relax_steps", "relax_image"} & written[1].info.keys()


def test_evaluate_names_what_a_calculator_cannot_do(files):
    ase.io.write("w.extxyz", Atoms("W2", [(0, 0, 0), (2, 0, 0)]))
    calculator = "ase:ase.calculators.emt:EMT"
    done = run("evaluate", "w.extxyz", "--potential", calculator, "--workers", 1)
    assert done.exit_code == 1, done.output
    assert "0 of 1 structures evaluated" in done.stdout and "w.extxyz (W2): " in done.stdout


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("potentials", "lennard-jones  epsilon=1.0, sigma=1.0, cutoff=3 sigma"),
        ("potentials", "nequix  nequix:FILE"),
        ("optimizers", "bfgs  maxstep=0.2, alpha=70.0"),
        ("optimizers", "lbfgs-line-search  memory=100"),
        ("optimizers", "internal-lbfgs  maxstep=1.0"),
        ("cells", "unit-cell  pressure=0.0, mask=none"),
    ],
)
def test_what_there_is_is_listed_with_its_defaults(kind, line):
    done = run("list", kind)
    assert done.exit_code == 0 and any(x.startswith(line) for x in done.stdout.splitlines())


def test_every_listed_optimizer_and_cell_is_understood():
    names = [line.split()[0] for line in run("list", "optimizers").stdout.splitlines()]
    for name in (x for x in names if not x.startswith("test-")):  # which other tests register
        assert optimizer_from(type(optimizer_from(name)).__name__) == optimizer_from(name)
    for name in (line.split()[0] for line in run("list", "cells").stdout.splitlines()):
        assert cell_from(type(cell_from(name)).__name__) == cell_from(name)


@pytest.mark.parametrize(
    ("text", "value"), [("5GPa", 5 * GPa), ("-1.5 kbar", -0.15 * GPa), ("2e-3", 0.002)]
)
def test_a_pressure_may_have_a_unit(text, value):
    assert pressure_of(text) == pytest.approx(value, rel=1e-15)
    with pytest.raises(typer.BadParameter, match="GPa or kbar behind it, got '5 bar'"):
        pressure_of("5 bar")


@pytest.mark.parametrize(("given", "shown"), [("5GPa", '"5GPa"'), ("0.003", "0.003")])
def test_printed_settings_keep_the_unit_of_a_pressure(files, given, shown):
    done = run("relax", "dimer.xyz", "--potential", ARGON, "--pressure", given, "--print-config")
    assert f"pressure = {shown}\n" in done.stdout


def test_help_has_a_short_form():
    assert run("relax", "-h").stdout == run("relax", "--help").stdout != ""


@pytest.mark.exhaustive  # in processes of their own, as in tests/numerics/test_cache.py
def test_programs_last_and_change_no_result(files, tmp_path):
    """The second command loads what the first one has compiled."""
    environment = os.environ | {"BASINAX_CACHE": str(tmp_path / "programs")}
    counts = []
    for name in ("cold", "warm"):
        command = [sys.executable, "-m", "basinax", "relax", "dimer.xyz", "--potential", ARGON]
        command += ["--verbose", "--output", f"{name}.extxyz", "--table", f"{name}.csv"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        said = re.search(r"programs: (\d+) compiled in .* s, (\d+) loaded", done.stderr)
        assert said is not None, done.stderr
        counts.append([int(x) for x in said.groups()])
        for word in (
            f"basinax {basinax.__version__}",
            "precision: float64",
            "batches: 1",
            "reading",
        ):
            assert word in done.stderr
    (compiled, none), (few, loaded) = counts
    assert none == 0 < loaded <= compiled
    assert few < compiled
    assert Path("cold.extxyz").read_bytes() == Path("warm.extxyz").read_bytes()
    assert timeless("cold.csv") == timeless("warm.csv")


def test_the_installed_command_prints_its_version():
    command = [sys.executable, "-m", "basinax", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == basinax.__version__


def test_without_the_extra_it_names_the_install_command():
    blocked = "import sys; sys.modules['typer'] = None; from basinax.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'pip install "basinax[atoms]"' in done.stderr
