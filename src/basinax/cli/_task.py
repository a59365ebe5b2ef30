"""The task from files and options."""

import dataclasses
from collections.abc import Callable
from typing import Any

from basinax.atoms import AtomsRelaxation
from basinax.atoms._formats.occupancy import check_occupancies
from basinax.cli._console import reported
from basinax.cli._constrained import constrain
from basinax.cli._inputs import Inputs, read_all
from basinax.cli._options import Given
from basinax.cli._setup import Setup
from basinax.cli._unused import warn_of_unused


@dataclasses.dataclass(frozen=True)
class Task:
    """Structures to relax, and the settings."""

    atoms: list[Any]
    inputs: Inputs
    """All structures that were read, including these."""
    setup: Setup
    own: list[dict[str, Any]]
    """Cell, fmax and max_steps of each structure."""

    @property
    def sources(self) -> list[str]:
        """The file and image of each structure."""
        return self.inputs.sources

    @classmethod
    def read(cls, given: Given) -> "Task":
        """The task of the options."""
        setup, inputs = Setup.read(given), read_all(given)
        atoms, sources = inputs.atoms, inputs.sources
        with reported(sources):
            own = [setup.own_of(*each) for each in zip(atoms, sources, strict=True)]
            check_occupancies(atoms)
        warn_of_unused(atoms, sources, setup.settings["potential"])
        constrain(atoms, sources, given)
        return cls(atoms, inputs, setup, own)

    def alone(self, at: int) -> "Task":
        return dataclasses.replace(self, atoms=[self.atoms[at]], own=[self.own[at]])

    def run(
        self,
        progress: Callable[[Any], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        **how: Any,
    ) -> AtomsRelaxation:
        """Args: how: further arguments of `relax`."""
        with reported(self.sources):
            how |= {"progress": progress, "should_stop": should_stop}
            return self.setup.relax(self.atoms, self.own, **how)
