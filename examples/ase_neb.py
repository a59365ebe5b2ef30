"""ASE's nudged elastic band on a potential of basinax: a gold atom hops on aluminium.

The system is that of ASE's tutorial "Surface diffusion energy barriers using NEB".

    python examples/ase_neb.py
"""

import jax
import numpy as np
from ase.build import add_adsorbate, fcc100
from ase.calculators.emt import EMT as ASEEMT
from ase.constraints import FixAtoms
from ase.mep import NEB
from ase.optimize import BFGS

from basinax.atoms import EMT, relax

jax.config.update("jax_enable_x64", True)

slab = fcc100("Al", size=(2, 2, 3))
add_adsorbate(slab, "Au", 1.7, "hollow")
slab.center(axis=2, vacuum=4.0)
slab.set_constraint(FixAtoms([atom.index for atom in slab if atom.tag > 1]))
moved = slab.copy()
moved.positions[-1, 0] += slab.cell[0, 0] / 2

# Both ends relax in one batch. Images share a calculator: each is evaluated by itself.
ends = relax([slab, moved], EMT(), fmax=0.02).atoms
calculator = EMT().calculator()
images = [ends[0], *[ends[0].copy() for _ in range(3)], ends[1]]
for image in images:
    image.calc = calculator
band = NEB(images, allow_shared_calculator=True, method="improvedtangent")
band.interpolate()
assert BFGS(band, logfile=None).run(fmax=0.05, steps=100)

energies = np.array([image.get_potential_energy() for image in images])
barrier = energies.max() - energies[0]
print(f"barrier {barrier:.3f} eV, image energies {np.round(energies - energies[0], 3)}")

for image in images:
    image.calc = ASEEMT()
of_ase = np.array([image.get_potential_energy() for image in images])
assert np.abs(energies - of_ase).max() < 1e-6
