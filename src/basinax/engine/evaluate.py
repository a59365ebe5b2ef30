"""Single points: energies, forces and stresses of many structures at once."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import equinox as eqx
import numpy as np
from ase import Atoms
from ase.calculators.calculator import BaseCalculator
from jaxtyping import Float

from basinax.engine.groups import check_potential
from basinax.engine.text import named_potential
from basinax.models.evaluators.calculator import evaluator_of
from basinax.models.evaluators.protocol import (
    AbstractEvaluator,
    Evaluated,
    EvaluationError,
    answers_on,
)
from basinax.models.jax_model import JaxModel
from basinax.neighbors.search import check_listable, unlistable
from basinax.numerics.forks import check_process
from basinax.numerics.settings import count_of, require_switch
from basinax.numerics.switches import own_switches
from basinax.potentials import AbstractPotential
from basinax.potentials.points import found_of
from basinax.results.record import SHOWN
from basinax.results.snapshot import Snapshot, Template
from basinax.results.table import AbstractTable, energies_of, more_than, named, text_of, volumes
from basinax.structures.batch import available_dtype
from basinax.structures.charges import warn_of_unused
from basinax.structures.constraints.hosted import forces_under
from basinax.structures.formats.occupancy import check_occupancies
from basinax.structures.read import HoldsAtoms, has_volume, intake

NOT_FINITE = "energy, forces or stress are NaN or infinite"


class AtomsEvaluation(AbstractTable, eqx.Module):
    """The result of `evaluate`; fields have one entry per structure, in the order of the input."""

    atoms: list[Atoms]
    """Copies with a calculator that has energy, free energy and, if the potential has them,
    energies of atoms in eV, forces in eV/Å, and stress in eV/Å³ if requested."""
    energies: Float[np.ndarray, "systems"]
    """Energies in eV; NaN for a structure that could not be evaluated."""
    forces: list[Float[np.ndarray, "atoms 3"]]
    """Forces in eV/Å, without constraints, other than `fmax`."""
    stresses: Float[np.ndarray, "systems 6"] | None
    """Stresses in eV/Å³, in ASE's order and sign: xx, yy, zz, yz, xz, xy. NaN for a structure whose
    cell has no volume; None unless requested."""
    messages: list[str]
    """The reason for each structure without finite numbers; empty for others."""

    @property
    def free_energies(self) -> Float[np.ndarray, "systems"]:
        """The energies in eV whose derivatives the forces are: `energies` for most potentials."""
        return np.array([cast(Any, a.calc).results["free_energy"] for a in self.atoms])

    @property
    def fmax(self) -> Float[np.ndarray, "systems"]:
        """The largest force on one atom in eV/Å, under the constraints; NaN if not finite."""
        of_each = zip(self.atoms, self.forces, strict=True)
        return np.array([_largest(a, f) if np.isfinite(f).all() else np.nan for a, f in of_each])

    def __len__(self) -> int:
        return len(self.atoms)

    def __repr__(self) -> str:
        """The number of structures, and the first lines of the table."""
        n, failed = len(self), len(list(filter(None, self.messages)))
        lines = [count_of(n, "structure") + (f", {failed} of them failed" if failed else "")]
        if n:
            first = {name: values[:SHOWN] for name, values in self.to_dict().items()}
            lines += ["", text_of(first)]
        return "\n".join([*lines, *more_than(SHOWN, n)])

    def to_dict(self) -> dict[str, list[Any]]:
        """A table as columns, one entry per structure.

        The columns are `formula`, `atoms` (their number), `energy_eV`, `energy_eV_per_atom`,
        `fmax_eV_per_A` (under the constraints, as of `relax`), `volume_A3` (NaN without three
        periodic directions) and `message`; with stresses also `max_stress_eV_per_A3`, the largest
        component.
        """
        columns: dict[str, list[Any]] = {
            **named(self.atoms),
            **energies_of(self.atoms, self.energies),
            "fmax_eV_per_A": self.fmax.tolist(),
            "volume_A3": volumes(self.atoms),
        }
        if self.stresses is not None:
            columns["max_stress_eV_per_A3"] = np.abs(self.stresses).max(axis=1).tolist()
        return columns | {"message": list(self.messages)}


def _largest(atoms: Atoms, forces: np.ndarray) -> float:
    return float(np.linalg.norm(forces_under(atoms, forces), axis=1).max())


@own_switches()
def evaluate(
    atoms: Iterable[Atoms | HoldsAtoms],
    potential: AbstractPotential | AbstractEvaluator | BaseCalculator | str | None = None,
    *,
    stress: bool = False,
    dtype: Any = None,
) -> AtomsEvaluation:
    """Energies and forces of every structure at its positions, with the bits of each alone.

    Args:
        atoms: the structures; none is changed.
        potential: as for `relax`; if None, each structure's own `atoms.calc`.
        stress: compute stresses too, for structures whose cells have a volume.
        dtype: float32 or float64; JAX's default float if None. Calculators have their own.

    Raises:
        TypeError, ValueError, NotImplementedError: a structure or an argument is unusable; the
            message has the reason.
        RuntimeError: a fork of a process that had used JAX calls this function.
    """
    require_switch(stress, "stress")
    atoms, evaluator, potential = checked(atoms, potential)
    return evaluated(atoms, evaluator, potential, stress=stress, dtype=available_dtype(dtype))


def checked(
    atoms: Iterable[Atoms | HoldsAtoms], potential: Any
) -> tuple[list[Atoms], AbstractEvaluator | None, Any]:
    """The structures, the potential, and its evaluator if the host calls it, as for `evaluate`."""
    check_process()
    potential = named_potential(potential)
    structures = [structure.atoms for structure in intake(atoms)]
    evaluator = evaluator_of(potential)
    if structures:
        check_occupancies(structures)
        warn_of_unused(structures, evaluator or potential)
    return structures, evaluator, potential


def evaluated(
    atoms: Sequence[Atoms],
    evaluator: AbstractEvaluator | None,
    potential: Any,
    *,
    stress: bool,
    dtype: Any,
) -> AtomsEvaluation:
    """`evaluate` of structures that are checked.

    Args:
        evaluator: that of the potential, if the host calls it.
    """
    if not atoms:
        return AtomsEvaluation([], np.zeros(0), [], np.zeros((0, 6)) if stress else None, [])
    have_volume = [stress and has_volume(a) for a in atoms]
    if evaluator is not None:
        found = _asked(evaluator, atoms, have_volume)
    else:
        found = _computed(potential, atoms, have_volume, dtype)
    snapshots, properties, messages = zip(*found, strict=True)
    messages = [m or _fault_of(s) for m, s in zip(messages, snapshots, strict=True)]
    nothing = np.full(6, np.nan)
    of_cells = [nothing if s.stress is None else s.stress for s in snapshots]
    pairs = zip(snapshots, atoms, properties, strict=True)
    return AtomsEvaluation(
        atoms=[point.of(Template.of(original), more) for point, original, more in pairs],
        energies=np.array([s.energy for s in snapshots]),
        forces=[s.forces for s in snapshots],
        stresses=np.array(of_cells) if stress else None,
        messages=messages,
    )


def unlistable_by(
    atoms: Sequence[Atoms],
    evaluator: AbstractEvaluator | None,
    potential: Any,
    *,
    stress: bool = False,
    dtype: Any,
) -> dict[int, str]:
    """The structures of which no neighbour list can be made, by number, with the reasons.

    Args:
        evaluator, potential: from `checked`.

    Raises:
        TypeError, ValueError: a structure is unusable for another reason, with its number.
    """
    needs_stress = [stress] * len(atoms)
    if isinstance(evaluator, JaxModel):
        evaluator.check_but_lists(atoms, needs_stress)
        found = unlistable(atoms, float(evaluator.cutoff), np.float64)
    elif evaluator is not None:
        evaluator.check(atoms, needs_stress)
        found = {}
    else:
        check_potential(potential)
        if atoms:
            potential.check(atoms)
        found = unlistable(atoms, potential.cutoff, dtype)
    return {number: str(error) for number, error in found.items()}


def _fault_of(point: Snapshot) -> str:
    """The message on a structure without finite numbers; empty for others."""
    numbers = (x for x in (point.energy, point.forces, point.stress) if x is not None)
    return "" if all(np.isfinite(x).all() for x in numbers) else NOT_FINITE


_Found = tuple[Snapshot, dict[str, Any], str]
"""A structure with its results, further properties, and a message."""


def _computed(
    potential: Any, atoms: Sequence[Atoms], have_volume: Sequence[bool], dtype: Any
) -> list[_Found]:
    check_potential(potential)
    potential.check(atoms)
    check_listable(atoms, potential.cutoff, dtype)
    found = found_of(potential, atoms, dtype, stress=any(have_volume))
    pairs = zip(found, have_volume, strict=True)
    return [(point if has else point._replace(stress=None), {}, "") for point, has in pairs]


def _asked(
    evaluator: AbstractEvaluator, atoms: Sequence[Atoms], have_volume: Sequence[bool]
) -> list[_Found]:
    """The answers of an evaluator; a failed structure has NaN and a message."""
    found: list[_Found] = []
    for a, answer in zip(atoms, answers_on(evaluator, atoms, have_volume), strict=True):
        message = ""
        if isinstance(answer, EvaluationError):
            answer, message = Evaluated(np.nan, np.full((len(a), 3), np.nan)), str(answer)
        numbers = answer.forces, answer.stress, answer.energy, None, answer.minimised
        found.append((Snapshot(a.positions, a.cell.array, *numbers), answer.properties(), message))
    return found
