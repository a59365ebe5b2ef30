"""The record of a run: its fields are checked, and what decides numbers is in it, and no more."""

import copy
import datetime
import math
import os
import sys
from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from typer.testing import CliRunner

from basinax import cli
from basinax.atoms import EMT
from basinax.cli import record as _record
from basinax.cli.inputs import digest_of
from basinax.cli.named import named_in
from basinax.cli.record import Making, of_modules
from basinax.config.tables import RECORD, read_config, toml_of
from basinax.numerics import processor
from basinax.runs.changes import changes, joined
from basinax.runs.record import FORMAT, checked, spans_of

WHOLE = {
    "files": ["a/in.xyz"],
    "potential": "ase:m:C,model=a/w.pt",
    "fmax": 0.05,
    "workers": 2,
    RECORD: {
        "format": FORMAT,
        "command": "relax",
        "folder": "/x",
        "inputs": [
            {"file": "/x/a/in.xyz", "sha256": "00"},
            {"file": "/x/b/in.xyz", "sha256": "11"},
            {"file": "/x/c.xyz", "sha256": "22"},
        ],
        "named": [{"name": "a/w.pt", "file": "/x/a/w.pt", "sha256": "33"}],
        "modules": [{"module": "m", "file": "/x/m.py", "sha256": "44"}],
        "skipped": [],
        "versions": {"jax": "1", "mace-torch": "1", "system": "Linux-6.1"},
        "switches": {"XLA_FLAGS": "--a"},
        "device": "NVIDIA H100, 132 multiprocessors",
        "processor": "x86_64",
        "threads": "2",
        "precision": "float64",
        "cores": 2,
        "cache": "off",
        "started": "2026-01-01T00:00:00+00:00",
        "results": {"converged": 1},
        "shard": "1/2",
        "forced": ["x"],
    },
}
"""A record with something in every field."""


# --- fields

OTHERS = (5, "x", True, 1.5, math.nan, [], [5], ["x"], [{}], [{"a": 1}], {}, {"a": 1}, -1, None)


def places(table, at=()):
    """The place of every value in tables and lists."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


@pytest.mark.parametrize("place", list(places(WHOLE)), ids=lambda at: ".".join(map(str, at)))
def test_a_damaged_record_is_one_line_or_a_change(place):
    refused = 0
    for other in (..., *OTHERS):
        table = inner = copy.deepcopy(WHOLE)
        for key in place[:-1]:
            inner = inner[key]
        if other is ...:
            del inner[place[-1]]
        else:
            inner[place[-1]] = other
        try:
            said = changes(checked(table, "run.toml"), WHOLE) + changes(WHOLE, table)
            assert all(isinstance(text, str) for text in said)
            joined(table[RECORD], WHOLE[RECORD])
        except ValueError as error:
            refused += 1
            assert str(error).startswith("run.toml") and "\n" not in str(error)
    assert refused or place[0] not in ("files", "potential", RECORD)


def test_a_record_of_another_format_or_basinax_is_one_line():
    for change, said in {
        ("format", 3): "is a record of format 3, and this basinax reads format 2",
        ("format", None): "is a record of an early basinax",
        ("shards", "1/2"): "unknown record.shards, did you mean 'shard'",
        ("shard", "3/2"): "record.shard must be K/N with K from 1 to N, got '3/2'",
    }.items():
        table = WHOLE | {RECORD: WHOLE[RECORD] | dict([change])}
        if change[1] is None:
            del table[RECORD]["format"]
        with pytest.raises(ValueError, match=said):
            checked(table, "run.toml")
    for table in ([], {}, {RECORD: "x"}):
        with pytest.raises(ValueError, match="is no record of a run: it has no table"):
            checked(table, "run.toml")


# --- what decides numbers


def record(**parts):
    return {**WHOLE, RECORD: WHOLE[RECORD] | parts}


def versions(**others):
    return record(versions=WHOLE[RECORD]["versions"] | others)


INPUTS = WHOLE[RECORD]["inputs"]

CHANGED = {
    "a setting": ({**WHOLE, "fmax": 0.1}, "fmax was 0.05, and is 0.1 now"),
    "an input": (
        record(inputs=[*INPUTS[:2], INPUTS[2] | {"sha256": "9"}]),
        "c.xyz was 'SHA-256 22'",
    ),
    "one of equal names": (record(inputs=[INPUTS[1], INPUTS[0], INPUTS[2]]), "was 'SHA-256 00'"),
    "fewer inputs": (record(inputs=INPUTS[:2]), "c.xyz was 'SHA-256 22', and is not given now"),
    "another order": (
        record(inputs=[INPUTS[2], *INPUTS[:2]]),
        "file 0 was 'in.xyz', and is 'c.xyz'",
    ),
    "a file of weights": (
        record(named=[WHOLE[RECORD]["named"][0] | {"sha256": "9"}]),
        "a/w.pt was 'SHA-256 33'",
    ),
    "a missing module": (record(modules=[]), "module m was 'SHA-256 44', and is not given now"),
    "a version": (versions(**{"mace-torch": "2"}), "version of mace-torch was '1', and is '2' now"),
    "a new package of every run": (versions(vesin="1"), "version of vesin is '1', and was not"),
    "a switch": (record(switches={}), "XLA_FLAGS was '--a', and is not given now"),
    "fewer multiprocessors": (record(device="NVIDIA H100, 114 multiprocessors"), "device was"),
    "a processor": (record(processor="arm64"), "processor was 'x86_64', and is 'arm64' now"),
    "threads": (record(threads="8"), "threads was '2', and is '8' now"),
    "a shard": (record(shard="2/2"), "shard was '1/2', and is '2/2' now"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_decides_numbers_is_a_change(name):
    now, said = CHANGED[name]
    found = changes(WHOLE, now)
    assert found and any(said in text for text in found)


SAME = {
    "a kernel of the system": versions(system="Linux-6.2"),
    "a module that is loaded late": versions(torch="2"),
    "other folders": {
        **WHOLE,
        "files": ["/y/in.xyz"],
        "potential": "ase:m:C,model=/y/w.pt",
        RECORD: WHOLE[RECORD]
        | {
            "folder": "/y",
            "inputs": [x | {"file": x["file"].replace("/x", "/y")} for x in INPUTS],
            "named": [{"name": "/y/w.pt", "file": "/y/w.pt", "sha256": "33"}],
            "modules": [{"module": "m", "file": "/y/m.py", "sha256": "44"}],
        },
    },
    "workers": {**WHOLE, "workers": 8, "devices": 2},
    "cores, cache and times": record(cores=64, cache="/c", started="2027-01-01T00:00:00+00:00"),
    "a device that is not known yet": record(device="", processor="", threads=""),
}


@pytest.mark.parametrize("name", SAME)
def test_what_decides_no_number_is_no_change(name):
    assert changes(WHOLE, checked(SAME[name], "run.toml")) == []


def test_what_only_another_machine_has_loaded_is_no_change_but_a_package_of_every_run_is():
    """As parts of one input, and processes of one run, which load modules at other times."""
    fewer = record(modules=[], versions={"jax": "1"}, device="")[RECORD]
    both = joined(WHOLE[RECORD], fewer)
    assert changes(WHOLE, record(**both)) == []
    assert both["versions"].keys() == {"jax", "mace-torch", "system"}
    more = versions(vesin="1")
    kept = joined(more[RECORD], fewer)
    assert changes(more, record(**kept)) == ["version of vesin was '1', and is not given now"]


# --- where it comes from


def test_the_files_and_folders_that_a_potential_names_are_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("deep").mkdir()
    for name in ("w.pt", "emt", "out.txt", "deep/a.upf", "a,b.eam", "m.py", "m.nqx"):
        Path(name).write_text("1")
    found = {
        "emt": [],
        "ase:m:C,model=w.pt,k=3,pseudo_dir=deep,txt=out.txt,directory=deep,at=.": ["w.pt", "deep"],
        "ASE:m:C, model = w.pt": ["w.pt"],
        "eam:a,b.eam,format=alloy": ["a,b.eam"],
        "python:m.py:make": ["m.py"],
        "nequix:m.nqx,dtype=float64": ["m.nqx"],
        "nequix:m.nqx,dtype=float64,shapes=fine": ["m.nqx"],
        "nequix:m.nqx,shapes=fine,dtype=float64": ["m.nqx"],
        "lennard-jones:epsilon=1": [],
    }
    assert {text: named_in(text) for text in found} == found
    before = digest_of(Path("deep"))
    Path("deep/a.upf").write_text("2")
    assert len(before) == 64 and digest_of(Path("deep")) != before
    assert digest_of(Path("nowhere")) == "" == digest_of(Path("/dev/zero"))


def test_modules_are_known_by_their_distribution_or_by_their_file(tmp_path, monkeypatch):
    """Also where a package is installed in place: its version says nothing of its code."""
    site, place = tmp_path / "site", tmp_path / "place"
    for package, folder in {"mace": site, "inplace": place}.items():
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise RuntimeError('it runs')")
        info = site / f"{package}_torch-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}-torch\nVersion: 1.0\n")
        (info / "top_level.txt").write_text(package)
    monkeypatch.setattr(sys, "path", [str(site), str(place), *sys.path])
    files = {
        name: str(at / name / "__init__.py") for name, at in (("mace", site), ("inplace", place))
    }
    (site / "mace" / "part.py").write_text("")
    files["_part"] = str(site / "mace" / "part.py")
    distributions, entries = of_modules(files | {"os": os.__file__, "basinax": cli.__file__})
    assert distributions == {"mace-torch"}
    assert [entry["module"] for entry in entries] == ["inplace"]
    moved = [entries[0] | {"file": str(tmp_path / "nowhere.py")}]
    assert of_modules({}, moved) == (set(), entries)


def test_the_processor_counts_as_far_as_it_decides(monkeypatch):
    """A new kernel of the system changes the flags of weaknesses, which decide nothing."""
    lines = {"vendor_id": "A", "cpu family": "6", "flags": "fma avx2 md_clear", "model name": "B"}
    monkeypatch.setattr(processor, "described", lambda: lines)
    assert processor.instructions().endswith(", fma")
    kind = processor.kind_of_processor.__wrapped__()
    assert kind.endswith("vendor_id A, cpu family 6, avx2, fma")
    given = {"dtype": "float64", "potential": "emt", "optimizer": "fire"}
    monkeypatch.setattr(_record, "kind_of_processor", lambda: "kind")
    assert Making(given)()["processor"] == processor.instructions()
    assert Making(given | {"optimizer": "internal-lbfgs"})()["processor"] == "kind"
    assert Making(given | {"potential": "ase:a:B"})()["processor"] == "kind"
    flags = "--xla_b --xla_force_host_platform_device_count=8  --xla_a"
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert Making(given)()["switches"] == {"XLA_FLAGS": "--xla_a --xla_b"}
    assert "JAX_ENABLE_X64" in Making(given | {"dtype": "float32"})()["switches"]
    assert Making(given)()["versions"].keys() >= {"scipy", "numpy", "python", "basinax"}


# --- runs that go on


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with two crystals without forces."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ase.io.write("in.extxyz", [Atoms("Ar", cell=[5, 5, 5], pbc=True)] * 2)
    return tmp_path


def run(command, *arguments, code=0):
    ran = CliRunner().invoke(cli.app, [command, *map(str, arguments)])
    assert ran.exit_code == code, ran.output
    return " ".join(ran.output.split())


MODEL = """
from pathlib import Path
Path("it-ran").touch()
from ase.calculators.lj import LennardJones
class Model(LennardJones):
    def __init__(self, **options):
        super().__init__()
    def calculate(self, *args, **options):
        import late_of_a_model
        super().calculate(*args, **options)
"""


def test_what_a_worker_has_loaded_late_is_found_before_its_code_runs(folder):
    """Also after the folder of the run and its input was moved."""
    (folder / "model_of_a_test.py").write_text(MODEL)
    (folder / "late_of_a_model.py").write_text("")
    (folder / "weights.pt").write_text("1")
    (folder / "pot.toml").write_text(
        'potential = "ase:model_of_a_test:Model,weights=weights.pt"\nworkers = 1\n'
    )
    run("relax", "in.extxyz", "--potential", "pot.toml", "--run", "kept")
    modules = {entry["module"] for entry in read_config("kept/run.toml")[RECORD]["modules"]}
    assert {"model_of_a_test", "late_of_a_model"} <= modules
    (folder / "pot.toml").unlink()
    run("resume", "kept")
    (folder / "it-ran").unlink()
    changed = {
        "late_of_a_model.py": "module late_of_a_model was 'SHA-256",
        "weights.pt": "weights.pt was 'SHA-256",
    }
    for name, said in changed.items():
        before = (folder / name).read_text()
        (folder / name).write_text("changed = True")
        assert said in run("resume", "kept", code=2)
        (folder / name).write_text(before)
    assert not (folder / "it-ran").exists()


def test_a_changed_file_of_python_is_refused_before_it_runs(folder):
    Path("mine.py").write_text(f"from {EMT.__module__} import EMT\npotential = EMT('Ar')\n")
    record = {"potential": "python:mine.py:potential", "files": ["in.extxyz"]}
    Path("kept").mkdir()
    making = Making(record | {"dtype": "float64"})()
    entry = {"name": "mine.py", "file": str(folder / "mine.py"), "sha256": "00"}
    parts = {"named": [entry], "inputs": [], "folder": str(folder), "shard": "1/1"}
    whole = record | {RECORD: WHOLE[RECORD] | making | parts}
    Path("kept/run.toml").write_text(toml_of(whole, (RECORD,)))
    Path("mine.py").write_text("raise SystemExit('it ran')\n")
    said = run("resume", "kept", code=2)
    assert "mine.py was 'SHA-256 00'" in said and "it ran" not in said
    assert "mine.py was 'SHA-256 00'" in run(
        "relax", "--config", "kept/run.toml", "--run", "kept", code=2
    )


def test_runs_have_the_structures_that_ended_in_them():
    times = [f"2026-01-01T0{k}:00:00+00:00" for k in range(3)]
    first, second, third = (datetime.datetime.fromisoformat(x).timestamp() for x in times)
    record = {"started": times[0], "resumed": times[1:]}
    ended = [first - 1, first + 1, second, third + 0.5]
    spans = spans_of(record, ended)
    assert [span.structures for span in spans] == [2, 1, 1]
    assert [span.end for span in spans] == ["interrupted", "interrupted", "not ended"]
    assert spans_of(record | {"ended": times[2]}, ended)[-1].end == "ended"
    (alone,) = spans_of({"started": times[0]}, [])
    assert (alone.started, alone.structures, alone.last) == ("2026-01-01 00:00:00+00:00", 0, "")
