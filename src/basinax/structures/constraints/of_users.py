"""Constraints that users write: the arrays of one structure, and two functions of them."""

import abc
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from basinax.optimizers.protocol import leads_with
from basinax.structures.constraints.protocol import AbstractKind, AbstractPart, Room, Rows, Turning
from basinax.systems import segment
from basinax.systems.index import SystemIndex


class AbstractConstraint(AbstractPart):
    """A constraint for structures that is linear in forces and steps, such as a projection.

    `register_constraint` gives it a class of ASE's or of your own. `read` makes it for one
    structure, of NumPy arrays of numbers: with one entry per atom in fields declared with
    `rows_field`, and without such an axis in those of `systems_field`. The two other methods see
    the arrays of a whole batch, in its dtype: `[rows, ...]` and `[systems, ...]`, 0 where a
    structure has no such constraint, and in further axes beyond the structure's own (their number
    is the same in all structures). Their values count for structures with the constraint alone.

    They run inside `jit`, and must keep the bits of a structure alone: round each product that is
    added by `rounded`, and add over the atoms of a structure by `segment` or `index.sum`.

    A cell may move: vectors are Cartesian then, too.
    """

    mask: Any = eqx.field(default=None, kw_only=True)
    """The systems with the constraint, bool `[systems]`; set by the batch."""

    joins = False

    @classmethod
    @abc.abstractmethod
    def read(cls, constraint: Any, atoms: Atoms) -> Self:
        """The arrays of one structure.

        Args:
            constraint: one of the structure's constraints, of the registered class.
            atoms: the structure at its start, in Å, not to be changed.

        Raises:
            ValueError: the constraint does not suit the structure; the message gives the reason,
                and `relax` puts the name of the structure before it.
        """

    @abc.abstractmethod
    def adjust_gradient(self, x: Rows, index: SystemIndex) -> Rows:
        """The gradients that the constraint leaves, as by ASE's `adjust_forces`.

        Args:
            x: gradients in eV/Å, `[rows, 3]`.
            index: the system of each row.
        """

    def adjust_step(self, x: Rows, index: SystemIndex) -> Rows:
        """The steps that the constraint leaves, in Å, as by ASE's `adjust_positions`.

        Those of `adjust_gradient`, unless a subclass says otherwise.
        """
        return self.adjust_gradient(x, index)

    @classmethod
    def room_of(cls, own: "AbstractConstraint") -> Room:
        shapes = [_further_axes(own, field) for field in _fields(cls)]
        return 1, *itertools.chain.from_iterable((len(shape), *shape) for shape in shapes)

    @classmethod
    def blank(cls, room: Room, n_rows: int, n_systems: int, dtype: Any) -> Self:
        sizes, arrays = iter(room[1:]), {}
        for field in _fields(cls):
            shape = tuple(itertools.islice(sizes, next(sizes)))
            n = n_rows if leads_with(field) == "rows" else n_systems
            arrays[field.name] = np.zeros((n, *shape), dtype)
        return cls(**arrays, mask=np.zeros(n_systems, bool))

    def write(self, system: int, rows: slice, own: "AbstractConstraint | None") -> None:
        self.mask[system] = own is not None
        for field in _fields(type(self)):
            array, of_rows = getattr(self, field.name), leads_with(field) == "rows"
            array[rows if of_rows else system] = 0
            if own is None:
                continue
            value = np.asarray(getattr(own, field.name))
            further = tuple(map(slice, _further_axes(own, field)))
            first = slice(rows.start, rows.start + len(value)) if of_rows else system
            array[(first, *further)] = value

    def of_gradient(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        return self._left(self.adjust_gradient, x, index, turning)

    def of_step(self, x: Rows, index: SystemIndex, turning: Turning) -> Rows:
        return self._left(self.adjust_step, x, index, turning)

    def _left(
        self,
        adjust: Callable[[Rows, SystemIndex], Rows],
        x: Rows,
        index: SystemIndex,
        turning: Turning,
    ) -> Rows:
        left = adjust(x, index)
        name = type(self).__name__
        segment.check_alike(x, left, f"rows that {adjust.__name__} of {name} gets and returns")
        if turning is not None:
            turn = turning()
            around = turn.around(lambda x: adjust(x, index), x, index)
            left = jnp.where(index.spread(turn.mask, False, x), around, left)
        return jnp.where(index.spread(self.mask, False, x), left, x)


class WrittenKind(AbstractKind):
    """A class of constraints that a user's class runs."""

    part: Any = None

    def __init__(self, part: type[AbstractConstraint]):
        self.part = part

    def read(self, constraint: Any, atoms: Atoms) -> AbstractConstraint:
        own = self.part.read(constraint, atoms)
        if not isinstance(own, self.part):
            name = self.part.__name__
            raise TypeError(f"{name}.read must return a {name}, got {type(own).__name__}")
        for field in _fields(self.part):
            value = np.asarray(getattr(own, field.name))
            of_rows = leads_with(field) == "rows"
            if value.dtype.kind not in "iufb" or (of_rows and value.shape[:1] != (len(atoms),)):
                expected = f"numbers for {len(atoms)} atoms" if of_rows else "numbers"
                raise ValueError(
                    f"{self.part.__name__}.{field.name} must be {expected}, got {value.dtype} of"
                    f" shape {value.shape}"
                )
        return own

    def fault(self, constraint: Any, atoms: Atoms) -> str:
        try:
            self.read(constraint, atoms)
        except ValueError as error:
            return f"cannot act on it: {error}"
        return ""


def check_fields(cls: Any) -> None:
    """Raise TypeError unless this is a class of constraints, with fields of rows or systems."""
    if not (isinstance(cls, type) and issubclass(cls, AbstractConstraint)):
        raise TypeError(f"expected a subclass of AbstractConstraint, got {cls!r}")
    for field in _fields(cls):
        if leads_with(field) not in ("rows", "systems"):
            raise TypeError(
                f"field {field.name} of {cls.__name__} must be declared with rows_field or"
                " systems_field"
            )


def _fields(cls: type) -> list[dataclasses.Field]:
    """The fields that a subclass declares."""
    return [field for field in dataclasses.fields(cls) if field.name != "mask"]


def _further_axes(own: AbstractConstraint, field: dataclasses.Field) -> tuple[int, ...]:
    shape = np.shape(getattr(own, field.name))
    return shape[1:] if leads_with(field) == "rows" else shape
