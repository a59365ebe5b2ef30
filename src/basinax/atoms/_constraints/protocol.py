"""The protocol of constraints: a class of ASE's is a file here, and a line in `kinds.py`.

An `AbstractKind` reads one of ASE's classes, on the host, into an `AbstractPart`: arrays for all
systems of a batch, which several kinds may share, and functions of these arrays, linear in
forces and steps as ASE's `adjust_forces` and `adjust_positions` are.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import equinox as eqx
from ase import Atoms
from jaxtyping import Array, Bool, Float

from basinax._systems.index import SystemIndex
from basinax.atoms._matrices import Matrices, turned_rows

Rows = Float[Array, "rows 3"]

Room = tuple[int, ...]
"""For how much a part has arrays; for nothing where all numbers are 0. The larger number serves."""


class Turn(NamedTuple):
    """How the rows of systems whose cell moves become Cartesian vectors, and these rows again."""

    mask: Bool[Array, "systems"]
    """The rows of other systems are Cartesian."""
    there: Matrices
    back: Matrices
    loses_symmetry: Bool[Array, "systems"]
    """Systems whose cell may lose a symmetry although their steps keep it."""

    def around(self, adjust: Callable[[Rows], Rows], x: Rows, index: SystemIndex) -> Rows:
        """The rows after `adjust` has acted on their Cartesian vectors."""
        return turned_rows(adjust(turned_rows(x, self.there, index)), self.back, index)


Turning = Callable[[], Turn] | None
"""Makes the turn for a part that needs it; None where all rows are Cartesian."""


class Own(Protocol):
    """The entries of one structure in a part."""

    @property
    def room(self) -> Room:
        """For how much its part must have arrays."""
        ...


class AbstractPart(eqx.Module):
    """Constraints of one sort in all systems of a batch; NumPy arrays until all are written.

    Where a system has none, its rows pass unchanged, bit for bit.
    """

    joins: ClassVar[bool] = True
    """Whether constraints of this sort that follow one another are one."""

    @classmethod
    @abc.abstractmethod
    def gathered(cls, found: list[Any], n_atoms: int) -> Own:
        """The entries of a structure in the part, from the readings of its kinds.

        Args:
            found: of one constraint after another; of one alone unless they join.
        """

    @classmethod
    @abc.abstractmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> Self:
        """Arrays of the host in which nothing is constrained."""

    @property
    @abc.abstractmethod
    def room(self) -> Room:
        """For how much there are arrays."""

    @abc.abstractmethod
    def write(self, system: int, rows: slice, own: Any) -> None:
        """Write the entries of one structure over those in arrays of the host.

        Args:
            rows: those of the structure's place, padding included.
            own: as `gathered` makes it; None for nothing.
        """

    @abc.abstractmethod
    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """The gradient that is left."""

    @abc.abstractmethod
    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """The step that is left."""

    def of_stress(self, stress: Matrices, turning: Turning) -> Matrices:
        """The stress that is left."""
        return stress

    def of_cell_step(self, step: Matrices) -> Matrices:
        """The step of F − 1 that is left, with F the deformation."""
        return step


Stages = list[dict[type[AbstractPart], Any]]
"""The entries of one structure in each part, applied one dictionary after another; within a
dictionary in the order of `PARTS`."""


class AbstractKind(abc.ABC):
    """One of ASE's classes of constraints."""

    of: ClassVar[type]
    """ASE's class; classes derived from it may do something else."""
    part: ClassVar[type[AbstractPart]]

    @abc.abstractmethod
    def read(self, constraint: Any, atoms: Atoms) -> Any:
        """The reading that its part gathers."""

    def is_kept(self, constraint: Any, atoms: Atoms) -> bool:
        """Whether the part can represent this constraint."""
        return True

    def fault(self, constraint: Any, atoms: Atoms) -> str:
        """The fault of a constraint that is kept, as text; empty if it has none."""
        return ""
