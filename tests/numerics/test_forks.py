"""A process that was forked from one that had used JAX is refused, where it would wait forever."""

import os
import subprocess
import sys

import pytest

FORK = """
import os, warnings
warnings.simplefilter("ignore")
import numpy as np
import basinax, jax
{before}
child = os.fork()
if child == 0:
    try:
        {after}
    except RuntimeError as error:
        print(error, flush=True)
    else:
        print("nothing raised", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(jax.config.jax_num_cpu_devices, flush=True)
"""
CALLS = [
    "basinax.relax(lambda x: (x.sum()[None], x), np.ones((2, 3)), basinax.FIRE())",
    "basinax.SystemIndex.from_sizes([2, 1])",
    "basinax.SystemIndex.from_ids([0, 1])",
    "basinax.atoms.LennardJones()",
    "basinax.atoms.Morse()",
    "basinax.atoms.Buckingham.named('BKS')",
    "basinax.atoms.ZhouEAM('Cu')",
    "basinax.atoms.EMT()",
    "basinax.atoms.StillingerWeber.named('Si')",
    "basinax.atoms.Tersoff.named('Si')",
    "basinax.atoms.relax_stream([], MADE)",
    "MADE.calculator().get_potential_energy(ase.Atoms('Ar'))",
    "basinax.atoms.EAM(['Cu'], *TABLES, drho=1, dr=1, cutoff=8)",
]


def forked(before: str, after: str) -> list[str]:
    """The lines that the child and then the parent print."""
    code = FORK.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout.splitlines()


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_after_jax_has_been_used_a_fork_is_refused():
    tried = "\n        ".join(f"say(lambda: {call})" for call in CALLS)
    before = """
import ase, basinax.atoms
def say(call):
    try:
        call()
    except RuntimeError as error:
        print(error, flush=True)
TABLES = np.zeros((1, 9)), *[np.zeros((1, 1, 9))] * 2
MADE = basinax.atoms.LennardJones()
jax.numpy.ones(2)
"""
    *said, end, devices = forked(before, tried)
    assert len(said) == len(CALLS)
    assert [text for text in said if 'start processes with "spawn"' not in text] == []
    assert (end, devices) == ("nothing raised", "-1")


def test_before_jax_is_used_a_fork_does_no_harm():
    said = forked("", "basinax.SystemIndex.from_sizes([2, 1]); jax.numpy.ones(2)")
    assert said == ["nothing raised", "-1"]
