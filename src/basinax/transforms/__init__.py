"""Limits and optimizers, one file an algorithm."""

from basinax.transforms._clip import (
    ClipByGlobalNorm as ClipByGlobalNorm,
)
from basinax.transforms._clip import (
    ClipByGlobalNormState as ClipByGlobalNormState,
)
from basinax.transforms._fire import FIRE as FIRE
from basinax.transforms._fire import FIREState as FIREState
from basinax.transforms._gradient_descent import (
    GradientDescent as GradientDescent,
)
from basinax.transforms._gradient_descent import (
    GradientDescentState as GradientDescentState,
)
from basinax.transforms._max_step_size import (
    MaxStepSize as MaxStepSize,
)
from basinax.transforms._max_step_size import (
    MaxStepSizeState as MaxStepSizeState,
)
