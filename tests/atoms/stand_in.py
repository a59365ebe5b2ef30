"""A stand-in for `relax` in tests of the command line, which need no numbers."""

import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from basinax import Status
from basinax.atoms import AtomsRelaxation


class Relaxation:
    """Stands in for `relax`, while which other things may happen."""

    def __init__(self):
        self.is_done = False
        self.meanwhile = lambda: None
        self.n_ended = None
        """The number of structures that end; None for all."""
        self.atoms, self.settings = [], {}
        """Of the last call."""

    def __call__(self, atoms, **settings):
        self.is_done = True
        self.atoms, self.settings = atoms, settings
        self.meanwhile()
        relaxed = [a.copy() for a in atoms]
        for a in relaxed:
            a.calc = SinglePointCalculator(a, energy=-1.0, forces=np.zeros((len(a), 3)))
        n = len(atoms)
        counts = [np.full(n, k, np.int32) for k in (3, 4, Status.CONVERGED)]
        result = AtomsRelaxation(
            relaxed,
            np.full(n, -1.0),
            np.zeros(n),
            *counts,
            messages=[""] * n,
            displacements=np.zeros(n),
            seconds=np.zeros(n),
            initial_energies=np.zeros(n),
            initial_volumes=[None] * n,
            sources=[""] * n,
        )
        if "on_end" in settings:
            for k, entry in enumerate(result[: self.n_ended]):
                settings["on_end"](k, entry)
        return result
