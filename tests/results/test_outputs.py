"""Outputs of the command line: refused before a run, or written after it, each on its own."""

import csv
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import ase.io
import pytest
from ase import Atoms
from typer.testing import CliRunner

import basinax
from basinax import cli
from basinax.atoms import LennardJones, Progress
from basinax.cli import console, occupy, outputs as _outputs, setup, watch as _watch
from basinax.cli.console import TerminalStream
from basinax.cli.contents import Plan
from basinax.cli.outputs import Saver
from basinax.results.trajectory import NotWhole
from stand_in import Relaxation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with inputs of all kinds."""
    (tmp_path / "work" / "tr").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    images = [Atoms("Ar2", [[0, 0, 0], [0, 0, z]]) for z in (3.5, 3.6, 4.2)]
    for name in ("in.extxyz", "tr/0.traj"):
        ase.io.write(name, images)
    basinax.write_config({"name": "fire"}, "c.json")
    for name in ("p.eam.alloy", "p,q.sw"):
        Path(name).write_text(name)
    return tmp_path


@pytest.fixture
def relaxation(monkeypatch):
    relaxation = Relaxation()
    relaxation.put_into(monkeypatch)
    monkeypatch.setattr(setup, "potential_from", lambda text: LennardJones.named("Ar"))
    return relaxation


def run(*arguments, inputs=("in.extxyz",)):
    options = ["--overwrite"]
    options += [] if "--potential" in arguments else ["--potential", "lennard-jones:Ar"]
    return CliRunner().invoke(cli.app, ["relax", *inputs, *options, *map(str, arguments)])


def everything() -> dict:
    """All that is there, with what plain files hold."""
    found = {}
    for path in sorted(Path().rglob("*")):
        mode, number = os.lstat(path).st_mode, os.lstat(path).st_ino
        found[str(path)] = (mode, number, path.read_bytes() if path.is_file() else None)
    return found


def sources_of(table) -> list[str]:
    with Path(table).open(encoding="utf-8", newline="") as file:
        return [row["source"] for row in csv.DictReader(file)]


def is_refused(relaxation, *arguments, inputs=("in.extxyz",)) -> str:
    """Its one line, if nothing ran and nothing has changed."""
    before = everything()
    done = run(*arguments, inputs=inputs)
    assert done.exit_code == 2, done.output
    assert not relaxation.is_done
    assert everything() == before
    assert done.stderr.startswith("error: ")
    return " ".join(done.stderr.split())


# --- no output is an input

INPUTS = {
    "structures": ("in.extxyz", ["in.extxyz"], []),
    "some images": ("in.extxyz", ["in.extxyz@0"], []),
    "a config": ("c.json", ["in.extxyz"], ["--optimizer", "c.json"]),
    "a potential": ("p.eam.alloy", ["in.extxyz"], ["--potential", "eam:p.eam.alloy"]),
    "a potential with an option": (
        "p.eam.alloy",
        ["in.extxyz"],
        ["--potential", "eam:p.eam.alloy,format=alloy"],
    ),
    "a potential with a comma": (
        "p,q.sw",
        ["in.extxyz"],
        ["--potential", "stillinger-weber:p,q.sw,elements=Si"],
    ),
}


def link(target, name):
    os.symlink(os.path.abspath(target), name)


def linked_hard_link(target, name):
    os.link(target, "hard")
    link("hard", name)


WAYS = {
    "another name": lambda target, name: os.path.join("..", "work", target),
    "a hard link": os.link,
    "a link": link,
    "a link to a hard link": linked_hard_link,
}

OUTPUTS = {"--output": "x.extxyz", "--table": "x.csv", "--trajectory": "new/0.traj"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_is_an_input(relaxation, output, kind, way):
    (target, inputs, options), name = INPUTS[kind], OUTPUTS[output]
    Path("new").mkdir()
    name = WAYS[way](target, name) or name
    if output == "--trajectory":
        name = "new" if way != "another name" else "tr"
        inputs = inputs if way != "another name" else [*inputs, "../work/tr/0.traj@:"]
    text = is_refused(relaxation, *options, output, name, inputs=inputs)
    assert " is an input: choose another" in text


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_lies_in_an_input(relaxation, output):
    bundle = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.5]])
    ase.io.write("in.bundle", bundle, format="bundletrajectory")
    os.symlink("in.bundle", "elsewhere")
    name = "elsewhere/F0" if output == "--trajectory" else "elsewhere/F0/x.extxyz"
    text = is_refused(relaxation, output, name, inputs=["in.bundle"])
    assert f"{name} lies in in.bundle, which is an input" in text


# --- no two outputs are alike


ALIKE = {
    "table and output": (["--output", "x.xyz", "--table", "x.xyz"], None, "x.xyz is the output"),
    "a link": (
        ["--output", "x.xyz", "--table", "l"],
        lambda: os.symlink("x.xyz", "l"),
        "l is the output, too: choose another table",
    ),
    "the default output": (["--table", "relaxed.extxyz"], None, "is the output, too"),
    "report and output": (
        ["--output", "x.html", "--report", "x.html"],
        None,
        "x.html is the output, too: choose another report",
    ),
    "output and trajectory": (
        ["--output", "new/0.traj", "--trajectory", "new"],
        lambda: Path("new").mkdir(),
        "new/0.traj is the output, too",
    ),
    "table and trajectory": (
        ["--table", "new/../new/2.traj", "--trajectory", "new"],
        lambda: Path("new").mkdir(),
        "new/2.traj is the table, too",
    ),
    "two trajectories": (
        ["--trajectory", "new"],
        lambda: (Path("new").mkdir(), os.symlink("0.traj", "new/1.traj")),
        "new/1.traj is a trajectory, too",
    ),
    "output and folder": (
        ["--output", "x.xyz", "--trajectory", "x.xyz"],
        None,
        "x.xyz is the output, too",
    ),
    "output above folder": (
        ["--output", "x.xyz", "--trajectory", "x.xyz/new"],
        None,
        "x.xyz/new lies in x.xyz, which is the output, too",
    ),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_no_two_outputs_are_alike(relaxation, kind):
    options, make, message = ALIKE[kind]
    if make is not None:
        make()
    assert message in is_refused(relaxation, *options)


@pytest.mark.parametrize("output", ["--output", "--table"])
def test_no_output_is_where_a_stream_goes(relaxation, output):
    Path("log.extxyz").write_text("")
    kept = os.dup(1)
    try:
        os.dup2(os.open("log.extxyz", os.O_WRONLY), 1)
        text = is_refused(relaxation, output, "log.extxyz")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert "log.extxyz is the file of standard output" in text


# --- the report


def test_a_report_has_what_was_found_and_how(relaxation):
    pytest.importorskip("bokeh", reason="a report needs Bokeh")
    done = run("--report", "new/r.html", "--output-dir", "out")
    assert done.exit_code == 0, done.output
    assert relaxation.settings["history"]
    text = Path("new/r.html").read_text("utf-8")
    assert "Relaxation of in.extxyz" in text
    assert f"<td>{basinax.__version__}</td>" in text and "lennard-jones:Ar" in text
    assert "new/r.html" in done.stdout


REPORTS = {
    "it exists": ("old.html", "old.html exists: add --overwrite"),
    "another ending": ("r.pdf", "a report is a file in .html, not in .pdf"),
    "an input": ("in.extxyz", "in.extxyz: a report is a file in .html"),
    "no package": ("no.html", "a report needs Bokeh: pip install bokeh"),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_that_cannot_be_written_is_refused_before_the_run(relaxation, kind, monkeypatch):
    name, message = REPORTS[kind]
    Path("old.html").write_text("kept")
    if kind == "no package":
        monkeypatch.setitem(sys.modules, "bokeh", None)
    before, given = everything(), ["relax", "in.extxyz", "--potential", "lennard-jones:Ar"]
    done = CliRunner().invoke(cli.app, [*given, "--report", name])
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert not relaxation.is_done and everything() == before


def test_a_table_that_needs_a_package_is_refused_before_the_run(relaxation, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "Parquet needs pyarrow" in is_refused(relaxation, "--table", "t.parquet")


# --- what stands in the way

OBSTACLES = {
    "a folder": (lambda name: Path(name).mkdir(), "is a folder"),
    "a pipe": (os.mkfifo, "is a named pipe: expected a plain file"),
    "a link to a device": (lambda name: os.symlink(os.devnull, name), "is a device"),
    "a link to itself": (lambda name: os.symlink(Path(name).name, name), "Too many levels"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_what_is_no_plain_file_is_refused(relaxation, output, obstacle):
    make, message = OBSTACLES[obstacle]
    Path("new").mkdir()
    name = OUTPUTS[output]
    make(name)
    text = is_refused(relaxation, output, "new" if output == "--trajectory" else name)
    assert f"{name} " in text
    assert message in text


@pytest.mark.parametrize(
    ("output", "name", "message"),
    [
        ("--table", os.devnull, "is a device"),
        ("--output", "c.json/x.xyz", "c.json/x.xyz cannot be written: Not a directory"),
        ("--table", "a" * 256, "cannot be written: File name too long"),
        ("--trajectory", "c.json", "c.json cannot be written to: Not a directory"),
        ("--trajectory", "c.json/new", "c.json/new cannot be written to: Not a directory"),
    ],
)
def test_a_place_that_is_none_is_found(relaxation, output, name, message):
    assert message in is_refused(relaxation, output, name)


# --- what happens meanwhile


def remove_folder(name):
    os.rmdir(Path(name).parent)


MEANWHILE = {
    "the folder went": (remove_folder, "No such file or directory"),
    "a folder came": (os.mkdir, "is a folder"),
    "a pipe came": (os.mkfifo, "is a named pipe"),
    "the folder is a file": (
        lambda name: (remove_folder(name), Path(name).parent.write_text("")),
        "Not a directory",
    ),
}


# The folder of the output holds that of the run.
LOST = [("--output", "a folder came"), ("--output", "a pipe came")]
LOST += [("--table", event) for event in MEANWHILE]


@pytest.mark.parametrize(("lost", "event"), LOST)
def test_what_cannot_be_written_costs_itself_alone(relaxation, lost, event, folder):
    (happens, reason), places = MEANWHILE[event], {"--output": "out.traj", "--table": "out.csv"}
    places[lost] = f"away/{places[lost]}"
    Path("away").mkdir()
    relaxation.meanwhile = lambda: happens(places[lost])
    done = run(*(x for pair in places.items() for x in pair))
    assert done.exit_code == 3, done.output
    text = " ".join(done.stderr.split())
    assert text.startswith(f"error: {places[lost]} cannot be written: ")
    assert reason in text
    # What was lost is elsewhere, and the other where it should be.
    (instead,) = folder.glob("basinax-*/*")
    assert f"; it is in {instead} instead" in text
    written = {name: Path(name) for name in places.values()} | {places[lost]: instead}
    assert len(ase.io.read(written[places["--output"]], ":")) == 3
    assert len(sources_of(written[places["--table"]])) == 3
    kept = next(name for name in places.values() if name != places[lost])
    assert done.stdout.strip().endswith(f"Written: {kept}")
    assert [path for path in Path().rglob(".*")] == []
    # The run is kept, and writes what is missing where there is room.
    assert f"{places['--output']}.run keeps the results" in text
    if os.path.lexists(in_the_way := places[lost] if Path("away").is_dir() else "away"):
        (os.rmdir if os.path.isdir(in_the_way) else os.unlink)(in_the_way)
    done = run(*(x for pair in places.items() for x in pair))
    assert done.exit_code == 0, done.output
    assert all(Path(name).exists() for name in places.values())


def test_a_full_disk_is_named_for_each_output_and_leaves_nothing(relaxation, monkeypatch, folder):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Plan, "write", no_room)
    monkeypatch.setattr(_outputs, "writer_of", lambda _: no_room)
    for name in ("out.traj", "out.csv"):
        Path(name).write_text("old")
    done = run("--output", "out.traj", "--table", "out.csv")
    assert done.exit_code == 3
    assert done.stderr.splitlines() == [
        "error: out.traj cannot be written: No space left on device",
        "error: out.csv cannot be written: No space left on device",
        "out.traj.run keeps the results: basinax resume out.traj.run writes them",
    ]
    assert [Path(name).read_text() for name in ("out.traj", "out.csv")] == ["old"] * 2
    assert [path for path in Path().rglob(".*")] + list(folder.glob("basinax-*")) == []
    assert "Written" not in done.stdout


NAMES = {
    "247 bytes": "a" * 240 + ".extxyz",
    "255 bytes": "a" * 248 + ".extxyz",
    "no text": os.fsdecode(b"caf\xe9 \xff.extxyz"),
    "a blank": "a b.extxyz",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_any_kind_are_read_and_written(relaxation, name):
    os.rename("in.extxyz", name)
    done = run("--table", "t.csv", "--output", "out.extxyz", inputs=[name])
    assert done.exit_code == 0, done.output
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    assert sources_of("t.csv") == [f"{shown}@{k}" for k in range(3)]
    os.rename("out.extxyz", "in.extxyz")
    for output in ("--output", "--table"):
        other = Path(name).with_suffix(".xyz") if output == "--output" else Path(name).stem
        done = run(output, other)
        assert done.exit_code == 0, done.output
        assert Path(other).stat().st_size > 0


def test_a_database_has_a_name_as_long_as_can_be(relaxation):
    name = "a" * 252 + ".db"
    done = run("--output", name)
    assert done.exit_code == 0, done.output
    assert len(ase.io.read(f"{name}@:", format="db")) == 3


@pytest.mark.parametrize(
    ("output", "name"), [("--output", "x.extxyz"), ("--table", "x.csv")], ids=["output", "table"]
)
def test_a_link_stays_and_its_target_is_written(relaxation, output, name):
    os.mkdir("far")
    Path("far", "target").write_text("old")
    os.symlink("far/target", name)
    done = run(output, name)
    assert done.exit_code == 0, done.output
    assert Path(name).is_symlink()
    assert Path("far", "target").read_text() != "old"
    assert os.listdir("far") == ["target"]


@pytest.mark.parametrize(
    ("output", "name"), [("--output", "x.extxyz"), ("--table", "x.csv")], ids=["output", "table"]
)
def test_the_second_of_two_runs_says_that_it_replaced_the_first(relaxation, output, name):
    relaxation.meanwhile = lambda: Path(name).write_text("of another run")
    for before in (None, "old"):
        if before:
            Path(name).write_text(before)
        done = run(output, name)
        assert done.exit_code == 0, done.output
        assert f"{name} took the place of what another program wrote" in done.stderr
        assert Path(name).read_text() != "of another run"
    relaxation.meanwhile = lambda: None
    assert "took the place" not in run(output, name).stderr


def test_trajectories_that_are_not_whole_are_an_error(relaxation):
    message = "the trajectory of system 1 (Ar2) is not whole: OSError: no space left"
    relaxation.meanwhile = lambda: warnings.warn(message, NotWhole, stacklevel=2)
    done = run("--table", "t.csv", "--trajectory", "new")
    assert done.exit_code == 3
    assert "error: the trajectory of in.extxyz@1 (Ar2) is not whole: OSError" in done.stderr
    assert "writes them, but no steps to trajectories and logs" in done.stderr
    assert Path("t.csv").exists()
    assert Path("relaxed.extxyz").exists()


# --- streams and signals


class Broken(io.StringIO):
    """A stream that fails."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), BrokenPipeError(errno.EPIPE, "Broken pipe")]
)
def test_a_summary_that_cannot_be_printed_costs_itself_alone(relaxation, monkeypatch, error):
    stream = TerminalStream(file=Broken(error))
    for module in ("outputs", "run"):
        monkeypatch.setattr(f"basinax.cli.{module}.out", stream)
    done = run("--table", "t.csv")
    assert done.exit_code == 3
    assert "error: the summary cannot be printed: " in done.stderr
    assert Path("t.csv").exists()
    assert Path("relaxed.extxyz").exists()
    done = run("--table", "-", "--overwrite")
    assert done.exit_code == 3
    assert "error: the table cannot be printed: " in done.stderr


@pytest.mark.parametrize("columns", ["0", "-1", "x", ""])
def test_a_terminal_without_a_width_is_printed_to(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    stream = TerminalStream(file=io.StringIO(), force_terminal=True)
    stream.print("converged")
    assert stream.file.getvalue() == "converged\n"


def test_a_version_that_cannot_be_printed_is_an_error(monkeypatch):
    error = OSError(errno.ENOSPC, "No space left")
    monkeypatch.setattr(console, "out", TerminalStream(file=Broken(error)))
    done = CliRunner().invoke(cli.app, ["--version"])
    assert done.exit_code == 3
    assert "error: the version cannot be printed: No space left" in done.stderr


def test_errors_that_cannot_be_printed_cost_nothing(relaxation, monkeypatch):
    stream = TerminalStream(file=Broken(BrokenPipeError()))
    monkeypatch.setattr("basinax.cli.console.err", stream)
    relaxation.meanwhile = lambda: Path("t.csv").mkdir()
    done = run("--table", "t.csv")
    assert done.exit_code == 3
    assert stream.fault
    assert Path("relaxed.extxyz").exists()


def test_streams_that_are_closed_are_no_files_of_the_program():
    kept = [os.dup(number) for number in range(3)]
    try:
        os.closerange(0, 3)
        occupy()
        opened = os.open("in.extxyz", os.O_RDONLY)
    finally:
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)
    assert opened > 2
    os.close(opened)


@pytest.fixture
def heeded(number):
    """Where tests run behind a shell or under nohup, some signals are ignored."""
    is_key = number == signal.SIGINT
    previous = signal.signal(number, signal.default_int_handler if is_key else signal.SIG_DFL)
    yield
    signal.signal(number, previous)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_a_signal_ends_goes_on_to_the_same_outputs(relaxation, number):
    """By the same command, and by its folder; until then no output is there."""
    done = run("--output", "whole.extxyz", "--table", "whole.csv", "--max-steps", 9)
    assert done.exit_code == 0 and not Path("whole.extxyz.run").exists()
    relaxation.n_ended, relaxation.meanwhile = 1, lambda: signal.raise_signal(number)
    options = ["--table", "t.csv", "--max-steps", 9]
    assert run(*options).exit_code == 130
    done = run(*options)
    assert done.exit_code == 130
    assert "Interrupted: basinax resume relaxed.extxyz.run goes on" in done.stderr
    assert not Path("t.csv").exists() and not Path("relaxed.extxyz").exists()
    relaxation.n_ended, relaxation.meanwhile = None, lambda: None
    shutil.copytree("relaxed.extxyz.run", "copy")
    again = ["relax", "in.extxyz", "--potential", "lennard-jones:Ar", *map(str, options)]
    for command in (again, ["resume", "relaxed.extxyz.run"]):
        if command != again:
            shutil.copytree("copy", "relaxed.extxyz.run")
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 0, done.output
        assert len(relaxation.atoms) == 1
        assert Path("relaxed.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
        assert sources_of("t.csv") == sources_of("whole.csv")
        assert not Path("relaxed.extxyz.run").exists()


def test_a_second_signal_ends_the_run_with_a_word(relaxation, monkeypatch):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_watch, "TOGETHER", -1.0)
    relaxation.meanwhile = twice
    done = run("--table", "t.csv")
    assert done.exit_code == 130
    assert "Interrupted again: basinax resume relaxed.extxyz.run goes on." in done.stderr
    assert not Path("t.csv").exists() and not Path("relaxed.extxyz").exists()
    relaxation.meanwhile = lambda: None
    assert run("--table", "t.csv").exit_code == 0


def test_a_signal_that_nohup_ignores_ends_nothing(relaxation):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        relaxation.meanwhile = lambda: signal.raise_signal(signal.SIGHUP)
        assert run().exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_signal_while_reading_ends_at_once(relaxation, monkeypatch):
    monkeypatch.setattr(setup, "read_all", lambda files: signal.raise_signal(signal.SIGINT))
    before = everything()
    done = run("--table", "t.csv")
    assert done.exit_code == 130
    assert done.stderr == "Interrupted: nothing was written.\n"
    assert everything() == before


@pytest.mark.parametrize("phase", ["listing", "compiling", "running"])
def test_a_signal_says_which_phase_it_waits_for(relaxation, monkeypatch, capfd, phase):
    def of_phase(items, settings, progress, **how):
        progress(Progress(3, 0, 0, phase))
        signal.raise_signal(signal.SIGINT)
        yield from relaxation(items, settings, **how)

    monkeypatch.setattr(setup, "relax_items", of_phase)
    done = run()
    assert done.exit_code == 0  # for all end nevertheless
    assert f"Interrupted: {phase}; again to quit." in capfd.readouterr().err


def test_a_signal_while_writing_costs_no_output_and_leaves_nothing_to_go_on_with(
    relaxation, monkeypatch
):
    def signalled(*arguments, **named):
        signal.raise_signal(signal.SIGINT)
        write(*arguments, **named)

    write = Plan.write
    monkeypatch.setattr(Plan, "write", signalled)
    done = run("--table", "t.csv")
    assert done.exit_code == 0
    assert done.stderr == "Interrupted, but all structures had ended.\n"
    assert len(sources_of("t.csv")) == 3


WRITERS = {"structures": (Plan, "write"), "table": (_outputs.Writing, "write_record")}


@pytest.mark.parametrize("at", WRITERS)
def test_a_run_that_is_killed_before_its_outputs_are_whole_writes_them_later(
    relaxation, monkeypatch, at
):
    def killed(*_, **__):
        raise RuntimeError("killed")

    options = ["--table", "t.csv", "--output", "x.traj"]
    with monkeypatch.context() as patched:
        patched.setattr(*WRITERS[at], killed)
        patched.setattr(Saver, "save", lambda self, path, write, **_: write(path))
        assert isinstance(run(*options).exception, RuntimeError)
    assert [x for x in ("x.traj", "t.csv") if Path(x).exists()] == (
        [] if at == "structures" else ["x.traj", "t.csv"]
    )
    relaxation.is_done = False
    # Also without --overwrite: the outputs are those of this run.
    options = ["in.extxyz", "--potential", "lennard-jones:Ar", *options]
    done = CliRunner().invoke(cli.app, ["relax", *options])
    assert done.exit_code == 0, done.output
    assert not relaxation.is_done
    assert len(ase.io.read("x.traj", ":")) == 3 and len(sources_of("t.csv")) == 3
    assert Path("x.traj.run.json").exists() and not Path("x.traj.run").exists()


def test_a_named_folder_stays_and_has_all_outputs(relaxation):
    outputs = ["--output-dir", "out", "--table", "t.csv", "--log", "run.log", "--json"]
    done = run("--run", "kept", *outputs)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["written"] == ["out/in.extxyz", "t.csv", "run.log"]
    assert run("--output", "whole.extxyz").exit_code == 0
    assert Path("out/in.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
    assert Path("out/run.json").exists() and Path("kept/results.db").exists()
    for name in ("out/in.extxyz", "t.csv"):
        Path(name).unlink()
    relaxation.is_done = False
    assert CliRunner().invoke(cli.app, ["resume", "kept"]).exit_code == 0
    assert Path("out/in.extxyz").read_bytes() == Path("whole.extxyz").read_bytes()
    assert Path("t.csv").exists() and not relaxation.is_done


def test_structures_of_standard_input_are_kept_for_a_run_that_goes_on(relaxation):
    relaxation.meanwhile, relaxation.n_ended = lambda: signal.raise_signal(signal.SIGINT), 1
    command = ["relax", "-", "--potential", "lennard-jones:Ar"]
    text = Path("in.extxyz").read_text()
    assert CliRunner().invoke(cli.app, command, input=text).exit_code == 130
    relaxation.meanwhile, relaxation.n_ended = lambda: None, None
    done = CliRunner().invoke(cli.app, ["resume", "relaxed.extxyz.run"])
    assert done.exit_code == 0, done.output
    written = ase.io.read("relaxed.extxyz", ":")
    assert [a.info["relax_source"] for a in written] == [f"stdin.extxyz@{k}" for k in range(3)]


def test_trajectories_go_on_with_their_run(relaxation):
    options = ["--trajectory", "new"]
    relaxation.meanwhile, relaxation.n_ended = lambda: signal.raise_signal(signal.SIGINT), 1
    assert run(*options).exit_code == 130
    for k in range(3):
        Path(f"new/{k}.traj").write_text("before")
    relaxation.meanwhile, relaxation.n_ended = lambda: None, None
    assert run(*options).exit_code == 0
    assert [x.name for x in Path("new").iterdir()] == ["0.traj"]  # of the one that had ended


def test_a_run_that_was_ended_is_not_taken_for_another(relaxation):
    relaxation.meanwhile = lambda: signal.raise_signal(signal.SIGINT)
    relaxation.n_ended = 1
    assert run().exit_code == 130
    relaxation.is_done = False
    text = is_refused(relaxation, "--fmax", 0.001)
    assert "fmax was 0.05, and is 0.001 now" in text
    assert "choose another output or remove the folder, or go on with --force" in text


def test_an_interrupt_that_python_cannot_raise_ends_the_process(monkeypatch):
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)
    with _watch.Watch(quiet=True):
        sys.unraisablehook(SimpleNamespace(exc_type=KeyboardInterrupt))
    assert ends == [130]


def test_the_line_of_a_terminal_has_the_phase_and_an_estimate(monkeypatch):
    text = io.StringIO()
    terminal = TerminalStream(file=text, force_terminal=True, width=120)
    monkeypatch.setattr(_watch, "err", terminal)
    with _watch.Watch(quiet=False) as watch:
        for k in range(3):
            watch.show(Progress(10, k, 0, "compiling"))
        watch._bar.refresh()
    assert "compiling" in text.getvalue()
    assert "2 converged" in text.getvalue()
    assert "left:" in text.getvalue()


def test_a_thread_that_compiles_does_not_keep_the_process():
    code = """
import sys, threading, time
from basinax import cli
threading.Thread(target=time.sleep, args=[600]).start()
print("said", end="")
cli.end(SystemExit(130))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (130, "said")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_command_is_watched_ends_with_a_word(number):
    code = f"""
import signal
from basinax import cli
cli.leave_on_interrupt()
signal.raise_signal({int(number)})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "\nInterrupted.\n")
