"""The settings from the options, and the structures with what they bring themselves."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import typer
from ase import Atoms
from ase.constraints import FixAtoms, FixSymmetry

from basinax.atoms import (
    ASECalculator,
    AtomsRelaxation,
    JaxModel,
    MaxAtomForce,
    MaxStress,
    cell_from,
    potential_from,
    relax as relax_atoms,
)
from basinax.cli.config import is_config, potential_in
from basinax.cli.console import (
    err,
    fail,
    print_line,
    print_warning,
    reported,
    text_of,
    with_sources,
)
from basinax.cli.inputs import Inputs, print_unused, read_all
from basinax.cli.named import kind_of
from basinax.cli.options import Dtype, ModelOptions, PathOptions, RelaxOptions
from basinax.cli.record import IMPORTING, noted
from basinax.cli.values import OfInfo, chosen, count_of, not_negative, or_of_info, pressure_of
from basinax.config.specs import optimizer_from
from basinax.config.tables import read_config
from basinax.engine.groups import RunSettings
from basinax.engine.relax import run_settings
from basinax.engine.relax_stream import Found, faults_of, own_numbers, relax_items
from basinax.engine.workers import lanes_of
from basinax.minimize.criteria import (
    AbstractCriterion,
    EnergyChange,
    MaxDisplacement,
    MaxForce,
    RMSForce,
)
from basinax.numerics.settings import one_line
from basinax.structures.charges import some_of
from basinax.structures.constraints.fix_symmetry import turns_of
from basinax.structures.constraints.reading import left_by_constraints
from basinax.structures.formats.occupancy import check_occupancies
from basinax.structures.read import Fault, Item, intake

HELD_ALIKE = 0.01
"""The tolerance between directions that constraints hold, where a cell is symmetric to 0.01 Å."""

_CRITERIA = {
    "stress_tolerance": MaxStress,
    "rms_force": RMSForce,
    "energy_change": EnergyChange,
    "max_displacement": MaxDisplacement,
}
"""Criteria besides that of forces, by their options."""

_WRONG = TypeError, ValueError, NotImplementedError, ArithmeticError
"""What readers of options raise."""

_READERS = {"cell": str, "pressure": pressure_of, "fmax": not_negative, "max_steps": count_of}
"""Readers of settings that the `info` of structures may hold."""


class Work(NamedTuple):
    """A structure to relax."""

    number: int
    """The place of the structure in the input."""
    source: str
    """The file and image of the structure."""
    atoms: Atoms
    own: dict[str, Any]
    """Cell, fmax and max_steps of the structure."""
    fault: Exception | None = None
    """The reason why the structure cannot be read."""


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
    def read(cls, given: RelaxOptions) -> "Setup":
        """The setup of the options; exits if they are wrong."""
        for name in ("pressure", "stress_tolerance"):
            if given.cell in (None, "none") and getattr(given, name) is not None:
                fail(f"--{name.replace('_', '-')} needs a cell that moves: add --cell frechet")
        own = {name: getattr(given, name) for name in _READERS}
        own["cell"] = None
        if isinstance(given.pressure, str):
            own["pressure"] = pressure_of(given.pressure)
        with reading(given):
            lanes_of(given.devices)  # raises if JAX has fewer devices
            settings = {
                "potential": potential_of(given),
                "optimizer": given.optimizer and optimizer_from(given.optimizer),
                "dtype": given.dtype.value,
                "skin": given.skin,
                "devices": given.devices,
            }
            if given.cell is not None:
                or_of_info(_fixed_or_moving)(given.cell)
                own["cell"] = or_of_info(str)(given.cell)
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

    def relax(self, works: Sequence[Work], **how: Any) -> AtomsRelaxation:
        """The result of `relax`.

        Args:
            how: further arguments of `relax`.
        """
        own = [work.own for work in works]
        return relax_atoms(
            [work.atoms for work in works],
            **self.settings,
            cell=[each["cell"] for each in own],
            convergence=self._criterion([each["fmax"] for each in own]),
            max_steps=np.array([each["max_steps"] for each in own]),
            **how,
        )

    def item_of(self, work: Work) -> Item:
        """A structure with its settings, for `relax_items`."""
        criterion = self._criterion([work.own["fmax"]])
        numbers = own_numbers(criterion, work.own["max_steps"])
        return Item(work.number, work.atoms, work.own["cell"], numbers)

    def relax_items(
        self, items: Iterator[Item | Fault], *, history: bool | int, **how: Any
    ) -> Iterator[Found]:
        """The result of `relax_items`.

        Args:
            history: as for `relax`.
            how: further arguments of `relax_items`.
        """
        return relax_items(items, self._run(history=history), **how)

    def check(self, works: Sequence[Work]) -> None:
        """Exit with an error if one of these structures cannot be relaxed."""
        faults = faults_of(map(self.item_of, works), self._run(history=False))
        sources = {work.number: work.source for work in works}
        for fault in faults[:1]:
            with reported([sources[fault.number]]):
                raise fault.error

    def _run(self, *, history: bool | int) -> RunSettings:
        own = {"convergence": self._criterion([0.0]), "max_steps": np.zeros(1, int)}
        return run_settings(**self.settings, **own, history=history, n_structures=1)

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
        others = f", only {', '.join(map(str, atoms.info))}" if atoms.info else ""
        raise ValueError(
            f"{name}: {source} has no {value.key} in its info{others}: add ,default=VALUE for"
            " structures without one"
        )
    try:
        return _READERS[option](str(found))
    except (ValueError, typer.BadParameter):
        raise ValueError(f"{name}: {source} has {str(found)!r}, which is not usable") from None


def _fixed_or_moving(text: str | None) -> Any:
    return None if text is None or text == "none" else cell_from(text)


def _cell_of(text: str | None, pressure: float | None) -> Any:
    """The cell of one structure; only one option may give its pressure."""
    cell = _fixed_or_moving(text)
    if cell is None or text is None or pressure is None:
        return cell
    if re.search(r"\bpressure\s*=", text):
        raise ValueError(f"--cell {text} and --pressure both give a pressure: remove one")
    return dataclasses.replace(cell, pressure=pressure)


def read_works(given: RelaxOptions, setup: Setup) -> tuple[Inputs, list[Work]]:
    """All structures of the options; exits with an error if one is unusable."""
    inputs = read_all(given)
    atoms, sources = inputs.atoms, inputs.sources
    with reported(sources):
        own = [setup.own_of(*each) for each in zip(atoms, sources, strict=True)]
        check_occupancies(atoms)
    print_unused(atoms, sources, setup.settings["potential"])
    constrain(atoms, sources, given)
    return inputs, list(map(Work, range(len(atoms)), sources, atoms, own))


def constrain(atoms: list[Atoms], sources: list[str], given: RelaxOptions) -> None:
    """Add the constraints of --fix-atoms and --symmetrize to the structures."""
    n_fixed, not_symmetrized = 0, []
    for a, source in zip(atoms, sources, strict=True):
        with reported():
            if given.fix_atoms is not None:
                n_fixed += fix(a, source, given.fix_atoms)
            if given.symmetrize and not symmetrize(a, source):
                not_symmetrized.append(source)
    if given.fix_atoms is not None and not n_fixed:
        fail(nothing_held(given.fix_atoms))
    if not_symmetrized:
        print_warning(
            f"--symmetrize leaves {some_of(not_symmetrized)} as they are: not periodic in three"
            " directions"
        )


def symmetrize(atoms: Atoms, source: str) -> bool:
    """Keep the symmetry of a crystal; return False for a structure that is none.

    Raises:
        ValueError: no symmetry is found, or it would move atoms that are held.
    """
    if not atoms.pbc.all():
        return False
    try:
        intake([atoms])  # spglib ends the process where a cell is not finite
        kept = FixSymmetry(atoms)
    except Exception as error:  # spglib raises errors of its own
        text = with_sources(one_line(error), [source])
        raise ValueError(f"--symmetrize finds no symmetry of {source}: {text}") from error
    _check_held(atoms, source, kept)
    atoms.set_constraint([*atoms.constraints, kept])
    return True


def _check_held(atoms: Atoms, source: str, kept: FixSymmetry) -> None:
    """Raise ValueError if a step that keeps the symmetry would move what other constraints hold."""
    left = left_by_constraints(atoms)
    for turn, image in zip(turns_of(kept, atoms), kept.symm_map, strict=True):
        is_broken = np.abs(turn @ left @ turn.T - left[image]).max((1, 2)) > HELD_ALIKE
        for atom in np.flatnonzero(is_broken)[:1]:
            raise ValueError(
                f"--symmetrize: a symmetry of {source} takes atom {atom} to atom {image[atom]}, but"
                " constraints do not hold both alike: hold all equal atoms in equal directions, or"
                " omit --symmetrize"
            )


def nothing_held(text: str) -> str:
    """The error where no structure has an atom that --fix-atoms holds."""
    return f"--fix-atoms {text} holds of no atom of any structure"


def fix(atoms: Atoms, source: str, text: str) -> int:
    """Fix the chosen atoms of a structure; return their number. Raises ValueError."""
    x, y, z = atoms.positions.T
    values: dict[str, Any] = {"x": x, "y": y, "z": z, "tag": atoms.get_tags()}
    try:
        numbers = chosen(text, values, len(atoms))
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"--fix-atoms {text}: {source}: {error}") from None
    if numbers:
        atoms.set_constraint([*atoms.constraints, FixAtoms(numbers)])
    return len(numbers)


def read_model(given: ModelOptions) -> tuple[Any, Inputs]:
    """The potential and the structures, in the precision of the options."""
    with reading(given):
        potential = potential_of(given)
    return potential, read_all(given)


@contextlib.contextmanager
def reading(given: ModelOptions) -> Iterator[None]:
    """A context for reading settings, in the precision of the options; names all wrong ones."""
    if given.dtype is Dtype.FLOAT64:
        jax.config.update("jax_enable_x64", True)
    with reported():
        try:
            yield
        except _WRONG:
            if wrong := wrong_settings(given):
                fail(*wrong)
            raise


def wrong_settings(given: ModelOptions) -> list[str]:
    """What is wrong with the texts of potential, optimizer and cell; runs no foreign code."""
    read: list[tuple[Callable[[str], Any], str | None]] = []
    if not is_config(given.potential) and kind_of(given.potential) not in IMPORTING:
        read.append((potential_from, given.potential))
    if isinstance(given, RelaxOptions | PathOptions):
        read.append((optimizer_from, given.optimizer))
    if isinstance(given, RelaxOptions):
        read.append((or_of_info(_fixed_or_moving), given.cell))
    faults = []
    for function, text in read:
        try:
            if text is not None:
                function(text)
        except OSError:  # a missing file is named elsewhere
            continue
        except _WRONG as error:
            faults.append(text_of(error))
    return faults


def potential_of(given: ModelOptions) -> Any:
    """The potential; raises like `potential_from` and `potential_in`."""
    text, workers = given.potential, given.workers
    file = None if given.config is None else os.fspath(given.config)
    if file is not None and read_config(file).get("potential") != text:
        file = None
    if is_config(text):
        config = potential_in(text)
        file, text, workers = text, config["potential"], workers or config.get("workers")
    if file is not None and kind_of(text) in IMPORTING:
        print_line(err, f"{file} names {text}, whose code runs now")
    with noted():
        potential = potential_from(text)
    if workers is None:
        return potential
    if not isinstance(potential, ASECalculator | JaxModel):
        fail(
            "--workers is for calculators of ASE and models: --potential ase:MODULE:CALLABLE,"
            " nequix:FILE or python:FILE.py:NAME"
        )
    return dataclasses.replace(potential, workers=workers)
