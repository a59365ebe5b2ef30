"""A potential as an ASE calculator."""

from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from basinax.neighbors.search import check_open
from basinax.numerics.forks import check_process
from basinax.numerics.switches import own_switches
from basinax.potentials.points import found_of
from basinax.structures.batch import available_dtype
from basinax.structures.read import has_volume


class PotentialCalculator(Calculator):
    """A potential for ASE, one structure at a time; `potential.calculator()` makes it.

    Programs are compiled once for a size of structures, for all calculators of the process.
    """

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]  # noqa: RUF012

    def __init__(self, potential: Any, dtype: Any = None, **how: Any):
        """The arguments of `AbstractPotential.calculator`."""
        super().__init__(**how)
        self.potential, self.dtype = potential, available_dtype(dtype)

    @property
    def uses(self) -> frozenset[str]:
        return self.potential.uses

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: list[str] | None = None,
        system_changes: list[str] = all_changes,
    ) -> None:
        super().calculate(atoms, properties, system_changes)
        self.results = self._found()

    @own_switches()
    def _found(self) -> dict[str, Any]:
        check_process()
        atoms: Any = self.atoms
        self.potential.check([atoms])
        check_open([atoms], self.potential.cutoff)
        (found,) = found_of(self.potential, [atoms], self.dtype, stress=has_volume(atoms))
        if found.stress is not None and not np.isfinite(found.stress).all():
            found = found._replace(stress=None)
        return found.properties()
