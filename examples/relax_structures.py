"""Relax a folder's structures with a potential, and look at what became of each.

python examples/relax_structures.py
"""

from pathlib import Path

import ase.io
import jax

from basinax import FIRE
from basinax.atoms import LennardJones, relax

jax.config.update("jax_enable_x64", True)

folder = Path(__file__).parent / "data"
structures = ase.io.read(folder / "clusters.extxyz", ":") + ase.io.read(
    folder / "slabs.extxyz", ":"
)

# Published parameters for all four noble gases; one number serves all pairs, or one for each.
potential = LennardJones.named("Ne", "Ar", "Kr", "Xe", cutoff=8.5)

# Limits may differ between structures: the larger ones get more steps here.
max_steps = [100 if len(atoms) < 20 else 300 for atoms in structures]
result = relax(structures, potential, FIRE(), fmax=0.005, max_steps=max_steps)

print(f"{'formula':>8}  {'status':>10}  {'steps':>5}  {'energy (eV)':>12}")
for atoms, status, steps in zip(result.atoms, result.status, result.steps, strict=True):
    energy = atoms.get_potential_energy()
    print(f"{atoms.get_chemical_formula():>8}  {status:>10}  {steps:5}  {energy:12.6f}")

assert result.converged.all()
