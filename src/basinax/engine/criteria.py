"""When a structure whose cell moves is done: forces and stress apart."""

import equinox as eqx
import jax.numpy as jnp

from basinax.engine.moving_cells import Dofs, Observed
from basinax.minimize.criteria import AbstractCriterion, Tolerance, as_leaf, largest_force
from basinax.systems.prefix import per_system


class MaxAtomForce(AbstractCriterion):
    """The largest force on an atom is below `fmax`, without the forces on a cell.

    For a fixed cell this is `MaxForce`. Where a cell moves, the force is that on the degrees of
    freedom, deformed with the cell as in ASE's filters. With `Strain`, which has no degrees of
    freedom of atoms, the criterion is always met.
    """

    fmax: Tolerance = eqx.field(default=0.05, converter=as_leaf)
    """In eV/Å."""

    def __call__(self, evidence):
        gradients, prefix = evidence.gradients, evidence.index_prefix
        if isinstance(gradients, Dofs):
            gradients, prefix = gradients.positions, prefix.positions
        largest = largest_force(gradients, prefix)
        return largest < per_system(self.fmax, "fmax", largest)


class MaxStress(AbstractCriterion):
    """The largest component of the stress that may move the cell is below the tolerance.

    Compared is the stress plus the pressure, without entries that masks and other options of the
    cell hold, as in the convergence test of ASE's filters. A structure with a fixed cell meets the
    criterion.
    """

    tolerance: Tolerance = eqx.field(converter=as_leaf)
    """In eV/Å³; 1e-3 eV/Å³ is 0.16 GPa."""

    def __call__(self, evidence):
        if not isinstance(evidence.extras, Observed):
            return jnp.ones_like(evidence.has_last)
        stress = evidence.extras.residual_stress
        largest = jnp.max(jnp.abs(stress), axis=(1, 2))
        return largest < per_system(self.tolerance, "tolerance of MaxStress", largest)
