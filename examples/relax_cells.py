"""Relax cells with their atoms: metals under several pressures, and a slab whose height is fixed.

python examples/relax_cells.py
"""

import jax
import numpy as np
from ase import units
from ase.build import bulk, fcc111
from ase.constraints import FixAtoms

from basinax import LBFGS
from basinax.atoms import EMT, Frechet, MaxAtomForce, MaxStress, relax

jax.config.update("jax_enable_x64", True)

pressures = np.array([0.0, 5.0, 20.0]) * units.GPa  # in eV/Å³
crystals = [bulk("Cu", cubic=True, a=3.5) for _ in pressures]
for seed, atoms in enumerate(crystals):
    atoms.rattle(0.05, seed=seed)

slab = fcc111("Al", (2, 2, 4), a=4.1, vacuum=8.0, periodic=True)
slab.set_constraint(FixAtoms(mask=slab.positions[:, 2] < slab.positions[:, 2].mean()))

cells = [Frechet(pressure=p) for p in pressures]
cells.append(Frechet(mask=(True, True, False, False, False, True)))  # xx, yy and xy may move

# Forces and stress have tolerances of their own here; fmax=0.01 would be ASE's criterion.
done = MaxAtomForce(0.01) & MaxStress(1e-4)
result = relax([*crystals, slab], EMT(), LBFGS(), cell=cells, convergence=done)
assert result.converged.all()

for pressure, atoms in zip(pressures, result.atoms, strict=False):
    volume = atoms.get_volume() / len(atoms)
    print(f"{pressure / units.GPa:5.1f} GPa  {volume:7.3f} Å³ an atom")
a, _, c = result.atoms[-1].cell.lengths()
print(f"slab: a = {a:.3f} Å, height {c:.3f} Å as before")
assert np.isclose(c, slab.cell.lengths()[2])
