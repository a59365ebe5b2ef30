"""Limits and optimizers, one file an algorithm."""

from basinax.optimizers.adam import Adam as Adam, AdamState as AdamState
from basinax.optimizers.bfgs import BFGS as BFGS, BFGSState as BFGSState
from basinax.optimizers.bfgs_line_search import BFGSLineSearch as BFGSLineSearch
from basinax.optimizers.conjugate_gradient import ConjugateGradient as ConjugateGradient
from basinax.optimizers.fire import FIRE as FIRE, FIREState as FIREState
from basinax.optimizers.fire2 import FIRE2 as FIRE2, FIRE2State as FIRE2State
from basinax.optimizers.gradient_descent import (
    BarzilaiBorweinState as BarzilaiBorweinState,
    GradientDescent as GradientDescent,
    GradientDescentState as GradientDescentState,
)
from basinax.optimizers.lbfgs import LBFGS as LBFGS, LBFGSState as LBFGSState
from basinax.optimizers.lbfgs_line_search import LBFGSLineSearch as LBFGSLineSearch
from basinax.optimizers.limits.clip import (
    ClipByGlobalNorm as ClipByGlobalNorm,
    ClipByGlobalNormState as ClipByGlobalNormState,
)
from basinax.optimizers.limits.clip_by_layer_norm import (
    ClipByLayerNorm as ClipByLayerNorm,
    ClipByLayerNormState as ClipByLayerNormState,
)
from basinax.optimizers.limits.clip_by_row_norm import (
    ClipByRowNorm as ClipByRowNorm,
    ClipByRowNormState as ClipByRowNormState,
)
from basinax.optimizers.limits.clip_by_value import (
    ClipByValue as ClipByValue,
    ClipByValueState as ClipByValueState,
)
from basinax.optimizers.limits.max_step_size import (
    MaxStepSize as MaxStepSize,
    MaxStepSizeState as MaxStepSizeState,
)
from basinax.optimizers.mdmin import MDMin as MDMin, MDMinState as MDMinState
