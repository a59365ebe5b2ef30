"""ASE's own seven systems for testing optimizers with EMT, as one batch beside ASE."""

import ase.optimize
import numpy as np
import pytest
from ase.calculators.emt import EMT as ASEEMT
from ase.optimize.test.systems import get_systems

import basinax
from basinax.atoms import EMT, relax
from cover import exhaustive

pytestmark = pytest.mark.usefixtures("few_shapes")


class CountingEMT(ASEEMT):
    count = 0

    def calculate(self, *arguments):
        self.count += 1
        super().calculate(*arguments)


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        exhaustive(basinax.FIRE(), ase.optimize.FIRE),  # every day on others in test_emt.py
        exhaustive(basinax.BFGSLineSearch(), ase.optimize.BFGSLineSearch),
    ],
)
def test_steps_evaluations_and_minima_are_those_of_ase(optimizer, reference, recorded):
    """Molecules, a crystal, slabs with adsorbates and fixed atoms, a cluster."""
    atoms = [a for a, _ in get_systems()]
    result = relax(atoms, EMT(), optimizer, fmax=0.01, max_steps=1000)
    expected = recorded(ends_of_ase, reference, atoms)
    assert result.steps.tolist() == expected["steps"].tolist()
    assert result.evaluations.tolist() == expected["evaluations"].tolist()
    np.testing.assert_allclose(result.energies, expected["energies"], rtol=0, atol=1e-9)


def ends_of_ase(optimizer, atoms):
    ends = []
    for a in atoms:
        a.calc = CountingEMT()
        run = optimizer(a, logfile=None)
        assert run.run(fmax=0.01, steps=1000)
        ends.append((run.nsteps, a.calc.count, a.get_potential_energy()))
    columns = map(np.array, zip(*ends, strict=True))
    return dict(zip(("steps", "evaluations", "energies"), columns, strict=True))
