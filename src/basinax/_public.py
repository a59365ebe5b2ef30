"""The public names of basinax, from the modules that define them.

Their modules import JAX and equinox, so this one is imported with the first name.
"""

from basinax._bits.order import (
    OrderCheck as OrderCheck,
    OrderFinding as OrderFinding,
    OrderWarning as OrderWarning,
    check_order as check_order,
)
from basinax._bits.rounding import exact as exact, product as product, rounded as rounded
from basinax._jax.cache import enable_cache as enable_cache
from basinax._loop.criteria import (
    AbstractCriterion as AbstractCriterion,
    AllOf as AllOf,
    AnyOf as AnyOf,
    EnergyChange as EnergyChange,
    Evidence as Evidence,
    ForceNorm as ForceNorm,
    MaxDisplacement as MaxDisplacement,
    MaxForce as MaxForce,
    RMSForce as RMSForce,
    largest_force as largest_force,
)
from basinax._loop.findings import Finding as Finding
from basinax._loop.relax import Relaxation as Relaxation, relax as relax
from basinax._loop.status import Status as Status
from basinax._loop.verify import Verification as Verification, verify as verify
from basinax._systems import segment
from basinax._systems.alone import each_alone as each_alone
from basinax._systems.clipping import (
    Clipped as Clipped,
    LayerClipped as LayerClipped,
    clip_by_layer_norm as clip_by_layer_norm,
    clip_by_norm as clip_by_norm,
)
from basinax._systems.index import SystemIndex as SystemIndex
from basinax._systems.squares import sum_of_squares as sum_of_squares
from basinax._text.config import (
    from_config as from_config,
    register as register,
    to_config as to_config,
)
from basinax._text.tables import read_config as read_config, write_config as write_config
from basinax.transforms import *  # noqa: F403  (its public names are listed there alone)
from basinax.transforms._chain import Chain as Chain, chain as chain
from basinax.transforms._limits import AbstractLimit as AbstractLimit
from basinax.transforms._observe import observe as observe
from basinax.transforms._optax_by_name import (
    OptaxByName as OptaxByName,
    optax_transform as optax_transform,
)
from basinax.transforms._protocol import (
    AbstractState as AbstractState,
    AbstractTransform as AbstractTransform,
    apply_updates as apply_updates,
    reset as reset,
    rows_field as rows_field,
    slots_field as slots_field,
    states_field as states_field,
    systems_field as systems_field,
    where_systems as where_systems,
)
from basinax.transforms.optimizers.levenberg_marquardt import (
    LevenbergMarquardt as LevenbergMarquardt,
    LevenbergMarquardtState as LevenbergMarquardtState,
)
from basinax.transforms.searches.armijo import Armijo as Armijo
from basinax.transforms.searches.more_thuente import MoreThuente as MoreThuente
from basinax.transforms.searches.walk import WalkState as WalkState

segment = segment
