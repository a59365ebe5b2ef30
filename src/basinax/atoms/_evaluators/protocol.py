"""The protocol of potentials that the host evaluates, one structure at a time.

A structure is evaluated from its own positions and cell alone, so its numbers have the bits that
they have when it is alone, if the evaluator keeps no memory of other structures.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms
from jaxtyping import Float

from basinax.atoms._matrices import VOIGT


class EvaluationError(Exception):
    """A structure could not be evaluated; the message becomes that of its result."""


class Request(NamedTuple):
    """A structure that waits for its evaluation."""

    number: int
    """The number of the structure in the call."""
    positions: Float[np.ndarray, "atoms 3"]
    """In Å."""
    cell: Float[np.ndarray, "3 3"]
    """In Å; rows are its vectors."""
    needs_stress: bool


class Evaluated(NamedTuple):
    """The properties of one structure."""

    energy: float
    """In eV, the one whose derivative the forces are."""
    forces: Float[np.ndarray, "atoms 3"]
    """In eV/Å, without the effect of constraints."""
    stress: Float[np.ndarray, "6"] | None = None
    """In eV/Å³, in ASE's order and sign: xx, yy, zz, yz, xz, xy; None unless requested."""
    results: dict[str, Any] = {}  # noqa: RUF012
    """Everything that was found, by ASE's names of properties; kept with the relaxed structure."""


Answer = tuple[int, Evaluated | EvaluationError]
"""The number of a structure, and its results or the error."""


class AbstractSession(abc.ABC):
    """An evaluator at work on the structures of one call."""

    @abc.abstractmethod
    def ask(self, requests: Sequence[Request]) -> None:
        """Take requests, without waiting for their evaluation."""

    @abc.abstractmethod
    def answers(self, timeout: float) -> list[Answer]:
        """The answers that have come since the last call; waits for one at most `timeout` s.

        Each request has one answer. An error in place of an evaluation ends its structure alone.
        """

    @abc.abstractmethod
    def end(self, number: int) -> None:
        """Forget a structure; no request for it will come again."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all that still works, without waiting for its answers."""


class AbstractEvaluator(abc.ABC):
    """A potential that the host evaluates, beside those that run inside `jit`."""

    @property
    def is_conservative(self) -> bool:
        """Whether forces are derivatives of the energy, which searches along lines rely on."""
        return True

    def on(self, devices: Sequence[Any]) -> "AbstractEvaluator":
        """The same, on these devices of JAX: so many evaluations at a time as each is named.

        Raises:
            TypeError: it does not run on any.
        """
        raise TypeError(
            f"devices is for potentials that JAX evaluates, {type(self).__name__} is evaluated by"
            " processes of the host"
        )

    @abc.abstractmethod
    def open(self, atoms: Sequence[Atoms], needs_stress: Sequence[bool]) -> AbstractSession:
        """Begin to work on these structures.

        Args:
            atoms: all structures of the call; requests name them by their number.
            needs_stress: of each structure, whether its stress will be needed.

        Raises:
            TypeError, ValueError, RuntimeError: the structures cannot be evaluated; names them.
        """


def names_of(request: Request) -> list[str]:
    """The requested properties, by ASE's names."""
    return ["energy", "forces", *(["stress"] if request.needs_stress else [])]


def placed(template: Atoms, request: Request) -> Atoms:
    """A copy of a structure where it is to be evaluated."""
    atoms = template.copy()
    atoms.set_cell(request.cell)
    atoms.positions[:] = request.positions
    return atoms


def checked_results(results: dict[str, Any], n_atoms: int, names: list[str]) -> Evaluated:
    """The results, if they have the shapes that they must. Raises EvaluationError otherwise."""
    shapes = {"energy": (), "forces": (n_atoms, 3), "stress": (6,)}
    found = {}
    for name in names:
        if results.get(name) is None:
            raise EvaluationError(f"the calculator returned no {name}")
        try:
            value = np.array(results[name], np.float64)
        except (TypeError, ValueError):
            raise EvaluationError(f"the calculator returned {name} that is no array") from None
        if name == "stress" and value.shape == (3, 3):
            value = np.array([value[i, j] for i, j in VOIGT])
        if value.shape != shapes[name]:
            raise EvaluationError(
                f"the calculator returned {name} of shape {value.shape}, not {shapes[name]}"
            )
        found[name] = value
    # Like ASE's optimizers: forces are derivatives of the free energy, if there is one.
    energy = results.get("free_energy")
    energy = float(found["energy"] if energy is None else energy)
    kept = {name: value for name, value in results.items() if value is not None} | found
    kept["energy"] = float(found["energy"])
    return Evaluated(energy, found["forces"], found.get("stress"), kept)
