"""The optimizer whose steps are made on the host, one structure at a time."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from basinax._settings import FixedCount, Limit, Positive
from basinax._systems.types import Prefix, Tree
from basinax._text.config import register
from basinax.atoms._intake import Structure
from basinax.atoms._internal.carried import Walk
from basinax.atoms._internal.coordinates import NoCoordinates, internal_coordinates
from basinax.atoms._internal.deformation import Frame
from basinax.transforms import FIRE
from basinax.transforms._protocol import AbstractState, AbstractTransform


@register("internal_lbfgs")
class InternalLBFGS(AbstractTransform):
    """L-BFGS in internal coordinates, with a model of the Hessian: few evaluations a structure.

    Stretches, bends and torsions, contacts, and the springs of metals are listed at every step from
    the structure alone, with force constants that follow from its distances. Secant pairs are kept
    in these coordinates and carried to where the structure stands. Each structure's step is made on
    the host, in double precision, in some ms: it serves models whose evaluation takes longer, and
    only `relax` of `basinax.atoms`. Potentials that run inside `jit` are evaluated one structure at
    a time, too. Numbers are one for all, or one a structure.
    """

    maxstep: Limit = 1.0
    """The longest step of an atom (Å), before it is bent; after bad predictions down to a fifth."""
    memory: FixedCount = eqx.field(static=True, default=40)
    """How many pairs are kept, at most."""
    trust: Positive = 0.3
    """The largest change of a coordinate in the first step (Å or rad); later ones have between 0.05
    and 0.6, by how well the energy was predicted."""
    stiffness: Positive = 1.0
    """The force constants of the model are multiplied by it."""
    max_dofs: FixedCount = eqx.field(static=True, default=4000)
    """Structures with more degrees of freedom take the steps of plain L-BFGS: one factor of their
    model takes more than a second."""

    def init(self, parameters: Tree, index_prefix: Prefix = None) -> "GivenState":
        return GivenState(index_prefix)

    def update(self, updates, state, params=None, **extra):
        raise TypeError(
            "InternalLBFGS steps on the host, by the elements of a structure: give it to relax of"
            " basinax.atoms"
        )

    def walk(self, structure: Structure, place: int) -> tuple[Frame, Walk]:
        """The steps of a structure, from where it stands.

        Args:
            place: the entry of numbers that are one a structure.
        """
        numbers = [np.asarray(x) for x in (self.maxstep, self.trust, self.stiffness)]
        maxstep, trust, stiffness = (float(x[place] if x.ndim else x) for x in numbers)
        frame = Frame(structure)
        plain = NoCoordinates(frame, maxstep)
        if frame.n_dofs > self.max_dofs:
            return frame, Walk(lambda x, before: plain, plain, self.memory, trust)
        renewed = internal_coordinates(frame, maxstep, stiffness)
        return frame, Walk(renewed, plain, self.memory, trust)


def steps_on_the_host(optimizer: AbstractTransform) -> bool:
    """Whether it is one whose steps are made on the host.

    Raises:
        TypeError: it stands in a chain.
    """

    def is_one(x: Any) -> bool:
        return isinstance(x, InternalLBFGS)

    if is_one(optimizer):
        return True
    if any(map(is_one, jax.tree.leaves(optimizer, is_leaf=is_one))):
        raise TypeError(
            "InternalLBFGS limits its own steps and stands in no chain: pass InternalLBFGS(), with"
            " maxstep= for shorter steps"
        )
    return False


def usual_optimizer(*, is_hosted: bool) -> AbstractTransform:
    """The one that is taken where none is given, by whether the host evaluates."""
    return InternalLBFGS() if is_hosted else FIRE()


class Given(AbstractTransform):
    """Steps that were made elsewhere."""

    steps: Tree

    def init(self, parameters: Tree, index_prefix: Prefix = None) -> "GivenState":
        return GivenState(index_prefix)

    def update(self, updates, state, params=None, **extra):
        return self.steps, state


class GivenState(AbstractState):
    """All that is known of a step is made elsewhere."""

    index_prefix: Prefix
