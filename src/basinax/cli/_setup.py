"""The settings from the options, for any structures."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import typer
from ase import Atoms

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
from basinax.atoms._intake import Fault, Item
from basinax.atoms._relax import run_settings
from basinax.atoms._relax_stream import own_numbers, relax_items
from basinax.atoms._runs.rows import POINTS
from basinax.atoms._streams.run import Outcomes
from basinax.atoms._streams.workers import lanes_of
from basinax.cli._console import fail, reported
from basinax.cli._options import Dtype, Given
from basinax.cli._potential import potential_of
from basinax.cli._values import OfInfo, count_of, not_negative, or_of_info, pressure_of

_CRITERIA = {
    "stress_tolerance": MaxStress,
    "rms_force": RMSForce,
    "energy_change": EnergyChange,
    "max_displacement": MaxDisplacement,
}
"""Criteria besides that of forces, by their options."""

_READERS = {"cell": str, "pressure": pressure_of, "fmax": not_negative, "max_steps": count_of}
"""Readers of settings that the `info` of structures may hold."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The settings of a run, without its structures."""

    settings: dict[str, Any]
    """Settings of all structures, for `relax`."""
    own: dict[str, Any]
    """Cell, pressure, fmax and max_steps: values, or keys of each structure's info."""
    tolerances: dict[type, float | None]
    """Tolerances of criteria that must be met besides that of forces."""

    @classmethod
    def read(cls, given: Given) -> "Setup":
        """The setup of the options; exits if they are wrong."""
        if given.dtype is Dtype.FLOAT64:
            jax.config.update("jax_enable_x64", True)
        for name in ("pressure", "stress_tolerance"):
            if given.cell is None and getattr(given, name) is not None:
                fail(f"--{name.replace('_', '-')} needs a cell that moves: add --cell frechet")
        own = {name: getattr(given, name) for name in _READERS}
        own["cell"] = or_of_info(str)(given.cell) if given.cell else None
        if isinstance(given.pressure, str):
            own["pressure"] = pressure_of(given.pressure)
        with reported():
            lanes_of(given.devices)  # raises if JAX has fewer devices
            settings = {
                "potential": potential_of(given),
                "optimizer": None if given.optimizer is None else optimizer_from(given.optimizer),
                "dtype": given.dtype.value,
                "skin": given.skin,
                "devices": given.devices,
            }
        tolerances = {kind: getattr(given, name) for name, kind in _CRITERIA.items()}
        return cls(settings, own, tolerances)

    def own_of(self, atoms: Atoms, source: str) -> dict[str, Any]:
        """Cell, fmax and max_steps of one structure.

        Raises:
            ValueError: the structure's info lacks a value, or has an unusable one.
        """
        values = {name: _value_of(name, x, atoms, source) for name, x in self.own.items()}
        values["cell"] = _cell_of(values["cell"], values.pop("pressure"))
        return values

    def relax(
        self, atoms: list[Atoms], own: Sequence[Mapping[str, Any]], **how: Any
    ) -> AtomsRelaxation:
        """The result of `relax`.

        Args:
            own: the settings of each structure.
            how: further arguments of `relax`.
        """
        return relax_atoms(
            atoms,
            **self.settings,
            cell=[each["cell"] for each in own],
            convergence=self._criterion([each["fmax"] for each in own]),
            max_steps=np.array([each["max_steps"] for each in own]),
            **how,
        )

    def item_of(self, number: int, atoms: Atoms, own: Mapping[str, Any]) -> Item:
        """One structure with its settings, for `relax_items`."""
        criterion = self._criterion([own["fmax"]])
        return Item(number, atoms, own["cell"], own_numbers(criterion, own["max_steps"]))

    def relax_items(self, items: Iterator[Item | Fault], **how: Any) -> Iterator[Outcomes]:
        """The result of `relax_items`.

        Args:
            how: further arguments of `relax_items`.
        """
        own = {"convergence": self._criterion([0.0]), "max_steps": np.zeros(1, int)}
        run = run_settings(**self.settings, **own, history=POINTS, n_structures=1)
        return relax_items(items, run, **how)

    def _criterion(self, fmax: list[float]) -> AbstractCriterion:
        """The combination of all criteria in the options."""
        tolerance_of_forces: Any = np.array(fmax, float)
        is_apart = self.tolerances[MaxStress] is not None
        criterion = (MaxAtomForce if is_apart else MaxForce)(tolerance_of_forces)
        for kind, tolerance in self.tolerances.items():
            criterion = criterion if tolerance is None else criterion & kind(tolerance)
        return criterion


def _value_of(option: str, value: Any, atoms: Atoms, source: str) -> Any:
    """The value for one structure."""
    if not isinstance(value, OfInfo):
        return value
    name = f"--{option.replace('_', '-')} info:{value.key}"
    found = atoms.info.get(value.key, value.default)
    if found is None:
        known = ", ".join(map(str, atoms.info)) or "nothing"
        raise ValueError(
            f"{name}: {source} has no {value.key} in its info, but {known}: add ,default=VALUE for"
            " structures without one"
        )
    try:
        return _READERS[option](str(found))
    except (ValueError, typer.BadParameter):
        raise ValueError(f"{name}: {source} has {found!r}, which is not usable") from None


def _cell_of(text: str | None, pressure: float | None) -> Any:
    """The cell of one structure; only one option may give its pressure."""
    if text is None or text == "none":
        return None
    cell = cell_from(text)
    if pressure is None:
        return cell
    if re.search(r"\bpressure\s*=", text):
        raise ValueError(f"--cell {text} and --pressure both give a pressure: remove one")
    return dataclasses.replace(cell, pressure=pressure)
