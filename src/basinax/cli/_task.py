"""The task that files and options say."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import typer

from basinax._loop.criteria import (
    AbstractCriterion,
    EnergyChange,
    MaxDisplacement,
    MaxForce,
    RMSForce,
)
from basinax._text.specs import optimizer_from
from basinax.atoms import (
    AtomsRelaxation,
    MaxAtomForce,
    MaxStress,
    cell_from,
    relax as relax_atoms,
)
from basinax.atoms._formats.occupancy import check_occupancies
from basinax.cli._console import fail, reported
from basinax.cli._constrained import constrain
from basinax.cli._inputs import Inputs, read_all
from basinax.cli._options import Dtype, Given
from basinax.cli._potential import potential_of
from basinax.cli._unused import warn_of_unused
from basinax.cli._values import OfInfo, count_of, not_negative, or_of_info, pressure_of

_CRITERIA = {
    "stress_tolerance": MaxStress,
    "rms_force": RMSForce,
    "energy_change": EnergyChange,
    "max_displacement": MaxDisplacement,
}
"""Criteria that may have to be met besides that of forces, by their options."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Structures to be relaxed, and the settings."""

    atoms: list[Any]
    inputs: Inputs
    """All that was read, of which these are some."""
    settings: dict[str, Any]
    """Of all structures."""
    own: dict[str, list[Any]]
    """Cell, pressure, fmax and max_steps of each structure."""
    tolerances: dict[type, float | None]
    """Of criteria that must be met besides that of forces."""

    @property
    def sources(self) -> list[str]:
        """The file and image of each structure."""
        return self.inputs.sources

    @classmethod
    def read(cls, given: Given) -> "Task":
        """The task that options say."""
        if given.dtype is Dtype.FLOAT64:
            jax.config.update("jax_enable_x64", True)
        tolerances = {kind: getattr(given, name) for name, kind in _CRITERIA.items()}
        for name in ("pressure", "stress_tolerance"):
            if given.cell is None and getattr(given, name) is not None:
                fail(f"--{name.replace('_', '-')} needs a cell that moves: add --cell frechet")
        own = {name: getattr(given, name) for name in _READERS}
        own["cell"] = or_of_info(str)(given.cell) if given.cell else None
        with reported():
            settings = {
                "potential": potential_of(given),
                "optimizer": None if given.optimizer is None else optimizer_from(given.optimizer),
                "dtype": given.dtype.value,
                "skin": given.skin,
            }
        inputs = read_all(given)
        atoms, sources = inputs.atoms, inputs.sources
        values = {name: _values_of(name, own[name], atoms, sources) for name in own}
        values["cell"] = [
            _cell_of(*each) for each in zip(values["cell"], values["pressure"], strict=True)
        ]
        with reported(sources):
            check_occupancies(atoms)
        warn_of_unused(atoms, sources)
        constrain(atoms, sources, given)
        return cls(atoms, inputs, settings, values, tolerances)

    def alone(self, at: int) -> "Task":
        own = {name: [values[at]] for name, values in self.own.items()}
        return dataclasses.replace(self, atoms=[self.atoms[at]], own=own)

    def run(
        self,
        progress: Callable[[Any], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> AtomsRelaxation:
        with reported(self.sources):
            return relax_atoms(
                self.atoms,
                **self.settings,
                cell=self.own["cell"],
                convergence=self._criterion(),
                max_steps=np.array(self.own["max_steps"]),
                progress=progress,
                should_stop=should_stop,
            )

    def _criterion(self) -> AbstractCriterion:
        """All of what is asked for."""
        fmax: Any = np.array(self.own["fmax"], float)
        is_apart = self.tolerances[MaxStress] is not None
        criterion = MaxAtomForce(fmax) if is_apart else MaxForce(fmax)
        for kind, tolerance in self.tolerances.items():
            criterion = criterion if tolerance is None else criterion & kind(tolerance)
        return criterion


def _values_of(option: str, value: Any, atoms: list[Any], sources: list[str]) -> list[Any]:
    """The value of each structure."""
    if not isinstance(value, OfInfo):
        return [value] * len(atoms)
    name = f"--{option.replace('_', '-')} info:{value.key}"
    values = []
    for a, source in zip(atoms, sources, strict=True):
        found = a.info.get(value.key, value.default)
        if found is None:
            known = ", ".join(map(str, a.info)) or "nothing"
            fail(
                f"{name}: {source} has no {value.key} in its info, but {known}: add"
                f" ,default=VALUE for structures without one"
            )
        try:
            values.append(_READERS[option](str(found)))
        except (ValueError, typer.BadParameter):
            fail(f"{name}: {source} has {found!r}, which is not usable")
    return values


_READERS = {"cell": str, "pressure": pressure_of, "fmax": not_negative, "max_steps": count_of}


def _cell_of(text: str | None, pressure: float | None) -> Any:
    """The cell of one structure; its pressure may stand in one place only."""
    if text is None or text == "none":
        return None
    with reported():
        cell = cell_from(text)
    if pressure is None:
        return cell
    if re.search(r"\bpressure\s*=", text):
        fail(f"--cell {text} and --pressure both say a pressure: remove one")
    with reported():
        return dataclasses.replace(cell, pressure=pressure)
