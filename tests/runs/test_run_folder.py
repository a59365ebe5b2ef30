"""Runs that are kept in folders: whatever ends them, they go on and end in the same bits.

Structures relax in wells (tests/support/wells.py). From end to end, with the engine, run: one run
that is kept, one that is killed, which is a process of its own, and the curves of one.
"""

import dataclasses
import datetime
import errno
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import ase.db
import ase.db.sqlite
import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.cell import Cell
from ase.constraints import FixAtoms, FixBondLengths, Hookean
from ase.db.core import object_to_bytes
from ase.spacegroup import Spacegroup
from typer.testing import CliRunner

import wells
from basinax import Status, cli
from basinax.cli import storing
from basinax.cli.console import TerminalStream, with_sources
from basinax.cli.inputs import count
from basinax.cli.values import Shard, seconds_of, shard_of
from basinax.config.tables import read_config, toml_of
from basinax.engine import relax_stream
from basinax.engine.relax_stream import refused
from basinax.results.record import Relaxed
from basinax.results.snapshot import Template
from basinax.results.table import columns_of
from basinax.results.trajectory import Recorder
from basinax.runs import stores
from basinax.runs.folder import RunFolder
from basinax.runs.results import Results
from basinax.runs.rows import not_kept
from basinax.runs.stores import SQLiteFile
from basinax.structures.formats.formats import Form

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"
N = 9

pytestmark = pytest.mark.usefixtures("few_shapes", "wells")


def cluster(seed: int) -> Atoms:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    corners = np.indices((2, 2, 2)).reshape(3, 8).T[:n]
    return Atoms(f"Ar{n}", 3.8 * corners + rng.normal(0, 0.2, (n, 3)))


@pytest.fixture(autouse=True)
def _inputs(tmp_path, monkeypatch):
    """The working folder, with nine clusters in three files."""
    monkeypatch.chdir(tmp_path)
    ase.io.write("a.extxyz", [cluster(k) for k in range(4)])
    ase.io.write("b.traj", [cluster(k) for k in range(4, 8)])
    ase.io.write("c.xyz", cluster(8))
    # Few in memory, so that something is read while something is done.
    monkeypatch.setattr(relax_stream, "_most_rows", lambda run: 32)


FILES = ("a.extxyz", "b.traj", "c.xyz")


def run(command, *arguments, code=0):
    ran = CliRunner().invoke(cli.app, [command, *map(str, arguments)])
    assert ran.exit_code == code, ran.output
    return " ".join(ran.output.split())


def relax(*arguments, files=FILES, code=0):
    return run("relax", *files, "--potential", ARGON, *arguments, code=code)


def exported(folder: str) -> bytes:
    run("export", folder, "--output", "exported.extxyz", "--overwrite")
    return Path("exported.extxyz").read_bytes()


def briefs(folder: str):
    return RunFolder(folder).results.briefs()


@pytest.fixture
def whole() -> bytes:
    """The relaxed structures of a run without a folder."""
    relax("--output", "whole.extxyz")
    return Path("whole.extxyz").read_bytes()


# --- what a run keeps


def test_a_folder_keeps_the_bits_of_a_run_without_one_and_ase_reads_it(engine, whole):
    said = relax("--run", "kept")
    assert f"kept: {N} of {N} structures" in said
    assert exported("kept") == whole
    assert sorted(brief.number for brief in briefs("kept")) == list(range(N))
    rows = list(ase.db.connect("kept/results.db").select(status="converged"))
    assert len(rows) == N
    assert all(row.fmax < 0.05 for row in rows)
    run("export", "kept", "--table", "table.csv")
    run("relax", *FILES, "--potential", ARGON, "--table", "whole.csv", "--overwrite")
    tables = [Path(name).read_text().splitlines() for name in ("table.csv", "whole.csv")]
    cut = tables[0][0].split(",").index("seconds")
    for ours, theirs in zip(*tables, strict=True):
        assert ours.split(",")[:cut] == theirs.split(",")[:cut]


def test_a_run_that_goes_on_replaces_its_own_outputs_alone(monkeypatch):
    outputs = ["--output", "o.extxyz", "--table", "t.csv", "--log", "l", "--trajectory", "frames"]
    relax("--run", "kept", *outputs)
    relax("--run", "kept", *outputs)
    run("resume", "kept")
    for place in ("elsewhere/o.extxyz", "others/0.traj"):
        Path(place).parent.mkdir()
        Path(place).write_text("foreign")
    for options in (["--table", "elsewhere/o.extxyz"], [*outputs[:-1], "others"]):
        assert "exists: add --overwrite" in relax("--run", "kept", *options, code=2)
    monkeypatch.chdir("elsewhere")
    files = [f"../{name}" for name in FILES]
    options = ["--run", "../kept", "--output", "o.extxyz"]
    assert "o.extxyz exists: add --overwrite" in relax(*options, files=files, code=2)
    assert Path("o.extxyz").read_text() == Path("../others/0.traj").read_text() == "foreign"
    relax(*options, "--overwrite", files=files)
    assert len(ase.io.read("o.extxyz", ":")) == N


def test_a_run_goes_on_where_its_folder_has_moved_with_its_input(tmp_path, monkeypatch):
    first, copy, moved = (tmp_path / name for name in ("first", "copy", "moved"))
    first.mkdir()
    for name in FILES:
        Path(name).rename(first / name)
    monkeypatch.chdir(first)
    relax("--run", "runs/kept", "--output", "o.extxyz")
    whole = Path("o.extxyz").read_bytes()
    shutil.copytree(first, copy)
    (first / "o.extxyz").write_text("foreign")
    monkeypatch.chdir(copy)
    relax("--run", "runs/kept", "--output", "o.extxyz")  # its own
    Path("o.extxyz").unlink()
    run("resume", "runs/kept")
    assert (copy / "o.extxyz").read_bytes() == whole
    assert (first / "o.extxyz").read_text() == "foreign"

    def resumed(folder):
        monkeypatch.chdir(tmp_path)
        (moved / "o.extxyz").unlink()
        run("resume", folder)
        assert (moved / "o.extxyz").read_bytes() == whole

    shutil.rmtree(first)
    copy.rename(moved)
    resumed("moved/runs/kept")
    # The folder of the run alone: names stand where they did.
    (moved / "runs" / "kept").rename(tmp_path / "alone")
    resumed("alone")


def test_another_standard_input_is_another_run():
    def sent(text, *arguments):
        options = ["relax", "-", "--potential", ARGON, "--run", "kept", "--max-steps", "1"]
        ran = CliRunner().invoke(cli.app, [*options, *arguments], input=text)
        return ran.exit_code, " ".join(ran.output.split())

    one, other = "2\n\nAr 0 0 0\nAr 0 0 3.9\n", "2\n\nAr 0 0 0\nAr 0 0 4.1\n"
    sent(one)
    first = exported("kept")
    for same in (one, ""):
        assert "1 of 1 structures, 0 of them now" in sent(same)[1]
    code, said = sent(other)
    assert code == 2 and "would not end in the same bits" in said
    assert exported("kept") == first
    sent(other, "--force")
    assert Path("kept/stdin.extxyz").read_text() == other


def test_a_table_of_a_run_is_printed():
    relax("--run", "kept")
    printed = CliRunner().invoke(cli.app, ["export", "kept", "--table", "-"])
    run("export", "kept", "--table", "t.csv")
    assert printed.stdout == Path("t.csv").read_text()
    assert "name a file" in run("compare", "kept", "kept", "--table", "-", code=2)
    assert "one folder" in run("merge", "kept", "./kept", "--run", "all", code=2)


def test_the_record_is_a_config_file_that_makes_the_run_again():
    relax("--run", "kept", "--fmax", 0.1)
    record = read_config("kept/run.toml")
    assert record["fmax"] == 0.1
    assert record["record"]["results"] == {"converged": N}
    assert [Path(x["file"]).name for x in record["record"]["inputs"]] == list(FILES)
    assert {"basinax", "jax", "numpy"} <= record["record"]["versions"].keys()
    run("relax", "--config", "kept/run.toml", "--run", "again")
    assert exported("again") == exported("kept")


def test_a_row_gives_a_structure_back_in_its_bits(tmp_path):
    atoms = Atoms("OH2", np.random.default_rng(0).random((3, 3)), cell=[4, 5, 6], pbc=(1, 0, 1))
    atoms.set_tags([0, 1, 1])
    atoms.set_initial_magnetic_moments([[0, 0, 1.5]] * 3)
    atoms.set_momenta(np.random.default_rng(1).random((3, 3)))
    atoms.set_constraint(FixAtoms([1]))
    atoms.info |= {"name": "7", "weights": np.arange(3.0) / 3, "nested": {"a": [1, 2]}}
    atoms.set_array("labels", np.array(["a", "b", "c"]))
    results = {"energy": -1 / 3, "energies": np.arange(3) / 7, "forces": np.ones((3, 3)) / 9}
    results |= {"magmoms": np.float32([0.1, 0.2, 0.3]), "dipole": np.ones(3)}
    entry = Relaxed(
        template=Template.of(atoms),
        positions=atoms.positions + 1 / 3,
        cell=atoms.cell.array / 3,
        results=results,
        energy=-1 / 3,
        fmax=np.inf,
        steps=3,
        evaluations=4,
        status=Status.MAX_STEPS,
        source="7",
        initial_energy=np.nan,
        initial_volume=2.5,
        displacement=0.1,
    )
    kept = Results(SQLiteFile(tmp_path / "results.db"))
    kept.add([(12, entry)])
    ((number, back),) = kept.entries()
    assert number == 12
    assert pickle.loads(pickle.dumps(back)).atoms == entry.atoms
    assert back.atoms == entry.atoms
    assert repr(columns_of([back], Relaxed)) == repr(columns_of([entry], Relaxed))
    assert back.history is entry.history is None
    for name, array in atoms.arrays.items():
        assert back.atoms.arrays[name].dtype == array.dtype
        assert np.array_equal(back.atoms.arrays[name], entry.atoms.arrays[name])
    assert [c.todict() for c in back.atoms.constraints] == [FixAtoms([1]).todict()]
    assert back.template.info.keys() == atoms.info.keys()
    assert list(back.atoms.calc.results) == list(results)
    for name, value in results.items():
        assert np.array_equal(back.atoms.calc.results[name], value)


VALUES = {
    "charge": np.int64(-1),
    "energy": 3,
    "id": None,
    "data": {"a": {3: "x", "b": (1, np.float32(0.1))}, "c": True},
    "größe": "ü\udc80",
    "is_stable": np.bool_(True),
    "name": np.str_("7"),
    "numbers": [1, 2.5, "a", None, [1 + 2j]],
    "names": np.array([["a", "bcd"]]),
    "mixed": np.array([1, "a", None], object),
    "empty": np.zeros((0, 3)),
    "big": np.arange(3, dtype=">i4"),
    "unsigned": np.uint8(255),
    "at": datetime.datetime(2026, 1, 2, 3),
    "spacegroup": Spacegroup(227, 2),
    "box": Cell(np.eye(3)),
    "__kind__": {"__kind__": 3},
}


def test_every_kind_of_value_comes_back_as_it_was(tmp_path):
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 1]], info=VALUES | {"function": print})
    atoms.set_array("labels", np.array(["a", "bc"]))
    atoms.set_array("small", np.array([1, 2], np.int8))
    assert not_kept(atoms) == ["info 'function'"]
    results = Results(SQLiteFile(tmp_path / "results.db"))
    results.add([(0, refused(atoms, "", ""))])
    ((_, back),) = results.entries()
    assert list(back.template.info) == list(VALUES)
    for name, value in VALUES.items():
        found = back.atoms.info[name]
        assert (type(found), repr(found)) == (type(value), repr(value))
        assert getattr(found, "dtype", None) == getattr(value, "dtype", None)
    for name, array in atoms.arrays.items():
        assert back.atoms.arrays[name].dtype == array.dtype


def test_a_run_keeps_what_an_output_keeps_and_says_what_it_leaves_out():
    atoms = cluster(8)
    atoms.info |= {"charge_state": 2, "ids": [1, 2], "is_stable": False}
    ase.io.write("c.xyz", atoms, format="extxyz")
    said = relax("--run", "kept", files=["c.xyz"])
    assert "warning" not in said
    relax("--output", "whole.extxyz", files=["c.xyz"])
    assert exported("kept") == Path("whole.extxyz").read_bytes()


def test_a_report_of_a_run_says_what_it_has_found(whole):
    relax("--run", "kept")
    run("report", "kept")
    run("report", "kept", "--output", "page.html")
    assert Path("kept/report.html").is_file()
    page = Path("page.html").read_text()
    for text in ("a.extxyz@1", "converged", ARGON):
        assert text in page
    assert "page.html exists" in run("report", "kept", "--output", "page.html", code=2)
    assert "a report is a file in .html" in run("report", "kept", "--output", "x.pdf", code=2)


def test_a_report_that_cannot_be_written_is_told(monkeypatch):
    relax("--run", "kept", files=["c.xyz"])

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr("basinax.runs.folder.write_report", full)
    assert "kept/report.html cannot be written: No space left" in run("report", "kept", code=3)


def test_tables_of_a_run_have_what_could_not_be_read():
    ase.io.write("with_none.traj", [cluster(1), Atoms(), cluster(2)])
    relax(
        "--run", "kept", "--table", "table.csv", "--output", "out.extxyz", files=["with_none.traj"]
    )
    run("export", "kept", "--table", "exported.csv", "--output", "exported.extxyz")
    for table, structures in (("table.csv", "out.extxyz"), ("exported.csv", "exported.extxyz")):
        lines = Path(table).read_text().splitlines()
        assert [x.split(",")[0] for x in lines[1:]] == [f"with_none.traj@{k}" for k in range(3)]
        assert "has no atoms" in lines[2]
        assert len(ase.io.read(structures, ":")) == 2
    failed = "export", "kept", "--status", "evaluation_failed"
    assert "has no atoms" in run(*failed, "--table", "-")
    assert "none of these could be read" in run(*failed, "--output", "none.extxyz", code=2)
    assert "2 structures in both" in run("compare", "kept", "kept")


def test_what_is_not_periodic_has_no_volume_in_a_report():
    slab = cluster(4)
    slab.cell, slab.pbc = np.eye(3) * 20, (True, True, False)
    ase.io.write("slab.traj", slab)
    relax("--run", "kept", files=["slab.traj"])
    (brief,) = RunFolder("kept").results.briefs()
    assert brief.volume is None


def test_a_report_has_the_limit_the_runs_and_columns_of_info():
    labelled = [cluster(k) for k in range(2)]
    for k, atoms in enumerate(labelled):
        atoms.info["label"] = f"label {k}"
    ase.io.write("labelled.extxyz", labelled)
    relax("--run", "kept", "--fmax", 0.0375, files=["labelled.extxyz"])
    run("report", "kept", "--info", "label")
    page = Path("kept/report.html").read_text()
    for text in ("limit 0.0375", "Runs and interruptions", "<td>ended</td>", ">label 1<"):
        assert text in page
    assert "no structure has 'labl'" in run("report", "kept", "--info", "labl", code=2)
    run("export", "kept", "--table", "table.csv", "--info", "label")
    lines = Path("table.csv").read_text().splitlines()
    assert [line.rpartition(",")[2] for line in lines] == ["label", "label 0", "label 1"]


def test_two_runs_are_compared():
    relax("--run", "first", "--optimizer", "fire")
    relax("--run", "other", "--optimizer", "lbfgs", "--fmax", 0.01, "--log", "steps.log")
    said = run("compare", "first", "other", "--table", "table.json")
    for text in (
        "first: first other: other",
        "optimizer: fire in the first, lbfgs in the other",
        "fmax: 0.05 in the first, 0.01 in the other",
        f"{N} structures in both results in the first and the other: converged {N} and {N};",
        "a.extxyz@1",
        "Written: table.json",
    ):
        assert text in said
    assert "log: " not in said  # which changes no result
    rows = json.loads(Path("table.json").read_text())
    ours, theirs = (dict(RunFolder(x).results.entries()) for x in ("first", "other"))
    assert [row["evaluations"] for row in rows] == [ours[k].evaluations for k in range(N)]
    assert [row["other_evaluations"] for row in rows] == [theirs[k].evaluations for k in range(N)]
    assert "table.json exists" in run("compare", "first", "other", "--table", "table.json", code=2)
    assert "no such folder" in run("compare", "first", "nowhere", code=2)
    assert "not in .xls" in run("compare", "first", "other", "--table", "x.xls", code=2)


def test_runs_are_drawn():
    pytest.importorskip("matplotlib", reason="a plot needs matplotlib")
    relax("--run", "first")
    shutil.copytree("first", "other")
    assert "Written: first/plot.png" in run("plot", "first", "other")
    run("plot", "first", "--output", "one.svg", "--structure", 3, "--structure", 5)
    assert Path("one.svg").read_text().startswith("<?xml")
    assert "one.svg exists" in run("plot", "first", "--output", "one.svg", code=2)
    assert "no curve of structure 99" in run("plot", "first", "--structure", 99, code=2)
    assert "a plot is a file in .eps" in run("plot", "first", "--output", "x.html", code=2)


def test_a_run_whose_structures_have_all_failed_is_not_drawn(monkeypatch):
    pytest.importorskip("matplotlib", reason="a plot needs matplotlib")
    monkeypatch.setattr(wells, "DEPTH", np.nan)
    relax("--run", "fails")
    assert "fails has no finite curve" in run("plot", "fails", code=2)
    assert not Path("fails/plot.png").exists()


def test_a_run_keeps_how_its_structures_converged(engine):
    """Also where it was interrupted; the page draws it."""
    relax("--run", "kept")
    results = RunFolder("kept").results
    curves = results.curves()
    for number, entry in results.entries():
        curve = curves[number]
        assert curve.evaluations is not None
        assert (len(curve.fmax), curve.evaluations[-1]) == (entry.steps + 1, entry.evaluations)
        assert curve.fmax[-1] == np.float32(entry.fmax)
        first, last = entry.initial_energy, entry.energy
        assert curve.energies[0] - curve.energies[-1] == pytest.approx(first - last, rel=1e-5)
    assert set(curves) == set(range(N))
    relax("--run", "begun", "--shard", "1/2")
    Path("begun/run.toml").write_text(
        Path("begun/run.toml").read_text().replace('shard = "1/2"', 'shard = "1/1"')
    )
    run("resume", "begun")
    for number, curve in RunFolder("begun").results.curves().items():
        assert all(map(np.array_equal, curve, curves[number]))
    run("report", "kept", "--output", "page.html")
    page = Path("page.html").read_text()
    assert "history=True" not in page and f"spread of {N} structures" in page


# --- what ends a run


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_run_that_ends_at_a_commit_goes_on_to_the_same_bits(monkeypatch, whole, at):
    add, calls = Results.add, []

    def dying(self, entries):
        calls.append(len(entries))
        if len(calls) > at:
            raise KeyboardInterrupt
        add(self, [(number, dataclasses.replace(entry, seconds=1e3)) for number, entry in entries])

    with monkeypatch.context() as patched:
        patched.setattr(Results, "add", dying)
        CliRunner().invoke(cli.app, ["relax", *FILES, "--potential", ARGON, "--run", "kept"])
    before = {brief.number for brief in briefs("kept")}
    assert len(before) < N
    rows = sqlite_rows("kept")
    said = run("resume", "kept", "--quiet") if at else relax("--run", "kept", "--quiet")
    assert said == ""
    assert sqlite_rows("kept")[: len(rows)] == rows
    assert sorted(brief.number for brief in briefs("kept")) == list(range(N))
    assert exported("kept") == whole
    assert len(read_config("kept/run.toml")["record"]["resumed"]) == 1
    # The seconds are those of both sessions.
    assert all((brief.pairs["seconds"] >= 1e3) == bool(at) for brief in briefs("kept"))


def test_constraints_on_the_host_go_on_to_the_same_bits(monkeypatch):
    """Their energy is in the tables of a run, too."""
    starts = [molecule("CH3CH2OH") for _ in range(6)]
    for k, atoms in enumerate(starts):
        atoms.rattle(0.05, seed=k)
        bonds, spring = FixBondLengths([[0, 1]]), Hookean(0, 2, 5.0, rt=1.0 + 0.1 * k)
        atoms.set_constraint([bonds, spring][: 1 + k % 2] if k else [spring])
    ase.io.write("held.traj", starts)
    how = ["held.traj", "--potential", "ase:ase.calculators.emt:EMT", "--optimizer", "fire"]
    how += ["--max-steps", "5"]
    run("relax", *how, "--output", "whole.traj", "--table", "whole.csv", code=1)
    add, calls = Results.add, []

    def dying(self, entries):
        calls.append(len(entries))
        if len(calls) > 1:
            raise KeyboardInterrupt
        add(self, entries)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "add", dying)
        CliRunner().invoke(cli.app, ["relax", *how, "--run", "kept"])
    assert len(briefs("kept")) < len(starts)
    run("resume", "kept", code=1)
    run("export", "kept", "--output", "kept.traj", "--table", "kept.csv")
    tables = [Path(name).read_text().splitlines() for name in ("whole.csv", "kept.csv")]
    column = tables[0][0].split(",").index("energy_eV")
    ends = [ase.io.read(name, index=":") for name in ("whole.traj", "kept.traj")]
    lines = [table[1:] for table in tables]
    for a, b, one, other in zip(*ends, *lines, strict=True):
        assert np.array_equal(a.positions, b.positions)
        assert [c.todict() for c in a.constraints] == [c.todict() for c in b.constraints]
        told = [float(line.split(",")[column]) for line in (one, other)]
        assert told[0] == told[1] == pytest.approx(a.get_potential_energy(), abs=1e-6)
        assert a.get_potential_energy() == b.get_potential_energy()
    rows = {brief.number: brief.as_row()["energy_eV"] for brief in briefs("kept")}
    assert [rows[k] for k in range(6)] == [float(x.split(",")[column]) for x in lines[1]]
    assert any(a.get_potential_energy(apply_constraint=False) < told[0] for a in ends[0][-1:])


def test_a_file_whose_name_is_a_number_keeps_its_name(tmp_path):
    crystal = bulk("Ar", cubic=True)
    ase.io.write("12", crystal, format="traj")
    ase.io.write("1e5", crystal, format="traj")
    run("relax", "12", "1e5", "--potential", ARGON, "--max-steps", "0", "--run", "kept", code=1)
    assert sorted(brief.source for brief in briefs("kept")) == ["12", "1e5"]
    assert "structure 0 was 12 and is 1e5 now" in run(
        "relax",
        "1e5",
        "12",
        "--potential",
        ARGON,
        "--max-steps",
        "0",
        "--run",
        "kept",
        "--force",
        code=2,
    )


def sqlite_rows(folder: str) -> list[tuple]:
    with closing(sqlite3.connect(f"{folder}/results.db")) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name='systems'").fetchone():
            return []
        return database.execute("SELECT * FROM systems ORDER BY id").fetchall()


def test_a_time_limit_ends_a_run_in_order(whole):
    said = relax("--run", "kept", "--time-limit", "0s", "--json", code=4)
    assert '"left": 9' in said
    assert "ended" not in read_config("kept/run.toml")["record"]
    assert "The time is over: basinax resume kept goes on" in said
    assert briefs("kept") == []
    said = relax("--run", "other", "--time-limit", "0s", code=4)
    assert said.startswith("no structures have ended yet other: 0 of 9 structures")
    run("resume", "kept", "--time-limit", "1h")
    assert exported("kept") == whole


# A command that SIGTERM ends writes what it has every day in test_outputs.py.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_signal_costs_no_more_than_what_ran(engine, whole, name):
    """The first commit of a process is let through; then the signal comes."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *FILES, "--potential", ARGON, "--run", "kept"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    while "kept one" not in (line := process.stdout.readline()):
        assert line or process.poll() is None, "the run ended"
    process.send_signal(getattr(signal, name))
    said = process.communicate(timeout=120)[0]
    if name == "SIGTERM":
        assert process.returncode == 130
        assert "basinax resume kept goes on" in " ".join(said.split())
    before = len(briefs("kept"))
    assert 0 < before < N
    run("resume", "kept")
    assert len(briefs("kept")) == N
    assert exported("kept") == whole


SLOWLY = """
import sys, time
from basinax import cli
from basinax.engine import relax_stream
from basinax.runs.results import Results

relax_stream._most_rows = lambda run: 16
add = Results.add

def slowly(self, entries):
    add(self, entries)
    print("kept one", flush=True)
    time.sleep(0.5)

Results.add = slowly
sys.argv[1:1] = ["relax"]
cli.main()
"""


def test_no_part_of_a_database_is_left_where_one_is_being_made(tmp_path, monkeypatch):
    """ASE makes its tables one after another."""
    results = Results(SQLiteFile(tmp_path / "results.db"))
    statements = ase.db.sqlite.init_statements
    monkeypatch.setattr(ase.db.sqlite, "init_statements", [*statements[:2], "CREATE nothing"])
    with pytest.raises(OSError, match="cannot be used"):
        results.add([])
    assert list(tmp_path.glob("*.db")) == []
    monkeypatch.setattr(ase.db.sqlite, "init_statements", statements)
    results.add([])
    assert results.briefs() == []


def test_a_full_disk_ends_a_run_without_damage(whole):
    relax("--run", "kept", "--shard", "1/9")
    size = Path("kept/results.db").stat().st_size
    relax("--run", "full", "--time-limit", "0s", code=4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        said = run("resume", "full", code=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "results.db cannot be used: " in said
    assert "full goes on" in said
    run("resume", "full")
    assert exported("full") == whole


def test_a_folder_that_another_run_works_on_is_refused():
    with RunFolder("kept").taken():
        assert "kept is in use: another run works on it" in relax("--run", "kept", code=2)


# --- changes


def test_a_run_that_has_ended_does_not_begin_again_where_nothing_is_left():
    how = ("--log", "steps.log", "--trajectory", "frames", "--table", "t.csv")
    assert "Written: t.csv, steps.log, frames kept: 9" in relax("--run", "kept", *how)
    assert "Written: t.csv kept: 9 of 9" in run("resume", "kept")  # no step
    record = read_config("kept/run.toml")["record"]
    assert "ended" in record and not record["resumed"]


def test_no_number_passes_to_another_structure_by_force():
    Path("in").mkdir()
    shutil.move("b.traj", "in")
    relax("--run", "kept", files=["in"])
    shutil.move("c.xyz", "in")
    assert "5 of 5 structures, 1 of them now" in run("resume", "kept", "--force")
    shutil.move("a.extxyz", "in")
    said = run("resume", "kept", "--force", code=2)
    assert "structure 0 was in/b.traj@0 and is in/a.extxyz@0 now" in said
    assert len(briefs("kept")) == 5


def test_what_a_run_writes_into_a_folder_of_its_input_is_no_input():
    Path("in").mkdir()
    shutil.move("a.extxyz", "in")
    how = ("--run", "kept", "--log", "in/steps.log", "--table", "in/t.csv")
    assert "4 of 4 structures" in relax(*how, files=["in"])
    assert "4 of 4 structures" in run("resume", "kept")
    assert "in/t.csv cannot be read" in relax("--output", "x.xyz", files=["in"], code=2)


def test_a_run_does_not_go_on_with_other_settings_unless_forced():
    relax("--run", "kept", "--time-limit", "0s", code=4)
    said = relax("--run", "kept", "--fmax", 0.01, code=2)
    assert "fmax was 0.05, and is 0.01 now" in said
    assert "would not end in the same bits" in said
    said = relax("--run", "kept", "--fmax", 0.01, "--force")
    assert "warning: fmax was 0.05" in said
    assert read_config("kept/run.toml")["record"]["forced"] == ["fmax was 0.05, and is 0.01 now"]


def test_a_run_does_not_go_on_with_another_input():
    relax("--run", "kept", "--time-limit", "0s", code=4)
    ase.io.write("c.xyz", cluster(12))
    said = run("resume", "kept", code=2)
    assert "c.xyz was 'SHA-256" in said


def test_a_run_does_not_go_on_with_another_file_beside_its_input():
    for folder in ("other", "in"):
        Path(folder).mkdir()
        ase.io.write(f"{folder}/a.xyz", cluster(folder == "in"))
    Path("in/inp").write_text("UnitsXYZFiles = bohr_units\nXYZCoordinates = 'a.xyz'\n")
    relax("--run", "kept", "--time-limit", "0s", files=["in/inp"], code=4)
    run("resume", "kept")
    shutil.copy("other/a.xyz", "in/a.xyz")
    assert "a.xyz was 'SHA-256" in run("resume", "kept", code=2)


def test_a_run_does_not_go_on_with_another_version_or_shard():
    relax("--run", "kept", "--time-limit", "0s", code=4)
    record = read_config("kept/run.toml")
    record["record"]["versions"]["jax"] = "0.1.2"
    Path("kept/run.toml").write_text(toml_of(record, ("record",)))
    assert "version of jax was '0.1.2', and is " in run("resume", "kept", code=2)
    assert "shard was '1/1', and is '1/2' now" in relax("--run", "kept", "--shard", "1/2", code=2)


# --- parts of an input


def test_shards_are_put_together_to_the_whole(whole):
    for k in (1, 2, 3):
        relax("--run", f"part{k}", "--shard", f"{k}/3", "--table", f"{k}.csv")
    of_first = Path("1.csv").read_text()
    said = run("merge", "part1", "part2", "--run", "two")
    assert "two: 6 structures of 2 folders" in said
    two = RunFolder("two").read_record()["record"]
    assert two["results"] == {"converged": 6} and "ended" not in two
    run("resume", "two")
    assert Path("1.csv").read_text() == of_first
    run("merge", "part1", "part2", "part3", "--run", "three")
    assert exported("two") == exported("three") == whole
    three = RunFolder("three").read_record()["record"]
    assert three["results"] == {"converged": 9}
    assert three["ended"] == RunFolder("part3").read_record()["record"]["ended"]
    shutil.copytree("part1", "copy")
    assert "stands in part1 and in copy" in run("merge", "part1", "copy", "--run", "x", code=2)
    run("merge", "part1", "part2", "--run", "x")  # nothing of the refused one is left
    relax("--run", "other", "--fmax", 0.1, "--shard", "2/3")
    relax("--run", "none", "--shard", "10/10")  # of nine structures
    assert "fmax was 0.05" in run("merge", "part1", "other", "--run", "y", code=2)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_is_one_of_some(text):
    assert "expected K/N" in relax("--run", "kept", "--shard", text, code=2)


def test_shards_and_times_are_read():
    assert [shard_of("2/3").has(k) for k in range(4)] == [False, True, False, False]
    assert str(Shard(2, 3)) == "2/3"
    times = {"3h30m": 12600, "45m": 2700, "90s": 90, "1h0m1s": 3601, "0s": 0}
    assert {text: seconds_of(text) for text in times} == times
    for text in ("", "3", "1d", "m", "1h 2m", "-3s"):
        assert "expected a time such as" in relax("--run", "a", "--time-limit", text, code=2)


def test_a_config_keeps_the_time_as_it_was_given():
    given = ["relax", *FILES, "--potential", ARGON, "--time-limit", "1h30m", "--print-config"]
    Path("a.toml").write_text(CliRunner().invoke(cli.app, given).stdout)
    assert read_config("a.toml")["time_limit"] == "1h30m"
    assert "time_limit" in run("relax", "--config", "a.toml", "--print-config")


def test_parts_of_inputs_that_name_a_file_twice_are_parts_of_another_run():
    relax("--run", "one", "--shard", "1/2", files=["a.extxyz", "c.xyz"])
    relax("--run", "other", "--shard", "2/2", files=["a.extxyz", "a.extxyz", "c.xyz"])
    assert "are not parts of one run" in run("merge", "one", "other", "--run", "both", code=2)


@pytest.mark.parametrize("keeping", [(), ("--run", "kept")], ids=["sole", "kept"])
def test_a_terminal_in_place_of_input_is_an_error(monkeypatch, keeping):
    monkeypatch.setattr("basinax.cli.inputs.is_terminal", lambda: True)
    assert "error: - cannot be read: it is a term" in relax(*keeping, files=["-"], code=2)


# --- inputs that are not what they should be


def test_names_that_look_like_numbers_of_structures_stay():
    Path("c.xyz").rename("system 7.xyz")
    how = {"files": ["a.extxyz", "system 7.xyz"], "code": 1}
    assert "info:lim: system 7.xyz has no lim" in relax(
        "--run", "kept", "--fmax", "info:lim", **how
    )
    sources = ["a.xyz", "b.xyz", "path 0.xyz"]
    said = with_sources("system 1 (Ar), path 0.xyz, system 9; systems (0, 2): no", sources)
    assert said == "b.xyz (Ar), path 0.xyz, system 9; systems (a.xyz, path 0.xyz): no"


def test_structures_that_cannot_be_used_are_recorded_and_the_others_go_on():
    lines = Path("a.extxyz").read_text().splitlines()
    second = int(lines[0]) + 2
    lines[second + 2] = lines[second + 2].replace("Ar", "Qx", 1)
    Path("a.extxyz").write_text("\n".join(lines) + "\n")
    unusual = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]], pbc=True)
    ase.io.write("b.traj", [cluster(4), unusual, cluster(6)])
    Path("c.xyz").write_text("2\n\nAr 0 0 0\n")
    said = relax("--run", "kept")
    assert "a.extxyz@1: there is no element Qx" in said
    assert "b.traj@1" in said and "cell vectors" in said
    assert "c.xyz: the file ends after 1 of the 2 atoms" in said
    assert re.search(r"evaluation_failed 3 \S+ 0 nan", said)  # no force is finite
    found = {brief.number: brief.status for brief in briefs("kept")}
    failed = {number for number, status in found.items() if status != Status.CONVERGED}
    assert failed == {1, 5, 7}
    assert found.keys() == set(range(8))
    assert "8 of 8 structures" in run("resume", "kept")
    assert "b.traj@1 (Ar2): has pbc=" in said
    quietly = run("resume", "kept", "--quiet")
    assert quietly.startswith("a.extxyz@1: there is no element Qx b.traj@1 (Ar2): ")
    said = relax("--run", "strict", "--strict", code=2)
    assert "a.extxyz@1 cannot be read: there is no element Qx" in said


def test_a_structure_whose_own_option_does_not_fit_keeps_its_atoms():
    said = relax("--run", "kept", "--fix-atoms", "0-3", "--output", "out.extxyz")
    assert "--fix-atoms 0-3" in said
    (failed, *_) = (b for b in briefs("kept") if b.status == Status.EVALUATION_FAILED)
    assert failed.n_atoms == 3
    assert len(ase.io.read("out.extxyz", ":")) == len(briefs("kept"))


def test_a_structure_without_symmetry_to_be_found_is_recorded_and_the_others_go_on():
    good = bulk("Ar", "fcc", 5.2, cubic=True)
    twice, unfinite = good + Atoms("Ar"), good.copy()
    unfinite.cell[0, 0] = np.nan
    ase.io.write("d.traj", [twice, good, unfinite])
    said = relax("--run", "kept", "--symmetrize", "--max-steps", 1, files=["d.traj"])
    assert "--symmetrize finds no symmetry of d.traj@0: too close distance" in said
    assert "d.traj@2 (Ar4): the cell is not finite" in said
    assert len(briefs("kept")) == 3
    assert "3 structures" in run("merge", "kept", "--run", "merged")
    said = relax("--output", "x.extxyz", "--symmetrize", files=["d.traj@2"], code=2)
    assert "finds no symmetry of d.traj@2: " in said


def test_constraints_that_no_structure_takes_are_said():
    said = relax("--run", "kept", "--symmetrize")
    assert "not periodic in three directions as it is (first of a.extxyz@0)" in said
    choice = "--fix-atoms", "tag == 9"
    assert "holds of no atom of any structure" in relax("--run", "held", *choice, code=2)
    assert "holds of no atom" not in relax("--run", "part", *choice, "--shard", "1/9")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--run", "kept", "--output", "o.foo"], "o.foo: ASE knows no format for .foo"),
        (["--run", "kept", "--output", "o.json.gz"], "o.json.gz: ASE JSON database file is never"),
        (["--run", "c.xyz/kept"], "error: c.xyz/kept cannot be made: Not a directory"),
    ],
)
def test_a_run_that_cannot_be_kept_or_written_does_not_begin(options, said):
    assert said in relax(*options, code=2)
    assert not Path("kept").exists()


def test_a_count_that_is_wrong_hides_what_follows_in_its_file_alone():
    lines = Path("a.extxyz").read_text().splitlines()
    second = int(lines[0]) + 2
    del lines[second + 2]
    Path("a.extxyz").write_text("\n".join(lines) + "\n")
    said = relax("--run", "kept")
    assert "nothing behind it is read" in said
    counts = [str(brief.status) for brief in briefs("kept")]
    assert counts.count("converged") >= 6


def test_a_potential_that_serves_no_structure_is_an_error_of_the_call():
    said = relax("--run", "kept", "--optimizer", '{"name": "fire", "dt_max": -1}', code=2)
    assert "error" in said
    assert briefs("kept") == []


def test_the_address_of_a_server_is_refused_and_not_shown():
    for address in ("postgresql://me:secret@host/db", "POSTGRES://host/db?password=secret"):
        for how in (["relax", "c.xyz", "--potential", "emt", "--run"], ["resume"], ["report"]):
            said = run(*how, address, code=2)
            assert "a run is kept in a folder" in said and "secret" not in said
        assert "secret" not in run("merge", "a", "--run", address, code=2)
        assert "secret" not in run("export", address, "--table", "x.csv", code=2)


def _a_file(path: Path) -> str:
    path.write_text("")
    return "is a file"


def _another_folder(path: Path) -> str:
    path.mkdir()
    (path / "notes.txt").write_text("")
    return "is no folder of a run: it has no run.toml, but notes.txt"


def _a_damaged_record(path: Path) -> str:
    shutil.copytree("begun", path)
    (path / "run.toml").write_text("files = [")
    return "run.toml"


def _no_record(path: Path) -> str:
    shutil.copytree("begun", path)
    (path / "run.toml").write_text("fmax = 0.05\n")
    return "is no record of a run"


def _a_damaged_database(path: Path) -> str:
    shutil.copytree("begun", path)
    (path / "results.db").write_bytes(b"no database at all" * 100)
    return "results.db is damaged"


def _a_newer_database(path: Path) -> str:
    shutil.copytree("begun", path)
    with closing(sqlite3.connect(path / "results.db")) as database:
        database.execute("UPDATE information SET value = '99' WHERE name = 'version'")
        database.commit()
    return "version 99"


def _another_program_s(path: Path) -> str:
    shutil.copytree("begun", path)
    (path / "results.db").unlink()
    ase.db.connect(path / "results.db").write(Atoms("H"))
    return "results.db is damaged"


PLACES = [
    _a_file,
    _another_folder,
    _a_damaged_record,
    _no_record,
    _a_damaged_database,
    _a_newer_database,
    _another_program_s,
]


@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_a_folder_that_is_no_run_is_left_alone(make):
    relax("--run", "begun", "--shard", "1/9")
    said = make(Path("place"))
    before = snapshot()
    assert said in relax("--run", "place", "--shard", "1/9", code=2)
    assert said in run("resume", "place", code=2)
    assert snapshot() == before


def snapshot() -> dict[str, bytes]:
    files = [x for x in Path().rglob("*") if x.is_file() and x.name != "lock"]
    return {str(x): x.read_bytes() for x in files}


def test_what_is_asked_of_a_folder_that_is_not_there_is_an_error():
    with_options = ("export", "--table", "t.csv"), ("merge", "--run", "x")
    for command in (("resume",), *with_options, ("plot",), ("compare", "other")):
        said = run(command[0], "nowhere", *command[1:], code=2)
        assert "nowhere is no folder of a run: there is no such folder" in said
    relax("--run", "kept")
    assert "nothing to write" in run("export", "kept", code=2)
    assert "expected one of converged" in run(
        "export", "kept", "--table", "t.csv", "--status", "x", code=2
    )
    assert "ended so" in run("export", "kept", "--table", "t.csv", "--status", "stalled", code=2)
    assert "is an input" in run("export", "kept", "--output", "kept/results.db", code=2)


def test_trajectories_of_a_folder_are_those_of_a_run_without_one():
    frames = ("--trajectory-interval", "3", "--trajectory-format", "extxyz")
    relax("--output", "all.xyz", "--trajectory", "alone", *frames)
    relax("--run", "kept", "--trajectory", "x", *frames, "--time-limit", "0s", code=4)
    run("resume", "kept")
    for path in Path("alone").iterdir():
        assert Path("x", path.name).read_bytes() == path.read_bytes()
    assert len(list(Path("x").iterdir())) == len(list(Path("alone").iterdir())) > 1


def test_what_is_stored_has_its_whole_trajectory(monkeypatch):
    """A run that is killed then goes on without it."""
    add, append = Results.add, Recorder._append

    def checked(self, entries):
        for number, entry in entries:
            assert ase.io.read(f"frames/{number}.traj").info["step"] == entry.steps
        add(self, entries)

    def slow(*frames):
        time.sleep(0.02)
        append(*frames)

    monkeypatch.setattr(Results, "add", checked)
    monkeypatch.setattr(Recorder, "_append", slow)
    relax("--run", "kept", "--trajectory", "frames")
    assert len(briefs("kept")) == len(list(Path("frames").iterdir())) == N


def test_trajectories_go_on_where_the_number_of_structures_is_not_known():
    relax("--run", "kept", "--trajectory", "frames", files=["a.extxyz@:"])
    names = {path.name for path in Path("frames").iterdir()}
    assert names == {f"{k}.traj" for k in range(4)}
    assert "4 of 4 structures" in run("resume", "kept")
    assert {path.name for path in Path("frames").iterdir()} == names


# --- counting


def test_structures_are_counted_without_being_read_where_a_file_says_how_many_there_are(
    monkeypatch,
):
    images = [cluster(k) for k in range(5)]
    for name in ("x.db", "x.traj", "x.extxyz", "x.json"):
        ase.io.write(name, images)
    ase.io.write("one.cif", Atoms("Ar", cell=[9, 9, 9], pbc=True))

    def unread(*_):
        raise AssertionError("it is read")

    monkeypatch.setattr(Form, "read", unread)
    known = {"x.db": 5, "x.traj": 5, "x.extxyz": 5, "x.traj@1:4": 3, "x.db@-2:": 2, "x.db@0": 1}
    for name, n in known.items():
        assert count([Path(name)]) == n
    assert count([Path("x.db"), Path("one.cif"), Path("nowhere.xyz")]) is None
    assert count([Path("x.db"), Path("nowhere.xyz")]) == 6
    assert count([Path("x.json")]) is None
    assert count([Path("x.db@natoms>2")]) is None


def test_a_run_whose_input_has_no_count_knows_it_at_its_end():
    ase.io.write("x.json", [cluster(k) for k in range(5)])
    relax("--run", "begun", "--time-limit", "0s", files=["x.json"], code=4)
    said = relax("--run", "kept", "--shard", "1/2", files=["x.json", "a.extxyz"])
    assert "kept: 5 of 5 structures" in said
    assert "kept: 5 of 5 structures, 0 of them now" in run("resume", "kept")


def test_files_without_structures_are_recorded_as_such():
    with ase.db.connect("none.db") as database:
        database.count()
    said = relax("--run", "kept", files=["none.db", "c.xyz"])
    assert "none.db: it holds no structure" in said
    assert "kept: 2 of 2 structures" in said


# --- other programs at the database


@pytest.fixture
def reader():
    """A program in the middle of reading a database; writing a line to it ends it."""
    relax("--run", "kept", "--shard", "1/9")
    text = "import sqlite3, sys; d = sqlite3.connect('kept/results.db'); d.execute('BEGIN')\n"
    text += "print(len(d.execute('SELECT * FROM systems').fetchall()), flush=True); input()"
    record = Path("kept/run.toml")
    record.write_text(record.read_text().replace('shard = "1/9"', 'shard = "1/1"'))
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        yield process
        if process.poll() is None:
            process.communicate(b"\n")


def test_results_wait_until_a_reader_lets_the_database_go(reader, whole, monkeypatch):
    monkeypatch.setitem(stores.PATIENCE, "write", 0.01)
    monkeypatch.setattr(storing, "MOST", 300)
    show, waits = storing.Progress, []

    def shown(*values):
        if values[-1].startswith("waiting"):
            waits.append(len(briefs("kept")))
            if len(waits) == 9:
                reader.communicate(b"\n")
        return show(*values)

    monkeypatch.setattr(storing, "Progress", shown)
    said = run("resume", "kept")
    assert f"kept/results.db is in use by process {reader.pid} (python" in said
    assert said.count("results wait in memory") == 1
    assert f"kept: {N} of {N} structures" in said
    assert set(waits) == {1} and len(waits) == 9
    assert exported("kept") == whole


def test_a_run_that_ends_while_a_reader_holds_the_database_goes_on_later(
    reader, whole, monkeypatch
):
    monkeypatch.setitem(stores.PATIENCE, "write", 0.01)
    said = run("resume", "kept", "--time-limit", "2s", code=4)
    assert "structures that have ended are not in" in said
    assert "The time is over" in said
    reader.communicate(b"\n")
    run("resume", "kept")
    assert exported("kept") == whole


def _pairs(**values):
    def change(database: sqlite3.Connection) -> None:
        query = "SELECT id, key_value_pairs FROM systems"
        for row, pairs in database.execute(query).fetchall():
            text = json.dumps(json.loads(pairs) | values)
            database.execute("UPDATE systems SET key_value_pairs = ? WHERE id = ?", (text, row))

    return change


def _sql(text: str):
    return lambda database: database.executescript(text)


NOTHING = object_to_bytes({})
DAMAGES = {
    "status": (_pairs(status="zzz"), "the status of structure 0 is 'zzz'"),
    "a status that is a list": (_pairs(status=[]), "the status of structure 0 is []"),
    "running": (_pairs(status="running"), "the status of structure 0 is 'running'"),
    "number": (_pairs(number="a"), "its number is 'a'"),
    "the same number": (_pairs(number=3), "structure 0 stands in it twice"),
    "steps": (_pairs(steps=-1), "its steps is -1"),
    "energy": (_pairs(initial_energy="x"), "its initial_energy is 'x'"),
    "source": (_pairs(source=5), "the source of structure 0 is 5"),
    "pairs": (_sql("UPDATE systems SET key_value_pairs = '[]'"), "pairs of a row are []"),
    "no JSON": (_sql("UPDATE systems SET key_value_pairs = '{'"), "results.db is damaged"),
    "no text": (_sql("UPDATE systems SET key_value_pairs = NULL"), "results.db is damaged"),
    "no column": (_sql("ALTER TABLE systems DROP COLUMN volume"), "no such column: volume"),
    "no table": (_sql("DROP TABLE systems"), "it has no table of systems"),
    "atoms": (_sql("UPDATE systems SET natoms = 'x'"), "structure 0: its number of atoms is 'x'"),
    "volume": (_sql("UPDATE systems SET volume = 'x'"), "structure 0: its volume is 'x'"),
}
IN_FULL = {
    "elements": ("numbers = x'ff000000ff000000ff000000'", "numbers [255, 255, 255]"),
    "half of a blob": ("positions = x'00'", "results.db is damaged"),
    "a text": ("cell = 'abc'", "results.db is damaged"),
    "no data": ("data = NULL", "structure 0: "),
    "data": ("data = x'0800000000000000'", "structure 0: "),
    "an empty table": (f"data = x'{NOTHING.hex()}'", "structure 0: 'source'"),
    "forces": ("forces = zeroblob(24)", "structure 0: 1 forces for "),
    "an energy": ("free_energy = 'x'", "its free_energy is 'x'"),
}
DAMAGES |= {name: (_sql(f"UPDATE systems SET {x}"), text) for name, (x, text) in IN_FULL.items()}


def test_a_damaged_database_gives_one_line():
    relax("--run", "begun", files=["a.extxyz"])
    for name, (change, text) in DAMAGES.items():
        shutil.rmtree("kept", ignore_errors=True)
        shutil.copytree("begun", "kept")
        with closing(sqlite3.connect("kept/results.db")) as database, database:
            change(database)
        commands = [("export", "--table", "x.csv")]
        commands += [] if name in IN_FULL else [("report",), ("resume",)]
        for command in commands:
            said = run(command[0], "kept", *command[1:], code=2)
            said = re.sub(r"structure \d", "structure 0", said)  # they end in any order
            assert said.startswith("error: ") and text in said, (name, said)
    database = Path("begun/results.db").read_bytes()
    Path("kept/results.db").write_bytes(database[: len(database) // 2])
    assert "results.db is damaged" in run("export", "kept", "--table", "x.csv", code=2)


def test_a_number_that_the_input_lacks_is_named():
    relax("--run", "kept", files=["c.xyz"])
    with closing(sqlite3.connect("kept/results.db")) as database, database:
        _pairs(number=7)(database)
    assert "holds structure 7, which is not in part 1/1 of the 1" in run("resume", "kept", code=2)


LINKED = ["report.html", "run.toml", "results.db", "results.db-journal", "lock"]


@pytest.mark.parametrize("name", LINKED)
def test_a_run_writes_through_no_link(name):
    relax("--run", "kept", files=["c.xyz"])
    for link in (os.symlink, os.link):
        place = Path("kept", name)
        if place.exists():
            shutil.copy(place, "else")
            place.unlink()
        else:
            Path("else").write_text("precious")
        before = Path("else").read_bytes()
        link(os.path.abspath("else"), place)
        if name != "report.html":
            assert "link" in run("resume", "kept", code=2)
        elif link is os.symlink:
            assert "report.html exists: add --overwrite" in run("report", "kept", code=2)
        else:
            run("report", "kept")
        assert Path("else").read_bytes() == before
        place.unlink()
        shutil.move("else", place)


def test_an_output_makes_no_file_where_a_link_points():
    relax("--run", "kept", files=["c.xyz"])
    os.symlink("elsewhere.extxyz", "x.extxyz")
    assert "x.extxyz exists" in run("export", "kept", "--output", "x.extxyz", code=2)
    assert not Path("elsewhere.extxyz").exists()


# --- a full standard output


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left")


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "c.xyz", "--potential", ARGON, "--table", "-", "--output", "x.extxyz"),
        ("evaluate", "c.xyz", "--potential", ARGON, "--json", "--output", "x.extxyz"),
        ("export", "kept", "--table", "-"),
        ("compare", "kept", "kept"),
    ],
    ids=lambda command: f"{command[0]} {command[-3]}",
)
def test_what_cannot_be_printed_is_an_error(monkeypatch, command):
    relax("--run", "kept", files=["c.xyz"])
    stream = TerminalStream(file=Full())
    for module in ("console", "outputs", "export", "compare"):
        monkeypatch.setattr(f"basinax.cli.{module}.out", stream)
    assert "cannot be printed: No space left" in run(*command, code=3)
