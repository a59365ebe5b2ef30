"""The protocol of potentials that the host evaluates, one structure at a time.

A structure is evaluated from its own positions and cell alone. So its results have the bits of an
evaluation alone, if the evaluator keeps no memory of other structures.
"""

import abc
import copy
import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple, cast

import numpy as np
from ase import Atoms
from ase.calculators.calculator import CalculationFailed, Calculator, all_changes
from jaxtyping import Float

from basinax.numerics.forks import check_process
from basinax.numerics.settings import shown
from basinax.numerics.switches import own_switches
from basinax.structures.charges import TOTALS, USABLE
from basinax.structures.matrices import VOIGT
from basinax.structures.read import has_volume

LOOK = 0.2
"""Seconds between two reads of evaluators' answers."""


class EvaluationError(Exception):
    """A structure could not be evaluated; its result gets the message."""


class Request(NamedTuple):
    """A structure that awaits its evaluation."""

    number: int
    """The number of the structure in the call."""
    positions: Float[np.ndarray, "atoms 3"]
    """The positions in Å."""
    cell: Float[np.ndarray, "3 3"]
    """The cell in Å; its vectors are rows."""
    needs_stress: bool
    rank: int = 0
    """Requests of the lowest rank come first, so that structures that began early end early."""


class Evaluated(NamedTuple):
    """The properties of one structure.

    The free energy is minimised. The energy is what ASE calls so; most potentials have one only.
    """

    energy: float
    """The energy in eV."""
    forces: Float[np.ndarray, "atoms 3"]
    """The forces in eV/Å, without constraints."""
    stress: Float[np.ndarray, "6"] | None = None
    """The stress in eV/Å³, in ASE's order and sign: xx, yy, zz, yz, xz, xy, if requested."""
    results: dict[str, Any] = {}  # noqa: RUF012
    """Further results by ASE's names of properties, stored with the relaxed structure."""
    free_energy: float | None = None
    """The energy in eV whose derivative the forces are; None if it is `energy`."""

    @property
    def minimised(self) -> float:
        """The energy in eV whose derivative the forces are; not finite if `energy` is not."""
        if self.free_energy is None or not math.isfinite(self.energy):
            return self.energy
        return self.free_energy

    def _named(self) -> dict[str, Any]:
        """The energies, the forces and the stress, if there is one, by ASE's names."""
        stress = {} if self.stress is None else {"stress": self.stress}
        energies = {"energy": self.energy, "free_energy": self.free_energy}
        return energies | {"forces": self.forces} | stress

    def properties(self) -> dict[str, Any]:
        """All results by ASE's names of properties."""
        return self.results | self._named() | {"free_energy": self.minimised}


def copied(value: Any) -> Any:
    """A copy of a result; the value itself if it cannot be copied."""
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return value.copy()  # in a fifth of the time
    try:
        return copy.deepcopy(value)
    except Exception:  # objects may raise errors of any class
        return value


Answer = tuple[int, Evaluated | EvaluationError]
"""The number of a structure, and its results or the error."""


class AbstractSession(abc.ABC):
    """An evaluator at work on the structures of one call."""

    @abc.abstractmethod
    def ask(self, requests: Sequence[Request]) -> None:
        """Take requests, without waiting for their evaluation."""

    @abc.abstractmethod
    def answers(self, timeout: float) -> list[Answer]:
        """The answers since the last call; waits for one for at most `timeout` s.

        Each request gets one answer. An error instead of an evaluation ends its structure alone.
        """

    takes_more = False
    """Whether `add` takes further structures."""

    def add(self, atoms: Atoms) -> int:
        """Take a further structure, and return its number."""
        raise NotImplementedError

    def forget(self, number: int) -> None:  # noqa: B027
        """A structure has left the run, and its number is not used again."""

    def look(self) -> None:  # noqa: B027
        """Called between two steps of the host: time to begin evaluations that wait."""

    def phase(self) -> str:
        """What structures wait for besides evaluations, such as a compiler; empty for nothing."""
        return ""

    @abc.abstractmethod
    def end(self, number: int) -> None:
        """Drop the request of a structure, if there is one, and what only it needs."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all pending work without waiting for answers."""


class AbstractEvaluator(abc.ABC):
    """A potential that the host evaluates, in contrast to potentials inside `jit`."""

    @property
    def is_conservative(self) -> bool:
        """Whether forces are derivatives of the energy, which line searches need."""
        return True

    @property
    def uses(self) -> frozenset[str]:
        """What of a structure its numbers depend on, besides elements, positions and cell.

        Names of `USABLE`; all for code that may read anything of a structure. A warning names
        structures that carry more.
        """
        return USABLE

    @property
    def n_at_once(self) -> int:
        """The number of structures that it evaluates at a time. A batch has places for twice as
        many at least, so that none of its processes or threads waits. No bit depends on it."""
        return 1

    def on(self, devices: Sequence[Any]) -> "AbstractEvaluator":
        """The same evaluator on these JAX devices; a device named n times runs n evaluations.

        Raises:
            TypeError: the evaluator does not run on JAX devices.
        """
        raise TypeError(
            f"devices is for potentials that JAX evaluates, which {type(self).__name__} is not"
        )

    def check(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> None:
        """Raise TypeError or ValueError unless each structure can be evaluated.

        Args:
            needs_stress: whether each structure needs its stress.
        """
        del atoms, needs_stress

    @abc.abstractmethod
    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        """Start a session with these structures, which `check` has passed.

        Args:
            atoms: all structures of the session; requests refer to them by number.
            needs_stress: whether each structure needs its stress.

        Raises:
            TypeError, ValueError: the evaluator cannot start.
        """


def answers_on(
    evaluator: AbstractEvaluator, atoms: Sequence[Atoms], needs_stress: Sequence[bool]
) -> list[Evaluated | EvaluationError]:
    """The answers of an evaluator on structures where they are, in their order."""
    answers: dict[int, Evaluated | EvaluationError] = {}
    evaluator.check(atoms, needs_stress)
    pairs = enumerate(zip(atoms, needs_stress, strict=True))
    requests = [Request(k, a.positions, a.cell.array, needs) for k, (a, needs) in pairs]
    with closing(evaluator.open(atoms, needs_stress)) as session:
        session.ask(requests)
        while len(answers) < len(atoms):
            for number, answer in session.answers(LOOK):
                answers[number] = taken(answer, len(atoms[number]), names_of(requests[number]))
    return [answers[k] for k in range(len(atoms))]


def taken(answer: Any, n_atoms: int, names: list[str]) -> Evaluated | EvaluationError:
    """An answer with arrays of its own, since an evaluator may fill its arrays again; an error if
    it lacks one of these properties, or one has another shape."""
    if isinstance(answer, EvaluationError):
        return answer
    if not isinstance(answer, Evaluated):
        got = shown(answer)
        return EvaluationError(f"the evaluator returned {got}, which is no Evaluated(energy, ...)")
    try:
        return checked_results(answer.results | answer._named(), n_atoms, names, "evaluator")
    except EvaluationError as error:
        return error


class AbstractModel(AbstractEvaluator):
    """A model, of which ASE knows nothing unless it is made a calculator."""

    def calculator(self, **how: Any) -> "ModelCalculator":
        """This model as an ASE calculator, for molecular dynamics, phonons, sums and the like.

        The calculator has energy, free energy, forces and, if asked for, stress. It raises ASE's
        CalculationFailed where the model has no numbers for a structure.

        Args:
            how: further arguments of ASE's `Calculator`, such as `label`.
        """
        return ModelCalculator(self, **how)


class ModelCalculator(Calculator):
    """A model for ASE, one structure at a time; `model.calculator()` makes it."""

    implemented_properties = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012

    def __init__(self, model: AbstractModel, **how: Any):
        super().__init__(**how)
        self.model = model

    @property
    def uses(self) -> frozenset[str]:
        return self.model.uses

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """What has changed, by ASE's names; a total charge or spin is no part of ASE's state."""
        changes, before = super().check_state(atoms, tol), cast(Atoms, self.atoms)
        return changes or [
            x for x in self.uses & {*TOTALS} if TOTALS[x](atoms) != TOTALS[x](before)
        ]

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: list[str] = all_changes,
    ) -> None:
        super().calculate(atoms, properties, system_changes)
        self.results = self._found("stress" in properties)

    @own_switches()
    def _found(self, needs_stress: bool) -> dict[str, Any]:
        check_process()
        atoms: Any = self.atoms
        (found,) = answers_on(self.model, [atoms], [needs_stress and has_volume(atoms)])
        if isinstance(found, EvaluationError):
            raise CalculationFailed(str(found))
        return found.properties()


def names_of(request: Request) -> list[str]:
    """The requested properties, by ASE's names."""
    return ["energy", "forces", *(["stress"] if request.needs_stress else [])]


def placed(template: Atoms, request: Request) -> Atoms:
    """A copy of a structure at the requested positions and cell."""
    atoms = template.copy()
    atoms.set_cell(request.cell)
    atoms.positions[:] = request.positions
    return atoms


def checked_results(
    results: dict[str, Any], n_atoms: int, names: list[str], by: str = "calculator"
) -> Evaluated:
    """The results, if their shapes are right. Raises EvaluationError otherwise.

    Args:
        by: what has returned them, in words.
    """
    shapes = {"energy": (), "free_energy": (), "forces": (n_atoms, 3), "stress": (6,)}
    results = {name: value for name, value in results.items() if value is not None}
    found = {}
    for name in [*names, *(["free_energy"] if "free_energy" in results else [])]:
        if results.get(name) is None:
            raise EvaluationError(f"the {by} returned no {name}")
        if np.iscomplexobj(results[name]):
            raise EvaluationError(f"the {by} returned complex {name}")
        try:
            value = np.array(results[name], np.float64)
        except (TypeError, ValueError):
            raise EvaluationError(f"the {by} returned {name} that is no array") from None
        if name == "stress" and value.shape == (3, 3):
            value = np.array([value[i, j] for i, j in VOIGT])
        if value.shape != shapes[name]:
            raise EvaluationError(
                f"the {by} returned {name} of shape {value.shape}, not {shapes[name]}"
            )
        found[name] = value
    # Like ASE's optimizers: forces are derivatives of the free energy, if there is one.
    free_energy = float(found["free_energy"]) if "free_energy" in found else None
    kept = {name: copied(value) for name, value in results.items() if name not in found}
    return Evaluated(
        float(found["energy"]), found["forces"], found.get("stress"), kept, free_energy
    )
