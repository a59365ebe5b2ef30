"""The protocol of constraints: each ASE class is a file here, and a line in `kinds.py`.

An `AbstractKind` reads one of ASE's classes on the host into an `AbstractPart`, which several kinds
may share: arrays for all systems of a batch, and functions of these arrays, linear in forces and
steps like ASE's `adjust_forces` and `adjust_positions`.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
from ase import Atoms
from jaxtyping import Array, Bool, Float

from basinax.structures.matrices import Matrices, turned_rows
from basinax.systems.index import SystemIndex

Rows = Float[Array, "rows 3"]

Room = tuple[int, ...]
"""The sizes of a part's arrays; all 0 for nothing. The larger of two sizes serves both."""


class Turn(NamedTuple):
    """Maps between the rows of moving cells and Cartesian vectors."""

    mask: Bool[Array, "systems"]
    """Systems whose rows are not Cartesian."""
    there: Matrices
    back: Matrices
    loses_symmetry: Bool[Array, "systems"]
    """Systems whose cell may lose a symmetry although their steps keep it."""

    def around(self, adjust: Callable[[Rows], Rows], x: Rows, index: SystemIndex) -> Rows:
        """Apply `adjust` to the Cartesian vectors of the rows, and return rows."""
        return turned_rows(adjust(turned_rows(x, self.there, index)), self.back, index)


Turning = Callable[[], Turn] | None
"""Makes the turn for a part that needs it; None if all rows are Cartesian."""


class AbstractPart(eqx.Module):
    """Constraints of one sort in all systems of a batch; NumPy arrays until all are written.

    Rows of a system without constraints keep their bits.
    """

    joins: ClassVar[bool] = True
    """Whether consecutive constraints of this sort act as one."""

    @classmethod
    def gathered(cls, found: list[Any], n_atoms: int) -> Any:
        """The entries of a structure in the part, from the readings of its kinds: the first one.

        Args:
            found: the readings of consecutive constraints; of one constraint unless they join.
        """
        return found[0]

    @classmethod
    @abc.abstractmethod
    def room_of(cls, own: Any) -> Room:
        """The room that the entries of one structure need."""

    @classmethod
    @abc.abstractmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> Self:
        """Host arrays without any constraint."""

    @abc.abstractmethod
    def write(self, system: int, rows: slice, own: Any) -> None:
        """Write the entries of one structure over those of its place in host arrays.

        Args:
            rows: the rows of the structure's place, padding included.
            own: a result of `gathered`; None for no constraint.
        """

    @abc.abstractmethod
    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """The constrained gradient."""

    @abc.abstractmethod
    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        """The constrained step."""

    def of_stress(self, stress: Matrices, turning: Turning) -> Matrices:
        """The constrained stress."""
        return stress

    def of_cell_step(self, step: Matrices) -> Matrices:
        """The constrained step of F − 1, where F is the deformation."""
        return step


Stages = Sequence[dict[type[AbstractPart], Any]]
"""The entries of one structure in each part. Dictionaries apply in order, and inside one the order
is that of `PARTS`."""


class AbstractKind(abc.ABC):
    """One of ASE's classes of constraints."""

    of: ClassVar[type]
    """ASE's class; subclasses of it may behave differently and do not count."""
    part: ClassVar[type[AbstractPart]]

    @abc.abstractmethod
    def read(self, constraint: Any, atoms: Atoms) -> Any:
        """The reading of a constraint, which the part gathers."""

    def is_kept(self, constraint: Any, atoms: Atoms) -> bool:
        """Whether the part can represent this constraint."""
        return True

    def fault(self, constraint: Any, atoms: Atoms) -> str:
        """The fault of a supported constraint as text; empty if there is none."""
        return ""
