"""A stand-in for `relax` in tests of the command line, which need no numbers."""

import numpy as np

from basinax import Status
from basinax.atoms import AtomsRelaxation, Relaxed


class Relaxation:
    """Stands in for `relax`, while which other things may happen."""

    def __init__(self):
        self.is_done = False
        self.meanwhile = lambda: None
        self.atoms, self.settings = [], {}
        """Of the last call."""

    def __call__(self, atoms, **settings):
        self.is_done = True
        self.atoms, self.settings = atoms, settings
        self.meanwhile()
        return AtomsRelaxation([_relaxed(a) for a in atoms])


def _relaxed(atoms):
    found = {"energy": -1.0, "forces": np.zeros((len(atoms), 3))}
    return Relaxed.of(
        atoms,
        atoms.positions,
        atoms.cell.array,
        found,
        energy=-1.0,
        fmax=0.0,
        steps=3,
        evaluations=4,
        status=Status.CONVERGED,
        source="",
        initial_energy=0.0,
        seconds=0.0,
    )
