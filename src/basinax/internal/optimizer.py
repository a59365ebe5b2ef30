"""The optimizer whose steps the host makes, one structure at a time."""

import equinox as eqx
import numpy as np

from basinax.config.config import register
from basinax.internal.carried import Walk
from basinax.internal.coordinates import NoCoordinates, internal_coordinates
from basinax.internal.deformation import Deformation
from basinax.numerics.settings import FixedCount, Limit, Positive
from basinax.optimizers.protocol import AbstractState, AbstractTransform, has_part
from basinax.structures.read import Structure
from basinax.systems.types import Prefix, Tree


@register("internal-lbfgs")
class InternalLBFGS(AbstractTransform):
    """L-BFGS in internal coordinates with a model of the Hessian, for expensive evaluations.

    Every step lists stretches, bends, torsions, contacts and the springs of metals from the
    structure alone, with force constants that depend on its distances. Secant pairs are stored in
    these coordinates and carried to the current point. The host makes each structure's step in
    double precision, in a few ms. So it suits models whose evaluation takes longer, and only
    `relax` of `basinax.atoms` accepts it. It evaluates potentials that run inside `jit` for one
    structure at a time, too. Each setting is one number, or one per structure.
    """

    maxstep: Limit = 1.0
    """The longest step of an atom (Å) before bending; down to a fifth after bad predictions."""
    memory: FixedCount = eqx.field(static=True, default=40)
    """The largest number of pairs."""
    trust: Positive = 0.3
    """The largest change of a coordinate in the first step (Å or rad). Later limits are between
    0.05 and 0.6, depending on the predictions of the energy."""
    stiffness: Positive = 1.0
    """A factor of the model's force constants."""
    max_dofs: FixedCount = eqx.field(static=True, default=4000)
    """Structures with more degrees of freedom take the steps of plain L-BFGS: factorising their
    model takes more than a second."""

    def init(self, parameters: Tree, index_prefix: Prefix = None) -> "GivenState":
        return GivenState(index_prefix)

    def update(self, updates, state, params=None, **extra):
        raise TypeError(
            "InternalLBFGS steps on the host, by the elements of a structure: give it to relax of"
            " basinax.atoms"
        )

    def walk(self, structure: Structure, place: int) -> tuple[Deformation, Walk]:
        """The steps of a structure from its current point.

        Args:
            place: the index into settings with one number per structure.
        """
        numbers = [np.asarray(x) for x in (self.maxstep, self.trust, self.stiffness)]
        maxstep, trust, stiffness = (float(x[place] if x.ndim else x) for x in numbers)
        frame = Deformation(structure)
        plain = NoCoordinates(frame, maxstep)
        if frame.n_dofs > self.max_dofs:
            return frame, Walk(lambda x, before: plain, plain, self.memory, trust)
        renewed = internal_coordinates(frame, maxstep, stiffness)
        return frame, Walk(renewed, plain, self.memory, trust)


def steps_on_the_host(optimizer: AbstractTransform) -> bool:
    """Whether the host makes the steps of this optimizer.

    Raises:
        TypeError: such an optimizer is part of a chain.
    """
    if isinstance(optimizer, InternalLBFGS):
        return True
    if has_part(optimizer, InternalLBFGS):
        raise TypeError(
            "InternalLBFGS limits its own steps and stands in no chain: pass InternalLBFGS(), with"
            " maxstep= for shorter steps"
        )
    return False


class StepsOfHost(AbstractTransform):
    """Steps that were made elsewhere."""

    steps: Tree

    def init(self, parameters: Tree, index_prefix: Prefix = None) -> "GivenState":
        return GivenState(index_prefix)

    def update(self, updates, state, params=None, **extra):
        return self.steps, state


class GivenState(AbstractState):
    """An empty state: the host keeps everything about the steps."""

    index_prefix: Prefix
