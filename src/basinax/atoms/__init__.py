"""Relaxations of atoms: ASE structures in, ASE structures out. Needs the extra `atoms`."""

try:
    import ase as ase
    import vesin as vesin
except ImportError as error:
    raise ImportError(
        f"basinax.atoms needs ase and vesin ({error.name} is missing): run"
        ' pip install "basinax[atoms]"'
    ) from error

from basinax.engine.criteria import MaxAtomForce as MaxAtomForce, MaxStress as MaxStress
from basinax.engine.elastic import (
    AtomsElasticity as AtomsElasticity,
    Elasticity as Elasticity,
    Modulus as Modulus,
    elastic as elastic,
)
from basinax.engine.evaluate import AtomsEvaluation as AtomsEvaluation, evaluate as evaluate
from basinax.engine.probe import Probe as Probe, probe as probe
from basinax.engine.relax import Progress as Progress, relax as relax
from basinax.engine.relax_stream import relax_stream as relax_stream
from basinax.engine.text import cell_from as cell_from, potential_from as potential_from
from basinax.engine.unique import unique as unique
from basinax.engine.vibrations import (
    AtomsVibrations as AtomsVibrations,
    Vibrations as Vibrations,
    check_minima as check_minima,
    vibrations as vibrations,
)
from basinax.internal.optimizer import InternalLBFGS as InternalLBFGS
from basinax.models.evaluators.calculator import ASECalculator as ASECalculator
from basinax.models.evaluators.protocol import (
    AbstractEvaluator as AbstractEvaluator,
    AbstractSession as AbstractSession,
    Evaluated as Evaluated,
    EvaluationError as EvaluationError,
    Request as Request,
)
from basinax.models.jax_model import JaxModel as JaxModel
from basinax.models.torch_sim import TorchSimModel as TorchSimModel
from basinax.neb.neb import neb as neb
from basinax.neb.result import (
    ComparedPath as ComparedPath,
    MinimumEnergyPath as MinimumEnergyPath,
    PathsResult as PathsResult,
)
from basinax.neighbors.edges import EdgeList as EdgeList
from basinax.neighbors.lists import Neighbors as Neighbors, moved_too_far as moved_too_far
from basinax.neighbors.table import NeighborTable as NeighborTable
from basinax.potentials import (
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
from basinax.results.compare import Compared as Compared, Comparison as Comparison
from basinax.results.history import History as History
from basinax.results.record import Relaxed as Relaxed
from basinax.results.result import AtomsRelaxation as AtomsRelaxation
from basinax.results.trajectory import Trajectories as Trajectories
from basinax.structures.batch import Batch as Batch, batch_shape as batch_shape
from basinax.structures.cells.kinds import (
    AbstractCell as AbstractCell,
    Frechet as Frechet,
    Strain as Strain,
    UnitCell as UnitCell,
)
from basinax.structures.constraints.kinds import register_constraint as register_constraint
from basinax.structures.constraints.of_users import AbstractConstraint as AbstractConstraint
