"""Runs that are kept in a database of a PostgreSQL server, by several processes at a time."""

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

from basinax import Status, cli
from basinax.atoms._result import Relaxed
from basinax.atoms._runs.kept import kept_in
from basinax.atoms._runs.results import Results
from basinax.atoms._runs.stores import ServerDatabase

psycopg2 = pytest.importorskip("psycopg2", reason="psycopg2 is not installed")
pytest.importorskip("ase_db_backends", reason="ase-db-backends is not installed")

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"
N = 12


def programs() -> Path | None:
    """Where those of a server are."""
    found = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return Path(found).parent if found else folders[-1].parent if folders else None


@pytest.fixture(scope="module")
def server():
    """The address of a server of this module, which is not root's."""
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL is installed")
    user = None if os.geteuid() else "postgres"
    if user is not None and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = tempfile.mkdtemp(dir="/tmp", prefix="basinax-")
    if user is not None:
        shutil.chown(place, user)
    how = {"user": user, "cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    make = [folder / "initdb", "-D", place, "-U", "postgres", "-A", "trust", "--no-sync"]
    subprocess.run(make, check=True, **how)
    options = ["-p", str(port), "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    running = subprocess.Popen([folder / "postgres", "-D", place, *options], **how)
    address = f"postgresql://postgres:secret@127.0.0.1:{port}"
    try:
        while not is_there(address):
            assert running.poll() is None, "the server has ended"
            time.sleep(0.1)
        yield address
    finally:
        running.send_signal(signal.SIGINT)
        running.wait()
        shutil.rmtree(place)


def is_there(address: str) -> bool:
    try:
        psycopg2.connect(f"{address}/postgres").close()
    except psycopg2.OperationalError:
        return False
    return True


NUMBERS = itertools.count()


@pytest.fixture
def place(server, tmp_path, monkeypatch):
    """The address of an empty database; twelve clusters lie in the working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    sites = 3.8 * np.array(list(np.ndindex(2, 2, 2)), float)
    made = []
    for k in range(N):
        n = 2 + k % 4
        made.append(Atoms(f"Ar{n}", sites[:n] + rng.normal(0, 0.2, (n, 3))))
    ase.io.write("argon.extxyz", made)
    name = f"run{next(NUMBERS)}"
    with closing(psycopg2.connect(f"{server}/postgres")) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


def run(command, *arguments, code=0):
    ran = CliRunner().invoke(cli.app, [command, *map(str, arguments)])
    assert ran.exit_code == code, ran.output
    assert "secret" not in ran.output
    return " ".join(ran.output.split())


def relax(*arguments, code=0):
    return run("relax", "argon.extxyz", "--potential", ARGON, *arguments, code=code)


def exported(place: str) -> bytes:
    run("export", place, "--output", "exported.extxyz", "--overwrite")
    return Path("exported.extxyz").read_bytes()


def numbers_in(place: str) -> list[int]:
    return [brief.number for brief in kept_in(place).results.briefs()]


@pytest.fixture
def whole(place) -> bytes:
    relax("--output", "whole.extxyz")
    return Path("whole.extxyz").read_bytes()


def test_a_database_of_a_server_keeps_the_bits_of_a_run_without_one(place, whole):
    assert "12 of 12 structures" in relax("--run", place)
    assert sorted(numbers_in(place)) == list(range(N))
    assert exported(place) == whole
    assert "12 of 12 structures, 0 of them now" in run("resume", place)
    run("report", place, "--output", "page.html")
    assert "argon.extxyz@3" in Path("page.html").read_text()
    assert "history=True" not in Path("page.html").read_text()


def test_a_row_of_a_server_comes_back_in_its_bits(place):
    atoms = Atoms("OH2", [[0.1, -0.0, 1e-310], [1 / 3, 1e22, 2], [0, 0, 1]], pbc=(1, 0, 0))
    atoms.set_cell([4, 5, 6])
    atoms.info |= {"name": "7", "weights": np.arange(3.0) / 3}
    atoms.calc = SinglePointCalculator(atoms)
    atoms.calc.results |= {"energy": -1 / 3, "forces": np.array([[-0.0, np.inf, 1e-9]] * 3)}
    entry = Relaxed(atoms, -1 / 3, np.inf, 3, 4, Status.MAX_STEPS, "7", "", 1e16, 0.1, np.nan, None)
    results = Results(ServerDatabase(place))
    results.add([(12, entry), (3, entry)])
    (_, again), (number, back) = results.entries()
    assert number == 12
    assert back.atoms.positions.tobytes() == atoms.positions.tobytes()
    assert back.atoms == again.atoms == atoms
    assert repr(back[1:]) == repr(entry[1:])
    assert back.atoms.calc.results["forces"].tobytes() == atoms.calc.results["forces"].tobytes()
    assert np.array_equal(back.atoms.info["weights"], atoms.info["weights"])


HOLDING = """
import os, sys, time
from basinax import cli
from basinax.atoms._runs.results import Results
from basinax.cli import _keeping

_keeping.BLOCK = 2
add, file = Results.add, sys.argv.pop()

def when_it_may(self, entries):
    print("has", *(number for number, _ in entries), flush=True)
    while not os.path.exists(file):
        time.sleep(0.05)
    add(self, entries)

Results.add = when_it_may
sys.argv[1:1] = ["relax"]
cli.main()
"""


@pytest.fixture
def begin(place):
    """Begins processes that work on the run, two structures at a time, and have got some.

    They keep these, and go on, once there is a file.
    """
    begun = []

    def process(file: str) -> subprocess.Popen:
        options = ["argon.extxyz", "--potential", ARGON, "--run", place]
        command = [sys.executable, "-c", HOLDING, *options, file]
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert begun[-1].stdout.readline().startswith("has")
        return begun[-1]

    yield process
    for one in begun:
        one.kill()
        one.communicate()


def test_two_processes_share_a_run_and_do_nothing_twice(place, whole, begin):
    both = [begin("go") for _ in range(2)]
    Path("go").touch()
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("12 of 12 structures" in text for text in said)
    assert sorted(numbers_in(place)) == list(range(N))
    assert exported(place) == whole


def test_what_a_process_that_is_killed_has_claimed_is_done_by_the_other(place, whole, begin):
    Path("go").touch()
    first = begin("never")
    second = begin("go")
    while len(numbers_in(place)) < N - 2:
        assert second.poll() is None
        time.sleep(0.2)
    assert second.poll() is None, "it waits for what the first one has"
    first.kill()
    assert "12 of 12 structures" in second.communicate(timeout=300)[0]
    assert sorted(numbers_in(place)) == list(range(N))
    assert exported(place) == whole


def test_a_run_on_a_server_does_not_go_on_with_other_settings(place):
    relax("--run", place, "--time-limit", "0s", code=4)
    assert "fmax was 0.05, and is 0.01 now" in relax("--run", place, "--fmax", 0.01, code=2)
    assert "warning: fmax was" in relax("--run", place, "--fmax", 0.01, "--force")


def test_what_is_no_run_on_a_server_is_left_alone(server, place):
    assert "is no database of a run: it is empty" in run("resume", place, code=2)
    with ServerDatabase(place).transaction() as database:
        database.write(Atoms("H"))
    said = relax("--run", place, code=2)
    assert "is no database of a run: it has rows, and no record" in said
    assert "does not exist" in relax("--run", f"{server}/nowhere", code=2)
    nobody = "postgresql://postgres:secret@127.0.0.1:1/x"
    assert "postgres@127.0.0.1:1/x cannot be used" in relax("--run", nobody, code=2)


def test_without_its_package_the_error_says_how_to_install_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    assert "pip install 'basinax[postgresql]'" in relax("--run", place, code=2)
