"""`basinax neb`: its files, its table, and runs that go on to the same bits."""

import csv
import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import add_adsorbate, fcc100
from ase.constraints import FixAtoms
from typer.testing import CliRunner

from basinax import cli
from basinax.atoms import EMT, neb
from basinax.cli import neb as command
from basinax.config.tables import RECORD
from basinax.engine.relax_stream import relax_items
from basinax.neb.result import MinimumEnergyPath
from basinax.runs.folder import RunFolder

QUICK = ("--potential", "emt", "--images", "4", "--fmax", "0.9")


def hop(adatom):
    start = fcc100("Al", (2, 2, 2))
    add_adsorbate(start, adatom, 1.8, "hollow")
    start.center(4.0, axis=2)
    start.info = {"adatom": adatom}
    end = start.copy()
    end.positions[-1, 0] += start.cell[0, 0] / 2
    return [start, end]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two end points in one file, two in a file each, and a path whose last image fails."""
    monkeypatch.chdir(tmp_path)
    ase.io.write("al.traj", hop("Al"))
    for name, image in zip("ab", hop("Cu"), strict=True):
        ase.io.write(f"{name}.traj", image)
    broken = [*hop("Al"), hop("Al")[0]]
    broken[1].positions[-1] = broken[1].positions[-2]
    ase.io.write("broken.traj", broken)
    return ["al.traj", "a.traj", "b.traj", "broken.traj"]


def run(*arguments, code=0):
    done = CliRunner().invoke(cli.app, ["neb", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def table(name):
    with Path(name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_it_writes_what_the_library_computes(files):
    outputs = ("--output", "out.traj", "--table", "out.csv", "--trajectory", "bands")
    few = ("--fmax", 0.1, "--max-steps", 3, "--fix-atoms", "tag == 2")
    done = run(*files, *QUICK, *few, *outputs, code=1)  # none converges
    paths = [hop("Al"), hop("Cu"), ase.io.read("broken.traj", ":")]
    for images in paths:
        for image in images:
            image.set_constraint(FixAtoms(mask=images[0].get_tags() == 2))
    with pytest.warns(UserWarning, match="not relaxed"):
        expected = neb(paths, EMT(), n_images=4, fmax=0.1, max_steps=3, dtype="float64")
    assert "end points of 3 paths (al.traj, a.traj and b.traj, broken.traj)" in done.stderr
    assert "al.traj: max_steps reached" in done.stdout
    written = ase.io.read("out.traj", ":")
    images = [image for path in expected for image in path.images]
    assert len(written) == len(images) == 11
    for found, image in zip(written, images, strict=True):
        np.testing.assert_array_equal(found.positions, image.positions)
        assert found.constraints[0].todict() == image.constraints[0].todict()
        if image.calc is not None:
            assert found.get_potential_energy() == image.get_potential_energy()
    last = written[7].info
    assert (last["relax_source"], last["relax_image"]) == ("a.traj and b.traj", 3)
    assert last["adatom"] == "Cu"
    rows, columns = table("out.csv"), expected.to_dict()
    assert [float(row["barrier_eV"]) for row in rows][:2] == columns["barrier_eV"][:2]
    assert [row["status"] for row in rows] == columns["status"]
    assert rows[2]["message"].startswith("image 1: ") and "broken.traj" in done.stdout
    frames = ase.io.read("bands/0.traj", ":")
    assert [frame.info["relax_source"] for frame in frames] == 8 * ["al.traj"]  # of two steps
    assert json.loads(Path("out.traj.run.json").read_text())[RECORD]["command"] == "neb"


def test_a_run_that_was_interrupted_ends_in_the_same_files(files, monkeypatch):
    run(*files, *QUICK, "--output", "whole.extxyz", "--table", "whole.csv")

    def first_alone(*arguments, **how):
        for ended in relax_items(*arguments, **how):
            yield ended
            raise KeyboardInterrupt

    kept = ("--run", "kept", "--output", "out.extxyz", "--table", "out.csv")
    with monkeypatch.context() as patched:
        patched.setattr(command, "relax_items", first_alone)
        done = CliRunner().invoke(cli.app, ["neb", *files, *QUICK, *kept])
    assert done.exit_code == 130 and not Path("out.extxyz").exists()
    done = CliRunner().invoke(cli.app, ["resume", "kept"])
    assert done.exit_code == 0 and "kept: 3 of 3 paths, 2 of them now" in done.stdout
    assert Path("out.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
    export = ["export", "kept", "--output", "again.extxyz", "--table", "again.csv"]
    assert CliRunner().invoke(cli.app, export).exit_code == 0
    assert Path("again.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
    timeless = [[row | {"seconds": ""} for row in table(f"{x}.csv")] for x in ("again", "whole")]
    assert timeless[0] == timeless[1]
    done = CliRunner().invoke(cli.app, ["compare", "kept", "kept"])
    assert "3 paths in both results" in done.stdout and "barrier_difference_eV" in done.stdout


def test_a_folder_records_what_is_no_path_and_goes_on(files):
    Path("empty.traj").touch()
    done = run("al.traj", "a.traj", "empty.traj", *QUICK, "--run", "kept", "--table", "out.csv")
    path, none = table("out.csv")
    assert path["source"] == "al.traj" and float(path["barrier_eV"]) > 0
    assert (none["source"], none["atoms"], none["steps"]) == ("a.traj and empty.traj", "0", "0")
    assert none["status"] == "evaluation_failed" and "empty" in none["message"]
    assert "a.traj and empty.traj: the file is empty" in done.stdout


def test_a_report_is_of_paths(files):
    pytest.importorskip("bokeh")
    Path("empty.traj").touch()
    outputs = ("--run", "kept", "--json", "--report", "a.html")
    done = run("al.traj", "a.traj", "empty.traj", *QUICK, *outputs)
    kept = RunFolder.begun("kept")
    kind, rows = kept.rows(kept.read_record(), kept.results.briefs())
    assert kind is MinimumEnergyPath and len(rows) == 2
    (row,) = (row for row in rows if row["source"] == "al.traj")
    assert (row["formula"], row["atoms"], row["images"]) == ("Al9", 9, 4)
    assert json.loads(done.stdout)["evaluations"] == row["evaluations"]
    assert kept.results.curves()[row["number"]].evaluations[-1] == row["evaluations"]
    page = Path("a.html").read_text()
    assert "<h2>Paths</h2>" in page and "reverse barrier (eV)" in page
    done = CliRunner().invoke(cli.app, ["report", "kept", "--info", "adatom"])
    assert done.exit_code == 2 and "this is a run of paths" in done.stderr
    done = CliRunner().invoke(cli.app, ["export", "kept", "--table", "-", "--info", "adatom"])
    assert done.exit_code == 2 and "this is a run of paths" in done.stderr


def test_a_picture_is_drawn(files):
    pytest.importorskip("matplotlib")
    run("al.traj", "a.traj", "b.traj", *QUICK, "--plot", "bands.svg")
    text = Path("bands.svg").read_text()
    assert text.startswith("<?xml") and Path("paths.extxyz").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["a.traj"], "a.traj is no path: a path needs two end points"),
        (["a.traj", "al.traj"], "a.traj is no path"),
        (["a.traj", "c.traj"], "a.traj and c.traj is no path: image 1 has 8 atoms and image 0 has"),
        (["al.traj", "--climb", "0.01"], "climb must not be less than fmax"),
        (["al.traj", "--optimizer", "lbfgs-line-search"], "choose FIRE"),
        (["al.traj", "--plot", "picture.txt"], "a picture is a file in"),
        (["al.traj", "--fix-atoms", "tag == 9"], "holds of no atom"),
        (["gold.traj", "--skip-unreadable"], "its images: EMT has no parameters for Fe"),
        (["cut.traj", "a.traj", "b.traj", "--skip-unreadable"], "belong together is not clear"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(files, arguments, reason):
    ase.io.write("c.traj", hop("Al")[0][1:])
    ase.io.write("gold.traj", hop("Fe"))
    Path("cut.traj").touch()
    done = run(*arguments, *QUICK, code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and reason in line
    assert not Path("paths.extxyz").exists() and not Path("paths.extxyz.run").exists()
