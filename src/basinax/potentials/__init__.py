"""Potentials: equinox modules from a batch and its neighbours to energies, forces and stresses."""

from basinax.potentials.buckingham import Buckingham as Buckingham
from basinax.potentials.eam import EAM as EAM
from basinax.potentials.emt import EMT as EMT
from basinax.potentials.folds.many_body import (
    AbstractAtomEnergyPotential as AbstractAtomEnergyPotential,
    AbstractManyBodyPotential as AbstractManyBodyPotential,
    Neighborhood as Neighborhood,
    Surroundings as Surroundings,
)
from basinax.potentials.folds.pair import AbstractPairPotential as AbstractPairPotential
from basinax.potentials.lennard_jones import LennardJones as LennardJones
from basinax.potentials.morse import Morse as Morse
from basinax.potentials.protocol import (
    AbstractPotential as AbstractPotential,
    Properties as Properties,
)
from basinax.potentials.stillinger_weber import (
    StillingerWeber as StillingerWeber,
    StillingerWeberTriplet as StillingerWeberTriplet,
)
from basinax.potentials.tersoff import Tersoff as Tersoff, TersoffTriplet as TersoffTriplet
from basinax.potentials.zhou import ZhouEAM as ZhouEAM
