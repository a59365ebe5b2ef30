"""Potentials: equinox modules from a batch and its neighbours to energies, forces and stresses."""

from basinax.atoms.potentials._folds.many_body import (
    AbstractAtomEnergyPotential as AbstractAtomEnergyPotential,
    AbstractManyBodyPotential as AbstractManyBodyPotential,
    Neighborhood as Neighborhood,
    Surroundings as Surroundings,
)
from basinax.atoms.potentials._folds.pair import AbstractPairPotential as AbstractPairPotential
from basinax.atoms.potentials._protocol import (
    AbstractPotential as AbstractPotential,
    Properties as Properties,
)
from basinax.atoms.potentials.buckingham import Buckingham as Buckingham
from basinax.atoms.potentials.eam import EAM as EAM
from basinax.atoms.potentials.emt import EMT as EMT
from basinax.atoms.potentials.lennard_jones import LennardJones as LennardJones
from basinax.atoms.potentials.morse import Morse as Morse
from basinax.atoms.potentials.stillinger_weber import (
    StillingerWeber as StillingerWeber,
    StillingerWeberTriplet as StillingerWeberTriplet,
)
from basinax.atoms.potentials.tersoff import Tersoff as Tersoff, TersoffTriplet as TersoffTriplet
from basinax.atoms.potentials.zhou import ZhouEAM as ZhouEAM
