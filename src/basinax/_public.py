"""The public names of basinax, from the modules that define them.

Their modules import JAX and equinox, so this one is imported with the first name.
"""

from basinax.config.config import (
    from_config as from_config,
    register as register,
    to_config as to_config,
)
from basinax.config.tables import read_config as read_config, write_config as write_config
from basinax.minimize.comparisons import Finding as Finding
from basinax.minimize.criteria import (
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
from basinax.minimize.relax import Relaxation as Relaxation, relax as relax
from basinax.minimize.status import Status as Status
from basinax.minimize.verify import Verification as Verification, verify as verify
from basinax.numerics.cache import enable_cache as enable_cache
from basinax.numerics.order import (
    OrderCheck as OrderCheck,
    OrderFinding as OrderFinding,
    OrderWarning as OrderWarning,
    check_order as check_order,
)
from basinax.numerics.rounding import exact as exact, product as product, rounded as rounded
from basinax.optimizers import *  # noqa: F403  (its public names are listed there alone)
from basinax.optimizers.chain import Chain as Chain, chain as chain
from basinax.optimizers.levenberg_marquardt import (
    LevenbergMarquardt as LevenbergMarquardt,
    LevenbergMarquardtState as LevenbergMarquardtState,
)
from basinax.optimizers.limits.protocol import AbstractLimit as AbstractLimit
from basinax.optimizers.line_search.armijo import Armijo as Armijo
from basinax.optimizers.line_search.more_thuente import MoreThuente as MoreThuente
from basinax.optimizers.line_search.walk import WalkState as WalkState
from basinax.optimizers.observe import observe as observe
from basinax.optimizers.optax_by_name import (
    OptaxByName as OptaxByName,
    optax_transform as optax_transform,
)
from basinax.optimizers.protocol import (
    AbstractState as AbstractState,
    AbstractTransform as AbstractTransform,
    apply_updates as apply_updates,
    layout_field as layout_field,
    reset as reset,
    rows_field as rows_field,
    slots_field as slots_field,
    states_field as states_field,
    systems_field as systems_field,
    where_systems as where_systems,
)
from basinax.systems import segment
from basinax.systems.clipping import (
    Clipped as Clipped,
    LayerClipped as LayerClipped,
    clip_by_layer_norm as clip_by_layer_norm,
    clip_by_norm as clip_by_norm,
)
from basinax.systems.index import SystemIndex as SystemIndex
from basinax.systems.map_systems import each_alone as each_alone
from basinax.systems.squares import sum_of_squares as sum_of_squares

segment = segment
