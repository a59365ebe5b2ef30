"""Relax many independent systems in one batch, each with the bits it has alone."""

from basinax import _segment as segment
from basinax._chain import Chain as Chain
from basinax._chain import chain as chain
from basinax._convergence import largest_force as largest_force
from basinax._optimizer import (
    AbstractState as AbstractState,
)
from basinax._optimizer import (
    AbstractTransform as AbstractTransform,
)
from basinax._optimizer import (
    apply_updates as apply_updates,
)
from basinax._optimizer import (
    reset as reset,
)
from basinax._optimizer import (
    rows_field as rows_field,
)
from basinax._optimizer import (
    states_field as states_field,
)
from basinax._optimizer import (
    systems_field as systems_field,
)
from basinax._optimizer import (
    where_systems as where_systems,
)
from basinax._relax import Relaxation as Relaxation
from basinax._relax import relax as relax
from basinax._rounding import product as product
from basinax._rounding import rounded as rounded
from basinax._status import Status as Status
from basinax._systems import SystemIndex as SystemIndex
from basinax.transforms import (
    FIRE as FIRE,
)
from basinax.transforms import (
    ClipByGlobalNorm as ClipByGlobalNorm,
)
from basinax.transforms import (
    ClipByGlobalNormState as ClipByGlobalNormState,
)
from basinax.transforms import (
    FIREState as FIREState,
)
from basinax.transforms import (
    GradientDescent as GradientDescent,
)
from basinax.transforms import (
    GradientDescentState as GradientDescentState,
)
from basinax.transforms import (
    MaxStepSize as MaxStepSize,
)
from basinax.transforms import (
    MaxStepSizeState as MaxStepSizeState,
)

segment = segment
__version__ = "0.1.0"
