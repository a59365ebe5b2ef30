"""Runs on clusters of Ray: workers and machines that die, and the same bits."""

import dataclasses
import functools
import os
import sys
from pathlib import Path

import ase.io
import cloudpickle
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import add_adsorbate, fcc100
from typer.testing import CliRunner

from basinax import Status, cli
from basinax.cli import neb
from basinax.cli.console import BAD_INPUT
from basinax.results.record import Relaxed
from basinax.runs.folder import RunFolder
from basinax.runs.on_ray import relaxed_on_ray

ray = pytest.importorskip("ray", reason="ray is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

ARGON = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=8.5"


@pytest.fixture(scope="module")
def cluster():
    """Two machines of one core, as processes of this one."""
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import it
    yield made
    ray.shutdown()
    made.shutdown()


def entry(number: int) -> Relaxed:
    place = np.zeros((1, 3)), np.zeros((3, 3)), {}
    return Relaxed.of(Atoms("H"), *place, steps=number, status=Status.CONVERGED, source="")


def numbers_of(stream) -> list[int]:
    return sorted(number for ended in stream for number, _ in ended)


class Deadly:
    """Ends the process that relaxes a structure, so many times."""

    def __init__(self, folder: Path, number: int, times: int):
        self.folder, self.number, self.times = folder, number, times

    def __call__(self, window):
        deaths = len(list(self.folder.iterdir()))
        if self.number in window and deaths < self.times:
            (self.folder / str(deaths)).touch()
            os._exit(1)
        return [(number, entry(number)) for number in window]


def test_a_worker_that_dies_costs_nothing_but_what_it_had(cluster, tmp_path):
    stream = relaxed_on_ray(iter(range(50)), Deadly(tmp_path, 17, 2), lambda: False, "auto", size=4)
    assert numbers_of(stream) == list(range(50))
    assert len(list(tmp_path.iterdir())) == 2


def test_structures_that_end_every_worker_end_the_run(cluster, tmp_path):
    stream = relaxed_on_ray(iter(range(50)), Deadly(tmp_path, 17, 9), lambda: False, "auto", size=4)
    with pytest.raises(RuntimeError, match="3 workers have died with the same 4 structures"):
        numbers_of(stream)


def _wrong(window):
    raise ValueError("fmax must be a number")


def test_an_error_of_the_call_is_that_of_the_worker(cluster):
    with pytest.raises(ValueError, match="fmax must be a number"):
        numbers_of(relaxed_on_ray(iter(range(5)), _wrong, lambda: False, "auto"))


def test_what_a_worker_says_of_itself_is_admitted_before_its_results(cluster):
    def refuse(made: str) -> None:
        raise ValueError(f"the device was 'cpu', and is {made!r} now")

    describe, numbers = lambda: "another", iter(range(5))
    stream = relaxed_on_ray(numbers, _slowly, lambda: False, "auto", describe, refuse)
    with pytest.raises(ValueError, match="and is 'another' now"):
        numbers_of(stream)


def _tell(value, window):
    return [(number, dataclasses.replace(entry(number), energy=float(value))) for number in window]


def test_numbers_reach_a_worker_in_the_precision_of_the_run(cluster):
    """A process of Ray begins in single precision."""
    tell = functools.partial(_tell, jnp.array(1 / 3))
    (ended,) = relaxed_on_ray(iter(range(2)), tell, lambda: False, "auto")
    assert [entry.energy for _, entry in ended] == [1 / 3] * 2


def test_a_machine_that_goes_costs_nothing_but_what_it_had(cluster):
    machine = cluster.add_node(num_cpus=1)
    seen = []
    stream = relaxed_on_ray(iter(range(60)), _slowly, lambda: False, "auto", size=2)
    for ended in stream:
        seen += [number for number, _ in ended]
        if machine is not None and len(seen) > 10:
            cluster.remove_node(machine, allow_graceful=False)
            machine = None
    assert sorted(seen) == list(range(60))


def _slowly(window):
    import time

    time.sleep(0.2)
    return [(number, entry(number)) for number in window]


def test_a_run_that_is_stopped_gives_back_what_has_ended(cluster):
    seen: list[int] = []
    stream = relaxed_on_ray(iter(range(1000)), _slowly, lambda: len(seen) > 20, "auto", size=2)
    for ended in stream:
        seen += [number for number, _ in ended]
    assert 20 < len(seen) < 100


def assert_same_results(n: int) -> None:
    """Of the runs "here" and "there"."""
    here, there = (list(RunFolder(name).results.entries()) for name in ("here", "there"))
    assert len(here) == len(there) == n
    for (number, ours), (k, theirs) in zip(here, there, strict=True):
        assert number == k
        assert np.array_equal(ours.atoms.positions, theirs.atoms.positions)
        assert (ours.status, ours.steps, ours.message) == (
            theirs.status,
            theirs.steps,
            theirs.message,
        )


def test_a_run_on_a_cluster_has_the_bits_of_one_without(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    made = [Atoms("Ar3", 3.8 * np.eye(3) + rng.normal(0, 0.2, (3, 3))) for _ in range(12)]
    made[5] = Atoms("Ar2", pbc=True)
    ase.io.write("argon.extxyz", made)
    options = ["argon.extxyz", "--potential", ARGON]
    for more in (["here"], ["there", "--ray", "auto"]):
        ran = CliRunner().invoke(cli.app, ["relax", *options, "--run", *more])
        assert ran.exit_code == 0, ran.output
    assert_same_results(12)


def test_an_unusable_structure_is_refused_where_no_folder_is_asked_for(
    cluster, tmp_path, monkeypatch
):
    """As without a cluster, before the run."""
    monkeypatch.chdir(tmp_path)
    ase.io.write("argon.extxyz", [Atoms("Ar3", 3.8 * np.eye(3)), Atoms("Ar2", pbc=True)])
    refused = []
    for more in ([], ["--ray", "auto"]):
        ran = CliRunner().invoke(cli.app, ["relax", "argon.extxyz", "--potential", ARGON, *more])
        assert ran.exit_code == BAD_INPUT
        refused.append(ran.stderr)
    assert refused[0] == refused[1]
    assert "argon.extxyz@1 (Ar2) has pbc" in refused[0]
    assert os.listdir() == ["argon.extxyz"]


def test_paths_on_a_cluster_have_the_bits_of_paths_without(cluster, tmp_path, monkeypatch):
    """The workers share them, since each has one path at a time."""
    monkeypatch.chdir(tmp_path)
    files = []
    for k, adatom in enumerate(("Al", "Cu", "Au")):
        start = fcc100("Al", (2, 2, 2), vacuum=4.0)
        add_adsorbate(start, adatom, 1.8, "hollow")
        end = start.copy()
        end.positions[-1, 0] += start.cell[0, 0] / 2
        files.append(f"{k}.traj")
        ase.io.write(files[-1], [start, end])
    ase.io.write("none.traj", start)
    monkeypatch.setattr(neb, "PATHS", neb.PATHS._replace(window=1))
    options = [*files, "none.traj", "--potential", "emt", "--images", "4", "--fmax", "0.4"]
    for name, *more in (["here"], ["there", "--ray", "auto"]):
        outputs = ["--output", f"{name}.extxyz", "--table", f"{name}.csv"]
        ran = CliRunner().invoke(cli.app, ["neb", *options, "--run", name, *outputs, *more])
        assert ran.exit_code == 0, ran.output
    assert Path("here.extxyz").read_bytes() == Path("there.extxyz").read_bytes()
    assert_same_results(4)
