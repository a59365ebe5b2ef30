"""Objects of scripts in other processes: classes that cannot be imported there."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path

import equinox as eqx

from basinax.models.packing import packed


class Base(eqx.Module):
    depth: float
    kind: str = eqx.field(static=True, default="base")


class Derived(Base):
    width: tuple[float, float] = (1.0, 2.0)
    depth: float = 3.0

    def other(self):
        return Derived(width=self.width, depth=9.0)


class Counted(eqx.Module):
    numbers: list
    n: int = eqx.field(static=True)

    def __init__(self, n):
        self.numbers, self.n = list(range(n)), n


one = Derived(kind="mine", depth=5.0, width=(6.0, 7.0))
Path(sys.argv[1]).write_bytes(packed([one, one.other, Base(8.0), Counted(3)]))
"""

LOADED = """
import pickle, sys

import jax

with open(sys.argv[1], "rb") as file:
    found = pickle.load(file)
one, other, base, counted = found
print([jax.tree.leaves(x) for x in (one, other(), base, counted)])
print(jax.tree.map(lambda x: -x, one), jax.tree.structure(one) == jax.tree.structure(other()))
print(type(other()) is type(one), counted.n, jax.tree.map(lambda x: x, base).kind)
"""

POTENTIAL = """
import equinox as eqx
import jax.numpy as jnp
from ase.build import bulk

from basinax import product
from basinax.atoms import AbstractAtomEnergyPotential, ASECalculator, evaluate, probe


class Copper(AbstractAtomEnergyPotential):
    depth: float = 1.224
    species: tuple[str, ...] = eqx.field(static=True, default=("Cu",))

    def reach(self):
        return jnp.full((1, 1), 4.0)

    def energy(self, near):
        left = jnp.clip(4.0 - near.distances, 0, 1)
        smooth = left**3 * (10 - 15 * left + 6 * left**2)
        energies = product(self.depth * jnp.exp(-near.distances), smooth)
        return jnp.sum(energies, where=near.is_there)


copper = Copper(depth=2.0)


def main():
    import jax

    jax.config.update("jax_enable_x64", True)
    crystals = [bulk("Cu", a=3.5), bulk("Cu", a=3.6, cubic=True)]
    found = probe(copper, crystals)
    there = evaluate(crystals, ASECalculator(lambda: copper.calculator(), workers=1))
    print([x.name for x in found.findings if not x.is_kept], found.not_tried)
    print((evaluate(crystals, copper).energies == there.energies).all())


if __name__ == "__main__":
    main()
"""


def said_by(*arguments) -> list[str]:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_classes_of_equinox_keep_their_fields_in_another_process(tmp_path):
    script, loaded, sent = (tmp_path / name for name in ("script.py", "loaded.py", "sent"))
    script.write_text(SCRIPT)
    loaded.write_text(LOADED)
    said_by(script, sent)
    leaves, tree, same = said_by(loaded, sent)
    assert leaves == "[[5.0, 6.0, 7.0], [9.0, 6.0, 7.0], [8.0], [0, 1, 2]]"
    assert tree == "Derived(depth=-5.0, kind='mine', width=(-6.0, -7.0)) False"
    assert same == "True 3 base"


@pytest.mark.exhaustive
def test_a_potential_of_a_script_has_its_numbers_in_other_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(POTENTIAL)
    assert said_by(script) == ["[] ", "True"]
