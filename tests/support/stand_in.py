"""A stand-in for `relax_items` in tests of the command line, which need no numbers."""

import numpy as np

from basinax import Status
from basinax.atoms import Relaxed
from basinax.cli import setup


class Relaxation:
    """Stands in for `relax_items`, while which other things may happen."""

    def __init__(self):
        self.is_done = False
        self.meanwhile = lambda: None
        self.n_ended = None
        """The number of structures that end; None for all."""
        self.items, self.settings = [], {}
        """Of the last call."""

    @property
    def atoms(self):
        return [item.atoms for item in self.items]

    def put_into(self, monkeypatch):
        monkeypatch.setattr(setup, "run_settings", lambda **settings: settings)
        monkeypatch.setattr(setup, "relax_items", self)

    def __call__(self, items, settings, **how):
        self.items, self.settings = list(items), settings | how
        if not self.items:
            return
        self.is_done = True
        self.meanwhile()
        yield [(item.number, _relaxed(item.atoms)) for item in self.items[: self.n_ended]]


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
