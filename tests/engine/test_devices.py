"""Structures that several devices share, from one queue: the same bits for any number of them."""

import os
import subprocess
import sys

import jax
import pytest
from ase.build import bulk
from ase.calculators.lj import LennardJones as ASELennardJones

from basinax import FIRE
from basinax.atoms import InternalLBFGS, LennardJones, relax, relax_stream
from basinax.engine import hosted
from basinax.engine.queue import Monitor
from basinax.engine.relax import run_settings
from basinax.engine.workers import lanes_of
from basinax.numerics.xla import has_cheap_branches
from basinax.structures.machine import CPU, GPU, machine
from basinax.structures.read import intake

SCRIPT = """
import ase.io
import jax
import jax.numpy as jnp
import numpy as np
from ase.build import bulk
from typer.testing import CliRunner

from basinax import FIRE, cli
from basinax.atoms import JaxModel, LennardJones, relax, relax_stream
from basinax.models import session
from basinax.numerics import xla
from basinax.runs.folder import RunFolder
from basinax.engine import hosted, on_device
from basinax.structures import machine

jax.config.update("jax_enable_x64", True)
xla.SWITCHES["options"] = False
machine.CPU.max_rows, machine.CPU.few_rows = 32, 8
ARGON = LennardJones(epsilon=0.0104, sigma=3.40, cutoff=5.0)
atoms = [bulk("Ar", a=5.2 + 0.02 * k, cubic=True) for k in range(12)]
for k, a in enumerate(atoms):
    a.rattle(0.1, seed=k)

used = set()
for programs, run_of in (
    (on_device.advance_block, lambda x: x[0]),
    (on_device.noted, lambda x: x[0][0]),
):
    for is_short in (False, True):
        def seen(*arguments, program=programs[is_short], run_of=run_of):
            found = program(*arguments)
            used.update(run_of(found).point.params.devices())
            return found

        programs[is_short] = seen


def bits(found):
    return [
        (entry.energy, entry.fmax, entry.steps, entry.evaluations, entry.atoms.positions.tobytes())
        for entry in found
    ]


def run(devices):
    used.clear()
    return bits(relax(atoms, ARGON, FIRE(), fmax=0.01, devices=devices))


assert len(jax.devices()) == 2
alone = run(None)
assert used == {jax.devices()[0]}, used
assert run(2) == alone
assert used == set(jax.devices()), used
assert run(jax.devices()[1:2]) == alone
assert used == {jax.devices()[1]}, used
streamed = relax_stream(iter(atoms), ARGON, FIRE(), fmax=0.01, devices=2, at_once=7)
assert bits(entry for _, entry in sorted(streamed)) == alone

ase.io.write("argon.traj", atoms)
potential = "lennard-jones:epsilon=0.0104,sigma=3.40,cutoff=5.0"
options = ["argon.traj", "--potential", potential, "--optimizer", "fire", "--fmax", "0.01"]
for more in (["one"], ["two", "--devices", "2"]):
    used.clear()
    ran = CliRunner().invoke(cli.app, ["relax", *options, "--run", *more])
    assert ran.exit_code == 0, ran.output
    assert len(used) == max(len(more) - 1, 1), used
found = [bits(entry for _, entry in RunFolder(name).results.entries()) for name in ("one", "two")]
assert found == [alone, alone]
ran = CliRunner().invoke(cli.app, ["relax", *options, "--run", "three", "--devices", "3"])
assert ran.exit_code == 2 and "devices must be at most 2" in ran.output, ran.output


def springs(vectors, numbers, senders, receivers):
    lengths = jnp.sqrt((vectors * vectors).sum(axis=1))
    within = jnp.where(lengths < 5.0, (lengths - 3.5) ** 2 * (5.0 - lengths) ** 2, 0.0)
    return jnp.zeros(numbers.shape, vectors.dtype).at[receivers].add(0.01 * within)


evaluate = session.evaluate


def seen(*arguments):
    found = evaluate(*arguments)
    used.update(found.energies.devices())
    return found


session.evaluate = seen
model = JaxModel.of_vectors(springs, 5.0, dtype="float64")


def run_model(devices, **options):
    used.clear()
    return bits(relax(atoms[:6], model, FIRE(), max_steps=4, devices=devices, **options))


alone = run_model(None)
assert used == {jax.devices()[0]}, used
assert run_model(2) == alone
assert used == set(jax.devices()), used

# As beside a GPU, where the turns of the loop run on another device than evaluations.
moving = {"cell": "frechet", "keep_best": True, "history": True}
alone_moving, turns, turn = run_model(None, **moving), set(), hosted._turn


def seen_turn(*arguments):
    found = turn(*arguments)
    turns.update(*(x.devices() for x in jax.tree.leaves(found[0].point)))
    return found


hosted._turn, hosted.cpu_beside = seen_turn, lambda: jax.devices()[1]
assert run_model(None) == alone
assert run_model(None, **moving) == alone_moving
assert used == {jax.devices()[0]}, used
assert turns == {jax.devices()[1]}, turns
"""


@pytest.mark.exhaustive
def test_any_number_of_devices_gives_the_same_bits(tmp_path):
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"XLA_FLAGS": flags},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("devices", "error", "says"),
    [
        (0, ValueError, "devices must be at least 1"),
        (1000, ValueError, "devices must be at most"),
        ([], TypeError, "devices must be some of JAX, or their number"),
        ("cpu", TypeError, "devices must be some of JAX, or their number"),
        (1.5, TypeError, "devices must be some of JAX, or their number"),
        ([jax.local_devices()[0]] * 2, ValueError, "devices must differ"),
    ],
)
def test_what_are_no_devices_raise(devices, error, says):
    with pytest.raises(error, match=says):
        lanes_of(devices)
    with pytest.raises(error, match=says):
        relax_stream([], LennardJones(), FIRE(), devices=devices)


def test_calculators_take_no_devices():
    with pytest.raises(TypeError, match="devices is for potentials that JAX evaluates"):
        relax([bulk("Ar")], None, FIRE(), devices=1)
    for options in ({"devices": 1}, {"skin": 1.0}):
        with pytest.raises(TypeError, match="skin and devices are for batches of a potential"):
            relax([bulk("Ar")], LennardJones(), InternalLBFGS(), **options)


def test_a_default_device_that_is_set_is_the_one():
    with jax.default_device(jax.local_devices()[0]):
        assert set(lanes_of(None)) == {None}


@pytest.fixture
def beside_gpu(monkeypatch):
    """As where JAX's default device is a GPU; the CPU is the only device all the same."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    return jax.local_devices(backend="cpu")[0]


def test_constants_are_those_of_the_device_that_is_used(beside_gpu):
    assert machine() is GPU
    assert not has_cheap_branches()
    assert machine(beside_gpu) is CPU
    for chosen in (beside_gpu, "cpu"):
        with jax.default_device(chosen):
            assert machine() is CPU
            assert has_cheap_branches()


def test_cpus_beside_a_gpu_have_a_batch_per_core(beside_gpu, monkeypatch):
    monkeypatch.setattr("basinax.engine.groups.n_cores", lambda: 3)
    assert len(lanes_of([beside_gpu])) == 3
    cells = [bulk("Ar")] * 2
    settings = run_settings(LennardJones(), FIRE(), n_structures=2, devices=[beside_gpu])
    (group,) = settings.groups(intake(cells), Monitor(None, lambda: False), None)
    assert group.shape[0] <= CPU.few_rows


def test_turns_of_evaluated_structures_are_those_of_the_cpu(beside_gpu, monkeypatch):
    seen, turn = [], hosted._turn

    def seen_turn(*arguments):
        seen.append(machine())
        return turn(*arguments)

    monkeypatch.setattr(hosted, "_turn", seen_turn)
    atoms = bulk("Ar")
    atoms.calc = ASELennardJones()
    relax([atoms], None, FIRE(), max_steps=2)
    assert seen
    assert all(of is CPU for of in seen)
