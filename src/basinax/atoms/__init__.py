"""Relaxations of atoms: ASE structures in, ASE structures out. Needs the extra `atoms`."""

try:
    import ase as ase
    import vesin as vesin
except ImportError as error:
    raise ImportError(
        f"basinax.atoms needs ase and vesin ({error.name} is missing): run"
        ' pip install "basinax[atoms]"'
    ) from error

from basinax.atoms._batch import Batch as Batch, batch_shape as batch_shape
from basinax.atoms._cells.kinds import (
    AbstractCell as AbstractCell,
    Frechet as Frechet,
    Strain as Strain,
    UnitCell as UnitCell,
)
from basinax.atoms._criteria import MaxAtomForce as MaxAtomForce, MaxStress as MaxStress
from basinax.atoms._elastic import (
    AtomsElasticity as AtomsElasticity,
    Elasticity as Elasticity,
    Modulus as Modulus,
    elastic as elastic,
)
from basinax.atoms._evaluate import AtomsEvaluation as AtomsEvaluation, evaluate as evaluate
from basinax.atoms._evaluators.calculator import ASECalculator as ASECalculator
from basinax.atoms._evaluators.protocol import (
    AbstractEvaluator as AbstractEvaluator,
    AbstractSession as AbstractSession,
    Evaluated as Evaluated,
    EvaluationError as EvaluationError,
    Request as Request,
)
from basinax.atoms._history import History as History
from basinax.atoms._internal.optimizer import InternalLBFGS as InternalLBFGS
from basinax.atoms._models.jax_model import JaxModel as JaxModel
from basinax.atoms._models.torch_sim import TorchSimModel as TorchSimModel
from basinax.atoms._neb.neb import neb as neb
from basinax.atoms._neb.result import (
    MinimumEnergyPath as MinimumEnergyPath,
    PathsResult as PathsResult,
)
from basinax.atoms._neighbors.edges import EdgeList as EdgeList
from basinax.atoms._neighbors.lists import Neighbors as Neighbors, moved_too_far as moved_too_far
from basinax.atoms._neighbors.table import NeighborTable as NeighborTable
from basinax.atoms._probe import Probe as Probe, probe as probe
from basinax.atoms._record import Relaxed as Relaxed
from basinax.atoms._relax import Progress as Progress, relax as relax
from basinax.atoms._relax_stream import relax_stream as relax_stream
from basinax.atoms._result import AtomsRelaxation as AtomsRelaxation
from basinax.atoms._text import cell_from as cell_from, potential_from as potential_from
from basinax.atoms._trajectory import Trajectories as Trajectories
from basinax.atoms._unique import unique as unique
from basinax.atoms._vibrations import (
    AtomsVibrations as AtomsVibrations,
    Vibrations as Vibrations,
    check_minima as check_minima,
    vibrations as vibrations,
)
from basinax.atoms.potentials import (
    EAM as EAM,
    EMT as EMT,
    AbstractAtomEnergyPotential as AbstractAtomEnergyPotential,
    AbstractManyBodyPotential as AbstractManyBodyPotential,
    AbstractPairPotential as AbstractPairPotential,
    AbstractPotential as AbstractPotential,
    Buckingham as Buckingham,
    LennardJones as LennardJones,
    Morse as Morse,
    Neighborhood as Neighborhood,
    Properties as Properties,
    StillingerWeber as StillingerWeber,
    StillingerWeberTriplet as StillingerWeberTriplet,
    Surroundings as Surroundings,
    Tersoff as Tersoff,
    TersoffTriplet as TersoffTriplet,
    ZhouEAM as ZhouEAM,
)
